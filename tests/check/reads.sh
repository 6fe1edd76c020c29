#!/bin/sh
# SPDX-License-Identifier: MIT
#
# No expression reads twice from a message. C does not say which operand, argument or element of an initializer comes
# first, and a reader takes the values in the order of the calls.
set -u

cd "${BX_SOURCE_DIR:-.}" || exit 1
# shellcheck source=tests/checks.sh
. tests/checks.sh

# The second read of each expression, as FILE:LINE. An expression ends at ; && || ? : and, outside of parentheses and
# initializers, at a comma, and at a line that ends with ).
twice()
{
    awk '
        function is_initializer(before)     # of a brace: what stands before it
        {
            return before ~ /[=,{(] *$/ ||
                   before ~ /(^|[=(&,{?:]|return) *\((const )?(struct|union) [a-z_0-9]+[^()]*\) *$/
        }
        FNR == 1 { depth = reads = 0; before = "" }
        {
            rest = $0
            while (match(rest, /bx_read_[a-z0-9_]+\(|&&|\|\||[][(){},;?:]/)) {
                token = substr(rest, RSTART, RLENGTH)
                before = before substr(rest, 1, RSTART - 1)
                rest = substr(rest, RSTART + RLENGTH)
                if (token ~ /^bx_read/ && ++reads == 2)
                    print FILENAME ":" FNR
                if (token ~ /[[(]$/ || (token == "{" && is_initializer(before)))
                    depth++
                else if (token ~ /[])}]/ && depth > 0)
                    reads = --depth == 0 && rest ~ /^ *$/ ? 0 : reads
                else if (token ~ /[;{}]/)
                    depth = reads = 0
                else if (token != "," || depth == 0)
                    reads = 0
                before = substr(before token, length(before token) - 120)
            }
            before = before rest " "
        }' "$@"
}

control=$(mktemp) || exit 1
trap 'rm -f "$control"' EXIT
cat >"$control" <<'END'
    struct wave wave = { .number = bx_read_u64(args), .timeout_ns = bx_read_u64(args) };
    from = (struct from){ context, bx_read_i32(reader), (uint32_t)bx_read_i32(reader) };
    return bx_msg_put_i64(reply, bx_read_i64(args) + bx_read_i64(args));
    call(bx_read_i64(args),
         bx_read_i64(args));
    int64_t a = bx_read_i64(args), b = bx_read_i64(args);
    if (bx_read_i64(args) != 1 || bx_read_rref(args) != NULL)
        x = bx_read_i32(args) != 0 ? bx_read_tensor(args) : NULL;
static int f(struct reader *args)
{   x = bx_read_i64(args); }  int g(void) {  y = bx_read_i64(args);  }
END
report 'the control: two reads in one expression are found' "$(
    [ "$(twice "$control" | sed 's/.*://' | tr '\n' ' ')" = '1 2 3 5 ' ] || twice "$control")"

# No file name here holds a blank.
# shellcheck disable=SC2046
report 'no expression reads twice from a message' "$(twice README.md $(
    find lib gpu tools demos tests -name '*.[ch]' -o -name '*.md' | sort))"
exit "$failed"

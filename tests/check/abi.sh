#!/bin/sh
# SPDX-License-Identifier: MIT
#
# lib/libboxcar.abi, lib/libboxcar_nn.abi and lib/libboxcar_autograd.abi list what compiled programs rely on: each
# exported function with its version node and its types, each public struct with its size and the offset, size and
# type of its fields, each constant. This check builds the same list from the headers and from the shared libraries,
# and compares. No library exports anything else, and each has the SONAME that programs record. lib/ABI.md has the rules
# that the sentences name. `abi.sh --list libboxcar` prints the new list of a library.
set -u

cd "${BX_SOURCE_DIR:-.}" || exit 1
build=${BX_BUILD_DIR:-build}
: "${CC:=cc}"
# shellcheck source=tests/checks.sh
. tests/checks.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

headers_of()    # headers_of LIBRARY
{
    case $1 in
    libboxcar) echo lib/boxcar.h lib/boxcar_tensor.h lib/boxcar_rref.h lib/boxcar_call.h lib/boxcar_trace.h ;;
    libboxcar_nn) echo lib/boxcar_nn.h lib/boxcar_cuda.h ;;
    libboxcar_autograd) echo lib/boxcar_autograd.h lib/boxcar_dist.h ;;
    esac
}

# The declarations of one header by itself, one a line, without comments, macros, attributes and what is not for
# programs (bxi_).
declarations()
{
    $CC -E -std=c11 -Ilib "$1" | awk -v header="$1" '
        /^# [0-9]+ "/ { ours = index($3, "\"" header "\"") > 0; next }
        !ours || /^#/ { next }
        {
            gsub(/__attribute__\(\([^;]*\)\)/, "")
            for (i = 1; i <= length($0); i++) {
                c = substr($0, i, 1)
                depth += (c == "{") - (c == "}")
                text = text c
                if (c == "}" && depth == 0 && text ~ /bxi_[a-z0-9_]+\(/)
                    text = ""                   # an inline function
                if (c == ";" && depth == 0) {
                    gsub(/[ \t]+/, " ", text)
                    gsub(/ \)/, ")", text)
                    gsub(/\( /, "(", text)
                    sub(/^ /, "", text)
                    sub(/ ?;$/, "", text)
                    gsub(/" "/, "", text)
                    if (match(text, / ?__asm__\("[a-z0-9_]+"\)$/)) {  # its symbol, which programs have
                        symbol = substr(text, RSTART, RLENGTH)
                        text = substr(text, 1, RSTART - 1)
                        gsub(/^ ?__asm__\("|"\)$/, "", symbol)
                        sub(/bxi?_[a-z0-9_]+\(/, symbol "(", text)
                    }
                    if (text !~ /bxi_/)
                        print text
                    text = ""
                }
            }
            text = text " "
        }'
}

# Functions and function types, without the names of parameters; then a C program that prints the rest.
functions()
{
    awk '
        function bare(parameter)
        {
            sub(/^ /, "", parameter)
            if (parameter ~ /[ *]/)
                sub(/ ?[a-z_][a-z0-9_]*$/, "", parameter)
            return parameter
        }
        function types(text, list, count, i, out, at)
        {
            at = match(text, /\([^()]*\)$/)
            count = split(substr(text, at + 1, length(text) - at - 1), list, ",")
            for (i = 1; i <= count; i++)
                out = out (i > 1 ? ", " : "") bare(list[i])
            return substr(text, 1, at) out ")"
        }
        /^(struct|enum) [a-z_]+( \{.*)?$/ { next }
        /^typedef / { sub(/^typedef /, ""); print "type " types($0); next }
        /\)$/ { text = types($0); match(text, /bx_[a-z0-9_]*\(/); name = substr(text, RSTART, RLENGTH - 1)
                print "function " name " " text }'
}

struct_printer()    # struct_printer HEADER...
{
    printf '#include <stddef.h>\n#include <stdio.h>\n'
    for header in "$@"; do
        echo "#include \"${header#lib/}\""
    done
    echo 'int main(void) {'
    awk '
        function constant(name) { printf "printf(\"constant %s %%lld\\n\", (long long)(%s));\n", name, name }
        /^enum [a-z_]* ?\{/ {
            gsub(/^[^{]*\{|\}$/, "")
            count = split($0, list, ",")
            for (i = 1; i <= count; i++) {
                sub(/^ */, "", list[i])
                sub(/[ =].*$/, "", list[i])
                if (list[i] != "") constant(list[i])
            }
        }
        /^struct bx_[a-z_]+ \{/ {
            name = $2
            gsub(/^[^{]*\{|\}$/, "")
            printf "printf(\"struct %s %%zu\\n\", sizeof(struct %s));\n", name, name
            count = split($0, list, ";")
            for (i = 1; i <= count; i++) {
                sub(/^ */, "", list[i])
                if (list[i] == "") continue
                type = list[i]
                sub(/\[.*$/, "", type)
                field = type
                sub(/^.*[ *]/, "", field)
                sub(" ?" field "$", "", type)
                printf "printf(\"field %s.%s %%zu %%zu %s\\n\", offsetof(struct %s, %s), " \
                    "sizeof((struct %s *)0)->%s);\n", name, field, type, name, field, name, field
            }
        }
        /^BX_/ { constant($1) }
        END { print "return 0; }" }'
}

# The names of a header's constants that are macros, but for the version, which is to change.
macros()
{
    sed -n 's/^#define \(BX_[A-Z0-9_]*\) .*/\1/p' "$1" | grep -v '^BX_VERSION_'
}

# list LIBRARY: what it promises now.
list()
{
    headers=$(headers_of "$1")
    # Words on purpose: a list of headers, in which no name has a blank.
    # shellcheck disable=SC2086
    {
        for header in $headers; do
            declarations "$header"
        done >"$work/declarations"
        # The symbols of older versions, which the headers give to other functions now.
        if [ "$1" = libboxcar ]; then
            declarations lib/job/old.h >>"$work/declarations"
        fi
        for header in $headers; do
            macros "$header"
        done >"$work/macros"
        cat "$work/declarations" "$work/macros" | struct_printer $headers >"$work/print.c"
    }
    $CC -std=c11 -Ilib -o "$work/print" "$work/print.c" || return 1
    nm -D --defined-only "$build/lib/$1.so" | awk '$2 != "A" { sub(/@+/, " ", $3); print $3 }' >"$work/nodes"
    "$work/print"
    functions <"$work/declarations" | awk -v nodes="$work/nodes" '
        BEGIN { while ((getline line <nodes) > 0) { split(line, word, " "); node[word[1]] = word[2] } }
        $1 != "function" { print; next }
        { name = $2; $1 = $2 = ""; sub(/^ +/, ""); print "function " (name in node ? node[name] : "none") " " $0 }'
}

# What is wrong, a sentence a line: compares the list kept, first, with the list made, second. node: where a function
# that comes new belongs.
differences()
{
    awk -v node="$2" -v file="lib/$1.abi" '
        # What a line is about: the name of a function, a type, a struct, a field or a constant.
        function subject(line, word)
        {
            split(line, word, " ")
            if (word[1] != "function" && word[1] != "type")
                return word[1] " " word[2]
            match(line, word[1] == "type" ? "bx_[a-z0-9_]*[)]" : "bx_[a-z0-9_]*[(]")
            return word[1] " " substr(line, RSTART, RLENGTH - 1)
        }
        function tail(name)     # may fields be added to the struct?
        {
            return ("field " name ".struct_bytes") in kept
        }
        /^#/ || NF == 0 { next }
        NR == FNR { kept[subject($0)] = $0; next }
        { made[subject($0)] = $0; order[++count] = subject($0) }
        END {
            for (key in kept) {
                if (key in made && made[key] == kept[key])
                    continue
                split(key, word, " ")
                split(kept[key], old, " ")
                split(key in made ? made[key] : "", new, " ")
                if (word[1] == "struct" && (key in made) && tail(word[2]) && new[3] > old[3])
                    print(key " has grown from " old[3] " to " new[3] " bytes: programs that leave struct_bytes 0 " \
                        "have " old[3] " (lib/ABI.md, \"A field\"). Then renew its line in " file ".")
                else if (!(key in made))
                    print(key " is gone, and programs use it. Put it back and deprecate it (lib/ABI.md, " \
                        "\"Deprecation\"), or begin a new major version (\"A break\"): " kept[key])
                else
                    print(key " has changed under programs that use it. Restore it and add a new name beside it, or " \
                        "begin a new major version (lib/ABI.md, \"A break\"). It was: " kept[key] "; it is: " made[key])
            }
            for (i = 1; i <= count; i++) {
                key = order[i]
                if (key in kept)
                    continue
                split(made[key], new, " ")
                split(new[2], part, ".")
                if (new[1] == "field" && ("struct " part[1]) in kept) {
                    split(kept["struct " part[1]], old, " ")
                    if (tail(part[1]) && new[3] < old[3]) {
                        print(key " begins at " new[3] ", inside the " old[3] " bytes that older programs have, " \
                            "where they leave padding undefined. Move it behind them (lib/ABI.md, \"A field\").")
                        continue
                    }
                }
                if (new[1] == "function" && new[2] != node)
                    print(key " is new and at version node " new[2] "; it belongs to " node " (lib/ABI.md, " \
                        "\"A function\").")
                else
                    print(key " is new. Add this line to " file ": " made[key])
            }
        }' "lib/$1.abi" "$work/made"
}

# A new function belongs to the first node while the list is of this minor version, else to a node of the version.
node_of()       # node_of LIBRARY FIRST_NODE
{
    version=$(sed -n 's/^#define BX_VERSION_M[AI][JN]OR //p' lib/boxcar.h | paste -sd.)
    first=$(sed -n 's/^# First version with this list: //p' "lib/$1.abi")
    if [ "$version" = "$first" ]; then
        echo "$2"
    else
        echo "$2.${version#*.}"
    fi
}

promises()      # promises LIBRARY FIRST_NODE
{
    list "$1" >"$work/made" || echo 'the list cannot be made' >"$work/made"
    # Each kind must be there, or a header that the check no longer understands would pass.
    report "the ABI of $1" "$(differences "$1" "$(node_of "$1" "$2")" | LC_ALL=C sort
        for kind in function struct field; do
            grep -q "^$kind " "$work/made" || echo "$kind: none was found: this check does not know them"
        done)"
    grep '^function ' "$work/made" | grep -oE '\bbx_[a-z0-9_]*\(' | tr -d '(' | LC_ALL=C sort >"$work/declared"
    cut -d' ' -f1 "$work/nodes" | LC_ALL=C sort | LC_ALL=C comm -13 "$work/declared" - >"$work/undeclared"
    report "$1 exports nothing else" "$(cat "$work/undeclared")"
    readelf -d "$build/lib/$1.so" >"$work/dynamic"
    report "the SONAME of $1" "$(grep -q "SONAME.*\[$1\.so\.0\]" "$work/dynamic" || cat "$work/dynamic")"
}

if [ "${1:-}" = --list ]; then
    [ -n "$(headers_of "${2:-}")" ] || {
        echo 'usage: abi.sh --list libboxcar|libboxcar_nn|libboxcar_autograd' >&2
        exit 2
    }
    sed -n '/^#/p' "lib/$2.abi"
    list "$2"
    exit
fi

promises libboxcar BOXCAR_0
report 'libboxcar cannot be unloaded' "$(grep -q NODELETE "$work/dynamic" || cat "$work/dynamic")"
promises libboxcar_nn BOXCAR_NN_0
promises libboxcar_autograd BOXCAR_AUTOGRAD_0
exit "$failed"

#!/bin/sh
# SPDX-License-Identifier: MIT
#
# shm/LAYOUT.md beside shm/layout.h and lib/observe/tables.h. Its tables become a program of C, which compares offsets,
# sizes, constants and places with the compiler's. Each struct is there, with all its fields, in order, without a hole:
# a new field in a header fails here until it is in the document. Each invariant has the headers' words.
set -u

cd "${BX_SOURCE_DIR:-.}" || exit 1
# shellcheck source=tests/checks.sh
. tests/checks.sh

dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT

program()   # program DOCUMENT
{
    awk '
        function expect(what, value) {
            printf "    wrong |= expect(\"%s\", (uint64_t)(%s), UINT64_C(%s));\n", what, what, value
        }
        BEGIN {
            print "#include \"observe/tables.h\"\n#include \"shm/layout.h\"\n#include <inttypes.h>\n#include <stdio.h>"
            print "static int expect(const char *what, uint64_t is, uint64_t says)\n{\n    if (is != says)"
            print "        printf(\"%s is %\" PRIu64 \", not %\" PRIu64 \"\\n\", what, is, says);"
            print "    return is != says;\n}\n\nint main(void)\n{\n    int wrong = 0;\n"
        }
        /^#/ { section = $0; name = "" }
        /^### `struct / {
            name = $3
            sub(/`$/, "", name)
            bytes = substr($4, 2)
            end = 0
            expect("sizeof(struct " name ")", bytes)
        }
        /^\|---/ { is_row = 1; next }
        !/^\|/ && is_row && name != "" { expect(end, bytes) }
        !/^\|/ { is_row = 0 }
        !is_row { next }
        {
            count = split($0, cell, "|")
            for (i = 1; i <= count; i++)
                gsub(/^[ `]+|[ `]+$/, "", cell[i])
        }
        name != "" {
            expect(cell[2], end)                        # no hole before it
            expect("offsetof(struct " name ", " cell[4] ")", cell[2])
            expect("sizeof(((struct " name " *)0)->" cell[4] ")", cell[3])
            end = cell[2] + cell[3]
        }
        section == "## Constants" { expect(cell[2], cell[3]) }
        section == "## Rings" { expect("bxi_ring_offset(" cell[2] ")", cell[3]) }
        section == "## Lease words" { expect("bxi_lease_offset(" cell[2] ")", cell[3]) }
        section == "## Memory" {
            rest = cell[2] " * bxi_control_used(" cell[2] ")"
            expect("bxi_segment_bytes(" cell[2] ")", cell[3])
            expect(rest, cell[4])
            expect(rest " + " cell[2] * (cell[2] - 1) " * (uint64_t)BXI_OPEN_BYTES", cell[5])
        }
        END { print "    return wrong;\n}" }' "$1"
}

differences()   # differences DOCUMENT: what the program says
{
    program "$1" >"$dir/layout.c"
    "${CC:-cc}" -std=gnu11 -I. -Ilib -o "$dir/layout" "$dir/layout.c" 2>&1 && "$dir/layout"
}

undocumented()
{
    sed -n 's/^struct \(bxi_[a-z_]*\) {.*/\1/p' shm/layout.h lib/observe/tables.h | while read -r name; do
        grep -q "^### \`struct $name\` (" shm/LAYOUT.md || echo "struct $name has no table"
    done
}

# In the headers they are comments, in the document rows of a table.
invariants()
{
    awk '
        function flat(text) {
            gsub(/\\/, "", text)
            gsub(/ +/, " ", text)
            return text
        }
        FILENAME ~ /\.h$/ { sub(/^ *\*+/, ""); said = said " " $0; next }
        /^\| I[0-9]+ \| / {
            sub(/^\| /, "")
            sub(/ \| /, " ")
            sub(/ \|$/, "")
            row[++count] = $0
        }
        END {
            said = flat(said)
            for (i = 1; i <= count; i++)
                if (row[i] !~ "^I" i " " || !index(said, " " flat(row[i])))
                    print "the headers do not say: " row[i]
            if (count < 12 || index(said, " I" count + 1 " "))
                print "the document has I1 to I" count
        }' shm/layout.h lib/observe/tables.h shm/LAYOUT.md
}

sed 's/^| 384 | 7808 |/| 384 | 7816 |/; s/| 4096 | bytes of a page/| 4097 | bytes of a page/' \
    shm/LAYOUT.md >"$dir/control"
report 'the control: a wrong size, with the hole behind it, and a wrong constant are found' "$(
    [ "$(differences "$dir/control" | wc -l)" = 3 ] || differences "$dir/control")"
report 'offsets, sizes, constants and places are those of LAYOUT.md' "$(differences shm/LAYOUT.md)"
report 'it compares all of them' "$([ "$(grep -c expect "$dir/layout.c")" -gt 400 ] || wc -l "$dir/layout.c")"
report 'each struct is documented' "$(undocumented)"
report 'each invariant is' "$(invariants)"
exit "$failed"

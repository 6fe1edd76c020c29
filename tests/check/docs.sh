#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Documents name the files that exist. lib/README.md has a section for each room of lib/, "### room: ...", and its table
# names each file of the folder and no other (nn/, a library of its own, has no table). In all documents each path in
# backticks that has a folder and a suffix leads to a file, from the root, from lib/, or from the document's folder.
set -u

cd "${BX_SOURCE_DIR:-.}" || exit 1
# shellcheck source=tests/checks.sh
. tests/checks.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The files that the table of a room names: the first column.
table()
{
    awk -v room="$1" '
        /^##/ { on = $0 ~ "^### " room ":" }
        on && /^\| `/ { split($0, column, "|"); print column[2] }' lib/README.md |
        grep -oE '[a-z0-9_]+\.[ch]' | LC_ALL=C sort
}

for folder in lib/*/; do
    room=$(basename "$folder")
    [ "$room" != nn ] || continue
    find "$folder" -name '*.[ch]' -exec basename {} \; | LC_ALL=C sort >"$work/files"
    table "$room" >"$work/table"
    report "lib/README.md has the files of $room" "$(LC_ALL=C comm -3 "$work/files" "$work/table" |
        awk -F'\t' '$1 != "" { print $1 " has no row in its section" } $2 != "" { print $2 " has a row and is gone" }')"
done

# No name of a document has a blank, so the list is words on purpose.
# shellcheck disable=SC2046
report 'paths in documents lead to files' "$(
    for document in $(find .github lib shm gpu demos tools tests -name '*.md') README.md; do
        grep -oE '`[a-z_][a-z_0-9./]*/[a-z_0-9]+\.(c|h|cu|sh|md|pml|mut|map|abi|1)`' "$document" | tr -d '`' |
            LC_ALL=C sort -u | while read -r path; do
            [ -e "$path" ] || [ -e "lib/$path" ] || [ -e "$(dirname "$document")/$path" ] || echo "$document: $path"
        done
    done)"
exit "$failed"

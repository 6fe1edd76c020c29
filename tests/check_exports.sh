#!/bin/sh
# SPDX-License-Identifier: MIT
#
# libboxcar.so exports exactly the functions that boxcar.h declares, and has the name that programs
# will look for.
set -u

cd "${BX_SOURCE_DIR:-.}" || exit 1
lib=${BX_BUILD_DIR:-build}/lib/libboxcar.so
failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The preprocessor takes comments and macros away. A function type, (*bx_handler_fn)(, does not
# match.
${CC:-cc} -E -P -x c lib/boxcar.h | grep -oE '\bbx_[a-z0-9_]+ *\(' | tr -d ' (' |
    LC_ALL=C sort -u >"$work/declared"
nm -D --defined-only "$lib" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' |
    LC_ALL=C sort -u >"$work/exported"

if [ ! -s "$work/declared" ] || ! diff "$work/declared" "$work/exported" >"$work/diff"; then
    echo 'declared (<) but not exported, or exported (>) but not declared:'
    cat "$work/diff"
    echo 'not ok exports'
    failed=1
else
    echo "ok exports"
fi

readelf -d "$lib" >"$work/dynamic"
if grep -q 'SONAME.*\[libboxcar\.so\.0\]' "$work/dynamic" && grep -q NODELETE "$work/dynamic"; then
    echo 'ok soname and nodelete'
else
    echo 'not ok soname and nodelete'
    failed=1
fi
exit "$failed"

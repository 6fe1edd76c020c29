#!/bin/sh
# SPDX-License-Identifier: MIT
#
# libboxcar.so exports exactly the functions that boxcar.h, its parts and boxcar_trace.h declare, libboxcar_nn.so those
# of boxcar_nn.h and boxcar_cuda.h, libboxcar_autograd.so those of boxcar_autograd.h and boxcar_dist.h. All have the
# SONAME that programs record. abi.sh compares types and versions.
set -u

cd "${BX_SOURCE_DIR:-.}" || exit 1
failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The functions that a header declares by itself. The preprocessor takes comments and macros away. A
# function type, (*bx_handler_fn)(, does not match. A symbol that is not the name of its function counts too.
declared()
{
    ${CC:-cc} -E -x c -Ilib "$1" |
        awk -v header="$1" '/^# [0-9]+ "/ { ours = index($3, header) > 0; next } ours' |
        sed 's/" "//g' | grep -oE '\bbx_[a-z0-9_]+ *\(|__asm__\("[a-z0-9_]+"' |
        sed 's/^__asm__("//; s/[ ("]*$//' | LC_ALL=C sort -u
}

# check LIBRARY HEADER...
check()
{
    lib=${BX_BUILD_DIR:-build}/lib/$1.so
    name=$1
    shift
    for header in "$@"; do
        declared "$header"
    done | LC_ALL=C sort -u >"$work/declared"
    nm -D --defined-only "$lib" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' |
        LC_ALL=C sort -u >"$work/exported"
    if [ ! -s "$work/declared" ] || ! diff "$work/declared" "$work/exported" >"$work/diff"; then
        echo 'declared (<) but not exported, or exported (>) but not declared:'
        cat "$work/diff"
        echo "not ok exports of $name"
        failed=1
    else
        echo "ok exports of $name"
    fi
    readelf -d "$lib" >"$work/dynamic"
    if grep -q "SONAME.*\[$name\.so\.0\]" "$work/dynamic"; then
        echo "ok soname of $name"
    else
        echo "not ok soname of $name"
        failed=1
    fi
}

check libboxcar lib/boxcar.h lib/boxcar_tensor.h lib/boxcar_rref.h lib/boxcar_call.h lib/boxcar_trace.h lib/job/old.h
grep -q NODELETE "$work/dynamic" && echo 'ok nodelete' || { echo 'not ok nodelete'; failed=1; }
check libboxcar_nn lib/boxcar_nn.h lib/boxcar_cuda.h
check libboxcar_autograd lib/boxcar_autograd.h lib/boxcar_dist.h
exit "$failed"

#!/bin/sh
# SPDX-License-Identifier: MIT
#
# libboxcar.so in processes that load it late: two of python3, which open, use and close it twice; the same with torch,
# where that is installed, imported before the library and after it. The process's malloc stays glibc's.
set -u

cd "${BX_SOURCE_DIR:-.}" || exit 1
library=$(cd "${BX_BUILD_DIR:-build}" && pwd)/lib/libboxcar.so
case ${BX_CONFIG:-release} in
asan | tsan | ubsan)
    echo 'skip: a sanitizer must be loaded first, and python3 is not'
    exit 77
    ;;
esac
dir=$(mktemp -d)
pids=
trap 'test -z "$pids" || end_own $pids; rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

# shellcheck source=tests/checks.sh
. "$(dirname "$0")/../checks.sh"

pair()      # pair PYTHON [first|late]: both workers succeed
{
    status=0
    interpreter=$1
    shift
    for rank in 0 1; do
        "$interpreter" tests/e2e/dlopen.py "$library" "$rank" "dlopen$$" "$@" >"$dir/out.$rank" 2>&1 </dev/null &
        eval "pid_$rank=\$!"
        pids="$pids $!"
    done
    # shellcheck disable=SC2154
    for pid in "$pid_0" "$pid_1"; do
        wait "$pid" || status=1
    done
    pids=
    return "$status"
}

# Those of the thread-local variables, which every thread of a process that loads the library has.
tls_bytes()
{
    readelf -lW "$1" | awk '$1 == "TLS" { print $6 }'
}

# The C library of today's distributions has 1568 bytes for all libraries that are loaded late.
few_tls_bytes()
{
    test "$(($(tls_bytes "$library")))" -le 320 || { tls_bytes "$library" >"$dir/out.0"; return 1; }
}

foreign()   # the symbols of the C library that the library would define
{
    nm -D --defined-only "$library" | grep -E ' (malloc|calloc|realloc|free|memalign|aligned_alloc|_Zn[wa]m)(@|$)'
}

python=$(command -v python3) || { echo 'skip: python3 is not installed'; exit 77; }
check 'python3 opens, uses and closes the library, twice' pair "$python"
check 'its thread-local variables are few' few_tls_bytes
check 'it needs no other allocator' test -z "$(readelf -d "$library" | grep 'NEEDED.*malloc')"
check 'it brings no malloc' test -z "$(foreign)"

with_torch=
for python in "$python" /usr/bin/python3; do
    if [ -z "$with_torch" ] && "$python" -c 'import torch.utils.dlpack' >/dev/null 2>&1; then
        with_torch=$python
    fi
done
if [ -n "$with_torch" ]; then
    check 'beside torch that was imported first' pair "$with_torch" first
    check 'beside torch that is imported later' pair "$with_torch" late
else
    echo 'skip beside torch, which is not installed'
    echo 'skip beside torch, which is not installed'
fi
exit "$failed"

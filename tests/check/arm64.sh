#!/bin/sh
# SPDX-License-Identifier: MIT
#
# The engine compiles for arm64, and the unit tests of ring and doorbell pass there, in qemu, one by one: a process in
# qemu cannot start another. That executes arm64's instructions, but in the order of memory of the machine that it runs
# on: whether the fences are enough for arm64 is for the simulator. Linked statically: qemu has no library of arm64.
# Skipped without a compiler for arm64 or qemu.
set -u

cd "${BX_SOURCE_DIR:-.}" || exit 1
cc=aarch64-linux-gnu-gcc
if ! command -v $cc >/dev/null || ! command -v qemu-aarch64 >/dev/null; then
    echo "skip arm64: $cc and qemu-aarch64 are not both installed"
    exit 77
fi
# shellcheck source=tests/checks.sh
. tests/checks.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: "${JEMALLOC:=$PWD/build/jemalloc}"
set -- -std=gnu11 -O1 -Wall -Wextra -Werror -pthread -D_GNU_SOURCE -DBXI_CUDA=0 -I. -Ilib -isystem "$JEMALLOC/include" \
    -idirafter /usr/include

$cc "$@" -fsyntax-only shm/*.c lib/base/*.c lib/run/*.c lib/rref/*.c lib/rpc/*.c lib/lend/*.c lib/device/*.c \
    lib/job/*.c lib/observe/*.c gpu/stub.c >"$work/said" 2>&1
report 'the engine compiles for arm64' "$([ $? -eq 0 ] || cat "$work/said")"
$cc -isystem tests/tsan "$@" -static -o "$work/unit" tests/shm/test_ring.c tests/shm/test_doorbell.c \
    tests/tsan/criterion.c shm/ring.c shm/doorbell.c >"$work/said" 2>&1
report 'the tests of ring and doorbell compile for arm64' "$([ $? -eq 0 ] || cat "$work/said")"
qemu-aarch64 "$work/unit" --list | awk -F: '/:/ { suite = $1; next } { print suite "/" $1 }' | tr -d ' ' >"$work/names"
report 'the tests of ring and doorbell in qemu' "$(
    [ -s "$work/names" ] || echo 'there are none'
    while read -r name; do
        timeout 120 qemu-aarch64 "$work/unit" --one "$name" || echo "$name fails"
    done <"$work/names")"
exit "$failed"

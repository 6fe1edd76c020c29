#!/bin/sh
# SPDX-License-Identifier: MIT
#
# The engine compiles for arm64, and ring and doorbell pass their stress there, in qemu. That executes arm64's
# instructions, but in the order of memory of the machine that it runs on: whether the fences are enough for arm64 is
# for the models. There is no io_uring in qemu, so sleepers are of the kind epoll. Linked statically: a program that
# loads the C library hangs in pthread_create of qemu 7.2. Skipped without a compiler for arm64 or qemu.
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

cat >"$work/uring.c" <<'END'
#include <liburing.h>
#include <stdlib.h>
int io_uring_queue_init_params(unsigned entries, struct io_uring *ring, struct io_uring_params *params)
{
    (void)entries, (void)ring, (void)params;
    return -38;         /* ENOSYS */
}
int io_uring_submit(struct io_uring *ring) { (void)ring, abort(); }
int io_uring_submit_and_get_events(struct io_uring *ring) { (void)ring, abort(); }
int io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **cqe, unsigned count,
                                     struct __kernel_timespec *timeout, sigset_t *signals)
{
    (void)ring, (void)cqe, (void)count, (void)timeout, (void)signals, abort();
}
void io_uring_queue_exit(struct io_uring *ring) { (void)ring, abort(); }
END

$cc "$@" -fsyntax-only shm/*.c lib/base/*.c lib/run/*.c lib/rref/*.c lib/rpc/*.c lib/lend/*.c lib/device/*.c \
    lib/job/*.c lib/observe/*.c gpu/stub.c >"$work/said" 2>&1
report 'the engine compiles for arm64' "$([ $? -eq 0 ] || cat "$work/said")"
$cc "$@" -static -o "$work/stress" tests/shm/stress_*.c shm/doorbell.c shm/fork.c shm/ring.c shm/sleeper.c \
    lib/base/clock.c "$work/uring.c" >"$work/said" 2>&1 && timeout 120 qemu-aarch64 "$work/stress" >"$work/said" 2>&1
report 'ring and doorbell in qemu' "$([ $? -eq 0 ] || cat "$work/said")"
exit "$failed"

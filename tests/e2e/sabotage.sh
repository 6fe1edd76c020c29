#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Workers as separate programs, started by the environment: two that meet, and starts without room.
# BX_BUILD_DIR names the build.
#
# Lists of process ids are words on purpose.
# shellcheck disable=SC2086,SC2317
set -u

program=${BX_BUILD_DIR:-build}/tests/prog_worker
dir=$(mktemp -d)
job=sabotage-$$
pids=
trap 'test -z "$pids" || end_own $pids; rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
XDG_RUNTIME_DIR=$dir
export XDG_RUNTIME_DIR

# shellcheck source=tests/checks.sh
. "$(dirname "$0")/../checks.sh"

ended()     # ended RANK STATUS PATTERN
{
    eval "wait \$pid_$1" 2>/dev/null
    test "$?" -eq "$2" && grep -qE "$3" "$dir/out.$1"
}

fresh()     # another job: nothing of the last one is in the way
{
    pids=
    rm -f "$dir"/out.*
    job=sabotage-$$-$1
}

nothing_left()
{
    test -z "$(find /dev/shm -maxdepth 1 -name "boxcar.*.$job.*")"
}

no_sockets()
{
    test -z "$(find "$dir/boxcar" -name "$job*")"
}

# ---- In two shells ----------------------------------------------------------------------------------

fresh 1
begin 0 2 serve
begin 1 2 call
check 'two programs meet and leave' ended 1 0 '^done'
check 'the one that serves leaves too' ended 0 0 '^done'
check 'nothing is left in /dev/shm' nothing_left
check 'neither a socket nor a lock is left' no_sockets

# ---- Starts that fail -------------------------------------------------------------------------------

alone()     # alone STATUS PATTERN [COMMAND...]: rank 0 of 2 by itself
{
    status=$1
    pattern=$2
    shift 2
    BX_JOB=$job BX_RANK=0 BX_WORLD_SIZE=2 "$@" "$program" serve >"$dir/out.0" 2>&1 </dev/null
    test "$?" -eq "$status" && grep -qE "$pattern" "$dir/out.0"
}

fresh 2
# A status of 1 and a sentence, not SIGXFSZ. ulimit counts in units of 512 bytes in some shells, of 1024 in others.
# What the program itself prints goes through a pipe.
# shellcheck disable=SC2016
check 'files may have no byte' alone 1 '^failed: -EFBIG: .*RLIMIT_FSIZE.*ulimit -f' \
    sh -c 'text=$(ulimit -f 0; "$@" 2>&1); status=$?; echo "$text"; exit "$status"' sh
check 'files may not have what a segment has' alone 1 "^failed: -EFBIG: worker 'worker0' needs a file of" \
    sh -c 'ulimit -f 256; exec "$@"' sh
check 'files may not have what an arena has' alone 1 '^failed: -EFBIG: the arena .*ulimit -f.*BX_ARENA_BYTES' \
    sh -c 'ulimit -f 200000; exec "$@"' sh
check 'too few addresses for an arena' alone 1 '^failed: -ENOMEM: the arena .*BX_ARENA_BYTES.*raise the limit' \
    sh -c 'ulimit -v 4000000; exec "$@"' sh
check 'nothing is left of starts that failed' nothing_left

# Enough for one's own arena, mapped twice, and not for the other's.
begin_limited()     # begin_limited RANK
{
    # shellcheck disable=SC2016
    BX_JOB=$job BX_RANK=$1 BX_WORLD_SIZE=2 BX_NAME=w$1 sh -c 'ulimit -v 180000000; exec "$@"' sh "$program" serve \
        >"$dir/out.$1" 2>&1 </dev/null &
    eval "pid_$1=\$!"
    pids="$pids $!"
}

fresh 3
begin_limited 0
begin_limited 1
check 'too few addresses for the arenas of others' ended 0 1 '^failed: -ENOMEM: .*ulimit -v.*BX_ARENA_BYTES'
check 'the other hears of it' ended 1 1 '^failed: -ENOMEM: .*BX_ARENA_BYTES'
check 'nothing is left of that' nothing_left

if [ "$(id -u)" -ne 0 ]; then
    echo 'skip a full /dev/shm: needs root to mount one'
    exit "$failed"
fi

# shellcheck disable=SC2016
if unshare -m mount -t tmpfs tmpfs /dev/shm 2>/dev/null; then
    check 'a /dev/shm without an inode' alone 1 '^failed: BX_E_NO_SPACE: /dev/shm has no inode left .*nr_inodes' \
        unshare -m sh -c 'mount -t tmpfs -o nr_inodes=1 tmpfs /dev/shm; exec "$@"' sh
    check 'one with an inode for the segment alone' alone 1 '^failed: BX_E_NO_SPACE: .* no inode left' \
        unshare -m sh -c 'mount -t tmpfs -o nr_inodes=2 tmpfs /dev/shm; exec "$@"' sh
else
    echo 'skip a full /dev/shm: no mount namespace to be had here'
fi
exit "$failed"

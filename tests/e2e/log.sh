#!/bin/sh
# SPDX-License-Identifier: MIT
#
# BX_LOG: a worker without a log hook prints on stderr that its peer has died, and who prints it; not for a level that
# is left out; a value that is none is refused with a sentence. BX_BUILD_DIR names the build.
#
# Lists of process ids are words on purpose; pid_0 and pid_1 are set by begin.
# shellcheck disable=SC2086,SC2154,SC2317
set -u

dir=$(mktemp -d)
pids=
trap 'test -z "$pids" || end_own $pids; rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
XDG_RUNTIME_DIR=$dir
export XDG_RUNTIME_DIR

# shellcheck source=tests/checks.sh
. "$(dirname "$0")/../checks.sh"

# Worker 1 is killed by the call of worker 0, which runs under BX_LOG=$1.
survive()
{
    job=log-$$-$1
    BX_LOG=$1
    export BX_LOG
    begin 0 2 call
    begin 1 2 die
    wait "$pid_0"
    wait "$pid_1" 2>/dev/null
    pids=
}

line="^boxcar: w0 (rank 0 of job log-$$-warn): warn: worker 'w1' (rank 1, pid [0-9]*) .*"
survive warn
check 'a death is printed, by whom and of whom' test "$(grep -c "$line" "$dir/out.0")" -eq 1
survive error
check 'but it is no error' test -z "$(grep '^boxcar: ' "$dir/out.0")"
check 'that run saw the death, too' grep -q "^lost: .*'w1'" "$dir/out.0"
survive loud
check 'another value is refused' grep -q "^failed: -EINVAL: BX_LOG='loud' is none of error, warn and info" "$dir/out.0"
exit "$failed"

#!/bin/sh
# SPDX-License-Identifier: MIT
#
# shmstat from the outside: its usage and its page, and that it reads a job that was killed and removes what it left.
# BX_BUILD_DIR names the build, BX_SOURCE_DIR the sources.
#
# Lists of process ids are words on purpose; pid_0 to pid_2 are set by begin.
# shellcheck disable=SC2086,SC2154,SC2317
set -u

build=${BX_BUILD_DIR:-build}
source=${BX_SOURCE_DIR:-.}
program=$build/bin/shmstat
page=$source/tools/shmstat/shmstat.1
dir=$(mktemp -d)
job=shmstat-$$
pids=
trap 'test -z "$pids" || end_own $pids; rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
XDG_RUNTIME_DIR=$dir
BX_HIST=all
export XDG_RUNTIME_DIR BX_HIST

# shellcheck source=tests/checks.sh
. "$(dirname "$0")/../checks.sh"

ends()      # ends STATUS ARGUMENTS...: shmstat ends with it
{
    status=$1
    shift
    "$program" "$@" >"$dir/out" 2>"$dir/err"
    test "$?" -eq "$status"
}

once()      # once ARGUMENTS...: one picture of top
{
    ends 0 top --once --interval 0.1 "$@" "$job"
}

columns()   # the keys of all columns of top
{
    sed -n 's/^    { "[^"]*", "\([a-z_]*\)", [0-9].*/\1/p' "$source/tools/shmstat/top_columns.c"
}

names()     # names: what there is of the job in /dev/shm
{
    find /dev/shm -maxdepth 1 -name "boxcar.*.$job.*"
}

# ---- Usage ------------------------------------------------------------------------------------------

check 'no command is wrong usage' ends 2
check 'an unknown command too' ends 2 top-of-the-pops
check 'an unknown flag' ends 2 ls --yes
check 'two jobs' ends 2 show one two
check '--json and --prometheus together' ends 2 show --json --prometheus
check 'a job that is not there' ends 3 show "$job"
check 'that is said' grep -q "there is no job '$job'" "$dir/err"
check '--help is none of these' ends 0 show --help
check '--help fits 80 columns' narrow
for status in 0 1 2 3; do
    check "--help knows status $status" says "(^|[ ;:])$status "
    check "so does the page" grep -qx "\.B $status" "$page"
done
check 'JSON of no jobs' ends 3 ls "$job" --json
for flag in --once --batch -n --interval --stuck --width --view --sort --filter --json; do
    # A flag is written with \- in the page.
    check "the page has $flag of top" grep -qF -- "$(echo "$flag" | sed 's/-/\\-/g')" "$page"
done
if command -v groff >/dev/null; then
    check 'the page is well formed' test -z "$(groff -man -ww -z "$page" 2>&1)"
else
    echo 'skip the page is well formed: no groff'
fi

# ---- Every key is in the page -----------------------------------------------------------------------

begin 0 3 serve
begin 1 3 serve
begin 2 3 stay
await 0 started && await 1 started && await 2 called
for command in ls show calls why rrefs check reap 'top --interval 0.1 --view workers' \
    'top --interval 0.1 --view rings'; do
    # Words on purpose.
    ends 0 $command "$job" --json
    check "the page has every key of $command" documented
done
for key in $(columns); do
    check "and $key" grep -qE "^\.(B|BR) ([a-z_0-9]+, )*$key( |\$|,)" "$page"
done
for command in ls show calls; do
    ends 0 $command "$job"
    check "$command fits 80 columns" narrow
done
instance=$("$program" ls "$job" --json | sed -n 's/.*"instance": "\(.*\)",/\1/p')
check 'a job by its instance' ends 0 show "$job.$instance"
check 'another instance is not there' ends 3 show "$job.0000000000000000"
check 'reap finds nothing of a job that lives' ends 0 reap "$job" --yes
check 'and says so' says '^dead jobs of this user left nothing$'
check 'all six objects are there' test "$(names | wc -l)" -eq 6

# ---- The same job, killed -------------------------------------------------------------------------

# All are stopped first: a worker that saw another's death would remove its names.
stop $pid_0 $pid_1 $pid_2
kill -9 $pid_0 $pid_1 $pid_2
wait 2>/dev/null
pids=
check 'ls of a job that was killed' ends 0 ls "$job"
check 'it is dead' says "^$job +dead +0/3 "
check 'its processes are marked' says "pids +$pid_0\(dead\) $pid_1\(dead\) $pid_2\(dead\)\$"
check 'top shows it' once
check 'all are dead' says '^3 workers: 0 alive, 3 dead$'
check 'calls reads what was measured' ends 0 calls "$job"
check 'of each function' test "$(grep -cE '^  whole +1 ' "$dir/out")" -eq 2
check 'check reads it' ends 0 check "$job"
check 'nothing is wrong with it' says "^  3 workers, .*nothing wrong\$"
check 'reap lists it' ends 0 reap "$job"
check 'six objects and a lock' says '^7 left by dead jobs; nothing was removed, --yes does that$'
check 'and removes none' test "$(names | wc -l)" -eq 6
check 'its lock file stays too' test -e "$dir/boxcar/$job.lock"
check 'reap --yes' ends 0 reap "$job" --yes
check 'all is gone' test -z "$(names)"
check 'the lock file is' test -z "$(ls "$dir/boxcar")"
check 'the job is not there any more' ends 3 ls "$job"
exit "$failed"

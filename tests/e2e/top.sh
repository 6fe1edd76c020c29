#!/bin/sh
# SPDX-License-Identifier: MIT
#
# shmstat top from the outside: of a running job as text, as JSON and in a terminal made by script(1); with one worker
# stopped; of the same job killed. BX_BUILD_DIR names the build, BX_SOURCE_DIR the sources.
#
# Lists of process ids are words on purpose; pid_0 to pid_2 are set by begin.
# shellcheck disable=SC2086,SC2119,SC2120,SC2154,SC2317
set -u

build=${BX_BUILD_DIR:-build}
source=${BX_SOURCE_DIR:-.}
program=$build/bin/shmstat
page=$source/tools/shmstat/shmstat.1
dir=$(mktemp -d)
job=top-$$
pids=
trap 'test -z "$pids" || end_own $pids; rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
XDG_RUNTIME_DIR=$dir
TERM=xterm
export XDG_RUNTIME_DIR TERM
unset NO_COLOR

# shellcheck source=tests/checks.sh
. "$(dirname "$0")/../checks.sh"

ends()      # ends STATUS ARGUMENTS...: shmstat top ends with it
{
    status=$1
    shift
    "$program" top "$@" >"$dir/out" 2>"$dir/err"
    test "$?" -eq "$status"
}

once()      # once ARGUMENTS...: one picture of the job
{
    ends 0 --once --interval 0.1 --width 80 "$@" "$job"
}

fits()      # fits COLUMNS LINES: no line of the last output is longer, and there are no more
{
    awk -v columns="$1" -v lines="$2" 'length($0) > columns { wide = 1 } END { exit wide || NR > lines }' "$dir/out"
}

keys()      # the keys of the JSON that was printed, and those of all columns
{
    sed -n 's/^ *"\([a-z_0-9]*\)":.*/\1/p' "$dir/out"
    sed -n 's/^    { "[^"]*", "\([a-z_]*\)", [0-9].*/\1/p' "$source/tools/shmstat/top_columns.c"
}

# ---- Usage ------------------------------------------------------------------------------------------

check 'a job that is not there' ends 3 --once "$job"
check 'that is said' grep -q "there is no job '$job'" "$dir/err"
check 'no terminal is wrong usage' ends 2
check 'that is said too' grep -q 'top needs a terminal' "$dir/err"
check 'an interval of nothing' ends 2 --once --interval 0
for flag in --once --batch -n --interval --stuck --width --view --sort --filter --json; do
    # A flag is written with \- in the page.
    check "the page has $flag" grep -qF -- "$(echo "$flag" | sed 's/-/\\-/g')" "$page"
done

# ---- A job that runs --------------------------------------------------------------------------------

for rank in 0 1 2; do begin $rank 3 serve; done
await 0 started && await 1 started && await 2 started
check 'one picture' once
check 'it names the job' says "^$job\.[0-9a-f]{16}: running, up "
check 'three of three' says '^3 workers: 3 alive'
check 'each with its pid' says "^ +1 w1 +$pid_1 [a-z]+ +0 +0 "
check 'and says which rows' says '^workers 1-3 of 3 by RANK$'
check 'it fits' fits 80 24
check 'a wider one' ends 0 --once --interval 0.1 --width 160 "$job"
check 'has more columns' says ' WAKE/s BELL/s ARENA '
check 'it fits too' fits 160 50
check 'three of them' ends 0 --batch -n 3 --interval 0.1 "$job"
check 'there are three' test "$(grep -c '^RANK ' "$dir/out")" -eq 3
check 'rings' once --view rings
check 'calls' once --view calls
check 'no calls are in flight' says '^calls 0-0 of 0 by AGE$'
check 'sorted by name' once --sort name
check 'and said' says ' by NAME$'
check 'filtered' once --filter w2
check 'one is left' says '^workers 1-1 of 1 \(3 in all\)'

for view in workers rings; do
    ends 0 --json --interval 0.1 --view $view "$job"
    check "the page has every key of top's $view" documented
done

# ---- In a terminal ----------------------------------------------------------------------------------

if command -v script >/dev/null; then
    printf 'q' | script -qec "stty rows 24 cols 80; stty -g >$dir/before; '$program' top '$job'; echo ended with \$?; \
        stty -g >$dir/after" "$dir/script" >"$dir/out" 2>"$dir/err"
    check 'q ends it' says 'ended with 0'
    check 'it was shown' says 'workers 1-3'
    check 'the terminal is as it was' cmp -s "$dir/before" "$dir/after"
else
    echo 'skip in a terminal: no script(1)'
fi

# ---- One of them stopped, then all killed -----------------------------------------------------------

stop "$pid_1"
until once && says 'stopped'; do :; done
check 'one that is stopped is the reason' says "^w1 \(pid $pid_1\) is stopped: it goes on with SIGCONT\$"
check 'it is counted' says '^3 workers: 3 alive.*, 1 stopped$'
# All are stopped first: a worker that saw another's death would remove its names.
stop $pid_0 $pid_2
kill -9 $pid_0 $pid_1 $pid_2
wait 2>/dev/null
pids=
check 'a job that was killed' once
check 'it is dead' says "^$job\.[0-9a-f]{16}: dead, up "
check 'all are dead' says '^3 workers: 0 alive, 3 dead$'
"$program" reap "$job" --yes >"$dir/out" 2>"$dir/err"
check 'after it was removed it is not there' ends 3 --once "$job"
exit "$failed"

# shellcheck shell=sh
# SPDX-License-Identifier: MIT
#
# What scripts of tests share; sourced, not run. The script that sources it ends with `exit "$failed"`. For all but
# report() it has a directory $dir; it may have its own evidence(), which prints what helps to understand a failed
# check.

failed=0

report()    # report NAME FINDINGS: the test is whether there are none
{
    if [ -n "$2" ]; then
        failed=1
        echo "$2"
        echo "not ok $1"
    else
        echo "ok $1"
    fi
}

evidence()  # of a check that failed: what was printed last
{
    tail -n 20 "$dir"/out* "$dir/err" 2>/dev/null | sed 's/^/  /'
}

check()     # check NAME COMMAND...: the test is whether the command succeeds
{
    name=$1
    shift
    if "$@"; then
        echo "ok $name"
    else
        failed=1
        echo "not ok $name"
        evidence
    fi
}

says()      # says PATTERN: what was printed last has a line of it
{
    grep -qE "$1" "$dir/out"
}

narrow()    # no line of what was printed last goes beyond 80 columns
{
    awk 'length($0) > 80 { wide = 1; print } END { exit wide }' "$dir/out"
}

# Of shmstat; $source has the sources.

keys()      # the keys of the JSON that was printed last, less those of counters
{
    sed -n 's/^ *"\([a-z_0-9]*\)":.*/\1/p' "$dir/out" | sort -u >"$dir/keys"
    sed -n 's/^    X(\([a-z_]*\),.*/\1/p' "$source/lib/base/counters.h" | sort >"$dir/counters"
    comm -23 "$dir/keys" "$dir/counters"
}

documented()    # each of the keys is in the manual page
{
    for key in $(keys); do
        grep -qE "^\.(B|BR) ([a-z_0-9]+, )*$key( |\$|,)" "$source/tools/shmstat/shmstat.1" || {
            echo "$key" >>"$dir/err"
            return 1
        }
    done
}

end_own()   # end_own PID...: kills those that are children of this script; the pid of another may be reused
{
    for pid; do
        test "$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status" 2>/dev/null)" != $$ || kill -9 "$pid"
    done
}

# Workers of the job $job, each a prog_worker in the background: $pid_RANK, and all of them in $pids; what they
# print goes to $dir/out.RANK.

begin()     # begin RANK WORLD_SIZE MODE
{
    BX_JOB=$job BX_RANK=$1 BX_WORLD_SIZE=$2 BX_NAME=w$1 "${BX_BUILD_DIR:-build}/tests/prog_worker" "$3" \
        >"$dir/out.$1" 2>&1 </dev/null &
    eval "pid_$1=\$!"
    pids="$pids $!"
}

await()     # await RANK LINE: until it has printed the line
{
    until grep -q "^$2" "$dir/out.$1"; do
        kill -0 "$(eval echo "\$pid_$1")" 2>/dev/null || return 1
    done
}

stopped()   # stopped PID...: each thread of each process is
{
    for pid; do
        test -z "$(grep -L '^[0-9]* (.*) [Tt] ' "/proc/$pid/task/"*/stat 2>/dev/null)" || return 1
    done
}

stop()      # stop PID...: returns when none of their threads runs any more, for a signal takes its time to arrive
{
    kill -STOP "$@"
    until stopped "$@"; do :; done
}

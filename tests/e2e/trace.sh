#!/bin/sh
# SPDX-License-Identifier: MIT
#
# BX_TRACE from the outside: on workers started by hand, on a demo that forks its workers, on a job with a killed
# worker; and the static probes in a program. BX_BUILD_DIR names the build.
#
# Lists of process ids are words on purpose; pid_0 to pid_2 are set by begin.
# shellcheck disable=SC2086,SC2154,SC2317
set -u

build=${BX_BUILD_DIR:-build}
dir=$(mktemp -d)
job=trace-$$
trace=$dir/trace.json
pids=
trap 'test -z "$pids" || end_own $pids; rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
XDG_RUNTIME_DIR=$dir
export XDG_RUNTIME_DIR

# shellcheck source=tests/checks.sh
. "$(dirname "$0")/../checks.sh"

evidence()  # of a check that failed
{
    tail -n 5 "$dir"/out.* "$trace" 2>/dev/null | cut -c 1-200 | sed 's/^/  /'
}

begin()     # begin RANK WORLD_SIZE PROGRAM...: in the background, traced; $pid_RANK
{
    rank=$1
    size=$2
    shift 2
    BX_TRACE=$trace BX_JOB=$job BX_RANK=$rank BX_WORLD_SIZE=$size BX_NAME=w$rank "$@" \
        >"$dir/out.$rank" 2>&1 </dev/null &
    eval "pid_$rank=\$!"
    pids="$pids $!"
}

end()       # end RANK STATUS: it has ended with it
{
    eval "wait \$pid_$1" 2>/dev/null
    test "$?" -eq "$2"
}

lines()     # lines COUNT PATTERN: so many events match
{
    test "$(grep -cE "$2" "$trace")" -eq "$1"
}

whole()     # the file is an array with an object on each line, none of it cut
{
    awk '
        NR == 1 { if ($0 != "[") exit 1; next }
        closed { exit 1 }
        $0 == "]" { closed = 1; next }
        {
            line = $0
            if (NR > 2 && sub(/^,/, "", line) != 1) exit 1
            if (line !~ /^\{.*\}$/) exit 1
            gsub(/\\./, "", line)
            quotes = gsub(/"[^"]*"/, "", line)
            if (line ~ /"/ || !quotes || gsub(/\{/, "", line) != gsub(/\}/, "", line)) exit 1
        }
        END { exit !closed }' "$trace" || return 1
    if command -v jq >/dev/null; then
        jq -e 'type == "array"' "$trace" >/dev/null
    fi
}

paired()    # paired FROM TO: each arrow and each async span has both its ends
{
    sed -n "s/^,{\"ph\":\"$1\",\"name\":\"\([^\"]*\)\".*\"id\":\"\([^\"]*\)\".*/\1 \2/p" "$trace" | sort >"$dir/from"
    sed -n "s/^,{\"ph\":\"$2\",\"name\":\"\([^\"]*\)\".*\"id\":\"\([^\"]*\)\".*/\1 \2/p" "$trace" | sort >"$dir/to"
    test -s "$dir/from" && cmp -s "$dir/from" "$dir/to"
}

# ---- Workers started by hand ------------------------------------------------------------------------

for rank in 0 1 2; do begin $rank 3 "$build/bin/hello"; done
for rank in 0 1 2; do check "hello $rank ends well" end $rank 0; done
pids=
check 'the file is whole' whole
check 'it has the job' lines 1 "\"name\":\"boxcar\".*\"job\":\"$job\",\"world_size\":3"
for rank in 0 1 2; do
    check "worker $rank is named" lines 1 "\"process_name\",\"pid\":$rank,.*\"w$rank \(rank $rank, pid $(
        eval echo "\$pid_$rank")\)\""
done
check 'two calls of rank 0' lines 2 '"ph":"X","name":"greet","cat":"call","pid":0,'
check 'a handler of rank 1' lines 1 '"ph":"X","name":"greet","cat":"handler","pid":1,'
check 'a handler of rank 2' lines 1 '"ph":"X","name":"greet","cat":"handler","pid":2,'
check 'four arrows' lines 4 '"ph":"s"'
check 'each with its end' paired s f
check 'its times are microseconds with three decimals' lines 0 '"ts":([0-9]*,|[0-9]*\.[0-9]{0,2}[,}])'
check 'a background thread in each' lines 3 '"thread_name".*"background"'

# ---- A demo that forks its workers ------------------------------------------------------------------

BX_TRACE=$trace "$build/bin/reinforce" --min-world-size 3 --max-world-size 3 --mode batch --max-episodes 2 \
    --num-steps 100 --count-frames --quiet >"$dir/out.0" 2>&1
check 'reinforce runs' test $? -eq 0
check 'the file of before is gone' lines 0 '"greet"'
check 'the file is whole' whole
rows=$(sed -n 's/.*requests_batched \([0-9]*\),.*/\1/p' "$dir/out.0")
check 'it counted its frames' test "$rows" -gt 0
check 'as many calls' lines "$rows" '"ph":"X","name":"select_action_batch","cat":"call"'
check 'as many answers' lines "$rows" '"ph":"X","name":"answer select_action_batch"'
check 'as many rows in the batches' test "$(
    sed -n 's/.*"cat":"batch".*"rows":\([0-9]*\)}}$/\1/p' "$trace" | awk '{ n += $1 } END { print n }')" -eq "$rows"
check 'every arrow has its end' paired s f
check 'every async call ends' paired b e
check 'somebody slept' grep -q '"name":"sleep"' "$trace"
check 'nothing was left out' lines 0 'left_out'

BX_TRACE=$trace BX_TRACE_EVENTS=20 "$build/bin/reinforce" --min-world-size 3 --max-world-size 3 --mode batch \
    --max-episodes 1 --num-steps 50 --quiet >"$dir/out.0" 2>&1
check 'with a bound on events it runs too' test $? -eq 0
check 'the file is whole' whole
check 'each worker says how many were left out' lines 3 '"left_out":[0-9]+'

# ---- Backward passes across workers -------------------------------------------------------------------

ids()       # ids PHASE NAME RANK: of events of passes, sorted
{
    sed -n "s/^,{\"ph\":\"$1\",\"name\":\"$2\",\"cat\":\"autograd\",\"pid\":$3,.*\"id\":\"\(0x[0-9a-f]*\)\".*/\1/p" \
        "$trace" | sort
}

# The trainer, rank 1, makes a context for each of the five batches of an epoch.
BX_TRACE=$trace "$build/bin/rnn" --epochs 1 >"$dir/out.0" 2>&1
check 'rnn runs' test $? -eq 0
check 'the file is whole' whole
ids X backward 1 >"$dir/passes"
check 'five passes of the trainer' test "$(tr '\n' ' ' <"$dir/passes")" = \
    '0x0001000000000001 0x0001000000000002 0x0001000000000003 0x0001000000000004 0x0001000000000005 '
check 'ps takes part in each' test "$(ids b backward 0)" = "$(cat "$dir/passes")"
check 'it walks in each' test "$(ids X discover 0 | uniq)" = "$(cat "$dir/passes")"
check 'it computes in each' test "$(ids X gradients 0 | uniq)" = "$(cat "$dir/passes")"
check 'an arrow leads to each walk and each computation' test "$(ids t autograd 0)" = "$(
    { ids X discover 0; ids X gradients 0; } | sort)"
check 'each begins at the trainer' test "$(ids s autograd 1)" = "$(cat "$dir/passes")"
check 'and ends there' test "$(ids f autograd 1)" = "$(cat "$dir/passes")"
check 'every arrow has its end' paired s f

# ---- A worker that is killed ------------------------------------------------------------------------

begin 0 3 "$build/tests/prog_worker" call
begin 1 3 "$build/tests/prog_worker" die
begin 2 3 "$build/tests/prog_worker" serve
check 'the caller lost a worker' end 0 3
check 'the one that was killed' end 1 137
# It may see that rank 0 leaves before it sees the death.
wait "$(eval "echo \$pid_2")" 2>/dev/null
status=$?
check 'and another, or was asked to leave' test "$status" -eq 3 -o "$status" -eq 0
pids=
check 'the file is whole' whole
check 'the call to the dead one failed' \
    lines 1 '"name":"echo","cat":"call","pid":0,.*"to":"w1".*"error":"BX_E_PEER_DEAD"'
check 'the other did not' lines 1 '"name":"echo","cat":"handler","pid":2,.*"bytes":8}}$'

# ---- No file ----------------------------------------------------------------------------------------

BX_TRACE=$dir/no/such/directory/trace.json "$build/bin/reinforce" --min-world-size 2 --max-world-size 2 --mode batch \
    --max-episodes 1 --num-steps 10 --quiet >"$dir/out.0" 2>&1
check 'a file that cannot be written does not stop a job' test $? -eq 0
check 'one line says why' test "$(grep -c '^boxcar: BX_TRACE: .*no/such/directory' "$dir/out.0")" -eq 1
rm -f "$trace"
"$build/bin/reinforce" --min-world-size 2 --max-world-size 2 --mode batch --max-episodes 1 --num-steps 10 --quiet \
    >"$dir/out.0" 2>&1
check 'without BX_TRACE there is none' test ! -e "$trace"

# ---- Static probes ----------------------------------------------------------------------------------

if ! command -v readelf >/dev/null || ! printf '#include <sys/sdt.h>\n' | ${CC:-cc} -x c -E - >/dev/null 2>&1; then
    echo 'skip static probes: no sys/sdt.h, or no readelf'
else
    readelf -n "$build/bin/hello" | grep -A 1 'Provider: boxcar' | sed -n 's/ *Name: //p' | sort -u >"$dir/out.probes"
    for probe in call_send call_done handler_begin handler_end batch_begin batch_end sleep wake; do
        check "the probe $probe" grep -qx "$probe" "$dir/out.probes"
    done
fi
exit "$failed"

#!/bin/sh
# SPDX-License-Identifier: MIT
#
# build/bin/param_server from the outside: its flags, output and JSON; the order of arrival does not matter; it learns;
# nothing is left when trainers or the server are killed or stopped. All runs use a small network. BX_BUILD_DIR names
# the build.
#
# Lists of process ids and of flags are unquoted on purpose.
# shellcheck disable=SC2086,SC2046
set -u

program=${BX_BUILD_DIR:-build}/bin/param_server
# shellcheck source=tests/demo_checks.sh
. "$(dirname "$0")/../demo_checks.sh"
limit_s=180         # of a run that should take seconds
small='--model resnet18 --image 32 --batch-size 4 --num-classes 5'
short="$small --num-batches 1"

is_value()  # is_value KEY VALUE: of the JSON's top level, or of the first trainer
{
    test "$(value "$1")" = "$2"
}

# ---- Flags -----------------------------------------------------------------------------------------

run --help
flags='trainers|batch-update-size|num-batches|batch-size|image|num-classes|model|lr|momentum|seed|threads'
flags="$flags|device|patience-ms|restart|kill|json|plot"
check 'help lists all flags' test "$status $(grep -cE -e "^  --($flags) " "$dir/out")" = '0 17'
check_program plot
check 'refuses 0 trainers' refuses --trainers 0
check 'refuses 128 trainers' refuses --trainers 128
check 'refuses updates of 0 gradients' refuses --batch-update-size 0
check 'refuses 0 batches' refuses --num-batches 0
check 'refuses images that are too small' refuses --image 31
check 'refuses a batch that cannot be normalised' refuses --image 32 --batch-size 1
check 'refuses an unknown device' refuses --device gpu
check 'refuses an unknown model' refuses --model resnet34
check 'refuses momentum over 1' refuses --momentum 1.01
check 'refuses no patience' refuses --patience-ms 0

# ---- Output ----------------------------------------------------------------------------------------

real='[0-9]+\.[0-9]+'
row=" +4( +$real){6}  completed$"
run $small --trainers 3 --batch-update-size 3 --num-batches 4 --json "$dir/j" --plot "$dir/f.svg"
check 'ends with status 0' test "$status" -eq 0
check 'a line for each update' lines 4 "^update [1-4]: loss $real, $real s, 3 gradients$" "$dir/out"
check 'a line for each trainer' lines 3 "^trainer[1-3]$row" "$dir/out"
check 'nothing on stderr' is 0 "$dir/err"
check 'reports that nothing was copied' lines 1 '^tensors handed over: [1-9][0-9]* bytes; copied: 0 bytes$' \
    "$dir/out"
check 'reports that nothing stays on loan' lines 1 '; on loan at the end: 0$' "$dir/out"
check 'a figure' grep -q '<svg' "$dir/f.svg"
# All points of the curve are above the legend; one more point is the sample beside the legend.
check 'the legend is below the curve' awk '
    /translate\(/ && /font-family/ { split($0, part, /[(,)]/); y = part[3] + 0 }
    /mean squared error<\/tspan>/ { legend = y }
    match($0, /translate\([0-9.,]*\) scale/) {
        split(substr($0, RSTART, RLENGTH), part, /[(,)]/)
        at[++points] = part[3] + 0
    }
    END {
        for (i = 1; i <= points; i++) {
            curve += at[i] < legend - 15
            beside += at[i] >= legend - 15 && at[i] <= legend + 15
        }
        exit !(legend > 0 && curve == 4 && beside == 1 && points == 5)
    }' "$dir/f.svg"

keys='model trainers batch_update_size num_batches batch_size image num_classes threads device lr momentum seed
patience_ms total_s updates images_per_s beyond_compute_median losses update_s step_s beyond_compute
gradients late per_trainer name end batches compute_s repack_s forward_s backward_s call_s wait_s data_s
late_gradients handed_bytes copied_bytes arena_bytes versions_live_max leases_at_end late_versions_max
absences dead_trainers restart restarts kills restarts_total gradients_used
gradients_repeated checksum'
check 'all keys are in the JSON' has_keys $keys
check 'JSON: updates' is_value updates 4
check 'JSON: gradients' is_value gradients '[3, 3, 3, 3]'
check 'JSON: nothing copied' test "$(grep -o '"copied_bytes": [0-9]*' "$dir/j" | sort | uniq -c | tr -s ' ')" = \
    ' 4 "copied_bytes": 0'
# 62 parameters of 11179077 floats; 4 times the gradients and 5 times the model for each trainer.
check 'JSON: bytes handed over' test "$(grep -o '"handed_bytes": [0-9]*' "$dir/j" | tail -n 1)" = \
    "\"handed_bytes\": $((3 * 9 * 11179077 * 4))"
check 'JSON: leases at the end' is_value leases_at_end 0
check 'JSON: each gradient is used once' test "$(value gradients_used) $(value gradients_repeated)" = '12 0'
check 'JSON: no trainer late, absent or dead' test "$(value late)$(value absences)$(value dead_trainers)" = \
    '[0, 0, 0, 0]00'
check 'JSON: versions are few' test "$(value versions_live_max)" -le 5

parts()     # compute, call, wait and data are disjoint, and at least half of a trainer's time
{
    grep '"name"' "$dir/j" | tr -d '",{}:' | awk '{
        for (i = 1; i < NF; i++) v[$i] = $(i + 1)
        sum = v["compute_s"] + v["call_s"] + v["wait_s"] + v["data_s"]
        inner = v["repack_s"] + v["forward_s"] + v["backward_s"]
        if (sum > v["total_s"] * 1.001 || sum < v["total_s"] * 0.5) bad = 1
        if (inner > v["compute_s"] * 1.001 || inner < v["compute_s"] * 0.999) bad = 1
        n++
    } END { exit bad || n != 3 }'
}
check 'the parts of the time add up' parts

# ---- The same seed ---------------------------------------------------------------------------------

before=$(value checksum)
losses=$(value losses)
run $small --trainers 3 --batch-update-size 3 --num-batches 4 --json "$dir/j"
check 'a seed repeats, bit for bit' test "$(value checksum) $(value losses)" = "$before $losses"
BX_WAIT=epoll
export BX_WAIT
run $small --trainers 3 --batch-update-size 5 --num-batches 4 --json "$dir/j"
unset BX_WAIT
check 'epoll, and fewer trainers than the update size, give the same' test \
    "$status $(value checksum) $(value losses)" = "0 $before $losses"
run $small --trainers 3 --batch-update-size 3 --num-batches 4 --seed 1 --json "$dir/j"
check 'another seed gives another model' test "$status $(test "$(value checksum)" != "$before" && echo other)" = \
    '0 other'

run $small --trainers 3 --batch-update-size 2 --num-batches 4 --json "$dir/j"
check 'more trainers than the update size' test "$status $(value gradients | tr -d '[],' | tr ' ' '\n' |
    awk '{ s += $1; if ($1 > 2) bad = 1 } END { print bad + 0, s }')" = '0 0 12'
check 'each late gradient has a line, and the sum is right' awk '/^late: / { n++ } /^late gradients: / { said = $3 + 0 }
    END { exit n != said + 0 }' "$dir/out"

# ---- Learning --------------------------------------------------------------------------------------

run $small --trainers 1 --batch-size 8 --image 64 --num-classes 30 --num-batches 30
check 'the loss halves in thirty updates' awk -F '[ ,]' '/^update/ {
    n++; if (n == 1) first = $4; if (n > 25) sum += $4
    } END { exit !(n == 30 && sum / 5 <= first / 2) }' "$dir/out"

# ---- Kills, stops and signals ------------------------------------------------------------------------

start()     # start FLAGS...: three trainers, past their first update
{
    start_job '^update 1:' $small --trainers 3 --batch-update-size 3 --json "$dir/j" "$@"
}

start --num-batches 30
check 'four workers with segments and arenas' test "$(echo $workers | wc -w) $(wc -l <"$dir/segments")" = '4 8'
kill -9 "$(worker 2)"
finish
check 'a trainer killed: status 0 and nothing left' test "$status $left" = '0 nothing'
check 'a trainer killed: a line reports it' lines 1 '^trainer2 has died: the others go on without it$' "$dir/out"
check 'a trainer killed: the table shows it' lines 1 '^trainer2 .*  died$' "$dir/out"
check 'a trainer killed: the others have done all their batches' lines 2 '^trainer[13] +30 .*completed$' "$dir/out"
check 'a trainer killed: the JSON counts it' test "$(value dead_trainers) $(value leases_at_end)" = '1 0'
check 'a trainer killed: nothing was copied' lines 1 '; copied: 0 bytes$' "$dir/out"

start --num-batches 60 --patience-ms 300
stopped=$(worker 3)
kill -STOP "$stopped"
soon grep -q '^trainer3 did not come within 300 ms: the others go on without it$' "$dir/out"
check 'a trainer stopped: the others go on' test $? -eq 0
soon eval 'test "$(grep -c "^update .* 2 gradients$" "$dir/out")" -ge 2'
check 'a trainer stopped: updates are made of the other gradients' test $? -eq 0
kill -CONT "$stopped"
finish
check 'a trainer stopped: status 0 and nothing left' test "$status $left" = '0 nothing'
check 'a trainer stopped: it comes back' grep -q '^trainer3 is back$' "$dir/out"
check 'a trainer stopped: its gradient is late' \
    grep -qE '^late: the gradient of trainer3 is [0-9]+ versions? old$' "$dir/out"
check 'a trainer stopped: all have done their batches' lines 3 '^trainer[1-3] +60 .*completed$' "$dir/out"
check 'a trainer stopped: few versions of the model are alive' test "$(value versions_live_max)" -le 5
check 'a trainer stopped: the JSON counts it' test "$(value leases_at_end) $(test "$(value absences)" -ge 1 &&
    echo absent)" = '0 absent'

start --num-batches 100000
kill -9 "$(worker 1)" "$(worker 2)" "$(worker 3)"
finish
check 'all trainers killed: status 3 and nothing left' test "$status $left" = '3 nothing'
check 'all trainers killed: a line reports each' lines 3 '^trainer[1-3] has died' "$dir/out"

start --num-batches 100000
kill -9 "$(worker 0)"
finish
check 'the server killed: status 3 and nothing left' test "$status $left" = '3 nothing'
check 'the server killed: each trainer reports it' lines 3 "^param_server: trainer[1-3]: .*'?ps'?.*" "$dir/err"

# A death that the others survive, and then the end.
start --num-batches 100000
kill -9 "$(worker 1)"
soon grep -q '^trainer1 has died' "$dir/out"
kill -STOP "$(worker 2)"
kill -INT "$launcher"
finish
check 'SIGINT ends it, a trainer stopped: it ends by the signal' test "$status $left" = '130 nothing'
check 'SIGINT ends it: it names the one that died' lines 1 "^param_server: worker 'trainer1' .* signal 9" "$dir/err"

exit "$failed"

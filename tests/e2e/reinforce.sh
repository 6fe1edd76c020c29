#!/bin/sh
# SPDX-License-Identifier: MIT
#
# build/bin/reinforce from the outside: its flags, output and files; a seed repeats; it learns. cartpole.sh kills
# workers, which end by the same code. BX_BUILD_DIR names the build.
#
# Lists of flags are unquoted on purpose.
# shellcheck disable=SC2086,SC2046
set -u

program=${BX_BUILD_DIR:-build}/bin/reinforce
# shellcheck source=tests/demo_checks.sh
. "$(dirname "$0")/../demo_checks.sh"
short='--max-world-size 2 --max-episodes 1'
tab=$(printf '\t')

# ---- Flags -----------------------------------------------------------------------------------------

run --help
flags='min-world-size|max-world-size|max-episodes|num-steps|gamma|seed|mode|hidden|device|quiet|json|plot'
check 'help lists all flags' test "$status $(grep -cE -e "--($flags) " "$dir/out")" = '0 12'
check_program plot
check 'refuses an unknown device' refuses --device cuda:
check 'refuses a world size of 1' refuses --min-world-size 1
check 'refuses a world size of 500' refuses --max-world-size 500
check 'refuses a minimum above the maximum' refuses --min-world-size 5 --max-world-size 4
check 'refuses 0 steps' refuses --num-steps 0
check 'refuses gamma over 1' refuses --gamma 1.01
check 'refuses gamma that is no number' refuses --gamma nan
check 'refuses an unknown mode' refuses --mode some

wrong()     # wrong PATTERN LIST FLAGS...: --hidden LIST is refused with a sentence that has the pattern
{
    pattern=$1
    list=$2
    shift 2
    refuses --hidden "$list" "$@" && lines 1 "$pattern" "$dir/err"
}

check 'refuses no layer' wrong 'layer 1 of "" is ""' ''
check 'refuses a layer without a width' wrong 'layer 2 of "64,,64" is ""' 64,,64
check 'refuses a comma at the end' wrong 'layer 2 of "64," is ""' 64,
check 'refuses a width of 0' wrong 'layer 1 of "0" is "0"' 0
check 'refuses a width that is not a multiple of 16' wrong 'layer 2 of "64,100" is "100"' 64,100
check 'refuses a width over 4096' wrong 'layer 1 of "4112,16" is "4112"' 4112,16
check 'refuses a width beyond all numbers' wrong 'is "18446744073709551632"' 18446744073709551632
check 'refuses a negative width' wrong 'layer 1 of "-16" is "-16"' -16
check 'refuses another separator' wrong 'has "x" after layer 1' 64x64
check 'refuses five layers' wrong 'at most 4 layers' 16,16,16,16,16
check 'refuses other layers on a GPU' wrong 'on the CPU only' 64,64 --device cuda

# ---- Output ----------------------------------------------------------------------------------------

reward='[0-9]+\.[0-9]{2}'
episode="^Episode [0-9]+${tab}Last reward: $reward${tab}Average reward: $reward\$"
run --min-world-size 2 --max-world-size 3 --max-episodes 3 --json "$dir/j" --plot "$dir/f.svg"
check 'ends with status 0' test "$status" -eq 0
check 'a line for each episode' lines 12 "$episode" "$dir/out"
check 'episodes count from 0' lines 4 "^Episode 2$tab" "$dir/out"
check 'a line for each world size' lines 2 '^[23], [0-9.]+, [0-9.]+$' "$dir/out"
check 'a table' lines 2 '^ +[23] +[12] +[0-9.]+ +[0-9.]+ +[0-9.]+$' "$dir/out"
check 'nothing on stderr' is 0 "$dir/err"
check 'the figures as json' python3 - "$dir/j" <<'END'
import json, sys
run = json.load(open(sys.argv[1]))
assert (run["max_episodes"], run["num_steps"], run["seed"]) == (3, 500, 543)
assert [(r["world_size"], r["mode"]) for r in run["runs"]] == [
    (2, "batch"), (2, "no-batch"), (3, "batch"), (3, "no-batch")]
for r in run["runs"]:
    want = r["train_seconds"] * 1e6 / (3 * 500 * (r["world_size"] - 1))
    assert 0.99 * want <= r["us_per_step_observer"] <= 1.01 * want and r["train_seconds"] <= r["seconds"]
END
check 'a figure' grep -q '<svg' "$dir/f.svg"
run --max-world-size 2 --max-episodes 1 --mode no-batch --plot "$dir/f.png" --quiet
check 'a figure in png' test "$(head -c 4 "$dir/f.png" | tail -c 3)" = PNG
check 'quiet drops the episodes only' test "$(grep -c Episode "$dir/out") $status $(
    grep -cE '^2, -, [0-9.]+$' "$dir/out") $(grep -cE '^ +2 +1 +- +[0-9.]+ +-$' "$dir/out")" = '0 0 1 1'
run --max-world-size 2 --max-episodes 1 --mode batch
check 'a mode that was not run is printed as a dash' lines 1 '^2, [0-9.]+, -$' "$dir/out"

script -qec "$program --max-world-size 2 --max-episodes 2 --quiet" /dev/null >"$dir/out" 2>"$dir/err" \
    </dev/null
check 'a progress line on a terminal' grep -q 'world size 2 of 2, batch: episode 2 of 2' "$dir/out"

# ---- Frames ----------------------------------------------------------------------------------------

run --min-world-size 4 --max-world-size 4 --max-episodes 2 --num-steps 300 --count-frames
check 'batch: one request and one reply a step and observer' lines 1 \
    'batch: requests_batched 1800, requests_inline 0, replies_sent 1800$' "$dir/out"
check 'no batch: one request and one reply a step and observer' lines 1 \
    'no-batch: requests_batched 0, requests_inline 1800, replies_sent 1800$' "$dir/out"

# ---- The same seed ---------------------------------------------------------------------------------

episodes()  # episodes NAME FLAGS...: keeps the lines of the episodes
{
    keep=$1
    shift
    run --min-world-size 5 --max-world-size 5 --max-episodes 12 "$@"
    grep '^Episode' "$dir/out" >"$dir/$keep"
}

episodes batch --mode batch
check 'twelve episodes' is 12 "$dir/batch"
episodes again --mode batch
check 'a seed repeats with batching' cmp "$dir/batch" "$dir/again"
episodes single --mode no-batch
check 'both modes give the same episodes' cmp "$dir/batch" "$dir/single"
episodes again --mode no-batch
check 'a seed repeats without batching' cmp "$dir/single" "$dir/again"
episodes other --mode batch --seed 544
check 'another seed gives others' sh -c "! cmp -s '$dir/batch' '$dir/other' && test -s '$dir/other'"

# ---- Other hidden layers ---------------------------------------------------------------------------

episodes again --hidden 128 --mode batch
check 'one layer of 128 is the default' cmp "$dir/batch" "$dir/again"
check 'and prints no time of learning' lines 0 '^learning' "$dir/out"
for hidden in 64 1024 16,272,32,64; do
    episodes layers --hidden "$hidden" --mode batch --num-steps 60
    episodes again --hidden "$hidden" --mode batch --num-steps 60
    check "$hidden: twelve episodes" is 12 "$dir/layers"
    check "$hidden: a seed repeats with batching" cmp "$dir/layers" "$dir/again"
    episodes single --hidden "$hidden" --mode no-batch --num-steps 60
    check "$hidden: both modes give the same episodes" cmp "$dir/layers" "$dir/single"
    check "$hidden: not those of 128" sh -c "! cmp -s '$dir/batch' '$dir/layers'"
done
run --hidden 64,64 --max-world-size 2 --max-episodes 2 --plot "$dir/f.svg"
check 'the times of learning' lines 2 '^learning: world_size 2, (batch|no-batch): [0-9.]+ us/step/observer$' "$dir/out"
check 'the figure names the network' grep -q '4 - 64 - 64 - 2' "$dir/f.svg"

run --max-world-size 3 --max-episodes 2 --num-steps 7000 --mode batch
check 'an episode longer than a frame' lines 4 "$episode" "$dir/out"
run --max-world-size 3 --max-episodes 2 --num-steps 1
check 'an episode of one step' \
    lines 4 "^Episode 0${tab}Last reward: 1.00${tab}Average reward: 0.50\$" "$dir/out"

# ---- Learning --------------------------------------------------------------------------------------

# Of an MLP, then of the policy. $0: seed, average of episode 5, average at the end, mean last reward of the last ten.
for seed in '1 --hidden 64,32' 1 2 3 4 5 6 7 8 9 10; do
    # Words on purpose.
    # shellcheck disable=SC2086
    run --min-world-size 6 --max-world-size 6 --max-episodes 60 --mode batch --seed $seed
    awk -F '[\t:]' -v seed="$seed" '/^Episode/ {
        n++; if (n == 6) early = $5; late = $5; if (n > 50) sum += $3
    } END { print seed + 0, early, late, n == 60 ? sum / 10 : 0 }' "$dir/out"
done >"$dir/all"
tail -n +2 "$dir/all" >"$dir/learning"
cp "$dir/all" "$dir/out"
check 'an MLP: its average doubles, and its last ten episodes reach 250' \
    awk 'NR == 1 { exit !($3 >= 2 * $2 && $4 >= 250) }' "$dir/all"
check 'the average doubles for nine seeds of ten' \
    awk '$3 >= 2 * $2 && $2 > 0 { n++ } END { exit !(n >= 9) }' "$dir/learning"
check 'the last ten episodes reach 250' awk '{ s += $4 } END { exit !(s / NR >= 250) }' "$dir/learning"

exit "$failed"

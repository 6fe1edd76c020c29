#!/bin/sh
# SPDX-License-Identifier: MIT
#
# build/bin/cartpole from the outside: its flags, output and files; it solves CartPole; a seed repeats, with --pack too;
# after a kill or a signal nothing is left. BX_BUILD_DIR names the build.
#
# Lists of process ids are unquoted on purpose.
# shellcheck disable=SC2086
set -u

program=${BX_BUILD_DIR:-build}/bin/cartpole
# shellcheck source=tests/demo_checks.sh
. "$(dirname "$0")/../demo_checks.sh"
short='--max-episodes 1'
tab=$(printf '\t')

# ---- Flags -----------------------------------------------------------------------------------------

run --help
flags='world-size|log-interval|gamma|seed|max-episodes|pack|json|plot'
check 'help lists all flags' test "$status $(grep -cE -e "--($flags) " "$dir/out")" = '0 8'
check_program plot
check 'refuses a world size of 1' refuses --world-size 1
check 'refuses a world size of 500' refuses --world-size 500
check 'refuses an interval of 0' refuses --log-interval 0
check 'refuses 0 episodes' refuses --max-episodes 0
check 'refuses too many episodes' refuses --max-episodes 1000001
check 'refuses gamma over 1' refuses --gamma 1.01
check 'refuses a value of a switch' refuses --pack=1
check 'refuses short flags' refuses -juggle
check 'names them' lines 1 'no flag -juggle,' "$dir/err"

# ---- Learning --------------------------------------------------------------------------------------

reward='[0-9]+\.[0-9]{2}'
line="^Episode [0-9]+${tab}Last reward: $reward${tab}Average reward: $reward\$"

learns()    # learns FLAGS...: keeps what does not depend on time in $dir/learned
{
    run --json "$dir/j" "$@"
    { sed '/ steps in /d' "$dir/out"; value solved; value episodes; value steps; value running_reward; } \
        >"$dir/learned"
}

learns --plot "$dir/f.svg"
cp "$dir/learned" "$dir/first"
check 'solves it with the default flags' test "$status $(value solved)" = '0 true'
check 'within 2000 episodes' test "$(value episodes)" -le 2000
check 'nothing on stderr' is 0 "$dir/err"
check 'the first line' lines 1 '^This will run until reward threshold of 475\.0 is reached\.' "$dir/out"
check 'a line for each ten episodes' lines $(($(value episodes) / 10)) "$line" "$dir/out"
check 'episodes count from 1' lines 1 "^Episode 10$tab" "$dir/out"
check 'the last line of the training' lines 1 '^Solved! Running reward is now 47[5-9][0-9.]*!$' "$dir/out"
check 'a line of the time' lines 1 "^$(value steps) steps in [0-9.]+ s, [0-9.]+ us a step\$" "$dir/out"
check 'a figure' grep -q '<svg' "$dir/f.svg"
keys='world_size|log_interval|gamma|seed|max_episodes|pack|solved|episodes|steps|running_reward|us_per_step|train_s'
check 'the keys of the JSON' test "$(grep -oE "\"($keys|learn_s)\": [0-9a-z.-]+" "$dir/j" | wc -l)" = 13
check 'a step takes the time of the training over all steps' awk -v us="$(value us_per_step)" \
    -v s="$(value train_s)" -v steps="$(value steps)" -v learn="$(value learn_s)" 'BEGIN {
        want = 1e6 * s / steps; exit !(us > 0.999 * want && us < 1.001 * want && learn > 0 && learn < s) }'

learns
check 'a seed repeats' cmp "$dir/first" "$dir/learned"
learns --pack
check 'one call a step gives the same training' cmp "$dir/first" "$dir/learned"
check 'and is reported' test "$(value pack)" = true
learns --seed 2 --max-episodes 20
check 'a training that is not solved ends with status 0' test "$status $(value solved)" = '0 false'
check 'and says so' lines 1 '^Not solved in 20 episodes: the running reward is [0-9.]+\.$' "$dir/out"
check 'another seed gives another training' sh -c "! grep -qxF \"\$(sed -n 2p '$dir/first')\" '$dir/out'"

solved=0
for seed in 1 2 3 4 5 6 7 8 9 10; do
    learns --seed "$seed"
    test "$(value solved)" = false || solved=$((solved + 1))
done
check 'solves at least eight seeds of ten' test "$solved" -ge 8

for world_size in 5 10; do
    learns --world-size "$world_size" --max-episodes 25 --log-interval 5
    check "world size $world_size: five lines in 25 episodes" lines 5 "$line" "$dir/out"
    check "world size $world_size: steps of all observers" test "$(value steps)" -ge $((25 * 8 * (world_size - 1)))
    cp "$dir/learned" "$dir/first"
    learns --world-size "$world_size" --max-episodes 25 --log-interval 5 --pack
    check "world size $world_size: one call a step gives the same training" cmp "$dir/first" "$dir/learned"
done

# ---- Kills and signals -----------------------------------------------------------------------------

# Without discount all returns are equal and nothing is learned, so that it is never solved.
start()
{
    start_job "^Episode 2$tab" --world-size 4 --gamma 0 --max-episodes 1000000 --log-interval 1 "$@"
}

names_dead() # names_dead WORKER SURVIVOR...
{
    dead=$1
    shift
    for survivor in "$@"; do
        grep -q "^cartpole: $survivor: worker $dead has died" "$dir/err" || return 1
    done
    grep -q "^cartpole: worker '$dead' .*signal 9" "$dir/err"
}

start
check 'four workers with segments and arenas' test "$(echo $workers | wc -w) $(wc -l <"$dir/segments")" = '4 8'
kill -9 "$(worker 0)"
finish
check 'agent killed: status 3 and nothing left' test "$status $left" = '3 nothing'
check 'agent killed: the others name it' names_dead agent obs1 obs2 obs3

start --pack
kill -9 "$(worker 2)"
finish
check 'observer killed: status 3 and nothing left' test "$status $left" = '3 nothing'
check 'observer killed: the others name it' names_dead obs2 agent obs1 obs3

check_signals start

exit "$failed"

#!/bin/sh
# SPDX-License-Identifier: MIT
#
# build/bin/rnn from the outside: its flags, output and JSON; a seed repeats; it learns. BX_BUILD_DIR names the build.
#
# Lists of flags are unquoted on purpose.
# shellcheck disable=SC2086,SC2046
set -u

program=${BX_BUILD_DIR:-build}/bin/rnn
# shellcheck source=tests/demo_checks.sh
. "$(dirname "$0")/../demo_checks.sh"
limit_s=120         # of a run that should take seconds
short='--epochs 1'

# ---- Flags -----------------------------------------------------------------------------------------

run --help
flags='batch|ntoken|ninp|nhid|nindices|nlayers|dropout|epochs|lr|seed|loss|json|plot'
check 'help lists all flags' test "$status $(grep -cE -e "^  --($flags) " "$dir/out")" = '0 13'
check_program plot
check 'refuses a batch of 0' refuses --batch 0
check 'refuses 0 tokens' refuses --ntoken 0
check 'refuses 0 layers' refuses --nlayers 0
check 'refuses dropout over 1' refuses --dropout 1.01
check 'refuses a negative learning rate' refuses --lr -0.1
check 'refuses an unknown loss' refuses --loss mse

# ---- Output ----------------------------------------------------------------------------------------

real='[0-9]+\.[0-9]+'
run --json "$dir/j" --plot "$dir/f.svg"
check 'ends with status 0' test "$status" -eq 0
check 'a line for each epoch' lines 10 "^Training epoch [0-9]: loss $real\$" "$dir/out"
check 'epochs count from 0' lines 1 '^Training epoch 0:' "$dir/out"
check 'the median of the iterations' lines 1 "^50 iterations in $real s, $real ms each \(median\)\$" "$dir/out"
check 'nothing on stderr' is 0 "$dir/err"
check 'a figure' grep -q '<svg' "$dir/f.svg"

numbers()   # numbers KEY: how many there are in the list
{
    value "$1" | tr ',' '\n' | grep -cE "$real"
}

check 'all keys are in the JSON' has_keys batch ntoken ninp nhid nindices nlayers dropout epochs lr seed loss \
    ms_per_iteration total_s iterations calls_per_iteration losses epoch_losses
check 'JSON: a loss for each iteration and each epoch' test "$(numbers losses) $(numbers epoch_losses)" = '50 10'
check 'JSON: iterations, loss and dropout' test "$(value iterations) $(value loss) $(value dropout)" = \
    '50 "tutorial" 0.5'
check 'JSON: the time of an iteration' awk -v ms="$(value ms_per_iteration)" -v s="$(value total_s)" \
    'BEGIN { exit !(ms > 0 && ms < 1000 * s) }'
check 'the tutorial loss begins at log 3' awk -v loss="$(value epoch_losses | tr -d '[ ' | cut -d, -f1)" \
    'BEGIN { exit !(loss > 1.08 && loss < 1.12) }'

export BX_CHECKED=1
run --epochs 1
check 'reads each value as it was written' test "$status" -eq 0
unset BX_CHECKED

run --epochs 1 --plot "$dir/f.png" --nlayers 1 --dropout 1
check 'dropout of 1, and a figure of one epoch in png' test "$status $(head -c 4 "$dir/f.png" | tail -c 3)" = '0 PNG'
run --batch 1 --ntoken 1 --ninp 1 --nhid 1 --nindices 1 --nlayers 1 --epochs 1
check 'the smallest network' test "$status $(grep -c '^Training epoch 0: loss 0.000000$' "$dir/out")" = '0 1'
run --batch 16 --ntoken 500 --ninp 64 --nhid 128 --nindices 32 --nlayers 2 --epochs 2 --loss token
check 'a network whose parts do not fit a frame' test "$status $(grep -c '^Training epoch' "$dir/out")" = '0 2'

# ---- The same seed ---------------------------------------------------------------------------------

run --json "$dir/j" --loss token
losses=$(value losses)
run --json "$dir/j" --loss token
check 'a seed repeats' test "$(value losses)" = "$losses"
run --json "$dir/j" --loss token --seed 1
check 'another seed gives others' test "$status $(test "$(value losses)" != "$losses" && echo other)" = '0 other'

# ---- Learning --------------------------------------------------------------------------------------

for seed in 0 1 2; do
    run --loss token --dropout 0 --nlayers 1 --ninp 16 --nhid 32 --lr 1 --epochs 60 --seed "$seed" --json "$dir/j"
    check "seed $seed: learns the next token" awk '/^Training epoch/ { last = $5 }
        END { exit !(NR == 61 && last < 0.2) }' "$dir/out"
done

exit "$failed"

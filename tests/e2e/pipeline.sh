#!/bin/sh
# SPDX-License-Identifier: MIT
#
# build/bin/pipeline from the outside: its flags, output and JSON. All runs are tiny. BX_BUILD_DIR names the build.
#
# Lists of flags are unquoted on purpose.
# shellcheck disable=SC2086,SC2046
set -u

program=${BX_BUILD_DIR:-build}/bin/pipeline
# shellcheck source=tests/demo_checks.sh
. "$(dirname "$0")/../demo_checks.sh"
limit_s=180         # of a run that should take seconds
tiny='--batches 1 --batch-size 4 --image 32'
short="$tiny --splits 1"

# ---- Flags -----------------------------------------------------------------------------------------

refuses_as() # refuses_as PATTERN FLAGS...: refuses them with that sentence
{
    pattern=$1
    shift
    refuses "$@" && lines 1 "$pattern" "$dir/err"
}

run --help
check 'help lists all flags' test \
    "$status $(grep -cE -e '^  --(splits|batches|batch-size|image|seed|json) ' "$dir/out")" = '0 6'
check_program
check 'refuses splits that do not divide the batch' refuses_as 'batch of 16 images does not split into 3' --splits 1,3
check 'refuses more splits than images' refuses_as 'batch of 4 images does not split into 8' --batch-size 4 --splits 8
check 'the default splits are checked too' refuses_as 'batch of 4 images does not split into 8' --batch-size 4
check 'refuses no splits' refuses_as 'does not split into 0' --splits 0
check 'refuses a list with a gap' refuses_as 'whole numbers' --splits 1,,2
check 'refuses a list with an end' refuses_as 'whole numbers' --splits 1,
check 'refuses a negative number of splits' refuses_as 'whole numbers' --splits -1
check 'refuses a word for splits' refuses_as 'whole numbers' --splits many
check 'refuses seventeen runs' refuses_as 'whole numbers' --splits 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1
check 'refuses a number of splits that overflows' refuses_as 'does not split' --splits 99999999999999999999
check 'refuses a micro-batch that cannot be normalised' refuses_as 'cannot be normalised' --batch-size 4 --image 32 \
    --splits 4
check 'refuses 0 batches' refuses_as 'batches' --batches 0
check 'refuses an empty batch' refuses_as 'batch-size' --batch-size 0
check 'refuses images that are too small' refuses_as 'image' --image 31

# ---- Output ----------------------------------------------------------------------------------------

run $tiny --splits 1,2 --json "$dir/j"
check 'ends with status 0' test "$status" -eq 0
check 'a line for each number of micro-batches' test "$(sed -E 's/[0-9]+\.[0-9]{3} s$/T s/' "$dir/out" | tr '\n' ';')" \
    = 'splits 1: T s;splits 2: T s;'
check 'nothing on stderr' is 0 "$dir/err"
check 'JSON: the flags' lines 1 '"batches": 1, "batch_size": 4, "image": 32, "seed": 0,$' "$dir/j"
number='[0-9.e+-]+'
check 'JSON: a run for each number of micro-batches' lines 2 "\"splits\": [12], \"seconds\": $number, \
\"images_per_s\": $number, \"first_loss\": $number, \"last_loss\": $number }" "$dir/j"
losses=$(grep -o '"first_loss.*' "$dir/j")
run $tiny --splits 1,2 --json "$dir/j"
check 'a seed repeats' test "$(grep -o '"first_loss.*' "$dir/j")" = "$losses"
run $tiny --splits 2 --seed 1 --json "$dir/j"
check 'another seed gives other losses' test "$status $(grep -c "$(echo "$losses" | sed -n 2p)" "$dir/j")" = '0 0'

exit "$failed"

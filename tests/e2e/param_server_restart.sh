#!/bin/sh
# SPDX-License-Identifier: MIT
#
# build/bin/param_server --restart: trainers are killed ten times during a run, are started again, join the job that
# runs and do the rest of their batches. Whatever the moment of a kill, a gradient of each batch of each trainer is used
# once. BX_BUILD_DIR names the build.
#
# The list of flags is unquoted on purpose.
# shellcheck disable=SC2086
set -u

build=${BX_BUILD_DIR:-build}
program=$build/bin/param_server
# shellcheck source=tests/demo_checks.sh
. "$(dirname "$0")/../demo_checks.sh"
limit_s=300
small='--model resnet18 --image 32 --batch-size 4 --num-classes 5'

check 'refuses 63 restarts' refuses --restart 63
check 'refuses -1 restarts' refuses --restart -1
check 'refuses 1001 kills' refuses --kill 1001

# Without restarts --kill leaves the others to go on.
run $small --trainers 3 --batch-update-size 3 --num-batches 12 --kill 2 --json "$dir/j"
check 'two killed: status 0' test "$status" -eq 0
check 'two killed: a line reports each' lines 2 '^trainer[1-3] has died: the others go on without it$' "$dir/out"
check 'two killed: one has done all its batches' lines 1 '^trainer[1-3] +12 .*completed$' "$dir/out"
check 'two killed: the JSON counts them' test \
    "$(value kills) $(value restarts_total) $(value dead_trainers)" = '2 0 2'

sum()       # sum KEY: of a list of the JSON's top level
{
    value "$1" | tr -d '[],' | tr ' ' '\n' | awk '{ s += $1 } END { print s + 0 }'
}

# BX_LOG prints the launcher's line for each restart.
BX_LOG=warn
export BX_LOG
run $small --trainers 3 --batch-update-size 3 --num-batches 40 --restart 10 --kill 10 --json "$dir/j"
unset BX_LOG
check 'ten killed: status 0' test "$status" -eq 0
check 'ten killed: the JSON counts them' test \
    "$(value kills) $(value restarts_total) $(value dead_trainers)" = '10 10 0'
again="worker 'trainer[1-3]' \(rank [1-3], pid [0-9]+\) was killed by signal 9 .*: started again as pid [0-9]+, "
check 'ten killed: a line of the log for each' lines 10 "$again" "$dir/err"
check 'ten killed: each is started again from where it was' lines 10 \
    '^trainer[1-3] is started again, from batch [0-9]+$' "$dir/out"
check 'ten killed: all have done all their batches' lines 3 '^trainer[1-3] +40 .*completed$' "$dir/out"
check 'ten killed: the gradient of each batch is used once' test "$(value gradients_used) $(sum gradients)" = '120 120'
check 'ten killed: a line says so' lines 1 \
    '^killed: 10; started again: 10; gradients used: 120 of 120, [0-9]+ were sent twice$' "$dir/out"
check 'ten killed: as many lines as updates' lines "$(value updates)" '^update [0-9]+: ' "$dir/out"
check 'ten killed: nothing stays on loan' test "$(value leases_at_end)" = 0

# A kill from outside.
start_job '^update 1:' $small --trainers 3 --batch-update-size 3 --num-batches 60 --restart 2 --json "$dir/j"
kill -9 "$(worker 2)"
finish
check 'killed from outside: status 0 and nothing left' test "$status $left" = '0 nothing'
check 'killed from outside: it is back' lines 1 '^trainer2 is started again, from batch [0-9]+$' "$dir/out"
check 'killed from outside: all have done all their batches' lines 3 '^trainer[1-3] +60 .*completed$' "$dir/out"
check 'killed from outside: the gradient of each batch is used once' test "$(value gradients_used)" = 180

# Its restarts are used up: the others go on without it.
run $small --trainers 3 --batch-update-size 3 --num-batches 40 --restart 1 --kill 6 --json "$dir/j"
check 'restarts used up: status 0' test "$status" -eq 0
check 'restarts used up: three came back, then died' test "$(value kills) $(value restarts_total)" = '6 3' -o \
    "$(value dead_trainers)" -ge 1

start_job '^update 1:' $small --trainers 3 --batch-update-size 3 --num-batches 100000 --restart 5
kill -9 "$(worker 0)"
finish
check 'the server killed: status 3 and nothing left' test "$status $left" = '3 nothing'

start_job '^update 1:' $small --trainers 3 --batch-update-size 3 --num-batches 100000 --restart 5
kill -INT "$launcher"
finish
check 'SIGINT ends workers and program' test "$status $left" = '130 nothing'

exit "$failed"

#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Each program whose output cannot be written prints a sentence on stderr and ends with a status other than 0, and in
# silence by SIGPIPE if nobody reads it any more. Each
# prints its version. BX_BUILD_DIR names the build.
set -u

bin=${BX_BUILD_DIR:-build}/bin
dir=$(mktemp -d)
status=0
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

# shellcheck source=tests/checks.sh
. "$(dirname "$0")/../checks.sh"

evidence()  # of a check that failed
{
    echo "  status: $status"
    sed 's/^/  err: /' "$dir/err" | tail -n 12
}

full()      # full STATUS PROGRAM ARGS...: with a disk that is full
{
    wanted=$1
    program=$2
    shift 2
    status=0
    "$bin/$program" "$@" >/dev/full 2>"$dir/err" </dev/null || status=$?
    test "$status" -eq "$wanted" && grep -qE "^$program: .*output (could not|cannot) be written" "$dir/err"
}

versions()  # each program's is one line, and the same number
{
    for program in hello cartpole reinforce param_server rnn pipeline tensor_ipc bxbench shmstat gpucheck; do
        "$bin/$program" --version 2>"$dir/err" || return 1
    done >"$dir/out"
    test "$(wc -l <"$dir/out")" -eq 10 &&
        test "$(grep -oE ' [0-9]+\.[0-9]+\.[0-9]+' "$dir/out" | sort -u | wc -l)" -eq 1
}

hello_is_full()     # rank 0 prints what the other says
{
    BX_JOB=full$$ BX_WORLD_SIZE=2 BX_RANK=1 "$bin/hello" >"$dir/out" 2>&1 </dev/null &
    BX_JOB=full$$ BX_WORLD_SIZE=2 BX_RANK=0 full 1 hello
    result=$?
    wait $! && return "$result"
}

unread()    # unread PROGRAM ARGS...: its output is read no further than the first line
{
    program=$1
    shift
    { "$bin/$program" "$@" 2>"$dir/err" </dev/null; echo $? >"$dir/status"; } | head -n 1 >"$dir/first"
    status=$(cat "$dir/status")
    # 141: by SIGPIPE, as any filter
    test -s "$dir/first" && test "$status" -eq 141 && test ! -s "$dir/err"
}

if [ ! -w /dev/full ]; then
    echo 'skip output that cannot be written: there is no /dev/full'
    exit 0
fi
check 'each program says its version' versions
for program in hello cartpole reinforce param_server rnn pipeline tensor_ipc bxbench gpucheck; do
    check "$program --help" full 1 "$program" --help
    check "$program --version" full 1 "$program" --version
done
check 'shmstat --help' full 3 shmstat --help
check 'shmstat --version' full 3 shmstat --version
check 'shmstat ls' full 3 shmstat ls --json
check 'shmstat top' full 3 shmstat top --batch
check 'hello' hello_is_full
check 'cartpole' full 3 cartpole --max-episodes 1
check 'reinforce' full 3 reinforce --min-world-size 2 --max-world-size 2 --max-episodes 1 --num-steps 5 --mode batch
check 'param_server' full 1 param_server --model resnet18 --trainers 1 --batch-update-size 1 --num-batches 1 \
    --batch-size 2 --image 33
check 'pipeline' full 3 pipeline --splits 1 --batches 1 --batch-size 2 --image 33
check 'bxbench' full 1 bxbench start --slices 1 --workers 2 --cpus 0

check 'rnn | head: quiet' unread rnn --epochs 2000
check 'cartpole | head: quiet' unread cartpole
check 'reinforce | head: quiet' unread reinforce --max-world-size 3 --num-steps 50
check 'param_server | head: quiet' unread param_server --model resnet18 --trainers 2 --batch-update-size 2 \
    --num-batches 40 --batch-size 2 --image 33
exit "$failed"

#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Each program once, as `make test` runs it: the line by which a user sees that it works here. The other scripts, of
# flags, output, kills and signals, belong to `make check-all`. BX_BUILD_DIR names the build.
set -u

bin=${BX_BUILD_DIR:-build}/bin
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# shellcheck source=tests/checks.sh
. "$(dirname "$0")/checks.sh"

ends()      # ends STATUS PROGRAM FLAGS...: what it prints is in $dir/out
{
    want=$1 program=$2
    shift 2
    timeout -k 5 300 "$bin/$program" "$@" >"$dir/out" 2>&1 </dev/null
    test $? -eq "$want"
}

works()     # works LINE PROGRAM FLAGS...
{
    line=$1
    shift
    ends 0 "$@" && says "$line"
}

hello()     # two workers meet
{
    BX_JOB=hello-$$ BX_WORLD_SIZE=2 BX_RANK=1 "$bin/hello" >/dev/null 2>&1 </dev/null &
    BX_JOB=hello-$$ BX_WORLD_SIZE=2 BX_RANK=0 works '^hello, rank 0, from ' hello
}

check 'hello: two workers meet' hello
check 'cartpole: three observers solve it' works '^Solved! ' cartpole
check 'reinforce: a table of the speed-up' works '^ +3 +2 .* [0-9]+\.[0-9]+$' \
    reinforce --min-world-size 3 --max-world-size 3 --max-episodes 10
check 'param_server: three trainers, no copy' works '^tensors handed over: [1-9][0-9]* bytes; copied: 0 bytes$' \
    param_server --model resnet18 --image 32 --batch-size 4 --num-classes 5 --trainers 3 --batch-update-size 3 \
    --num-batches 2
check 'rnn: epochs over distributed autograd' works '^[0-9]+ iterations in ' rnn --epochs 1
check 'pipeline: a network over two workers' works '^splits 1: [0-9.]+ s$' \
    pipeline --batches 1 --batch-size 4 --image 32 --splits 1
check 'bxbench: an empty call' works '^ *call_p50_ns ' bxbench pingpong --slices 2 --calls 1000
check 'shmstat: no job, or jobs' works '' shmstat ls
if ends 3 tensor_ipc; then
    check 'gpucheck: there is no GPU' ends 3 gpucheck
else
    check 'gpucheck: what there is of a GPU' ends 0 gpucheck
    check 'tensor_ipc: three workers read one tensor' ends 0 tensor_ipc
fi
exit "$failed"

#!/bin/sh
# SPDX-License-Identifier: MIT
#
# reinforce and param_server with --device cuda, on the tests' driver: the same episodes and losses as on the CPU, no
# tensor copied, a trainer that comes back, and the messages if a GPU or a library is missing. Their times mean nothing.
# BX_BUILD_DIR names the build.
# shellcheck disable=SC2317,SC2086
set -u

build=${BX_BUILD_DIR:-build}
fake=$build/tests/libfakecuda.so
dir=$(mktemp -d)
FAKE_CUDA_MACHINE=$dir/machine
FAKE_CUDA_DELAY_US=50
XDG_RUNTIME_DIR=$dir
BX_CUDA_DRIVER=$fake
BX_NVRTC=$fake
BX_CUBLAS=$fake
BX_CUDNN=$fake
export FAKE_CUDA_MACHINE FAKE_CUDA_DELAY_US XDG_RUNTIME_DIR BX_CUDA_DRIVER BX_NVRTC BX_CUBLAS BX_CUDNN
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

# shellcheck source=tests/checks.sh
. "$(dirname "$0")/../checks.sh"

run()       # run PROGRAM FLAGS...: status, $dir/out, $dir/err
{
    program=$1
    shift
    timeout -k 5 180 "$build/bin/$program" "$@" >"$dir/out" 2>"$dir/err" </dev/null
    status=$?
}

prints()    # prints PATTERN: a line of the last output matches
{
    grep -qE "$1" "$dir/out"
}

fails()     # fails STATUS PATTERN: the last run ended so, and a line of its stderr matches
{
    test "$status" -eq "$1" && grep -qE "$2" "$dir/err"
}

if [ ! -e "$fake" ]; then
    echo 'skip demos on a GPU: this build has no GPU code'
    exit 0
fi

# ---- reinforce ---------------------------------------------------------------------------------------

episodes='--min-world-size 4 --max-world-size 4 --max-episodes 4 --num-steps 120'
run reinforce $episodes
grep '^Episode' "$dir/out" >"$dir/cpu"
run reinforce $episodes --device cuda
check 'reinforce ends with status 0 on a GPU' test "$status" -eq 0
check 'reinforce names the GPU' prints '^the policy is on cuda:0, FAKE 0$'
grep '^Episode' "$dir/out" >"$dir/gpu"
check 'the episodes equal those of the CPU, batched and not' cmp -s "$dir/cpu" "$dir/gpu"
check 'there were episodes' test "$(wc -l <"$dir/gpu")" -eq 8
run reinforce $episodes --device cuda:1 --mode batch
check 'reinforce takes the second GPU' prints '^the policy is on cuda:1, FAKE 1$'
run reinforce $episodes --device cuda:2
check 'a GPU that does not exist' fails 3 'agent: the policy cannot be put on a GPU: there is no device 2: .*sees 2'
BX_NVRTC=$dir/none run reinforce $episodes --device cuda
check 'no NVRTC' fails 3 'cannot be put on a GPU: .*NVRTC.*BX_NVRTC'
BX_CUDA_DRIVER=$dir/none run reinforce $episodes --device cuda
check 'no driver' fails 3 'cannot be put on a GPU: no CUDA driver'
BX_CUBLAS=$dir/none BX_CUDNN=$dir/none run reinforce $episodes --device cuda --mode batch
check 'reinforce needs neither cuBLAS nor cuDNN' test "$status" -eq 0

# ---- param_server ------------------------------------------------------------------------------------

small='--model resnet18 --image 32 --batch-size 4 --num-classes 5'
losses()    # losses: of the updates, in the JSON
{
    sed -n 's/.*"losses": \[\([^]]*\)\].*/\1/p' "$dir/j" | tr -d ' ' | tr ',' '\n'
}

near()      # near: both files have as many losses, each within a thousandth
{
    paste "$dir/cpu" "$dir/gpu" | awk 'NF != 2 || ($1 - $2) ^ 2 > 1e-6 * $1 ^ 2 { bad = 1 } END { exit bad || NR == 0 }'
}

# Two updates: later ones differ by more, because norms over four values amplify a last bit.
run param_server $small --trainers 2 --batch-update-size 2 --num-batches 2 --json "$dir/j"
losses >"$dir/cpu"
run param_server $small --trainers 2 --batch-update-size 2 --num-batches 2 --json "$dir/j" --device cuda
check 'param_server ends with status 0 on GPUs' test "$status" -eq 0
losses >"$dir/gpu"
check 'the losses equal those of the CPU' near
check 'no tensor was copied' prints '; copied: 0 bytes$'
check 'nothing stays on loan' prints '; on loan at the end: 0$'
check 'JSON: the device' grep -q '"device": "cuda"' "$dir/j"
check 'nothing on stderr' test ! -s "$dir/err"
sum()       # the checksum of the model
{
    sed -n 's/.*"checksum": \("[^"]*"\|[0-9]*\).*/\1/p' "$dir/j"
}
first=$(sum)
run param_server $small --trainers 2 --batch-update-size 2 --num-batches 2 --json "$dir/j" --device cuda:0
check 'on one GPU the model is the same, bit for bit' test "$(sum)" = "$first"

CUDA_VISIBLE_DEVICES=1 run param_server $small --trainers 1 --batch-update-size 1 --num-batches 1 --device cuda
check 'on the GPU that CUDA_VISIBLE_DEVICES leaves' test "$status" -eq 0
FAKE_CUDA_NO_PEER=all run param_server $small --trainers 2 --batch-update-size 2 --num-batches 1 --json "$dir/j" \
    --device cuda
check 'between GPUs without peer access' test "$status" -eq 0
check 'those are staged in host memory, and counted' test "$(grep -o '"copied_bytes": [1-9]' "$dir/j" | wc -l)" -gt 0
run param_server $small --batch-size 2 --trainers 2 --batch-update-size 2 --num-batches 3 --json "$dir/j" \
    --device cuda --restart 1 --kill 1
check 'a trainer that was killed comes back to its GPU' test "$status" -eq 0
check 'and every gradient is used' prints 'started again: 1; gradients used: 6 of 6'
BX_GPU_ORDER=events run param_server $small --trainers 2 --batch-update-size 2 --num-batches 1 --json "$dir/j" \
    --device cuda
check 'order events: ends with status 0' test "$status" -eq 0
check 'order events: copies no tensor' test "$(grep -o '"copied_bytes": [0-9]*' "$dir/j" | sort -u)" = \
    '"copied_bytes": 0'

BX_CUDNN=$dir/none run param_server $small --num-batches 1 --device cuda
check 'no cuDNN: the server reports it for each trainer' fails 3 'training of trainer1 failed: .*cuDNN.*BX_CUDNN'
BX_CUBLAS=$dir/none run param_server $small --num-batches 1 --device cuda
check 'no cuBLAS: the server reports it for each trainer' fails 3 'training of trainer1 failed: .*cuBLAS.*BX_CUBLAS'
BX_CUDA_DRIVER=$dir/none run param_server $small --num-batches 1 --device cuda
check 'no driver for the server' fails 3 'ps: no CUDA driver'
run param_server $small --num-batches 1 --device cuda:5
check 'a GPU that does not exist, for param_server' fails 3 'there is no device 5'
exit "$failed"

#!/bin/sh
# SPDX-License-Identifier: MIT
#
# make test-gpu: runs the GPU tests on a real driver and the programs' measurements, and writes a dated transcript to
# tests/gpu/transcripts/, from which the README quotes figures. Nothing is skipped silently: without a GPU it fails with
# a sentence. BX_GPU_TRANSCRIPT names another file.
#
# The same bodies run on the tests' driver in `make unit`; here BX_TEST_REAL_GPU makes them use libcuda.so.1. Tests of
# what only the tests' driver can simulate (two devices without peer access, MIG, an old driver) use that here too.
set -u

here=$(dirname "$0")
build=${BX_BUILD_DIR:-build}
stamp=$(date -u +%Y-%m-%d)
unset BX_CUDA_DRIVER

if ! name=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null) ||
    [ -z "$name" ]; then
    echo 'not ok a GPU: nvidia-smi finds none; make test-gpu wants a machine with an NVIDIA GPU and its driver'
    exit 1
fi
model=$(echo "$name" | head -n 1 | cut -d, -f1 | tr -c 'A-Za-z0-9\n' '-')
file=${BX_GPU_TRANSCRIPT:-$here/transcripts/$stamp-$model.txt}
mkdir -p "$(dirname "$file")"
failed=0

part()      # part TITLE COMMAND...: its output into the transcript, its status with it
{
    title=$1
    shift
    {
        echo
        echo "== $title: $*"
        timeout -k 10 600 "$@" 2>&1
        status=$?
        echo "== status $status"
    } >>"$file"
    if tail -n 1 "$file" | grep -qx '== status 0'; then
        echo "ok $title"
    else
        echo "not ok $title"
        failed=1
    fi
}

{
    date -u +%Y-%m-%dT%H:%M:%SZ
    echo "$name"
    uname -sr
} >"$file"
part 'the driver' nvidia-smi
part 'what is below lib' env BX_TEST_REAL_GPU=1 "$build/tests/unit" --filter 'gpu_*/*'
part 'tensors' env BX_TEST_REAL_GPU=1 "$build/tests/unit" --filter 'device*/*'
part 'tensor_ipc, 1 KB' "$build/bin/tensor_ipc" --bytes 1024
part 'tensor_ipc, 1 GB' "$build/bin/tensor_ipc" --bytes 1073741824
part 'the networks' env BX_TEST_REAL_GPU=1 "$build/tests/unit" --filter '*_cuda/*'
part 'the parameter server, bit for bit' env BX_TEST_REAL_GPU=1 "$build/tests/unit" --filter 'param_server/*gpus*'
part 'reinforce, its policy on the GPU' "$build/bin/reinforce" --min-world-size 2 --device cuda --quiet
part 'reinforce, on the CPU' "$build/bin/reinforce" --min-world-size 2 --quiet
part 'param_server on the GPU' "$build/bin/param_server" --device cuda
part 'param_server on the GPU, one trainer' "$build/bin/param_server" --device cuda --trainers 1 --batch-update-size 1
for order in host device events sync; do
    part "bxbench gpu, order $order" env BX_GPU_ORDER=$order "$build/bin/bxbench" gpu
done
echo "the transcript is $file"
exit "$failed"

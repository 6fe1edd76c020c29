#!/bin/sh
# SPDX-License-Identifier: MIT
#
# tests/gpu/run.sh (make test-gpu) with the tests' driver: its transcript, steps that fail, steps that hang, and what is
# left when it is killed. BX_BUILD_DIR names the build, BX_SOURCE_DIR the sources.
#
# shellcheck disable=SC2317
set -u

build=${BX_BUILD_DIR:-build}
source=${BX_SOURCE_DIR:-.}
script=$source/tests/gpu/run.sh
dir=$(mktemp -d)
file=$dir/gpu.txt
export BX_GPU_TRANSCRIPT="$file" FAKE_CUDA_MACHINE="$dir/machine"
unset BX_CUDA_DRIVER BX_GPU_FAKE
runner=
trap 'test -z "$runner" || end_own $runner; rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

if [ ! -x "$build/gpu/unit" ]; then
    echo 'skip the script: build/gpu/unit is built with GPU code, for CONFIG=release and debug alone'
    exit 77
fi

# shellcheck source=tests/checks.sh
. "$(dirname "$0")/../checks.sh"

evidence()  # of a check that failed
{
    tail -n 20 "$dir/out" "$file" 2>/dev/null | sed 's/^/  /'
}

ends()      # ends STATUS STEPS [VARIABLE=VALUE...]: the script ends with it
{
    status=$1
    steps=$2
    shift 2
    env BX_GPU_FAKE=1 BX_GPU_STEPS="$steps" "$@" "$script" >"$dir/out" 2>&1 </dev/null
    test "$?" -eq "$status"
}

shows()     # shows PATTERN: so has the transcript
{
    grep -qE "$1" "$file"
}

libraries() # libraries PROGRAM: those that it is linked with, less the C library
{
    readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vE '^(libc\.so\.6|libm\.so\.6|ld-linux.*)$'
}

ours()      # ours NAME: processes of that name that have this test's machine in their environment
{
    for environ in /proc/[0-9]*/environ; do
        pid=${environ#/proc/}
        pid=${pid%/environ}
        if grep -qzx "FAKE_CUDA_MACHINE=$dir/machine" "$environ" 2>/dev/null; then
            cat "/proc/$pid/comm" 2>/dev/null
        fi
    done | grep -x "$1"
}

within()    # within SECONDS COMMAND...: it succeeds before they are over
{
    end_s=$(($(date +%s) + $1))
    shift
    until "$@"; do
        test "$(date +%s)" -lt "$end_s" || return 1
        sleep 0.1
    done
}

comes()     # comes NAME: there is such a process
{
    test -n "$(ours "$1")"
}

goes()      # goes NAME: there is none
{
    test -z "$(ours "$1")"
}

if [ -e /proc/driver/nvidia/version ] || command -v nvidia-smi >/dev/null; then
    echo 'skip without a GPU: there is one'
else
    "$script" >"$dir/out" 2>&1
    check 'without a GPU it fails' test "$?" -eq 1
    check 'with a sentence' says '^not ok a GPU: neither nvidia-smi nor /proc/driver/nvidia has one'
    check 'and writes no transcript' test ! -e "$file"
fi

check 'steps with the simulated driver' ends 0 'tensor_ipc_order* suite_gpu_heap'
check 'the transcript begins with that' grep -qm 1 '^THE SIMULATED DRIVER OF THE TESTS, no GPU: ' "$file"
for order in host events; do
    check "tensor_ipc ran in order $order" says "^ok tensor_ipc order $order\$"
done
check 'its lines are in the transcript' shows '^owner +address 0x[0-9a-f]+ +4194304 bytes on cuda:0 of the FAKE'
check 'a suite ran' says '^ok suite gpu_heap$'
check 'one test at a time, to the end' shows '^\[====\] Synthesis: Tested: [1-9]'
check 'each step has a file of its own' test "$(find "$dir" -name 'gpu-0[1-3]-*.txt' | wc -l)" -eq 3
check 'no other step ran' test "$(grep -c '^ok' "$dir/out")" -eq 3

check 'a step that fails is told' ends 1 'tensor_ipc_order_host tensor_ipc_order_events' FAKE_CUDA_NO_STREAM_OPS=1
check 'with its status' says '^not ok tensor_ipc order host: status [1-9]'
check 'and the next one runs' says '^ok tensor_ipc order events$'

# Whoever is lent the tensor takes an hour to open it.
check 'a step that hangs is ended' ends 1 tensor_ipc_order_host FAKE_CUDA_OPEN_MS=3600000 BX_GPU_STEP_S=2
check 'with the reason' says '^not ok tensor_ipc order host: status 124 \(124: ran past 2 s\)'
check 'nothing of it is left' within 10 goes tensor_ipc

env BX_GPU_FAKE=1 BX_GPU_STEPS=tensor_ipc_order_host FAKE_CUDA_OPEN_MS=3600000 \
    "$script" >"$dir/out" 2>&1 </dev/null &
runner=$!
check 'a step begins' within 20 comes tensor_ipc
kill -9 "$runner"
wait "$runner" 2>/dev/null
runner=
check 'and ends when the script is killed' within 10 goes tensor_ipc

for program in unit tensor_ipc; do
    check "gpu/$program needs the C library alone" test -z "$(libraries "$build/gpu/$program")"
done
exit "$failed"

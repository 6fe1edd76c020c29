#!/bin/sh
# SPDX-License-Identifier: MIT
#
# make test-gpu: what a real GPU has to say, in one go, most important things first. Writes a dated transcript to
# tests/gpu/transcripts/, from which the README quotes figures; BX_GPU_TRANSCRIPT names another file. Each step also
# writes to a file of its own beside the transcript while it runs, so that nothing is lost if this machine is.
#
# A machine with a GPU, its driver and this folder, $BX_BUILD_DIR/gpu, bin/gpucheck and tests/libfakecuda.so is enough:
# these programs need the C library alone. Steps that need more (oneDNN, Criterion, liburing) are skipped there.
#
# Each step has at most BX_GPU_STEP_S seconds (600), runs in a session of its own, and is killed with all its processes
# at the end, or when this script dies. Steps run one after the other, tests one at a time. BX_GPU_STEPS='PATTERN
# PATTERN' picks steps by their titles ("suite_gpu_slab"; a blank is a _ there).
#
# Without a GPU this fails with a sentence. BX_GPU_FAKE=1 takes the tests' driver: that tests this script, and shows
# nothing of a GPU. The same bodies run on that driver in `make unit`; here BX_TEST_REAL_GPU makes them use the real
# one. Tests of what only the tests' driver can simulate (two devices without peer access, MIG, an old driver) use that
# here too.
set -u

here=$(dirname "$0")
build=${BX_BUILD_DIR:-build}
limit_s=${BX_GPU_STEP_S:-600}
main=$$
session=
failed=0
number=0
unset BX_CUDA_DRIVER

# ---- The machine ------------------------------------------------------------------------------------

if [ -n "${BX_GPU_FAKE:-}" ]; then
    fake=$(cd "$build" && pwd)/tests/libfakecuda.so
    export BX_CUDA_DRIVER="$fake" BX_NVRTC="$fake" BX_CUBLAS="$fake" BX_CUDNN="$fake"
    name='THE SIMULATED DRIVER OF THE TESTS, no GPU: nothing below says anything of a GPU'
    model=FAKE
else
    export BX_TEST_REAL_GPU=1
    name=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null)
    [ -n "$name" ] || name=$(head -n 1 /proc/driver/nvidia/version 2>/dev/null)
    if [ -z "$name" ]; then
        echo 'not ok a GPU: neither nvidia-smi nor /proc/driver/nvidia has one; make test-gpu wants a machine with an' \
            'NVIDIA GPU and its driver'
        exit 1
    fi
    model=$(echo "$name" | head -n 1 | cut -d, -f1 | tr -c 'A-Za-z0-9\n' '-' | cut -c1-40)
fi
file=${BX_GPU_TRANSCRIPT:-$here/transcripts/$(date -u +%Y-%m-%d)-$model.txt}
mkdir -p "$(dirname "$file")" || exit 1
{
    echo "$name"
    date -u +%Y-%m-%dT%H:%M:%SZ
    uname -sr
} >"$file" || exit 1

# ---- Steps ------------------------------------------------------------------------------------------

end_session()   # end_session ID: kills what is left of it, whatever process groups it has made
{
    for stat in /proc/[0-9]*/stat; do
        pid=${stat#/proc/}
        # Behind the program's name stand state, parent, group, session.
        # shellcheck disable=SC2046
        set -- "$1" $(sed 's/.*) //' "$stat" 2>/dev/null)
        [ "${5:-}" != "$1" ] || kill -KILL "${pid%/stat}" 2>/dev/null
    done
}

end_with_main() # end_with_main ID: ends the session when this script is gone
{
    while kill -0 "$main" 2>/dev/null && kill -0 "$1" 2>/dev/null; do
        sleep 1
    done
    kill -0 "$main" 2>/dev/null || end_session "$1"
}

trap '[ -z "$session" ] || end_session "$session"; exit 130' INT TERM HUP

is_wanted()     # is_wanted TITLE
{
    [ -n "${BX_GPU_STEPS:-}" ] || return 0
    asked=$(echo "$1" | tr ' ' '_')
    set -f
    for pattern in $BX_GPU_STEPS; do
        # A pattern on purpose.
        # shellcheck disable=SC2254
        case $asked in $pattern) set +f; return 0 ;; esac
    done
    set +f
    return 1
}

step()          # step SECONDS TITLE COMMAND...
{
    seconds=$(($1 < limit_s ? $1 : limit_s))
    title=$2
    shift 2
    is_wanted "$title" || return 0
    number=$((number + 1))
    out=${file%.txt}-$(printf %02d "$number")-$(echo "$title" | tr -c 'A-Za-z0-9_\n' '-').txt
    began=$(date +%s)
    setsid timeout -k 5 "$seconds" "$@" >"$out" 2>&1 </dev/null &
    session=$!
    end_with_main "$session" >/dev/null 2>&1 </dev/null &
    wait "$session"
    status=$?
    end_session "$session"
    session=
    {
        echo
        echo "== $title: $*"
        cat "$out"
        echo "== status $status, $(($(date +%s) - began)) s"
    } >>"$file"
    case $status in
    0) echo "ok $title" ;;
    *) failed=1 && echo "not ok $title: status $status (124: ran past $seconds s), see $out" ;;
    esac
}

skip()          # skip TITLE WHY
{
    is_wanted "$1" || return 0
    printf '\n== %s: skipped, %s\n' "$1" "$2" >>"$file"
    echo "skip $1: $2"
}

suites_of()     # suites_of PROGRAM: the names of its suites, whichever runner it has
{
    "$1" --list 2>/dev/null | sed -n 's/^\([a-z_0-9]*\): [0-9]* tests\{0,1\}.*/\1/p' | sort -u
}

starts()        # starts PROGRAM: it finds its libraries
{
    timeout 20 "$1" --help >/dev/null 2>&1
}

# ---- What needs the driver alone --------------------------------------------------------------------

if [ -x "$build/bin/gpucheck" ]; then
    step 120 gpucheck "$build/bin/gpucheck"
else
    skip gpucheck "it is not built"
fi
for order in host events; do
    step 60 "tensor_ipc order $order" env BX_GPU_ORDER=$order "$build/gpu/tensor_ipc" --bytes 4194304
done
if command -v nvidia-smi >/dev/null; then
    step 60 'the driver' nvidia-smi
fi
for suite in $(suites_of "$build/gpu/unit"); do
    step 600 "suite $suite" "$build/gpu/unit" --filter "$suite/*"
done
step 600 'tensor_ipc 1 KB' "$build/gpu/tensor_ipc" --bytes 1024
step 600 'tensor_ipc 1 GB' "$build/gpu/tensor_ipc" --bytes "${BX_GPU_LARGE:-1073741824}"

# ---- What needs more --------------------------------------------------------------------------------

if starts "$build/tests/unit"; then
    for suite in $(suites_of "$build/tests/unit" | grep -E '_cuda$|^cuda_'); do
        step 600 "suite $suite" "$build/tests/unit" --jobs 1 --filter "$suite/*"
    done
    step 600 'the parameter server, bit for bit' "$build/tests/unit" --jobs 1 --filter 'param_server/*gpus*'
else
    skip 'the networks' 'the libraries of tests/unit are not installed (Criterion, oneDNN, liburing)'
fi
if starts "$build/bin/reinforce"; then
    step 600 'reinforce, its policy on the GPU' "$build/bin/reinforce" --min-world-size 2 --device cuda --quiet
    step 600 'reinforce, on the CPU' "$build/bin/reinforce" --min-world-size 2 --quiet
    step 600 'param_server on the GPU' "$build/bin/param_server" --device cuda
    step 600 'param_server on the GPU, one trainer' "$build/bin/param_server" --device cuda --trainers 1 \
        --batch-update-size 1
    for order in host events; do
        step 600 "bxbench gpu, order $order" env BX_GPU_ORDER=$order "$build/bin/bxbench" gpu
    done
else
    skip 'the programs' 'their libraries are not installed (oneDNN, liburing)'
fi
echo "the transcript is $file"
exit "$failed"

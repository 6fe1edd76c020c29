#!/bin/sh
# SPDX-License-Identifier: MIT
#
# The kernels' texts are CUDA C++ that a GPU compiler accepts, not only C that the tests' driver accepts: clang makes
# PTX of them. For that it needs no toolkit and no GPU, only a few lines with NVRTC's built-in names. Every kernel must
# exist under its plain name. No product and sum may be fused, because the CPU would compute other bits. Skipped if
# clang does not know the target.
set -u

cd "${BX_SOURCE_DIR:-.}" || exit 1
if ! clang --print-targets 2>/dev/null | grep -q nvptx64; then
    echo 'skip kernels: no clang with the target nvptx64 is installed'
    exit 77
fi
# shellcheck source=tests/checks.sh
. tests/checks.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/builtin.h" <<'END'
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
struct place {
    unsigned x;
};
#define threadIdx (place{ (unsigned)__nvvm_read_ptx_sreg_tid_x() })
#define blockIdx (place{ (unsigned)__nvvm_read_ptx_sreg_ctaid_x() })
#define blockDim (place{ (unsigned)__nvvm_read_ptx_sreg_ntid_x() })
#define gridDim (place{ (unsigned)__nvvm_read_ptx_sreg_nctaid_x() })
extern "C" __device__ float expf(float), sqrtf(float), log1pf(float), fabsf(float);
END

# compile CONTRACTION HEADER TEXT: PTX in $work/ptx, what the compiler says of the text in $work/said.
# What it says of itself, such as of a toolkit that it did not find, begins otherwise.
compile()
{
    printf '#include "%s"\n' "$work/builtin.h" "$PWD/$2" "$PWD/$3" >"$work/text.cu"
    clang -x cuda --cuda-device-only --cuda-gpu-arch=sm_70 -nocudainc -nocudalib -O2 -Wall -Wextra \
        "-ffp-contract=$1" -S -o "$work/ptx" "$work/text.cu" 2>"$work/all"
    status=$?
    grep -E '^[^ ]+:[0-9]+:' "$work/all" >"$work/said"
    [ "$status" -eq 0 ] || [ -s "$work/said" ] || cat "$work/all" >"$work/said"
}

# check HEADER TEXT NAMES...: NAMES are the kernels that there must be.
check()
{
    rm -f "$work/ptx"
    compile off "$1" "$2"
    report "$2 compiles for a GPU" "$(cat "$work/said")"
    [ -e "$work/ptx" ] || return
    text=$2
    shift 2
    report "$text has its $# kernels" "$([ $# -gt 0 ] || echo 'no kernel is named'
        for name in "$@"; do
            grep -qE "^\.visible \.entry $name\(" "$work/ptx" || echo "$name is no entry"
        done)"
    report "$text fuses nothing" "$(grep -nE '\bfma\b' "$work/ptx")"
}

structs()   # structs HEADER
{
    sed -n 's/^struct \([a-z0-9_]*\) {.*/\1/p' "$1"
}

kernels()   # kernels TEXT
{
    sed -n 's/^BXK_KERNEL(\([a-z0-9_]*\)).*/\1/p' "$1"
}

# No name here holds a blank, so lists are words on purpose.
# shellcheck disable=SC2046
{
    check lib/nn/kernels.h lib/nn/kernels.cu $(structs lib/nn/kernels.h)
    check demos/reinforce/policy_kernels.h demos/reinforce/policy.cu $(kernels demos/reinforce/policy.cu)
    check tools/bxbench/gpu_kernels.h tools/bxbench/gpu.cu $(kernels tools/bxbench/gpu.cu)
}
# That the search for fused ones finds some where there are.
compile fast lib/nn/kernels.h lib/nn/kernels.cu
report 'a compiler that may fuse is told apart' \
    "$(grep -qsE '\bfma\b' "$work/ptx" || echo 'it fused nothing either')"
exit "$failed"

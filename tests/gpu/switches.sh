#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Runs tests of GPU memory under each switch that makes the tests' driver less obliging, and under several together:
# `make switches`, or `BX_SOURCE_DIR=. BX_BUILD_DIR=build/debug tests/gpu/switches.sh [all | SWITCH...]`. A line for
# each, ok or not ok, behind the output of tests that failed; run_scripts.sh counts the lines.
#
# Without an argument each switch has the few suites that show most of its effects, about a minute in all. all: each has
# every suite that it can affect. SWITCH...: nearly all suites, under these.
#
# A test that forces what a switch forbids skips, and names the switch (fake_skip_under in fake_library.h).
#
# The switches of the driver are in tests/fake_cuda/fake.h. CUDA_DEVICE_MAX_CONNECTIONS is a user's own setting, of
# which gpu/ is told, as no FAKE_CUDA_QUEUES tells it: with 1 and 2 it refuses the orders with words, with 4 streams
# share queues. FAKE_CUDA_OPEN_205 and FAKE_CUDA_NO_VMM are not combined: then no memory could be mapped at all.
#
# FAKE_CUDA_DROP_DEAD drops what is exported by handles, so it is also run where all memory is.
#
# The tests of programs are left out, which set the switches themselves; so are gpu_fd_server, gpu_export and gpu_vmm
# under FAKE_CUDA_NO_VMM, which they unset. Tests of more than three seconds are left out too. Each run has a
# limit, and each test one of 20 s, so that a test that hangs under a switch costs no more.
set -u

cd "${BX_SOURCE_DIR:?}" || exit 1
: "${BX_BUILD_DIR:?}"
export BX_TEST_LIMIT_S="${BX_TEST_LIMIT_S:-330}"
handles='device|device_errors|device_foreign|device_map|device_order|device_passed|gpu_death|gpu_devices'
handles="$handles|gpu_share|gpu_slab"
deaths='device_death|device_passed|gpu_abandon|gpu_blocking|gpu_death|gpu_admission'
words='device_death|device_order|gpu_abandon|gpu_admission|gpu_blocking|gpu_capture|gpu_death|gpu_load|gpu_probe'
words="$words|gpu_share"
descriptors='gpu_fd_server|gpu_export|gpu_vmm'
most="$handles|$words|device_dlpack|device_input|device_rejoin"
tests='!(many_starts_*|trusts_a_trial_*|is_not_caused_by_leaving_*)'
mild='FAKE_CUDA_NO_READ_ONLY=1 FAKE_CUDA_SAME_OPEN=1 FAKE_CUDA_BLOCKING=1 FAKE_CUDA_DROP_DEAD=1'
failed=0
out=$(mktemp)
trap 'rm -f "$out"' EXIT

# under SUITES SWITCH...: their tests with these in their environment. Their own count goes nowhere, and is shown.
# Into a file: run_unit.sh leaves a sleep behind, for the end of which $(...) would wait.
under()
{
    suites=$1
    shift
    if env BX_TALLY= "$@" tests/run_unit.sh --timeout 20 --filter "@($suites)/$tests" >"$out" 2>&1; then
        echo "ok $*:$(tail -n 1 "$out" | sed 's/.*)  *//; s/  */ /g; s/^/ /')"
    else
        cat "$out"
        echo "not ok $*:$(sed -n 's/^\[FAIL\]\( [^ ]*\): .*/\1/p' "$out" | tr -d '\n')"
        failed=1
    fi
}

# each FEW ALL SWITCH...: the suites that are run without an argument, and with all.
each()
{
    suites=$1
    [ "$which" = few ] || suites=$2
    shift 2
    under "$suites" "$@"
}

which=${1:-few}
case $which in
few | all)
    each 'device_order|gpu_share' "$words" FAKE_CUDA_NO_READ_ONLY=1
    each 'gpu_death|gpu_devices|gpu_load' "$words|$descriptors" CUDA_DEVICE_MAX_CONNECTIONS=1
    each 'device_death|gpu_export' "$words|$descriptors" CUDA_DEVICE_MAX_CONNECTIONS=2
    each 'gpu_death|gpu_share' "$words|$descriptors" CUDA_DEVICE_MAX_CONNECTIONS=4
    each 'device_death|gpu_abandon|gpu_blocking|gpu_death|gpu_admission' "$most|$descriptors" FAKE_CUDA_BLOCKING=1
    each 'device_map|gpu_slab' "$handles" FAKE_CUDA_SAME_OPEN=1
    each 'device_errors|device_foreign|device_passed|gpu_export|gpu_slab' "$handles|$descriptors" FAKE_CUDA_OPEN_205=1
    each 'device_death|gpu_death' "$deaths" FAKE_CUDA_DROP_DEAD=1 FAKE_CUDA_NO_VMM=1
    each 'device_map|device_passed|gpu_share|gpu_slab' "$most" FAKE_CUDA_NO_VMM=1
    # Words of the switches on purpose.
    # shellcheck disable=SC2086
    each 'gpu_death|gpu_admission' "$most|$descriptors" $mild FAKE_CUDA_OPEN_205=1 CUDA_DEVICE_MAX_CONNECTIONS=4
    ;;
*)
    under "$most|$descriptors" "$@"
    ;;
esac
exit "$failed"

#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Runs the tests of GPU memory under each switch that makes the tests' driver less obliging, and under these together:
# `BX_SOURCE_DIR=. BX_BUILD_DIR=build/debug tests/gpu/switches.sh [SWITCH...]`. A line for each, ok or not ok,
# behind the output of tests that failed; run_scripts.sh counts the lines.
#
# A test that forces what a switch forbids skips, and names the switch (fake_skip_under in fake_library.h).
#
# Left out, because tests fail there: FAKE_CUDA_OPEN_205, and FAKE_CUDA_QUEUES below 4, of which gpu/ is not told (with
# CUDA_DEVICE_MAX_CONNECTIONS it is). They run if they are named: `switches.sh FAKE_CUDA_OPEN_205=1`.
#
# Tests of more than three seconds are left out. Each run has a limit, and each test one of 20 s, so that a test that
# hangs under a switch costs no more.
set -u

cd "${BX_SOURCE_DIR:?}" || exit 1
: "${BX_BUILD_DIR:?}"
export BX_TEST_LIMIT_S="${BX_TEST_LIMIT_S:-60}"
suites='@(gpu_death|gpu_devices|gpu_load|gpu_share|gpu_slab|device|device_death|device_order|device_passed)'
tests='!(thousand_*|trusts_a_trial_*|is_not_caused_by_leaving_*)'
mild='FAKE_CUDA_NO_READ_ONLY=1 FAKE_CUDA_SAME_OPEN=1 FAKE_CUDA_BLOCKING=1 FAKE_CUDA_DROP_DEAD=1'
failed=0

# under SWITCH...: all tests with these in their environment. Its own count goes nowhere.
under()
{
    if out=$(env BX_TALLY= "$@" tests/run_unit.sh -j4 --timeout 20 --filter "$suites/$tests" 2>&1); then
        echo "ok $*"
    else
        printf '%s\n' "$out"
        echo "not ok $*"
        failed=1
    fi
}

if [ "$#" -gt 0 ]; then
    under "$@"
else
    under FAKE_CUDA_NO_READ_ONLY=1
    under FAKE_CUDA_QUEUES=4
    under FAKE_CUDA_BLOCKING=1
    under FAKE_CUDA_SAME_OPEN=1
    under FAKE_CUDA_DROP_DEAD=1
    under FAKE_CUDA_NO_VMM=1
    # Words of the switches on purpose.
    # shellcheck disable=SC2086
    under $mild FAKE_CUDA_QUEUES=4
fi
exit "$failed"

#!/bin/sh
# SPDX-License-Identifier: MIT
#
# `run_all.sh test` is what `make test` runs after the build, what a user needs to know that his build works: the unit
# tests, a program against the installed library, each demo and tool once. `run_all.sh check-all` runs all other tests:
# those that want the simulated GPU driver or compute large networks, the programs from end to end, kills, load, static
# checks, models, and what saboteurs do. No test is in both. Continues after a failure. Prints the sum last.
set -u

cd "${BX_SOURCE_DIR:?}" || exit 1
. tests/tally.sh
callers_tally=${BX_TALLY:-/dev/null}
BX_TALLY=$(mktemp)
export BX_TALLY
trap 'rm -f "$BX_TALLY"' EXIT
trap 'exit 130' INT TERM

# Suites on the simulated driver, and those that compute ResNet-50.
long='@(gpu_*|device*|*_cuda|cuda_*|shmstat_gpu*|pipeline|param_server|resnet)/*|reference/resnet50_*'

unit()
{
    if [ "${BX_CONFIG:-}" = tsan ]; then
        echo 'skip the unit tests: Criterion does not start under ThreadSanitizer'
        tally 0 0 1 'unit (tsan)'
    else
        tests/run_unit.sh "$@"
    fi
}

case $1 in
test)
    unit --filter "!(@($long))"
    tests/run_scripts.sh tests/consumer/check.sh tests/programs.sh
    ;;
check-all)
    unit --filter "@($long)"
    UNIT_PROGRAM=kill_steps unit
    # Words on purpose: no name of a script has a blank.
    # shellcheck disable=SC2046
    tests/run_scripts.sh tests/e2e/net*.sh tests/check/*.sh tests/consumer/strict.sh \
        $(printf '%s\n' tests/e2e/*.sh | grep -v /net)
    ;;
esac

cat "$BX_TALLY" >>"$callers_tally"
tally_sum "$BX_TALLY"

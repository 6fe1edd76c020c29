#!/bin/sh
# SPDX-License-Identifier: MIT
#
# `run_all.sh test` is what `make test` runs after the build, what a user needs to know that his build works: the unit
# tests, a program against the installed library, each demo and tool from end to end. `run_all.sh check-all` runs all
# other tests: those that want the simulated GPU driver or train for long, kills, load, static checks, models, and what
# saboteurs do. No test is in both. Continues after a failure. Prints the sum last.
set -u

cd "${BX_SOURCE_DIR:?}" || exit 1
. tests/tally.sh
callers_tally=${BX_TALLY:-/dev/null}
BX_TALLY=$(mktemp)
export BX_TALLY
trap 'rm -f "$BX_TALLY"' EXIT
trap 'exit 130' INT TERM

# Suites on the simulated driver, and tests that train a network until it has learned.
long='@(gpu_*|fake_*|device*|*_cuda|cuda_*|shmstat_gpu*)/*|resnet/*_learns_*|param_server/trains_*_on_gpus'
scripts='bxbench cartpole log output param_server pipeline reinforce rnn shmstat top trace'

# others: the end-to-end scripts that are not in $scripts.
others()
{
    for script in tests/e2e/*.sh; do
        name=$(basename "$script" .sh)
        case " $scripts " in *" $name "*) ;; *) echo "$script" ;; esac
    done
}

# unit ARGUMENTS...: the Criterion tests, which do not start under the thread sanitizer.
unit()
{
    if [ "${BX_CONFIG:-}" = tsan ]; then
        echo 'skip the unit tests: Criterion does not start under ThreadSanitizer'
        tally 0 0 1 'unit (tsan)'
    else
        tests/run_unit.sh "$@"
    fi
}

# Lists of scripts are words on purpose.
# shellcheck disable=SC2046
case $1 in
test)
    unit --filter "!(@($long))"
    tests/run_scripts.sh tests/consumer/check.sh $(printf 'tests/e2e/%s.sh ' $scripts)
    ;;
check-all)
    unit --filter "@($long)"
    UNIT_PROGRAM=kill_steps unit
    tests/run_scripts.sh "$BX_BUILD_DIR/tests/stress" tests/check/*.sh $(others)
    ;;
esac

cat "$BX_TALLY" >>"$callers_tally"
tally_sum "$BX_TALLY"

#!/bin/sh
# SPDX-License-Identifier: MIT
#
# What `make test` runs after the build: unit tests, stress, static checks and models, a program against the installed
# library, end-to-end tests. Continues after a failure. Prints the sum last.
set -u

cd "${BX_SOURCE_DIR:?}" || exit 1
. tests/tally.sh
callers_tally=${BX_TALLY:-/dev/null}
BX_TALLY=$(mktemp)
export BX_TALLY
trap 'rm -f "$BX_TALLY"' EXIT
trap 'exit 130' INT TERM

if [ "${BX_CONFIG:-}" = tsan ]; then
    echo 'skip the unit tests: Criterion does not start under ThreadSanitizer'
    tally 0 0 1 'unit (tsan)'
else
    tests/run_unit.sh
    UNIT_PROGRAM=kill_steps tests/run_unit.sh
fi
tests/run_scripts.sh "$BX_BUILD_DIR/tests/stress" tests/check/*.sh tests/consumer/check.sh
tests/run_e2e.sh

cat "$BX_TALLY" >>"$callers_tally"
tally_sum "$BX_TALLY"

#!/bin/sh
# SPDX-License-Identifier: MIT
#
# The tests of lib/python: a line for each. `make test-python` builds the package and runs them. `run.sh FILE` runs
# those of one file; without it, as many files at a time as there are cores.
set -u

if [ $# -eq 0 ]; then
    printf '%s\n' "${BX_SOURCE_DIR:?}"/tests/python/test_*.py | xargs -d '\n' -n 1 -P "$(nproc)" "$0"
    exit
fi
out=$(mktemp)
trap 'rm -f "$out"' EXIT
PYTHONPATH=${BX_BUILD_DIR:?}/python "${PYTHON:-python3}" "$1" -v >"$out" 2>&1
status=$?
sed -i -E 's/^test_([a-z_]*) .*\.\.\. ok$/ok \1/; s/^test_([a-z_]*) .*\.\.\. skipped/skip \1/
           s/^(FAIL|ERROR): test_([a-z_]*) .*/not ok \2/' "$out"
cat "$out"
exit $status

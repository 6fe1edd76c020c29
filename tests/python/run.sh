#!/bin/sh
# SPDX-License-Identifier: MIT
#
# The tests of lib/python: a line for each. `make test-python` builds the package and runs them.
set -u

out=$(mktemp)
trap 'rm -f "$out"' EXIT
status=0
for file in "${BX_SOURCE_DIR:?}"/tests/python/test_*.py; do
    PYTHONPATH=${BX_BUILD_DIR:?}/python "${PYTHON:-python3}" "$file" -v >"$out" 2>&1 || status=1
    sed -E 's/^test_([a-z_]*) .*\.\.\. ok$/ok \1/; s/^test_([a-z_]*) .*\.\.\. skipped/skip \1/
            s/^(FAIL|ERROR): test_([a-z_]*) .*/not ok \2/' "$out"
done
exit $status

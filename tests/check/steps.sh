#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Each step that the code names (BXI_STEP, shm/step.h) has a test that kills or stops a worker there:
# tests/shm/test_kill_steps.c or a header beside it names it outside of comments. And each step that they name exists.
set -u

cd "${BX_SOURCE_DIR:-.}" || exit 1
# shellcheck source=tests/checks.sh
. tests/checks.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
test=tests/shm/test_kill_steps.c

without_comments()
{
    sed 's|/\*.*\*/||g; /\/\*/,/\*\//d'
}

find shm lib gpu -name '*.[ch]' -exec cat {} + | without_comments | grep -A1 'BXI_STEP(' |
    grep -oE '"[a-z]+\.[a-z_]+"' | grep -v '\.h"$' | LC_ALL=C sort -u >"$work/code"
cat "$test" tests/shm/kill_*.h | without_comments | grep -oE '"[a-z]+\.[a-z_]+"' | grep -v '\.h"$' |
    LC_ALL=C sort -u >"$work/test"
report 'each step has a test' "$(
    [ -s "$work/code" ] || echo 'no step was found in shm and lib: this check does not understand them'
    LC_ALL=C comm -23 "$work/code" "$work/test" | sed "s|.*|no test kills a worker at &: $test|"
    LC_ALL=C comm -13 "$work/code" "$work/test" | sed "s|.*|$test names &, a step that the code does not have|")"
exit "$failed"

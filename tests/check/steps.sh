#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Each step that the code names (BXI_STEP, shm/step.h) has a test that kills a worker there: tests/shm/test_kill_steps.c
# names it outside of comments. And each step that the test names exists.
set -u

cd "${BX_SOURCE_DIR:-.}" || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
test=tests/shm/test_kill_steps.c

without_comments()
{
    awk '
        {
            line = $0
            for (;;) {
                if (inside) {
                    at = index(line, "*/")
                    if (at == 0) next
                    line = substr(line, at + 2)
                    inside = 0
                }
                at = index(line, "/*")
                if (at == 0) break
                print substr(line, 1, at - 1)
                line = substr(line, at)
                inside = 1
            }
            print line
        }'
}

find shm lib gpu -name '*.[ch]' -exec cat {} + | without_comments | grep -A1 'BXI_STEP(' |
    grep -oE '"[a-z]+\.[a-z_]+"' | grep -v '\.h"$' | LC_ALL=C sort -u >"$work/code"
without_comments <"$test" | grep -oE '"[a-z]+\.[a-z_]+"' | LC_ALL=C sort -u >"$work/test"
untested=$(LC_ALL=C comm -23 "$work/code" "$work/test")
unknown=$(LC_ALL=C comm -13 "$work/code" "$work/test")
if [ ! -s "$work/code" ]; then
    echo 'no step was found in shm and lib: this check does not understand them'
elif [ -n "$untested" ]; then
    echo "$test kills no worker at: $(echo "$untested" | xargs). Add a test and a row to its table."
elif [ -n "$unknown" ]; then
    echo "$test names steps that the code does not have: $(echo "$unknown" | xargs)"
else
    echo 'ok each step has a test'
    exit 0
fi
echo 'not ok each step has a test'
exit 1

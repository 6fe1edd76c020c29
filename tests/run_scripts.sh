#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Runs test programs and counts results: `run_scripts.sh PROGRAM...`. One more runs at a time than there are cores, for
# many wait. They begin in the order given, so the longest should come first. What is printed of a program comes
# together, at its end.
#
# A program may print a line for each check, beginning with "ok", "not ok" or "skip"; these lines are counted. A
# program that prints none counts as one, by its exit status: 0 passed, 77 skipped. Any other status counts as a
# failure, whatever was printed. The output of failed programs is shown, and the skip lines of others.
set -u

here=$(dirname "$0")
. "$here/tally.sh"
if [ $# -gt 1 ]; then           # each is this script with one program
    printf '%s\n' "$@" | xargs -d '\n' -n 1 -P $(($(nproc) + 1)) "$0"
    exit
fi

program=$1
name=${program#"${BX_SOURCE_DIR:-}/"}
limit_s=${BX_TEST_LIMIT_S:-600}
out=$(mktemp)
child=
trap 'rm -f "$out" "$out.said"' EXIT
# timeout(1) has a process group of its own, so the terminal's ^C does not reach what it runs.
trap '[ -z "$child" ] || kill "$child" 2>/dev/null; exit 130' INT TERM

timeout -k 10 "$limit_s" "$program" >"$out" 2>&1 </dev/null &
child=$!
wait "$child"
status=$?
child=
passed=$(grep -cE '^ok([[:space:]:]|$)' "$out")
failed=$(grep -cE '^not ok([[:space:]:]|$)' "$out")
skipped=$(grep -cE '^skip([[:space:]:]|$)' "$out")
if [ "$status" -ne 0 ] && [ "$status" -ne 77 ] && [ "$failed" -eq 0 ]; then
    failed=1
elif [ "$((passed + failed + skipped))" -eq 0 ]; then
    [ "$status" -eq 77 ] && skipped=1 || passed=1
fi
{
    if [ "$failed" -ne 0 ]; then
        [ "$status" -ne 124 ] || echo "$program ran past ${limit_s} s" >>"$out"
        echo "--- $program, exit status $status:"
        cat "$out"
        echo '---'
        {
            echo "exit status $status"
            grep -E '^not ok([[:space:]:]|$)' "$out" || tail -n 3 "$out"
        } | tally_failures "$name"
    elif [ "$skipped" -ne 0 ]; then
        grep -iE '^skip' "$out" || tail -n 1 "$out"
    fi
    tally "$passed" "$failed" "$skipped" "$name"
} >"$out.said"
cat "$out.said"
[ "$failed" -eq 0 ]

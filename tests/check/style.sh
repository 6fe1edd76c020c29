#!/bin/sh
# SPDX-License-Identifier: MIT
#
# The part of the house style that a script can count: licence lines, lengths, widths, tabs, time limits of tests,
# silenced warnings, getenv of files' names.
set -u

cd "${BX_SOURCE_DIR:-.}" || exit 1
# shellcheck source=tests/checks.sh
. tests/checks.sh

code=$(find shm lib gpu tools demos tests -name '*.[ch]' -o -name '*.cu' | sort)
all=$(find shm lib gpu tools demos tests .ci \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cpp' -o -name '*.sh' \
    -o -name '*.pml' -o -name '*.awk' -o -name '*.py' -o -name '*.mut' -o -path .ci/run \) | sort; echo Makefile)

# No file name here holds a blank, so the lists are words on purpose.
# shellcheck disable=SC2086
{
    report 'the licence in the first two lines' "$(
        for file in $all; do
            head -n 2 "$file" | grep -q 'SPDX-License-Identifier: MIT' || echo "$file"
        done)"

    report 'functions of at most 70 lines' "$(awk '
        FNR == 1 { start = 0 }
        /^\{/ { start = FNR }
        /^\}/ {
            if (start && FNR - start - 1 > 70) print FILENAME ":" start ": " FNR - start - 1
            start = 0
        }
        ' $code)"

    report 'files of at most 800 lines' "$(wc -l $all |
        awk '$2 != "total" && $1 > 800 { print $2 ": " $1 }')"

    # 100 is aimed at, 120 is where it becomes a nuisance.
    report 'lines of at most 120 columns' "$(LC_ALL=C awk '
        { line = $0; gsub(/[\200-\277]/, "", line) }    # bytes that continue a character
        length(line) > 120 { print FILENAME ":" FNR ": " length(line) }' $(
            echo "$all" | grep -vx Makefile))"

    report 'no tabs, no blanks at the end' "$(grep -nE "$(printf '\t')|[[:space:]]$" $(
        echo "$all" | grep -vx Makefile) /dev/null)"

    report 'every test has a time limit' "$(awk '
        function note(text, suite) {
            suite = text
            sub(/^Test(Suite)?\(/, "", suite)
            sub(/[^a-z0-9_].*/, "", suite)
            if (text ~ /\.timeout/)
                limited[suite] = limited[suite] || text ~ /^TestSuite/
            else if (text ~ /^Test\(/)
                bare[suite] = bare[suite] where "\n"
        }
        /^Test(Suite)?\(/ { head = ""; where = FILENAME ":" FNR ": " $0 }
        /^Test(Suite)?\(/, /\)(;|$)/ { head = head $0; if (/\)(;|$)/) note(head) }
        END { for (suite in bare) if (!limited[suite]) printf "%s", bare[suite] }
        ' tests/*/*.c)"

    # By secure_getenv, or a set-user-ID program would open what its caller names. These name no file.
    report 'variables that name files are not read by getenv' "$(grep -nE '(^|[^_])getenv\(' $(
        echo "$code" | grep -E '^(shm|lib|gpu|tools)/') | grep -vE 'getenv\((variable|"(BX_(JOB|NAME|ARENA_BYTES|WAIT|'\
'HIST|POOL_THREADS|REJOIN|CHECKED|TRACE_EVENTS|GPU_(ORDER|EXPORT))|TERM|NO_COLOR)")\)' |
        grep -v 'pattern = getenv("BX_TRACE")')"

    # A yield alone never lets a thread of lower priority run. run/ yields between polls of a spin, which is bounded;
    # the loops of gpu/ have a deadline, or sleep too.
    report 'a thread that waits for another one backs off' "$(grep -nE 'sched_yield\(' $(
        echo "$code" | grep -E '^(shm|lib)/' | grep -vE '^(shm/backoff.h|lib/run/sleep.c)$'))"

    report 'no warning is silenced' "$(grep -nE -e '-Wno-[a-z]|(GCC|clang) diagnostic ignored' $(
        echo "$all" | grep -vx 'tests/check/style.sh'))"
}
exit "$failed"

#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Prints how many lines and branches of each source of lib/ and shm/ the tests have run, and the sums. `make coverage`
# builds with CONFIG=cov and runs the unit tests first. A branch counts if it was taken at least once. gcov is part of
# gcc. Killed workers write no counts.
set -u

: "${BX_SOURCE_DIR:?}" "${BX_BUILD_DIR:?}"
cd "$BX_SOURCE_DIR" || exit 1

for source in shm/*.c lib/*/*.c; do
    [ -e "$BX_BUILD_DIR/obj/${source%.c}.gcda" ] || { echo "$source 0 0 0 0"; continue; }
    LC_ALL=C ${GCOV:-gcov} -n -b -o "$BX_BUILD_DIR/obj/${source%.c}.o" "$source" 2>/dev/null |
        awk -v source="$source" '
            function part(text) { sub(/.*:/, "", text); return text + 0 }
            function whole(text) { sub(/.* of /, "", text); return text + 0 }
            /^File / { mine = $0 == "File \047" source "\047" }
            mine && /^Lines executed:/ { lines = whole($0); run = part($0) * lines / 100 }
            mine && /^Taken at least once:/ { branches = whole($0); taken = part($0) * branches / 100 }
            END { printf "%s %.0f %d %.0f %d\n", source, run, lines, taken, branches }'
done | awk '
    function percent(n, of) { return of ? 100 * n / of : 0 }
    function row(name, a, b, c, d) {
        printf "%-24s %6d of %6d lines %5.1f %%   ", name, a, b, percent(a, b)
        printf "%6d of %6d branches %5.1f %%\n", c, d, percent(c, d)
    }
    { row($1, $2, $3, $4, $5); run += $2; lines += $3; taken += $4; branches += $5 }
    END {
        row("all", run, lines, taken, branches)
        exit lines == 0
    }'

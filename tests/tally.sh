# shellcheck shell=sh
# SPDX-License-Identifier: MIT
#
# Counting for the shell scripts beside this one; sourced, not run. For everything that was run a line "passed failed
# skipped name" is appended to the file $BX_TALLY, if the variable is set; for everything that failed, a line "! text".
# The line that is printed ends with the seconds since the last one.

tally_at=$(date +%s)

tally()
{
    tally_before=$tally_at
    tally_at=$(date +%s)
    printf '  %-32s %4d passed %3d failed %3d skipped %4d s\n' "$4" "$1" "$2" "$3" "$((tally_at - tally_before))"
    if [ -n "${BX_TALLY:-}" ]; then
        printf '%d %d %d %s\n' "$1" "$2" "$3" "$4" >> "$BX_TALLY"
    fi
}

# tally_failures NAME <TEXT: keeps what failed in NAME, a line each, for the end of the output.
tally_failures()
{
    [ -z "${BX_TALLY:-}" ] || sed "s|^|! $1: |" >>"$BX_TALLY"
}

# Prints what failed, and the sum of tally file $1 as the closing line; fails if anything failed or nothing ran.
tally_sum()
{
    awk '/^! / { print "failed in " substr($0, 3); next }
         { p += $1; f += $2; s += $3 }
         END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit !(f == 0 && p > 0) }' "$1"
}

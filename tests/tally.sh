# shellcheck shell=sh
# SPDX-License-Identifier: MIT
#
# Counting for the shell scripts beside this one; sourced, not run. For everything that was run a line "passed failed
# skipped name" is appended to the file $BX_TALLY, if the variable is set.

tally()
{
    printf '  %-32s %4d passed %3d failed %3d skipped\n' "$4" "$1" "$2" "$3"
    if [ -n "${BX_TALLY:-}" ]; then
        printf '%d %d %d %s\n' "$1" "$2" "$3" "$4" >> "$BX_TALLY"
    fi
}

# Prints the sum of tally file $1 as the closing line; fails if anything failed or nothing ran.
tally_sum()
{
    awk '{ p += $1; f += $2; s += $3 }
         END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit !(f == 0 && p > 0) }' "$1"
}

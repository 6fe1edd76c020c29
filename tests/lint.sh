#!/bin/sh
# SPDX-License-Identifier: MIT
#
# `make lint`: builds everything with clang, warnings as errors, in a directory of its own; then checks that the kept
# mutants apply, runs the analysers over the sources, and the formatter, which holds indentation. A tool that is not
# installed is skipped and named. gcc's warnings are errors in each build of .ci/run, by WERROR=1. LINT_FULL=1 adds
# gcc's -fanalyzer, which takes minutes. A tool that works on one core has a part of the sources for each.
#
# `lint.sh tidy FILE...` and `lint.sh misaligned FILE...` are two of these parts.
set -u

cd "${BX_SOURCE_DIR:?}" || exit 1
. tests/tally.sh
: "${MAKE:=make}"
out=$(mktemp)
trap 'rm -f "$out" "$out.formatted" "$out.other"' EXIT
failed=0
cores=$(nproc)

# try NAME TOOL COMMAND...
try()
{
    name=$1
    tool=$2
    shift 2
    if ! command -v "$tool" >/dev/null; then
        echo "skip $name: $tool is not installed"
        tally 0 0 1 "lint: $name"
    elif "$@" >"$out" 2>&1; then
        tally 1 0 0 "lint: $name"
    else
        # clang-tidy counts, file by file, what it does not show.
        grep -vE '^[0-9]+ warnings? generated\.$' "$out"
        tally 0 1 0 "lint: $name"
        grep -E '(error|warning):' "$out" | head -n 3 | tally_failures "lint: $name"
        failed=1
    fi
}

# by_parts FUNCTION <FILES: of this script, in as many processes at a time as there are cores, each with some of them.
by_parts()
{
    xargs -n 20 -P "$cores" "$0" "$1"
}

# build COMPILER DIRECTORY [CFLAGS]
build()
{
    MAKEFLAGS='' $MAKE --no-print-directory -k -j"$cores" CC="$1" \
        BUILD="build/lint/$2" WERROR=1 CFLAGS="${3:-}" all tests
}

# Left out: what is taste, `n * sizeof *p` for a p that points to pointers, and widenings of what is
# bounded by 128 workers.
checks='-*,bugprone-*'
checks=$checks,-bugprone-easily-swappable-parameters,-bugprone-reserved-identifier
checks=$checks,-bugprone-sizeof-expression,-bugprone-misplaced-widening-cast
checks=$checks,-bugprone-implicit-widening-of-multiplication-result
# The kernels' texts are made by the build below.
includes='-D_GNU_SOURCE -I. -Ilib -Ibuild/lint/clang/obj/text'

tidy()      # tidy FILE...
{
    # Words on purpose: flags.
    # shellcheck disable=SC2086
    clang-tidy --quiet --warnings-as-errors='*' --checks="$checks" "$@" -- -std=gnu11 $includes \
        -isystem "${JEMALLOC:-build/jemalloc}/include"
}

tidy_all()  # the extension of Python needs headers that need not be here
{
    find shm lib gpu demos tools -name '*.c' ! -path 'lib/python/*' | by_parts tidy
}

# Breaks and columns are chosen by hand, so the formatter holds one thing only: how far a statement is indented.
# without_blanks: each line with no blanks but those at its beginning.
without_blanks()
{
    awk '{ match($0, /^ */); rest = substr($0, RLENGTH + 1); gsub(/ /, "", rest); print substr($0, 1, RLENGTH) rest }'
}

# numbers FLAG FILE: of the lines that the formatter writes otherwise; -w: not only in blanks.
numbers()
{
    without_blanks <"$2" | diff "$1" --unchanged-line-format= --new-line-format= --old-line-format='%dn
' - "$out.formatted" | sort
}

# misaligned FILE...: a statement ends with ; or { and stands behind a line that ends with ; { or }.
misaligned()
{
    found=0
    for file; do
        clang-format "$file" | without_blanks >"$out.formatted"
        numbers -w "$file" >"$out.other"
        numbers -a "$file" | comm -23 - "$out.other" | awk -v file="$file" '
            NR == FNR { differs[$1] = 1; next }
            { code = $0; sub(/[ ]*(\/\*.*)?$/, "", code) }
            differs[FNR] && before ~ /[;{}]$/ && code ~ /[;{]$/ {
                print file ":" FNR ": error: clang-format indents it otherwise"
            }
            code != "" && code !~ /^ *\*/ { before = code }' - "$file" | grep . && found=1
    done
    return $found
}

misaligned_of_all()
{
    find shm lib gpu demos tools tests -name '*.[ch]' ! -path 'tests/tsan/*' ! -path 'tests/cov/*' |
        by_parts misaligned
}

if [ $# -gt 0 ]; then
    "$@"
    exit
fi

try clang clang build clang clang
[ "${LINT_FULL:-0}" = 0 ] || try 'gcc -fanalyzer' gcc build gcc analyzer -fanalyzer

try 'mutants of the list' python3 tests/mutants/mutants.py --check

# Words on purpose: flags. constStatement: cppcheck takes the comma of an argument for an operator, and -Wunused-value
# finds what it would.
# shellcheck disable=SC2086
try cppcheck cppcheck cppcheck -j "$cores" --quiet --error-exitcode=1 --std=c11 --inline-suppr \
    --enable=warning,portability --suppress=missingIncludeSystem --suppress=constStatement \
    $includes -i lib/python shm lib gpu demos tools
try clang-tidy clang-tidy tidy_all
try clang-format clang-format misaligned_of_all
exit "$failed"

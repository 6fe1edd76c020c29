#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Compares the functions that the models of tests/model stand for with the sums in the models' heads; `model.sh --sums`
# prints new sums. Then runs the models in spin: each unchanged, where the checker must find nothing, and with each
# control, where it must find what tests/model/README.md says. On up to four cores at a time; BX_MODEL=long adds the
# large searches (some minutes, 2 GB each). Builds in a directory of its own under $BX_BUILD_DIR.
set -u

cd "${BX_SOURCE_DIR:-$(dirname "$0")/../..}" || exit 1
models=$PWD/tests/model
build=${BX_BUILD_DIR:-build}
failed=0

# ---- What the models stand for -----------------------------------------------------------------------

# "FILE FUNCTION SUM" of each line of a model's head that stands for a function.
stands_for()
{
    sed -n 's/^ \*     \([a-z_/]*\.[ch] [a-z_]* [0-9]*\)$/\1/p' "$1"
}

# A checksum of a function's text without comments and blanks; nothing if there is none in the file.
sum_of()    # sum_of FILE FUNCTION
{
    awk -v name="$2" '
        !inside && /^[a-zA-Z_]/ && !/;[ ]*$/ && $0 ~ ("(^|[^a-zA-Z0-9_])" name "\\(") { inside = 1 }
        inside { text = text " " $0 }
        inside && /^}/ { exit }
        END {
            while ((at = index(text, "/*")) > 0)
                text = substr(text, 1, at - 1) substr(text, at + 2 + index(substr(text, at + 2), "*/") + 1)
            gsub(/[ \t]/, "", text)
            if (text != "") print text
        }' "$1" | cksum | awk '$2 > 0 { print $1 }'
}

# The models are text beside the code. Whoever changes a function that one stands for reads the model,
# changes it where needed, and writes the new sum, which `model.sh --sums` prints.
changed_functions()
{
    for model in "$models"/*.pml; do
        stands_for "$model" | while read -r file function sum; do
            [ "$(sum_of "$file" "$function")" = "$sum" ] ||
                echo "$file: $function, for which $(basename "$model") stands"
        done
    done
}

print_sums()
{
    for model in "$models"/*.pml; do
        echo "$(basename "$model"):"
        stands_for "$model" | while read -r file function sum; do
            echo " *     $file $function $(sum_of "$file" "$function")"
        done
    done
}

if [ "${1:-}" = --sums ]; then
    print_sums
    exit 0
fi
changed=$(changed_functions)
if [ -n "$changed" ]; then
    failed=1
    echo "$changed" | sed 's/$/, has changed: does the model fit? "tests\/check\/model.sh --sums" prints new sums/'
    echo 'not ok the models stand for the code as it is'
else
    echo 'ok the models stand for the code as it is'
fi

if ! command -v spin >/dev/null 2>&1; then
    echo 'skip models: spin is not installed (package spin)'
    [ "$failed" -ne 0 ] || exit 77
    exit 1
fi
mkdir -p "$build" && work=$(mktemp -d "$build/model.XXXXXX") && cd "$work" || exit 1
work=$PWD
trap 'cd / && rm -rf "$work"' EXIT
pids=
trap 'kill $pids 2>/dev/null; exit 130' INT TERM

# verify MODEL MACRO...: leaves what the checker said in pan.out. Not zero if it did not finish.
verify()
{
    model=$1
    shift
    rm -f pan* ./*.trail
    spin -a "$@" "$models/$model.pml" >spin.out 2>&1 &&
        ${CC:-cc} "$optimise" -w -DSAFETY -DCOLLAPSE -DVECTORSZ=1024 -DMEMLIM="$memory_mb" -o pan pan.c \
            >>spin.out 2>&1 || { cat spin.out; return 1; }
    timeout -k 5 900 ./pan -m100000 >pan.out 2>&1
    grep -q 'errors: ' pan.out && ! grep -qE 'MEMLIM|max search depth|out of memory' pan.out
}

report()
{
    if [ "$1" = 0 ]; then
        echo "ok $2"
    else
        failed=1
        echo "not ok $2: $3"
        tail -n 30 pan.out 2>/dev/null | sed 's/^/    /'
    fi
}

# Each lane goes through all models, and runs one in so many of them.
lanes=$(nproc)
[ "$lanes" -le 4 ] || lanes=4
turn=0
is_mine()
{
    turn=$((turn + 1))
    [ "$((turn % lanes))" -eq "$lane" ]
}

# clean MODEL MACRO...: nothing may be found, all of it must have been searched.
clean()
{
    is_mine || return 0
    verify "$@" && grep -q 'errors: 0$' pan.out
    report $? "model $*" "the checker did not finish, or found an error"
}

# control MODEL MACRO...: an assertion must fail.
control()
{
    is_mine || return 0
    verify "$@" && grep -q 'assertion violated' pan.out
    report $? "control $*" "the checker did not find what was broken on purpose"
}

# controls MODEL 'MACRO...' NAME...: a control for each NAME, with the macros.
controls()
{
    of=$1
    with=$2
    shift 2
    for name; do
        # Words on purpose.
        # shellcheck disable=SC2086
        control "$of" "-D$name" $with
    done
}

all_models()
{
    memory_mb=1000
    optimise=-O1                        # these search long enough for it to pay
    clean rref -DPASSES=5
    clean rref -DHOLDERS=3
    clean rref -DKILLS=2
    clean rref -DHOLDERS=3 -DPASSES=3 -DKILLS=2
    clean rref -DMAKE -DKILLS=2
    clean rref -DMAKE -DHOLDERS=3 -DPASSES=2 -DKILLS=2
    optimise=-O0
    controls rref '' NO_PIN LEAVE_ALL KEPT_EARLY ENTERED_FOR_ALL
    controls rref '-DMAKE' NO_TO_COME USE_TO_COME
    controls rref '-DMAKE -DKILLS=1' TO_COME_STAYS
    controls rref '-DKILLS=1' FORGET_PINS DROP_AT_ONCE ANSWER_EARLY NO_OWN_END PASSED_ONLY_COUNTS
    controls rref '-DHOLDERS=3 -DPASSES=3 -DKILLS=1' FORGET_PINS
    controls rref '-DHOLDERS=3 -DPASSES=3 -DKILLS=2' ONLY_NEW OWN_ANSWERS NO_ROUND

    optimise=-O1
    clean lease
    optimise=-O0
    controls lease '-DKILLS=1' AT_ONCE ANSWER_EARLY ANSWER_HOLDING
    controls lease '' NO_JOIN ONLY_NEW

    if [ "${BX_MODEL:-}" = long ]; then
        optimise=-O2
        memory_mb=3000
        clean rref -DPASSES=5 -DKILLS=2
        clean rref -DHOLDERS=3 -DPASSES=3 -DKILLS=3
        clean rref -DHOLDERS=3 -DKILLS=2
        clean rref -DMAKE -DHOLDERS=3 -DPASSES=3 -DKILLS=2
        clean lease -DPASSES=5
    fi
}

lane=0
while [ "$lane" -lt "$lanes" ]; do
    (
        mkdir "$lane" && cd "$lane" || exit 1
        failed=0
        all_models
        exit "$failed"
    ) >"$lane.out" 2>&1 &
    pids="$pids $!"
    lane=$((lane + 1))
done
for pid in $pids; do
    wait "$pid" || failed=1
done
cat ./*.out
exit "$failed"

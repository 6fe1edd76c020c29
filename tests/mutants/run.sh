#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Puts one fault after the other into a copy of the sources and reports whether a test fails: `make mutants`, or
# `make mutants MUTANTS='ring timer_later'` for some lists or mutants. README.md has the format of the lists.
#
# The working tree is not touched. $BX_BUILD_DIR/mutants/base is a copy of it with a build of its own, kept for the next
# run; work.PID is a copy of that for this run. After each mutant, every file there that is newer than the mutant is
# restored from the base, so only what depends on the mutated file is compiled.
#
# Each named test is run without the mutant first: a test that fails then can judge nothing.
set -u

here=$(cd "$(dirname "$0")" && pwd)
: "${BX_SOURCE_DIR:=$(cd "$here/../.." && pwd)}"
: "${BX_BUILD_DIR:=$BX_SOURCE_DIR/build}"
: "${JEMALLOC:=$BX_SOURCE_DIR/build/jemalloc}"
export JEMALLOC
limit_s=${BX_MUTANT_LIMIT_S:-120}
jobs=${BX_MUTANT_JOBS:-2}
make=${MAKE:-make}
unset MAKEFLAGS MFLAGS MAKELEVEL BX_TALLY UNIT_ARGS UNIT_PROGRAM
home=$BX_BUILD_DIR/mutants
base=$home/base
work=$home/work.$$
child=
trap 'rm -rf "$work"' EXIT
trap '[ -z "$child" ] || kill "$child" 2>/dev/null; exit 130' INT TERM
mkdir -p "$base" "$work/verdicts" "$work/mutants" || exit 1

die()
{
    echo "mutants: $*" >&2
    exit 2
}

# ---- The lists ---------------------------------------------------------------------------------------

# One file for each mutant that was asked for: $work/mutants/0001 and so on. Says what it does not understand.
split_lists()
{
    awk -v into="$work/mutants" -v wanted="$*" '
        function complain(why) { print FILENAME ":" FNR ": " why > "/dev/stderr"; bad = 1 }
        BEGIN {
            count = split(wanted, words)
            for (i = 1; i <= count; i++) { sub(/.*\//, "", words[i]); sub(/\.mut$/, "", words[i]) }
        }
        FNR == 1 { list = FILENAME; sub(/.*\//, "", list); sub(/\.mut$/, "", list); out = "" }
        /^[ \t]*(#.*)?$/ { next }
        $1 == "mutant" {
            if (seen[$2]++) complain("a second mutant " $2)
            chosen = !count
            for (i = 1; i <= count; i++)
                if (words[i] == list || words[i] == $2) { chosen = 1; used[i] = 1 }
            if (out != "") close(out)
            out = chosen ? sprintf("%s/%04d", into, ++n) : ""
        }
        $1 !~ /^(mutant|file|in|config|tests|steps|stress|check|script)$/ && !/^[-+]/ {
            complain("not understood: " $0)
        }
        out != "" { print > out }
        END {
            for (i = 1; i <= count; i++)
                if (!used[i]) { print "no list and no mutant is called " words[i] > "/dev/stderr"; bad = 1 }
            exit bad
        }' "$here"/*.mut
}

field()     # field NAME MUTANT: the words after it
{
    sed -n "s/^$1[[:space:]]*//p" "$2" | tr '\n' ' ' | sed 's/ *$//'
}

has()
{
    grep -q "^$1\([[:space:]]\|\$\)" "$2"
}

config_of()
{
    config=$(field config "$1")
    echo "${config:-debug}"
}

directory_of()  # of a config, relative to the tree
{
    [ "$1" = release ] && echo build || echo "build/$1"
}

targets_of()    # what must be built to run the tests of a mutant
{
    b=$(directory_of "$(config_of "$1")")
    if has tests "$1"; then echo "$b/tests/unit" "$b/bin/shmstat" "$b/tests/libfakecuda.so"; fi
    if has steps "$1"; then echo "$b/tests/kill_steps"; fi
    if has stress "$1"; then echo "$b/tests/stress"; fi
    if has script "$1"; then echo all tests; fi
}

# ---- The copies --------------------------------------------------------------------------------------

build()     # build TREE CONFIG TARGETS
{
    tree=$1
    config=$2
    shift 2
    [ $# -eq 0 ] || "$make" -C "$tree" -j"$jobs" BUILD=build CONFIG="$config" "$@" >"$work/build.log" 2>&1
}

refresh_base()
{
    for entry in "$base"/* "$base"/.[!.]*; do
        [ "$entry" = "$base/build" ] || rm -rf "$entry"
    done
    for entry in "$BX_SOURCE_DIR"/* "$BX_SOURCE_DIR"/.[!.]*; do
        case $entry in
        "$BX_BUILD_DIR" | */.git | */build | */.\[!.\]\*) ;;
        *) cp -a "$entry" "$base/" || return 1 ;;
        esac
    done
    for config in $(for m in "$work"/mutants/*; do config_of "$m"; done | sort -u); do
        b=$(directory_of "$config")
        if [ ! -d "$base/$b" ] && [ "$config" != release ] && [ -d "$BX_BUILD_DIR/$config" ]; then
            mkdir -p "$base/build" && cp -a "$BX_BUILD_DIR/$config" "$base/$b"
        fi
        targets=$(for m in "$work"/mutants/*; do
            [ "$(config_of "$m")" != "$config" ] || targets_of "$m"
        done | tr ' ' '\n' | sort -u)
        # shellcheck disable=SC2086
        build "$base" "$config" $targets || { tail -n 30 "$work/build.log"; return 1; }
    done
    cp -a "$base" "$work/tree" && cp -a "$base" "$work/base"
}

# Takes from the second copy every file that changed after the mutant was put in, and the mutated file itself: its time
# may equal the stamp's.
restore()
{
    (cd "$work/tree" && find . -newer "$work/stamp" -type f) | while read -r changed; do
        if [ -e "$work/base/$changed" ]; then
            cp -p --remove-destination "$work/base/$changed" "$work/tree/$changed"
        else
            rm -f "$work/tree/$changed"
        fi
    done
    cp -p --remove-destination "$work/base/$file" "$work/tree/$file"
}

# ---- Tests -------------------------------------------------------------------------------------------

# run KIND CONFIG ARGUMENT: runs a test in the work tree. Leaves what it printed in $work/run.log.
run()
{
    b=$work/tree/$(directory_of "$2")
    program=
    case $1 in
    tests) program=unit ;;
    steps) program=kill_steps ;;
    stress) set -- "$1" "$2" "$b/tests/stress" ;;
    check | script) set -- "$1" "$2" "$work/tree/$3" ;;
    esac
    (
        cd "$work/tree" || exit 1
        export BX_SOURCE_DIR="$work/tree" BX_BUILD_DIR="$b" BX_CONFIG="$2" BX_TEST_LIMIT_S="$limit_s"
        if [ -n "$program" ]; then
            UNIT_PROGRAM=$program exec tests/run_unit.sh --fail-fast --filter "$3"
        fi
        exec tests/run_scripts.sh "$3"
    ) >"$work/run.log" 2>&1 </dev/null &
    child=$!
    wait "$child"
    status=$?
    child=
    return "$status"
}

# Each test of a mutant as a line: KIND ARGUMENT.
tests_of()
{
    for kind in check tests steps stress script; do
        if has "$kind" "$1"; then
            arguments=$(field "$kind" "$1")
            [ "$kind" != stress ] || arguments=.
            printf '%s\n' "$arguments" | tr ' ' '\n' | sed "/./s|^|$kind |"
        fi
    done
}

# The tests must pass, and not be skipped, before the mutant is there. Asked once for each test and run.
passes_unmutated()  # KIND CONFIG ARGUMENT
{
    asked=$work/verdicts/$(printf '%s' "$*" | tr -c 'a-zA-Z0-9_\n' '=')
    if [ ! -e "$asked" ]; then
        if run "$@" && grep -qE '[1-9][0-9]* passed' "$work/run.log"; then
            echo yes >"$asked"
        else
            echo no >"$asked"
            grep -v "^\[SKIP\]" "$work/run.log" | tail -n 5 | sed "s|^|    |"
        fi
    fi
    grep -q yes "$asked"
}

# The test that saw it, as far as the log names one.
who_saw()
{
    name=$(sed -n 's/^\[FAIL\] \([a-z0-9_]*::[a-z0-9_]*\).*/\1/p; s/^not ok \(.*\)/\1/p' "$work/run.log" | head -n 1)
    printf '%s' "${name:-$1 $2}"
}

# ---- One mutant --------------------------------------------------------------------------------------

caught=0 survived=0 stale=0 uncompiled=0 unjudged=0

tell()      # VERDICT SECONDS TEXT
{
    printf '%-10s %-44s %4d s  %s\n' "$1" "$name" "$2" "$3"
}

# Sets verdict and detail.
try()
{
    mutant=$1
    file=$(field file "$mutant")
    config=$(config_of "$mutant")
    tests_of "$mutant" >"$work/tests"
    verdict=stale
    detail=
    [ -s "$work/tests" ] || { detail='no test is named that could catch it'; return; }
    [ -f "$work/tree/$file" ] || { detail="there is no file $file"; return; }
    detail=$(LC_ALL=C awk -f "$here/apply.awk" "$mutant" "$work/tree/$file" 2>&1 >"$work/mutated") || return

    verdict=unjudged
    while read -r kind argument; do
        detail="$kind $argument does not pass without the mutant"
        passes_unmutated "$kind" "$config" "$argument" || return
    done <"$work/tests"

    touch "$work/stamp"
    cat "$work/mutated" >"$work/tree/$file"
    verdict=uncompiled
    # shellcheck disable=SC2046
    if ! build "$work/tree" "$config" $(targets_of "$mutant"); then
        detail=$(grep -m 1 -E 'error|undefined' "$work/build.log")
    else
        verdict=survived
        detail=
        while read -r kind argument; do
            if ! run "$kind" "$config" "$argument"; then
                verdict=caught
                detail=$(who_saw "$kind" "$argument")
                break
            fi
        done <"$work/tests"
    fi
    restore
}

began=$(date +%s)
split_lists "$@" || exit 2
[ -e "$work/mutants/0001" ] || die 'no mutant was chosen'
(
    flock 9
    refresh_base
) 9>"$home/lock" || die 'the sources do not build without a mutant, or cannot be copied'
echo "built in $(($(date +%s) - began)) s; $(find "$work/mutants" -type f | wc -l) mutants"

for mutant in "$work"/mutants/*; do
    name=$(field mutant "$mutant")
    start=$(date +%s)
    try "$mutant"
    case $verdict in
    caught) caught=$((caught + 1)) ;;
    survived) survived=$((survived + 1)) ;;
    stale) stale=$((stale + 1)) ;;
    uncompiled) uncompiled=$((uncompiled + 1)) ;;
    unjudged) unjudged=$((unjudged + 1)) ;;
    esac
    tell "$verdict" "$(($(date +%s) - start))" "$detail"
done
echo "$(($(date +%s) - began)) s, $uncompiled do not compile, $unjudged cannot be judged:" \
    "$caught caught, $survived survived, $stale stale"
[ "$((survived + stale + uncompiled + unjudged))" -eq 0 ]

#!/bin/sh
# SPDX-License-Identifier: MIT
#
# The manual pages (`make man`): each public function has one that names it, man and mandoc find nothing wrong with
# them, and references lead to pages. A header with a function that has no comment makes none. boxcar.7 has each
# variable that the code reads, and no other.
set -u

cd "${BX_SOURCE_DIR:-.}" || exit 1
# shellcheck source=tests/checks.sh
. tests/checks.sh
build=${BX_BUILD_DIR:-build}
: "${MAKE:=make}"
PATH=$PATH:/usr/sbin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if ! $MAKE --no-print-directory CONFIG="${BX_CONFIG:-release}" man >"$work/out" 2>&1; then
    cat "$work/out"
    echo 'not ok the pages are made'
    exit 1
fi
cp -r "$build/man" "$work/man" && rm "$work/man/made"

# ---- Which pages there are -------------------------------------------------------------------------------

{
    sed -n 's/_0_2(/(/; s/^function [^(]*[ *]\(bx_[a-z0-9_]*\)(.*/\1/p' lib/*.abi     # names, not symbols
    sed -n 's/^#define \(bx_[a-z0-9_]*\)(.*/\1/p' lib/boxcar*.h     # macros that are used as functions
} | LC_ALL=C sort -u | while read -r name; do
    # old.h has functions of 0.1 that have another name today.
    grep -q "BXI_SYMBOL($name)" lib/job/old.h && ! grep -qw "$name" lib/boxcar*.h || echo "$name"
done >"$work/functions"
(cd "$work/man/man3" && ls) | sed 's/\.3$//' | LC_ALL=C sort >"$work/pages"
report 'each public function has a page, and nothing else has' "$(
    [ "$(wc -l <"$work/functions")" -gt 100 ] || echo "no functions in lib/*.abi"
    LC_ALL=C comm -3 "$work/functions" "$work/pages")"
report 'the page of a function names it' "$(
    while read -r name; do
        page=$work/man/man3/$name.3
        to=$(sed -n 's/^\.so //p' "$page")
        grep -qE "^\.Nm $name( ,)?$" "${to:+$work/man/}${to:-$page}" || echo "$name"
    done <"$work/functions")"
report 'each public header has a page, or is a part of boxcar.h' "$(
    for header in lib/boxcar*.h; do
        name=$(basename "$header" .h)
        [ -s "$work/man/man7/$name.7" ] || grep -q "^#include \"$name.h\"" lib/boxcar.h || echo "$header"
    done)"
report 'each program has a page' "$(
    for program in "$build"/bin/*; do
        name=${program##*/}
        [ -s "$work/man/man1/$name.1" ] || echo "$name"
    done)"

# ---- Whether they are well formed --------------------------------------------------------------------------

# Words on purpose: no name of a page has a blank.
# shellcheck disable=SC2046
if man --version >/dev/null 2>&1; then
    report 'man has no warnings' "$(
        cd "$work/man" && LC_ALL=C.UTF-8 MANPAGER=cat man --warnings -l $(grep -L '^\.so ' man*/*) 2>&1 >/dev/null)"
else
    echo 'skip man has no warnings: man is not installed'
fi
# With an index of the pages, mandoc finds references that lead nowhere.
# shellcheck disable=SC2046
if command -v mandoc >/dev/null && command -v makewhatis >/dev/null; then
    report 'mandoc has no complaints' "$(
        cd "$work/man" && makewhatis "$work/man" && MANPATH=$work/man mandoc -T lint -W style \
            $(grep -L '^\.so ' man*/*.[137]) 2>&1)"
else
    echo 'skip mandoc has no complaints: mandoc is not installed'
fi

# ---- A function without a comment has no page --------------------------------------------------------------

refuses()   # refuses NAME PART_OF_COMPLAINT: the pages of $work/bad/boxcar.h
{
    mkdir -p "$work/bad/man3" "$work/bad/man7"
    if awk -f lib/man/text.awk -f lib/man/pages.awk -v out="$work/bad" -v words=lib/man/boxcar.7 -v version=0 \
        "$work/bad/boxcar.h" lib/boxcar_tensor.h lib/boxcar_rref.h lib/boxcar_call.h 2>"$work/err"; then
        report "$1" 'the script does not fail'
    else
        report "$1" "$(grep -q "$2" "$work/err" || cat "$work/err")"
    fi
}

mkdir "$work/bad"
awk '/^struct bx_msg \*bx_msg_create/ { print "\nint bx_bare(struct bx_job *job);\n" } { print }' lib/boxcar.h \
    >"$work/bad/boxcar.h"
refuses 'a function without a comment is refused' 'bx_bare has no comment'
awk '/^\/\* Makes an empty message/ { print "/* -EINVAL: it is bare. */\nint bx_bare(struct bx_job *job);\n" }
    { print }' lib/boxcar.h >"$work/bad/boxcar.h"
refuses 'a comment that begins with a code is refused' 'comment of bx_bare does not begin with a sentence'
sed 's/^ \* boxcar\.h - / * /' lib/boxcar.h >"$work/bad/boxcar.h"
refuses 'a header without its name at its head is refused' 'boxcar.h: its first comment does not begin with its name'

# ---- Variables ---------------------------------------------------------------------------------------------

{
    grep -rhoE --include='*.c' 'getenv\("[A-Z_]+"\)' lib shm gpu tools demos | sed 's/.*("//; s/").*//'
    grep -rhoE --include='*.c' '"BX_[A-Z_]+"' lib shm gpu tools demos | tr -d '"'
    grep -rhoE --include='*.c' 'setenv\("[A-Z_]+"' lib shm gpu tools demos | sed 's/.*("//; s/"//'
} | LC_ALL=C sort -u >"$work/read"
# "Ev A , B" and "Ev A Ns * , Ev B".
sed -n '/^\.Sh ENVIRONMENT/,/^\.Sh FILES/s/^\.It Ev //p' lib/man/boxcar.7 | tr -c 'A-Z_\n' '\n' |
    grep -E '^([A-Z]+_[A-Z_]+|PATH|TERM)$' | LC_ALL=C sort -u >"$work/told"
report 'boxcar.7 has each variable that the code reads' "$(
    [ -s "$work/read" ] || echo 'none is read'
    LC_ALL=C comm -23 "$work/read" "$work/told")"
# The driver of CUDA reads this one.
report 'boxcar.7 has no other variable' "$(LC_ALL=C comm -13 "$work/read" "$work/told" | grep -vx CUDA_VISIBLE_DEVICES)"
exit "$failed"

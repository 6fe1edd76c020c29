#!/bin/sh
# SPDX-License-Identifier: MIT
#
# BX_TRACE from the outside, on a demo that forks its workers; and the static probes in a program. BX_BUILD_DIR names
# the build.
#
# shellcheck disable=SC2317
set -u

build=${BX_BUILD_DIR:-build}
dir=$(mktemp -d)
trace=$dir/trace.json
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
XDG_RUNTIME_DIR=$dir
export XDG_RUNTIME_DIR

# shellcheck source=tests/checks.sh
. "$(dirname "$0")/../checks.sh"

evidence()  # of a check that failed
{
    tail -n 5 "$dir"/out.* "$trace" 2>/dev/null | cut -c 1-200 | sed 's/^/  /'
}

lines()     # lines COUNT PATTERN: so many events match
{
    test "$(grep -cE "$2" "$trace")" -eq "$1"
}

whole()     # the file is an array with an object on each line
{
    python3 - "$trace" <<'END'
import json, sys
lines = open(sys.argv[1]).read().split("\n")
assert (lines[0], lines[-2:]) == ("[", ["]", ""])
for line in lines[1:-2]:
    assert type(json.loads(line.removeprefix(","))) is dict
json.loads("\n".join(lines))
END
}

paired()    # paired FROM TO: each arrow and each async span has both its ends
{
    sed -n "s/^,{\"ph\":\"$1\",\"name\":\"\([^\"]*\)\".*\"id\":\"\([^\"]*\)\".*/\1 \2/p" "$trace" | sort >"$dir/from"
    sed -n "s/^,{\"ph\":\"$2\",\"name\":\"\([^\"]*\)\".*\"id\":\"\([^\"]*\)\".*/\1 \2/p" "$trace" | sort >"$dir/to"
    test -s "$dir/from" && cmp -s "$dir/from" "$dir/to"
}

# ---- A demo that forks its workers ------------------------------------------------------------------

BX_TRACE=$trace "$build/bin/reinforce" --min-world-size 3 --max-world-size 3 --mode batch --max-episodes 2 \
    --num-steps 100 --count-frames --quiet >"$dir/out.0" 2>&1
check 'reinforce runs' test $? -eq 0
check 'the file is whole' whole
rows=$(sed -n 's/.*requests_batched \([0-9]*\),.*/\1/p' "$dir/out.0")
check 'it counted its frames' test "$rows" -gt 0
check 'as many calls' lines "$rows" '"ph":"X","name":"select_action_batch","cat":"call"'
check 'as many answers' lines "$rows" '"ph":"X","name":"answer select_action_batch"'
check 'as many rows in the batches' test "$(
    sed -n 's/.*"cat":"batch".*"rows":\([0-9]*\)}}$/\1/p' "$trace" | awk '{ n += $1 } END { print n }')" -eq "$rows"
check 'every arrow has its end' paired s f
check 'every async call ends' paired b e
check 'somebody slept' grep -q '"name":"sleep"' "$trace"
check 'nothing was left out' lines 0 'left_out'

# ---- Static probes ----------------------------------------------------------------------------------

if ! command -v readelf >/dev/null || ! printf '#include <sys/sdt.h>\n' | ${CC:-cc} -x c -E - >/dev/null 2>&1; then
    echo 'skip static probes: no sys/sdt.h, or no readelf'
else
    readelf -n "$build/bin/hello" | grep -A 1 'Provider: boxcar' | sed -n 's/ *Name: //p' | sort -u >"$dir/out.probes"
    for probe in call_send call_done handler_begin handler_end batch_begin batch_end sleep wake; do
        check "the probe $probe" grep -qx "$probe" "$dir/out.probes"
    done
fi
exit "$failed"

#!/bin/sh
# SPDX-License-Identifier: MIT
#
# build/bin/pipeline from the outside: its flags, output and JSON; nothing is left when a worker is killed, or the job
# is interrupted. All runs are tiny. BX_BUILD_DIR names the build.
#
# Lists of process ids are unquoted on purpose.
# shellcheck disable=SC2086,SC2046
set -u

program=${BX_BUILD_DIR:-build}/bin/pipeline
dir=$(mktemp -d)
launcher=
workers=
trap 'rm -rf "$dir"; kill -9 $launcher $workers 2>/dev/null' EXIT
trap 'exit 130' INT TERM
limit_s=180         # of a run that should take seconds
tiny='--batches 1 --batch-size 4 --image 32'

# shellcheck source=tests/checks.sh
. "$(dirname "$0")/../checks.sh"

evidence()  # of a check that failed
{
    sed 's/^/  out: /' "$dir/out" | tail -n 20
    sed 's/^/  err: /' "$dir/err" | tail -n 12
}

run()       # run FLAGS...: status, $dir/out, $dir/err
{
    timeout -k 5 "$limit_s" "$program" "$@" >"$dir/out" 2>"$dir/err" </dev/null
    status=$?
}

lines()     # lines COUNT PATTERN FILE
{
    test "$(grep -cE "$2" "$3")" -eq "$1"
}

is()        # is COUNT of lines, by FILE
{
    test "$(wc -l <"$2")" -eq "$1"
}

# ---- Flags -----------------------------------------------------------------------------------------

refuses()   # refuses PATTERN FLAGS...: one sentence, status 2, nothing printed
{
    pattern=$1
    shift
    run "$@"
    test "$status" -eq 2 && is 0 "$dir/out" && is 1 "$dir/err" && lines 1 "$pattern" "$dir/err"
}

run --help
check 'help lists all flags' test \
    "$status $(grep -cE -e '^  --(splits|batches|batch-size|image|seed|json) ' "$dir/out")" = '0 6'
run --version
check 'version is one line' lines 1 '^pipeline [0-9]+\.[0-9]+\.[0-9]+$' "$dir/out"
check 'refuses splits that do not divide the batch' refuses 'batch of 16 images does not split into 3' --splits 1,3
check 'refuses more splits than images' refuses 'batch of 4 images does not split into 8' --batch-size 4 --splits 8
check 'the default splits are checked too' refuses 'batch of 4 images does not split into 8' --batch-size 4
check 'refuses no splits' refuses 'does not split into 0' --splits 0
check 'refuses a list with a gap' refuses 'whole numbers' --splits 1,,2
check 'refuses a list with an end' refuses 'whole numbers' --splits 1,
check 'refuses a negative number of splits' refuses 'whole numbers' --splits -1
check 'refuses a word for splits' refuses 'whole numbers' --splits many
check 'refuses seventeen runs' refuses 'whole numbers' --splits 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1
check 'refuses a number of splits that overflows' refuses 'does not split' --splits 99999999999999999999
check 'refuses a micro-batch that cannot be normalised' refuses 'cannot be normalised' --batch-size 4 --image 32 \
    --splits 4
check 'refuses 0 batches' refuses 'batches' --batches 0
check 'refuses an empty batch' refuses 'batch-size' --batch-size 0
check 'refuses images that are too small' refuses 'image' --image 31
check 'refuses an unknown flag' refuses 'trainers' --trainers 2
check 'refuses a word' refuses 'train' train

cannot()    # cannot PATTERN FLAGS...: status 1 before any training
{
    pattern=$1
    shift
    run $tiny --splits 1 "$@"
    test "$status" -eq 1 && is 0 "$dir/out" && is 1 "$dir/err" && lines 1 "$pattern" "$dir/err"
}

check 'refuses a result in no directory' cannot 'No such file' --json "$dir/none/j"

# ---- Output ----------------------------------------------------------------------------------------

run $tiny --splits 1,2 --json "$dir/j"
check 'ends with status 0' test "$status" -eq 0
check 'a line for each number of micro-batches' test "$(sed -E 's/[0-9]+\.[0-9]{3} s$/T s/' "$dir/out" | tr '\n' ';')" \
    = 'splits 1: T s;splits 2: T s;'
check 'nothing on stderr' is 0 "$dir/err"
check 'JSON: the flags' lines 1 '"batches": 1, "batch_size": 4, "image": 32, "seed": 0,$' "$dir/j"
number='[0-9.e+-]+'
check 'JSON: a run for each number of micro-batches' lines 2 "\"splits\": [12], \"seconds\": $number, \
\"images_per_s\": $number, \"first_loss\": $number, \"last_loss\": $number }" "$dir/j"
losses=$(grep -o '"first_loss.*' "$dir/j")
run $tiny --splits 1,2 --json "$dir/j"
check 'a seed repeats' test "$(grep -o '"first_loss.*' "$dir/j")" = "$losses"
run $tiny --splits 2 --seed 1 --json "$dir/j"
check 'another seed gives other losses' test "$status $(grep -c "$(echo "$losses" | sed -n 2p)" "$dir/j")" = '0 0'

# ---- Kills and signals -------------------------------------------------------------------------------

soon()      # soon COMMAND...: within about a minute, because the machine may be busy
{
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        test "$tries" -lt 1200 || return 1
        sleep 0.05
    done
}

gone()
{
    for pid in "$@"; do
        # A zombie has ended; its parent may be slow to wait for it.
        case $(sed -n 's/^State:[[:space:]]*//p' "/proc/$pid/status" 2>/dev/null) in
        '' | Z*) ;;
        *) return 1 ;;
        esac
    done
}

no_segments()
{
    while read -r path; do
        test ! -e "$path" || return 1
    done <"$dir/segments"
}

start()     # start: a long job, past its first run; sets $launcher, $workers
{
    : >"$dir/out"
    env --default-signal=INT "$program" $tiny --batches 1 --splits 2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2 \
        >"$dir/out" 2>"$dir/err" </dev/null &
    launcher=$!
    soon grep -q '^splits 2:' "$dir/out"
    workers=$(ps --ppid "$launcher" -o pid= | sort -n | tr -s ' \n' ' ')
    cat $(printf '/proc/%s/maps ' $workers) 2>/dev/null | grep -o '/dev/shm/boxcar[^ ]*' |
        sort -u >"$dir/segments"
}

worker()    # worker RANK: its pid
{
    echo $workers | cut -d' ' -f$(($1 + 1))
}

finish()    # waits for the end; sets $status and $left
{
    if soon gone "$launcher"; then
        wait "$launcher" 2>/dev/null
        status=$?
    else
        kill -9 "$launcher"
        status=late
    fi
    launcher=
    soon gone $workers && soon no_segments && left=nothing || left=something
    workers=
}

for rank in 0 1 2; do
    victim=$(test "$rank" -eq 0 && echo master || echo "worker$rank")
    start
    check "$victim: three workers with segments and arenas" test "$(echo $workers | wc -w) $(wc -l <"$dir/segments")" \
        = '3 6'
    target=$(worker "$rank")
    kill -9 "$target"
    finish
    check "$victim killed: status 3 and nothing left" test "$status $left" = '3 nothing'
    check "$victim killed: the launcher names it" lines 1 \
        "^pipeline: worker '$victim' \(rank $rank, pid $target\) was killed by signal 9 \(Killed\)" "$dir/err"
    check "$victim killed: the two others name it" lines 2 "^pipeline: (master|worker[12]): .*$victim" "$dir/err"
done

for signal in INT TERM; do
    start
    kill -"$signal" "$launcher"
    finish
    check "SIG$signal ends workers and program" test "$status $left" = \
        "$(test $signal = INT && echo 130 || echo 143) nothing"
done

exit "$failed"

#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Everything for a long time: `soak.sh [SECONDS]`, 3600; BX_BUILD_DIR names the build. `make soak` runs it.
#
# A job of each demo lives all the while; they take turns, a few seconds each, and are stopped between. In each round
# each demo also trains shortly with a fixed seed, and must print the figures of the first round: they are made of what
# crossed between workers. Nothing may be left of such a job. At the end of a round anonymous memory and descriptors of
# each worker that lives, its arena and what is in /dev/shm are measured. The most of the first three rounds is what
# they may have: a quarter more and the slack below, or the soak fails.
set -u

seconds=${1:-3600}
build=${BX_BUILD_DIR:-build}
began=$(date +%s)
round=0
kept=
dir=$(mktemp -d)
trap 'for pid in $kept; do kill -CONT "-$pid"; kill "$pid"; done 2>/dev/null; wait; rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
XDG_RUNTIME_DIR=$dir
export XDG_RUNTIME_DIR

fail()      # fail WHAT: with what was printed last
{
    echo "soak: after $(($(date +%s) - began)) s: $1"
    tail -qn 5 "$dir"/out* 2>/dev/null | sed 's/^/  /'
    exit 1
}

keep()      # keep PROGRAM FLAGS...: in a process group of its own
{
    setsid "$@" >"$dir/out.${1##*/}" 2>&1 </dev/null &
    kept="$kept $!"
    sleep 1             # it has its group
}

left()      # left PID: names of the job that it launched
{
    find /dev/shm -maxdepth 1 -name "boxcar.*.spawn-$1-*"
}

again()     # again PATTERN PROGRAM FLAGS...: what it prints by that pattern is what it printed first
{
    pattern=$1 program=$2
    shift 2
    "$build/bin/$program" "$@" >"$dir/out" 2>&1 </dev/null &
    pid=$!
    wait "$pid" || fail "$program ended with status $?"
    test -z "$(left "$pid")" || fail "$program left $(left "$pid")"
    grep -hoE "$pattern" "$dir/out" "$dir/json" >"$dir/now" || fail "$program printed nothing of '$pattern'"
    test -e "$dir/first.$program" || cp "$dir/now" "$dir/first.$program"
    cmp -s "$dir/now" "$dir/first.$program" || fail "$program printed other figures than in the first round"
    : >"$dir/json"
}

hello()
{
    BX_JOB=soak-$$ BX_WORLD_SIZE=2 BX_RANK=1 "$build/bin/hello" >/dev/null 2>&1 </dev/null &
    BX_JOB=soak-$$ BX_WORLD_SIZE=2 BX_RANK=0 "$build/bin/hello" >"$dir/out" 2>&1 || fail 'hello failed'
    wait $! || fail 'hello failed'
}

all_again()
{
    : >"$dir/json"
    hello
    again 'call_p50_ns' bxbench pingpong --slices 2 --calls 1000
    again '^Episode.*' cartpole --world-size 3 --max-episodes 20 --log-interval 1
    again '^Episode.*' reinforce --min-world-size 3 --max-world-size 3 --max-episodes 5
    again 'loss.*' rnn --epochs 2
    again '"(checksum|losses|gradients)": .*' param_server --model resnet18 --image 32 --batch-size 4 --num-classes 5 \
        --trainers 3 --batch-update-size 3 --num-batches 2 --patience-ms 600000 --json "$dir/json"
    again '"first_loss.*' pipeline --batches 1 --batch-size 4 --image 32 --splits 2 --json "$dir/json"
}

measure()   # lines: round, who, what, how much
{
    for launcher in $kept; do
        for pid in $(ps --ppid "$launcher" -o pid=); do
            who="$round,$(cat "/proc/$pid/comm") (pid $pid)"
            echo "$who,KiB of anonymous memory,$(sed -n 's/^RssAnon:[^0-9]*\([0-9]*\).*/\1/p' "/proc/$pid/status")"
            echo "$who,descriptors,$(find "/proc/$pid/fd" -type l | wc -l)"
        done
        left "$launcher" | xargs -r du -k | awk -v who="$round,$(cat "/proc/$launcher/comm") (launcher $launcher)" \
            '{ sum += $1 } END { print who ",KiB in /dev/shm," sum + 0 }'
        "$build/bin/shmstat" show --prometheus | sed -n "s/^boxcar_arena_committed_bytes{job=\"spawn-$launcher-1\",\
worker=\"\([^\"]*\)\".*} \([0-9]*\)/$round,$(cat "/proc/$launcher/comm") (\1),bytes of arena,\2/p"
    done
    echo "$round,all jobs,files of sockets and locks,$(find "$dir/boxcar" | wc -l)"
}

compare()   # what grew, as sentences; status 1 if something did. `print`: a table
{
    awk -F, -v table="${1:-}" '
    BEGIN { slack["KiB of anonymous memory"] = 4096; slack["KiB in /dev/shm"] = 16384
            slack["bytes of arena"] = 16777216 }
    { key = $2 "," $3; rows[$1]++; last[key] = $4; round = $1 }
    $4 > most[key] { most[key] = $4 }
    $1 <= 3 && $4 > base[key] { base[key] = $4 }
    END {
        if (rows[round] != rows[1]) {
            printf "%d figures in round %d, %d in the first: a worker has gone\n", rows[round], round, rows[1]
            bad = 1
        }
        for (key in last) {
            split(key, part, ",")
            if (table)
                printf "%-34s %-28s %11d %11d %11d\n", part[1], part[2], base[key], last[key], most[key]
            if (last[key] <= base[key] * (part[2] == "descriptors" ? 1 : 1.25) + slack[part[2]])
                continue
            printf "%s has %d %s in round %d, and had at most %d in the first three\n", part[1], last[key], part[2],
                round, base[key]
            bad = 1
        }
        exit bad
    }' "$dir/figures"
}

keep "$build/bin/cartpole" --world-size 3 --gamma 0 --max-episodes 1000000 --log-interval 100000
keep "$build/bin/reinforce" --min-world-size 3 --max-world-size 3 --max-episodes 1000000 --quiet
keep "$build/bin/rnn" --nhid 256 --ninp 64 --epochs 1000000
keep "$build/bin/param_server" --model resnet18 --image 32 --batch-size 4 --num-classes 5 --trainers 2 \
    --batch-update-size 2 --num-batches 100000 --patience-ms 4000000
keep "$build/bin/pipeline" --batch-size 4 --image 32 --splits 2 --batches 100000

while [ $(($(date +%s) - began)) -lt "$seconds" ]; do
    round=$((round + 1))
    for pid in $kept; do
        kill -CONT "-$pid" || fail 'a job that was to live has ended'
        sleep 4
        kill -STOP "-$pid"
    done
    all_again
    measure >>"$dir/figures"
    grew=$(compare) || fail "$grew"
done
for pid in $kept; do
    kill -CONT "-$pid"
    kill "$pid"
    wait "$pid"
    test -z "$(left "$pid")" || fail "a job left $(left "$pid")"
done
kept=
printf '%-34s %-28s %11s %11s %11s\n' who what 'at first' last most
compare print | sort
echo "$round rounds in $(($(date +%s) - began)) s: nothing grew, and all figures repeated"

#!/bin/sh
# SPDX-License-Identifier: MIT
#
# What the tests of jobs across hosts share; tests/e2e/net*.sh include it. On loopback a host is a name (BX_HOST); where
# network namespaces may be made, two of them with a veth pair are two hosts. BX_BUILD_DIR names the build.
#
# Lists of process ids and of flags are unquoted on purpose.
# shellcheck disable=SC2012,SC2016,SC2034,SC2086,SC2154,SC2317

build=$(cd "${BX_BUILD_DIR:-build}" && pwd)
source=$(cd "$(dirname "$0")/../.." && pwd)
if [ ! -e "$build/lib/libboxcar_net.so.0" ]; then
    echo 'skip jobs across hosts: libboxcar_net.so.0 is not built (libucx-dev and libssl-dev)'
    exit 0
fi

dir=$(mktemp -d)
pids=           # of the workers of the job
others=         # of what else runs
first=bx$$a     # namespaces, and the ends of the pair in them
second=bx$$b
where=loopback  # or namespaces
hosts=2
count=0         # of jobs
limit_s=30      # of a job that should take seconds

leave()
{
    end_own $pids $others
    ip netns del $first 2>/dev/null
    ip netns del $second 2>/dev/null
    find /dev/shm -name "boxcar.*.net$$-*" -delete      # of hosts all of whose workers died
    rm -rf "$dir"
}
trap leave EXIT
trap 'exit 130' INT TERM

# shellcheck source=tests/checks.sh
. "$source/tests/checks.sh"

unset BX_NAME BX_SECRET_FILE BX_LOG UCX_TLS
export XDG_RUNTIME_DIR=$dir BX_TEST_DIR=$dir BX_SECRET=0123456789abcdef

evidence()  # of a check that failed
{
    for file in "$dir"/out.*; do
        tail -n 12 "$file" | sed "s/^/  ${file##*/}: /"
    done
}

# ---- Jobs --------------------------------------------------------------------------------------------

new_job()   # new_job WORLD_SIZE
{
    count=$((count + 1))
    port=$((10000 + count))
    address=127.$((1 + $$ / 65536 % 64)).$(($$ / 256 % 256)).$(($$ % 256))      # loopback's, and no other test's
    test $where = loopback || address=10.77.0.1
    export BX_JOB=net$$-$count BX_WORLD_SIZE=$1 BX_ROOT=$address:$port
    pids=
    rm -f "$dir"/out.* "$dir"/end.*
}

host_of()   # host_of RANK: its BX_HOST
{
    case $where.$(($1 % 2)) in
    loopback.*) echo h$(($1 % hosts)) ;;
    *.0) echo $first ;;
    *) echo $second ;;
    esac
}

begin_at()  # begin_at RANK OUT PROGRAM FLAGS...: in the background; $dir/out.OUT, $pid_OUT
{
    rank=$1
    out=$2
    host=$(host_of $rank)
    shift 2
    case $where.$rank in
    loopback.*) set -- env UCX_NET_DEVICES=lo "$@" ;;
    *) set -- ip netns exec $host env UCX_NET_DEVICES=$host "$@" ;;
    esac
    # The first that is exec'ed is the worker in the end, so its pid is this one.
    BX_RANK=$rank BX_HOST=$host FAKE_CUDA_MACHINE=$dir/machine.$host exec_in_background "$@" >"$dir/out.$out" 2>&1 \
        </dev/null 9>&- &
    eval "pid_$out=\$!"
    pids="$pids $!"
}

exec_in_background()
{
    exec "$@"
}

begin_rank()    # begin_rank RANK PROGRAM FLAGS...
{
    rank=$1
    shift
    begin_at $rank $rank "$@"
}

has_ended() # has_ended PID...: a zombie has
{
    for pid; do
        case $(sed -n 's/^State:[[:space:]]*//p' "/proc/$pid/status" 2>/dev/null) in
        '' | Z*) ;;
        *) return 1 ;;
        esac
    done
}

soon()      # soon COMMAND...: within $limit_s
{
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        test $tries -lt $((20 * limit_s)) || return 1
        sleep 0.05
    done
}

finish()    # waits for all; sets $statuses in the order of their starts, and $left
{
    soon has_ended $pids || end_own $pids
    statuses=
    for pid in $pids; do
        wait $pid 2>/dev/null
        statuses="$statuses $?"
    done
    statuses=${statuses# }
    pids=
    left=$(find /dev/shm "$dir/boxcar" -name "*$BX_JOB*" 2>/dev/null)
}

begin_all() # begin_all WORLD_SIZE PROGRAM FLAGS...
{
    new_job $1
    shift
    for rank in $(seq 0 $((BX_WORLD_SIZE - 1))); do
        begin_rank $rank "$@"
    done
}

run_job()   # run_job WORLD_SIZE PROGRAM FLAGS...
{
    begin_all "$@"
    finish
}

all_done()  # all have status 0, and nothing is left
{
    if [ -n "$(echo $statuses | tr -d ' 0')$left" ]; then
        echo "  statuses: $statuses; left: $left"
        return 1
    fi
}

prints()    # prints OUT PATTERN
{
    grep -qsE "$2" "$dir/out.$1"
}

ready()     # ready OUT LINE
{
    soon prints $1 "^$2"
}

all_ready() # all_ready LINE: of each rank
{
    for rank in $(seq 0 $((BX_WORLD_SIZE - 1))); do
        ready $rank $1 || return 1
    done
}

# ---- Two network namespaces ---------------------------------------------------------------------------------

runs()      # runs NAMESPACE: its end of the pair has a carrier
{
    ip -n $1 link show $1 2>/dev/null | grep -q 'state UP'
}

make_namespaces()
{
    ip netns add $first && ip netns add $second &&
        ip link add $first netns $first type veth peer name $second netns $second &&
        ip -n $first addr add 10.77.0.1/24 dev $first && ip -n $second addr add 10.77.0.2/24 dev $second &&
        ip -n $first link set lo up && ip -n $second link set lo up &&
        ip -n $first link set $first up && ip -n $second link set $second up && soon runs $first && soon runs $second
}

# The link of that end goes down, which its kernel sees; or, silent, what it sends arrives nowhere.
cut_off()   # cut_off END [silent]
{
    if [ $# -eq 2 ]; then
        ip -n $1 neigh replace $(other_of $1) lladdr 02:00:00:00:00:01 nud permanent dev $1
    else
        ip -n $1 link set $1 down
    fi
}

is_down()   # before and behind: both times stand in $dir/down
{
    { test ! -e "$dir/down" || cat "$dir/down"; date +%s%N; } >"$dir/down.new"
    mv "$dir/down.new" "$dir/down"
}

other_of()
{
    test $1 = $first && echo 10.77.0.2 || echo 10.77.0.1
}

# A job of 2 hosts with 2 workers each.
#     down      the link goes down; ip may wait for the kernel's lock
#     headless  rank 0 dies, and then the end is silent
#     beheaded  rank 0 dies at the same time, before or behind it; the end is silent or its link goes down
#     stopped   worker 3 is stopped meanwhile, and the end is silent
#     healed    the end is silent, and heard again when all workers of the other host are lost
part_once() # part_once END MS [HOW]
{
    how=${3:-down}
    silent=silent
    mode=$how
    dead=0
    test $how != down -a $how != stopped || mode=part
    test $how != headless -a $how != beheaded || dead=137
    rm -f "$dir/down"
    begin_all 4 "$net_end" $mode "$dir/down" $2
    test $how != down -a $how$((count / 2 % 2)) != beheaded0 || silent=
    all_ready ready || return 1
    sleep 0.$((count % 3 + 1))
    test $how != stopped || kill -STOP $pid_3
    is_down                             # ip may take seconds while others make namespaces
    test $how$((count % 2)) != beheaded0 || kill -KILL $pid_0
    cut_off $1 $silent
    test $how != beheaded || kill -KILL $pid_0 2>/dev/null
    is_down
    test $how != stopped || { sleep 3; kill -CONT $pid_3; }
    if [ $how = healed ]; then
        all_ready lost
        ip -n $1 neigh del $(other_of $1) dev $1
        rm "$dir/down"
    fi
    finish
    test -z "$silent" || ip -n $1 neigh del $(other_of $1) dev $1 2>"$dir/err"
    ip -n $1 link set $1 up
    soon runs $first && soon runs $second
    test "$statuses $left" = "$dead 0 0 0 "
}

have_namespaces()       # false, after a sentence, if there are none
{
    if ! command -v ip >"$dir/err"; then
        echo 'skip jobs across network namespaces: there is no ip (iproute2)'
        return 1
    fi
    limit_s=10
    if ! make_namespaces 2>"$dir/err"; then
        echo "skip jobs across network namespaces: none can be made: $(head -n 1 "$dir/err")"
        return 1
    fi
    limit_s=30
    where=namespaces
}

# ---- Demos ---------------------------------------------------------------------------------------------

losses()    # losses FILE: of the JSON; the lists of those ranks that do not train are empty
{
    grep -oE '"(epoch_)?losses": \[[^]]*\]|"loss": [0-9.e-]+' "$1"
}

check_demo()    # check_demo WORLD_SIZE NAME FLAGS...
{
    size=$1
    demo=$2
    shift 2
    rm -f "$dir"/*.json
    (
        unset BX_ROOT BX_JOB BX_WORLD_SIZE
        "$build/bin/$demo" "$@" --json "$dir/alone.json" >"$dir/out.alone" 2>&1 </dev/null
    )
    new_job $size
    for rank in $(seq 0 $((size - 1))); do
        begin_rank $rank "$build/bin/$demo" "$@" --json "$dir/$rank.json"
    done
    finish
    demo="$demo$(echo " $*" | grep -o ' --device cuda')"
    check "$where: $demo on 2 hosts" all_done
    losses "$dir/alone.json" >"$dir/alone"
    losses "$(ls -S "$dir"/[0-9].json | head -n 1)" >"$dir/apart"
    check "$where: $demo has the losses that it has on one host" eval \
        'test -s "$dir/alone" && cmp -s "$dir/alone" "$dir/apart"'
}

net=$build/tests/prog_net
net_meet=$build/tests/prog_net_meet
net_bad=$build/tests/prog_net_bad
net_end=$build/tests/prog_net_end
net_full=$build/tests/prog_net_full
net_mix=$build/tests/prog_net_mix
net_gpu=$build/tests/prog_net_gpu
fake=$build/tests/libfakecuda.so
knock=$source/tests/prog/knock.py

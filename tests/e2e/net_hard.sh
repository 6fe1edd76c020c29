#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Jobs across hosts where it is hard: partitions again and again (BX_NET_ROUNDS, 20), workers that send nonsense
# (BX_NET_SEEDS), delay and loss, demos, 32 workers on 4 network namespaces, which are ports of a bridge in one more.
#
# shellcheck disable=SC2016,SC2086,SC2154,SC2317
set -u

# shellcheck source=tests/net_jobs.sh
. "$(dirname "$0")/../net_jobs.sh"

rounds=${BX_NET_ROUNDS:-20}
have_namespaces || exit "$failed"
export UCX_TLS=tcp

# ---- Partitions ------------------------------------------------------------------------------------------

# TCP's timer follows the round trips that it saw, also those of a machine that stood still: hence seconds.
part_often()    # part_often MS [HOW]
{
    round=0
    while [ $round -lt $rounds ]; do
        end=$first
        test $((round % 2)) = 0 || end=$second
        part_once $end $1 ${2:-} || { echo "  in round $round"; return 1; }
        round=$((round + 1))
    done
}

export BX_NET_TIMEOUT_MS=500
limit_s=15
check "the link goes down, $rounds times" part_often 5000
check "rank 0 dies at the same time, $rounds times" part_often 6000 beheaded
unset BX_NET_TIMEOUT_MS
limit_s=60

# ---- Saboteurs ------------------------------------------------------------------------------------------

# Of 16 workers 7 send nonsense; the two hosts have 8 each.
survive()   # survive SEED
{
    run_job 16 "$net_bad" $1
    test -z "$(echo $statuses | tr -d ' 0')" && test -z "$(echo "$left" | grep -v "\.$second\.")"
}
for seed in ${BX_NET_SEEDS:-1 2 3}; do
    check "workers that send nonsense are cut off, and the others go on: seed $seed" survive $seed
done

# ---- All sorts of calls at the same time ------------------------------------------------------------------

for seed in ${BX_NET_SEEDS:-1 2 3}; do
    run_job 4 "$net_mix" 3 $seed
    check "all sorts of calls at the same time: seed $seed" all_done
    export BX_NET_TIMEOUT_MS=500
    run_job 6 "$net_mix" 3 $seed 1,2
    check "the same, and two of six workers die" test -z "$(echo "$statuses" | tr -d ' 0' | sed 's/^\(137\)\{0,2\}$//')"
    unset BX_NET_TIMEOUT_MS
done

# ---- Delay and loss ----------------------------------------------------------------------------------------

if tc -n $first qdisc add dev $first root netem delay 20ms 5ms loss 1% 2>"$dir/err"; then
    run_job 4 "$net_meet" meet
    check 'delay of 20 ms and loss of 1 %' all_done
    tc -n $first qdisc del dev $first root
else
    echo "skip delay and loss: tc has no netem: $(head -n 1 "$dir/err")"
fi

# ---- Demos, two workers on each of two hosts ------------------------------------------------------------------

check_demo 4 param_server --trainers 3 --batch-update-size 3 --num-batches 2 --model resnet18 --image 32 \
    --batch-size 4 --num-classes 5
run_job 4 "$build/bin/cartpole" --world-size 4 --max-episodes 3
check 'cartpole' all_done
run_job 4 "$build/bin/reinforce" --min-world-size 4 --max-world-size 4 --max-episodes 2 --mode batch --quiet
check 'reinforce' all_done
run_job 3 "$build/bin/pipeline" --splits 2 --batches 1 --batch-size 4 --image 32
check 'pipeline' all_done

# ---- 32 workers on 4 hosts -------------------------------------------------------------------------------------

bridge=bx$$n
more=

leave_all()
{
    end_own $pids $others
    for name in $bridge $more; do
        ip netns del $name 2>/dev/null
    done
    leave
}
trap leave_all EXIT

make_bridge()
{
    ip netns add $bridge && ip -n $bridge link add hub type bridge && ip -n $bridge link set hub up || return 1
    for i in 0 1 2 3; do
        name=bx$$h$i
        more="$more $name"
        ip netns add $name && ip link add $name netns $name type veth peer name p$i netns $bridge &&
            ip -n $bridge link set p$i master hub && ip -n $bridge link set p$i up &&
            ip -n $name addr add 10.77.0.$((i + 1))/24 dev $name && ip -n $name link set lo up &&
            ip -n $name link set $name up || return 1
    done
    for name in $more; do
        soon runs $name || return 1
    done
}

host_of()
{
    echo bx$$h$(($1 % 4))
}

if make_bridge 2>"$dir/err"; then
    limit_s=60
    run_job 32 "$net_meet" meet
    check '32 workers on 4 hosts' all_done
    export BX_NET_TIMEOUT_MS=500
    run_job 16 "$net_end" die 0,4,8,12 3000
    check 'all four workers of a host of four die, rank 0 with them' test \
        "$(echo $statuses | tr ' ' '\n' | sort | uniq -c | tr -s ' \n' ' ')" = ' 12 0 4 137 '
    unset BX_NET_TIMEOUT_MS
else
    echo "skip 32 workers on 4 hosts: no bridge can be made: $(head -n 1 "$dir/err")"
fi
exit "$failed"

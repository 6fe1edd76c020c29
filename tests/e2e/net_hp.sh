#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Jobs across hosts where it is hard: 32 workers on 4 network namespaces, partitions again and again (BX_NET_ROUNDS, 20),
# delay and loss. All hosts are ports of one bridge in a namespace of its own.
#
# shellcheck disable=SC2016,SC2086,SC2154,SC2317
set -u

# shellcheck source=tests/net_jobs.sh
. "$(dirname "$0")/../net_jobs.sh"

rounds=${BX_NET_ROUNDS:-20}
have_namespaces || exit "$failed"
export UCX_TLS=tcp

# ---- Partitions ------------------------------------------------------------------------------------------

part_once() # part_once END: that end's link goes down in a job of 2 hosts with 2 workers each
{
    new_job 4
    rm -f "$dir/down"
    for rank in 0 1 2 3; do
        begin_rank $rank "$net_end" part "$dir/down" 2500
    done
    for rank in 0 1 2 3; do
        ready $rank ready || return 1
    done
    sleep 0.$((count % 3 + 1))
    date +%s%N >"$dir/down.new"
    mv "$dir/down.new" "$dir/down"
    ip -n $1 link set $1 down
    finish
    ip -n $1 link set $1 up
    soon runs $first && soon runs $second
    all_done
}


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

exit $failed

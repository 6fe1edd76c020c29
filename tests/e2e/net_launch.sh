#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Jobs across hosts that a launcher starts: mpirun of Open MPI, on loopback and, by its agent, in network namespaces;
# and the environment of Slurm's srun, which is faked: there is no Slurm here.
#
# shellcheck disable=SC2016,SC2086,SC2154,SC2317
set -u

# shellcheck source=tests/net_jobs.sh
. "$(dirname "$0")/../net_jobs.sh"

# ---- srun, faked ---------------------------------------------------------------------------------------

begin_task()    # begin_task RANK SIZE PROGRAM...: with what srun sets, and not BX_RANK and BX_WORLD_SIZE
{
    task=$1
    tasks=$2
    shift 2
    begin_rank $task env -u BX_RANK -u BX_WORLD_SIZE -u BX_JOB SLURM_PROCID=$task SLURM_NTASKS=$tasks "$@"
}

new_job 2
begin_task 0 2 "$net_meet" meet
begin_task 1 2 "$net_meet" meet
finish
check "a job with srun's environment, which is faked" all_done
new_job 2
begin_task 0 2 "$build/bin/rnn" --epochs 1
begin_task 1 2 "$build/bin/rnn" --epochs 1
finish
check 'a demo' all_done

# ---- mpirun ---------------------------------------------------------------------------------------------

if ! command -v mpirun >"$dir/err"; then
    echo 'skip jobs that mpirun starts: there is no mpirun (openmpi-bin)'
    exit "$failed"
fi
if ! PATH=$PATH:/sbin ldconfig -p | grep -q 'libpmix\.so\.2 '; then
    echo 'skip jobs that mpirun starts: there is no libpmix.so.2'
    exit "$failed"
fi
unset BX_JOB BX_ROOT BX_WORLD_SIZE BX_SECRET
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
BX_JOB=pmix-            # of what may be left

started()   # started COMMAND...: in $dir/out.0; it ends with 0, and nothing is left
{
    "$@" >"$dir/out.0" 2>&1 </dev/null
    statuses=$?
    left=$(find /dev/shm "$dir/boxcar" -name "*$BX_JOB*" -newer "$dir/mark" 2>/dev/null)
    all_done
}

ended()     # ended COUNT: so many workers of prog_net did
{
    test "$(grep -c '^done$' "$dir/out.0")" -eq $1
}

touch "$dir/mark"
at_hosts='BX_HOST=h$((OMPI_COMM_WORLD_RANK % 2)) exec "$@"'
check 'mpirun, two hosts by name, without BX_ROOT and BX_SECRET' \
    started env UCX_NET_DEVICES=lo mpirun -n 4 sh -c "$at_hosts" sh "$net" pairs
check 'all four workers were one job' ended 4
check 'mpirun, addresses of all interfaces' started mpirun -n 3 sh -c "$at_hosts" sh "$net_meet" meet
check 'all three workers were one job' ended 3
check 'mpirun on one host needs no network, no plug-in and no secret' \
    started env UCX_TLS=none mpirun -n 2 "$build/bin/rnn" --epochs 1
check 'another number of workers than the program wants' eval \
    '! started mpirun -n 3 "$build/bin/rnn" && prints 0 "wants 2 workers, and the launcher has started 3"'
check "BX_ROOT='' lets each process start its own" started mpirun -x BX_ROOT= -n 2 "$build/bin/rnn" --epochs 1
check 'rank 0 that says nothing' eval '! started mpirun -n 2 sh -c \
    "test \$OMPI_COMM_WORLD_RANK != 0 || exec sleep 5; BX_HOST=b exec \"\$@\"" sh "$net_meet" meet 1000 &&
     prints 0 "cannot start: BX_E_RANK_MISSING: rank 0 has not told through PMIx"'

# Rank 1 does not come, and rank 0 listens meanwhile: for it, and as UCX does.
env UCX_NET_DEVICES=lo mpirun -n 2 sh -c 'test $OMPI_COMM_WORLD_RANK = 0 || exec sleep 3; BX_HOST=b exec "$@"' sh \
    "$net_meet" meet 1000 >"$dir/out.0" 2>&1 </dev/null &
listens_twice()
{
    ss -Hltnp | awk '/"prog_net_meet"/ { print $4 }' >"$dir/listeners"
    test "$(grep -c '^127\.0\.0\.1:' "$dir/listeners")" = 2
}
check 'rank 0 listens at the address of the interface that is named' soon listens_twice
check 'and at no other' test "$(wc -l <"$dir/listeners")" = 2
wait

# ---- mpirun in network namespaces -------------------------------------------------------------------------

have_namespaces || exit "$failed"

# Of the host: its name, for mpirun's daemons; its interface; and BX_HOST, since the namespaces share /dev/shm.
cat >"$dir/agent" <<'END'
#!/bin/sh
host=$1
shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host; BX_HOST=$host UCX_NET_DEVICES=$host exec sh -c '$*'"
END
chmod 755 "$dir/agent"

over()      # over COUNT PROGRAM...: mpirun starts so many workers on each of the two
{
    each=$1
    shift
    "$dir/agent" $first "exec mpirun --mca plm_rsh_agent $dir/agent -n $((2 * each)) \
        --host $first:$each,$second:$each $*"
}

touch "$dir/mark"
check 'mpirun in two network namespaces, by its agent' started over 2 "$net" pairs
check 'all four workers were one job' ended 4
check 'ten jobs one after the other' started over 2 "$net_meet" jobs 10
check 'all four workers were in each' ended 40
check 'mpirun -n 4 --host a:2,b:2 param_server' started over 2 "$build/bin/param_server" --trainers 3 \
    --batch-update-size 3 --num-batches 3 --model resnet18 --image 32 --batch-size 4 --num-classes 5
check 'the server alone reports' test "$(grep -c '^checksum' "$dir/out.0")" -eq 1
check 'mpirun -n 3 --host a:2,b:2 reinforce' started over 2 -n 3 "$build/bin/reinforce" --min-world-size 3 \
    --max-world-size 3 --max-episodes 2
check 'the agent alone reports' test "$(grep -c '^3, ' "$dir/out.0") $(grep -c '^ *world size' "$dir/out.0")" = '1 1'

exit "$failed"

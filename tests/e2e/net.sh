#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Jobs across hosts: what workers do with one another, who dies, who may join, demos; tests/net_jobs.sh says where.
#
# shellcheck disable=SC2012,SC2016,SC2086,SC2154,SC2317
set -u

# shellcheck source=tests/net_jobs.sh
. "$(dirname "$0")/../net_jobs.sh"

# ---- What workers do with one another ------------------------------------------------------------------

latest_news()   # of a worker that was lost: a line
{
    cat "$dir"/out.* | grep -h '^news' | sort -k 5 -n | tail -n 1
}

check_death()   # check_death RANKS MS STATUSES NAME [gpu]: what is left of a host whose workers all died is not asked
{
    run_job 4 "$net_end" ${5:-die} $1 $2
    left=$(for host in $(echo $1 | tr ',' '\n' | sed 's/[02]/0/; s/[13]/1/' | sort | uniq -d); do
        echo "$left" | grep -v "$BX_JOB\.$(host_of $host)"
    done; echo $1 | grep -q , || echo "$left")
    check "$4" test "$statuses $left" = "$3 "
    echo "# $where: $(latest_news)"
}

known_soon()    # a death, everywhere within 50 ms: the best of some, since a machine may be busy
{
    for try in 1 2 3 4 5; do
        run_job 4 "$net_end" die 3 500
        latest_news | awk '{ exit !(NF > 4 && $5 <= 50) }' && return
    done
    return 1
}

check_workers() # the tests that need no namespace; $where says whether there is one
{
    run_job 4 "$net" pairs
    check "$where: all pairs of 2 hosts with 2 workers each" all_done
    check_death 1 500 '0 137 0 0' "$where: a worker dies"
    check_death 0 500 '137 0 0 0' "$where: rank 0 dies"
    check "$where: a death is known everywhere within 50 ms" known_soon
    BX_NET_TIMEOUT_MS=500
    export BX_NET_TIMEOUT_MS
    check_death 1,3 2000 '0 137 0 137' "$where: all workers of a host die"
    check_death 0,2 2000 '137 0 137 0' "$where: all workers of rank 0's host die"
    unset BX_NET_TIMEOUT_MS
}

check_workers
BX_NET_TIMEOUT_MS=500
export BX_NET_TIMEOUT_MS
run_job 4 "$net_end" die 1,3 2000
was=$left
unset BX_NET_TIMEOUT_MS
for rank in 0 1 2 3; do
    begin_rank $rank "$net_meet" meet
done
finish
check 'a host all of whose workers died keeps what they had' test -n "$was"
check 'until the next job of that name there ends' all_done
BX_NET_TIMEOUT_MS=500
export BX_NET_TIMEOUT_MS
check_death 1,3 2000 '0 137 0 137' 'all workers of a host die, and their children go on' fork
unset BX_NET_TIMEOUT_MS
hosts=4
run_job 8 "$net" pairs
check "loopback: all pairs of 4 hosts with 2 workers each" all_done
run_job 132 "$net_meet" meet
check "loopback: 132 workers on 4 hosts" all_done
hosts=1
run_job 129 "$net_meet" meet
check 'loopback: 129 workers on one host are refused' prints 0 \
    'cannot start: BX_E_WORLD_SIZE: a host has at most 128 workers of a job, and 129 of the 129'
hosts=16
needed=$(BX_JOB=few BX_RANK=0 BX_WORLD_SIZE=16 BX_ROOT=127.0.0.1:1 prlimit --nofile=30:30 "$net_meet" meet |
    sed 's/.* needs \([0-9]*\) open files.*/\1/')
run_job 16 prlimit --nofile=$needed:$needed "$net_meet" meet
check "loopback: 16 hosts, and as many descriptors as a job asks for" all_done
hosts=2
run_job 2 "$net_meet" again
check "loopback: places of messages are used again when they have been read" all_done
run_job 4 "$net_meet" first
check "loopback: what comes from one to which nothing was sent: calls, and a late function" all_done
run_job 4 "$net_meet" two
check "loopback: each process is in two jobs at once" all_done
run_job 2 "$net_full" many
check 'messages of many tensors, also behind a large one' all_done
run_job 2 "$net_full" lent
check 'two workers that have as much on loan to each other as they may' all_done
run_job 2 "$net_full" bound
check 'a worker that may lend next to nothing is sent tensors' all_done
run_job 2 "$net_full" room
check 'what an arena has no room for is an error of its call' all_done
begin_all 2 "$net_full" stuck
soon has_ended $pid_0
kill -KILL $pid_1
finish
check 'what is under way to a worker that is stopped does not stay when the job is destroyed' test "$statuses" = '0 137'
find /dev/shm -name "*$BX_JOB*" -delete
run_job 3 "$net_full" gone
check 'a tensor is passed on to another host though its owner has died' test "$statuses$left" = '0 0 137'
run_job 4 "$net_bad" lie
check 'two workers that a liar has cut off from each other hold nobody up' all_done
for how in twice short empty; do
    run_job 2 "$net_bad" parts $how
    check "a worker whose tensors do not come as they should is cut off: $how" all_done
done
export BX_NET_TIMEOUT_MS=500
run_job 4 "$net_full" halved
check 'a worker dies in the midst of a large tensor: its receiver has its memory back' test "$statuses$left" = \
    '0 137 0 0'
run_job 4 "$net_end" stop 1
check 'a worker that is stopped for 2 s is not dead' all_done
run_job 4 "$net_end" stop 0
check 'nor is rank 0' all_done
unset BX_NET_TIMEOUT_MS
answers_count() # several times: which of the two is read first is chance
{
    for try in 1 2 3 4; do
        run_job 4 "$net_end" last 1
        test "$statuses $left" = '0 137 0 0 ' || return 1
    done
}
check 'answers of a worker that died count if they arrived before the news of it are read' answers_count

# ---- Clocks: those of a host's workers agree, those of two hosts need not ----------------------------------

if unshare -T --fork --monotonic 1000 --boottime 1000 true 2>"$dir/err"; then
    # No clock may be set to before the machine's start.
    for seconds in 1000000 -$(($(cut -d. -f1 /proc/uptime) / 2)); do
        new_job 4
        for rank in 0 2; do
            begin_rank $rank "$net" pairs
        done
        for rank in 1 3; do
            begin_rank $rank unshare -T --fork --kill-child --monotonic $seconds --boottime $seconds "$net" pairs
        done
        finish
        check "all pairs of 2 hosts whose clocks differ by $seconds s" all_done
    done
else
    echo "skip clocks that differ: $(head -n 1 "$dir/err")"
fi

run_job 2 "$net_bad" clock
check 'the clocks of two hosts go apart while a job runs' all_done

# ---- What shmstat shows ----------------------------------------------------------------------------------

ends()      # ends STATUS ARGUMENTS...: shmstat ends with it
{
    status=$1
    shift
    "$build/bin/shmstat" "$@" >"$dir/out" 2>"$dir/err"
    test $? -eq $status
}

value()     # value KEY: of the JSON that was printed last, the first one
{
    sed -n "s/^ *\"$1\": \(.*[^,]\),*\$/\1/p" "$dir/out" | head -n 1
}

rm -f "$dir/go"
export UCX_TLS=sm,posix,cma,tcp         # and the transport is tcp
begin_all 4 "$net_end" hold "$dir/go"
unset UCX_TLS
ready 1 ready
there=$BX_JOB.h1
check 'shmstat shows the part of a job that is on its host' ends 0 show $there
check 'and where the others are' says '^  elsewhere host h0: worker0, worker2 - their segments cannot be read here'
check 'and what goes to them' says '^    0 worker0 +h0 +tcp/lo +[0-9.]+ .*iB? +[0-9.]+ .* [0-9.]+ [mun]?s$'
check 'within 80 columns' narrow
ends 0 show $there --json
check 'its page has the keys' documented
check 'of each remote worker' test "$(grep -c '"round_trip_seconds": 0\.[0-9]*[1-9]' "$dir/out")" -eq 4
check 'with the bytes' test "$(value remotes)$(grep -A 6 '"host": "h0"' "$dir/out" | grep -c '"bytes_[a-z]*": [1-9]')" \
    = '[8'
check 'two of its workers are elsewhere' test "$(value workers_elsewhere)" = 2
ends 0 show $there --prometheus
check 'metrics too' says \
    "^boxcar_remote_bytes_sent_total.job=\"$there\",worker=\"worker1\",rank=\"1\",peer=\"0\". [1-9]"
check 'a call to another host is listed' eval 'ends 0 calls $there && says "worker1 > worker0 +hold .* remote"'
check 'why follows it to the door of the host' eval \
    'ends 0 why worker1 $there && says "^worker0 is on host h0: run shmstat why worker0 there\.\$"'
check 'and says so of a worker that is there' eval \
    'ends 0 why worker2 $there && says "^worker2 is on host h0: run shmstat why worker2 there\.\$"'
check 'check finds nothing wrong' eval 'ends 0 check $there && says "nothing wrong\$"'
check 'ls names the other host' eval 'ends 0 ls $there && says "elsewhere host h0:" && narrow'
touch "$dir/go"
finish
check 'the job ends' all_done

# ---- Demos ---------------------------------------------------------------------------------------------

trains='--trainers 3 --batch-update-size 3 --num-batches 2 --model resnet18 --image 32 --batch-size 2 --num-classes 5'
check_demo 4 param_server $trains

# ---- GPUs: a machine of the tests' driver is a host's ---------------------------------------------------------

check_gpus()
{
    export BX_CUDA_DRIVER="$fake" BX_NVRTC="$fake" BX_CUBLAS="$fake" BX_CUDNN="$fake" FAKE_CUDA_MACHINE="$dir/machine"
    run_job 4 "$net_gpu"
    check "$where: tensors on GPUs between all pairs of 2 hosts" all_done
    run_job 4 "$net_gpu" 3
    check "$where: the same beside a worker without a GPU" all_done
    export BX_NET_TIMEOUT_MS=500
    check_death 1 500 '0 137 0 0' "$where: a worker dies while tensors on GPUs are under way" gpu
    check_death 0,2 2000 '137 0 137 0' "$where: all of a host die so" gpu
    unset BX_NET_TIMEOUT_MS
    check_demo 4 param_server --device cuda $trains
    unset BX_CUDA_DRIVER BX_NVRTC BX_CUBLAS BX_CUDNN FAKE_CUDA_MACHINE
}

if [ -e "$fake" ]; then
    check_gpus
else
    echo 'skip GPUs of several hosts: this build has no GPU code'
fi

# ---- Who may join ----------------------------------------------------------------------------------------

new_job 2
begin_at 1 missing env -u BX_SECRET "$net_meet" meet
begin_at 1 short env BX_SECRET=1234567 "$net_meet" meet
printf '%s\n' $BX_SECRET >"$dir/secret"
chmod 644 "$dir/secret"
begin_at 1 open env -u BX_SECRET BX_SECRET_FILE="$dir/secret" "$net_meet" meet
finish
check 'a missing secret is refused' prints missing 'cannot start: .*needs a secret: BX_SECRET'
check 'a short secret is refused' prints short 'cannot start: .*has 8 characters at least'
check 'a secret that others may read is refused' prints open 'cannot start: -EACCES: .*chmod 600'
check 'each with an error' test "$statuses" = '3 3 3'

new_job 2
begin_at 0 0 env BX_LOG=warn "$net_meet" meet
begin_at 1 wrong env BX_SECRET=wrong-wrong "$net_meet" meet
soon has_ended $pid_wrong
chmod 600 "$dir/secret"
begin_at 1 1 env -u BX_SECRET BX_SECRET_FILE="$dir/secret" "$net_meet" meet
finish
check 'a wrong secret is refused' prints wrong 'cannot start: -EACCES: .*the secrets differ'
check 'and the job starts when the right one comes, from a file' test "$statuses$left" = '0 3 0'
check 'rank 0 logs it, with its address' prints 0 'from 127\.0\.0\.1:[0-9]+ was refused: .*secret'

hold_open() # hold_open OUT WHAT COUNT: $knock in the background, until its input, $dir/hold, is closed
{
    mkfifo "$dir/hold"
    "$knock" "$2" $address $port $3 <"$dir/hold" >"$dir/out.$1" 2>&1 &
    others="$others $!"
    exec 9>"$dir/hold"
    rm "$dir/hold"
    eval "pid_$1=\$!"
}

ticks()     # ticks PID: of 10 ms of a CPU that it has had
{
    awk '{ print $14 + $15 }' /proc/$1/stat
}

let_go()    # let_go OUT
{
    exec 9>&-
    eval "end=\$pid_$1"
    soon has_ended $end || end_own $end
    wait $end 2>/dev/null
}

sleeps_without() # sleeps_without PID NAME: that process has no descriptor for one that knocks
{
    prlimit --pid $1 --nofile=3:
    hold_open knock silent 1
    ready knock ready
    before=$(ticks $1)
    sleep 1
    check "$2 without descriptors for one that knocks sleeps" test $(($(ticks $1) - before)) -lt 10
    prlimit --pid $1 --nofile=1024:
    let_go knock
}

for what in 'silent 300' 'noise 100' 'endless 300'; do
    new_job 3
    begin_rank 0 "$net_meet" meet
    hold_open knock $what
    ready knock ready
    begin_rank 1 "$net_meet" meet
    begin_rank 2 "$net_meet" meet
    finish
    let_go knock
    check "a job starts among connections: $what" all_done
done

new_job 3
needed=$(BX_JOB=few BX_RANK=0 prlimit --nofile=30:30 "$net_meet" meet | sed 's/.* needs \([0-9]*\) open files.*/\1/')
begin_rank 0 prlimit --nofile=$needed:$needed "$net_meet" meet
hold_open knock endless 300
ready knock ready
begin_rank 1 "$net_meet" meet
begin_rank 2 "$net_meet" meet
finish
let_go knock
check 'a job starts among connections, with as many descriptors as it asks for' all_done

new_job 2
begin_rank 0 "$net_meet" meet
hold_open listens silent 1
ready listens ready
let_go listens
sleeps_without $pid_0 'rank 0'
begin_rank 1 "$net_meet" meet
finish
check 'and the job starts' all_done

# Worker 1 listens for a link of the next hub, with room for 1024 that wait.
rm -f "$dir/go"
begin_all 2 "$net_end" hold "$dir/go"
ready 1 ready
address=127.0.0.1
port=$(ss -H -ltnp | awk -v worker="pid=$pid_1," 'index($0, worker) && $3 == 1024 { sub(".*:", "", $4); print $4 }')
for what in 'silent 300' 'noise 100' 'endless 300'; do
    hold_open knock $what
    ready knock ready
    test "$what" != 'endless 300' || sleep 1
    let_go knock
done
sleeps_without $pid_1 'a worker'
touch "$dir/go"
finish
check 'a job goes on among connections to a worker that listens' test -n "$port" -a "$statuses $left" = '0 0 '

begin_behind()      # begin_behind WORLD_SIZE HOW PROGRAM...: two workers, the second behind $knock; $dir/out.between
{
    new_job $1
    how=$2
    shift 2
    begin_rank 0 "$@"
    root=$BX_ROOT
    BX_ROOT=$address:$((port + 11000))
    hold_open between $how $((port + 11000))
    ready between ready
    begin_rank 1 "$@"
    BX_ROOT=$root
}

begin_behind 3 replay "$net_meet" meet
sleep 0.5
exec 9>&-
ready between '(refused|let in)'
begin_rank 2 "$net_meet" meet
finish
check 'what a worker sent to prove its secret proves nothing again' prints between '^refused'
soon has_ended $pid_between || end_own $pid_between
check 'and the job starts' all_done

begin_behind 2 between "$net_meet" meet
ready between dropped
finish
exec 9>&-
check 'a worker that rank 0 drops for a crowd comes again' all_done
soon has_ended $pid_between || end_own $pid_between

begin_behind 2 close "$net_meet" meet 4000
finish
check 'who hangs up when it has the proof does not know another secret' prints 1 \
    'BX_E_PEER_DEAD: rank 0 .* hung up when it was asked for its proof'
let_go between

# ---- What lies between a worker and rank 0 ------------------------------------------------------------------

begin_behind 2 delay "$net" pairs
finish
check 'a connection to rank 0 that is slow' all_done
let_go between
export BX_NET_TIMEOUT_MS=500
for how in cut garbage; do
    rm -f "$dir/down"
    begin_behind 2 $how "$net_end" part "$dir/down" 2000
    ready 0 ready && ready 1 ready
    sleep 0.3
    is_down
    exec 9>&-
    finish
    check "a connection to rank 0 that ends: $how" all_done
    soon has_ended $pid_between || end_own $pid_between
done
export BX_NET_TIMEOUT_MS=20000
rm -f "$dir/go"
begin_behind 2 half "$net_end" hold "$dir/go"
ready 0 ready && ready 1 ready
exec 9>&-
ready between sent
touch "$dir/go"
before=$(date +%s)
finish
check 'half a message on a connection to rank 0 holds nobody up' test $(($(date +%s) - before)) -le 10 -a \
    "$statuses $left" = '0 0 '
end_own $pid_between
unset BX_NET_TIMEOUT_MS

# ---- Who comes back ----------------------------------------------------------------------------------------

new_job 2
begin_at 0 0 env BX_REJOIN=1 "$net_meet" meet
finish
check 'a worker of several hosts may not come back, and is told so' prints 0 \
    'cannot start: -E(NOTSUP|OPNOTSUPP): options\.rejoin \(BX_REJOIN\) is not for jobs of several hosts'

# ---- Who is not expected -----------------------------------------------------------------------------------

new_job 2
begin_rank 0 "$net_meet" meet
begin_at 1 1 env BX_WORLD_SIZE=3 "$net_meet" meet
finish
check 'another world size is told on both sides' eval \
    "prints 0 'BX_E_WORLD_SIZE.*started for 3 workers' && prints 1 'BX_E_WORLD_SIZE.*started for 3 workers'"
check 'and leaves nothing' test "$statuses$left" = '3 3'

new_job 2
begin_rank 0 "$net_meet" meet
begin_at 1 other env BX_JOB=other "$net_meet" meet
soon has_ended $pid_other
begin_rank 1 "$net_meet" meet
finish
check 'a worker of another job is refused, and the job starts without it' eval \
    "prints other \"cannot start: -EINVAL: worker 'worker1' .*is of job 'other'.* is of job '$BX_JOB'\" &&
    test '$statuses$left' = '0 3 0'"

new_job 2
begin_at 0 0 env BX_NET_TIMEOUT_MS=5s "$net_meet" meet
begin_at 1 1 env BX_NET_TIMEOUT_MS=0 "$net_meet" meet
finish
check 'a timeout that is no number is refused' eval "prints 0 'BX_NET_TIMEOUT_MS=.5s. is not' && prints 1 'is not a'"

new_job 3
begin_rank 0 "$net_meet" meet
begin_rank 1 "$net_meet" meet
begin_at 1 again env BX_NAME=other "$net_meet" meet
finish
check 'a rank that comes twice is told to all' eval "prints 0 BX_E_RANK_TAKEN && prints 1 BX_E_RANK_TAKEN"
check 'the second one, too' prints again BX_E_RANK_TAKEN
check 'and leaves nothing' test "$statuses$left" = '3 3 3'

new_job 3
begin_rank 0 "$net_meet" meet
begin_at 1 1 env BX_NAME=same "$net_meet" meet
begin_at 2 2 env BX_NAME=same "$net_meet" meet
finish
check 'a name that comes twice is told to all' eval \
    "prints 0 'BX_E_NAME_TAKEN.*same' && prints 1 BX_E_NAME_TAKEN && prints 2 BX_E_NAME_TAKEN"
check 'and leaves nothing' test "$statuses$left" = '3 3 3'

new_job 2
before=$(date +%s)
begin_rank 1 "$net_meet" meet 700
finish
check 'rank 0 never comes' prints 1 "cannot start: BX_E_RANK_MISSING: rank 0 .*BX_ROOT=$BX_ROOT"
check 'that takes as long as it may' test $(($(date +%s) - before)) -le 4
new_job 3
begin_rank 0 "$net_meet" meet 700
begin_rank 2 "$net_meet" meet 20000
finish
check 'a worker never comes' eval "prints 0 'BX_E_RANK_MISSING.*rank 1 ' && prints 2 'BX_E_RANK_MISSING.*rank 1 '"
check 'and leaves nothing' test "$statuses$left" = '3 3'

new_job 3
begin_rank 0 "$net_meet" meet
begin_rank 1 "$net_meet" meet 700
finish
check 'rank 0 tells why a worker that has come gave up' prints 0 \
    "BX_E_RANK_MISSING: worker 'worker1' .* could not start: rank 0 .* did not answer in time before all workers"

# Worker 3 waits for worker 1, the first of its host, which fails behind the table.
touch "$dir/file"
new_job 4
before=$(date +%s)
for rank in 0 2 3; do
    begin_rank $rank "$net_meet" meet
done
begin_at 1 1 env XDG_RUNTIME_DIR="$dir/file" "$net_meet" meet
finish
check 'the first worker of a host fails: the others of that host hear it' prints 3 "cannot start: .*$dir/file"
check 'at once' test $(($(date +%s) - before)) -le 10
check 'and leave nothing' test "$statuses$left" = '3 3 3 3'

# ---- Two network namespaces ----------------------------------------------------------------------------------

have_namespaces || exit "$failed"
export UCX_TLS=tcp
check_workers
unset UCX_TLS
check_demo 2 rnn --epochs 2

# What goes to the other host goes through the pair of devices, whatever UCX may choose: the namespaces share all that
# UCX's other transports need.
carried()   # bytes, by both ends
{
    for end in $first $second; do
        ip netns exec $end cat /sys/class/net/$end/statistics/tx_bytes
    done | awk '{ n += $1 } END { printf "%.0f", n }'
}
for tls in all ^sysv sm,posix,cma,self,tcp; do
    before=$(carried)
    UCX_TLS=$tls run_job 4 "$net" pairs
    check "all pairs with UCX_TLS=$tls" all_done
    sent=$(cat "$dir"/out.* | awk '/^sent / { n += $2 } END { printf "%.0f", n }')
    check 'the network carries each byte' test "$sent" -gt 0 -a $(($(carried) - before)) -ge "$sent"
done

# A host that does not answer at all: nobody has its address, and no error comes back.
new_job 2
ip -n $second neigh add 10.77.0.9 lladdr 02:00:00:00:00:09 dev $second
BX_ROOT=10.77.0.9:$port
before=$(date +%s)
begin_rank 1 "$net_meet" meet 1000
limit_s=15
finish
limit_s=30
check "a host of rank 0's that is silent" prints 1 "cannot start: BX_E_RANK_MISSING: rank 0 .*BX_ROOT=$BX_ROOT"
check 'takes as long as it may' test $(($(date +%s) - before)) -le 4

# The only port to connect from becomes rank 0's, at which nobody listens: TCP connects a socket with itself.
new_job 2
BX_ROOT=10.77.0.2:$port
begin_rank 1 "$net_meet" meet 4000
sleep 2
ip netns exec $second sysctl -q -w net.ipv4.ip_local_port_range="$port $port"
finish
ip netns exec $second sysctl -q -w net.ipv4.ip_local_port_range='32768 60999'
check 'a connection of a worker to itself is none to rank 0' prints 1 'BX_E_RANK_MISSING: rank 0 .* does not listen at'

# Pings to a worker that is stopped fill no buffer of its kernel's, which here are small ones.
ip netns exec $second sysctl -q -w net.ipv4.tcp_rmem='4096 4096 4096'
export BX_NET_TIMEOUT_MS=20
run_job 4 "$net_end" stop 1
check 'a worker that is stopped while its buffers are small is not dead' all_done
unset BX_NET_TIMEOUT_MS
ip netns exec $second sysctl -q -w net.ipv4.tcp_rmem='4096 131072 6291456'

# A name of several addresses, of which the first is silent.
printf '10.77.0.3 several\n10.77.0.1 several\n' >"$dir/hosts"
new_job 2
ip -n $second neigh add 10.77.0.3 lladdr 02:00:00:00:00:03 dev $second
begin_rank 0 "$net_meet" meet
BX_ROOT=several:$port
begin_at 1 1 unshare -m sh -c "mount --bind '$dir/hosts' /etc/hosts && exec '$net_meet' meet"
finish
check 'rank 0 is found at the second address of its host' all_done

# Rank 0's host knows its own name by a loopback address, as on Debian; worker 2, which links watch when rank 0 is dead,
# is there too.
echo '127.0.1.1 several' >"$dir/own"
echo '10.77.0.1 several' >"$dir/hosts"
export BX_NET_TIMEOUT_MS=500
new_job 4
BX_ROOT=several:$port
for rank in 0 1 2 3; do
    test $((rank % 2)) = 0 && file=$dir/own || file=$dir/hosts
    begin_rank $rank unshare -mu sh -c "hostname several; mount --bind '$file' /etc/hosts &&
        exec '$net_end' die 0 500"
done
finish
check "rank 0 is found by its host's name, which leads to a loopback address there" test "$statuses $left" = \
    '137 0 0 0 '

# Addresses of a link: its two ends have other numbers. The next hub reaches who listens at one.
ip link add ${first}l netns $first index 71 type veth peer name ${second}l netns $second index 72 &&
    ip -n $first link set ${first}l up && ip -n $second link set ${second}l up
link_local()    # its address, once it is no longer tentative
{
    at=$(ip -n $first -6 -o addr show dev ${first}l scope link -tentative | sed 's/.* \(fe80[^/]*\).*/\1/')
    test -n "$at"
}
soon link_local
new_job 3
for rank in 0 1 2; do
    begin_rank $rank env BX_LOG=warn "BX_ROOT=[$at%$(host_of $rank)l]:$port" "$net_end" die 0 500
done
finish
check 'rank 0 listens at an address of a link, and dies' test "$statuses $left" = '137 0 0 '
check 'and the next hub watches the others' eval '! prints 1 "is not watched"'
new_job 2
begin_at 1 1 env "BX_ROOT=[$at]:$port" "$net_meet" meet
finish
check 'an address of a link without its interface is refused' prints 1 \
    "cannot start: -EINVAL: BX_ROOT='.$at.:$port' is no address to connect to"

# The next hub has no port left to connect from: nobody is dead for that.
touch "$dir/prepares"
begin_all 3 env BX_LOG=warn "$net_end" die 0 500
all_ready started
taken=$(ip netns exec $second ss -H -ltn | sed -n '1s/.*:\([0-9]*\) .*/\1/p')
ip netns exec $second sysctl -q -w net.ipv4.ip_local_port_range="$taken $taken"
rm "$dir/prepares"
finish
ip netns exec $second sysctl -q -w net.ipv4.ip_local_port_range='32768 60999'
check 'a hub that cannot connect for lack of ports takes nobody for dead' test "$statuses $left" = '137 0 0 '
check 'and logs it' prints 1 'is not watched: '
unset BX_NET_TIMEOUT_MS

# The first message to a host that is silent waits for nothing but the news of it.
export BX_NET_TIMEOUT_MS=500
rm -f "$dir/down"
begin_all 5 "$net_end" first "$dir/down" 5000
all_ready ready
cut_off $first silent
cut_off $second silent
is_down
finish
for end in $first $second; do
    ip -n $end neigh del $(other_of $end) dev $end
done
check 'a first call to a host that is silent ends when the host is lost' all_done

# Workers 1 and 3 are in their shutdown and wait for worker 2 when rank 0 dies, and then the host of both is silent.
rm -f "$dir/down"
begin_all 4 "$net_end" leave "$dir/down"
all_ready ready
sleep 1
kill -KILL $pid_0
sleep 1
cut_off $first silent
is_down
finish
ip -n $first neigh del $(other_of $first) dev $first
check 'a shutdown waits for nobody on a host that is silent' test "$statuses $left" = '137 0 0 0 '

# A partition.
limit_s=20
check "rank 0's host is heard no more while another worker is stopped" part_once $first 9000 stopped
limit_s=10
for end in $first $second; do
    check "the link of $(test $end = $first && echo "rank 0's" || echo 'the other') host goes down" part_once $end 3000
    echo "# $(cat "$dir"/out.* | grep -h '^news' | sort -k 5 -n | tail -n 1)"
done
check 'what was lost for a partition stays so when there is none any more' part_once $second 3000 healed
if tc -n $second qdisc add dev $second root tbf rate 500mbit burst 1mb latency 50ms 2>"$dir/err"; then
    begin_all 2 "$net_full" silenced
    all_ready ready
    for end in $first $second; do
        cut_off $end silent
    done
    finish
    check 'a host is silent in the midst of a large tensor: both have its memory back' test "$statuses $left" = '0 0 '
    for end in $first $second; do
        ip -n $end neigh del $(other_of $end) dev $end
    done
    tc -n $second qdisc del dev $second root
else
    echo "skip a large tensor to a host that is silent: $(head -n 1 "$dir/err")"
fi
for end in $first $second; do
    check "rank 0 dies, and then $(test $end = $first && echo "its" || echo 'the other') host is heard no more" \
        part_once $end 3000 headless
    echo "# $(cat "$dir"/out.* | grep -h '^news' | sort -k 5 -n | tail -n 1)"
done

exit "$failed"

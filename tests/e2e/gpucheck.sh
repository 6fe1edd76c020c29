#!/bin/sh
# SPDX-License-Identifier: MIT
#
# gpucheck with the tests' driver: each of that driver's switches gives the line that tells of it, the order is the one
# that the library chooses under the same switches, and a call that hangs costs its own answers only. BX_BUILD_DIR names
# the build. The tests' driver has no figures that mean anything, so none is looked at.
#
# Runs go on in the background, four at a time, because most of their time is waiting.
set -u

build=${BX_BUILD_DIR:-build}
program=$build/bin/gpucheck
fake=$build/tests/libfakecuda.so
dir=$(mktemp -d)
XDG_RUNTIME_DIR=$dir
export XDG_RUNTIME_DIR
unset CUDA_DEVICE_MAX_CONNECTIONS CUDA_VISIBLE_DEVICES
hanging=
trap 'test -z "$hanging" || end_own $hanging; rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

# shellcheck source=tests/checks.sh
. "$(dirname "$0")/../checks.sh"

evidence()  # of a check that failed: the run that the last check was about
{
    grep -vE '^(good|note)' "$dir/$run.out" 2>/dev/null | cut -c 1-200 | sed 's/^/  /'
    sed 's/^/  err: /' "$dir/$run.err" 2>/dev/null | tail -n 5
}

# ask RUN ONLY VARIABLE=VALUE...: in the background, with a machine of its own
ask()
{
    run=$1
    only=$2
    shift 2
    (
        env FAKE_CUDA_MACHINE="$dir/$run.machine" BX_CUDA_DRIVER="$fake" BX_NVRTC="$fake" BX_CUBLAS="$fake" \
            BX_CUDNN="$fake" "$@" "$program" ${only:+--only "$only"} >"$dir/$run.out" 2>"$dir/$run.err" </dev/null
        echo $? >"$dir/$run.status"
    ) &
    asked="$asked $!"
    # Words on purpose.
    # shellcheck disable=SC2086
    set -- $asked
    if [ $# -ge 4 ]; then
        wait "$1"
        shift
        asked=$*
    fi
}
asked=

# chosen RUN VARIABLE=VALUE...: what the library chooses
chosen()
{
    run=$1
    shift
    env FAKE_CUDA_MACHINE="$dir/$run.machine2" BX_CUDA_DRIVER="$fake" "$@" timeout -k 1 30 \
        "$build/tests/prog_order" >"$dir/$run.order" 2>>"$dir/$run.err" </dev/null
}

status()    # status N: of the last run
{
    test "$(cat "$dir/$run.status")" -eq "$1"
}

says()      # says VERDICT KEY [PATTERN]: the last run has that line
{
    grep -qE "^$1 +$2 .*${3:-}" "$dir/$run.out"
}

# order RUN ORDER VARIABLE=VALUE...: gpucheck and the library say the same
order()
{
    run=$1
    expected=$2
    shift 2
    check "$run: gpucheck says $expected" says order "$expected"
    chosen "$run" "$@"
    check "$run: the library chooses $expected" grep -qx "$expected" "$dir/$run.order"
}

# ---- Without a GPU, and flags ------------------------------------------------------------------------

run=none
BX_CUDA_DRIVER=$dir/libcuda.so.1 "$program" >"$dir/none.out" 2>"$dir/none.err"
echo $? >"$dir/none.status"
check 'without a driver its status is 3' status 3
check 'a sentence says why, and what to do' says order none "There is no GPU: no CUDA driver.*: .*install NVIDIA's"
check 'what needs a driver is unknown' says unknown driver.version
check 'what does not is answered' says note box

"$program" --devices >"$dir/none.out" 2>"$dir/none.err"
echo $? >"$dir/none.status"
check 'an unknown flag is refused' status 2
for device in x 4294967296; do
    "$program" --device $device >"$dir/none.out" 2>"$dir/none.err"
    echo $? >"$dir/none.status"
    check "device $device is refused" status 2
    check 'with a sentence' grep -q "^gpucheck: --device: $device is no number" "$dir/none.err"
done
"$program" --help >"$dir/none.out" 2>"$dir/none.err"
check 'help names the statuses' grep -q '3 there is no GPU' "$dir/none.out"

# ---- A call that hangs -------------------------------------------------------------------------------

# A pipe that nobody writes to: each open waits for it.
mkfifo "$dir/gate"
env FAKE_CUDA_MACHINE="$dir/hang.machine" BX_CUDA_DRIVER="$fake" FAKE_CUDA_OPEN_GATE=9 "$program" --only handle \
    >"$dir/hang.out" 2>"$dir/hang.err" </dev/null 9<>"$dir/gate" &
hang=$!
env FAKE_CUDA_MACHINE="$dir/orphan.machine" BX_CUDA_DRIVER="$fake" FAKE_CUDA_OPEN_GATE=9 "$program" --only handle \
    >"$dir/orphan.out" 2>"$dir/orphan.err" </dev/null 9<>"$dir/gate" &
orphan=$!
hanging="$hang $orphan"

children()  # of the orphan: processes that have its machine open
{
    grep -lF "$dir/orphan.machine" /proc/[0-9]*/maps 2>/dev/null | wc -l
}

run=orphan
i=0
while [ "$(children)" -lt 3 ] && [ "$i" -lt 100 ]; do
    sleep 0.05
    i=$((i + 1))
done
check 'two processes and a keeper run' test "$(children)" -eq 3
kill -9 "$orphan"
wait "$orphan" 2>/dev/null
i=0
while [ "$(children)" -gt 0 ] && [ "$i" -lt 100 ]; do
    sleep 0.05
    i=$((i + 1))
done
check 'children die with the program' test "$(children)" -eq 0
hanging=$hang

# ---- Everything, as the tests' driver is --------------------------------------------------------------

ask all ''
ask bare '' FAKE_CUDA_DEVICES=1 BX_NVRTC="$dir/none" BX_CUBLAS="$dir/none" BX_CUDNN="$dir/none"
ask read_only order FAKE_CUDA_NO_READ_ONLY=1
ask register order FAKE_CUDA_NO_HOST_REGISTER=1
ask stream_ops order FAKE_CUDA_NO_STREAM_OPS=1
ask lost order FAKE_CUDA_LOST_WRITES=1
ask queues order FAKE_CUDA_QUEUES=1
ask three order FAKE_CUDA_QUEUES=3
ask connections order CUDA_DEVICE_MAX_CONNECTIONS=2
ask drop_dead kill FAKE_CUDA_DROP_DEAD=1
ask open_205 order FAKE_CUDA_OPEN_205=1
ask no_ipc order FAKE_CUDA_NO_IPC=1
ask no_vmm order FAKE_CUDA_NO_VMM=1
ask no_both order FAKE_CUDA_NO_VMM=1 FAKE_CUDA_NO_IPC=1
ask handles order FAKE_CUDA_NO_IPC=1 BX_GPU_EXPORT=handle
ask mig order FAKE_CUDA_MIG=1
ask exclusive order FAKE_CUDA_EXCLUSIVE=1
ask peer devices FAKE_CUDA_NO_PEER=all
ask old '' FAKE_CUDA_VERSION=11020
for pid in $asked; do
    wait "$pid"
done

run=all
check 'the tests driver: all is answered, and memory is shared' status 0
check 'it says FAKE first' grep -qE '^FAKE +The driver is the one of Boxcar.s tests, and there is no GPU' "$dir/all.out"
check 'and last' grep -qE '^[0-9]+ good, .* 0 unknown; .*; FAKE driver$' "$dir/all.out"
check 'each line has a verdict' test -z "$(grep -vE '^((good|bad|note|absent) +[a-z_0-9.]+ |order |FAKE |[0-9]+ good)' \
    "$dir/all.out")"
for key in register.owner register.read_only register.writable handle.export handle.open handle.contents handle.close \
    descriptor.export descriptor.contents descriptor.read_only descriptor.dead \
    words.host.stream words.host.host words.host.seen words.host.poison words.read_only.stream \
    words.read_only.host words.read_only.seen words.read_only.poison events kill.memory kill.word kill.close borrower \
    devices.reach devices.handle devices.word nvrtc cublas cudnn; do
    check "$key is good" says good "$key"
done
check 'a borrower cannot write' says good descriptor.read_only 'CUDA_ERROR_INVALID_VALUE \(1\).*no byte has changed'
check 'memory goes as descriptors' says order HOST_WORDS 'Memory goes as file descriptors'
order all HOST_WORDS

run=bare
check 'one device, no libraries: that is no failure' status 0
check 'the second device is absent' says absent devices.handle 'this process sees one device'
for key in nvrtc cublas cudnn; do
    check "$key is absent" says absent "$key" 'is not found'
done

run=json
FAKE_CUDA_MACHINE=$dir/json.machine BX_CUDA_DRIVER=$fake "$program" --only driver --json >"$dir/json.out" \
    2>"$dir/json.err"
check 'JSON says FAKE' grep -q '"fake": true, "device": "FAKE 0"' "$dir/json.out"
check 'it has lines' grep -q '^  {"key": "driver.version", "verdict": "good", "answer": "The driver is for CUDA ' \
    "$dir/json.out"
if command -v python3 >/dev/null; then
    check 'it is well formed' python3 -c 'import json, sys; json.load(open(sys.argv[1]))' "$dir/json.out"
else
    echo 'skip JSON is well formed: python3 is not installed'
fi

# ---- What each switch changes -------------------------------------------------------------------------

run=read_only
check 'no read-only memory: the flag is refused' says bad register.read_only '\(801\)'
check 'peers wait through writable mappings' says good words.host.stream
check 'not through read-only ones' says absent words.read_only.stream
order read_only HOST_WORDS FAKE_CUDA_NO_READ_ONLY=1
run=register
check 'no registration at all' says bad register.owner '\(801\)'
order register EVENTS FAKE_CUDA_NO_HOST_REGISTER=1
run=stream_ops
check 'streams cannot wait' says bad words.host.stream 'cannot wait for the word'
check 'then nothing is held up' says absent queues 'streams cannot wait for words here'
check 'the driver calls the host' says good events 'which nothing held up'
order stream_ops EVENTS FAKE_CUDA_NO_STREAM_OPS=1
run=lost
check 'writes of words are lost' says bad words.host.stream 'went on waiting for 2000 ms after the write'
order lost EVENTS FAKE_CUDA_LOST_WRITES=1
run=queues
check 'one queue for all streams' says bad queues '0 streams may wait'
order queues EVENTS FAKE_CUDA_QUEUES=1
run=three
check 'three queues are few' says note queues '2 streams may wait'
order three HOST_WORDS FAKE_CUDA_QUEUES=3
run=connections
check 'few connections, asked for: the reason is named' says order EVENTS 'CUDA_DEVICE_MAX_CONNECTIONS is below 4'
order connections EVENTS CUDA_DEVICE_MAX_CONNECTIONS=2
run=drop_dead
check 'memory of a dead owner is gone' says bad kill.memory '1048576 of 1048576 bytes'
check 'words in /dev/shm are not' says good kill.word
run=open_205
check 'opens fail with 205' says bad handle.open 'CUDA_ERROR_MAP_FAILED \(205\)'
check 'memory goes as descriptors then' says order none 'share this device.s memory by file descriptors'
check 'which is no failure' status 0
run=no_ipc
check 'no shared namespaces: opens fail' says bad handle.open '\(201\).*--ipc=host'
check 'descriptors need none' says order none 'share this device.s memory by file descriptors'
run=no_vmm
check 'no cuMemCreate' says bad descriptor.export '\(801\)'
check 'what needs it is absent' says absent descriptor.read_only
check 'memory goes by handles' says order HOST_WORDS 'Memory goes by handles'
order no_vmm HOST_WORDS FAKE_CUDA_NO_VMM=1
run=no_both
check 'neither: memory is not shared' says order none 'go through host memory'
check 'which is a status' status 1
run=handles
check 'handles are asked for' says order none 'go through host memory'
run=mig
check 'MIG: no handle' says bad handle.export '\(801\)'
check 'the name tells' says good driver.device 'a part of a GPU \(MIG\)'
run=exclusive
check 'exclusive mode is named' says bad driver.mode 'exclusive-process'
check 'so is what to do' says order none 'admits one process'
run=peer
check 'devices out of reach' says bad devices.reach 'cannot access'
check 'a handle does not open there' says bad devices.handle '\(217\)'
check 'words do' says good devices.word
run=old
check 'an old driver is no GPU' status 3
check 'it says which is wanted' says bad driver.version 'for CUDA 11\.2.*11\.4'

# ---- What hung ----------------------------------------------------------------------------------------

run=hang
wait "$hang"
echo $? >"$dir/hang.status"
hanging=
check 'a call that hangs: its line has no answer' says unknown handle.open 'No answer within [0-9]+ ms'
check 'the answers before it are kept' says good handle.export
check 'the status says so' status 1
check 'nothing of gpucheck is left in /dev/shm' test -z "$(find /dev/shm -maxdepth 1 -name '*gpucheck*')"
exit "$failed"

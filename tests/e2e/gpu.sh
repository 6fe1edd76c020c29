#!/bin/sh
# SPDX-License-Identifier: MIT
#
# GPU memory from the outside: tensor_ipc with the tests' driver and without one, that the page of shmstat has the keys
# of a job with GPU memory, bxbench gpu, and the library built with CUDA=0. BX_BUILD_DIR names the build, BX_SOURCE_DIR
# the sources.
#
# The tests' driver shows that the bytes arrive and that none was copied; its times mean nothing.
#
# Lists of process ids are words on purpose; pid_0 and pid_1 are set by device_begin.
# shellcheck disable=SC2086,SC2154,SC2317
set -u

build=${BX_BUILD_DIR:-build}
source=${BX_SOURCE_DIR:-.}
demo=$build/bin/tensor_ipc
bench=$build/bin/bxbench
fake=$build/tests/libfakecuda.so
dir=$(mktemp -d)
FAKE_CUDA_MACHINE=$dir/machine
XDG_RUNTIME_DIR=$dir
export FAKE_CUDA_MACHINE XDG_RUNTIME_DIR
unset BX_CUDA_DRIVER
job=gpu-shmstat-$$
pids=
trap 'test -z "$pids" || end_own $pids; rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

# shellcheck source=tests/checks.sh
. "$(dirname "$0")/../checks.sh"

ends()      # ends STATUS COMMAND...: it ends with it
{
    status=$1
    shift
    "$@" >"$dir/out" 2>"$dir/err"
    test "$?" -eq "$status"
}

with_fake() # with_fake COMMAND...: with the tests' driver
{
    BX_CUDA_DRIVER=$fake "$@"
}

without()   # without COMMAND...: with no driver
{
    BX_CUDA_DRIVER=$dir/libcuda.so.1 "$@"
}

complains() # complains PATTERN: so has standard error
{
    grep -qE "$1" "$dir/err"
}

count()     # count N PATTERN: so many lines of what was printed have it
{
    test "$(grep -cE "$2" "$dir/out")" -eq "$1"
}

nothing_left()  # of a job that names itself after its launcher
{
    BX_CUDA_DRIVER=$fake "$demo" --bytes 4000 >"$dir/out" 2>"$dir/err" &
    pid=$!
    wait "$pid" && test -z "$(find /dev/shm -maxdepth 1 -name "boxcar.*spawn-$pid-*")"
}

nulls()         # nulls N KEYS: N of those keys, which are words with | between them, have no figure
{
    test "$(grep -oE "\"($2)\": null" "$dir/out" | wc -l)" -eq "$1"
}

bench_keys()    # of the JSON that was printed
{
    grep -oE '"[a-z0-9_]+": ' "$dir/out" | tr -d '": ' | sort -u
}

hello()         # two of them meet
{
    for rank in 0 1; do
        BX_JOB=gpu-$$ BX_WORLD_SIZE=2 BX_RANK=$rank "$dir/build/bin/hello" >"$dir/out" 2>"$dir/err" &
    done
    wait
    test ! -s "$dir/err" && says 'hello'
}

# ---- tensor_ipc -------------------------------------------------------------------------------------

check 'tensor_ipc with the tests driver' ends 0 with_fake "$demo" --bytes 4000000
check 'three lines' test "$(wc -l <"$dir/out")" -eq 3
check 'the owner says that the driver is none' \
    says '^owner +address 0x[0-9a-f]+ +4000000 bytes on cuda:0 of the FAKE driver$'
for name in reader third; do
    check "the $name found what was written" \
        says "^$name +address 0x[0-9a-f]+ +first +[0-9.]+ us +then +[0-9.]+ us +copied 0 B +right\$"
done
check 'nothing on standard error' test ! -s "$dir/err"
check 'the same with BX_GPU_ORDER=events' ends 0 with_fake env BX_GPU_ORDER=events "$demo" --bytes 4000000
check 'nothing copied either' count 2 'copied 0 B +right$'
check 'two devices out of reach' ends 0 with_fake env FAKE_CUDA_NO_PEER=all "$demo" --bytes 4000000 --device 1
check 'all on the second need no other' count 2 'copied 0 B +right$'
check 'without a driver' ends 3 without "$demo"
check 'a sentence says what to do' complains "^tensor_ipc: no GPU: no CUDA driver.*install NVIDIA's driver, or start"
check 'once' test "$(wc -l <"$dir/err")" -eq 1
check 'and nothing else is printed' test ! -s "$dir/out"
check 'a device that is not there' ends 3 with_fake "$demo" --device 5
check 'it says how many there are' complains 'there is no device 5: this process sees 2'
check 'an unknown flag' ends 2 "$demo" --yes
check '--help' ends 0 "$demo" --help
check 'knows status 3' says '3 there is no GPU'
check 'nothing is left in /dev/shm' nothing_left

# ---- shmstat ----------------------------------------------------------------------------------------

stat()          # stat STATUS ARGUMENTS...: shmstat ends with it
{
    status=$1
    shift
    ends "$status" "$build/bin/shmstat" "$@"
}

tells()         # tells PATTERN: what was printed last, with its broken lines joined, has a line of it
{
    sed -e ':more' -e 'N' -e '$!b more' -e 's/\n \{12\}/ /g' "$dir/out" | grep -qE "$1"
}

shown()         # shown COMMAND PATTERN: until shmstat tells it of the job
{
    until stat 0 $1 "$job" && tells "$2"; do
        kill -0 "$pid_0" 2>/dev/null || return 1
    done
}

export BX_CUDA_DRIVER="$fake"
begin 0 2 own
begin 1 2 hold
unset BX_CUDA_DRIVER
await 1 holds
check 'who has a slab open is shown' shown gpu ' device 0, open in 1$'
for command in gpu show; do
    check "the JSON of $command" stat 0 $command "$job" --json
    check 'every key of it is in the page' documented
done
# Neither may see the other's death: it would remove its names.
stop "$pid_0" "$pid_1"
end_own "$pid_0" "$pid_1"
wait 2>/dev/null
pids=
check 'reap removes what is left of it' stat 0 reap "$job" --yes

# ---- bxbench gpu ------------------------------------------------------------------------------------

check 'bxbench refuses the tests driver' ends 1 with_fake "$bench" gpu
check 'and says why' complains 'a driver without a GPU, whose times mean nothing'
check 'without a driver it fails too' ends 1 without "$bench" gpu
check 'and says what to do' complains "install NVIDIA's driver"
check 'a dry run' ends 0 with_fake "$bench" gpu --dry-run --json --calls 20 --bytes 65536
check 'its times are null' nulls 5 'empty_us|open_us|close_us|ready_p50_us|ready_p99_us'
check 'in each row as well' nulls 8 'p50_us|p99_us|copy_us|pinned_us'
check 'what was copied is counted: nothing' test "$(grep -o '"copied_bytes": 0[,}]' "$dir/out" | wc -l)" -eq 2
for key in $(bench_keys); do
    check "the README has its key $key" grep -qE "\`$key\`" "$source/tools/README.md"
done

# ---- CUDA=0 -----------------------------------------------------------------------------------------

# Two programs and the library that they need, in a build of their own.
build_without()
{
    MAKEFLAGS='' ${MAKE:-make} -C "$source" -s -j2 BUILD="$dir/build" CONFIG=release CUDA=0 \
        "$dir/build/bin/tensor_ipc" "$dir/build/bin/hello" >"$dir/out" 2>"$dir/err"
}

no_cuda()
{
    ! nm "$dir/build/bin/tensor_ipc" 2>"$dir/err" | grep -qE 'bxi_gpu_(load|probe|slab_make)$'
}

check 'CUDA=0 builds' build_without
check 'what loads a driver is not in it' no_cuda
check 'tensor_ipc of that build' ends 3 with_fake "$dir/build/bin/tensor_ipc"
check 'says how it was built' complains '^tensor_ipc: no GPU: no GPU support was built; build with CUDA=auto'
check 'everything else works' hello
exit "$failed"

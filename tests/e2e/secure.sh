#!/bin/sh
# SPDX-License-Identifier: MIT
#
# A program with more rights than its caller (here: set-group-ID) takes no file name from the caller's environment: no
# trace, no socket directory, no driver; nor does it print the log (BX_LOG). BX_BUILD_DIR names the build.
#
# Lists of process ids are words on purpose; pid_0 and pid_1 are set by begin_secure.
# shellcheck disable=SC2086,SC2154,SC2317
set -u

build=${BX_BUILD_DIR:-build}
dir=$(mktemp -d)
job=secure-$$
trace=$dir/trace.json
pids=
trap 'test -z "$pids" || end_own $pids; rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

# shellcheck source=tests/checks.sh
. "$(dirname "$0")/../checks.sh"

secure()    # secure PROGRAM: a copy of it in $dir, with a group that is not the caller's own
{
    copy=$dir/${1##*/}
    cp "$1" "$copy" && chgrp "$group" "$copy" && chmod 2755 "$copy"
}

group=
for candidate in $(id -G) 65534; do
    test "$candidate" -ne "$(id -g)" && : >"$dir/probe" && chgrp "$candidate" "$dir/probe" 2>/dev/null &&
        group=$candidate
done
if [ -z "$group" ]; then
    echo 'skip programs that are set-group-ID: needs root or a second group'
    exit 0
fi
secure "$build/tests/prog_worker" || exit 1
case $(findmnt -no OPTIONS -T "$dir" 2>/dev/null) in
*nosuid*)
    echo 'skip programs that are set-group-ID: the directory for temporary files is mounted nosuid'
    exit 0
    ;;
esac

begin_secure()  # begin_secure RANK MODE
{
    XDG_RUNTIME_DIR=$dir BX_TRACE=$trace BX_LOG=info BX_JOB=$job BX_RANK=$1 BX_WORLD_SIZE=2 BX_NAME=w$1 \
        "$dir/prog_worker" "$2" >"$dir/out.$1" 2>&1 </dev/null &
    eval "pid_$1=\$!"
    pids="$pids $!"
}

begin_secure 0 serve
begin_secure 1 call
for rank in 0 1; do
    wait "$(eval "echo \$pid_$rank")"
    check "worker $rank runs" test $? -eq 0
    check "worker $rank says that it is not traced" \
        grep -qE "^boxcar: BX_TRACE: worker 'w$rank' is not traced: .*more rights than its caller" "$dir/out.$rank"
done
pids=
check 'its log is not printed' test -z "$(grep -h '(rank . of job' "$dir"/out.*)"
check 'no file is made for it' test ! -e "$trace"
check 'nor a directory of sockets where it says' test ! -e "$dir/boxcar"

# A file that is no library: who loads it says so.
echo 'no library' >"$dir/named.so"
secure "$build/bin/tensor_ipc" || exit 1
BX_CUDA_DRIVER=$dir/named.so "$build/bin/tensor_ipc" --bytes 4000 >"$dir/out.0" 2>&1
check 'a named driver is loaded' grep -q 'named\.so' "$dir/out.0"
BX_CUDA_DRIVER=$dir/named.so "$dir/tensor_ipc" --bytes 4000 >"$dir/out.0" 2>&1
check 'but not by a program with more rights than its caller' test -z "$(grep 'named\.so' "$dir/out.0")"
exit "$failed"

#!/bin/sh
# SPDX-License-Identifier: MIT
#
# The scripts of the demos once more, with the workers of each job on two hosts by turns (net_fork.c): what they check
# of output, seeds, kills and signals holds over the network. Left out are
#     flags             they are read before a job starts
#     long trainings    they take minutes; so do other networks, and most seeds
#     a stopped worker  it stays alive: net.sh has that
#     the death of all  a host without workers keeps their names until the next job there
#     restarts          a worker of several hosts may not come back: param_server_restart.sh
set -u

if [ ! -e "$BX_BUILD_DIR/lib/libboxcar_net.so.0" ]; then
    echo 'skip demos over two hosts: libboxcar_net.so.0 is not built (libucx-dev and libssl-dev)'
    exit 77
fi
failed=0
dir=$(mktemp -d)
trap 'rm -rf "$dir"; find /dev/shm -name "boxcar.*.demo$$[ab].*" -delete' EXIT
trap 'exit 130' INT TERM
export BX_TEST_HOST=demo$$ ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0"
${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o "$dir/fork.so" "$(dirname "$0")/net_fork.c" || exit 1

apart()     # apart NAME [SED]: that script, as the commands of sed leave it
{
    script=$(dirname "$0")/$1.sh
    LD_PRELOAD=$dir/fork.so sh -c "$(sed "/^# ---- Flags/,/^# ---- /d; ${2:-}" "$script")" "$script" || failed=1
}

if BX_TEST_HOST=/ LD_PRELOAD=$dir/fork.so "$BX_BUILD_DIR/bin/rnn" --epochs 1 2>&1 | grep -q "BX_HOST='/[ab]'"; then
    echo 'ok each worker of a launcher has a host'
else
    failed=1
    echo 'not ok each worker of a launcher has a host'
fi
apart rnn
apart pipeline '/^run .*--seed 1/,/^check/d'
apart output '/^for program in/,/^done/d; /^check .param_server |/,+1d'
apart reinforce 's/--max-episodes 12/& --num-steps 60/; /^# ---- Other/,/^check .the figure names/d
    /^# ---- Learning/,/^check .the last/d'
apart cartpole '/^learns --plot/,/^check .solves at/d'
apart param_server 's/\(batches \|+\)30/\112/; /^run .*--seed 1/,/^# ---- Kills/d
    /^start .*60/,/^check .all .*each/d'
exit "$failed"

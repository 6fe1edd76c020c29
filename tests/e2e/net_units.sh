#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Unit tests of calls, futures, batches, references, tensors and passes once more, with the workers of each world on two
# hosts, which are names on loopback (BX_HOST): what they assert holds over the network. Left out are those that
#     look into the memory of another worker, or write nonsense there
#     count loans of one host: to another one a copy goes, and the loan ends with it
#     kill the only worker of a host: its names stay until the next job of that name (net.sh)
#     want frames to leave while the thread that drives is in a callback, or while a program with a loop of its own
#     makes no progress, or read at the end what nobody drives for any more: several hosts need passes then
set -u

if [ ! -e "$BX_BUILD_DIR/lib/libboxcar_net.so.0" ]; then
    echo 'skip unit tests over two hosts: libboxcar_net.so.0 is not built (libucx-dev and libssl-dev)'
    exit 77
fi
BX_TEST_HOSTS=2
BX_TALLY=
export BX_TEST_HOSTS BX_TALLY
local='is_seen_by*|without_members_is*|of_the_dead*|ends_everywhere*|optimizer_refuses*|sends_from_the_pool*'
local="$local|on_loan_are*|travel_10000*|travel_161*|hook_does_not_run_when*|hook_runs_when*|that_leaves_ends_a_call*"
local="$local|*oneself_that_is_not_read"
if "$BX_SOURCE_DIR/tests/run_unit.sh" --filter "@(call|future|future_parts|late|pool|parked|checked_calls|batch|\
batch_many|batch_rows|names|rank|unheard|pool_cancel|rref|rref_race|rref_leak|send|values|dist|dist_in|optim|\
tensor_rpc|rpc_many|on_cancel|usercall)/!($local)"; then
    echo 'ok unit tests over two hosts'
else
    echo 'not ok unit tests over two hosts'
    exit 1
fi

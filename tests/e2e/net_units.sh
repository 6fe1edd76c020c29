#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Unit tests of calls, futures, batches and references once more, with the workers of each world on two hosts, which are
# names on loopback (BX_HOST): what they assert holds over the network. Suites that look into the memory of another
# worker, count loans of one host or wait for the death of a host's only worker within seconds are left out.
set -u

if [ ! -e "$BX_BUILD_DIR/lib/libboxcar_net.so.0" ]; then
    echo 'skip unit tests over two hosts: libboxcar_net.so.0 is not built (libucx-dev and libssl-dev)'
    exit 77
fi
BX_TEST_HOSTS=2
BX_TALLY=
export BX_TEST_HOSTS BX_TALLY
# At the end several hosts need passes, which read what was sent; they send nothing while the thread that drives is in
# a callback.
local='*oneself_that_is_not_read|that_leaves_ends_a_call*'
if "$BX_SOURCE_DIR/tests/run_unit.sh" --filter "@(call|future|future_parts|late|pool|parked|checked_calls|batch_many|\
names|rank|unheard|pool_cancel|rref|rref_race|rref_leak|send|values|usercall)/!($local)"; then
    echo 'ok unit tests over two hosts'
else
    echo 'not ok unit tests over two hosts'
    exit 1
fi

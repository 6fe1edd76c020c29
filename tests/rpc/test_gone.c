/* SPDX-License-Identifier: MIT */
/*
 * lib/rpc/watch.c: how a worker that died is counted, depending on how far it had left. bx_job_serve and the shutdown
 * wait for these counts: with one too few they hang, with one too many they do not wait for a worker.
 */
#include "tests/harness/harness.h"

#include "rpc/rpc.h"

static void die_in(struct bx_job *job, enum bxi_state state)
{
    harness_leaves_by_itself();
    bxi_store_release(&job->control->header.state, state);
    raise(SIGKILL);
}

static void die_leaving(struct bx_job *job)
{
    die_in(job, BXI_LEAVING);
}

static void die_when_it_had_left(struct bx_job *job)
{
    die_in(job, BXI_LEFT);
}

HARNESS_TEST(gone, workers_are_counted_by_how_far_they_had_left, 20, .size = 4, .dies = 0xe,
             .body = { NULL, harness_die, die_leaving, die_when_it_had_left })
{
    HARNESS_WAIT_WHILE(bxi_load_seq_cst(&job->rpc->deaths) < 2 || bx_worker_is_alive(job, 3));
    HARNESS_EQ(bxi_load_seq_cst(&job->rpc->deaths), 2);
    HARNESS_EQ(bxi_load_seq_cst(&job->rpc->lost), 1);
    HARNESS_EQ(bxi_load_seq_cst(&job->rpc->leavers), 3);
    HARNESS_EQ(harness_counter(job, "peers_dead"), 2);
}

/* SPDX-License-Identifier: MIT */
/*
 * lib/rpc/ending.c: a worker that lies about the rounds of the end. That workers leave when nothing runs and nothing is
 * under way in any of them, and that each one-way call that was accepted has run by then, is the simulator's: oneway,
 * calls, end.
 */
#include "tests/harness/harness.h"

#include "rpc/rpc.h"

enum { RELEASED };                              /* a gate */

/* Says that it has not moved since a round that is still to come. */
static void lie(struct bx_job *job)
{
    harness_leaves_by_itself();
    bxi_store_release(&job->control->header.ending, UINT64_C(1) << 32 | 2);
    bxi_ring_all(job);
    harness_await(RELEASED, 1);
    bx_job_destroy(job);
}

HARNESS_TEST(ending, a_worker_that_lies_is_cut_off_and_not_waited_for, 20, .size = 2,
             .body = { NULL, lie })
{
    harness_leaves_by_itself();
    HARNESS_EQ(bx_job_shutdown(job, 0), 0);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 1);
    bx_job_destroy(job);
    harness_post(RELEASED);
}

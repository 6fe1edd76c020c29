/* SPDX-License-Identifier: MIT */
/*
 * "stall" is an inline handler of a worker that the worker calls itself. While it runs, that thread has the progress
 * role and reads nothing. When it returns, the worker finds everything that the others did meanwhile at once.
 */
#ifndef TESTS_STALL_H
#define TESTS_STALL_H

#include "harness.h"

#include "rpc/rpc.h"

static void (*while_stalled)(struct bx_job *job);

HARNESS_HANDLER(stall)
{
    while_stalled(bx_request_job(request));
    return 0;
}

static inline void stall_oneself(struct bx_job *job)
{
    HARNESS_EQ(bx_rpc_sync(job, bx_worker_name(job, bx_job_rank(job)), "stall", NULL, NULL, NULL), 0);
}

/* Waits until the worker is dead and records it as the background thread does, because the latter may be the thread
 * that stalls. The next pass checks for deaths before it reads a ring. */
static inline void see_death(struct bx_job *job, int rank)
{
    struct pollfd death = { .fd = job->rpc->peers[rank]->pidfd, .events = POLLIN };

    HARNESS_EQ(poll(&death, 1, -1), 1);
    bxi_exchange(&job->rpc->peers[rank]->death_seen, BXI_PEER_DEAD);
    bxi_event(job->run, BXI_EVENT_DEATH);
}

#endif

/* SPDX-License-Identifier: MIT */
/*
 * lib/rpc/out.c: calls that wait for room in a full ring, and the word want_credit, by which their worker asks the
 * consumer for a bell. That it asks for none when nothing waits is the simulator's (calls, oneway).
 *
 * Worker 1 stops in an inline handler while worker 0 fills the ring to it.
 */
#include "tests/harness/harness.h"

#include "rpc/rpc.h"

enum gate { IN_HANDLER = 0, HANDLER_GO };

#define QUEUED_CALLS 200
#define WARM_UP 10

static struct bx_future *flood_futures[QUEUED_CALLS];

HARNESS_HANDLER(stop)
{
    harness_post(IN_HANDLER);
    harness_await(HANDLER_GO, 1);
    return 0;
}

/* Begins more calls than the ring has room for. It is an inline handler, so its thread holds the progress role. */
HARNESS_HANDLER(flood)
{
    static char bytes[2000];
    OWN(msg) *large = bx_msg_create(sizeof(bytes));

    HARNESS_EQ(bx_msg_put_bytes(large, bytes, sizeof(bytes)), 0);
    for (int i = 0; i < QUEUED_CALLS; i++)
        HARNESS_EQ(bx_rpc_async(bx_request_job(request), "worker1", "take", large, NULL, &flood_futures[i]), 0);
    return 0;
}

static uint64_t want_credit(struct bx_job *job)
{
    return bxi_load_relaxed(&job->control->pair[1].want_credit);
}

/* A thread that leads queues the handler's calls, gets its own reply at once, and leaves without having slept. */
HARNESS_TEST(peer, sets_want_credit_before_a_leader_leaves_its_queue, 20, .size = 2,
             .options = { .no_spin = true }, .handlers = { HARNESS_INLINE("stop", stop), HARNESS_INLINE("flood", flood),
                                                           HARNESS_INLINE("take", harness_nothing) })
{
    struct bx_future *first = harness_async(job, "worker1", "stop");

    harness_await(IN_HANDLER, 1);
    /* The background thread opens this worker's ring to itself and sleeps again. From the second call on this thread
     * leads. */
    for (int i = 0; i < WARM_UP; i++)
        HARNESS_EQ(bx_rpc_sync(job, "worker0", "take", NULL, NULL, NULL), 0);
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "flood", NULL, NULL, NULL), 0);
    HARNESS_CHECK(harness_counter(job, "queued_frames") > 0);
    HARNESS_EQ(want_credit(job), 1);
    harness_post(HANDLER_GO);
    harness_end(first, 0);
    harness_end_all(flood_futures, QUEUED_CALLS, 0);
    HARNESS_EQ(want_credit(job), 0);
}

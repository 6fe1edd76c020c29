/* SPDX-License-Identifier: MIT */
/*
 * lib/rpc/watch.c: requests of a worker that died are dropped and counted, in a ring that it had just opened too; and
 * frames that stay unread while many others are sent. Worker 0 stalls (stall.h) while the others do their part.
 */
#include "tests/harness/stall.h"

enum { STALLED, SENT };                 /* gates */
enum { COUNTED };                       /* values */

HARNESS_HANDLER(count)
{
    harness_add(COUNTED, 1);
    return 0;
}

HARNESS_HANDLER(refuse)
{
    return -EDOM;
}

static int setup(struct bx_job *job)
{
    return HARNESS_REGISTER(job, HARNESS_INLINE("count", count), HARNESS_INLINE("refuse", refuse),
                            HARNESS_INLINE("stall", stall));
}

/* ---- Requests of the dead ----------------------------------------------------------------------- */

static void wait_and_kill(struct bx_job *job)
{
    harness_post(STALLED);
    harness_await(SENT, 1);
    harness_signal(1, SIGKILL);
    see_death(job, 1);
}

static void open_a_ring_and_be_killed(struct bx_job *job)
{
    harness_leaves_by_itself();
    harness_await(STALLED, 1);
    for (int i = 0; i < 3; i++)
        HARNESS_EQ(bx_rpc_oneway(job, "worker0", "count", NULL, NULL), 0);
    harness_post(SENT);
    for (;;)
        pause();
}

/* Worker 1's first call opens its ring while worker 0 reads nothing and has no background thread that could notice it.
 * Only the pass that handles the death finds the ring. */
HARNESS_TEST(drain, reads_a_ring_that_a_dead_worker_opened_last, 20, .size = 2, .setup = setup, .dies = 1u << 1,
             .body = { NULL, open_a_ring_and_be_killed }, .options = { .own_loop = true })
{
    while_stalled = wait_and_kill;
    stall_oneself(job);
    while (bx_worker_is_alive(job, 1))
        HARNESS_CHECK(bx_progress(job) >= 0);
    HARNESS_EQ(harness_counter(job, "requests_dropped"), 3);
    HARNESS_EQ(harness_load(COUNTED), 0);
}

/* ---- Old piggybacked credit --------------------------------------------------------------------- */

/* Replies, a value and an error, stay unread while one-way calls fill the other ring three times over. */
static void send_laps(struct bx_job *job)
{
    static const char payload[8000];
    const uint64_t laps = 3 * BXI_RING_BYTES;
    const struct bx_call_options at_once = { .no_wait = true };
    OWN(msg) *args = bx_msg_create(sizeof(payload));
    OWN(future) *value = NULL, *error = NULL;
    int rc;

    HARNESS_EQ(bx_msg_put_bytes(args, payload, sizeof(payload)), 0);
    value = harness_async(job, "worker1", "count");
    error = harness_async(job, "worker1", "refuse");
    bxi_bells_flush(job);
    HARNESS_WAIT_WHILE(!bxi_ring_ready(&job->rpc->peers[1]->in));
    for (uint64_t sent = 0; sent < laps;) {
        rc = bx_rpc_oneway(job, "worker1", "count", args, &at_once);
        HARNESS_CHECK(rc == 0 || rc == -EAGAIN);
        sent += rc == 0 ? sizeof(payload) : 0;
        bxi_bells_flush(job);
        sched_yield();
    }
}

HARNESS_TEST(drain, accepts_a_reply_whose_credit_is_laps_behind, 60, .size = 2, .setup = setup)
{
    while_stalled = send_laps;
    for (int i = 0; i < 5; i++) {
        HARNESS_EQ(bx_rpc_sync(job, "worker1", "count", NULL, NULL, NULL), 0);
        stall_oneself(job);
    }
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "count", NULL, NULL, NULL), 0);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
}

/* SPDX-License-Identifier: MIT */
/*
 * lib/rpc/out.c: frames and calls that wait for room in a full ring, and the word want_credit, by which their worker
 * asks the consumer for a bell.
 *
 * Worker 1 stops in an inline handler while worker 0 fills the ring to it.
 */
#include "tests/harness/harness.h"

#include "rpc/rpc.h"

enum gate { IN_HANDLER = 0, HANDLER_GO, NOTED };
enum value { BELLS = 0, BELLS_DUE };

#define QUEUED_CALLS 200
#define NOTES 100
#define WARM_UP 10

static struct bx_future *flood_futures[QUEUED_CALLS];

HARNESS_HANDLER(stop)
{
    harness_post(IN_HANDLER);
    harness_await(HANDLER_GO, 1);
    return 0;
}

/* Stores how many bells this worker has rung so far, and whether some are due. */
HARNESS_HANDLER(note)
{
    struct bx_job *job = bx_request_job(request);

    harness_store(BELLS, harness_counter(job, "doorbells_rung"));
    harness_store(BELLS_DUE, bxi_load_relaxed(&job->rpc->bells_due[0]));
    harness_post(NOTED);
    return 0;
}

static struct bx_msg *large_msg(void);

/* Begins more calls than the ring has room for. It is an inline handler, so its thread holds the progress role. */
HARNESS_HANDLER(flood)
{
    struct bx_job *job = bx_request_job(request);
    OWN(msg) *large = large_msg();

    for (int i = 0; i < QUEUED_CALLS; i++)
        HARNESS_EQ(bx_rpc_async(job, "worker1", "take", large, NULL, &flood_futures[i]), 0);
    return 0;
}

static int setup(struct bx_job *job)
{
    int rc = bx_register(job, "stop", BX_INLINE, stop, NULL);

    if (rc == 0)
        rc = bx_register(job, "take", BX_INLINE, harness_nothing, NULL);
    if (rc == 0)
        rc = bx_register(job, "flood", BX_INLINE, flood, NULL);
    return rc == 0 ? bx_register(job, "note", BX_INLINE, note, NULL) : rc;
}

static uint64_t want_credit(struct bx_job *job)
{
    return bxi_load_relaxed(&job->control->pair[1].want_credit);
}

static struct bx_future *stop_worker1(struct bx_job *job)
{
    struct bx_future *future = harness_async(job, "worker1", "stop");

    harness_await(IN_HANDLER, 1);
    return future;
}

static void finish(struct bx_future *future)
{
    harness_end(future, 0);
}

static struct bx_msg *large_msg(void)
{
    static char bytes[2000];
    struct bx_msg *msg = bx_msg_create(sizeof(bytes));

    HARNESS_EQ(bx_msg_put_bytes(msg, bytes, sizeof(bytes)), 0);
    return msg;
}

static void send_note(struct bx_job *job)
{
    uint32_t noted = harness_gate(NOTED);

    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "note", NULL, NULL), 0);
    harness_await(NOTED, noted + 1);
}

/* Worker 1 reads, publishes credit and sleeps many times, and this worker sleeps meanwhile. No frame waits for that
 * credit, so worker 1 must not ring. */
static void expect_no_bells(struct bx_job *job)
{
    uint64_t before;

    do
        send_note(job);
    while (harness_load(BELLS_DUE) != 0);
    before = harness_load(BELLS);
    for (int i = 0; i < NOTES; i++)
        send_note(job);
    HARNESS_EQ(harness_load(BELLS) - before, 0);
}

HARNESS_TEST(peer, clears_want_credit_when_its_queue_is_empty, 20, .size = 2, .setup = setup,
             .options = { .no_spin = true })
{
    struct bx_future *first = stop_worker1(job), *futures[QUEUED_CALLS];
    struct bx_msg *args = large_msg();

    for (int i = 0; i < QUEUED_CALLS; i++)
        HARNESS_EQ(bx_rpc_async(job, "worker1", "take", args, NULL, &futures[i]), 0);
    bx_msg_destroy(args);
    HARNESS_CHECK(harness_counter(job, "queued_frames") > 0);
    HARNESS_EQ(want_credit(job), 1);       /* the calling thread has set it, because the background thread sleeps */
    harness_post(HANDLER_GO);
    finish(first);
    for (int i = 0; i < QUEUED_CALLS; i++)
        finish(futures[i]);
    HARNESS_EQ(want_credit(job), 0);
    expect_no_bells(job);
}

static void send_one_more(struct bx_job *job, int index)
{
    OWN(msg) *args = large_msg();

    if (index == 0) {
        HARNESS_EQ(bx_rpc_oneway(job, "worker1", "take", args, NULL), 0);
    } else {
        HARNESS_WAIT_WHILE(want_credit(job) == 0);
        harness_post(HANDLER_GO);
    }
}

HARNESS_TEST(peer, clears_want_credit_when_a_one_way_call_got_room, 20, .size = 2, .setup = setup,
             .options = { .no_spin = true })
{
    struct bx_future *first = stop_worker1(job);
    struct bx_msg *args = large_msg();
    int rc;

    do
        rc = bx_rpc_oneway(job, "worker1", "take", args, &(struct bx_call_options){ .no_wait = true });
    while (rc == 0);
    HARNESS_EQ(rc, -EAGAIN);
    bx_msg_destroy(args);
    harness_threads(job, 2, send_one_more);
    finish(first);
    HARNESS_EQ(want_credit(job), 0);
    expect_no_bells(job);
}

/* A thread that leads queues the handler's calls, gets its own reply at once, and leaves without having slept. */
HARNESS_TEST(peer, sets_want_credit_before_a_leader_leaves_its_queue, 20, .size = 2, .setup = setup,
             .options = { .no_spin = true })
{
    struct bx_future *first = stop_worker1(job);

    /* The background thread opens this worker's ring to itself and sleeps again. From the second call on this thread
     * leads. */
    for (int i = 0; i < WARM_UP; i++)
        HARNESS_EQ(bx_rpc_sync(job, "worker0", "take", NULL, NULL, NULL), 0);
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "flood", NULL, NULL, NULL), 0);
    HARNESS_CHECK(harness_counter(job, "queued_frames") > 0);
    HARNESS_EQ(want_credit(job), 1);
    harness_post(HANDLER_GO);
    finish(first);
    for (int i = 0; i < QUEUED_CALLS; i++)
        finish(flood_futures[i]);
    HARNESS_EQ(want_credit(job), 0);
}

/* SPDX-License-Identifier: MIT */
/*
 * lib/rpc/pool.c: requests that are cancelled in the queue. Worker 0 has one thread for blocking handlers, which stays
 * in "stay" until the test posts HARNESS_GO.
 */
#include "tests/harness/harness.h"

#include "rpc/rpc.h"

enum { QUEUED, CANCELLED };                                 /* gates */
enum { ID, RAN = 8 };                                       /* values */

HARNESS_HANDLER(note)
{
    harness_add(RAN + (int)bx_read_i64(args), 1);
    return 0;
}

static int setup(struct bx_job *job)
{
    return HARNESS_REGISTER(job, HARNESS_BLOCKING("stay", harness_hold), HARNESS_BLOCKING("note", note),
                            HARNESS_INLINE("look", harness_nothing));
}

static struct bx_future *begin(struct bx_job *job, const char *function, int64_t value)
{
    return harness_start(job, "worker0", function, harness_msg_i64(value), BX_FOREVER);
}

/* Waits until worker 0 has read all that this worker has sent. */
static void await_read(struct bx_job *job)
{
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "look", NULL, NULL, NULL), 0);
}

static void cancel(struct bx_job *job, struct bx_future *future)
{
    HARNESS_EQ(bx_future_cancel(future), 0);
    harness_end(future, BX_E_CANCELLED);
    await_read(job);
}

static uint64_t id_of(struct bx_future *future)
{
    return ((const struct bxi_call *)(const void *)future)->id;
}

static void keep_the_thread_busy(struct bx_job *job)
{
    struct bx_future *future = begin(job, "stay", 0);

    harness_await(CANCELLED, 1);
    harness_post(HARNESS_GO);
    harness_end(future, 0);
}

/* ---- A cancel ----------------------------------------------------------------------------------- */

static void queue_first(struct bx_job *job)
{
    struct bx_future *future;

    harness_await(HARNESS_HELD, 1);
    future = begin(job, "note", 1);
    harness_store(ID, id_of(future));
    await_read(job);
    harness_post(QUEUED);
    harness_end(future, 0);
}

static void queue_second_and_cancel(struct bx_job *job)
{
    struct bx_future *future;

    harness_await(QUEUED, 1);
    future = begin(job, "note", 2);
    HARNESS_EQ(id_of(future), harness_load(ID));        /* two callers have a request with the same id */
    await_read(job);
    cancel(job, future);
    harness_post(CANCELLED);
}

HARNESS_WORLD(pool_cancel, removes_the_request_of_its_caller_and_no_other, 20, .size = 3, .setup = setup,
              .body = { keep_the_thread_busy, queue_first, queue_second_and_cancel }, .options = { .pool_threads = 1 },
              .expect = HARNESS_TABLE({ RAN + 1, 1 }, { RAN + 2, 0 }));

#define MANY 130                /* more than twice the chains in which they are found */

static void cancel_one_of_many(struct bx_job *job)
{
    struct bx_future *futures[MANY];

    harness_await(HARNESS_HELD, 1);
    for (int i = 0; i < MANY; i++)
        futures[i] = begin(job, "note", i == MANY / 2 ? 2 : 1);
    await_read(job);
    cancel(job, futures[MANY / 2]);
    harness_post(CANCELLED);
    for (int i = 0; i < MANY; i++)
        if (i != MANY / 2)
            harness_end(futures[i], 0);
}

HARNESS_WORLD(pool_cancel, finds_one_of_many, 20, .size = 2, .setup = setup,
              .body = { keep_the_thread_busy, cancel_one_of_many }, .options = { .pool_threads = 1 },
              .expect = HARNESS_TABLE({ RAN + 1, MANY - 1 }, { RAN + 2, 0 }));

/* ---- A deadline --------------------------------------------------------------------------------- */

/* Of a one-way call nobody sends a cancel. Again with more time if it was read too late to be queued. */
static void let_oneways_expire(struct bx_job *job)
{
    struct bx_call_options hasty = { .timeout_ns = 5000000 };
    struct bx_msg *args = harness_msg_i64(1);
    uint64_t deadline_ns;

    harness_await(HARNESS_HELD, 1);
    do {
        hasty.timeout_ns *= 2;
        deadline_ns = bxi_now_ns() + hasty.timeout_ns;
        HARNESS_EQ(bx_rpc_oneway(job, "worker0", "note", args, &hasty), 0);
        await_read(job);
    } while (bxi_now_ns() >= deadline_ns);
    bx_msg_destroy(args);
    while (bxi_now_ns() <= deadline_ns + hasty.timeout_ns)      /* the call's own deadline began a little later */
        sched_yield();
    harness_post(CANCELLED);
    harness_end(begin(job, "note", 2), 0);
}

HARNESS_TEST(pool_cancel, is_not_needed_where_the_deadline_passes_in_the_queue, 20, .size = 2, .setup = setup,
             .body = { NULL, let_oneways_expire }, .options = { .pool_threads = 1 },
             .expect = HARNESS_TABLE({ RAN + 1, 0 }, { RAN + 2, 1 }))
{
    keep_the_thread_busy(job);
    HARNESS_EQ(bx_job_serve(job), 0);
    HARNESS_CHECK(harness_counter(job, "requests_expired") > 0);
}

/* SPDX-License-Identifier: MIT */
/*
 * lib/rpc/pool.c: the pool has as many threads as it needs and no more than it may have, and nested calls never starve.
 */
#include "tests/harness/harness.h"
#include "tests/harness/refuse.h"

#include "rpc/rpc.h"

enum { ENTERED, RELEASED };             /* gates */
enum { AT_ONCE, MOST_AT_ONCE };         /* values */

/* ---- Nested calls ---------------------------------------------------------------------------- */

static const char *other_worker(struct bx_job *job)
{
    return bx_worker_name(job, 1 - bx_job_rank(job));
}

/* Calls the function of its own name at the worker given by the context, until depth is 0. */
HARNESS_HANDLER(descend)
{
    struct bx_job *job = bx_request_job(request);
    int64_t depth = bx_read_i64(args);
    const char *next = context != NULL ? bx_job_name(job) : other_worker(job);
    struct bx_msg *inner_args, *inner = NULL;
    int rc;

    if (depth == 0)
        return bx_msg_put_i64(reply, 0);
    inner_args = harness_msg_i64(depth - 1);
    rc = bx_rpc_sync(job, next, bx_request_function(request), inner_args, NULL, &inner);
    bx_msg_destroy(inner_args);
    if (rc < 0)
        return rc;

    struct bx_reader reader = bx_msg_reader(inner);

    bx_msg_put_i64(reply, bx_read_i64(&reader) + 1);
    bx_msg_destroy(inner);
    return 0;
}

static int to_oneself;
#define ACROSS HARNESS_BLOCKING("across", descend)
#define INWARD { "inward", BX_BLOCKING, descend, NULL, &to_oneself }

HARNESS_TEST(pool, grows_under_calls_nested_200_deep_at_each_of_two_workers, 20, .size = 2, .handlers = { ACROSS })
{
    /* 400 levels, 200 of them at each worker, all waiting at once. */
    HARNESS_EQ(harness_call_i64(job, "worker1", "across", 400), 400);
    HARNESS_CHECK(harness_counter(job, "pool_threads") >= 200);
    HARNESS_CHECK(harness_counter(job, "pool_threads") <= 256);
    /* Once more, with the threads that the pool has now. */
    HARNESS_EQ(harness_call_i64(job, "worker1", "across", 400), 400);
}

HARNESS_TEST(pool, is_busy_when_all_256_threads_wait, 20, .size = 2, .handlers = { INWARD })
{
    struct bx_msg *args = harness_msg_i64(1000000);

    HARNESS_EQ(harness_call_i64(job, "worker0", "inward", 255), 255);
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "inward", args, NULL, NULL), BX_E_BUSY);
    HARNESS_HAS(bx_error_text(), "'worker0'");
    HARNESS_EQ(harness_counter(job, "pool_threads"), 256);
    bx_msg_destroy(args);
    /* No thread is blocked any more. */
    HARNESS_EQ(harness_call_i64(job, "worker0", "inward", 200), 200);
}

/* ---- How many run at once -------------------------------------------------------------------- */

HARNESS_HANDLER(enter_and_stay)
{
    uint64_t now = harness_add(AT_ONCE, 1) + 1;

    if (now > harness_load(MOST_AT_ONCE))
        harness_store(MOST_AT_ONCE, now);       /* a race can only make it smaller; the check is for an upper bound */
    harness_post(ENTERED);
    harness_await(RELEASED, 1);
    harness_add(AT_ONCE, (uint64_t)-1);
    return 0;
}

static void expect_16_threads(struct bx_job *job)
{
    HARNESS_EQ(bx_job_serve(job), 0);
    HARNESS_EQ(harness_counter(job, "pool_threads"), 16);
    HARNESS_EQ(harness_counter(job, "requests_blocking"), 40);
}

HARNESS_TEST(pool, has_sixteen_threads_for_handlers_that_do_not_wait_in_boxcar, 20, .size = 2,
             .handlers = { HARNESS_BLOCKING("stay", enter_and_stay) }, .body = { NULL, expect_16_threads })
{
    struct bx_future *futures[40];

    for (int i = 0; i < 40; i++)
        futures[i] = harness_async(job, "worker1", "stay");
    harness_await(ENTERED, 16);
    harness_post(RELEASED);
    harness_end_all(futures, 40, 0);
    HARNESS_EQ(harness_gate(ENTERED), 40);
    HARNESS_CHECK(harness_load(MOST_AT_ONCE) <= 16);
}

/* ---- Handlers under one lock ------------------------------------------------------------------ */

#define BURST 32
#define TAKES_NS 20000                  /* a handler: the pool had time to wake another thread */
#define LATE_NS 50000                   /* the pool wakes another one for work that nobody takes for 0.1 ms */

static bxi_a32 burst;
static bxi_a32 burst_threads;           /* that have run a handler of this burst */
static bxi_a32 was_stopped;             /* in this burst the machine kept a thread from running */
static bxi_a64 burst_ns;                /* when this burst's last handler ended; 0: none has */

HARNESS_HANDLER(compute)
{
    static _Thread_local uint32_t last;
    uint64_t began_ns = bxi_now_ns(), last_ns = bxi_load_acquire(&burst_ns), now_ns;

    if (last != bxi_load_seq_cst(&burst))
        bxi_add_seq_cst(&burst_threads, 1);
    last = bxi_load_seq_cst(&burst);
    do
        now_ns = bxi_now_ns();
    while (now_ns - began_ns < TAKES_NS);
    if ((last_ns > 0 && began_ns > last_ns + LATE_NS) || now_ns - began_ns > TAKES_NS + LATE_NS)
        bxi_store_relaxed(&was_stopped, 1);
    bxi_store_release(&burst_ns, now_ns);
    return 0;
}

/* How many threads the burst ran on; 0 if one was stopped. */
HARNESS_HANDLER(end_burst)
{
    bx_msg_put_i64(reply, bxi_load_seq_cst(&was_stopped) ? 0 : (int64_t)bxi_load_seq_cst(&burst_threads));
    bxi_store_relaxed(&was_stopped, 0);
    bxi_store_release(&burst_ns, 0);
    bxi_store_relaxed(&burst_threads, 0);
    bxi_add_seq_cst(&burst, 1);
    return 0;
}

/* 1 if a look at the queue is about to come, but for the one that looks whether it moves at all. */
HARNESS_HANDLER(is_watched)
{
    struct bxi_pool *pool = &bx_request_job(request)->rpc->pool;
    bool watched;

    pthread_mutex_lock(&pool->lock);
    watched = pool->look_ns != 0 && pool->look_ns < UINT64_C(1000000000);
    pthread_mutex_unlock(&pool->lock);
    return bx_msg_put_i64(reply, watched);
}

static int setup_locked(struct bx_job *job)
{
    bxi_store_relaxed(&burst, 1);
    return HARNESS_REGISTER(job, { "compute", BX_LOCKED, compute, NULL, NULL }, HARNESS_INLINE("end_burst", end_burst),
                            { "stay", BX_LOCKED, enter_and_stay, NULL, NULL },
                            { "is_watched", BX_LOCKED, is_watched, NULL, NULL },
                            { "inward", BX_LOCKED, descend, NULL, &burst });
}

static struct bx_future *futures[BURST];

static void begin_calls(struct bx_job *job, const char *function, int count)
{
    for (int i = 0; i < count; i++)
        futures[i] = harness_async(job, "worker1", function);
}

/* Of a hundred bursts of BX_BLOCKING handlers thirteen ran on one thread or two. */
HARNESS_TEST(pool, wakes_no_thread_for_locked_work_that_another_does, 60, .size = 2, .setup = setup_locked)
{
    int few = 0, counted = 0;

    for (int i = 0; i < 1000 && counted < 100; i++) {
        int64_t threads;

        begin_calls(job, "compute", BURST);
        harness_end_all(futures, BURST, 0);
        threads = harness_call_i64(job, "worker1", "end_burst", 0);
        counted += threads > 0;
        few += threads == 1 || threads == 2;
    }
    if (counted == 0)
        cr_skip_test("the machine stopped a thread in each of 1000 bursts");
    HARNESS_CHECK(few * 2 >= counted);
}

/* Each look is two wake-ups of the background thread, which may take the CPU of the caller or of the handler. */
HARNESS_TEST(pool, does_not_watch_a_queue_whose_only_task_is_taken_by_the_thread_that_read_it, 20, .size = 2,
             .setup = setup_locked)
{
    for (int i = 0; i < 1000; i++)
        HARNESS_EQ(harness_call_i64(job, "worker1", "is_watched", 0), 0);
}

/* Each of them by a look at the queue: the first after 0.1 ms, the last after 3.2. */
HARNESS_TEST(pool, wakes_a_thread_where_a_locked_handler_stays, 20, .size = 2, .setup = setup_locked)
{
    uint64_t began_ns = bxi_now_ns();

    begin_calls(job, "stay", 16);
    harness_await(ENTERED, 16);
    HARNESS_CHECK(bxi_now_ns() - began_ns < UINT64_C(2000000000));
    harness_post(RELEASED);
    harness_end_all(futures, 16, 0);
}

HARNESS_TEST(pool, wakes_a_thread_where_a_locked_handler_waits_for_another, 20, .size = 2, .setup = setup_locked)
{
    OWN(msg) *args = harness_msg_i64(200);

    HARNESS_EQ(bx_rpc_sync(job, "worker1", "inward", args, NULL, NULL), 0);
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "inward", args, NULL, NULL), 0);
}

/* ---- Signals --------------------------------------------------------------------------------- */

HARNESS_HANDLER(blocked_signals)
{
    sigset_t mask;

    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    return bx_msg_put_i64(reply, sigismember(&mask, SIGINT) && sigismember(&mask, SIGUSR1));
}

HARNESS_TEST(pool, leaves_signals_to_the_threads_of_the_program, 20, .size = 2,
             .handlers = { HARNESS_BLOCKING("blocked", blocked_signals) })
{
    sigset_t mask;

    HARNESS_EQ(harness_call_i64(job, "worker0", "blocked", 0), 1);
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    HARNESS_EQ(sigismember(&mask, SIGUSR1), 0);
}

/* ---- If no thread can be made ---------------------------------------------------------------- */

HARNESS_HANDLER(forbid_threads)
{
    HARNESS_CHECK(refuse(SYS_clone3, EAGAIN) && refuse(SYS_clone, EAGAIN));
    return 0;
}

/* Async: a thread of worker 0's program completes it. */
static struct bx_future *promise;

HARNESS_ASYNC_HANDLER(answer_later)
{
    promise = bx_future_create(bx_request_job(request));
    *reply = bx_future_acquire(promise);
    harness_post(ENTERED);
    return 0;
}

/* Blocking: waits for RELEASED, then calls worker 0. */
HARNESS_HANDLER(wait_for_worker0)
{
    harness_post(ENTERED);
    harness_await(RELEASED, 1);
    return bx_rpc_sync(bx_request_job(request), "worker0", "answer_later", NULL, NULL, NULL);
}

/* Blocking: waits for RELEASED, then ends its thread. */
HARNESS_HANDLER(end_thread)
{
    harness_post(ENTERED);
    harness_await(RELEASED, 1);
    pthread_exit(NULL);
}

static int setup_threadless(struct bx_job *job)
{
    const struct bx_batch_options blocking = { .blocking = true };

    HARNESS_REGISTER(job, HARNESS_INLINE("forbid_threads", forbid_threads), HARNESS_INLINE("look", harness_nothing),
                     HARNESS_BLOCKING("nothing", harness_nothing), HARNESS_BLOCKING("end_thread", end_thread),
                     HARNESS_BLOCKING("wait_for_worker0", wait_for_worker0),
                     HARNESS_ASYNC("answer_later", answer_later));
    return bx_register_batch(job, "batch", harness_no_rows, NULL, &blocking);
}

static void expect_no_thread(struct bx_job *job, const char *function)
{
    HARNESS_EQ(bx_rpc_sync(job, "worker1", function, NULL, NULL, NULL), -EAGAIN);
    HARNESS_HAS(bx_error_text(), "'worker1'");
    HARNESS_HAS(bx_error_text(), "no thread can be made for it: Resource temporarily unavailable");
}

HARNESS_TEST(pool, refuses_requests_if_no_thread_can_be_made, 20, .size = 2, .setup = setup_threadless)
{
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "forbid_threads", NULL, NULL, NULL), 0);
    expect_no_thread(job, "nothing");
    expect_no_thread(job, "batch");
}

/* A request and three rows, each a batch of its own, are queued behind one that waits for worker 0, and worker 0 waits
 * for them. Each is refused, not only the first. */
HARNESS_TEST(pool, refuses_queued_requests_when_its_only_thread_waits, 20, .size = 2, .setup = setup_threadless)
{
    struct bx_future *first = NULL, *second = NULL, *rows[3] = { NULL };

    first = harness_async(job, "worker1", "wait_for_worker0");
    harness_await(ENTERED, 1);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "forbid_threads", NULL, NULL, NULL), 0);
    second = harness_async(job, "worker1", "nothing");
    for (int i = 0; i < 3; i++)
        rows[i] = harness_async(job, "worker1", "batch");
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "look", NULL, NULL, NULL), 0);
    harness_post(RELEASED);
    HARNESS_EQ(bx_future_wait(second, BX_FOREVER), -EAGAIN);
    HARNESS_HAS(bx_future_error_text(second), "no thread can be made for it");
    harness_end_all(rows, 3, -EAGAIN);
    HARNESS_CHECK(!bx_future_is_done(first));
    harness_await(ENTERED, 2);
    bx_future_set(promise, NULL);
    bx_future_release(promise);
    harness_end(first, 0);
    bx_future_release(second);
}

/* The only thread calls pthread_exit in a handler, and no other can be made: it must go on. */
HARNESS_TEST(pool, keeps_its_only_thread_that_exits_if_no_other_can_be_made, 20, .size = 2, .setup = setup_threadless)
{
    OWN(future) *first = NULL, *second = NULL;

    first = harness_async(job, "worker1", "end_thread");
    harness_await(ENTERED, 1);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "forbid_threads", NULL, NULL, NULL), 0);
    second = harness_async(job, "worker1", "nothing");
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "look", NULL, NULL, NULL), 0);
    harness_post(RELEASED);
    HARNESS_EQ(bx_future_wait(first, BX_FOREVER), BX_E_HANDLER);
    HARNESS_EQ(bx_future_wait(second, BX_FOREVER), 0);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "end_thread", NULL, NULL, NULL), BX_E_HANDLER);
}

/* SPDX-License-Identifier: MIT */
/*
 * lib/base/usercall.c: threads that call pthread_exit in the program's functions ("leave"), and threads that are
 * cancelled while they wait.
 */
#include "tests/harness/harness.h"
#include "tests/harness/refuse.h"

#include "rpc/rpc.h"

enum { RELEASED, AFTER, READY, ANSWERED };      /* gates */
enum { CALLBACKS };                     /* values */

#define TIMES 40                        /* more than the pool has threads */

/* ---- A call ------------------------------------------------------------------------------------- */

static int returns_seven(void *context)
{
    (void)context;
    return 7;
}

static int leaves(void *context)
{
    pthread_exit(context);
}

static void *leave_three_times(void *value)
{
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(bxi_call_user(leaves, value), BX_E_HANDLER);
        cr_assert_not_null(bxi_leaving);
        cr_assert_eq(bxi_call_user(returns_seven, NULL), 7);
        cr_assert_not_null(bxi_leaving);
    }
    bxi_out(0);
    cr_assert_fail("the thread was to end");
    return NULL;
}

Test(usercall, returns_from_a_function_that_leaves_and_ends_the_thread_later, .timeout = 20)
{
    int value;
    void *result = NULL;
    pthread_t thread;

    cr_assert_eq(pthread_create(&thread, NULL, leave_three_times, &value), 0);
    cr_assert_eq(pthread_join(thread, &result), 0);
    cr_assert_eq(result, &value);
}

/* ---- Handlers ------------------------------------------------------------------------------------ */

HARNESS_HANDLER(exit_in_handler)
{
    bx_msg_put_i64(reply, 1);
    pthread_exit(NULL);
}

HARNESS_ASYNC_HANDLER(exit_in_async)
{
    *reply = bx_future_create(bx_request_job(request));
    pthread_exit(NULL);
}

HARNESS_BATCH(exit_in_body)
{
    pthread_exit(NULL);
}

HARNESS_CALLBACK(exit_in_callback)
{
    harness_add(CALLBACKS, 1);
    pthread_exit(NULL);
}

HARNESS_CALLBACK(count_callback)
{
    harness_add(CALLBACKS, 1);
}

/* An async handler whose future has a callback that leaves, on the thread that completes the future. */
HARNESS_ASYNC_HANDLER(exit_after_answer)
{
    *reply = bx_future_create(bx_request_job(request));
    HARNESS_EQ(bx_future_on_done(*reply, exit_in_callback, NULL), 0);
    HARNESS_EQ(bx_future_on_done(*reply, count_callback, NULL), 0);
    bx_future_set(*reply, NULL);
    harness_failed(__FILE__, __LINE__, "bx_future_set came back though its callback left");
}

/* Calls a function of its own worker that leaves. This thread or another one runs it. */
HARNESS_HANDLER(call_inline_here)
{
    struct bx_job *job = bx_request_job(request);

    bx_msg_put_i64(reply, bx_rpc_sync(job, bx_job_name(job), "inline", NULL, NULL, NULL));
    return 0;
}

HARNESS_HANDLER(stay)
{
    harness_await(RELEASED, 1);
    return 0;
}

static int setup(struct bx_job *job)
{
    static const struct bx_batch_options blocking = { .blocking = true };

    HARNESS_REGISTER(job, HARNESS_INLINE("inline", exit_in_handler), HARNESS_BLOCKING("blocking", exit_in_handler),
                     HARNESS_BLOCKING("nested", call_inline_here), HARNESS_ASYNC("async", exit_in_async),
                     HARNESS_ASYNC("callback", exit_after_answer));
    HARNESS_EQ(bx_register_batch(job, "batch", exit_in_body, NULL, NULL), 0);
    HARNESS_EQ(bx_register_batch(job, "blocking_batch", exit_in_body, NULL, &blocking), 0);
    return HARNESS_REGISTER(job, HARNESS_BLOCKING("stay", stay), HARNESS_INLINE("twice", harness_twice));
}

static void call_those_that_leave(struct bx_job *job)
{
    static const char *const functions[] = { "inline", "async", "batch", "blocking", "blocking_batch", "callback" };

    for (int i = 0; i < TIMES; i++) {
        const char *function = functions[i % 6];

        HARNESS_EQ(bx_rpc_sync(job, "worker1", function, NULL, NULL, NULL), BX_E_HANDLER);
        HARNESS_HAS(bx_error_text(), "its thread ended");
        HARNESS_HAS(bx_error_text(), function);
        HARNESS_EQ(harness_call_i64(job, "worker1", "twice", i), 2 * i);
    }
    HARNESS_EQ(harness_load(CALLBACKS), TIMES / 6 * 2);
    for (int i = 0; i < TIMES; i++)
        HARNESS_EQ(bx_rpc_sync(job, "worker1", "blocking", NULL, NULL, NULL), BX_E_HANDLER);
}

Test(usercall, of_a_thread_that_leaves_is_answered_and_the_worker_goes_on, .timeout = 30)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { call_those_that_leave } });
    harness_reset();
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { call_those_that_leave },
                                         .options = { .no_spin = true, .wait = BX_WAIT_EPOLL } });
}

HARNESS_TEST(usercall, of_a_handler_within_the_wait_of_another_ends_both, 30, .size = 2, .setup = setup)
{
    for (int i = 0; i < TIMES; i++) {
        int rc = bx_rpc_sync(job, "worker1", "nested", NULL, NULL, NULL);

        /* The thread of "nested" ran the inline handler and ended in it, or another thread did. */
        HARNESS_CHECK(rc == 0 || rc == BX_E_HANDLER);
        HARNESS_EQ(harness_call_i64(job, "worker1", "twice", i), 2 * i);
    }
}

/* ---- Threads of the program ------------------------------------------------------------------------ */

static void *call_oneself(void *context)
{
    struct bx_job *job = context;

    /* Usually runs the handler on this thread. */
    bx_rpc_sync(job, bx_job_name(job), "inline", NULL, NULL, NULL);
    return job;
}

static void *set_a_future(void *context)
{
    struct bx_future *future = context;

    bx_future_set(future, NULL);
    harness_failed(__FILE__, __LINE__, "bx_future_set came back though its callback left");
}

static void leave_in_threads(struct bx_job *job)
{
    pthread_t thread;
    void *result;

    for (int i = 0; i < TIMES; i++) {
        HARNESS_EQ(pthread_create(&thread, NULL, call_oneself, job), 0);
        HARNESS_EQ(pthread_join(thread, &result), 0);
        HARNESS_EQ(harness_call_i64(job, "worker1", "twice", i), 2 * i);
        HARNESS_EQ(harness_call_i64(job, bx_job_name(job), "twice", i), 2 * i);
    }
    for (int i = 0; i < TIMES; i++) {
        OWN(future) *future = bx_future_create(job), *then = NULL;

        HARNESS_EQ(bx_future_on_done(future, exit_in_callback, NULL), 0);
        HARNESS_EQ(bx_future_on_done(future, count_callback, NULL), 0);
        then = bx_future_all(job, &future, 1);
        HARNESS_EQ(pthread_create(&thread, NULL, set_a_future, future), 0);
        HARNESS_EQ(bx_future_wait(then, BX_FOREVER), 0);
        HARNESS_EQ(pthread_join(thread, &result), 0);
        HARNESS_CHECK(result == NULL);
    }
    HARNESS_EQ(harness_load(CALLBACKS), 2 * TIMES);
}

Test(usercall, that_leaves_on_a_thread_of_the_program_gives_the_role_back, .timeout = 30)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { leave_in_threads } });
    harness_reset();
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { leave_in_threads },
                                         .options = { .no_spin = true } });
}

/* ---- Cancellation ----------------------------------------------------------------------------------- */

static void *wait_and_be_cancelled(void *context)
{
    struct bx_job *job = context;

    HARNESS_EQ(bx_rpc_sync(job, "worker1", "stay", NULL, NULL, NULL), 0);
    harness_post(AFTER);
    while (harness_gate(AFTER) != 0)
        pthread_testcancel();
    return NULL;
}

static void cancel_a_caller(struct bx_job *job)
{
    pthread_t thread;
    void *result = NULL;

    HARNESS_EQ(pthread_create(&thread, NULL, wait_and_be_cancelled, job), 0);
    HARNESS_WAIT_WHILE((bxi_load_seq_cst(job->run->bell.word) & 3) != BXI_WHO_LEADER);
    HARNESS_EQ(pthread_cancel(thread), 0);
    harness_post(RELEASED);
    HARNESS_EQ(pthread_join(thread, &result), 0);
    HARNESS_CHECK(result == PTHREAD_CANCELED);
    HARNESS_EQ(harness_gate(AFTER), 1);
    HARNESS_EQ(harness_call_i64(job, "worker1", "twice", 2), 4);
    HARNESS_EQ(harness_call_i64(job, "worker0", "twice", 2), 4);
}

Test(usercall, waits_without_a_cancellation_point, .timeout = 30)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { cancel_a_caller },
                                         .options = { .no_spin = true } });
    harness_reset();
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { cancel_a_caller },
                                         .options = { .no_spin = true, .wait = BX_WAIT_EPOLL } });
}

/* ---- Threads that leave while the engine is busy ----------------------------------------------------- */

HARNESS_HANDLER(forbid_threads)
{
    HARNESS_CHECK(refuse(SYS_clone3, EAGAIN) && refuse(SYS_clone, EAGAIN));
    return 0;
}

/* The background thread of worker 1 leaves in a handler, and no other thread can be made. */
HARNESS_TEST(usercall, does_not_end_the_background_thread_if_no_other_can_be_made, 20, .size = 2, .setup = setup,
             .handlers = { HARNESS_INLINE("forbid_threads", forbid_threads) })
{
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "forbid_threads", NULL, NULL, NULL), 0);
    for (int i = 0; i < 3; i++) {
        HARNESS_EQ(bx_rpc_sync(job, "worker1", "inline", NULL, NULL, NULL), BX_E_HANDLER);
        HARNESS_EQ(harness_call_i64(job, "worker1", "twice", i), 2 * i);
    }
}

static struct bx_future *promise;
static _Thread_local bool waits;

/* Leaves, if it runs on the thread that waits for the promise. On the background thread it completes the promise. */
HARNESS_CALLBACK(leave_the_wait)
{
    if (waits)
        pthread_exit(NULL);
    bx_future_set(promise, NULL);
}

static void *wait_behind_a_deadline(void *argument)
{
    const struct bx_call_options soon = { .timeout_ns = 5 * HARNESS_MS };
    struct bx_job *job = argument;
    struct bx_future *call = NULL;

    waits = true;
    HARNESS_EQ(bx_rpc_async(job, "worker1", "stay", NULL, &soon, &call), 0);
    HARNESS_EQ(bx_future_on_done(call, leave_the_wait, NULL), 0);
    bx_future_release(call);
    HARNESS_EQ(bx_future_wait(promise, BX_FOREVER), 0);
    return NULL;
}

/* No more calls than worker 1 has threads, so that none is answered before the end: a frame would end the wait too. */
HARNESS_TEST(usercall, that_leaves_ends_a_wait_in_which_another_calls_deadline_passed, 30, .size = 2, .setup = setup,
             .options = { .no_spin = true })
{
    for (int i = 0; i < BXI_POOL_READY; i++) {
        pthread_t thread;

        promise = bx_future_create(job);
        HARNESS_EQ(pthread_create(&thread, NULL, wait_behind_a_deadline, job), 0);
        HARNESS_EQ(pthread_join(thread, NULL), 0);
        bx_future_release(promise);
    }
    harness_post(RELEASED);
}

/* The call finds no free slot and makes a pass. In that pass its thread leaves and slots become free, so it is sent. */
static struct bx_future *sent;

static void *call_and_leave(void *argument)
{
    const struct bx_call_options no_wait = { .no_wait = true };
    struct bx_job *job = argument;

    for (int i = 0; i < BXI_CALLS_MAX; i++) {
        OWN(future) *future = harness_async(job, "worker1", "twice");
    }
    harness_post(READY);
    harness_await(ANSWERED, 1);
    bx_rpc_async(job, "worker1", "twice", NULL, &no_wait, &sent);
    harness_failed(__FILE__, __LINE__, "bx_rpc_async came back though its thread had left");
}

/* Worker 1: sends its request before its replies. */
static void call_first_and_answer(struct bx_job *job)
{
    harness_await(READY, 1);
    HARNESS_EQ(bx_rpc_oneway(job, "worker0", "inline", NULL, NULL), 0);
    while (harness_counter(job, "requests_inline") < BXI_CALLS_MAX)
        HARNESS_CHECK(bx_progress(job) >= 0);
    harness_post(ANSWERED);
}

HARNESS_TEST(usercall, that_leaves_ends_a_call_that_was_still_sent, 30, .size = 2, .setup = setup,
             .body = { NULL, call_first_and_answer }, .options = { .own_loop = true })
{
    pthread_t thread;

    HARNESS_EQ(pthread_create(&thread, NULL, call_and_leave, job), 0);
    HARNESS_EQ(pthread_join(thread, NULL), 0);
    HARNESS_CHECK(sent != NULL);
    bx_future_release(sent);
}

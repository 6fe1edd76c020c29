/* SPDX-License-Identifier: MIT */
/*
 * Async handlers on the pool (bx_register_async with BX_BLOCKING, lib/rpc/handler.c): they compute, call and wait, and
 * then return a future. Their requests are cancelled while the handler runs, and while the future is pending. In the
 * queue they are as those of other blocking handlers: test_pool.c, test_pool_cancel.c.
 */
#include "parked_fixture.h"

#include "tests/harness/memory.h"

#include "rpc/rpc.h"

enum gate { ENTERED, GO, ASKED };

/* ---- The handler ----------------------------------------------------------------------------- */

/* What "work" is to do. */
enum what { NESTED_CALL, PARK, STAY_AND_PARK, FORWARD, FAIL, RETURN_NOTHING, READ_TOO_MUCH, LEAVE, LEAVE_A_FUTURE,
            NO_MEMORY };

/* It calls its caller, and waits for the answer, before it has a future. */
static int call_back(const struct bx_request *request, struct bx_future **reply)
{
    struct bx_job *job = bx_request_job(request);
    int64_t twice = harness_call_i64(job, bx_worker_name(job, bx_request_caller(request)), "twice", 21);

    *reply = bx_future_create(job);
    return bx_future_set(*reply, harness_msg_i64(twice));
}

static int stay_and_park(const struct bx_request *request, struct bx_future **reply)
{
    harness_await(GO, 1);
    return park(bx_request_job(request), reply);
}

HARNESS_ASYNC_HANDLER(work)
{
    struct bx_job *job = bx_request_job(request);

    harness_post(ENTERED);
    switch ((enum what)bx_read_i64(args)) {
    case NESTED_CALL:
        return call_back(request, reply);
    case PARK:
        return park(job, reply);
    case STAY_AND_PARK:
        return stay_and_park(request, reply);
    case FORWARD:
        harness_await(GO, 1);
        return bx_rpc_async(job, "worker2", "park", NULL,
                            &(struct bx_call_options){ .flags = BX_CALL_DETACHED }, reply);
    case FAIL:
        return bx_fail(-ERANGE, "car %d does not exist", 9);
    case RETURN_NOTHING:
        return 0;
    case READ_TOO_MUCH:
        bx_read_i64(args);
        return park(job, reply);
    case LEAVE_A_FUTURE:
        park(job, reply);
        pthread_exit(NULL);
    case LEAVE:
        pthread_exit(NULL);
    case NO_MEMORY:
        park(job, reply);
        memory_fails_in = 1;            /* the callback that the library adds to the future */
        return 0;
    }
    return -ENOSYS;
}

/* An async handler of the usual kind. */
HARNESS_ASYNC_HANDLER(park_here)
{
    harness_post(ASKED);
    return park(bx_request_job(request), reply);
}

HARNESS_HANDLER(set_parked)
{
    return bx_future_set(parked, harness_msg_i64(bx_read_i64(args)));
}

static const struct bx_type counter = { .name = "counter" };

HARNESS_HANDLER(make_counter)
{
    static int64_t number = 5;

    return bx_msg_put_object(bx_request_job(request), reply, &counter, &number);
}

HARNESS_ASYNC_HANDLER(count)
{
    int64_t *number = bx_request_object(request);

    *number += bx_read_i64(args);
    *reply = bx_future_create(bx_request_job(request));
    return bx_future_set(*reply, harness_msg_i64(*number));
}

static int setup(struct bx_job *job)
{
    HARNESS_EQ(bx_register_async(job, "work", BX_BLOCKING, work, NULL), 0);
    HARNESS_EQ(bx_register_async(job, "work", BX_BLOCKING, work, NULL), -EEXIST);
    HARNESS_REGISTER(job, HARNESS_ASYNC("park", park_here), HARNESS_INLINE("set", set_parked),
                     HARNESS_INLINE("twice", harness_twice), HARNESS_INLINE("make_counter", make_counter));
    return bx_register_method_async(job, &counter, "count", BX_BLOCKING, count, NULL);
}

/* ---- Helpers --------------------------------------------------------------------------------- */

static struct bx_future *begin(struct bx_job *job, enum what what, uint64_t timeout_ns)
{
    return harness_start(job, "worker1", "work", harness_msg_i64(what), timeout_ns);
}

/* Worker 1 has read all that this worker has sent, while its handler stays on the pool. */
static void await_read(struct bx_job *job)
{
    HARNESS_EQ(harness_call_i64(job, "worker1", "twice", 4), 8);
}

static int count_at(struct bx_job *job, enum bxi_where where)
{
    struct bxi_tables *tables = bxi_tables((struct bxi_control *)(uintptr_t)job->rpc->peers[1]->view.control);
    int at = 0;

    for (int i = 0; i < BXI_SERVING_MAX; i++)
        at += (bxi_load_acquire(&tables->serving[i].where) & 0xff) == (uint64_t)where;
    return at;
}

static void await_pending(struct bx_job *job)
{
    while (count_at(job, BXI_AT_FUTURE) == 0)
        await_read(job);
}

/* ---- Answers --------------------------------------------------------------------------------- */

TestSuite(async_pool, .timeout = 30);

/* A handler may call and wait before it has a future. */
static void waits_and_answers(struct bx_job *job)
{
    HARNESS_EQ(harness_call_i64(job, "worker1", "work", NESTED_CALL), 42);
}

static void counts_it_as_blocking(struct bx_job *job)
{
    HARNESS_EQ(bx_job_serve(job), 0);
    HARNESS_EQ(harness_counter(job, "requests_blocking"), 1);
    HARNESS_EQ(harness_counter(job, "requests_async"), 0);
}

HARNESS_TEST(async_pool, a_handler_runs_on_a_thread_of_the_pool_and_its_request_then_waits_for_the_future, 30,
             .size = 2, .setup = setup, .body = { NULL, counts_it_as_blocking })
{
    struct bx_future *future = begin(job, STAY_AND_PARK, BX_FOREVER);

    harness_await(ENTERED, 1);
    await_read(job);
    HARNESS_EQ(count_at(job, BXI_AT_THREAD), 1);
    harness_post(GO);
    await_pending(job);
    HARNESS_EQ(count_at(job, BXI_AT_THREAD), 0);
    HARNESS_EQ(harness_call(job, "worker1", "twice", harness_msg_i64(1)), 2);
    HARNESS_CHECK(!bx_future_is_done(future));

    struct bx_msg *args = harness_msg_i64(77);

    HARNESS_EQ(bx_rpc_sync(job, "worker1", "set", args, NULL, NULL), 0);
    bx_msg_destroy(args);
    HARNESS_EQ(harness_end_i64(future), 77);
    HARNESS_EQ(count_at(job, BXI_AT_FUTURE), 0);
}

/* One thread: the second handler runs though the first one's future is pending. */
HARNESS_TEST(async_pool, a_pending_future_holds_no_thread, 30, .size = 2, .setup = setup,
             .options = { .pool_threads = 1 })
{
    struct bx_future *first = begin(job, PARK, BX_FOREVER);

    waits_and_answers(job);
    HARNESS_CHECK(!bx_future_is_done(first));
    HARNESS_EQ(bx_future_cancel(first), 0);
    harness_end(first, BX_E_CANCELLED);
    check_end(BX_E_CANCELLED);
}

static void expect(struct bx_job *job, enum what what, int code, const char *text)
{
    OWN(msg) *args = harness_msg_i64(what);

    HARNESS_EQ(bx_rpc_sync(job, "worker1", "work", args, NULL, NULL), code);
    HARNESS_HAS(bx_error_text(), text);
}

HARNESS_TEST(async_pool, a_handler_may_fail_return_no_future_or_leave, 30, .size = 2, .setup = setup)
{
    OWN(msg) *fail = harness_msg_i64(FAIL);

    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "work", fail, NULL), 0);          /* this has no answer */
    expect(job, FAIL, -ERANGE, "car 9 does not exist");
    expect(job, RETURN_NOTHING, BX_E_HANDLER, "returned no future");
    expect(job, LEAVE, BX_E_HANDLER, "its thread ended in it");
    waits_and_answers(job);
}

HARNESS_TEST(async_pool, a_future_that_cannot_answer_is_cancelled, 30, .size = 2, .setup = setup)
{
    expect(job, READ_TOO_MUCH, BX_E_SHORT_MESSAGE, "were read at byte 8");
    expect(job, LEAVE_A_FUTURE, BX_E_HANDLER, "its thread ended in it");
    expect(job, NO_MEMORY, -ENOMEM, "work");
    harness_await(ENDED, 3);
    waits_and_answers(job);
}

HARNESS_TEST(async_pool, a_method_has_its_object, 30, .size = 2, .setup = setup)
{
    OWN(msg) *args = harness_msg_i64(3), *reply = NULL;
    OWN(rref) *object = NULL;
    struct bx_reader reader;

    HARNESS_EQ(bx_remote(job, "worker1", "make_counter", NULL, NULL, &object), 0);
    HARNESS_EQ(bx_rref_sync(object, "count", args, NULL, &reply), 0);
    reader = bx_msg_reader(reply);
    HARNESS_EQ(bx_read_i64(&reader), 8);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "count", args, NULL, NULL), BX_E_TYPE);
}

/* The arguments are released when the handler returns, not when its future is done. */
HARNESS_TEST(async_pool, arguments_are_given_back_before_the_future_is_done, 30, .size = 2, .setup = setup)
{
    OWN(tensor) *tensor = NULL;
    struct bx_msg *args = harness_msg_i64(PARK);
    struct bx_future *future;

    HARNESS_EQ(bx_tensor_create(job, BX_F32, 1, (int64_t[]){ 4096 }, &tensor), 0);
    HARNESS_EQ(bx_msg_put_tensor(args, tensor), 0);
    future = harness_start(job, "worker1", "work", args, BX_FOREVER);
    HARNESS_EQ(bx_loans_wait(job, 1, 0, BX_FOREVER), 0);
    HARNESS_CHECK(!bx_future_is_done(future));
    harness_cancel(future);
    check_end(BX_E_CANCELLED);
}

/* ---- The caller gives up --------------------------------------------------------------------- */

HARNESS_TEST(async_pool, a_cancel_while_the_handler_runs_fails_the_future_that_it_returns, 30, .size = 2,
             .setup = setup)
{
    struct bx_future *future = begin(job, STAY_AND_PARK, BX_FOREVER);

    harness_await(ENTERED, 1);
    HARNESS_EQ(bx_future_cancel(future), 0);
    harness_end(future, BX_E_CANCELLED);
    await_read(job);
    HARNESS_EQ(harness_gate(ENDED), 0);
    harness_post(GO);
    check_end(BX_E_CANCELLED);
}

/* The call is made after the cancel has come: it is cancelled as soon as the handler has returned. */
HARNESS_TEST(async_pool, a_call_whose_future_a_cancelled_handler_returns_is_cancelled, 30, .size = 3, .setup = setup)
{
    struct bx_future *future = begin(job, FORWARD, BX_FOREVER);

    harness_await(ENTERED, 1);
    HARNESS_EQ(bx_future_cancel(future), 0);
    harness_end(future, BX_E_CANCELLED);
    await_read(job);
    harness_post(GO);
    check_end(BX_E_CANCELLED);
}

/* ---- The caller's end ------------------------------------------------------------------------- */

HARNESS_BODY(sees_it_die)
{
    check_end(BX_E_PEER_DEAD);
}

/* Its handler goes on once this worker has closed the caller: calls to it fail. */
static void lets_it_go_on(struct bx_job *job)
{
    HARNESS_WAIT_WHILE(bx_rpc_oneway(job, "worker0", "twice", NULL, NULL) != BX_E_PEER_DEAD);
    harness_post(GO);
    harness_serve(job);
}

HARNESS_TEST(async_pool, a_handler_whose_caller_dies_meanwhile_has_its_future_failed, 30, .size = 3, .setup = setup,
             .dies = 1u, .body = { NULL, lets_it_go_on, sees_it_die })
{
    begin(job, STAY_AND_PARK, BX_FOREVER);
    harness_await(ENTERED, 1);
    kill(getpid(), SIGKILL);
}

/* SPDX-License-Identifier: MIT */
/*
 * Async handlers whose future is not done when their caller times out, cancels or dies: the future fails, so that the
 * handler learns of it, and no shutdown waits for its answer. Also an async handler that fails at once.
 */
#include "parked_fixture.h"

enum gate { PARKED };

HARNESS_ASYNC_HANDLER(park_here)
{
    int rc = park(bx_request_job(request), reply);

    harness_post(PARKED);
    return rc;
}

/* Fails with an error that it might have got from another call. */
HARNESS_ASYNC_HANDLER(fails_with_corrupt)
{
    return bx_fail(BX_E_CORRUPT, "somebody else was cut off");
}

/* Answers with the future of a call of its own. */
HARNESS_ASYNC_HANDLER(forward)
{
    return bx_rpc_async(bx_request_job(request), "worker2", "park", NULL, NULL, reply);
}

static int setup(struct bx_job *job)
{
    return HARNESS_REGISTER(job, HARNESS_ASYNC("fail", fails_with_corrupt), HARNESS_ASYNC("forward", forward),
                            HARNESS_ASYNC("park", park_here));
}

/* Calls worker 1, and returns when the request is parked there or behind it. */
static struct bx_future *call_until_parked(struct bx_job *job, const char *function)
{
    struct bx_future *future = harness_start(job, "worker1", function, NULL, 0);

    harness_await(PARKED, 1);
    return future;
}

/* A handler's code is an answer, even BX_E_CORRUPT; only the engine's own checks cut a worker off. */
HARNESS_TEST(parked, an_async_handler_that_fails_with_corrupt_cuts_off_no_worker, 20, .size = 2, .setup = setup)
{
    for (int i = 0; i < 3; i++) {
        HARNESS_EQ(bx_rpc_sync(job, "worker1", "fail", NULL, NULL, NULL), BX_E_CORRUPT);
        HARNESS_HAS(bx_error_text(), "somebody else was cut off");
    }
    HARNESS_CHECK(bx_worker_is_alive(job, 1));
}

HARNESS_TEST(parked, an_async_handler_learns_that_its_caller_timed_out, 20, .size = 2, .setup = setup)
{
    struct bx_call_options hasty = { .timeout_ns = 5000000 };

    /* Repeated until a request is read in time: one that is read too late is not run. */
    do {
        hasty.timeout_ns *= 2;
        HARNESS_EQ(bx_rpc_sync(job, "worker1", "park", NULL, &hasty, NULL), BX_E_TIMEOUT);
    } while (harness_gate(PARKED) == 0);
    check_end(BX_E_CANCELLED);
}

HARNESS_BODY(sees_it_die)
{
    check_end(BX_E_PEER_DEAD);
}

HARNESS_TEST(parked, learns_that_the_caller_of_a_oneway_died, 20, .size = 3, .setup = setup, .dies = 1u,
             .body = { NULL, NULL, sees_it_die })
{
    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "park", NULL, NULL), 0);
    harness_await(PARKED, 1);
    kill(getpid(), SIGKILL);
}

HARNESS_TEST(parked, a_call_whose_future_a_handler_returned_is_cancelled_with_the_request, 20, .size = 3,
             .setup = setup)
{
    struct bx_future *future = call_until_parked(job, "forward");

    HARNESS_EQ(bx_future_cancel(future), 0);
    HARNESS_EQ(bx_future_error(future), BX_E_CANCELLED);
    bx_future_release(future);
    check_end(BX_E_CANCELLED);
}

/* The call that was forwarded ends with BX_E_CANCELLED at its callee, whatever ended the request. */
HARNESS_BODY(sees_the_call_end)
{
    check_end(BX_E_CANCELLED);
}

HARNESS_TEST(parked, a_call_whose_future_a_handler_returned_is_cancelled_when_the_caller_dies, 20, .size = 3,
             .setup = setup, .dies = 1u, .body = { NULL, NULL, sees_the_call_end })
{
    call_until_parked(job, "forward");
    kill(getpid(), SIGKILL);
}

HARNESS_TEST(parked, the_program_cannot_complete_the_future_of_a_call, 20, .size = 2, .setup = setup)
{
    struct bx_future *future = call_until_parked(job, "park");

    HARNESS_EQ(bx_future_set(future, harness_msg_i64(5)), -EINVAL);
    HARNESS_HAS(bx_error_text(), "bx_future_cancel");
    HARNESS_EQ(bx_future_fail(future, -EIO, "not so"), -EINVAL);
    HARNESS_HAS(bx_error_text(), "bx_future_fail");
    HARNESS_CHECK(!bx_future_is_done(future));
    HARNESS_EQ(bx_future_cancel(future), 0);
    HARNESS_EQ(bx_future_set(future, NULL), -EINVAL);
    bx_future_release(future);
    check_end(BX_E_CANCELLED);
}

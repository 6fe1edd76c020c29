/* SPDX-License-Identifier: MIT */
/*
 * Async handlers whose future is not done when their caller cancels or dies: the future fails, so that the handler
 * learns of it. Also an async handler that fails at once. Deadlines, and futures of calls: test_async_pool.c, and
 * tests/sim (late).
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

static int setup(struct bx_job *job)
{
    return HARNESS_REGISTER(job, HARNESS_ASYNC("fail", fails_with_corrupt), HARNESS_ASYNC("park", park_here));
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

HARNESS_TEST(parked, the_program_cannot_complete_the_future_of_a_call, 20, .size = 2, .setup = setup)
{
    struct bx_future *future = harness_async(job, "worker1", "park");

    harness_await(PARKED, 1);
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

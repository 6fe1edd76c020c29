/* SPDX-License-Identifier: MIT */
/*
 * Handlers of one job that call another job of the same process: the requests, locks and pools of the two are apart.
 */
#include "tests/harness/harness.h"

enum { BEGUN, ENTERED, GIVEN_UP, LOOKED };      /* gates */

static struct bx_job *second;           /* a job of one worker, which has the first job's functions too */

static void begin_second(const struct harness_handler *handlers)
{
    char name[BX_NAME_MAX + 1];
    struct bx_options options = { .job = name, .world_size = 1 };

    harness_name(name, sizeof name, "second");
    HARNESS_EQ(bx_job_create(&options, &second), 0);
    HARNESS_EQ(harness_register(second, handlers), 0);
    HARNESS_EQ(bx_job_start(second), 0);
}

static void end_second(void)
{
    harness_check_rescued(second);
    HARNESS_EQ(bx_job_shutdown(second, 0), 0);
    bx_job_destroy(second);
}

/* ---- Calls for a request --------------------------------------------------------------------------- */

static void give_up(void *context)
{
    (void)context;
    harness_post(GIVEN_UP);
}

/* Its caller gives it up while a call to the other job is under way. */
HARNESS_HANDLER(call_second)
{
    struct bx_future *future = harness_start(second, bx_rank(0), "hold", NULL, BX_FOREVER);

    HARNESS_EQ(bx_request_on_cancel(request, give_up, NULL), 0);
    harness_post(ENTERED);
    harness_await(GIVEN_UP, 1);
    HARNESS_CHECK(bx_request_is_cancelled(request));
    HARNESS_CHECK(!bx_future_is_done(future));
    harness_post(HARNESS_GO);
    harness_end(future, 0);
    HARNESS_EQ(harness_call_i64(second, bx_rank(0), "echo", 7), 7);
    harness_post(LOOKED);
    return 0;
}

HARNESS_BODY(serve_with_a_second_job)
{
    begin_second((const struct harness_handler[]){ HARNESS_BLOCKING("hold", harness_hold),
                                                        HARNESS_INLINE("echo", harness_echo), { 0 } });
    harness_post(BEGUN);
    harness_await(LOOKED, 1);
    end_second();
}

HARNESS_TEST(two_jobs, calls_to_the_other_job_go_on_when_a_request_is_given_up, 20, .size = 2,
             .handlers = { HARNESS_BLOCKING("call second", call_second) }, .body = { NULL, serve_with_a_second_job })
{
    struct bx_future *future;

    harness_await(BEGUN, 1);
    future = harness_async(job, "worker1", "call second");
    harness_await(ENTERED, 1);
    harness_cancel(future);
    harness_await(LOOKED, 1);
}

/* ---- Pools ----------------------------------------------------------------------------------------- */

/* From the first job's pool to the second one's, and back. */
HARNESS_HANDLER(there)
{
    return bx_msg_put_i64(reply, harness_call_i64(second, bx_rank(0), "back", bx_read_i64(args)));
}

HARNESS_HANDLER(back)
{
    return bx_msg_put_i64(reply, harness_call_i64(context, bx_rank(0), "twice", bx_read_i64(args)));
}

HARNESS_TEST(two_jobs, a_thread_of_a_pool_that_waits_in_the_other_job_is_not_counted, 20, .size = 1,
             .options = { .pool_threads = 1 },
             .handlers = { HARNESS_BLOCKING("there", there), HARNESS_BLOCKING("twice", harness_twice) })
{
    begin_second((const struct harness_handler[]){ { "back", BX_BLOCKING, back, NULL, job }, { 0 } });
    HARNESS_EQ(harness_call_i64(job, bx_rank(0), "there", 21), 42);
    end_second();
}

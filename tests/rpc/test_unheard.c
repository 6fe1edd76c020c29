/* SPDX-License-Identifier: MIT */
/*
 * Errors that no program was told of (lib/rpc/future.c, lib/rref/table.c): of a future that was released unread, of a
 * reference whose object could not be made and that was released unused. Each is logged, once.
 */
#include "tests/rref/rref_fixture.h"

TestSuite(unheard, .timeout = 60);

enum { RELEASED = 10, LOGGED };             /* gates, beside those of the fixture */

static void take_log(int level, const char *text, void *context)
{
    (void)context;
    if (strstr(text, "was released un") == NULL)
        return;
    HARNESS_EQ(level, 1);
    HARNESS_HAS(text, "no such thing");
    harness_post(LOGGED);
}

/* Fails, once its caller has released what it will not read. */
HARNESS_HANDLER(fail_late)
{
    harness_await(RELEASED, 1);
    return bx_fail(-ENOENT, "no such thing");
}

HARNESS_HANDLER(fail)
{
    return bx_fail(-ENOENT, "no such thing");
}

static int set_up(struct bx_job *job)
{
    bx_set_log(take_log, NULL);
    HARNESS_REGISTER(job, HARNESS_BLOCKING("fail_late", fail_late), HARNESS_INLINE("fail", fail));
    return setup(job);
}

static struct bx_future *call(struct bx_job *job, const char *function)
{
    return harness_start(job, "worker1", function, bx_msg_create(0), BX_FOREVER);
}

/* Without a question that tells of the error. */
static void await_done(struct bx_future *future)
{
    HARNESS_WAIT_WHILE(!bx_future_is_done(future));
}

HARNESS_THEN(pass_on)
{
    return 0;
}

HARNESS_TEST(unheard, error_of_a_future_that_was_released_unread_is_logged_once, 60, .size = 2, .setup = set_up)
{
    struct bx_future *future = call(job, "fail_late"), *then;

    bx_future_release(future);
    harness_post(RELEASED);
    do                              /* else the reply is read by the watchdog, a second later */
        HARNESS_EQ(bx_rpc_sync(job, "worker1", "fail", NULL, NULL, NULL), -ENOENT);
    while (harness_gate(LOGGED) == 0);

    future = call(job, "fail");
    await_done(future);
    HARNESS_EQ(harness_gate(LOGGED), 1);
    bx_future_release(future);
    HARNESS_EQ(harness_gate(LOGGED), 2);

    future = call(job, "fail");
    then = bx_future_then(future, pass_on, NULL, NULL); /* it is told, and fails itself */
    bx_future_release(future);
    await_done(then);
    HARNESS_EQ(harness_gate(LOGGED), 2);
    bx_future_release(then);
    HARNESS_EQ(harness_gate(LOGGED), 3);
}

HARNESS_CALLBACK(note)
{
    *(bool *)context = true;
}

HARNESS_TEST(unheard, error_that_was_read_is_not_logged, 60, .size = 2, .setup = set_up)
{
    struct bx_future *futures[5];
    bool told = false;

    for (int i = 0; i < 5; i++)
        futures[i] = call(job, "fail");
    for (int i = 0; i < 5; i++)
        await_done(futures[i]);
    HARNESS_EQ(bx_future_wait(futures[0], BX_FOREVER), -ENOENT);
    HARNESS_EQ(bx_future_error(futures[1]), -ENOENT);
    HARNESS_CHECK(bx_future_value(futures[2]) == NULL);
    HARNESS_HAS(bx_future_error_text(futures[3]), "no such thing");
    HARNESS_EQ(bx_future_on_done(futures[4], note, &told), 0);
    HARNESS_CHECK(told);
    for (int i = 0; i < 5; i++)
        bx_future_release(futures[i]);
    futures[0] = call(job, "fail_late");
    harness_cancel(futures[0]);
    harness_post(RELEASED);
    HARNESS_EQ(harness_gate(LOGGED), 0);
}

HARNESS_TEST(unheard, error_of_a_reference_that_was_released_unused_is_logged_once, 60, .size = 2, .setup = set_up)
{
    struct bx_rref *rref = NULL;

    HARNESS_EQ(bx_remote(job, "worker1", "fail_late", NULL, NULL, &rref), 0);
    bx_rref_release(rref);
    harness_post(RELEASED);
    harness_await(LOGGED, 1);

    HARNESS_EQ(bx_remote(job, "worker1", "fail", NULL, NULL, &rref), 0);
    HARNESS_EQ(bx_rref_wait(rref, BX_FOREVER), -ENOENT);
    bx_rref_release(rref);
    HARNESS_EQ(bx_remote(job, "worker1", "fail", NULL, NULL, &rref), 0);
    HARNESS_EQ(bx_rref_to_here(rref, NULL, NULL), -ENOENT);
    bx_rref_release(rref);
    HARNESS_EQ(harness_gate(LOGGED), 1);
}

/* SPDX-License-Identifier: MIT */
/*
 * lib/shutdown.c, lib/call.c, lib/pool.c: what a worker that leaves without the others does with calls and requests
 * that are not done.
 */
#include "harness.h"

#include "internal.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>

enum { ENTERED, RELEASED };             /* gates */

static int stay(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)request, (void)args, (void)reply, (void)context;
    harness_post(ENTERED);
    harness_await(RELEASED, 1);
    return 0;
}

static int setup(struct bx_job *job)
{
    return bx_register(job, "stay", BX_BLOCKING, stay, NULL);
}

/* ---- Replies that come while it leaves ----------------------------------------------------------- */

static void *lead(void *argument)
{
    HARNESS_EQ(bx_future_wait(argument, BX_FOREVER), BX_E_SHUTDOWN);
    return NULL;
}

/* Runs in the midst of the leaving, when the calls have just failed: the other thread reads the reply now. */
static void let_the_reply_come(struct bx_future *future, void *context)
{
    struct bx_job *job = context;

    HARNESS_EQ(bx_future_error(future), BX_E_SHUTDOWN);
    harness_post(RELEASED);
    while (harness_counter(job, "late_replies") + harness_counter(job, "peers_corrupt") == 0)
        sched_yield();
}

static void leave_before_the_reply(struct bx_job *job)
{
    struct bx_future *promise = bx_future_create(job), *call = NULL;
    pthread_t thread;

    harness_leaves_by_itself();
    HARNESS_EQ(bx_rpc_async(job, bx_job_name(job), "stay", NULL, NULL, &call), 0);
    HARNESS_EQ(bx_future_on_done(call, let_the_reply_come, job), 0);
    bx_future_release(call);
    harness_await(ENTERED, 1);
    HARNESS_EQ(pthread_create(&thread, NULL, lead, promise), 0);
    HARNESS_EQ(bx_job_shutdown(job, HARNESS_MS), BX_E_TIMEOUT);
    HARNESS_EQ(pthread_join(thread, NULL), 0);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
    HARNESS_EQ(harness_counter(job, "late_replies"), 1);
    bx_future_release(promise);
    bx_job_destroy(job);
}

Test(leave, does_not_take_a_reply_that_comes_meanwhile_for_nonsense, .timeout = 20)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { leave_before_the_reply } });
}

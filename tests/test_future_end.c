/* SPDX-License-Identifier: MIT */
/*
 * lib/future.c: futures that nobody completes. bx_job_destroy fails what is pending, so that it may be released
 * afterwards.
 */
#include "harness.h"

#include "internal.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- The job ends ---------------------------------------------------------------------------- */

static struct bx_job *make_job(void)
{
    struct bx_options options = { .job = harness_job_name(), .world_size = 2 };
    struct bx_job *job = NULL;

    cr_assert_eq(bx_job_create(&options, &job), 0, "%s", bx_error_text());
    return job;
}

static void count(struct bx_future *future, void *context)
{
    (void)future;
    ++*(int *)context;
}

static int never(struct bx_future *in, struct bx_msg *out, void *context)
{
    (void)in;
    (void)out;
    ++*(int *)context;
    return 0;
}

static void check_ended(struct bx_future *future)
{
    cr_expect(bx_future_done(future));
    cr_expect_eq(bx_future_error(future), BX_E_SHUTDOWN);
    cr_expect_eq(bx_future_wait(future, BX_FOREVER), BX_E_SHUTDOWN);
    cr_expect_not_null(strstr(bx_future_error_text(future), "worker0"), "%s", bx_future_error_text(future));
    bx_future_release(future);
}

Test(future_end, fails_what_is_pending_when_its_job_is_destroyed, .timeout = 20)
{
    struct bx_job *job = make_job();
    struct bx_future *made = bx_future_create(job), *set = bx_future_create(job), *released = bx_future_create(job);
    int called = 0, ran = 0;
    struct bx_future *then = bx_future_then(made, never, &ran);
    struct bx_future *all = bx_future_all(job, &made, 1), *any = bx_future_any(job, &made, 1);

    bx_future_on_done(made, count, &called);
    bx_future_on_done(any, count, &called);
    bx_future_set(set, NULL);
    bx_future_release(released);
    bx_job_destroy(job);
    cr_expect_eq(called, 2);
    cr_expect_eq(ran, 0);
    check_ended(any);
    check_ended(all);
    check_ended(then);
    check_ended(made);
    cr_expect_eq(bx_future_error(set), 0);
    bx_future_release(set);
}

static void make_another(struct bx_future *future, void *context)
{
    struct bx_job *job = context;

    cr_expect_null(bx_future_create(job));
    cr_expect_not_null(strstr(bx_error_text(), "worker0"), "%s", bx_error_text());
    cr_expect_null(bx_future_then(future, never, NULL));
}

Test(future_end, lets_no_callback_make_another_one_while_its_job_is_destroyed, .timeout = 20)
{
    struct bx_job *job = make_job();
    struct bx_future *future = bx_future_create(job);

    bx_future_on_done(future, make_another, job);
    bx_job_destroy(job);
    check_ended(future);
}

/* An async handler holds its future when its worker leaves: the request is answered, and the future is the
 * handler's to release after the end of the job. */
static struct bx_future *held;

static int hold(const struct bx_request *request, struct bx_reader *args, struct bx_future **reply, void *context)
{
    (void)args;
    (void)context;
    held = bx_future_create(bx_request_job(request));
    *reply = bx_future_acquire(held);
    harness_post(0);
    return 0;
}

static int setup(struct bx_job *job)
{
    return bx_register_async(job, "hold", hold, NULL);
}

static void call_held(struct bx_job *job)
{
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "hold", NULL, NULL, NULL), BX_E_SHUTDOWN);
}

static void leave_with_a_held_future(struct bx_job *job)
{
    harness_leaves_by_itself();
    harness_await(0, 1);
    HARNESS_EQ(bx_job_shutdown(job, 50 * HARNESS_MS), BX_E_TIMEOUT);
    HARNESS_CHECK(!bx_future_done(held));
    bx_job_destroy(job);
    HARNESS_EQ(bx_future_error(held), BX_E_SHUTDOWN);
    bx_future_release(held);
}

Test(future_end, answers_what_an_async_handler_still_holds, .timeout = 20)
{
    harness_run(&(struct harness_world){
        .size = 2, .setup = setup, .body = { call_held, leave_with_a_held_future } });
}

/* The answer hangs on a future that the job does not know: of no job, or of another one in this process. */
static int hold_foreign(const struct bx_request *request, struct bx_reader *args, struct bx_future **reply,
                        void *context)
{
    (void)request;
    (void)args;
    (void)context;
    held = bx_future_create(NULL);
    *reply = bx_future_acquire(held);
    harness_post(0);
    return 0;
}

static int setup_foreign(struct bx_job *job)
{
    return bx_register_async(job, "hold", hold_foreign, NULL);
}

Test(future_end, fails_a_future_of_no_job_that_was_to_be_an_answer, .timeout = 20)
{
    harness_run(&(struct harness_world){
        .size = 2, .setup = setup_foreign, .body = { call_held, leave_with_a_held_future } });
}

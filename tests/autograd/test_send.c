/* SPDX-License-Identifier: MIT */
/*
 * Contexts and variables in messages (lib/autograd/send.c, context.c): what cannot be written, and what can no longer
 * be read. Each worker has one parameter, w.
 */
#include "tests/harness/harness.h"

#include "boxcar_dist.h"

#include <criterion/criterion.h>
#include <errno.h>

TestSuite(send, .timeout = 60);

static struct bx_dist *dist;
static struct bx_var *w;

static struct bx_context *new_context(void)
{
    struct bx_context *context = NULL;

    HARNESS_EQ(bx_context_create(dist, &context), 0);
    return context;
}

static int set_up(struct bx_job *job)
{
    const int64_t shape[] = { 1 };
    struct bx_tensor *tensor = NULL;

    HARNESS_EQ(bx_tensor_create(job, BX_F64, 1, shape, &tensor), 0);
    *(double *)bx_tensor_data_mut(tensor) = 3;
    HARNESS_EQ(bx_var_create(tensor, true, &w), 0);
    bx_tensor_release(tensor);
    HARNESS_EQ(bx_register(job, "echo", BX_INLINE, harness_echo_bytes, NULL), 0);
    return bx_dist_create(job, &dist);
}

/* ---- a message that could not be written ------------------------------------------------------------------- */

static void expect_unsent(struct bx_job *job, struct bx_msg *msg, int code)
{
    const uint64_t sent = harness_counter(job, "calls_sent");

    HARNESS_EQ(bx_msg_error(msg), code);
    HARNESS_EQ(bx_msg_put_i64(msg, 1), code);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "echo", msg, NULL, NULL), code);
    HARNESS_EQ(harness_counter(job, "calls_sent"), sent);
    bx_msg_clear(msg);
}

static void write_what_has_ended(struct bx_job *job)
{
    struct bx_context *context = new_context(), *lives = new_context();
    struct bx_msg *msg = bx_msg_create(0);

    bx_context_acquire(context);
    bx_context_end(context);
    HARNESS_EQ(bx_msg_put_context(msg, context), BX_E_CANCELLED);
    expect_unsent(job, msg, BX_E_CANCELLED);
    HARNESS_EQ(bx_msg_put_var(msg, context, w), BX_E_CANCELLED);
    expect_unsent(job, msg, BX_E_CANCELLED);
    HARNESS_EQ(bx_msg_put_context(msg, NULL), -EINVAL);
    expect_unsent(job, msg, -EINVAL);
    HARNESS_EQ(bx_msg_put_var(msg, lives, NULL), -EINVAL);
    expect_unsent(job, msg, -EINVAL);
    bx_msg_destroy(msg);
    bx_context_release(context);
    bx_context_end(lives);
}

Test(send, message_that_could_not_be_written_is_not_sent)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = set_up, .body = { write_what_has_ended } });
}

static void fail_twice(struct bx_job *job)
{
    struct bx_msg *msg = bx_msg_create(0);

    (void)job;
    HARNESS_EQ(bx_msg_fail(msg, 0), -EINVAL);
    HARNESS_EQ(bx_msg_error(msg), 0);
    HARNESS_EQ(bx_msg_fail(msg, -EIO), -EIO);
    HARNESS_EQ(bx_msg_fail(msg, -ENOMEM), -EIO);
    HARNESS_EQ(bx_msg_fail(msg, 0), -EIO);
    HARNESS_EQ(bx_msg_put_var(msg, NULL, NULL), -EIO);
    bx_msg_destroy(msg);
}

Test(send, message_keeps_its_first_failure)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = set_up, .body = { fail_twice } });
}

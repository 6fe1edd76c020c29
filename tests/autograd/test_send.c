/* SPDX-License-Identifier: MIT */
/*
 * Contexts and variables in messages (lib/autograd/send.c, context.c): what cannot be written, and what can no longer
 * be read. Each worker has one parameter, w.
 */
#include "tests/autograd/dist_fixture.h"

TestSuite(send, .timeout = 60);

/* Twice: a variable of this worker, and the same as if a process that had this rank before had sent it. */
static int answer_as_former(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply,
                            void *unused)
{
    OWN(context) *context = NULL;
    OWN(msg) *own = bx_msg_create(0);
    struct bx_reader reader;

    (void)request, (void)unused;
    HARNESS_EQ(bx_read_context(dist, args, &context), 0);
    HARNESS_EQ(bx_msg_put_var(reply, context, w), 0);
    HARNESS_EQ(bx_msg_put_var(own, context, w), 0);
    reader = bx_msg_reader(own);
    bx_msg_put_u64(reply, bx_read_u64(&reader));            /* context */
    bx_msg_put_i32(reply, bx_read_i32(&reader));            /* rank */
    bx_msg_put_i32(reply, bx_read_i32(&reader) - 1);        /* generation */
    bx_msg_put_i32(reply, bx_read_i32(&reader));            /* number */
    HARNESS_EQ(bx_msg_put_tensor(reply, bx_read_tensor(&reader)), 0);
    return 0;
}

static int set_up(struct bx_job *job)
{
    HARNESS_REGISTER(job, HARNESS_INLINE("echo", harness_echo_bytes), HARNESS_INLINE("former", answer_as_former));
    return dist_set_up(job, 1, 3, 0);
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

HARNESS_TEST(send, message_that_could_not_be_written_is_not_sent, 60, .size = 2, .setup = set_up)
{
    struct bx_context *context = dist_context(), *lives = dist_context();
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

HARNESS_TEST(send, message_keeps_its_first_failure, 60, .size = 2, .setup = set_up)
{
    OWN(msg) *msg = bx_msg_create(0);

    HARNESS_EQ(bx_msg_fail(msg, 0), -EINVAL);
    HARNESS_EQ(bx_msg_error(msg), 0);
    HARNESS_EQ(bx_msg_fail(msg, -EIO), -EIO);
    HARNESS_EQ(bx_msg_fail(msg, -ENOMEM), -EIO);
    HARNESS_EQ(bx_msg_fail(msg, 0), -EIO);
    HARNESS_EQ(bx_msg_put_var(msg, NULL, NULL), -EIO);
}

/* ---- variables of a worker that has died and come back ------------------------------------------------------- */

/* How a pass ends that needs the variables `first` to `last` of two, 0 the present worker 1's, 1 the former one's. */
static int pass_over(struct bx_job *job, int first, int last)
{
    struct pass pass = pass_begin();
    struct bx_msg *args = bx_msg_create(0), *reply = NULL;
    struct bx_var *vars[2], *loss;
    struct bx_reader reader;
    int rc;

    HARNESS_EQ(bx_msg_put_context(args, pass.context), 0);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "former", args, NULL, &reply), 0);
    reader = bx_msg_reader(reply);
    for (int i = 0; i < 2; i++)
        vars[i] = bx_read_var(pass.context, pass.tape, &reader);
    loss = bx_var_sum(pass.tape, first == last ? vars[first] : bx_var_add(pass.tape, vars[first], vars[last]));
    rc = pass_back(&pass, loss, false);
    bx_msg_destroy(args);
    bx_msg_destroy(reply);
    pass_end(&pass);
    return rc;
}

HARNESS_TEST(send, variable_of_a_former_worker_is_not_taken_for_one_of_its_successor, 60, .size = 2, .setup = set_up)
{
    HARNESS_EQ(pass_over(job, 0, 0), 0);
    HARNESS_EQ(pass_over(job, 1, 1), BX_E_PEER_DEAD);
    HARNESS_HAS(bx_error_text(), "worker 'worker1', which has died and come back");
    HARNESS_EQ(pass_over(job, 0, 1), BX_E_PEER_DEAD);
}

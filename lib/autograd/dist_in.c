/* SPDX-License-Identifier: MIT */
/*
 * Gradients that come from other workers, and the nodes of this worker that they make ready.
 *
 * autograd.grads, an inline handler, queues what came under context->lock. A thread that has context->running takes the
 * queue and runs what is ready. It is one of these:
 *
 *     the thread that has `running` already: when it has released it, it takes what came meanwhile
 *     the handler itself, if the nodes of the pass are small: a thread of the pool would take longer to wake up
 *     a thread of the pool: the handler calls autograd.work of its own worker. Nodes with code of the program, which
 *     may block, count as large
 *
 * So no gradient stays in the queue: it is queued before trylock fails, and whoever has the lock reads the queue after
 * releasing it.
 *
 * An inline handler cannot wait for room to send. Then what came out stays in the pass's list, and the pool sends it.
 */
#include "dist.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#define SEND_AFTER_NS UINT64_C(1000000)     /* a message costs a hundredth of it */
#define INLINE_ELEMENTS 8192                /* of all nodes' inputs and outputs together */

/* ---- running what is ready --------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* running. Gradients of quick nodes go together. After a slow node, what is there goes at once, so that the next worker
 * computes beside this one. */
static int run_nodes(struct bx_context *context)
{
    struct bxi_dist_pass *pass = context->pass;
    uint64_t sent_ns = now_ns();
    int rc = pass->pass.error;

    while (rc == 0 && pass->pass.ready != NULL) {
        rc = bxi_pass_step(&pass->pass);
        if (rc < 0 || pass->out_count == 0 || now_ns() - sent_ns < SEND_AFTER_NS)
            continue;
        rc = bxi_dist_send_out(context);
        sent_ns = now_ns();
    }
    return rc;
}

int bxi_dist_run_ready(struct bx_context *context, bool is_inline)
{
    struct bxi_dist_pass *pass = context->pass;
    const uint64_t began_ns = bx_trace_begin(context->dist->job);
    int rc = run_nodes(context);

    if (rc == 0)
        rc = bxi_dist_send_out(context);
    bxi_dist_trace(context, &bxi_slice_gradients, pass->number, began_ns, rc);
    if (rc == -EAGAIN && is_inline) {
        pthread_mutex_lock(&context->lock);
        pass->unsent = true;
        pthread_mutex_unlock(&context->lock);
    } else if (rc < 0) {
        bxi_dist_finish_part(context, pass->number, rc, bx_error_text());
    } else if (pass->pass.left == 0 && pass->awaited == 0) {
        bxi_pass_end(&pass->pass);          /* the nodes are free for the next pass */
        bxi_dist_settle(context, pass->number);
    }
    return rc;
}

/* ---- the queue --------------------------------------------------------------------------------------------- */

/* Takes the gradient's reference. */
static int take_grad(struct bx_context *context, struct bxi_dist_pass *pass, const struct bxi_incoming *in)
{
    struct bx_var *var = bxi_send_of(context, in->send);
    struct bxi_slot slot = { NULL, false };
    struct bxi_like like;
    int rc = 0;

    if (var == NULL) {
        bx_tensor_release(in->grad);
        return BX_E_CANCELLED;
    }
    like = bxi_var_like(var);
    if (pass->awaited == 0)
        rc = bx_fail(-EPROTO, "a gradient came that nobody waits for");
    else if (in->grad != NULL && !bxi_tensor_is_like(in->grad, &like))
        rc = bx_fail(-EPROTO, "a gradient of another shape came than that of the variable that was sent");
    else if (in->grad != NULL && (slot.grad = bxi_tensor_dense(context->dist->job, in->grad)) == NULL)
        rc = bx_error_code();
    if (rc == 0) {
        pass->awaited--;
        rc = bxi_pass_give(&pass->pass, var, slot);
    }
    bx_tensor_release(in->grad);
    bx_var_release(var);
    return rc;
}

/* running. */
static int take_queue(struct bx_context *context, bool is_inline)
{
    struct bxi_dist_pass *pass = context->pass;
    struct bxi_incoming *in;
    size_t count;
    int rc = 0;

    if (pass == NULL || bxi_dist_is_done(pass))
        return 0;
    pthread_mutex_lock(&context->lock);
    in = pass->in;
    count = pass->in_count;
    pass->in = NULL;
    pass->in_count = pass->in_capacity = 0;
    pass->unsent = false;
    pthread_mutex_unlock(&context->lock);
    for (size_t i = 0; i < count; i++) {
        if (rc == 0)
            rc = take_grad(context, pass, &in[i]);
        else
            bx_tensor_release(in[i].grad);
    }
    free(in);
    if (rc == 0)
        return bxi_dist_run_ready(context, is_inline);
    bxi_dist_finish_part(context, pass->number, rc, bx_error_text());
    return rc;
}

static bool has_work(struct bx_context *context)
{
    const struct bxi_dist_pass *pass;
    bool has;

    pthread_mutex_lock(&context->lock);
    pass = context->pass;
    has = pass != NULL && !bxi_dist_is_done(pass) && (pass->in_count > 0 || pass->unsent);
    pthread_mutex_unlock(&context->lock);
    return has;
}

/* Lets a thread of the pool take the queue. If the pool refuses, nobody would: then this worker's part has failed. */
static void hand_over(struct bx_context *context)
{
    /* It outlives the request of a handler that runs this. */
    const struct bx_call_options options = { .timeout_ns = BX_FOREVER, .flags = BX_CALL_DETACHED };
    struct bx_job *job = context->dist->job;
    struct bx_msg *args = NULL;
    struct bx_future *future = NULL;
    uint64_t number = 0;
    bool first;
    int rc;

    pthread_mutex_lock(&context->lock);
    first = context->pass != NULL && !context->pass->handed;
    if (first) {
        context->pass->handed = true;
        number = context->pass->number;
    }
    pthread_mutex_unlock(&context->lock);
    if (!first)
        return;
    args = bx_msg_create(8);
    rc = args == NULL ? bx_fail(-ENOMEM, "no memory for a message") : bx_msg_put_u64(args, context->id);
    if (rc == 0)
        rc = bx_rpc_async(job, bx_job_name(job), "autograd.work", args, &options, &future);
    if (rc == 0)
        rc = bxi_dist_tie(context, number, future);
    if (rc < 0)
        bxi_dist_finish_part(context, number, rc, bx_error_text());
    bx_msg_destroy(args);
}

void bxi_dist_run_queue(struct bx_context *context, bool is_inline)
{
    bool to_pool = false;

    while (!to_pool && has_work(context) && pthread_mutex_trylock(&context->running) == 0) {
        if (is_inline && context->pass != NULL && context->pass->elements > INLINE_ELEMENTS)
            to_pool = true;
        else
            to_pool = take_queue(context, is_inline) == -EAGAIN && is_inline;
        bxi_dist_unlock_running(context);
    }
    if (to_pool)
        hand_over(context);
}

/* ---- handlers ---------------------------------------------------------------------------------------------- */

/* context->lock. */
static int queue_grads(struct bxi_dist_pass *pass, struct bx_reader *args)
{
    int32_t count = bx_read_i32(args);

    for (int32_t i = 0; i < count; i++) {
        const uint32_t send = (uint32_t)bx_read_i32(args);
        struct bx_tensor *grad = bx_read_i32(args) != 0 ? bx_read_tensor(args) : NULL;
        int rc = args->error < 0 ? args->error
                                 : bxi_room(&pass->in, pass->in_count, &pass->in_capacity, sizeof *pass->in);

        if (rc < 0)
            return rc;
        pass->in[pass->in_count++] = (struct bxi_incoming){ send, bx_tensor_acquire(grad) };
    }
    return args->error;
}

int bxi_dist_grads(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *argument)
{
    struct bx_dist *dist = argument;
    struct bx_context *context = bxi_context_find(dist, bx_read_u64(args));
    uint64_t number = bx_read_u64(args);
    struct bxi_dist_pass *pass;
    int rc;

    (void)request, (void)reply;
    if (context == NULL)
        return bx_fail(BX_E_CANCELLED, "a gradient came for a context that has ended here");
    pthread_mutex_lock(&context->lock);
    pass = context->pass;
    if (pass == NULL || pass->number != number || bxi_dist_is_done(pass))
        rc = bx_fail(BX_E_CANCELLED, "a gradient came for a backward pass that has ended here");
    else
        rc = queue_grads(pass, args);
    pthread_mutex_unlock(&context->lock);
    if (rc < 0)
        bxi_dist_finish_part(context, number, rc, bx_error_text());
    else
        bxi_dist_run_queue(context, true);
    bx_context_release(context);
    return rc;
}

int bxi_dist_work(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *argument)
{
    struct bx_context *context = bxi_context_find(argument, bx_read_u64(args));

    (void)request, (void)reply;
    if (context == NULL)
        return 0;
    pthread_mutex_lock(&context->lock);
    if (context->pass != NULL)
        context->pass->handed = false;
    pthread_mutex_unlock(&context->lock);
    bxi_dist_run_queue(context, false);
    bx_context_release(context);
    return 0;
}

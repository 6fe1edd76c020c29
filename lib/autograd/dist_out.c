/* SPDX-License-Identifier: MIT */
/*
 * Gradients on their way to other workers: a pass collects them, and sends them in one message to each worker. Run
 * under context->running, except for the answers to the messages. And what all calls have in common that a part of a
 * pass makes: if one fails, so does the part.
 */
#include "dist.h"

#include <errno.h>
#include <stdlib.h>

int bxi_dist_put_out(struct bx_context *context, int rank, uint32_t send, struct bx_tensor *grad)
{
    struct bxi_dist_pass *pass = context->pass;
    int rc = bxi_room(&pass->out, pass->out_count, &pass->out_capacity, sizeof *pass->out);

    if (rc == 0)
        pass->out[pass->out_count++] = (struct bxi_outgoing){ rank, send, grad };
    else
        bx_tensor_release(grad);
    if (rc < 0 && pass->pass.error == 0)
        pass->pass.error = rc;
    return rc;
}

/* ---- calls of a part -------------------------------------------------------------------------------------------- */

struct sent {
    struct bx_context *context;                 /* one reference */
    uint64_t number;
};

static void answered(struct bx_future *future, void *argument)
{
    struct sent *sent = argument;

    if (bx_future_error(future) < 0)
        bxi_dist_finish_part(sent->context, sent->number, bx_future_error(future), bx_future_error_text(future));
    else
        bxi_dist_settle(sent->context, sent->number);
    bx_context_release(sent->context);
    free(sent);
}

int bxi_dist_tie(struct bx_context *context, uint64_t number, struct bx_future *future)
{
    struct sent *sent = malloc(sizeof *sent);
    int rc = sent == NULL ? bx_fail(-ENOMEM, "no memory for a message") : 0;

    if (rc == 0) {
        *sent = (struct sent){ bx_context_acquire(context), number };
        bxi_dist_unsettle(context, number);
        rc = bx_future_on_done(future, answered, sent);
    }
    if (rc < 0 && sent != NULL) {
        bx_context_release(context);
        free(sent);
    }
    bx_future_release(future);
    return rc;
}

/* ---- sending ---------------------------------------------------------------------------------------------------- */

/* running. */
static int send_to(struct bx_context *context, int rank)
{
    struct bxi_dist_pass *pass = context->pass;
    struct bx_job *job = context->dist->job;
    struct bx_msg *args = bx_msg_create(256);
    struct bx_future *future = NULL;
    /* They belong to the pass, not to the request of a handler that runs it. */
    const struct bx_call_options options = { .flags = BX_CALL_DETACHED };
    int32_t count = 0;
    int rc;

    if (args == NULL)
        return bx_fail(-ENOMEM, "no memory for a message");
    for (size_t i = 0; i < pass->out_count; i++)
        count += pass->out[i].rank == rank;
    bx_msg_put_u64(args, context->id);
    bx_msg_put_u64(args, pass->number);
    bx_msg_put_i32(args, count);
    for (size_t i = 0; i < pass->out_count; i++) {
        if (pass->out[i].rank != rank)
            continue;
        bx_msg_put_i32(args, (int32_t)pass->out[i].send);
        bx_msg_put_i32(args, pass->out[i].grad != NULL);
        if (pass->out[i].grad != NULL)
            bx_msg_put_tensor(args, pass->out[i].grad);
    }
    rc = bx_rpc_async(job, bx_worker_name(job, rank), "autograd.grads", args, &options, &future);
    bx_msg_destroy(args);
    return rc < 0 ? rc : bxi_dist_tie(context, pass->number, future);
}

static void drop_sent(struct bxi_dist_pass *pass, int rank)
{
    size_t left = 0;

    for (size_t i = 0; i < pass->out_count; i++) {
        if (pass->out[i].rank == rank)
            bx_tensor_release(pass->out[i].grad);
        else
            pass->out[left++] = pass->out[i];
    }
    pass->out_count = left;
}

int bxi_dist_send_out(struct bx_context *context)
{
    struct bxi_dist_pass *pass = context->pass;
    int rc = 0;

    while (rc == 0 && pass->out_count > 0) {
        const int rank = pass->out[0].rank;

        rc = send_to(context, rank);
        if (rc == 0)
            drop_sent(pass, rank);
    }
    return rc;
}

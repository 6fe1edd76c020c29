/* SPDX-License-Identifier: MIT */
/*
 * Variables in messages. Putting one records a send, reading it makes a receive node, whose gradient goes back to the
 * send. In a message: the context's id, the sender's rank and generation, the number of the send (0: no gradient is
 * wanted), and the value as a tensor. The generation, because a process that takes the rank of a dead worker may join
 * the same context and counts its own sends from 1: without it a pass would go on from those.
 */
#include "dist.h"

#include <errno.h>

#define COPY_BYTES 4096

/* The number of the send; 0 and *rc < 0: it failed. */
static uint32_t record(struct bx_context *context, struct bx_var *var, int *rc)
{
    uint32_t number = 0;
    bool ended;

    pthread_mutex_lock(&context->lock);
    ended = context->ended;
    if (!ended)
        *rc = bxi_room(&context->sends, context->send_count, &context->send_capacity, sizeof(struct bx_var *));
    if (!ended && *rc == 0) {
        context->sends[context->send_count++] = bx_var_acquire(var);
        number = (uint32_t)context->send_count;
    }
    pthread_mutex_unlock(&context->lock);
    if (ended)
        *rc = bxi_context_check(context);
    return number;
}

int bx_msg_put_var(struct bx_msg *msg, struct bx_context *context, struct bx_var *var)
{
    struct bx_tensor *value;
    uint32_t send = 0;
    int rank, rc;

    if (msg == NULL || bx_msg_error(msg) < 0)
        return msg != NULL ? bx_msg_error(msg) : bx_fail(-EINVAL, "bx_msg_put_var needs a message");
    if (context == NULL)
        rc = bx_fail(-EINVAL, "bx_msg_put_var needs a context");
    else if (var == NULL)
        rc = bx_fail(-EINVAL, "the variable to be sent is NULL; an operation before failed");
    else
        rc = bxi_context_check(context);
    if (rc == 0 && bx_var_requires_grad(var))
        send = record(context, var, &rc);
    if (rc < 0)
        return bx_msg_fail(msg, rc);
    bx_msg_put_u64(msg, context->id);
    rank = bx_job_rank(context->dist->job);
    bx_msg_put_i32(msg, rank);
    bx_msg_put_i32(msg, bx_worker_generation(context->dist->job, rank));
    bx_msg_put_i32(msg, (int32_t)send);
    value = bx_var_acquire_value(var);
    rc = bx_msg_put_tensor(msg, value);
    bx_tensor_release(value);
    return rc;
}

struct bx_var *bxi_send_of(struct bx_context *context, uint32_t number)
{
    struct bx_var *var = NULL;

    pthread_mutex_lock(&context->lock);
    if (number >= 1 && number <= context->send_count)
        var = bx_var_acquire(context->sends[number - 1]);
    pthread_mutex_unlock(&context->lock);
    if (var == NULL)
        bx_fail(BX_E_CANCELLED, "a backward pass came to variable %u of a context that has ended", number);
    return var;
}

/* ---- receiving -------------------------------------------------------------------------------------------- */

static int receive_backward(struct bxi_node *node, struct bxi_pass *pass)
{
    const struct bxi_receive *receive = node->extra;

    if (receive->context->pass == NULL || &receive->context->pass->pass != pass)
        return bx_fail(BX_E_STATE, "the pass came to a variable of another worker: it needs bx_context_backward of the "
                       "variable's context");
    return bxi_dist_put_out(receive->context, receive->rank, receive->send,
                            bx_tensor_acquire(node->slots[0].grad));
}

void bxi_receive_none(struct bxi_node *node, struct bxi_pass *pass)
{
    const struct bxi_receive *receive = node->extra;

    (void)pass;
    if (node->op == &bxi_receive_op)
        bxi_dist_put_out(receive->context, receive->rank, receive->send, NULL);
}

static void drop_receive(struct bxi_node *node)
{
    struct bxi_receive *receive = node->extra;

    bx_context_release(receive->context);
    receive->context = NULL;
}

const struct bxi_op bxi_receive_op = { "receive", receive_backward, drop_receive };

/* The value, with a reference. It lives as long as the context, so a small one is copied: that is cheaper than a lease,
 * of which a pair of workers has BX_LEASES_MAX. */
static struct bx_tensor *keep(struct bx_tape *tape, struct bx_tensor *value)
{
    struct bx_tensor *copy = NULL;
    int rc;

    if (!bx_tensor_is_borrowed(value) || bx_tensor_bytes(value) > COPY_BYTES)
        return bx_tensor_acquire(value);
    rc = bx_tensor_copy(tape->job, value, &copy);
    if (rc < 0)
        bxi_tape_fail(tape, rc);
    return copy;
}

static struct bx_var *receive(struct bx_tape *tape, struct bx_tensor *value, const struct bxi_receive *from)
{
    struct bxi_node *node;

    bx_tensor_acquire(value);
    node = bxi_tape_record(tape, &(struct bxi_record){ .op = &bxi_receive_op, .values = &value, .value_count = 1,
                                                       .requires_grad = true, .extra = from,
                                                       .extra_bytes = sizeof *from });
    if (node != NULL && node->op != NULL)
        bx_context_acquire(from->context);
    return node != NULL ? &node->vars[0] : NULL;
}

struct bx_var *bx_read_var(struct bx_context *context, struct bx_tape *tape, struct bx_reader *reader)
{
    struct bxi_receive from;
    struct bx_tensor *value;
    struct bx_var *var;
    uint64_t id;

    if (context == NULL || tape == NULL || reader == NULL) {
        bx_fail(-EINVAL, "bx_read_var needs a context, a tape and a reader");
        return NULL;
    }
    if (tape->error < 0)
        return NULL;
    id = bx_read_u64(reader);
    from = (struct bxi_receive){ context, .rank = bx_read_i32(reader) };
    from.generation = bx_read_i32(reader);
    from.send = (uint32_t)bx_read_i32(reader);
    value = bx_read_tensor(reader);
    if (reader->error < 0)
        return bxi_tape_fail(tape, reader->error);
    if (id != context->id)
        return bxi_tape_fail(tape, bx_fail(-EINVAL, "the message holds no variable of this context where one was "
                                                    "read"));
    if (bx_worker_name(context->dist->job, from.rank) == NULL)
        return bxi_tape_fail(tape, bx_fail(-EINVAL, "a variable in a message came from rank %d, which is none",
                                           from.rank));
    value = keep(tape, value);
    if (value == NULL)
        return NULL;
    var = from.send == 0 ? bx_tape_input(tape, value) : receive(tape, value, &from);
    bx_tensor_release(value);
    return var;
}

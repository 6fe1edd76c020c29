/* SPDX-License-Identifier: MIT */
/*
 * The functions of `ps`: they make the embedding table and the decoder as objects, and run their part of a forward
 * pass. Nothing here knows of backward passes: a variable that is put into the reply brings its gradient back.
 *
 * All of them are inline handlers. The parts are small, so their work costs less than handing it to another thread, and
 * one trainer calls, so nobody waits behind it. The parts do not change but for their parameters' values, so handlers
 * of the pool would need no lock either.
 */
#include "rnn.h"

#include <errno.h>

static const struct bx_type table_type = { .name = "embedding table", .destroy = rnn_part_destroy };
static const struct bx_type decoder_type = { .name = "decoder", .destroy = rnn_part_destroy };

/* ---- Making the parts ----------------------------------------------------------------------------------- */

int rnn_put_flags(struct bx_msg *msg, const struct rnn_flags *flags)
{
    bx_msg_put_i32(msg, flags->ntoken);
    bx_msg_put_i32(msg, flags->ninp);
    bx_msg_put_i32(msg, flags->nhid);
    bx_msg_put_f64(msg, flags->dropout);
    return bx_msg_put_u64(msg, flags->seed);
}

static int read_flags(struct bx_reader *args, struct rnn_flags *flags)
{
    *flags = (struct rnn_flags){ .ntoken = bx_read_i32(args) };
    flags->ninp = bx_read_i32(args);
    flags->nhid = bx_read_i32(args);
    flags->dropout = bx_read_f64(args);
    flags->seed = bx_read_u64(args);
    return args->error;
}

static int new_part(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply,
                    int (*create)(struct bx_job *job, const struct rnn_flags *flags, struct rnn_part **part),
                    const struct bx_type *type)
{
    struct bx_job *job = bx_request_job(request);
    struct rnn_part *part = NULL;
    struct rnn_flags flags;
    int rc = read_flags(args, &flags);

    if (rc == 0)
        rc = create(job, &flags, &part);
    if (rc == 0)
        rc = bx_msg_put_object(job, reply, type, part);
    if (rc < 0)
        rnn_part_destroy(part);
    return rc;
}

static int new_table(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)context;
    return new_part(request, args, reply, rnn_table_create, &table_type);
}

static int new_decoder(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)context;
    return new_part(request, args, reply, rnn_decoder_create, &decoder_type);
}

/* ---- Forward --------------------------------------------------------------------------------------------- */

/* A handler's part of a forward pass. */
struct part {
    struct bx_context *context;
    struct bx_tape *tape;
    uint64_t iteration;
};

static int open_part(struct part *part, const struct bx_request *request, struct bx_reader *args, struct bx_dist *dist)
{
    const struct bx_tape_options options = { .job = bx_request_job(request) };
    int rc;

    *part = (struct part){ NULL, NULL, 0 };
    rc = bx_read_context(dist, args, &part->context);
    if (rc == 0)
        rc = bx_tape_create(&options, &part->tape);
    part->iteration = bx_read_u64(args);
    return rc == 0 ? args->error : rc;
}

/* Puts the result into the reply. The context keeps what the backward pass needs. */
static int close_part(struct part *part, int rc, struct bx_var *result, struct bx_msg *reply)
{
    if (rc == 0)
        rc = result != NULL ? bx_msg_put_var(reply, part->context, result) : bx_tape_error(part->tape);
    bx_tape_destroy(part->tape);
    bx_context_release(part->context);
    return rc;
}

static int table_forward(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *dist)
{
    struct bx_var *result = NULL;
    struct bx_tensor *indices;
    struct part part;
    int rc = open_part(&part, request, args, dist);

    indices = bx_read_tensor(args);
    if (rc == 0 && indices == NULL)
        rc = bx_fail(-EPROTO, "table.forward came without indices");
    if (rc == 0)
        result = rnn_table_forward(bx_request_object(request), part.tape, indices, part.iteration);
    return close_part(&part, rc, result, reply);
}

static int decoder_forward(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *dist)
{
    struct bx_var *result = NULL;
    struct part part;
    int rc = open_part(&part, request, args, dist);

    if (rc == 0)
        result = rnn_decoder_forward(bx_request_object(request), part.tape,
                                     bx_read_var(part.context, part.tape, args), part.iteration);
    return close_part(&part, rc, result, reply);
}

/* ---- Parameters --------------------------------------------------------------------------------------------- */

static int put_param(const struct bx_request *request, struct bx_msg *reply, struct bx_var *param)
{
    struct bx_rref *rref = NULL;
    int rc = bx_param_rref(bx_request_job(request), param, &rref);

    if (rc == 0)
        rc = bx_msg_put_rref(reply, rref);
    bx_rref_release(rref);
    return rc;
}

static int parameters(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    const struct rnn_part *part = bx_request_object(request);
    int rc = put_param(request, reply, part->weight);

    (void)args, (void)context;
    return rc == 0 && part->bias != NULL ? put_param(request, reply, part->bias) : rc;
}

int rnn_serve(struct bx_job *job, struct bx_dist *dist)
{
    int rc = bx_register(job, "new_table", BX_INLINE, new_table, NULL);

    if (rc == 0)
        rc = bx_register(job, "new_decoder", BX_INLINE, new_decoder, NULL);
    if (rc == 0)
        rc = bx_register_method(job, &table_type, "table.forward", BX_INLINE, table_forward, dist);
    if (rc == 0)
        rc = bx_register_method(job, &table_type, "table.parameters", BX_INLINE, parameters, NULL);
    if (rc == 0)
        rc = bx_register_method(job, &decoder_type, "decoder.forward", BX_INLINE, decoder_forward, dist);
    if (rc == 0)
        rc = bx_register_method(job, &decoder_type, "decoder.parameters", BX_INLINE, parameters, NULL);
    return rc;
}

/* SPDX-License-Identifier: MIT */
/*
 * The whole network, as the trainer has it: references to the embedding table and to the decoder on `ps`, and the LSTM
 * itself. Forward by two calls on the references; the rest is as in one process. Run by the trainer's main thread.
 */
#include "rnn.h"

int rnn_model_init(struct rnn_model *model, struct bx_job *job, struct bx_dist *dist, const struct rnn_flags *flags)
{
    struct bx_msg *args = bx_msg_create(64);
    int rc = rnn_put_flags(args, flags);

    *model = (struct rnn_model){ .job = job, .dist = dist };
    if (rc == 0)
        rc = bx_remote(job, RNN_PS, "new_table", args, NULL, &model->table);
    if (rc == 0)
        rc = bx_remote(job, RNN_PS, "new_decoder", args, NULL, &model->decoder);
    bx_msg_destroy(args);
    if (rc == 0)
        rc = rnn_lstm_create(job, flags, &model->lstm);
    if (rc == 0)
        rc = bx_tape_create(&(struct bx_tape_options){ .job = job }, &model->tape);
    if (rc < 0)
        rnn_model_fini(model);
    return rc;
}

void rnn_model_fini(struct rnn_model *model)
{
    bx_tape_destroy(model->tape);
    rnn_lstm_destroy(model->lstm);
    bx_rref_release(model->table);
    bx_rref_release(model->decoder);
    *model = (struct rnn_model){ 0 };
}

/* ---- Parameters ------------------------------------------------------------------------------------------ */

static int add_remote(struct rnn_params *params, struct bx_rref *part, const char *method)
{
    struct bx_msg *reply = NULL;
    int rc = bx_rref_sync(part, method, NULL, NULL, &reply);
    struct bx_reader reader = bx_msg_reader(reply);

    while (rc == 0 && reader.rref_count > 0 && params->count < RNN_PARAMS_MAX)
        params->at[params->count++] = bx_rref_acquire(bx_read_rref(&reader));
    bx_msg_destroy(reply);
    return rc;
}

static int add_own(struct rnn_params *params, const struct rnn_model *model)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < model->lstm->param_count; i++) {
        rc = bx_param_rref(model->job, model->lstm->params[i], &params->at[params->count]);
        if (rc == 0)
            params->count++;
    }
    return rc;
}

int rnn_model_params(struct rnn_model *model, struct rnn_params *params)
{
    params->count = 0;
    int rc = add_remote(params, model->table, "table.parameters");
    if (rc == 0)
        rc = add_own(params, model);
    return rc == 0 ? add_remote(params, model->decoder, "decoder.parameters") : rc;
}

void rnn_params_release(struct rnn_params *params)
{
    for (size_t i = 0; i < params->count; i++)
        bx_rref_release(params->at[i]);
    params->count = 0;
}

/* ---- An iteration ------------------------------------------------------------------------------------------ */

/* The arguments of a forward, but for what it is called with; errors are sticky. */
static struct bx_msg *forward_args(struct bx_context *context, uint64_t iteration)
{
    struct bx_msg *args = bx_msg_create(64);

    bx_msg_put_context(args, context);
    bx_msg_put_u64(args, iteration);
    return args;
}

/* Calls a part and destroys the arguments. The result becomes a variable of the model's tape. */
static int call_part(struct rnn_model *model, struct bx_context *context, struct bx_rref *part, const char *method,
                     struct bx_msg *args, struct bx_var **result)
{
    struct bx_msg *reply = NULL;
    int rc = bx_rref_sync(part, method, args, NULL, &reply);
    struct bx_reader reader = bx_msg_reader(reply);

    bx_msg_destroy(args);
    if (rc < 0)
        return rc;
    *result = bx_read_var(context, model->tape, &reader);
    bx_msg_destroy(reply);
    return bx_tape_error(model->tape);
}

int rnn_model_forward(struct rnn_model *model, struct bx_context *context, struct bx_tensor *indices,
                      uint64_t iteration, struct bx_var **logits)
{
    struct bx_msg *args = forward_args(context, iteration);
    struct bx_var *embedded = NULL, *output;

    bx_msg_put_tensor(args, indices);
    int rc = call_part(model, context, model->table, "table.forward", args, &embedded);
    if (rc < 0)
        return rc;
    output = rnn_lstm_forward(model->lstm, model->tape, embedded, iteration);
    if (output == NULL)
        return bx_tape_error(model->tape);
    args = forward_args(context, iteration);
    bx_msg_put_var(args, context, output);
    return call_part(model, context, model->decoder, "decoder.forward", args, logits);
}

int rnn_model_train(struct rnn_model *model, struct bx_dist_optim *optim, const struct rnn_batch *batch,
                    uint64_t iteration, double *loss)
{
    struct bx_context *context = NULL;
    struct bx_var *logits = NULL, *root = NULL;
    int rc = bx_context_create(model->dist, &context);

    if (rc < 0)
        return rc;
    rc = rnn_model_forward(model, context, batch->indices, iteration, &logits);
    if (rc == 0) {
        root = rnn_loss(model->tape, logits, batch->targets, batch->kind);
        rc = bx_context_backward(context, &root, NULL, 1, false, 0);
    }
    if (rc == 0)
        rc = bx_dist_optim_step(optim, context);
    if (rc == 0)
        *loss = bx_var_item(root);
    bx_context_end(context);
    bx_tape_clear(model->tape);
    return rc;
}

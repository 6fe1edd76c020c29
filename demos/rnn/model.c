/* SPDX-License-Identifier: MIT */
/*
 * The whole network, as the trainer has it: references to the embedding table and to the decoder on `ps`, and the LSTM
 * itself. Forward by two calls on the references; the rest is as in one process. Run by the trainer's main thread.
 */
#include "rnn.h"

#include <errno.h>
#include <stdlib.h>

int rnn_model_init(struct rnn_model *model, struct bx_job *job, struct bx_dist *dist, const struct rnn_flags *flags)
{
    struct bx_msg *args = bx_msg_create(64);
    int rc;

    *model = (struct rnn_model){ .job = job, .dist = dist };
    if (args == NULL)
        return bx_fail(-ENOMEM, "not enough memory for a message");
    rc = rnn_put_flags(args, flags);
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

struct list {
    struct bx_rref **at;
    size_t count;
};

/* Takes the reference. */
static int add(struct list *list, struct bx_rref *rref)
{
    struct bx_rref **more = realloc(list->at, (list->count + 1) * sizeof(*more));

    if (more == NULL) {
        bx_rref_release(rref);
        return bx_fail(-ENOMEM, "not enough memory for %zu parameters", list->count + 1);
    }
    list->at = more;
    list->at[list->count++] = rref;
    return 0;
}

static int add_remote(struct list *list, struct bx_rref *part, const char *method)
{
    struct bx_msg *reply = NULL;
    int rc = bx_rref_sync(part, method, NULL, NULL, &reply);
    struct bx_reader reader = bx_msg_reader(reply);

    while (rc == 0 && reader.rref_count > 0)
        rc = add(list, bx_rref_acquire(bx_read_rref(&reader)));
    bx_msg_destroy(reply);
    return rc;
}

static int add_own(struct list *list, struct rnn_model *model)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < model->lstm->param_count; i++) {
        struct bx_rref *rref = NULL;

        rc = bx_param_rref(model->job, model->lstm->params[i], &rref);
        if (rc == 0)
            rc = add(list, rref);
    }
    return rc;
}

int rnn_model_params(struct rnn_model *model, struct bx_rref ***params, size_t *count)
{
    struct list list = { NULL, 0 };
    int rc = add_remote(&list, model->table, "table.parameters");

    if (rc == 0)
        rc = add_own(&list, model);
    if (rc == 0)
        rc = add_remote(&list, model->decoder, "decoder.parameters");
    if (rc == 0) {
        *params = list.at;
        *count = list.count;
        return 0;
    }
    for (size_t i = 0; i < list.count; i++)
        bx_rref_release(list.at[i]);
    free(list.at);
    return rc;
}

/* ---- An iteration ------------------------------------------------------------------------------------------ */

/* A call of forward on a part: its result becomes a variable of the model's tape. */
struct call {
    struct bx_context *context;
    struct bx_msg *args;
};

static int begin_call(struct call *call, struct bx_context *context, uint64_t iteration)
{
    int rc;

    *call = (struct call){ context, bx_msg_create(64) };
    if (call->args == NULL)
        return bx_fail(-ENOMEM, "not enough memory for a message");
    rc = bx_msg_put_context(call->args, context);
    return rc < 0 ? rc : bx_msg_put_u64(call->args, iteration);
}

static int make_call(struct call *call, struct rnn_model *model, struct bx_rref *part, const char *method,
                     struct bx_var **result)
{
    struct bx_msg *reply = NULL;
    int rc = bx_rref_sync(part, method, call->args, NULL, &reply);
    struct bx_reader reader = bx_msg_reader(reply);

    if (rc < 0)
        return rc;
    *result = bx_read_var(call->context, model->tape, &reader);
    bx_msg_destroy(reply);
    return bx_tape_error(model->tape);
}

static int embed(struct rnn_model *model, struct bx_context *context, struct bx_tensor *indices, uint64_t iteration,
                 struct bx_var **embedded)
{
    struct call call;
    int rc = begin_call(&call, context, iteration);

    if (rc == 0)
        rc = bx_msg_put_tensor(call.args, indices);
    if (rc == 0)
        rc = make_call(&call, model, model->table, "table.forward", embedded);
    bx_msg_destroy(call.args);
    return rc;
}

static int decode(struct rnn_model *model, struct bx_context *context, struct bx_var *output, uint64_t iteration,
                  struct bx_var **logits)
{
    struct call call;
    int rc = begin_call(&call, context, iteration);

    if (rc == 0)
        rc = bx_msg_put_var(call.args, context, output);
    if (rc == 0)
        rc = make_call(&call, model, model->decoder, "decoder.forward", logits);
    bx_msg_destroy(call.args);
    return rc;
}

int rnn_model_forward(struct rnn_model *model, struct bx_context *context, struct bx_tensor *indices,
                      uint64_t iteration, struct bx_var **logits)
{
    struct bx_var *embedded = NULL, *output;
    int rc = embed(model, context, indices, iteration, &embedded);

    if (rc < 0)
        return rc;
    output = rnn_lstm_forward(model->lstm, model->tape, embedded, iteration);
    return output != NULL ? decode(model, context, output, iteration, logits) : bx_tape_error(model->tape);
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

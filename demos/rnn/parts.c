/* SPDX-License-Identifier: MIT */
/*
 * The three parts of the network, with the tutorial's first values: embedding and decoder weights uniform in
 * [-0.1, 0.1), the decoder's bias 0, the LSTM's parameters uniform within 1 / sqrt(nhid), its state normal. Run by the
 * worker that has the part, and by the unit tests in one process.
 */
#include "demos/common/rng.h"
#include "rnn.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* The parts' places below RNG_WEIGHTS and RNG_DRAWS. */
enum place { TABLE, LSTM, DECODER };

/* ---- First values -------------------------------------------------------------------------------------- */

static uint64_t weights_key(const struct rnn_flags *flags, enum place place, size_t param)
{
    return rng_at(rng_at(rng_at(flags->seed, RNG_WEIGHTS), place), param);
}

static uint64_t draws_key(const struct rnn_flags *flags, enum place place)
{
    return rng_at(rng_at(flags->seed, RNG_DRAWS), place);
}

static struct bx_generator generator_of(uint64_t draws, uint64_t iteration)
{
    return (struct bx_generator){ .seed = rng_at(draws, iteration) };
}

/* A parameter of uniform numbers from -limit to limit. */
static int make_param(struct bx_job *job, int ndim, const int64_t *shape, uint64_t key, double limit,
                      struct bx_var **param)
{
    struct bx_tensor *value = NULL;
    int rc = bx_tensor_create(job, BX_F32, ndim, shape, &value);

    if (rc < 0)
        return rc;
    rng_fill_uniform(bx_tensor_data_mut(value), (size_t)bx_tensor_elements(value), key, limit);
    rc = bx_var_create(value, true, param);
    bx_tensor_release(value);
    return rc;
}

/* ---- The embedding table and the decoder --------------------------------------------------------------- */

static int make_part(struct bx_job *job, const struct rnn_flags *flags, enum place place, struct rnn_part **out)
{
    const int64_t shape[] = { flags->ntoken, place == TABLE ? flags->ninp : flags->nhid };
    struct rnn_part *part = calloc(1, sizeof(*part));
    int rc;

    if (part == NULL)
        return bx_fail(-ENOMEM, "not enough memory for the embedding table or the decoder");
    part->dropout = flags->dropout;
    part->draws = draws_key(flags, place);
    rc = make_param(job, 2, shape, weights_key(flags, place, 0), 0.1, &part->weight);
    if (rc == 0 && place == DECODER)
        rc = make_param(job, 1, shape, 0, 0, &part->bias);
    if (rc < 0)
        rnn_part_destroy(part);
    else
        *out = part;
    return rc;
}

int rnn_table_create(struct bx_job *job, const struct rnn_flags *flags, struct rnn_part **table)
{
    return make_part(job, flags, TABLE, table);
}

int rnn_decoder_create(struct bx_job *job, const struct rnn_flags *flags, struct rnn_part **decoder)
{
    return make_part(job, flags, DECODER, decoder);
}

void rnn_part_destroy(void *object)
{
    struct rnn_part *part = object;

    if (part == NULL)
        return;
    bx_var_release(part->weight);
    bx_var_release(part->bias);
    free(part);
}

struct bx_var *rnn_table_forward(const struct rnn_part *table, struct bx_tape *tape, struct bx_tensor *indices,
                                 uint64_t iteration)
{
    struct bx_generator generator = generator_of(table->draws, iteration);

    return bx_var_dropout(tape, bx_var_embedding(tape, table->weight, indices), table->dropout, true, &generator);
}

struct bx_var *rnn_decoder_forward(const struct rnn_part *decoder, struct bx_tape *tape, struct bx_var *output,
                                   uint64_t iteration)
{
    struct bx_generator generator = generator_of(decoder->draws, iteration);
    struct bx_var *kept = bx_var_dropout(tape, output, decoder->dropout, true, &generator);

    return bx_var_linear(tape, kept, decoder->weight, decoder->bias);
}

/* ---- The LSTM --------------------------------------------------------------------------------------------- */

enum { LAYER_PARAMS = 4 };

static int make_layer(struct bx_job *job, const struct rnn_flags *flags, struct rnn_lstm *lstm, int layer)
{
    const int64_t gates = 4 * (int64_t)flags->nhid;
    const int64_t shapes[LAYER_PARAMS][2] = { { gates, layer == 0 ? flags->ninp : flags->nhid },
                                              { gates, flags->nhid }, { gates, 0 }, { gates, 0 } };
    int rc = 0;

    for (int i = 0; rc == 0 && i < LAYER_PARAMS; i++) {
        rc = make_param(job, i < 2 ? 2 : 1, shapes[i], weights_key(flags, LSTM, lstm->param_count),
                        1 / sqrt(flags->nhid), &lstm->params[lstm->param_count]);
        if (rc == 0)
            lstm->param_count++;
    }
    return rc;
}

static int make_state(struct bx_job *job, const struct rnn_flags *flags, uint64_t index, struct bx_tensor **state)
{
    const int64_t shape[] = { flags->nlayers, flags->nindices, flags->nhid };
    int rc = bx_tensor_create(job, BX_F32, 3, shape, state);

    if (rc == 0)
        rng_fill_normal(bx_tensor_data_mut(*state), (size_t)bx_tensor_elements(*state),
                        rng_at(rng_at(flags->seed, RNG_STATES), index), 1.0);
    return rc;
}

int rnn_lstm_create(struct bx_job *job, const struct rnn_flags *flags, struct rnn_lstm **out)
{
    struct rnn_lstm *lstm = calloc(1, sizeof(*lstm));
    int rc = 0;

    if (lstm != NULL)
        lstm->params = calloc((size_t)flags->nlayers * LAYER_PARAMS, sizeof(struct bx_var *));
    if (lstm == NULL || lstm->params == NULL) {
        free(lstm);
        return bx_fail(-ENOMEM, "not enough memory for an LSTM of %d layers", flags->nlayers);
    }
    lstm->layers = flags->nlayers;
    lstm->hidden = flags->nhid;
    lstm->dropout = flags->dropout;
    lstm->draws = draws_key(flags, LSTM);
    for (int layer = 0; rc == 0 && layer < flags->nlayers; layer++)
        rc = make_layer(job, flags, lstm, layer);
    if (rc == 0)
        rc = make_state(job, flags, 0, &lstm->h);
    if (rc == 0)
        rc = make_state(job, flags, 1, &lstm->c);
    if (rc < 0)
        rnn_lstm_destroy(lstm);
    else
        *out = lstm;
    return rc;
}

void rnn_lstm_destroy(struct rnn_lstm *lstm)
{
    if (lstm == NULL)
        return;
    for (size_t i = 0; i < lstm->param_count; i++)
        bx_var_release(lstm->params[i]);
    bx_tensor_release(lstm->h);
    bx_tensor_release(lstm->c);
    free(lstm->params);
    free(lstm);
}

struct bx_var *rnn_lstm_forward(struct rnn_lstm *lstm, struct bx_tape *tape, struct bx_var *input, uint64_t iteration)
{
    struct bx_generator generator = generator_of(lstm->draws, iteration);
    const struct bx_lstm options = { .layers = lstm->layers, .hidden = lstm->hidden, .weights = lstm->params,
                                     .h0 = bx_tape_input(tape, lstm->h), .c0 = bx_tape_input(tape, lstm->c),
                                     .dropout = lstm->dropout, .training = true, .generator = &generator };
    struct bx_lstm_result result;

    if (bx_var_lstm(tape, input, &options, &result) < 0)
        return NULL;
    bx_tensor_release(lstm->h);
    bx_tensor_release(lstm->c);
    lstm->h = bx_var_acquire_value(result.h);
    lstm->c = bx_var_acquire_value(result.c);
    return result.output;
}

/* ---- The loss ------------------------------------------------------------------------------------------------ */

struct bx_var *rnn_loss(struct bx_tape *tape, struct bx_var *logits, struct bx_tensor *targets, enum rnn_loss kind)
{
    struct bx_tensor *list = NULL;
    struct bx_var *loss;

    if (kind == RNN_LOSS_TUTORIAL || logits == NULL)
        return bx_var_cross_entropy(tape, logits, targets);
    /* One row of logits for each target. */
    if (bx_tensor_reshape(targets, 1, (const int64_t[]){ bx_tensor_elements(targets) }, &list) < 0)
        return NULL;
    loss = bx_var_cross_entropy(tape, bx_var_reshape(tape, logits, 2,
                                                     (const int64_t[]){ -1, bx_tensor_dim(bx_var_value(logits), 2) }),
                                list);
    bx_tensor_release(list);
    return loss;
}

/* SPDX-License-Identifier: MIT */
/*
 * The batches. The tutorial's are uninitialised memory modulo the number of tokens; here they are drawn from the seed,
 * five of them, the same in each epoch. For the token loss the next token of i is i + 1, so that there is something to
 * learn. Run by the trainer.
 */
#include "demos/common/rng.h"
#include "rnn.h"

static int make_tensor(struct bx_job *job, int rows, int columns, struct bx_tensor **tensor)
{
    return bx_tensor_create(job, BX_I64, 2, (const int64_t[]){ rows, columns }, tensor);
}

/* Numbers from 0 to most - 1. */
static void draw(struct bx_tensor *tensor, uint64_t key, int most)
{
    int64_t *to = bx_tensor_data_mut(tensor);

    for (int64_t i = 0; i < bx_tensor_elements(tensor); i++)
        to[i] = (int64_t)(rng_unit(rng_at(key, (uint64_t)i)) * most);
}

int rnn_batch_init(struct rnn_batch *batch, struct bx_job *job, const struct rnn_flags *flags, int index)
{
    const bool token = flags->loss == RNN_LOSS_TOKEN;
    uint64_t tokens = rng_at(rng_at(flags->seed, RNG_TOKENS), (uint64_t)index);
    uint64_t targets = rng_at(rng_at(flags->seed, RNG_TARGETS), (uint64_t)index);
    int rc;

    *batch = (struct rnn_batch){ .kind = (enum rnn_loss)flags->loss };
    rc = make_tensor(job, flags->batch, flags->nindices, &batch->indices);
    if (rc == 0)
        rc = make_tensor(NULL, flags->batch, token ? flags->nindices : flags->ntoken, &batch->targets);
    if (rc < 0) {
        rnn_batch_fini(batch);
        return rc;
    }
    draw(batch->indices, tokens, flags->ntoken);
    if (!token) {
        draw(batch->targets, targets, flags->nindices);
        return 0;
    }
    const int64_t *from = bx_tensor_data(batch->indices);
    int64_t *to = bx_tensor_data_mut(batch->targets);
    for (int64_t i = 0; i < bx_tensor_elements(batch->targets); i++)
        to[i] = (from[i] + 1) % flags->ntoken;
    return 0;
}

void rnn_batch_fini(struct rnn_batch *batch)
{
    bx_tensor_release(batch->indices);
    bx_tensor_release(batch->targets);
    *batch = (struct rnn_batch){ 0 };
}

/* SPDX-License-Identifier: MIT */
/*
 * The private header of the program `rnn`. Its sections are in the order in which the files build on each other: each
 * file uses only what stands above its own section.
 *
 *     parts.c                   the three parts of the network, each on one worker
 *     batches.c                 what it is trained on
 *     server.c                  the embedding table and the decoder as objects of `ps`
 *     model.c                   the whole network, as the trainer has it
 *     worker.c                  the two workers
 *     rnn.c                     the first process: flags, the job, results
 *
 * An iteration, in calls:
 *
 *     trainer                                        ps
 *       indices  ──────── table.forward ───────────▶   rows of the table, dropout
 *       LSTM     ◀──────────────────────────────────
 *       output   ──────── decoder.forward ─────────▶   dropout, linear
 *       loss     ◀──────────────────────────────────
 *       bx_context_backward: gradients go the same way back, and stay where the parameters are
 *       bx_dist_optim_step: each worker steps its own parameters
 */
#ifndef DEMOS_RNN_H
#define DEMOS_RNN_H

#include <boxcar.h>
#include <boxcar_autograd.h>
#include <boxcar_dist.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RNN_PS "ps"                 /* rank 0 */
#define RNN_TRAINER "trainer"       /* rank 1 */
#define RNN_BATCHES 5               /* of an epoch */
#define RNN_LAYERS_MAX 64           /* of the LSTM; each has four parameters, table and decoder have three */
#define RNN_PARAMS_MAX (4 * RNN_LAYERS_MAX + 3)

/* tutorial: logits (batch, nindices, ntoken), with nindices as the classes, against (batch, ntoken) targets: this is
 * what the tutorial's shapes make of its loss. token: the next token, for each of the batch x nindices logits. */
enum rnn_loss { RNN_LOSS_TUTORIAL, RNN_LOSS_TOKEN };

struct rnn_flags {
    int batch;                  /* the LSTM's sequence: it reads (batch, nindices) as (time, batch) */
    int ntoken;
    int ninp;
    int nhid;
    int nindices;
    int nlayers;
    double dropout;
    int epochs;
    double lr;
    uint64_t seed;
    int loss;                   /* enum rnn_loss */
    const char *json;           /* NULL: none */
    const char *plot;
};

/* ---- parts.c: the three parts of the network ---------------------------------------------------------- */

/* Each part draws its first parameters from the seed, and its dropout from the seed and the number of the iteration.
 * Parameters, and results if the tape has a job, lie in the job's arena; a part without a job has them on the heap.
 * forward returns NULL after a sentence, as the operations on a tape do. */

/* The table: an embedding (ntoken, ninp), then dropout. The decoder: dropout, then a linear layer (ntoken, nhid) with
 * bias. */
struct rnn_part {
    struct bx_var *weight;
    struct bx_var *bias;        /* NULL: the table */
    double dropout;
    uint64_t draws;
};
int rnn_table_create(struct bx_job *job, const struct rnn_flags *flags, struct rnn_part **table);
int rnn_decoder_create(struct bx_job *job, const struct rnn_flags *flags, struct rnn_part **decoder);
void rnn_part_destroy(void *part);                      /* NULL is allowed, as below */
/* indices (batch, nindices), BX_I64; result (batch, nindices, ninp). */
struct bx_var *rnn_table_forward(const struct rnn_part *table, struct bx_tape *tape, struct bx_tensor *indices,
                                 uint64_t iteration);
/* output (batch, nindices, nhid); result (batch, nindices, ntoken). */
struct bx_var *rnn_decoder_forward(const struct rnn_part *decoder, struct bx_tape *tape, struct bx_var *output,
                                   uint64_t iteration);

/* nlayers of LSTM, with dropout between them. */
struct rnn_lstm {
    int layers, hidden;
    struct bx_var **params;     /* of each layer w_ih, w_hh, b_ih, b_hh */
    size_t param_count;
    double dropout;
    uint64_t draws;
    struct bx_tensor *h, *c;    /* (nlayers, nindices, nhid): the state, which each forward pass replaces */
};
int rnn_lstm_create(struct bx_job *job, const struct rnn_flags *flags, struct rnn_lstm **lstm);
void rnn_lstm_destroy(struct rnn_lstm *lstm);
/* input (batch, nindices, ninp); result (batch, nindices, nhid). No gradient goes back into earlier passes. */
struct bx_var *rnn_lstm_forward(struct rnn_lstm *lstm, struct bx_tape *tape, struct bx_var *input, uint64_t iteration);

/* The loss of the logits (batch, nindices, ntoken). targets: (batch, ntoken) of 0 .. nindices - 1 for the tutorial's
 * loss, (batch, nindices) of 0 .. ntoken - 1 for that of tokens. */
struct bx_var *rnn_loss(struct bx_tape *tape, struct bx_var *logits, struct bx_tensor *targets, enum rnn_loss kind);

/* ---- batches.c: what it is trained on ------------------------------------------------------------------ */

struct rnn_batch {
    struct bx_tensor *indices;  /* (batch, nindices), BX_I64 */
    struct bx_tensor *targets;  /* as rnn_loss wants them */
    enum rnn_loss kind;
};
/* Draws batch number `index`. For the token loss the targets follow from the indices: after token i comes i + 1. */
int rnn_batch_init(struct rnn_batch *batch, struct bx_job *job, const struct rnn_flags *flags, int index);
void rnn_batch_fini(struct rnn_batch *batch);           /* accepts an all-zero batch */

/* ---- server.c: the functions of `ps` -------------------------------------------------------------------- */

/* Functions:
 *
 *   new_table, new_decoder    flags -> reference (for bx_remote)
 *
 * and methods:
 *
 *   table.forward             context, u64 iteration, tensor indices -> variable
 *   decoder.forward           context, u64 iteration, variable output -> variable
 *   table.parameters, decoder.parameters    -> references
 *
 * Registers them; call it before the job starts. */
int rnn_serve(struct bx_job *job, struct bx_dist *dist);
/* The flags that new_table and new_decoder need. */
int rnn_put_flags(struct bx_msg *msg, const struct rnn_flags *flags);

/* ---- model.c: the whole network ------------------------------------------------------------------------- */

struct rnn_model {
    struct bx_job *job;
    struct bx_dist *dist;
    struct bx_tape *tape;       /* of one iteration */
    struct bx_rref *table, *decoder;
    struct rnn_lstm *lstm;
};
/* Makes the table and the decoder on RNN_PS, and the LSTM here. 0 or a code after a sentence. */
int rnn_model_init(struct rnn_model *model, struct bx_job *job, struct bx_dist *dist, const struct rnn_flags *flags);
void rnn_model_fini(struct rnn_model *model);           /* accepts an all-zero model */

/* References to all parameters, in order: of the table, the LSTM, the decoder. The caller releases them, also after a
 * failure. */
struct rnn_params {
    struct bx_rref *at[RNN_PARAMS_MAX];
    size_t count;
};
int rnn_model_params(struct rnn_model *model, struct rnn_params *params);
void rnn_params_release(struct rnn_params *params);

/* The logits (batch, nindices, ntoken), which the model's tape holds. */
int rnn_model_forward(struct rnn_model *model, struct bx_context *context, struct bx_tensor *indices,
                      uint64_t iteration, struct bx_var **logits);

/* One iteration: forward, loss, backward, step. */
int rnn_model_train(struct rnn_model *model, struct bx_dist_optim *optim, const struct rnn_batch *batch,
                    uint64_t iteration, double *loss);

/* ---- worker.c: the workers --------------------------------------------------------------------------------- */

/* What the trainer leaves for the first process (demos/common/program.h). */
struct rnn_result {
    bool ended;                 /* the training reached its end */
    double total_s;
    uint64_t calls;             /* that the trainer sent while it trained */
    struct rnn_iteration {
        double loss;
        double seconds;
    } at[];                     /* room for epochs x RNN_BATCHES */
};

double rnn_epoch_loss(const struct rnn_result *result, size_t epoch);   /* the mean of its iterations */

struct rnn_run {
    const struct rnn_flags *flags;
    struct rnn_result *result;
};

/* Runs the worker of that rank, `ps` or the trainer, from start to end, with a struct rnn_run. Returns its exit
 * status. */
int rnn_worker(const struct bx_options *options, void *run);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The private header of the program `pipeline`. Its sections are in the order in which the files build on each other:
 * each file uses only what stands above its own section.
 *
 *     shard.c       half of the network, an object on a worker
 *     master.c      the worker that trains: calls on the two shards, the loss, the backward pass, the step
 *     pipeline.c    the first process: flags, the job with its workers, results
 */
#ifndef DEMOS_PIPELINE_H
#define DEMOS_PIPELINE_H

#include "demos/common/resnet.h"

#include <boxcar.h>
#include <boxcar_dist.h>
#include <stddef.h>
#include <stdint.h>

#define PL_WORLD 3                  /* the master, rank 0, and a worker for each shard */
#define PL_SHARDS 2
#define PL_CLASSES 1000
#define PL_RUNS_MAX 16              /* numbers in --splits */
#define PL_BATCHES_MAX 100000
#define PL_IMAGES_MAX 1024          /* of a batch */
#define PL_LR 0.05

struct pl_flags {
    int splits[PL_RUNS_MAX];        /* micro-batches of a batch, for each run; each divides batch_size */
    size_t runs;
    uint64_t batches;
    int batch_size;                 /* images */
    int image;                      /* height and width, pixels */
    uint64_t seed;
    const char *json;               /* NULL: none */
};

/* ---- shard.c: half of the network ------------------------------------------------------------------- */

/*
 * An object on a worker whose pool has one thread. Its nets share one set of parameters, and one copy of it in the
 * layout of the computations. A net keeps one forward pass, so each micro-batch of a batch has a net of its own.
 *
 *     new_shard(part, images of a micro-batch, image, splits, seed)  -> the object
 *     forward(context, micro-batch, variable)                        -> variable
 *     parameters()                                                   -> references, in the order of the network
 */
struct pl_shard {
    struct bx_dist *dist;           /* the worker's */
    size_t param_count;
    struct bx_var **params;
    int splits;
    struct bx_net *nets[PL_IMAGES_MAX];     /* one for each micro-batch */
    struct bx_net_op *ops[PL_IMAGES_MAX];
};

extern const struct bx_type pl_shard_type;

/* Registers new_shard and the methods. Codes of bx_register. */
int pl_shard_register(struct bx_job *job, struct bx_dist *dist);

/* ---- master.c: training ------------------------------------------------------------------------------ */

/* A network in two shards that trains with so many micro-batches a batch. */
struct pl_pipeline {
    struct bx_job *job;
    struct bx_dist *dist;
    int splits;
    int images;                     /* of a micro-batch */
    struct bx_rref *shards[PL_SHARDS];
    struct bx_dist_optim *optim;
};

/* Makes the shards and their optimizer. Blocks until the nets are planned. Codes of calls. */
int pl_pipeline_create(struct pl_pipeline *pipeline, struct bx_job *job, struct bx_dist *dist,
                       const struct pl_flags *flags, int splits);
void pl_pipeline_destroy(struct pl_pipeline *pipeline);

/* Images and targets (one-hot) of a batch, drawn from the seed and the number of the batch. */
struct pl_batch {
    struct bx_tensor *images;       /* N x 3 x H x W */
    struct bx_tensor *targets;      /* N x PL_CLASSES */
};
int pl_batch_draw(struct pl_batch *batch, struct bx_job *job, const struct pl_flags *flags, uint64_t number);
void pl_batch_free(struct pl_batch *batch);

/* The forward and backward pass of a batch: afterwards the context has the gradients. Codes of calls. */
int pl_pipeline_pass(struct pl_pipeline *pipeline, struct bx_context *context, const struct pl_batch *batch,
                     double *loss);

/* What the master leaves for the first process (demos/common/program.h). */
struct pl_run {
    double seconds;                 /* of all batches; 0: the run was not completed */
    double first_loss, last_loss;
};
struct pl_result {
    struct pl_run run[PL_RUNS_MAX];
};

/* Trains once for each number of micro-batches, and prints a line for each. Codes of calls. */
int pl_train(struct bx_job *job, struct bx_dist *dist, const struct pl_flags *flags, struct pl_result *result);

#endif

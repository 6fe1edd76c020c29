/* SPDX-License-Identifier: MIT */
/*
 * The agent's network, its gradient and its optimiser. Uses no RPC.
 *
 *     Linear(4, 128) - dropout - ReLU - Linear(128, 2) - softmax
 *
 * in float32, trained by the policy gradient with Adam. policy.c computes it; policy_cuda.c makes the same
 * decisions on a GPU, with policy.c's formulas. mlp.c has networks of other sizes. learner.c chooses between the three.
 * One thread at a time uses a policy.
 */
#ifndef DEMOS_POLICY_H
#define DEMOS_POLICY_H

#include "policy_kernels.h"

#include <stddef.h>
#include <stdint.h>

#define POLICY_DROPOUT 0.6
#define POLICY_LEARNING_RATE 1e-2

/* The parameters, a gradient of them, or one of Adam's moments. policy_kernels.h has the layout. */
struct policy_params {
    float v[POLICY_PARAMS];
};

struct policy_dropout {
    uint64_t threshold;                 /* P(a unit is kept) * 2^32 */
    float scale;                        /* 1 / P(a unit is kept) */
};

struct policy {
    struct policy_params params;
    struct policy_params mean;          /* Adam's running mean of the gradient */
    struct policy_params square;        /* Adam's running mean of its square */
    uint64_t updates;                   /* Adam steps so far */
    struct policy_dropout dropout;
};

/* One decision: the values that the gradient needs. */
struct policy_row {
    float state[POLICY_INPUTS];
    uint64_t key;                       /* under which its random numbers are drawn */
    uint64_t keep[POLICY_UNITS / 64];   /* bit u % 64 of word u / 64: unit u was kept; mlp.c draws it again instead */
    float prob[POLICY_ACTIONS];
    float log_prob;                     /* of the action taken */
    int32_t action;
};

/* ---- On the CPU (policy.c) ---------------------------------------------------------------------------- */

/* Draws every weight and bias uniformly from +-1/sqrt(fan in), as torch does. Sets the dropout to POLICY_DROPOUT. */
void policy_init(struct policy *policy, uint64_t seed);

/* rate: the fraction of units that are dropped, 0 to 0.999; 0 drops none and scales by 1. */
struct policy_dropout policy_dropout(double rate);
/* Draws which of 128 units are kept under this key. */
void policy_draw_keep(struct policy_dropout dropout, uint64_t key, uint64_t keep[2]);

/* Reads row->state, sets row->key, draws the kept units and the action from it, and fills in the rest of the row. The
 * result depends only on the policy, the state and the key. */
void policy_act(const struct policy *policy, uint64_t row_key, struct policy_row *row);

/* Computes the gradient of -sum(weight[i] * rows[i].log_prob). The rows are summed in their order. */
void policy_backward(const struct policy *policy, const struct policy_row *rows,
                     const float *weight, size_t count, struct policy_params *grad);

/* One step of Adam (Kingma and Ba 2015): betas 0.9 and 0.999, eps 1e-8. */
void policy_adam(struct policy *policy, const struct policy_params *grad);

/* ---- Parts of the above, for networks of other sizes (mlp.c) -------------------------------------------- */

/* Computes the probabilities from the score of action 1 minus that of action 0, and draws an action; *log_prob is its
 * logarithm. */
int32_t policy_choose(float difference, uint64_t row_key, float prob[POLICY_ACTIONS], float *log_prob);
/* The row's part of d(loss)/d(score of action 0); for action 1 it is the negative. */
float policy_slope(float weight, int32_t action, const float prob[POLICY_ACTIONS]);

struct policy_adam_arrays {
    float *params, *mean, *square;      /* `count` each, as in struct policy */
    const float *grad;
    size_t count;
};
/* policy_adam of these arrays. */
void policy_adam_arrays(const struct policy_adam_arrays *arrays, uint64_t *updates);

/* ---- On a GPU (policy_cuda.c) ------------------------------------------------------------------------- *
 * The functions that return int return 0, or a code of bx_cuda_* after a sentence. All of them wait for the GPU. */

struct policy_gpu;
/* Allocates memory for that many rows, and copies the parameters to the GPU. */
int policy_gpu_create(int ordinal, const struct policy *policy, size_t rows, struct policy_gpu **gpu);
void policy_gpu_destroy(struct policy_gpu *gpu);            /* NULL is fine */
const char *policy_gpu_name(const struct policy_gpu *gpu);
/* Copies the parameters to the GPU again. */
int policy_gpu_write(struct policy_gpu *gpu, const struct policy *policy);

/* policy_act of at most so many rows, whose states and keys the caller has filled in. */
int policy_gpu_act(struct policy_gpu *gpu, struct policy_row *const *rows, size_t count);

#endif

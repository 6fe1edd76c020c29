/* SPDX-License-Identifier: MIT */
/*
 * The agent's network and how it learns; knows nothing of RPC.
 *
 *     Linear(4, 128) - dropout - ReLU - Linear(128, 2) - softmax
 *
 * in f32, trained by the policy gradient with Adam; on the CPU, or on a GPU by the same arithmetic.
 * Policies and learners belong to one thread at a time.
 */
#ifndef DEMOS_POLICY_H
#define DEMOS_POLICY_H

#include "policy_kernels.h"

#include <stddef.h>
#include <stdint.h>

#define POLICY_DROPOUT 0.6
#define POLICY_LEARNING_RATE 1e-2

/* Parameters, or a gradient of them, or one of Adam's moments. */
struct policy_params {
    float v[POLICY_PARAMS];
};

struct policy {
    struct policy_params params;
    struct policy_params mean;          /* Adam's running mean of the gradient */
    struct policy_params square;        /* and of its square */
    uint64_t updates;                   /* Adam steps so far */
    uint64_t keep_threshold;            /* P(a unit is kept) * 2^32 */
    float keep_scale;                   /* 1 / P(a unit is kept) */
};

/* One decision: what the gradient needs of it. */
struct policy_row {
    float state[POLICY_INPUTS];
    uint64_t keep[POLICY_UNITS / 64];   /* bit u % 64 of word u / 64: unit u was kept */
    float prob[POLICY_ACTIONS];
    float log_prob;                     /* of the action taken */
    int32_t action;
};

/* Every weight and bias uniform in +-1/sqrt(fan in), as torch begins. Dropout is POLICY_DROPOUT. */
void policy_init(struct policy *policy, uint64_t seed);

/* The rate at which units are dropped, 0 .. 0.999; 0 drops none and scales by 1. */
void policy_set_dropout(struct policy *policy, double rate);

/* Which units are kept for the row of this key. */
void policy_draw_keep(const struct policy *policy, uint64_t row_key, uint64_t keep[2]);

/* The probabilities of the actions, from state and keep. */
void policy_forward(const struct policy *policy, const float state[POLICY_INPUTS],
                    const uint64_t keep[2], float prob[POLICY_ACTIONS]);

/* Takes row->state, draws what is kept and the action from row_key, fills in the rest of the row.
 * The result depends on nothing but the policy, the state and the key. */
void policy_act(const struct policy *policy, uint64_t row_key, struct policy_row *row);

/* The gradient of -sum(weight[i] * rows[i].log_prob), rows summed in their order. */
void policy_backward(const struct policy *policy, const struct policy_row *rows,
                     const float *weight, size_t count, struct policy_params *grad);

/* One step of Adam (Kingma and Ba 2015): betas 0.9 and 0.999, eps 1e-8. */
void policy_adam(struct policy *policy, const struct policy_params *grad);
/* Counts a step, and gives what its arithmetic needs that is the same for all parameters. */
void policy_adam_rates(struct policy *policy, float *rate, float *unbias);

/* ---- On a GPU (policy_cuda.c) ------------------------------------------------------------------
 *
 * Each gives 0, or a code of bx_cuda_*, with a sentence. */

struct policy_gpu;
struct policy_gpu_room {
    size_t rows;                    /* decisions that are remembered */
    size_t asks;                    /* decisions at a time */
};
int policy_gpu_create(int ordinal, const struct policy *policy, const struct policy_gpu_room *room,
                      struct policy_gpu **gpu);
void policy_gpu_destroy(struct policy_gpu *gpu);            /* NULL is fine */
const char *policy_gpu_name(const struct policy_gpu *gpu);

/* Room for the asks; policy_gpu_act decides the first `count` of them, and waits for that. */
struct policy_gpu_ask *policy_gpu_asks(struct policy_gpu *gpu);
int policy_gpu_act(struct policy_gpu *gpu, size_t count);
/* policy_backward of the first `count` rows, and policy_adam; waits. Of policy, only updates count on. */
int policy_gpu_learn(struct policy_gpu *gpu, struct policy *policy, const float *weight, size_t count);

/* What is there and what is here: parameters and moments; the last gradient, if it is wanted; rows. */
int policy_gpu_write(struct policy_gpu *gpu, const struct policy *policy);
int policy_gpu_read(struct policy_gpu *gpu, struct policy *policy, struct policy_params *grad);
int policy_gpu_read_rows(struct policy_gpu *gpu, size_t first, size_t count, struct policy_row *rows);
int policy_gpu_write_rows(struct policy_gpu *gpu, size_t first, size_t count, const struct policy_row *rows);

/* ---- Learning ----------------------------------------------------------------------------------
 * */

/* The policy and one episode's decisions and returns, each (steps, observers). */
struct policy_learner {
    struct policy policy;           /* on a GPU: as it was at the start, but for its updates */
    struct policy_gpu *gpu;         /* NULL: decides and learns on the CPU */
    size_t observers;
    size_t steps;                   /* of an episode, for each observer */
    uint64_t seed;
    uint64_t episode;
    uint64_t episode_key;
    size_t *next_step;              /* by observer */
    struct policy_row *rows;        /* NULL on a GPU */
    float *weight;                  /* returns / observers */
};

/* 0 or -ENOMEM. fini is right for a learner that is all zero, too. */
int policy_learner_init(struct policy_learner *learner, uint64_t seed, size_t observers,
                        size_t steps);
void policy_learner_fini(struct policy_learner *learner);
/* Before the first decision: from here on it decides and learns on that GPU. 0 or a code of bx_cuda_*. */
int policy_learner_use_gpu(struct policy_learner *learner, int ordinal);

struct policy_ask {
    size_t observer;                /* from 0 */
    float state[POLICY_INPUTS];
    int action;                     /* the answer */
};

/* Decides for each ask's observer in its next step of the episode: the action, or -ERANGE where there is
 * no such observer or it has had all its steps, or what the GPU failed with. Observers may take turns
 * in any order. */
void policy_learner_decide(struct policy_learner *learner, struct policy_ask *asks, size_t count);
/* The same for one; its action. */
int policy_learner_act(struct policy_learner *learner, size_t observer,
                       const float state[POLICY_INPUTS]);

/* Takes the returns of an observer's steps first_step .. first_step + count - 1; 0 or -ERANGE. */
int policy_learner_returns(struct policy_learner *learner, size_t observer, size_t first_step,
                           const float *returns, size_t count);

/* Ends the episode: one update from all its decisions; the next episode begins. 0, -ERANGE if an
 * observer has steps left, or what the GPU failed with. */
int policy_learner_update(struct policy_learner *learner);

#endif

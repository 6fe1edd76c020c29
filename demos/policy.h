/* SPDX-License-Identifier: MIT */
/*
 * The agent's network and how it learns; knows nothing of RPC.
 *
 *     Linear(4, 128) - dropout - ReLU - Linear(128, 2) - softmax
 *
 * in f32, trained by the policy gradient with Adam. Policies and learners belong to one thread at a
 * time.
 */
#ifndef DEMOS_POLICY_H
#define DEMOS_POLICY_H

#include <stddef.h>
#include <stdint.h>

#define POLICY_INPUTS 4
#define POLICY_UNITS 128
#define POLICY_ACTIONS 2
#define POLICY_DROPOUT 0.6
#define POLICY_LEARNING_RATE 1e-2

/* Where the parameters lie in policy_params.v. The first layer is stored by input (v[W1 + input *
 * UNITS + unit]), so that neighbours in memory are neighbouring units; the second by action. */
enum {
    POLICY_W1 = 0,
    POLICY_B1 = POLICY_W1 + POLICY_INPUTS * POLICY_UNITS,
    POLICY_W2 = POLICY_B1 + POLICY_UNITS,
    POLICY_B2 = POLICY_W2 + POLICY_ACTIONS * POLICY_UNITS,
    POLICY_PARAMS = POLICY_B2 + POLICY_ACTIONS,
};

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

/* ---- Learning ----------------------------------------------------------------------------------
 * */

/* The policy and one episode's decisions and returns, each (steps, observers). */
struct policy_learner {
    struct policy policy;
    size_t observers;
    size_t steps;                   /* of an episode, for each observer */
    uint64_t seed;
    uint64_t episode;
    uint64_t episode_key;
    size_t *next_step;              /* by observer */
    struct policy_row *rows;
    float *weight;                  /* returns / observers */
};

/* 0 or -ENOMEM. fini is right for a learner that is all zero, too. */
int policy_learner_init(struct policy_learner *learner, uint64_t seed, size_t observers,
                        size_t steps);
void policy_learner_fini(struct policy_learner *learner);

/* Decides for an observer (from 0) in its next step of the episode: the action, or -ERANGE where
 * there is no such observer or it has had all its steps. Observers may take turns in any order. */
int policy_learner_act(struct policy_learner *learner, size_t observer,
                       const float state[POLICY_INPUTS]);

/* Takes the returns of an observer's steps first_step .. first_step + count - 1; 0 or -ERANGE. */
int policy_learner_returns(struct policy_learner *learner, size_t observer, size_t first_step,
                           const float *returns, size_t count);

/* Ends the episode: one update from all its decisions; the next episode begins. 0, or -ERANGE if an
 * observer has steps left. */
int policy_learner_update(struct policy_learner *learner);

#endif

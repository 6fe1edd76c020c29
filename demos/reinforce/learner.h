/* SPDX-License-Identifier: MIT */
/*
 * What the agent does in an episode: it decides for each observer, step by step, remembers the decisions, and updates
 * the policy at the end. With `gpu` it decides on a GPU, with `mlp` by another network. Uses no
 * RPC. One thread at a time uses a learner.
 */
#ifndef DEMOS_LEARNER_H
#define DEMOS_LEARNER_H

#include "mlp.h"
#include "policy.h"

/* The policy, and the decisions and returns of one episode, each steps x observers. */
struct learner {
    struct policy policy;
    struct policy_gpu *gpu;         /* NULL: decides on the CPU */
    struct mlp *mlp;                /* not NULL: instead of `policy`, on the CPU */
    size_t observers;
    size_t steps;                   /* of an episode, for each observer */
    uint64_t seed;
    uint64_t episode;
    uint64_t episode_key;
    size_t *next_step;              /* by observer */
    struct policy_row *rows;
    float *weight;                  /* returns / observers */
};

/* 0 or -ENOMEM. The caller may then set gpu or mlp, before the first decision; learner_fini, which accepts an all-zero
 * learner, destroys them. */
int learner_init(struct learner *learner, uint64_t seed, size_t observers, size_t steps);
void learner_fini(struct learner *learner);

#define LEARNER_ASKS MLP_BLOCK_ROWS     /* decided at a time: more than there are observers */
struct learner_ask {
    size_t observer;                /* from 0 */
    float state[POLICY_INPUTS];
    int action;                     /* set by learner_decide */
};

/* Sets in each ask the action of its observer's next step. Or sets an error there: -ERANGE, no such observer or it has
 * had all its steps, or there are more than LEARNER_ASKS asks; or a code of bx_cuda_*. The observers may come in any
 * order. */
void learner_decide(struct learner *learner, struct learner_ask *asks, size_t count);

/* Takes the returns of an observer's steps first_step .. first_step + count - 1. 0 or -ERANGE. */
int learner_returns(struct learner *learner, size_t observer, size_t first_step, const float *returns, size_t count);

/* Ends the episode: one update from all its decisions, then the next episode begins. 0; -ERANGE, an observer has steps
 * left; or a code of bx_cuda_*. */
int learner_update(struct learner *learner);

#endif

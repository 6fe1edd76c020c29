/* SPDX-License-Identifier: MIT */
/*
 * What the agent does apart from its calls: it chooses actions, keeps each observer's episode, and learns from all of
 * them when they are over. Uses no RPC. One thread at a time uses a learner.
 */
#ifndef DEMOS_CARTPOLE_LEARNER_H
#define DEMOS_CARTPOLE_LEARNER_H

#include "demos/reinforce/cartpole.h"
#include "net.h"

/* One observer's episode. */
struct cp_track {
    struct policy_row rows[CARTPOLE_POLE_STEPS];
    float rewards[CARTPOLE_POLE_STEPS];
    float returns[CARTPOLE_POLE_STEPS];     /* set by cp_learner_finish */
    size_t actions;                         /* chosen so far */
    size_t rewarded;                        /* of them, rewarded: equal, or one less */
};

struct cp_learner {
    struct cp_net net;
    struct cp_track *tracks;
    size_t observers;
    double gamma;
    uint64_t seed;
    uint64_t episode;           /* from 0 */
    uint64_t episode_key;       /* of its random numbers */
    uint64_t steps;             /* of all observers, in all episodes that were finished */
    double running_reward;
};

struct cp_learner_options {
    size_t observers;
    double gamma;
    uint64_t seed;
};

/* 0 or -ENOMEM. cp_learner_fini accepts an all-zero learner. */
int cp_learner_init(struct cp_learner *learner, const struct cp_learner_options *options);
void cp_learner_fini(struct cp_learner *learner);

/* Chooses the action of an observer's next step: 0 or 1. It depends on seed, episode, observer, step, state and
 * parameters only, not on who else asked before. -ERANGE: no such observer, its last step has no reward yet, or its
 * pole has had all steps. */
int cp_learner_select_action(struct cp_learner *learner, size_t observer, const float state[POLICY_INPUTS]);
/* Takes the reward of the action that was chosen last. 0; -ERANGE: no such observer, or it has that reward. */
int cp_learner_report_reward(struct cp_learner *learner, size_t observer, float reward);

/* Ends the episode: learns from it, and begins the next one. Sets *min_reward to the smallest sum of rewards of an
 * observer. 0; -ERANGE: an observer has no step, or its last one has no reward; or a code of boxcar_autograd.h. */
int cp_learner_finish_episode(struct cp_learner *learner, double *min_reward);

/* Sets returns[i] to rewards[i] + gamma * returns[i + 1]: the discounted rewards from step i to the end. */
void cp_discount(const float *rewards, size_t count, double gamma, float *returns);
/* Subtracts from all returns of all observers their mean, and divides them by their standard deviation (of a sample)
 * plus FLT_EPSILON. One return alone becomes 0. */
void cp_normalise(struct cp_track *tracks, size_t observers);

#endif

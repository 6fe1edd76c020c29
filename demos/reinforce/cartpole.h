/* SPDX-License-Identifier: MIT */
/*
 * CartPole-v1: a cart on a rail, a pole on the cart, and a push to the left or to the right at each step. Barto, Sutton
 * and Anderson, "Neuronlike adaptive elements that can solve difficult learning control problems" (1983), integrated by
 * Euler's method at 50 Hz. Uses no RPC.
 */
#ifndef DEMOS_CARTPOLE_H
#define DEMOS_CARTPOLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CARTPOLE_POLE_STEPS 500     /* a pole ends after these steps even if it still stands */

struct cartpole {
    double state[4];    /* position m, velocity m/s, angle rad, angular velocity rad/s */
    int steps;          /* of this pole so far */
    bool fell;
    bool done;          /* it fell, or it stood for CARTPOLE_POLE_STEPS */
};

/* Starts a new pole, each coordinate uniform in +-0.05. The start depends on seed, rank and reset number only. */
void cartpole_reset(struct cartpole *pole, uint64_t seed, int rank, uint64_t reset);

/* Pushes with 10 N to the right (action 1) or to the left (0) for 0.02 s. Returns pole->done. */
bool cartpole_step(struct cartpole *pole, int action);

/* One observer's simulator: it plays pole after pole. */
struct cartpole_player {
    uint64_t seed;
    int rank;
    uint64_t resets;    /* poles started so far */
    double gamma;
};

/* Returns the action in a state: 0 or 1. A negative value ends the episode. */
typedef int (*cartpole_choose_fn)(const float state[4], void *context);

/* Plays an episode of `steps` steps; each pole that is done is followed by a new one. Sets returns[i] to the discounted
 * sum of the rewards (1 a step) from step i to the end of its pole or of the episode. Returns the length of the first
 * pole, at most `steps`, or the negative value of choose. */
int cartpole_play(struct cartpole_player *player, size_t steps, float *returns,
                  cartpole_choose_fn choose, void *context);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The agent's network in the two forms that the program needs: demos/reinforce/policy.h decides with it, one state at a
 * time, and a tape of boxcar_autograd.h computes its gradient, a whole episode at a time. Uses no RPC. One thread at a
 * time uses a net.
 */
#ifndef DEMOS_CARTPOLE_NET_H
#define DEMOS_CARTPOLE_NET_H

#include "demos/reinforce/policy.h"

#include <boxcar_autograd.h>

enum { CP_W1, CP_B1, CP_W2, CP_B2, CP_PARAMS };

struct cp_net {
    struct policy policy;               /* decides; equal to the parameters below after each step */
    struct bx_var *params[CP_PARAMS];   /* in policy.h's layout: (4, 128), (128), (2, 128), (2) */
    struct bx_tape *tape;
    struct bx_grads *grads;
    struct bx_optim *adam;
};

/* Draws the parameters as policy_init does. 0 or -ENOMEM. cp_net_fini accepts an all-zero net. */
int cp_net_init(struct cp_net *net, uint64_t seed);
void cp_net_fini(struct cp_net *net);

/* Decisions, each with its kept units and its action, and their weights. */
struct cp_rows {
    const struct policy_row *rows;
    const float *weights;
    size_t count;               /* at least 1 */
};

/* Records on the tape -sum(weights[i] * log prob of rows[i].action), a scalar; the tape holds it. NULL: bx_tape_error.
 * It computes the probabilities anew, with the dropout that the rows were decided with. */
struct bx_var *cp_net_loss(struct cp_net *net, const struct cp_rows *rows);
/* Adds the gradient of that loss to net->grads, and clears the tape. 0 or a code of bx_backward. */
int cp_net_backward(struct cp_net *net, const struct cp_rows *rows);
/* A step of Adam with net->grads, which it clears. 0 or a code of bx_optim_step. */
int cp_net_step(struct cp_net *net);

#endif

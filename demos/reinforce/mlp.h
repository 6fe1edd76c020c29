/* SPDX-License-Identifier: MIT */
/*
 * The agent's network with other hidden layers than the 128 units of policy.h. Uses no RPC.
 *
 *     Linear(4, n1) - dropout - ReLU - [Linear(n1, n2) - ReLU - ...] - Linear(2) - softmax
 *
 * in float32, on the CPU, with the initial values, the gradient and the Adam of policy.c. The forward pass of many rows
 * is one product of matrices for each layer: it reads the weights once for all rows. A row's result has the same bits
 * whatever the number of rows. One thread at a time uses a network.
 */
#ifndef DEMOS_MLP_H
#define DEMOS_MLP_H

#include "policy.h"
#include "product.h"

#define MLP_HIDDEN_MAX 4                /* hidden layers */
#define MLP_UNITS_STEP PRODUCT_PANEL    /* a layer is made of whole panels, so no loop has a remainder */
#define MLP_UNITS_MAX 4096              /* four such layers take 1.0 GB: five arrays of 50 million parameters */
#define MLP_BLOCK_ROWS 128              /* rows of one product; more are done in blocks */

struct mlp_shape {
    size_t count;                       /* 1 to MLP_HIDDEN_MAX hidden layers */
    size_t units[MLP_HIDDEN_MAX];       /* multiples of MLP_UNITS_STEP, up to MLP_UNITS_MAX */
};

/* A layer's parameters are in an array of `count` floats: at `weights` those of input k to unit u, at
 * weights + (u / PANEL * inputs + k) * PANEL + u % PANEL; at `biases` one for each unit. The last layer is one panel.
 * Two of its units are the scores of the actions; the parameters of the others are 0, and so is their gradient. */
struct mlp_layer {
    size_t inputs, units;
    size_t weights, biases;
    float *in;                          /* the inputs of a block of rows */
    size_t in_stride;                   /* from one row's to the next one's */
};

struct mlp {
    size_t layers;                      /* with the last one */
    struct mlp_layer layer[MLP_HIDDEN_MAX + 1];
    size_t count;                       /* parameters */
    float *params, *mean, *square, *grad;
    float *turned;                      /* weights with inputs and units exchanged, during mlp_backward */
    float *scores;                      /* of a block of rows, one panel each */
    float *delta[2];                    /* d(loss)/d(a layer's outputs), of a block of rows */
    uint64_t updates;                   /* Adam steps so far */
    struct policy_dropout dropout;      /* behind the first layer; mlp_create sets POLICY_DROPOUT */
};

/* A network with values drawn as by policy_init, or NULL: there is not enough memory. All memory is allocated here. */
struct mlp *mlp_create(const struct mlp_shape *shape, uint64_t seed);
void mlp_destroy(struct mlp *mlp);      /* NULL is fine */

/* Reads the state and the key of each row, and fills in the rest but for `keep`. A row's result depends only on the
 * network, its state and its key. */
void mlp_act(struct mlp *mlp, struct policy_row *const *rows, size_t count);

/* Computes in mlp->grad the gradient of -sum(weight[i] * rows[i].log_prob). The rows are summed in their order. */
void mlp_backward(struct mlp *mlp, const struct policy_row *rows, const float *weight, size_t count);
/* One step of Adam with mlp->grad. */
void mlp_adam(struct mlp *mlp);

#endif

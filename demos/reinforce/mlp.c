/* SPDX-License-Identifier: MIT */
/*
 * The network with a list of hidden layers, its gradient and Adam. Run by whichever thread uses the learner.
 *
 * Forward and backward passes are products of matrices (product.h), three for each layer:
 *
 *     outputs of a layer   = biases + inputs x weights
 *     its weights' gradient += inputs, turned x gradient of its outputs
 *     gradient of its inputs = gradient of its outputs x weights, turned
 *
 * Dropout and ReLU are loops over the outputs. The gradient repeats the forward pass, block by block, instead of
 * storing it: 8 KB a row with two layers of 1024. So memory grows with the episode by the rows themselves only.
 *
 * All inputs are multiplied, also those that dropout and ReLU have set to 0, four of five after the first layer. A loop
 * over the others took 12.7 us for one row and 10.9 us a row for ten, with 1024 x 1024 weights: faster than the product
 * (50 and 19 us), but then a batch gains nothing, because it is limited by arithmetic and not by memory.
 */
#include "mlp.h"

#include "demos/common/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PANEL PRODUCT_PANEL
#define LANES 4
/* Without these, the rows of a block would lie multiples of 4 KB apart, where they compete for one set of the cache. */
#define STRIDE_EXTRA PANEL
/* The keys of the dropout's draws, one for each 128 units, follow the draw of the action. */
#define DROPOUT_DRAW (POLICY_ACTION_DRAW + 1)

/* As in policy.c. */
typedef float lanes_f32 __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t lanes_i32 __attribute__((vector_size(16), aligned(4), may_alias));

static const float ZERO[PANEL];

/* The values of the lanes in which `mask` is all ones; 0 in the others. */
static inline lanes_f32 where(lanes_i32 mask, lanes_f32 values)
{
    return (lanes_f32)(mask & (lanes_i32)values);
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- Making it ----------------------------------------------------------------------------------------- */

static void lay_out(struct mlp *mlp, const struct mlp_shape *shape)
{
    size_t inputs = POLICY_INPUTS;

    mlp->layers = shape->count + 1;
    for (size_t i = 0; i < mlp->layers; i++) {
        struct mlp_layer *layer = &mlp->layer[i];

        layer->inputs = inputs;
        layer->units = i < shape->count ? shape->units[i] : PANEL;
        layer->weights = mlp->count;
        layer->biases = layer->weights + inputs * layer->units;
        layer->in_stride = inputs + STRIDE_EXTRA;
        mlp->count = layer->biases + layer->units;
        inputs = layer->units;
    }
}

/* Zeroes, from a cache line on. */
static int alloc(float **array, size_t count)
{
    size_t bytes = (count * sizeof(float) + 63) / 64 * 64;

    *array = aligned_alloc(64, bytes);
    if (*array == NULL)
        return -1;
    memset(*array, 0, bytes);
    return 0;
}

static int alloc_all(struct mlp *mlp)
{
    float **const params[] = { &mlp->params, &mlp->mean, &mlp->square, &mlp->grad, &mlp->turned };
    size_t most = 0;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < sizeof(params) / sizeof(params[0]); i++)
        rc = alloc(params[i], mlp->count);
    for (size_t i = 0; rc == 0 && i < mlp->layers; i++) {
        struct mlp_layer *layer = &mlp->layer[i];

        rc = alloc(&layer->in, MLP_BLOCK_ROWS * layer->in_stride);
        most = layer->units > most ? layer->units : most;
    }
    if (rc == 0)
        rc = alloc(&mlp->scores, MLP_BLOCK_ROWS * PANEL);
    for (size_t i = 0; rc == 0 && i < 2; i++)
        rc = alloc(&mlp->delta[i], MLP_BLOCK_ROWS * (most + STRIDE_EXTRA));
    return rc;
}

static void draw_params(struct mlp *mlp, uint64_t seed)
{
    uint64_t key = rng_at(seed, RNG_WEIGHTS);

    for (size_t i = 0; i < mlp->layers; i++) {
        const struct mlp_layer *layer = &mlp->layer[i];
        double bound = 1.0 / sqrt((double)layer->inputs);
        size_t units = i + 1 < mlp->layers ? PANEL : POLICY_ACTIONS;

        for (size_t at = layer->weights; at < layer->biases + layer->units; at++)
            if (at % PANEL < units)
                mlp->params[at] = (float)(bound * (2.0 * rng_unit(rng_at(key, at)) - 1.0));
    }
}

struct mlp *mlp_create(const struct mlp_shape *shape, uint64_t seed)
{
    struct mlp *mlp = calloc(1, sizeof(*mlp));

    if (mlp == NULL)
        return NULL;
    lay_out(mlp, shape);
    if (alloc_all(mlp) < 0) {
        mlp_destroy(mlp);
        return NULL;
    }
    draw_params(mlp, seed);
    mlp->dropout = policy_dropout(POLICY_DROPOUT);
    return mlp;
}

void mlp_destroy(struct mlp *mlp)
{
    if (mlp == NULL)
        return;
    for (size_t i = 0; i < mlp->layers; i++)
        free(mlp->layer[i].in);
    free(mlp->params);
    free(mlp->mean);
    free(mlp->square);
    free(mlp->grad);
    free(mlp->turned);
    free(mlp->scores);
    free(mlp->delta[0]);
    free(mlp->delta[1]);
    free(mlp);
}

/* ---- Forward ------------------------------------------------------------------------------------------- */

/* Dropout and ReLU of one row's first hidden layer. */
static void gate_first(const struct mlp *mlp, uint64_t row_key, float *out, size_t units)
{
    static const lanes_i32 BIT = { 1, 2, 4, 8 };
    uint64_t keep[2] = { 0, 0 };

    for (size_t unit = 0; unit < units; unit += LANES) {
        if (unit % 128 == 0)
            policy_draw_keep(mlp->dropout, rng_at(row_key, DROPOUT_DRAW + unit / 128), keep);

        lanes_f32 *at = (lanes_f32 *)(out + unit), value = *at * mlp->dropout.scale;
        lanes_i32 kept = (BIT & (int32_t)(keep[unit / 64 % 2] >> unit % 64 & 15)) != 0;
        *at = where(value > 0.0f, where(kept, value));
    }
}

static void relu(float *out, size_t units)
{
    for (size_t unit = 0; unit < units; unit += LANES) {
        lanes_f32 *at = (lanes_f32 *)(out + unit);

        *at = where(*at > 0.0f, *at);
    }
}

/* The scores of at most MLP_BLOCK_ROWS rows. The inputs of all layers stay in layer->in. */
static void forward(struct mlp *mlp, const struct policy_row *const *rows, size_t count)
{
    for (size_t row = 0; row < count; row++)
        memcpy(mlp->layer[0].in + row * mlp->layer[0].in_stride, rows[row]->state, sizeof(rows[row]->state));
    for (size_t i = 0; i < mlp->layers; i++) {
        const struct mlp_layer *layer = &mlp->layer[i];
        bool last = i + 1 == mlp->layers;
        float *out = last ? mlp->scores : layer[1].in;
        size_t stride = last ? PANEL : layer[1].in_stride;

        product(&(struct product){
            .rows = count, .terms = layer->inputs, .panels = layer->units / PANEL,
            .a = layer->in, .a_row = layer->in_stride, .a_term = 1,
            .b = mlp->params + layer->weights, .b_term = PANEL, .b_panel = layer->inputs * PANEL,
            .base = mlp->params + layer->biases, .base_row = 0, .base_panel = PANEL,
            .c = out, .c_row = stride, .c_panel = PANEL,
        });
        for (size_t row = 0; !last && row < count; row++) {
            if (i == 0)
                gate_first(mlp, rows[row]->key, out + row * stride, layer->units);
            else
                relu(out + row * stride, layer->units);
        }
    }
}

void mlp_act(struct mlp *mlp, struct policy_row *const *rows, size_t count)
{
    for (size_t done = 0; done < count; done += MLP_BLOCK_ROWS) {
        size_t block = min_size(count - done, MLP_BLOCK_ROWS);

        forward(mlp, (const struct policy_row *const *)rows + done, block);
        for (size_t i = 0; i < block; i++) {
            struct policy_row *row = rows[done + i];
            const float *score = mlp->scores + i * PANEL;

            row->action = policy_choose(score[1] - score[0], row->key, row->prob, &row->log_prob);
        }
    }
}

/* ---- Backward ------------------------------------------------------------------------------------------ */

/* Writes the weights of a layer with inputs and units exchanged: for the gradient of its inputs, inputs come in panels
 * and units are the terms. */
static void turn(struct mlp *mlp, const struct mlp_layer *layer)
{
    const float *from = mlp->params + layer->weights;
    float *to = mlp->turned + layer->weights;

    for (size_t panel = 0; panel < layer->units; panel += PANEL) {
        for (size_t input = 0; input < layer->inputs; input += PANEL) {
            const float *tile = from + panel * layer->inputs + input * PANEL;
            float *turned = to + input * layer->units + panel * PANEL;

            for (size_t i = 0; i < PANEL; i++)
                for (size_t u = 0; u < PANEL; u++)
                    turned[u * PANEL + i] = tile[i * PANEL + u];
        }
    }
}

/* Adds a block's gradient of a layer's weights and biases. The sums of a block stay in registers and keep their small
 * terms. */
static void add_gradient(struct mlp *mlp, const struct mlp_layer *layer, const float *delta, size_t rows)
{
    static const float ONE = 1.0f;
    float *weights = mlp->grad + layer->weights, *biases = mlp->grad + layer->biases;
    struct product sum = {
        .rows = layer->inputs, .terms = rows, .panels = layer->units / PANEL,
        .a = layer->in, .a_row = 1, .a_term = layer->in_stride,
        .b = delta, .b_term = layer->units + STRIDE_EXTRA, .b_panel = PANEL,
        .base = weights, .base_row = PANEL, .base_panel = layer->inputs * PANEL,
        .c = weights, .c_row = PANEL, .c_panel = layer->inputs * PANEL,
    };

    product(&sum);
    sum.rows = 1;
    sum.a = &ONE;
    sum.a_row = sum.a_term = 0;
    sum.base = sum.c = biases;
    sum.base_row = sum.c_row = 0;
    sum.base_panel = sum.c_panel = PANEL;
    product(&sum);
}

/* From the gradient of a layer's outputs to that of the outputs of the layer before it, through that one's ReLU and
 * dropout. */
static void pass_back(struct mlp *mlp, const struct mlp_layer *layer, float *const delta[2], size_t rows)
{
    size_t stride = layer->inputs + STRIDE_EXTRA;
    float scale = layer == &mlp->layer[1] ? mlp->dropout.scale : 1.0f;

    product(&(struct product){
        .rows = rows, .terms = layer->units, .panels = layer->inputs / PANEL,
        .a = delta[0], .a_row = layer->units + STRIDE_EXTRA, .a_term = 1,
        .b = mlp->turned + layer->weights, .b_term = PANEL, .b_panel = layer->units * PANEL,
        .base = ZERO, .base_row = 0, .base_panel = 0,
        .c = delta[1], .c_row = stride, .c_panel = PANEL,
    });
    for (size_t row = 0; row < rows; row++) {
        const float *in = layer->in + row * layer->in_stride;
        float *out = delta[1] + row * stride;

        for (size_t i = 0; i < layer->inputs; i += LANES) {
            lanes_f32 *at = (lanes_f32 *)(out + i);

            *at = where(*(const lanes_f32 *)(in + i) > 0.0f, *at * scale);
        }
    }
}

static void backward_block(struct mlp *mlp, const struct policy_row *rows, const float *weight, size_t count)
{
    const struct policy_row *row[MLP_BLOCK_ROWS];
    float *delta[2] = { mlp->delta[0], mlp->delta[1] };

    for (size_t i = 0; i < count; i++)
        row[i] = &rows[i];
    forward(mlp, row, count);
    for (size_t i = 0; i < count; i++) {
        float *slope = delta[0] + i * (PANEL + STRIDE_EXTRA);

        memset(slope, 0, PANEL * sizeof(*slope));
        slope[0] = policy_slope(weight[i], rows[i].action, rows[i].prob);
        slope[1] = -slope[0];
    }
    for (size_t i = mlp->layers; i-- > 0;) {
        float *next = delta[1];

        add_gradient(mlp, &mlp->layer[i], delta[0], count);
        if (i == 0)
            break;
        pass_back(mlp, &mlp->layer[i], delta, count);
        delta[1] = delta[0];
        delta[0] = next;
    }
}

void mlp_backward(struct mlp *mlp, const struct policy_row *rows, const float *weight, size_t count)
{
    memset(mlp->grad, 0, mlp->count * sizeof(*mlp->grad));
    for (size_t i = 1; i < mlp->layers; i++)
        turn(mlp, &mlp->layer[i]);
    for (size_t done = 0; done < count; done += MLP_BLOCK_ROWS)
        backward_block(mlp, rows + done, weight + done, min_size(count - done, MLP_BLOCK_ROWS));
}

void mlp_adam(struct mlp *mlp)
{
    policy_adam_arrays(&(struct policy_adam_arrays){
        .params = mlp->params, .mean = mlp->mean, .square = mlp->square, .grad = mlp->grad, .count = mlp->count,
    }, &mlp->updates);
}

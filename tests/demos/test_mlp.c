/* SPDX-License-Identifier: MIT */
/*
 * demos/reinforce/product.c and mlp.c: bits that do not depend on the number of rows, forward pass and gradient against
 * plain loops in double. Their Adam is policy.c's.
 */
#include "tests/harness/test.h"
#include "demos/common/rng.h"
#include "demos/reinforce/mlp.h"

#include <math.h>

#define PANEL PRODUCT_PANEL
#define ROWS 300                /* two whole blocks and a part of one */

static const struct mlp_shape SHAPES[] = {
    { 1, { 16 } }, { 1, { 144 } }, { 2, { 48, 32 } }, { 2, { 128, 256 } }, { 3, { 16, 272, 32 } },
    { 4, { 64, 16, 32, 48 } },
};
#define SHAPE_COUNT (sizeof(SHAPES) / sizeof(SHAPES[0]))

static float between(uint64_t key, uint64_t index, float least, float most)
{
    return least + (most - least) * rng_unit_f32(rng_at(key, index));
}

/* ---- The product --------------------------------------------------------------------------------------- */

static void fill(float *array, size_t count, uint64_t key)
{
    for (size_t i = 0; i < count; i++)
        array[i] = between(key, i, -1.0f, 1.0f);
}

/* volatile: each product and each sum is rounded by itself. */
static float element_by_hand(const struct product *p, size_t row, size_t unit)
{
    volatile float sum = 0.0f;

    for (size_t term = 0; term < p->terms; term++) {
        volatile float part = p->a[row * p->a_row + term * p->a_term] *
                              p->b[unit / PANEL * p->b_panel + term * p->b_term + unit % PANEL];

        sum = sum + part;
    }
    return p->base[row * p->base_row + unit / PANEL * p->base_panel + unit % PANEL] + sum;
}

static void check_product(size_t rows, size_t terms, size_t panels)
{
    static float a[14 * 33], b[3 * 33 * PANEL], base[14 * 3 * PANEL], c[15 * 3 * PANEL];
    struct product p = {
        .rows = rows, .terms = terms, .panels = panels, .a = a, .a_row = 33, .a_term = 1,
        .b = b, .b_term = PANEL, .b_panel = 33 * PANEL,
        .base = base, .base_row = 3 * PANEL, .base_panel = PANEL, .c = c, .c_row = 3 * PANEL, .c_panel = PANEL,
    };

    fill(a, sizeof(a) / sizeof(*a), 1);
    fill(b, sizeof(b) / sizeof(*b), 2);
    fill(base, sizeof(base) / sizeof(*base), 3);
    for (enum product_vectors vectors = 0; vectors < PRODUCT_VECTORS; vectors++) {
        memset(c, 0, sizeof(c));
        if (!product_with(vectors, &p))
            continue;
        for (size_t i = 0; i < sizeof(c) / sizeof(*c); i++) {
            size_t row = i / (3 * PANEL), unit = i % (3 * PANEL);
            float want = row < rows && unit < panels * PANEL ? element_by_hand(&p, row, unit) : 0.0f;

            cr_assert_eq(c[i], want, "%zu x %zu x %zu, vectors %d: row %zu, unit %zu: %a, not %a", rows, terms, panels,
                         (int)vectors, row, unit, (double)c[i], (double)want);
        }
    }
    cr_assert(product_with(PRODUCT_4, &p));
}

TestSuite(mlp, .timeout = 600);

Test(mlp, product_adds_the_terms_in_their_order_whatever_the_processor)
{
    static const size_t TERMS[] = { 1, 4, 33 };

    for (size_t rows = 0; rows <= 14; rows++)
        for (size_t i = 0; i < 3; i++)
            for (size_t panels = 1; panels <= 3; panels++)
                check_product(rows, TERMS[i], panels);
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

static void make_rows(struct policy_row *rows, float *weight, size_t count)
{
    memset(rows, 0, count * sizeof(*rows));
    for (size_t i = 0; i < count; i++) {
        for (uint64_t k = 0; k < POLICY_INPUTS; k++)
            rows[i].state[k] = between(rng_at(7, i), k, -1.0f, 1.0f);
        rows[i].key = rng_at(8, i);
        weight[i] = between(9, i, -0.5f, 1.5f);
    }
}

static void act(struct mlp *mlp, struct policy_row *rows, size_t count)
{
    struct policy_row *list[ROWS];

    for (size_t i = 0; i < count; i++)
        list[i] = &rows[i];
    mlp_act(mlp, list, count);
}

Test(mlp, a_row_has_the_same_bits_whatever_the_number_of_rows)
{
    static struct policy_row alone[ROWS], together[ROWS];
    static float weight[ROWS];

    for (size_t shape = 0; shape < SHAPE_COUNT; shape++) {
        struct mlp *mlp = mlp_create(&SHAPES[shape], 543);

        cr_assert_not_null(mlp);
        make_rows(alone, weight, ROWS);
        for (size_t i = 0; i < ROWS; i++)
            act(mlp, &alone[i], 1);
        for (size_t count = 1; count <= 11; count++) {
            make_rows(together, weight, ROWS);
            act(mlp, together, count);
            cr_assert_arr_eq(alone, together, count * sizeof(*alone), "shape %zu, %zu rows", shape, count);
        }
        make_rows(together, weight, ROWS);
        act(mlp, together, ROWS);
        cr_assert_arr_eq(alone, together, sizeof(alone), "shape %zu, %d rows", shape, ROWS);
        mlp_destroy(mlp);
    }
}

/* ---- Plain loops in double ----------------------------------------------------------------------------- */

#define UNITS_MOST 272

/* A row's values in all layers: in[i] are layer i's inputs, in[layers] the scores. */
struct by_hand {
    double in[MLP_HIDDEN_MAX + 2][UNITS_MOST];
};

static size_t place(const struct mlp_layer *layer, size_t input, size_t unit)
{
    return layer->weights + (unit / PANEL * layer->inputs + input) * PANEL + unit % PANEL;
}

static bool is_kept(const struct mlp *mlp, uint64_t key, size_t unit)
{
    uint64_t keep[2];

    policy_draw_keep(mlp->dropout, rng_at(key, POLICY_ACTION_DRAW + 1 + unit / 128), keep);
    return (keep[unit / 64 % 2] >> (unit % 64) & 1) != 0;
}

/* Returns the probability of action 1. */
static double forward_by_hand(const struct mlp *mlp, const struct policy_row *row, struct by_hand *hand)
{
    for (size_t k = 0; k < POLICY_INPUTS; k++)
        hand->in[0][k] = row->state[k];
    for (size_t i = 0; i < mlp->layers; i++) {
        const struct mlp_layer *layer = &mlp->layer[i];

        for (size_t unit = 0; unit < layer->units; unit++) {
            double sum = mlp->params[layer->biases + unit];

            for (size_t k = 0; k < layer->inputs; k++)
                sum += (double)mlp->params[place(layer, k, unit)] * hand->in[i][k];
            if (i == 0)
                sum *= is_kept(mlp, row->key, unit) ? (double)mlp->dropout.scale : 0.0;
            hand->in[i + 1][unit] = i + 1 < mlp->layers ? fmax(sum, 0.0) : sum;
        }
    }
    return 1.0 / (1.0 + exp(hand->in[mlp->layers][0] - hand->in[mlp->layers][1]));
}

static void backward_by_hand(const struct mlp *mlp, const struct policy_row *row, double weight, double *grad)
{
    static struct by_hand hand;
    double delta[UNITS_MOST] = { 0 }, before[UNITS_MOST];
    double prob = forward_by_hand(mlp, row, &hand);

    delta[0] = weight * (row->action == 0 ? -prob : 1.0 - prob);
    delta[1] = -delta[0];
    for (size_t i = mlp->layers; i-- > 0;) {
        const struct mlp_layer *layer = &mlp->layer[i];

        memset(before, 0, sizeof(before));
        for (size_t unit = 0; unit < layer->units; unit++) {
            grad[layer->biases + unit] += delta[unit];
            for (size_t k = 0; k < layer->inputs; k++) {
                grad[place(layer, k, unit)] += hand.in[i][k] * delta[unit];
                if (hand.in[i][k] > 0.0)
                    before[k] += delta[unit] * mlp->params[place(layer, k, unit)];
            }
        }
        for (size_t k = 0; k < layer->inputs; k++)
            delta[k] = before[k] * (i == 1 ? (double)mlp->dropout.scale : 1.0);
    }
}

/* Compares a layer's gradient: the error may be 1e-5 of the layer's greatest element. */
static void check_layer(const struct mlp *mlp, const struct mlp_layer *layer, const double *want)
{
    size_t end = layer->biases + layer->units;
    double most = 0.0;

    for (size_t i = layer->weights; i < end; i++)
        most = fmax(most, fabs(want[i]));
    cr_assert_gt(most, 1e-3);
    for (size_t i = layer->weights; i < end; i++)
        cr_assert_float_eq(mlp->grad[i], want[i], 1e-5 * most, "parameter %zu: %g, not %g", i, (double)mlp->grad[i],
                           want[i]);
}

/* Compares the probabilities, which differ from row to row. */
static void check_forward(const struct mlp *mlp, const struct policy_row *rows, size_t shape)
{
    static struct by_hand hand;
    double least = 1.0, most = 0.0;

    for (size_t i = 0; i < ROWS; i++) {
        double want = forward_by_hand(mlp, &rows[i], &hand);

        cr_assert_float_eq(rows[i].prob[1], want, 1e-6, "shape %zu, row %zu", shape, i);
        cr_assert_float_eq(rows[i].prob[0], 1.0 - want, 1e-6, "shape %zu, row %zu", shape, i);
        cr_assert_float_eq(rows[i].log_prob, log(rows[i].action == 1 ? want : 1.0 - want), 1e-5);
        least = fmin(least, want);
        most = fmax(most, want);
    }
    cr_assert_gt(most - least, 0.005, "shape %zu: the rows differ by %g", shape, most - least);
}

Test(mlp, forward_and_gradient_agree_with_plain_loops_in_double)
{
    static struct policy_row rows[ROWS];
    float weight[ROWS];

    for (size_t shape = 0; shape < SHAPE_COUNT; shape++) {
        struct mlp *mlp = mlp_create(&SHAPES[shape], 5);
        double *want = mlp != NULL ? calloc(mlp->count, sizeof(*want)) : NULL;

        cr_assert_not_null(want);
        make_rows(rows, weight, ROWS);
        act(mlp, rows, ROWS);
        cr_assert_eq(mlp->dropout.scale, policy_dropout(POLICY_DROPOUT).scale);
        check_forward(mlp, rows, shape);
        for (size_t i = 0; i < ROWS; i++)
            backward_by_hand(mlp, &rows[i], weight[i], want);
        for (int again = 0; again < 2; again++) {
            mlp_backward(mlp, rows, weight, ROWS);
            for (size_t i = 0; i < mlp->layers; i++)
                check_layer(mlp, &mlp->layer[i], want);
        }
        free(want);
        mlp_destroy(mlp);
    }
}

/* ---- First values -------------------------------------------------------------------------------------- */

Test(mlp, first_parameters_are_uniform_within_one_over_root_fan_in)
{
    struct mlp *mlp = mlp_create(&(struct mlp_shape){ 2, { 256, 64 } }, 543);

    cr_assert_not_null(mlp);
    for (size_t i = 0; i < mlp->layers; i++) {
        const struct mlp_layer *layer = &mlp->layer[i];
        double bound = 1.0 / sqrt((double)layer->inputs), most = 0.0, sum = 0.0;
        size_t count = 0;

        for (size_t at = layer->weights; at < layer->biases + layer->units; at++) {
            if (i + 1 == mlp->layers && at % PANEL >= POLICY_ACTIONS) {
                cr_assert_eq(mlp->params[at], 0.0f);
                continue;
            }
            most = fmax(most, fabs((double)mlp->params[at]));
            sum += mlp->params[at];
            count++;
        }
        cr_assert_leq(most, bound * (1.0 + 1e-6));
        cr_assert_gt(most, 0.97 * bound);
        /* Five standard errors of the mean of a uniform number. */
        cr_assert_float_eq(sum / (double)count, 0.0, 5.0 * bound / sqrt(3.0 * (double)count));
    }
    mlp_destroy(mlp);
}

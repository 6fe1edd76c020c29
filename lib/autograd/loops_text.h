/* SPDX-License-Identifier: MIT */
/*
 * The text of loops_f32.c and loops_f64.c, which define before they include it:
 *
 *     real        the type of an element
 *     REAL(name)  the function of math.h for it
 *     TABLE       the name of the table
 *
 * Written for the compiler's vectorizer: inner loops have stride 1, restrict pointers and no calls, and sums that
 * must be fast have LANES partial sums, because without -ffast-math the compiler may not reorder one.
 */
#include "loops.h"

#include <math.h>
#include <string.h>

#define LANES 16

/* ---- Matrix products ----------------------------------------------------------------------------- */

static real dot(int64_t count, const real *restrict a, const real *restrict b)
{
    real sum = 0;
    int64_t i = 0;

    if (count >= LANES) {
        real lane[LANES] = { 0 };

        for (; i + LANES <= count; i += LANES)
            for (int l = 0; l < LANES; l++)
                lane[l] += a[i + l] * b[i + l];
        for (int l = 0; l < LANES; l++)
            sum += lane[l];
    }
    for (; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

static void add_times(int64_t count, real factor, const real *restrict from, real *restrict to)
{
    for (int64_t i = 0; i < count; i++)
        to[i] += factor * from[i];
}

/* k rows of `count` elements, row_step apart. */
struct span {
    int64_t k, count, row_step;
};

/* to += f[0] rows[0] + f[1] rows[1] + ...: four rows, `step` apart, so that `to` is loaded and stored once. */
static void add_four(int64_t count, const real f[4], const real *restrict rows, int64_t step, real *restrict to)
{
    const real *restrict b = rows + step, *restrict c = b + step, *restrict d = c + step;

    for (int64_t i = 0; i < count; i++)
        to[i] += (f[0] * rows[i] + f[1] * b[i]) + (f[2] * c[i] + f[3] * d[i]);
}

/* to += the sum over p of f[p * f_step] * row p. */
static void add_rows(const struct span *span, const real *f, int64_t f_step, const real *rows, real *to)
{
    int64_t p = 0;

    for (; p + 4 <= span->k; p += 4) {
        const real four[4] = { f[p * f_step], f[(p + 1) * f_step], f[(p + 2) * f_step], f[(p + 3) * f_step] };

        add_four(span->count, four, rows + p * span->row_step, span->row_step, to);
    }
    for (; p < span->k; p++)
        add_times(span->count, f[p * f_step], rows + p * span->row_step, to);
}

/* c += a b^T by dot products. */
static void gemm_dots(const struct bxi_gemm *g)
{
    const real *a = g->a, *b = g->b;
    real *c = g->c;

    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++)
            c[i * g->n + j] += dot(g->k, a + i * g->k, b + j * g->k);
}

static void gemm(const struct bxi_gemm *g)
{
    const struct span span = { g->k, g->n, g->n };
    const real *a = g->a;
    real *c = g->c;

    if (!g->add)
        for (int64_t i = 0; i < g->m * g->n; i++)
            c[i] = 0;
    if (g->transpose_b)
        gemm_dots(g);
    else
        for (int64_t i = 0; i < g->m; i++)
            add_rows(&span, a + i * (g->transpose_a ? 1 : g->k), g->transpose_a ? g->m : 1, g->b, c + i * g->n);
}

/* ---- Element by element -------------------------------------------------------------------------- */

/* The inner loop of a binary operation, for each pair of strides 0 and 1. Others are walked with the general form. */
#define ROW(NAME, OP)                                                                               \
    static void NAME(int64_t n, const real *a, int64_t sa, const real *b, int64_t sb, real *to)             \
    {                                                                                               \
        if (sa == 1 && sb == 1)                                                                     \
            for (int64_t i = 0; i < n; i++)                                                         \
                to[i] = a[i] OP b[i];                                                               \
        else if (sa == 1 && sb == 0)                                                                \
            for (int64_t i = 0; i < n; i++)                                                         \
                to[i] = a[i] OP b[0];                                                               \
        else                                                                                        \
            for (int64_t i = 0; i < n; i++)                                                         \
                to[i] = a[i * sa] OP b[i * sb];                                                     \
    }
ROW(add_row, +)
ROW(sub_row, -)
ROW(mul_row, *)
#undef ROW

/* Moves to the next row: false past the last. at: the positions of a and b. */
static bool next_row(const struct bxi_walk *walk, int64_t index[BX_DIMS_MAX], int64_t at[2])
{
    for (int dim = walk->ndim - 2; dim >= 0; dim--) {
        at[0] += walk->a[dim];
        at[1] += walk->b[dim];
        if (++index[dim] < walk->shape[dim])
            return true;
        at[0] -= walk->a[dim] * walk->shape[dim];
        at[1] -= walk->b[dim] * walk->shape[dim];
        index[dim] = 0;
    }
    return false;
}

static bool is_empty(const struct bxi_walk *walk)
{
    for (int dim = 0; dim < walk->ndim; dim++)
        if (walk->shape[dim] == 0)
            return true;
    return false;
}

static void binary(enum bxi_binary kind, const struct bxi_walk *walk, const void *a, const void *b, void *result)
{
    const int last = walk->ndim - 1;
    const int64_t n = walk->shape[last], sa = walk->a[last], sb = walk->b[last];
    int64_t index[BX_DIMS_MAX] = { 0 }, at[2] = { 0, 0 };
    real *to = result;

    if (is_empty(walk))
        return;
    do {
        const real *x = (const real *)a + at[0], *y = (const real *)b + at[1];

        switch (kind) {
        case BXI_ADD: add_row(n, x, sa, y, sb, to); break;
        case BXI_SUB: sub_row(n, x, sa, y, sb, to); break;
        case BXI_MUL: mul_row(n, x, sa, y, sb, to); break;
        }
        to += n;
    } while (next_row(walk, index, at));
}

static double sum_row(int64_t n, const real *from, int64_t stride)
{
    double lane[4] = { 0 };
    int64_t i = 0;

    if (stride == 1)
        for (; i + 4 <= n; i += 4)
            for (int l = 0; l < 4; l++)
                lane[l] += (double)from[i + l];
    for (; i < n; i++)
        lane[0] += (double)from[i * stride];
    return (lane[0] + lane[1]) + (lane[2] + lane[3]);
}

static void reduce(const struct bxi_walk *walk, const void *from, double factor, void *to)
{
    const int last = walk->ndim - 1;
    const int64_t n = walk->shape[last], st = walk->a[last], sf = walk->b[last];
    int64_t index[BX_DIMS_MAX] = { 0 }, at[2] = { 0, 0 };

    if (is_empty(walk))
        return;
    do {
        real *x = (real *)to + at[0];
        const real *y = (const real *)from + at[1];

        if (st == 0)
            x[0] += (real)(factor * sum_row(n, y, sf));
        else if (st == 1 && sf == 1)
            add_times(n, (real)factor, y, x);
        else
            for (int64_t i = 0; i < n; i++)
                x[i * st] += (real)factor * y[i * sf];
    } while (next_row(walk, index, at));
}

static void scale(int64_t count, const void *source, double by, void *result)
{
    const real *restrict from = source, factor = (real)by;
    real *restrict to = result;

    for (int64_t i = 0; i < count; i++)
        to[i] = factor * from[i];
}

static void fill(int64_t count, double value, void *result)
{
    real *to = result;

    for (int64_t i = 0; i < count; i++)
        to[i] = (real)value;
}

static double first(const void *from)
{
    return (double)*(const real *)from;
}

static real sigmoid_of(real x)
{
    return 1 / (1 + REAL(exp)(-x));
}

/* Reads both, so that the compiler needs no branch. The signs of a layer's values are random: a branch on them would be
 * predicted wrongly every other time. */
static real choose(bool first, real a, real b)
{
    return first ? a : b;
}

/* relu: the comparison is false for a NaN, so that a NaN is passed on. */
static void unary(const struct bxi_function *function, int64_t count, const void *source, void *result)
{
    const real *restrict x = source;
    real *restrict y = result;

    switch (function->kind) {
    case BXI_EXP:
        for (int64_t i = 0; i < count; i++)
            y[i] = REAL(exp)(x[i]);
        break;
    case BXI_LOG:
        for (int64_t i = 0; i < count; i++)
            y[i] = REAL(log)(x[i]);
        break;
    case BXI_RELU:
        for (int64_t i = 0; i < count; i++)
            y[i] = choose(x[i] < 0, 0, x[i]);
        break;
    case BXI_TANH:
        for (int64_t i = 0; i < count; i++)
            y[i] = REAL(tanh)(x[i]);
        break;
    case BXI_SIGMOID:
        for (int64_t i = 0; i < count; i++)
            y[i] = sigmoid_of(x[i]);
        break;
    case BXI_SCALE:
    case BXI_NEG:
        scale(count, source, function->factor, result);
        break;
    }
}

static void unary_back(const struct bxi_function *function, int64_t count, const void *saved, const void *grad,
                       void *result)
{
    const real *restrict s = saved, *restrict g = grad;
    real *restrict to = result;

    switch (function->kind) {
    case BXI_EXP:
        for (int64_t i = 0; i < count; i++)
            to[i] = g[i] * s[i];
        break;
    case BXI_LOG:
        for (int64_t i = 0; i < count; i++)
            to[i] = g[i] / s[i];
        break;
    case BXI_RELU:
        for (int64_t i = 0; i < count; i++)
            to[i] = choose(s[i] <= 0, 0, g[i]);
        break;
    case BXI_TANH:
        for (int64_t i = 0; i < count; i++)
            to[i] = g[i] * (1 - s[i] * s[i]);
        break;
    case BXI_SIGMOID:
        for (int64_t i = 0; i < count; i++)
            to[i] = g[i] * s[i] * (1 - s[i]);
        break;
    case BXI_SCALE:
    case BXI_NEG:
        scale(count, grad, function->factor, result);
        break;
    }
}

/* splitmix64 of the seed's own sequence: value i in [0, 1). */
static double random_unit(uint64_t seed, uint64_t i)
{
    uint64_t z = seed + (i + 1) * UINT64_C(0x9E3779B97F4A7C15);

    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static void mask(int64_t count, double p, const struct bx_generator *generator, void *result)
{
    const real kept = p < 1 ? (real)(1 / (1 - p)) : 0;
    real *to = result;

    for (int64_t i = 0; i < count; i++)
        to[i] = random_unit(generator->seed, generator->drawn + (uint64_t)i) < p ? 0 : kept;
}

/* ---- Softmax, choices and losses ------------------------------------------------------------------- */

/* Returns the largest of count values that are stride apart. */
static real largest(int64_t count, const real *x, int64_t stride)
{
    real most = x[0];

    for (int64_t i = 1; i < count; i++)
        if (x[i * stride] > most)
            most = x[i * stride];
    return most;
}

static void softmax(int64_t rows, int64_t width, const void *from, void *to)
{
    const real *x = from;
    real *y = to;

    for (int64_t row = 0; row < rows && width > 0; row++, x += width, y += width) {
        const real most = largest(width, x, 1);
        real sum = 0;

        for (int64_t i = 0; i < width; i++)
            sum += y[i] = REAL(exp)(x[i] - most);
        for (int64_t i = 0; i < width; i++)
            y[i] /= sum;
    }
}

static void softmax_back(const int64_t extent[2], const void *result, const void *grad, void *to)
{
    const real *y = result, *g = grad;
    real *x = to;

    for (int64_t row = 0; row < extent[0]; row++, y += extent[1], g += extent[1], x += extent[1]) {
        const real sum = dot(extent[1], y, g);

        for (int64_t i = 0; i < extent[1]; i++)
            x[i] = y[i] * (g[i] - sum);
    }
}

static void log_softmax(int64_t rows, int64_t width, const void *from, void *to)
{
    const real *x = from;
    real *y = to;

    for (int64_t row = 0; row < rows && width > 0; row++, x += width, y += width) {
        const real most = largest(width, x, 1);
        real sum = 0;

        for (int64_t i = 0; i < width; i++)
            sum += REAL(exp)(x[i] - most);
        sum = REAL(log)(sum);
        for (int64_t i = 0; i < width; i++)
            y[i] = x[i] - most - sum;
    }
}

static void log_softmax_back(const int64_t extent[2], const void *result, const void *grad, void *to)
{
    const real *y = result, *g = grad;
    real *x = to;

    for (int64_t row = 0; row < extent[0]; row++, y += extent[1], g += extent[1], x += extent[1]) {
        const real sum = (real)sum_row(extent[1], g, 1);

        for (int64_t i = 0; i < extent[1]; i++)
            x[i] = g[i] - REAL(exp)(y[i]) * sum;
    }
}

static void gather(const int64_t extent[3], const void *from, const int64_t *index, void *to)
{
    const real *x = from;
    real *y = to;

    for (int64_t row = 0; row < extent[0]; row++, x += extent[1])
        for (int64_t i = 0; i < extent[2]; i++)
            *y++ = x[*index++];
}

static void gather_back(const int64_t extent[3], const void *grad, const int64_t *index, void *to)
{
    const real *g = grad;
    real *x = to;

    for (int64_t row = 0; row < extent[0]; row++, x += extent[1])
        for (int64_t i = 0; i < extent[2]; i++)
            x[*index++] += *g++;
}

static double cross_entropy(const struct bxi_classes *c, const void *logits, void *probs)
{
    const int64_t positions = c->outer * c->inner;
    double loss = 0;

    for (int64_t at = 0; at < positions && c->classes > 0; at++) {
        const int64_t place = at / c->inner * c->classes * c->inner + at % c->inner;
        const real *x = (const real *)logits + place;
        real *y = (real *)probs + place;
        const real most = largest(c->classes, x, c->inner);
        real sum = y[0] = REAL(exp)(x[0] - most);

        for (int64_t i = 1; i < c->classes; i++)
            sum += y[i * c->inner] = REAL(exp)(x[i * c->inner] - most);
        for (int64_t i = 0; i < c->classes; i++)
            y[i * c->inner] /= sum;
        loss += (double)(REAL(log)(sum) - (x[c->targets[at] * c->inner] - most));
    }
    return loss / (double)positions;
}

static void cross_entropy_back(const struct bxi_classes *c, const void *probs, double grad, void *to)
{
    const int64_t positions = c->outer * c->inner;
    const real factor = (real)(grad / (double)positions);

    scale(positions * c->classes, probs, (double)factor, to);
    for (int64_t at = 0; at < positions; at++)
        ((real *)to)[at / c->inner * c->classes * c->inner + c->targets[at] * c->inner + at % c->inner] -= factor;
}

static double mse(int64_t count, const void *a, const void *b)
{
    const real *x = a, *y = b;
    double sum = 0;

    for (int64_t i = 0; i < count; i++)
        sum += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
    return sum / (double)count;
}

static void mse_back(int64_t count, const void *a, const void *b, double factor, void *result)
{
    const real *restrict x = a, *restrict y = b;
    real *restrict to = result;

    for (int64_t i = 0; i < count; i++)
        to[i] = (real)factor * (x[i] - y[i]);
}

static void embedding(const int64_t extent[3], const void *weight, const int64_t *index, void *to)
{
    const size_t bytes = (size_t)extent[1] * sizeof(real);

    for (int64_t i = 0; i < extent[2] && bytes > 0; i++)
        memcpy((real *)to + i * extent[1], (const real *)weight + index[i] * extent[1], bytes);
}

static void embedding_back(const int64_t extent[3], const void *grad, const int64_t *index, void *to)
{
    for (int64_t i = 0; i < extent[2]; i++)
        add_times(extent[1], 1, (const real *)grad + i * extent[1], (real *)to + index[i] * extent[1]);
}

/* ---- LSTM ---------------------------------------------------------------------------------------- */

static void cell(const struct bxi_cell *cell)
{
    const int64_t hidden = cell->hidden;
    const real *b_ih = cell->b_ih, *b_hh = cell->b_hh, *c_prev = cell->c_prev;
    real *gates = cell->gates, *c = cell->c, *tanh_c = cell->tanh_c, *h = cell->h;

    for (int64_t row = 0; row < cell->batch; row++, gates += 4 * hidden) {
        if (b_ih != NULL)
            for (int64_t j = 0; j < 4 * hidden; j++)
                gates[j] += b_ih[j] + b_hh[j];
        for (int64_t j = 0; j < 2 * hidden; j++)
            gates[j] = sigmoid_of(gates[j]);
        for (int64_t j = 2 * hidden; j < 3 * hidden; j++)
            gates[j] = REAL(tanh)(gates[j]);
        for (int64_t j = 3 * hidden; j < 4 * hidden; j++)
            gates[j] = sigmoid_of(gates[j]);
        for (int64_t j = 0; j < hidden; j++) {
            *c = gates[j + hidden] * *c_prev++ + gates[j] * gates[j + 2 * hidden];
            *tanh_c = REAL(tanh)(*c++);
            *h++ = gates[j + 3 * hidden] * *tanh_c++;
        }
    }
}

static void cell_back(const struct bxi_cell_back *cell)
{
    const int64_t hidden = cell->hidden;
    const real *gates = cell->gates, *c_prev = cell->c_prev, *tanh_c = cell->tanh_c, *dh = cell->dh;
    real *dc = cell->dc, *to = cell->dgates;

    for (int64_t row = 0; row < cell->batch; row++, gates += 4 * hidden, to += 4 * hidden)
        for (int64_t j = 0; j < hidden; j++, c_prev++, tanh_c++, dh++, dc++) {
            const real in = gates[j], forget = gates[j + hidden], g = gates[j + 2 * hidden];
            const real out = gates[j + 3 * hidden];
            const real both = *dc + *dh * out * (1 - *tanh_c * *tanh_c);

            to[j] = both * g * in * (1 - in);
            to[j + hidden] = both * *c_prev * forget * (1 - forget);
            to[j + 2 * hidden] = both * in * (1 - g * g);
            to[j + 3 * hidden] = *dh * *tanh_c * out * (1 - out);
            *dc = both * forget;
        }
}

/* ---- Optimizers ---------------------------------------------------------------------------------- */

static void sgd(int64_t count, const struct bxi_sgd *step)
{
    const real *restrict from = step->from, *restrict grad = step->grad;
    const real lr = (real)step->lr, momentum = (real)step->momentum, decay = (real)step->weight_decay;
    real *restrict to = step->to, *restrict v = step->velocity;

    if (v == NULL) {
        for (int64_t i = 0; i < count; i++)
            to[i] = from[i] - lr * (grad[i] + decay * from[i]);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        v[i] = momentum * v[i] + (grad[i] + decay * from[i]);
        to[i] = from[i] - lr * v[i];
    }
}

static void adam(int64_t count, const struct bxi_adam *step)
{
    const real *restrict from = step->from, *restrict grad = step->grad;
    const real beta1 = (real)step->beta1, beta2 = (real)step->beta2, decay = (real)step->weight_decay;
    const real rest1 = (real)(1 - step->beta1), rest2 = (real)(1 - step->beta2);
    const real size = (real)(step->lr / step->correction1), root = (real)sqrt(step->correction2);
    const real eps = (real)step->eps;
    real *restrict to = step->to, *restrict m = step->m, *restrict v = step->v;

    for (int64_t i = 0; i < count; i++) {
        const real g = grad[i] + decay * from[i];

        m[i] = beta1 * m[i] + rest1 * g;
        v[i] = beta2 * v[i] + rest2 * g * g;
        to[i] = from[i] - size * m[i] / (REAL(sqrt)(v[i]) / root + eps);
    }
}

const struct bxi_loops TABLE = {
    .gemm = gemm,
    .binary = binary,
    .reduce = reduce,
    .fill = fill,
    .first = first,
    .unary = unary,
    .unary_back = unary_back,
    .mask = mask,
    .softmax = softmax,
    .softmax_back = softmax_back,
    .log_softmax = log_softmax,
    .log_softmax_back = log_softmax_back,
    .gather = gather,
    .gather_back = gather_back,
    .cross_entropy = cross_entropy,
    .cross_entropy_back = cross_entropy_back,
    .mse = mse,
    .mse_back = mse_back,
    .embedding = embedding,
    .embedding_back = embedding_back,
    .cell = cell,
    .cell_back = cell_back,
    .sgd = sgd,
    .adam = adam,
};

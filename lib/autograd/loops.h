/* SPDX-License-Identifier: MIT */
/*
 * Loops over arrays of one dtype: loops_f32.c and loops_f64.c each make one table of them from the same text,
 * loops_text.h. All arrays are row-major without gaps. They allocate nothing and cannot fail. Any thread.
 */
#ifndef BXI_AUTOGRAD_LOOPS_H
#define BXI_AUTOGRAD_LOOPS_H

#include "boxcar_autograd.h"

#include <stdbool.h>
#include <stdint.h>

/* c (m x n) = a b, or += with `add`. a is m x k, or k x m if transpose_a; b is k x n, or n x k if transpose_b. Not both
 * are transposed. */
struct bxi_gemm {
    bool transpose_a, transpose_b, add;
    int64_t m, n, k;
    const void *a, *b;
    void *c;
};

/* A walk over a result of up to BX_DIMS_MAX dimensions, with the strides of two arrays; 0: broadcast. Neighbours that
 * can be one dimension are one. ndim is at least 1. */
struct bxi_walk {
    int ndim;
    int64_t shape[BX_DIMS_MAX], a[BX_DIMS_MAX], b[BX_DIMS_MAX];
};

enum bxi_binary { BXI_ADD, BXI_SUB, BXI_MUL };
enum bxi_unary { BXI_EXP, BXI_LOG, BXI_RELU, BXI_TANH, BXI_SIGMOID, BXI_SCALE, BXI_NEG };
struct bxi_function {
    enum bxi_unary kind;
    double factor;                      /* of BXI_SCALE; of BXI_NEG -1 */
};

/* Positions over which a class is chosen: outer x classes x inner. */
struct bxi_classes {
    int64_t outer, classes, inner;
    const int64_t *targets;             /* outer x inner, each within the classes */
};

/* One step of one LSTM layer. gates: batch x 4 hidden, with x W^T + h W^T on entry, i f g o after their functions on
 * return. The others: batch x hidden. */
struct bxi_cell {
    int64_t batch, hidden;
    void *gates;
    const void *b_ih, *b_hh;            /* 4 hidden, or NULL */
    const void *c_prev;
    void *c, *tanh_c, *h;
};
/* Backward: dh is that of h; dc is that of c, and becomes that of c_prev. dgates: of the gates before their
 * functions. */
struct bxi_cell_back {
    int64_t batch, hidden;
    const void *gates, *c_prev, *tanh_c, *dh;
    void *dc, *dgates;
};

/* One optimizer step of one parameter. */
struct bxi_sgd {
    double lr, momentum, weight_decay;
    const void *from, *grad;
    void *to, *velocity;                /* NULL without momentum */
};
struct bxi_adam {
    double lr, beta1, beta2, eps, weight_decay;
    double correction1, correction2;    /* 1 - beta^t */
    const void *from, *grad;
    void *to, *m, *v;
};

struct bxi_loops {
    void (*gemm)(const struct bxi_gemm *gemm);
    void (*binary)(enum bxi_binary kind, const struct bxi_walk *walk, const void *a, const void *b, void *to);
    /* to[walk a] += factor * from[walk b] over the whole walk. */
    void (*reduce)(const struct bxi_walk *walk, const void *from, double factor, void *to);
    void (*fill)(int64_t count, double value, void *to);
    double (*first)(const void *from);
    /* saved: the result; of log the argument, of scale and neg nothing. */
    void (*unary)(const struct bxi_function *function, int64_t count, const void *from, void *to);
    void (*unary_back)(const struct bxi_function *function, int64_t count, const void *saved, const void *grad,
                       void *to);
    /* mask: 0 or 1 / (1 - p); draws are those of the generator from `drawn` on. */
    void (*mask)(int64_t count, double p, const struct bx_generator *generator, void *mask);
    void (*softmax)(int64_t rows, int64_t width, const void *from, void *to);
    void (*softmax_back)(const int64_t extent[2], const void *result, const void *grad, void *to);
    void (*log_softmax)(int64_t rows, int64_t width, const void *from, void *to);
    void (*log_softmax_back)(const int64_t extent[2], const void *result, const void *grad, void *to);
    /* to (rows x picks) from (rows x width); back adds to zeros. */
    void (*gather)(const int64_t extent[3], const void *from, const int64_t *index, void *to);
    void (*gather_back)(const int64_t extent[3], const void *grad, const int64_t *index, void *to);
    /* Sets probs to the softmax, returns the mean loss. */
    double (*cross_entropy)(const struct bxi_classes *classes, const void *logits, void *probs);
    void (*cross_entropy_back)(const struct bxi_classes *classes, const void *probs, double grad, void *to);
    double (*mse)(int64_t count, const void *a, const void *b);
    void (*mse_back)(int64_t count, const void *a, const void *b, double factor, void *to);
    /* to (picks x width) from (rows x width); back adds to zeros. */
    void (*embedding)(const int64_t extent[3], const void *weight, const int64_t *index, void *to);
    void (*embedding_back)(const int64_t extent[3], const void *grad, const int64_t *index, void *to);
    void (*cell)(const struct bxi_cell *cell);
    void (*cell_back)(const struct bxi_cell_back *cell);
    void (*sgd)(int64_t count, const struct bxi_sgd *step);
    void (*adam)(int64_t count, const struct bxi_adam *step);
};

extern const struct bxi_loops bxi_loops_f32, bxi_loops_f64;

static inline const struct bxi_loops *bxi_loops(enum bx_dtype dtype)
{
    return dtype == BX_F32 ? &bxi_loops_f32 : &bxi_loops_f64;
}

#endif

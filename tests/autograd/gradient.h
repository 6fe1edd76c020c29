/* SPDX-License-Identifier: MIT */
/*
 * What the tests of lib/autograd share: tensors of noise, and the check of an expression's gradients against central
 * finite differences.
 *
 *     static struct bx_var *product(struct bx_tape *tape, struct bx_var *const *in, void *context)
 *     {
 *         return bx_var_mul(tape, in[0], in[1]);
 *     }
 *     ...
 *     check_gradients(product, NULL, (const struct shape[]){ { 2, { 3, 4 } }, { 1, { 4 } } }, 2);
 *
 * Failures are Criterion assertions.
 */
#ifndef TESTS_GRADIENT_H
#define TESTS_GRADIENT_H

#include "tests/harness/test.h"
#include "boxcar_autograd.h"

#define INPUTS_MAX 20

struct shape {
    int ndim;
    int64_t extent[BX_DIMS_MAX];
};
typedef struct bx_var *(*expression_fn)(struct bx_tape *tape, struct bx_var *const *in, void *context);

/* Element i of the reference's fill(k, ...): between shift - scale and shift + scale. */
double fill_at(uint64_t k, uint64_t i, double scale);

/* A tensor on the heap of fill(k) times scale plus shift; the caller owns it. */
struct bx_tensor *noise(enum bx_dtype dtype, const struct shape *shape, uint64_t k, double scale, double shift);
struct bx_tensor *indices(const struct shape *shape, const int64_t *values);
/* A tensor of the values. */
struct bx_tensor *values_of(enum bx_dtype dtype, const struct shape *shape, const double *values);
struct bx_var *parameter(struct bx_tensor *value);      /* takes the reference */

double element(const struct bx_tensor *tensor, int64_t i);      /* of a row-major tensor of floats */
void set_element(struct bx_tensor *tensor, int64_t i, double value);

struct bx_tape *new_tape(void);
struct bx_grads *new_grads(void);

/* Inputs are noise between -1 and 1 (plus `shift` in the second form), and the gradient of the result is noise too.
 *  1. In f64 each input's gradient is compared with central differences: 1e-6 of the largest element of the input's
 *     gradient, plus 1e-8.
 *  2. In f32 the result and the gradients are compared with those in f64: 1e-4 of the norm, plus 1e-6.
 * An input that gets no gradient must not change the result. */
void check_gradients(expression_fn expression, void *context, const struct shape *shapes, size_t count);
void check_gradients_from(double shift, expression_fn expression, void *context, const struct shape *shapes,
                          size_t count);

/* Asserts that each element is that close to the other's. */
void check_close(const struct bx_tensor *got, const struct bx_tensor *want, double tolerance, const char *what);

/* Asserts that the call failed with that code and that sentence. */
#define FAILS(call, code, sentence)                                                                 \
    do {                                                                                            \
        cr_expect_eq((call), (code), "%s", bx_error_text());                                        \
        cr_expect_str_eq(bx_error_text(), (sentence));                                              \
    } while (0)
/* Asserts that an operation returned NULL, and that its tape has that code. Clears the tape. */
#define STOPS(tape, call, code, sentence)                                                           \
    do {                                                                                            \
        cr_expect_null(call);                                                                       \
        cr_expect_eq(bx_tape_error(tape), (code), "%s", bx_error_text());                           \
        cr_expect_str_eq(bx_error_text(), (sentence));                                              \
        bx_tape_clear(tape);                                                                        \
    } while (0)

#endif

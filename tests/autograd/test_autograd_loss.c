/* SPDX-License-Identifier: MIT */
/*
 * lib/autograd/loss.c: softmax, choices by index and losses, against plain C and finite differences.
 */
#include "tests/autograd/gradient.h"

#include <math.h>

TestSuite(autograd_loss, .timeout = 60);

#define COUNT(list) (sizeof(list) / sizeof *(list))

/* An expression's context: indices or classes. */
static struct bx_var *softmax(struct bx_tape *tape, struct bx_var *const *in, void *context)
{
    (void)context;
    return bx_var_softmax(tape, in[0]);
}

static struct bx_var *log_softmax(struct bx_tape *tape, struct bx_var *const *in, void *context)
{
    (void)context;
    return bx_var_log_softmax(tape, in[0]);
}

static struct bx_var *gather(struct bx_tape *tape, struct bx_var *const *in, void *context)
{
    return bx_var_gather(tape, in[0], context);
}

static struct bx_var *embedding(struct bx_tape *tape, struct bx_var *const *in, void *context)
{
    return bx_var_embedding(tape, in[0], context);
}

static struct bx_var *cross_entropy(struct bx_tape *tape, struct bx_var *const *in, void *context)
{
    return bx_var_cross_entropy(tape, in[0], context);
}

static struct bx_var *mse(struct bx_tape *tape, struct bx_var *const *in, void *context)
{
    (void)context;
    return bx_var_mse(tape, in[0], in[1]);
}

/* ---- Softmax ------------------------------------------------------------------------------------- */

static const struct shape SHAPES[] = { { 0, { 0 } }, { 1, { 1 } }, { 1, { 5 } }, { 2, { 3, 4 } }, { 3, { 2, 2, 19 } },
                                       { 2, { 0, 3 } }, { 2, { 3, 0 } } };

Test(autograd_loss, softmax_has_its_gradient)
{
    for (size_t i = 0; i < COUNT(SHAPES); i++)
        check_gradients(softmax, NULL, &SHAPES[i], 1);
}

Test(autograd_loss, log_softmax_has_its_gradient)
{
    for (size_t i = 0; i < COUNT(SHAPES); i++)
        check_gradients(log_softmax, NULL, &SHAPES[i], 1);
}

/* Arguments whose exponentials would overflow, and a difference of log 3. */
Test(autograd_loss, softmax_of_large_arguments_is_finite)
{
    OWN(tape) *tape = new_tape();
    struct bx_tensor *value = values_of(BX_F64, &(struct shape){ 2, { 2, 2 } },
                                        (double[]){ 1000, 1000 + log(3), -2000, -2000 });
    struct bx_var *x = bx_tape_input(tape, value), *y = bx_var_softmax(tape, x), *z = bx_var_log_softmax(tape, x);
    const double want[] = { 0.25, 0.75, 0.5, 0.5 };

    for (int i = 0; i < 4; i++) {
        cr_expect_float_eq(element(bx_var_value(y), i), want[i], 1e-12);
        cr_expect_float_eq(element(bx_var_value(z), i), log(want[i]), 1e-12);
    }
    bx_tensor_release(value);
}

/* ---- Indices ------------------------------------------------------------------------------------- */

Test(autograd_loss, gather_has_its_gradient)
{
    OWN(tensor) *one = indices(&(struct shape){ 2, { 3, 1 } }, (const int64_t[]){ 0, 3, 1 });
    struct bx_tensor *several = indices(&(struct shape){ 2, { 3, 5 } },
                                        (const int64_t[]){ 0, 3, 1, 1, 1, 2, 2, 2, 2, 2, 3, 2, 1, 0, 0 });
    OWN(tensor) *vector = indices(&(struct shape){ 1, { 2 } }, (const int64_t[]){ 4, 4 });
    OWN(tensor) *none = indices(&(struct shape){ 2, { 3, 0 } }, NULL);

    check_gradients(gather, one, &(struct shape){ 2, { 3, 4 } }, 1);
    check_gradients(gather, several, &(struct shape){ 2, { 3, 4 } }, 1);
    check_gradients(gather, vector, &(struct shape){ 1, { 5 } }, 1);
    check_gradients(gather, none, &(struct shape){ 2, { 3, 4 } }, 1);
    bx_tensor_release(several);
}

Test(autograd_loss, gather_and_embedding_take_what_the_indices_say)
{
    OWN(tape) *tape = new_tape();
    OWN(tensor) *value = values_of(BX_F32, &(struct shape){ 2, { 2, 3 } }, (double[]){ 1, 2, 3, 4, 5, 6 });
    OWN(tensor) *columns = indices(&(struct shape){ 2, { 2, 2 } }, (const int64_t[]){ 2, 0, 1, 1 });
    OWN(tensor) *rows = indices(&(struct shape){ 1, { 3 } }, (const int64_t[]){ 1, 0, 1 });
    struct bx_var *x = bx_tape_input(tape, value), *y = bx_var_gather(tape, x, columns);
    struct bx_var *z = bx_var_embedding(tape, x, rows);
    const double picked[] = { 3, 1, 5, 5 }, looked_up[] = { 4, 5, 6, 1, 2, 3, 4, 5, 6 };

    cr_assert_eq(bx_tensor_elements(bx_var_value(y)), 4);
    for (int i = 0; i < 4; i++)
        cr_expect_eq(element(bx_var_value(y), i), picked[i]);
    cr_assert_eq(bx_tensor_ndim(bx_var_value(z)), 2);
    cr_assert_eq(bx_tensor_elements(bx_var_value(z)), 9);
    for (int i = 0; i < 9; i++)
        cr_expect_eq(element(bx_var_value(z), i), looked_up[i]);
}

/* Rows that occur twice add up; rows that do not occur get zeros. */
Test(autograd_loss, embedding_has_its_gradient)
{
    OWN(tensor) *some = indices(&(struct shape){ 2, { 2, 3 } }, (const int64_t[]){ 0, 4, 4, 2, 0, 4 });
    OWN(tensor) *scalar = indices(&(struct shape){ 0, { 0 } }, (const int64_t[]){ 1 });
    OWN(tensor) *none = indices(&(struct shape){ 1, { 0 } }, NULL);

    check_gradients(embedding, some, &(struct shape){ 2, { 5, 3 } }, 1);
    check_gradients(embedding, scalar, &(struct shape){ 2, { 2, 3 } }, 1);
    check_gradients(embedding, none, &(struct shape){ 2, { 2, 3 } }, 1);
    check_gradients(embedding, some, &(struct shape){ 2, { 5, 0 } }, 1);
}

/* ---- Losses -------------------------------------------------------------------------------------- */

Test(autograd_loss, cross_entropy_has_its_gradient)
{
    OWN(tensor) *rows = indices(&(struct shape){ 1, { 3 } }, (const int64_t[]){ 0, 3, 1 });
    OWN(tensor) *one = indices(&(struct shape){ 1, { 1 } }, (const int64_t[]){ 0 });
    OWN(tensor) *planes = indices(&(struct shape){ 2, { 2, 5 } }, (const int64_t[]){ 0, 1, 2, 2, 1, 0, 0, 2, 1, 1 });
    OWN(tensor) *cubes = indices(&(struct shape){ 3, { 1, 2, 2 } }, (const int64_t[]){ 0, 1, 2, 2 });

    check_gradients(cross_entropy, rows, &(struct shape){ 2, { 3, 4 } }, 1);
    check_gradients(cross_entropy, one, &(struct shape){ 2, { 1, 1 } }, 1);
    check_gradients(cross_entropy, planes, &(struct shape){ 3, { 2, 3, 5 } }, 1);
    check_gradients(cross_entropy, cubes, &(struct shape){ 4, { 1, 3, 2, 2 } }, 1);
}

/* Against -log_softmax at the class: dimension 1 is the classes', not the last one. */
Test(autograd_loss, cross_entropy_is_the_mean_negative_log_probability)
{
    OWN(tape) *tape = new_tape();
    OWN(tensor) *logits = values_of(BX_F64, &(struct shape){ 3, { 1, 2, 2 } }, (double[]){ 0, 1, log(3), 1 });
    OWN(tensor) *classes = indices(&(struct shape){ 2, { 1, 2 } }, (const int64_t[]){ 1, 0 });
    OWN(tensor) *none = noise(BX_F64, &(struct shape){ 2, { 0, 3 } }, 1, 1, 0);
    OWN(tensor) *no_class = indices(&(struct shape){ 1, { 0 } }, NULL);
    struct bx_var *loss = bx_var_cross_entropy(tape, bx_tape_input(tape, logits), classes);

    cr_expect_float_eq(bx_var_item(loss), (-log(0.75) - log(0.5)) / 2, 1e-12);
    cr_expect(isnan(bx_var_item(bx_var_cross_entropy(tape, bx_tape_input(tape, none), no_class))));
    cr_expect_eq(bx_tape_error(tape), 0);
}

Test(autograd_loss, mse_has_its_gradients)
{
    for (size_t i = 0; i < COUNT(SHAPES); i++)
        if (SHAPES[i].ndim < 2 || (SHAPES[i].extent[0] > 0 && SHAPES[i].extent[1] > 0))
            check_gradients(mse, NULL, (const struct shape[]){ SHAPES[i], SHAPES[i] }, 2);
}

Test(autograd_loss, mse_is_the_mean_of_the_squares)
{
    OWN(tape) *tape = new_tape();
    OWN(tensor) *a = values_of(BX_F32, &(struct shape){ 1, { 2 } }, (double[]){ 1, 5 });
    OWN(tensor) *b = values_of(BX_F32, &(struct shape){ 1, { 2 } }, (double[]){ 3, 2 });

    cr_expect_eq(bx_var_item(bx_var_mse(tape, bx_tape_input(tape, a), bx_tape_input(tape, b))), 6.5);
}

/* SPDX-License-Identifier: MIT */
/*
 * lib/autograd/math.c, linear.c and shape.c: values against plain C, every backward function against finite differences
 * in double precision, f32 against f64.
 */
#include "tests/autograd/gradient.h"

#include <math.h>

TestSuite(autograd_math, .timeout = 60);
TestSuite(autograd_shape, .timeout = 60);

#define EXPRESSION(NAME, CODE)                                                                      \
    static struct bx_var *NAME(struct bx_tape *tape, struct bx_var *const *in, void *context)       \
    {                                                                                               \
        (void)context;                                                                              \
        return CODE;                                                                                \
    }
#define COUNT(list) (sizeof(list) / sizeof *(list))

/* Shapes with edges: no dimension, one element, several dimensions, no elements. */
static const struct shape SHAPES[] = { { 0, { 0 } }, { 1, { 1 } }, { 1, { 7 } }, { 2, { 3, 5 } }, { 3, { 2, 1, 4 } },
                                       { 2, { 0, 3 } }, { 1, { 37 } } };

static void check_all_shapes(double shift, expression_fn expression)
{
    for (size_t i = 0; i < COUNT(SHAPES); i++)
        check_gradients_from(shift, expression, NULL, &SHAPES[i], 1);
}

/* ---- One argument -------------------------------------------------------------------------------- */

EXPRESSION(exp_of, bx_var_exp(tape, in[0]))
EXPRESSION(log_of, bx_var_log(tape, in[0]))
EXPRESSION(relu_of, bx_var_relu(tape, in[0]))
EXPRESSION(tanh_of, bx_var_tanh(tape, in[0]))
EXPRESSION(sigmoid_of, bx_var_sigmoid(tape, in[0]))
EXPRESSION(scaled, bx_var_scale(tape, in[0], -2.5))
EXPRESSION(negated, bx_var_neg(tape, in[0]))

Test(autograd_math, exp_has_its_gradient) { check_all_shapes(0, exp_of); }
Test(autograd_math, log_has_its_gradient) { check_all_shapes(1.5, log_of); }
Test(autograd_math, relu_has_its_gradient) { check_all_shapes(0, relu_of); }
Test(autograd_math, tanh_has_its_gradient) { check_all_shapes(0, tanh_of); }
Test(autograd_math, sigmoid_has_its_gradient) { check_all_shapes(0, sigmoid_of); }
Test(autograd_math, scale_has_its_gradient) { check_all_shapes(0, scaled); }
Test(autograd_math, neg_has_its_gradient) { check_all_shapes(0, negated); }

/* One argument, -0.75, and what each function makes of it. */
Test(autograd_math, one_argument_gives_the_values_of_libm)
{
    OWN(tape) *tape = new_tape();
    OWN(tensor) *value = values_of(BX_F64, &(struct shape){ 1, { 1 } }, (double[]){ -0.75 });
    struct bx_var *x = bx_tape_input(tape, value);

    cr_expect_eq(bx_var_item(bx_var_exp(tape, x)), exp(-0.75));
    cr_expect_eq(bx_var_item(bx_var_log(tape, bx_var_neg(tape, x))), log(0.75));
    cr_expect_eq(bx_var_item(bx_var_relu(tape, x)), 0);
    cr_expect_eq(bx_var_item(bx_var_relu(tape, bx_var_neg(tape, x))), 0.75);
    cr_expect_eq(bx_var_item(bx_var_tanh(tape, x)), tanh(-0.75));
    cr_expect_float_eq(bx_var_item(bx_var_sigmoid(tape, x)), 1 / (1 + exp(0.75)), 1e-15);
    cr_expect_eq(bx_var_item(bx_var_scale(tape, x, 3)), -2.25);
    cr_expect_not(bx_var_requires_grad(bx_var_exp(tape, x)));
}

Test(autograd_math, relu_has_no_gradient_at_zero_and_passes_nan_on)
{
    OWN(tape) *tape = new_tape();
    OWN(grads) *grads = new_grads();
    OWN(var) *x = parameter(values_of(BX_F32, &(struct shape){ 1, { 2 } }, (double[]){ 0, NAN }));
    struct bx_var *y = bx_var_relu(tape, x), *sum = bx_var_sum(tape, y);

    cr_expect_eq(element(bx_var_value(y), 0), 0);
    cr_expect(isnan(element(bx_var_value(y), 1)));
    cr_assert_eq(bx_backward(&sum, NULL, 1, false, grads), 0);
    cr_expect_eq(element(bx_grads_get(grads, x), 0), 0);
    cr_expect_eq(element(bx_grads_get(grads, x), 1), 1);
}

/* ---- Two arguments ------------------------------------------------------------------------------- */

EXPRESSION(sum_of_two, bx_var_add(tape, in[0], in[1]))
EXPRESSION(difference_of_two, bx_var_sub(tape, in[0], in[1]))
EXPRESSION(product_of_two, bx_var_mul(tape, in[0], in[1]))
EXPRESSION(square, bx_var_mul(tape, in[0], in[0]))
EXPRESSION(difference_to_itself, bx_var_sub(tape, in[0], bx_var_scale(tape, in[0], 3)))

/* A row, a column, a scalar, both ways round; dimensions that are missing, and that are 1 in the middle. */
static const struct shape PAIRS[][2] = {
    { { 2, { 3, 4 } }, { 2, { 3, 4 } } }, { { 2, { 3, 4 } }, { 1, { 4 } } }, { { 1, { 4 } }, { 2, { 3, 4 } } },
    { { 2, { 3, 4 } }, { 2, { 3, 1 } } }, { { 2, { 3, 1 } }, { 2, { 1, 4 } } }, { { 0, { 0 } }, { 2, { 2, 3 } } },
    { { 1, { 5 } }, { 0, { 0 } } }, { { 3, { 2, 1, 3 } }, { 3, { 2, 4, 1 } } },
    { { 4, { 2, 3, 1, 2 } }, { 2, { 5, 2 } } },
    { { 1, { 1 } }, { 1, { 1 } } }, { { 2, { 0, 3 } }, { 1, { 3 } } }, { { 3, { 2, 3, 4 } }, { 3, { 2, 1, 4 } } },
};

static void check_all_pairs(expression_fn expression)
{
    for (size_t i = 0; i < COUNT(PAIRS); i++)
        check_gradients(expression, NULL, PAIRS[i], 2);
}

Test(autograd_math, add_has_its_gradients_with_every_broadcast) { check_all_pairs(sum_of_two); }
Test(autograd_math, sub_has_its_gradients_with_every_broadcast) { check_all_pairs(difference_of_two); }
Test(autograd_math, mul_has_its_gradients_with_every_broadcast) { check_all_pairs(product_of_two); }

Test(autograd_math, an_argument_that_is_used_twice_gets_both_gradients)
{
    check_gradients(square, NULL, &SHAPES[3], 1);
    check_gradients(difference_to_itself, NULL, &SHAPES[3], 1);
}

Test(autograd_math, broadcasts_as_torch_does)
{
    OWN(tape) *tape = new_tape();
    OWN(tensor) *a = values_of(BX_F32, &(struct shape){ 2, { 2, 1 } }, (double[]){ 10, 20 });
    OWN(tensor) *b = values_of(BX_F32, &(struct shape){ 1, { 3 } }, (double[]){ 1, 2, 3 });
    struct bx_var *x = bx_tape_input(tape, a), *y = bx_tape_input(tape, b);
    const double sums[] = { 11, 12, 13, 21, 22, 23 }, products[] = { 10, 20, 30, 20, 40, 60 };
    const double differences[] = { -9, -8, -7, -19, -18, -17 };

    for (int i = 0; i < 6; i++) {
        cr_expect_eq(element(bx_var_value(bx_var_add(tape, x, y)), i), sums[i]);
        cr_expect_eq(element(bx_var_value(bx_var_mul(tape, x, y)), i), products[i]);
        cr_expect_eq(element(bx_var_value(bx_var_sub(tape, y, x)), i), differences[i]);
    }
}

/* ---- Products of matrices ------------------------------------------------------------------------ */

EXPRESSION(matmul, bx_var_matmul(tape, in[0], in[1]))
EXPRESSION(linear, bx_var_linear(tape, in[0], in[1], in[2]))
EXPRESSION(linear_without_bias, bx_var_linear(tape, in[0], in[1], NULL))

Test(autograd_math, matmul_has_its_gradients)
{
    static const int64_t sizes[][3] = { { 1, 1, 1 }, { 3, 4, 2 }, { 1, 17, 3 }, { 5, 33, 1 }, { 2, 0, 3 },
                                         { 0, 2, 3 } };

    for (size_t i = 0; i < COUNT(sizes); i++)
        check_gradients(matmul, NULL, (const struct shape[]){ { 2, { sizes[i][0], sizes[i][1] } },
                                                             { 2, { sizes[i][1], sizes[i][2] } } }, 2);
    check_gradients(matmul, NULL, (const struct shape[]){ { 3, { 2, 3, 4 } }, { 2, { 4, 2 } } }, 2);
    check_gradients(matmul, NULL, (const struct shape[]){ { 1, { 4 } }, { 2, { 4, 2 } } }, 2);
}

Test(autograd_math, linear_has_its_gradients)
{
    static const int64_t sizes[][3] = { { 1, 1, 1 }, { 3, 4, 2 }, { 1, 35, 3 }, { 4, 0, 3 }, { 0, 2, 3 },
                                         { 3, 20, 150 }, { 4, 20, 100 }, { 2, 6, 400 }, { 3, 33, 5 } };

    for (size_t i = 0; i < COUNT(sizes); i++) {
        const struct shape shapes[] = { { 2, { sizes[i][0], sizes[i][1] } }, { 2, { sizes[i][2], sizes[i][1] } },
                                        { 1, { sizes[i][2] } } };

        check_gradients(linear, NULL, shapes, 3);
        check_gradients(linear_without_bias, NULL, shapes, 2);
    }
    check_gradients(linear, NULL, (const struct shape[]){ { 3, { 2, 3, 4 } }, { 2, { 5, 4 } }, { 1, { 5 } } }, 3);
}

Test(autograd_math, linear_multiplies_with_the_transposed_weight)
{
    OWN(tape) *tape = new_tape();
    OWN(tensor) *x = values_of(BX_F32, &(struct shape){ 2, { 1, 2 } }, (double[]){ 1, 10 });
    OWN(tensor) *w = values_of(BX_F32, &(struct shape){ 2, { 3, 2 } }, (double[]){ 1, 2, 3, 4, 5, 6 });
    OWN(tensor) *b = values_of(BX_F32, &(struct shape){ 1, { 3 } }, (double[]){ 100, 200, 300 });
    struct bx_var *y = bx_var_linear(tape, bx_tape_input(tape, x), bx_tape_input(tape, w), bx_tape_input(tape, b));

    cr_expect_eq(element(bx_var_value(y), 0), 121);
    cr_expect_eq(element(bx_var_value(y), 1), 243);
    cr_expect_eq(element(bx_var_value(y), 2), 365);
}

static struct bx_var *big_product(struct bx_tape *tape, struct bx_var *const *in, void *context)
{
    (void)context;
    return bx_var_linear(tape, bx_var_matmul(tape, in[0], in[1]), in[2], NULL);
}

/* Large enough for oneDNN in f32, where f64 has the loops: each of the four forms, with sizes that are not equal. */
Test(autograd_math, large_products_in_f32_are_those_in_f64)
{
    static const struct shape shapes[] = { { 2, { 65, 48 } }, { 2, { 48, 52 } }, { 2, { 71, 52 } } };
    OWN(tape) *tape = new_tape();
    OWN(grads) *grads = new_grads();
    struct bx_var *in[2][3], *out[2];
    static const enum bx_dtype dtypes[2] = { BX_F32, BX_F64 };

    for (int d = 0; d < 2; d++) {
        for (size_t i = 0; i < 3; i++)
            in[d][i] = parameter(noise(dtypes[d], &shapes[i], i, 1, 0));
        out[d] = big_product(tape, in[d], NULL);

        OWN(tensor) *weight = noise(dtypes[d], &(struct shape){ 2, { 65, 71 } }, 9, 1, 0);

        cr_assert_eq(bx_backward(&out[d], &weight, 1, false, grads), 0, "%s", bx_error_text());
    }
    for (int64_t i = 0; i < 65 * 71; i++)
        cr_assert_float_eq(element(bx_var_value(out[0]), i), element(bx_var_value(out[1]), i), 1e-3);
    for (size_t k = 0; k < 3; k++)
        for (int64_t i = 0; i < bx_tensor_elements(bx_var_value(in[0][k])); i++)
            cr_assert_float_eq(element(bx_grads_get(grads, in[0][k]), i), element(bx_grads_get(grads, in[1][k]), i),
                               1e-3, "gradient %zu", k);
    for (int i = 0; i < 6; i++)
        bx_var_release(in[i / 3][i % 3]);
}

/* ---- Dropout ------------------------------------------------------------------------------------- */

/* The generator is the same at each evaluation, so the function is smooth. */
static struct bx_var *dropped(struct bx_tape *tape, struct bx_var *const *in, void *context)
{
    struct bx_generator generator = { .seed = 7 };

    return bx_var_dropout(tape, in[0], *(double *)context, true, &generator);
}

Test(autograd_math, dropout_has_its_gradient)
{
    for (double p = 0; p <= 1; p += 0.25)
        for (size_t i = 0; i < COUNT(SHAPES); i++)
            check_gradients(dropped, &p, &SHAPES[i], 1);
}

Test(autograd_math, dropout_drops_its_share_and_scales_the_rest)
{
    OWN(tape) *tape = new_tape();
    struct bx_generator generator = { .seed = 1 }, again = { .seed = 1 }, other = { .seed = 2 };
    OWN(tensor) *ones = noise(BX_F32, &(struct shape){ 1, { 10000 } }, 1, 0, 1);
    struct bx_var *x = bx_tape_input(tape, ones), *y = bx_var_dropout(tape, x, 0.25, true, &generator);
    struct bx_var *same = bx_var_dropout(tape, x, 0.25, true, &again);
    struct bx_var *differs = bx_var_dropout(tape, x, 0.25, true, &other);
    struct bx_var *next = bx_var_dropout(tape, x, 0.25, true, &generator);
    int zeros = 0, differences = 0, later = 0;

    for (int64_t i = 0; i < 10000; i++) {
        const double value = element(bx_var_value(y), i);

        cr_assert(value == 0 || value == (double)(float)(1 / 0.75));
        zeros += value == 0;
        cr_assert_eq(value, element(bx_var_value(same), i));
        differences += value != element(bx_var_value(differs), i);
        later += value != element(bx_var_value(next), i);
    }
    cr_expect(zeros > 2300 && zeros < 2700, "%d zeros", zeros);
    cr_expect_gt(differences, 3000);
    cr_expect_gt(later, 3000);
    cr_expect_eq(generator.drawn, 20000);
    cr_expect_eq(again.drawn, 10000);
}

Test(autograd_math, dropout_is_the_identity_without_p_or_training)
{
    OWN(tape) *tape = new_tape();
    struct bx_generator generator = { .seed = 1 };
    OWN(var) *x = parameter(noise(BX_F32, &SHAPES[3], 1, 1, 0));

    cr_expect_eq(bx_var_dropout(tape, x, 0, true, &generator), x);
    cr_expect_eq(bx_var_dropout(tape, x, 0.5, false, NULL), x);
    cr_expect_eq(generator.drawn, 0);
}

/* ---- Sums ---------------------------------------------------------------------------------------- */

EXPRESSION(sum_all, bx_var_sum(tape, in[0]))
EXPRESSION(mean_all, bx_var_mean(tape, in[0]))

static struct bx_var *sum_one(struct bx_tape *tape, struct bx_var *const *in, void *context)
{
    return bx_var_sum_dim(tape, in[0], *(int *)context);
}

Test(autograd_math, sums_have_their_gradients)
{
    static const struct shape shapes[] = { { 3, { 2, 3, 4 } }, { 3, { 1, 1, 1 } }, { 3, { 5, 1, 2 } },
                                           { 3, { 2, 0, 3 } } };

    check_all_shapes(0, sum_all);
    for (size_t i = 0; i < COUNT(SHAPES); i++)
        if (SHAPES[i].extent[0] > 0 || SHAPES[i].ndim == 0)
            check_gradients(mean_all, NULL, &SHAPES[i], 1);
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (int dim = -3; dim < 3; dim++)
            check_gradients(sum_one, &dim, &shapes[i], 1);
}

Test(autograd_math, sums_and_means_have_their_values)
{
    OWN(tape) *tape = new_tape();
    OWN(tensor) *value = values_of(BX_F64, &(struct shape){ 2, { 2, 3 } }, (double[]){ 1, 2, 3, 40, 50, 60 });
    OWN(tensor) *none = noise(BX_F64, &(struct shape){ 2, { 0, 3 } }, 1, 1, 0);
    struct bx_var *x = bx_tape_input(tape, value), *down = bx_var_sum_dim(tape, x, 0), *across;

    across = bx_var_sum_dim(tape, x, -1);
    cr_expect_eq(bx_var_item(bx_var_sum(tape, x)), 156);
    cr_expect_eq(bx_var_item(bx_var_mean(tape, x)), 26);
    cr_expect(element(bx_var_value(down), 0) == 41 && element(bx_var_value(down), 2) == 63);
    cr_expect(element(bx_var_value(across), 0) == 6 && element(bx_var_value(across), 1) == 150);
    cr_expect_eq(bx_tensor_elements(bx_var_value(down)), 3);
    cr_expect_eq(bx_tensor_elements(bx_var_value(across)), 2);
    cr_expect_eq(bx_var_item(bx_var_sum(tape, bx_tape_input(tape, none))), 0);
    cr_expect(isnan(bx_var_item(bx_var_mean(tape, bx_tape_input(tape, none)))));
}

/* ---- Shapes -------------------------------------------------------------------------------------- */

EXPRESSION(flattened, bx_var_reshape(tape, in[0], 1, (const int64_t[]){ -1 }))
EXPRESSION(folded, bx_var_reshape(tape, bx_var_transpose(tape, in[0], 0, 2), 2, (const int64_t[]){ 4, -1 }))
EXPRESSION(transposed, bx_var_transpose(tape, in[0], 0, -1))
EXPRESSION(transposed_product, bx_var_mul(tape, bx_var_transpose(tape, in[0], 0, 1), in[1]))
EXPRESSION(sliced, bx_var_slice(tape, in[0], 1, 1, 3))
EXPRESSION(sliced_twice, bx_var_add(tape, bx_var_slice(tape, in[0], 0, 0, 2), bx_var_slice(tape, in[0], 0, 1, 3)))
EXPRESSION(empty_slice, bx_var_slice(tape, in[0], 0, 1, 1))
EXPRESSION(joined, bx_var_concat(tape, (struct bx_var *const[]){ in[0], in[1], in[0] }, 3, 1))
EXPRESSION(joined_rows, bx_var_concat(tape, (struct bx_var *const[]){ in[0], in[1] }, 2, -2))

static struct bx_var *stacked(struct bx_tape *tape, struct bx_var *const *in, void *context)
{
    return bx_var_stack(tape, in, 2, *(int *)context);
}

Test(autograd_shape, views_have_their_gradients)
{
    static const struct shape cube = { 3, { 2, 3, 4 } }, matrix = { 2, { 3, 4 } };

    check_gradients(flattened, NULL, &cube, 1);
    check_gradients(flattened, NULL, &SHAPES[0], 1);
    check_gradients(folded, NULL, &cube, 1);
    check_gradients(transposed, NULL, &cube, 1);
    check_gradients(transposed, NULL, &SHAPES[1], 1);
    check_gradients(transposed_product, NULL, (const struct shape[]){ { 2, { 3, 4 } }, { 2, { 4, 3 } } }, 2);
    check_gradients(sliced, NULL, &cube, 1);
    check_gradients(sliced_twice, NULL, &matrix, 1);
    check_gradients(empty_slice, NULL, &matrix, 1);
}

Test(autograd_shape, concat_and_stack_have_their_gradients)
{
    check_gradients(joined, NULL, (const struct shape[]){ { 2, { 2, 3 } }, { 2, { 2, 1 } } }, 2);
    check_gradients(joined_rows, NULL, (const struct shape[]){ { 2, { 2, 3 } }, { 2, { 0, 3 } } }, 2);
    for (int dim = -3; dim < 3; dim++)
        check_gradients(stacked, &dim, (const struct shape[]){ { 2, { 2, 3 } }, { 2, { 2, 3 } } }, 2);
    for (int dim = -1; dim < 1; dim++)
        check_gradients(stacked, &dim, (const struct shape[]){ { 0, { 0 } }, { 0, { 0 } } }, 2);
}

static void check_values(const struct bx_var *var, const struct shape *shape, const double *want)
{
    OWN(tensor) *dense = NULL;

    cr_assert_not_null(var, "%s", bx_error_text());
    cr_assert_eq(bx_tensor_copy(NULL, bx_var_value(var), &dense), 0);
    cr_assert_eq(bx_tensor_ndim(dense), shape->ndim);
    for (int i = 0; i < shape->ndim; i++)
        cr_assert_eq(bx_tensor_dim(dense, i), shape->extent[i]);
    for (int64_t i = 0; i < bx_tensor_elements(dense); i++)
        cr_expect_eq(element(dense, i), want[i], "element %lld is %g", (long long)i, element(dense, i));
}

Test(autograd_shape, each_operation_moves_elements_where_torch_does)
{
    OWN(tape) *tape = new_tape();
    OWN(tensor) *value = values_of(BX_F32, &(struct shape){ 2, { 2, 3 } }, (double[]){ 1, 2, 3, 4, 5, 6 });
    struct bx_var *x = bx_tape_input(tape, value), *twice[] = { x, x };

    check_values(bx_var_reshape(tape, x, 2, (const int64_t[]){ 3, -1 }), &(struct shape){ 2, { 3, 2 } },
                 (double[]){ 1, 2, 3, 4, 5, 6 });
    check_values(bx_var_transpose(tape, x, 0, 1), &(struct shape){ 2, { 3, 2 } }, (double[]){ 1, 4, 2, 5, 3, 6 });
    check_values(bx_var_slice(tape, x, -1, 1, 3), &(struct shape){ 2, { 2, 2 } }, (double[]){ 2, 3, 5, 6 });
    check_values(bx_var_concat(tape, twice, 2, 0), &(struct shape){ 2, { 4, 3 } },
                 (double[]){ 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6 });
    check_values(bx_var_concat(tape, twice, 2, 1), &(struct shape){ 2, { 2, 6 } },
                 (double[]){ 1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6 });
    check_values(bx_var_stack(tape, twice, 2, 1), &(struct shape){ 3, { 2, 2, 3 } },
                 (double[]){ 1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6 });
    check_values(bx_var_stack(tape, twice, 2, 2), &(struct shape){ 3, { 2, 3, 2 } },
                 (double[]){ 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6 });
}

/* SPDX-License-Identifier: MIT */
/*
 * lib/autograd/optim.c: steps against numbers computed by hand with torch's formulas, parameters without gradients,
 * values that somebody still holds.
 */
#include "tests/autograd/gradient.h"

#include <math.h>

TestSuite(autograd_optim, .timeout = 30);

static const struct shape TWO = { 1, { 2 } };

static void give(struct bx_grads *grads, struct bx_var *param, const double *values)
{
    OWN(tensor) *grad = values_of(bx_tensor_dtype(bx_var_value(param)), &TWO, values);

    bx_grads_clear(grads);
    cr_assert_eq(bx_grads_add(grads, param, grad), 0, "%s", bx_error_text());
}

static void check(const struct bx_var *param, double first, double second)
{
    cr_expect_float_eq(element(bx_var_value(param), 0), first, 1e-12, "%.15g", element(bx_var_value(param), 0));
    cr_expect_float_eq(element(bx_var_value(param), 1), second, 1e-12, "%.15g", element(bx_var_value(param), 1));
}

/* g = (0.5, 3) + 0.1 p = (0.6, 2.8); v = g; p = (1, -2) - 0.1 v = (0.94, -2.28).
 * g = (1, 0) + 0.1 p = (1.094, -0.228); v = 0.9 v + g = (1.634, 2.292); p = p - 0.1 v = (0.7766, -2.5092). */
Test(autograd_optim, sgd_has_momentum_and_weight_decay)
{
    OWN(var) *p = parameter(values_of(BX_F64, &TWO, (double[]){ 1, -2 }));
    OWN(grads) *grads = new_grads();
    OWN(optim) *optim = NULL;

    cr_assert_eq(bx_optim_sgd_create(&(struct bx_optim_sgd){ .lr = 0.1, .momentum = 0.9, .weight_decay = 0.1 }, &p, 1,
                                     &optim), 0);
    give(grads, p, (double[]){ 0.5, 3 });
    cr_assert_eq(bx_optim_step(optim, NULL, grads), 0);
    check(p, 0.94, -2.28);
    give(grads, p, (double[]){ 1, 0 });
    cr_assert_eq(bx_optim_step(optim, NULL, grads), 0);
    check(p, 0.7766, -2.5092);
}

/* beta1 0.5, beta2 0.75, lr 0.1, eps 0.5. Step 1, g = (2, -1): m = (1, -0.5), v = (1, 0.25), corrected m = (2, -1),
 * sqrt(v) / sqrt(0.25) = (2, 1); p = (1, 1) - 0.1 (2 / 2.5, -1 / 1.5) = (0.92, 1 + 0.1 / 1.5).
 * Step 2, g = (0, 3): m = (0.5, 1.25), v = (0.75, 2.4375), divided by 0.75 and 0.4375. */
Test(autograd_optim, adam_corrects_its_moments)
{
    OWN(var) *p = parameter(values_of(BX_F64, &TWO, (double[]){ 1, 1 }));
    OWN(grads) *grads = new_grads();
    OWN(optim) *optim = NULL;
    const struct bx_optim_adam options = { .lr = 0.1, .beta1 = 0.5, .beta2 = 0.75, .eps = 0.5 };
    const double second = 1 + 0.1 / 1.5;

    cr_assert_eq(bx_optim_adam_create(&options, &p, 1, &optim), 0, "%s", bx_error_text());
    give(grads, p, (double[]){ 2, -1 });
    cr_assert_eq(bx_optim_step(optim, NULL, grads), 0);
    check(p, 0.92, second);
    give(grads, p, (double[]){ 0, 3 });
    cr_assert_eq(bx_optim_step(optim, NULL, grads), 0);
    check(p, 0.92 - 0.1 * (0.5 / 0.75) / (sqrt(0.75 / 0.4375) + 0.5),
          second - 0.1 * (1.25 / 0.75) / (sqrt(2.4375 / 0.4375) + 0.5));
}

/* g = (1, 1) + 0.5 (4, -2) = (3, 0): the first step is lr in the direction of g, whatever its size. */
Test(autograd_optim, adam_has_torchs_defaults_and_weight_decay)
{
    OWN(var) *p = parameter(values_of(BX_F64, &TWO, (double[]){ 4, -2 }));
    OWN(grads) *grads = new_grads();
    OWN(optim) *optim = NULL;

    cr_assert_eq(bx_optim_adam_create(&(struct bx_optim_adam){ .weight_decay = 0.5 }, &p, 1, &optim), 0);
    give(grads, p, (double[]){ 1, 1 });
    cr_assert_eq(bx_optim_step(optim, NULL, grads), 0);
    check(p, 4 - 1e-3 * 3 / (3 + 1e-8), -2);
}

/* Its state does not move either: the second step is its first one. */
Test(autograd_optim, a_parameter_without_a_gradient_keeps_value_and_state)
{
    struct bx_var *params[] = { parameter(values_of(BX_F32, &TWO, (double[]){ 1, 2 })),
                                parameter(values_of(BX_F32, &TWO, (double[]){ 3, 4 })) };
    struct bx_tensor *before = bx_var_value(params[1]);
    struct bx_grads *grads = new_grads();
    struct bx_optim *optim = NULL;

    cr_assert_eq(bx_optim_adam_create(&(struct bx_optim_adam){ .lr = 0.5 }, params, 2, &optim), 0);
    for (int i = 0; i < 3; i++) {
        give(grads, params[0], (double[]){ 1, 1 });
        cr_assert_eq(bx_optim_step(optim, NULL, grads), 0);
        cr_expect_eq(bx_var_value(params[1]), before);
    }
    give(grads, params[1], (double[]){ 7, -7 });
    cr_assert_eq(bx_optim_step(optim, NULL, grads), 0);
    cr_expect_float_eq(element(bx_var_value(params[1]), 0), 2.5, 1e-6);
    cr_expect_float_eq(element(bx_var_value(params[1]), 1), 4.5, 1e-6);
    bx_optim_destroy(optim);
    bx_grads_destroy(grads);
    bx_var_release(params[0]);
    bx_var_release(params[1]);
}

/* d(a b) / da = b: of the forward pass, not of after the step. */
Test(autograd_optim, a_step_changes_neither_held_values_nor_graphs)
{
    struct bx_tape *tape = new_tape();
    struct bx_grads *grads = new_grads(), *after = new_grads();
    struct bx_var *params[] = { parameter(values_of(BX_F64, &TWO, (double[]){ 1, 2 })),
                                parameter(values_of(BX_F64, &TWO, (double[]){ 3, 4 })) };
    struct bx_var *sum = bx_var_sum(tape, bx_var_mul(tape, params[0], params[1]));
    struct bx_tensor *held = bx_var_acquire_value(params[1]);
    struct bx_optim *optim = NULL;

    cr_assert_eq(bx_optim_sgd_create(&(struct bx_optim_sgd){ .lr = 1 }, params, 2, &optim), 0);
    give(grads, params[1], (double[]){ 10, 10 });
    cr_assert_eq(bx_optim_step(optim, NULL, grads), 0);
    check(params[1], -7, -6);
    cr_expect_eq(element(held, 0), 3);
    cr_assert_eq(bx_backward(&sum, NULL, 1, false, after), 0);
    cr_expect_eq(element(bx_grads_get(after, params[0]), 0), 3);
    cr_expect_eq(element(bx_grads_get(after, params[0]), 1), 4);
    bx_tensor_release(held);
    bx_optim_destroy(optim);
    bx_grads_destroy(grads);
    bx_grads_destroy(after);
    bx_tape_destroy(tape);
    bx_var_release(params[0]);
    bx_var_release(params[1]);
}

Test(autograd_optim, says_what_does_not_fit)
{
    OWN(tape) *tape = new_tape();
    struct bx_var *p = parameter(values_of(BX_F64, &TWO, (double[]){ 1, 2 })), *twice[] = { p, p };
    struct bx_var *result = bx_var_neg(tape, p), *constant = bx_tape_input(tape, bx_var_value(p)), *none = NULL;
    struct bx_optim *optim = NULL;
    const struct bx_optim_sgd sgd = { .lr = 0.1 }, negative = { .lr = -1 };

    FAILS(bx_optim_sgd_create(&sgd, twice, 2, &optim), -EINVAL, "parameters 0 and 1 of the optimizer are one");
    FAILS(bx_optim_sgd_create(&sgd, &result, 1, &optim), -EINVAL,
          "parameter 0 of the optimizer is not a leaf that requires a gradient");
    FAILS(bx_optim_sgd_create(&sgd, &constant, 1, &optim), -EINVAL,
          "parameter 0 of the optimizer is not a leaf that requires a gradient");
    FAILS(bx_optim_sgd_create(&sgd, &none, 1, &optim), -EINVAL,
          "parameter 0 of the optimizer is not a leaf that requires a gradient");
    FAILS(bx_optim_sgd_create(&negative, &p, 1, &optim), -EINVAL,
          "SGD needs a rate, a momentum and a weight decay of at least 0: -1, 0, 0");
    FAILS(bx_optim_adam_create(&(struct bx_optim_adam){ .beta2 = 1 }, &p, 1, &optim), -EINVAL,
          "Adam needs a rate, eps and a weight decay of at least 0, and betas of 0 to less than 1: "
          "0.001, 1e-08, 0, 0.9, 1");
    FAILS(bx_optim_sgd_create(&sgd, NULL, 1, &optim), -EINVAL, "an optimizer needs its parameters");
    FAILS(bx_optim_step(NULL, NULL, NULL), -EINVAL, "bx_optim_step needs an optimizer and a gradient table");
    cr_expect_null(optim);
    bx_var_release(p);
}

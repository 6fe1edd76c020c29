/* SPDX-License-Identifier: MIT */
/*
 * demos/cartpole/net.c: the tape's loss and gradient are those of the decisions, with their dropout, and equal the
 * policy's own by hand; Adam's step, and the parameters after it. test_policy.c and test_reference.c check the policy.
 */
#include "tests/harness/test.h"
#include "demos/cartpole/net.h"
#include "demos/common/rng.h"

#include <math.h>

enum { ROWS = 300 };

static struct policy_row rows[ROWS];
static float weights[ROWS];

/* A net and `count` decisions of it, at random states. */
static struct cp_net make_net(size_t count)
{
    struct cp_net net;

    cr_assert_eq(cp_net_init(&net, 543), 0);
    for (size_t i = 0; i < count; i++) {
        for (uint64_t k = 0; k < POLICY_INPUTS; k++)
            rows[i].state[k] = 2.0f * rng_unit_f32(rng_at(rng_at(7, i), k)) - 1.0f;
        policy_act(&net.policy, rng_at(8, i), &rows[i]);
        weights[i] = 2.0f * rng_unit_f32(rng_at(9, i)) - 0.5f;
    }
    return net;
}

static struct cp_rows some_rows(size_t first, size_t count)
{
    return (struct cp_rows){ rows + first, weights + first, count };
}

/* The gradient on the tape, in the policy's layout. */
static void gradient_of(const struct cp_net *net, float gradient[POLICY_PARAMS])
{
    static const size_t OFFSETS[CP_PARAMS] = { POLICY_W1, POLICY_B1, POLICY_W2, POLICY_B2 };

    for (int i = 0; i < CP_PARAMS; i++) {
        const struct bx_tensor *part = bx_grads_get(net->grads, net->params[i]);

        cr_assert_not_null(part);
        memcpy(gradient + OFFSETS[i], bx_tensor_data(part), bx_tensor_bytes(part));
    }
}

/* Relative to the larger one's norm. */
static double distance(const float *a, const float *b)
{
    double apart = 0.0, norm_a = 0.0, norm_b = 0.0;

    for (size_t i = 0; i < POLICY_PARAMS; i++) {
        apart += pow((double)a[i] - (double)b[i], 2);
        norm_a += pow((double)a[i], 2);
        norm_b += pow((double)b[i], 2);
    }
    return sqrt(apart / fmax(norm_a, norm_b));
}

TestSuite(cartpole_net, .timeout = 120);

Test(cartpole_net, loss_is_that_of_the_probabilities_at_the_decisions)
{
    struct cp_net net = make_net(ROWS);
    struct cp_rows all = some_rows(0, ROWS);
    struct policy whole = net.policy;
    double want = 0.0, without_dropout = 0.0;

    whole.dropout = policy_dropout(0.0);
    for (size_t i = 0; i < ROWS; i++) {
        struct policy_row row = rows[i];

        want -= (double)weights[i] * (double)rows[i].log_prob;
        policy_act(&whole, 0, &row);
        without_dropout -= (double)weights[i] * log((double)row.prob[rows[i].action]);
    }
    double loss = bx_var_item(cp_net_loss(&net, &all));
    cr_assert_float_eq(loss, want, 1e-4 * fabs(want), "%.9g instead of %.9g", loss, want);
    cr_assert_gt(fabs(without_dropout - want), 1e-2 * fabs(want), "the masks make no difference");
    cp_net_fini(&net);
}

Test(cartpole_net, gradient_equals_that_of_the_policy_by_hand)
{
    static const size_t COUNTS[] = { 1, 2, 15, 16, 17, ROWS };

    for (size_t i = 0; i < sizeof(COUNTS) / sizeof(COUNTS[0]); i++) {
        struct cp_net net = make_net(COUNTS[i]);
        struct cp_rows all = some_rows(0, COUNTS[i]);
        struct policy_params want;
        float got[POLICY_PARAMS];

        cr_assert_eq(cp_net_backward(&net, &all), 0, "%s", bx_error_text());
        gradient_of(&net, got);
        policy_backward(&net.policy, rows, weights, COUNTS[i], &want);
        cr_assert_lt(distance(got, want.v), 1e-5, "%zu rows: %g apart", COUNTS[i], distance(got, want.v));
        cp_net_fini(&net);
    }
}

Test(cartpole_net, steps_are_those_of_the_policys_adam)
{
    struct cp_net net = make_net(ROWS);
    struct policy want = net.policy;

    for (size_t step = 0; step < 20; step++) {
        struct cp_rows part = some_rows(15 * step, 15);
        struct policy_params gradient;

        for (size_t i = 15 * step; i < 15 * step + 15; i++)
            policy_act(&want, rng_at(8, i), &rows[i]);
        policy_backward(&want, part.rows, part.weights, part.count, &gradient);
        policy_adam(&want, &gradient);
        cr_assert_eq(cp_net_backward(&net, &part), 0);
        cr_assert_eq(cp_net_step(&net), 0);
        cr_assert_eq(bx_grads_count(net.grads), 0);
    }
    /* Adam divides by the gradient's size, so a parameter whose gradient is rounding noise may differ. */
    cr_assert_lt(distance(net.policy.params.v, want.params.v), 1e-3);
    cp_net_fini(&net);
}

Test(cartpole_net, decisions_use_the_parameters_of_the_tape)
{
    struct cp_net net = make_net(ROWS);
    struct cp_rows all = some_rows(0, ROWS);
    double want = 0.0;

    cr_assert_eq(cp_net_backward(&net, &all), 0);
    cr_assert_eq(cp_net_step(&net), 0);
    for (size_t i = 0; i < ROWS; i++) {
        policy_act(&net.policy, rng_at(8, i), &rows[i]);
        want -= (double)weights[i] * (double)rows[i].log_prob;
    }
    cr_assert_float_eq(bx_var_item(cp_net_loss(&net, &all)), want, 1e-4 * fabs(want));
    cp_net_fini(&net);
}

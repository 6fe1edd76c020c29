/* SPDX-License-Identifier: MIT */
/*
 * demos/reinforce/policy.c: dropout (rate, scale, gradient), the gradient against differences of the loss, and draws
 * that depend on their key alone. test_reference.c compares its numbers with the reference.
 */
#include "demos/common/rng.h"
#include "demos/reinforce/policy.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static const float STATE[POLICY_INPUTS] = { 0.3f, -0.2f, 0.05f, 0.4f };

static double drop_fraction(const struct policy *policy, uint64_t seed, size_t rows)
{
    size_t kept = 0;

    for (uint64_t row = 0; row < rows; row++) {
        uint64_t keep[2];

        policy_draw_keep(policy->dropout, rng_at(seed, row), keep);
        kept += (size_t)(__builtin_popcountll(keep[0]) + __builtin_popcountll(keep[1]));
    }
    return 1.0 - (double)kept / (double)(rows * POLICY_UNITS);
}

TestSuite(policy, .timeout = 600);

Test(policy, first_parameters_are_uniform_within_one_over_root_fan_in)
{
    struct policy policy;
    float most[2] = { 0.0f, 0.0f };

    policy_init(&policy, 543);
    for (size_t i = 0; i < POLICY_PARAMS; i++)
        most[i >= POLICY_W2] = fmaxf(most[i >= POLICY_W2], fabsf(policy.params.v[i]));
    cr_assert_leq(most[0], 0.5f);
    cr_assert_gt(most[0], 0.49f);
    cr_assert_leq(most[1], 0.0883884f);
    cr_assert_gt(most[1], 0.086f);
}

Test(policy, dropout_drops_six_units_in_ten)
{
    struct policy policy;

    policy_init(&policy, 1);
    /* 1.28 million draws: a standard error of 0.00043. */
    cr_assert_float_eq(drop_fraction(&policy, 1, 10000), 0.6, 0.0022);
    policy.dropout = policy_dropout(0.1);
    cr_assert_float_eq(drop_fraction(&policy, 2, 10000), 0.1, 0.0014);
    policy.dropout = policy_dropout(0.0);
    cr_assert_eq(drop_fraction(&policy, 3, 100), 0.0);
}

Test(policy, dropout_draws_each_unit_for_itself)
{
    struct policy policy;
    static int kept[POLICY_UNITS], both[POLICY_UNITS];
    int rows = 10000;

    policy_init(&policy, 1);
    for (int row = 0; row < rows; row++) {
        uint64_t keep[2];

        policy_draw_keep(policy.dropout, rng_at(9, (uint64_t)row), keep);
        for (int u = 0; u < POLICY_UNITS; u++) {
            int next = (u + 1) % POLICY_UNITS;
            int here = (int)(keep[u / 64] >> (u % 64) & 1);

            kept[u] += here;
            both[u] += here & (int)(keep[next / 64] >> (next % 64) & 1);
        }
    }
    for (int u = 0; u < POLICY_UNITS; u++) {
        cr_assert_float_eq(kept[u] / (double)rows, 0.4, 0.025, "unit %d", u);
        cr_assert_float_eq(both[u] / (double)rows, 0.16, 0.019, "unit %d and the next", u);
    }
}

/* The same by plain loops in double. */
static void forward_by_hand(const struct policy *policy, const float *state, const uint64_t *keep,
                            double prob[2])
{
    const float *v = policy->params.v;
    double score[2] = { v[POLICY_B2], v[POLICY_B2 + 1] };

    for (size_t u = 0; u < POLICY_UNITS; u++) {
        double hidden = v[POLICY_B1 + u];

        for (size_t k = 0; k < POLICY_INPUTS; k++)
            hidden += (double)v[POLICY_W1 + k * POLICY_UNITS + u] * state[k];
        hidden *= (keep[u / 64] >> (u % 64) & 1) ? (double)policy->dropout.scale : 0.0;
        hidden = fmax(hidden, 0.0);
        for (size_t a = 0; a < POLICY_ACTIONS; a++)
            score[a] += hidden * v[POLICY_W2 + a * POLICY_UNITS + u];
    }
    prob[1] = 1.0 / (1.0 + exp(score[0] - score[1]));
    prob[0] = 1.0 - prob[1];
}

Test(policy, forward_scales_kept_units_and_zeroes_the_others)
{
    struct policy policy;
    struct policy_row row;

    policy_init(&policy, 543);
    cr_assert_float_eq(policy.dropout.scale, 2.5, 1e-6);
    memcpy(row.state, STATE, sizeof(row.state));
    for (uint64_t key = 0; key < 100; key++) {
        double want[2];

        policy_act(&policy, rng_at(4, key), &row);
        forward_by_hand(&policy, STATE, row.keep, want);
        cr_assert_float_eq(row.prob[0], want[0], 1e-6);
        cr_assert_float_eq(row.prob[1], want[1], 1e-6);
    }
}

static double loss_by_hand(const struct policy *policy, const struct policy_row *rows,
                           const float *weight, size_t count)
{
    double loss = 0.0;

    for (size_t i = 0; i < count; i++) {
        double prob[2];

        forward_by_hand(policy, rows[i].state, rows[i].keep, prob);
        loss -= weight[i] * log(prob[rows[i].action]);
    }
    return loss;
}

static size_t make_episode(const struct policy *policy, struct policy_row *rows, float *weight,
                           size_t count)
{
    for (size_t i = 0; i < count; i++) {
        for (uint64_t k = 0; k < POLICY_INPUTS; k++)
            rows[i].state[k] = 2.0f * rng_unit_f32(rng_at(rng_at(7, i), k)) - 1.0f;
        policy_act(policy, rng_at(8, i), &rows[i]);
        weight[i] = 2.0f * rng_unit_f32(rng_at(9, i)) - 0.5f;
    }
    return count;
}

Test(policy, gradient_under_dropout_is_the_slope_of_the_loss)
{
    struct policy policy;
    struct policy_row rows[20];
    struct policy_params grad;
    float weight[20];
    size_t count, dropped = 0;

    policy_init(&policy, 543);
    count = make_episode(&policy, rows, weight, 20);
    policy_backward(&policy, rows, weight, count, &grad);
    for (size_t i = 0; i < POLICY_PARAMS; i++) {
        float *at = &policy.params.v[i], was = *at;
        double high, low, width;

        *at = was + 1e-3f;
        width = *at;
        high = loss_by_hand(&policy, rows, weight, count);
        *at = was - 1e-3f;
        width -= *at;
        low = loss_by_hand(&policy, rows, weight, count);
        *at = was;
        /* A unit that becomes positive within the difference makes the loss nonlinear there. */
        cr_assert_float_eq(grad.v[i], (high - low) / width, 5e-3, "parameter %zu: %g, slope %g", i,
                           (double)grad.v[i], (high - low) / width);
        dropped += grad.v[i] == 0.0f;
    }
    cr_assert_lt(dropped, POLICY_PARAMS / 4);
}

Test(policy, unit_dropped_in_every_row_has_no_gradient)
{
    struct policy policy;
    struct policy_row rows[5];
    struct policy_params grad;
    float weight[5];

    policy_init(&policy, 543);
    make_episode(&policy, rows, weight, 5);
    for (size_t i = 0; i < 5; i++) {
        rows[i].keep[0] &= ~(UINT64_C(1) << 17);
        rows[i].keep[1] |= UINT64_C(1) << 3;
    }
    policy_backward(&policy, rows, weight, 5, &grad);
    cr_assert_eq(grad.v[POLICY_B1 + 17], 0.0f);
    cr_assert_eq(grad.v[POLICY_W2 + 17], 0.0f);
    for (size_t k = 0; k < POLICY_INPUTS; k++)
        cr_assert_eq(grad.v[POLICY_W1 + k * POLICY_UNITS + 17], 0.0f);
}

Test(policy, action_is_drawn_by_its_probability)
{
    struct policy policy;
    double expected = 0.0;
    int rows = 20000, ones = 0;

    policy_init(&policy, 543);
    for (int i = 0; i < rows; i++) {
        struct policy_row row;

        memcpy(row.state, STATE, sizeof(row.state));
        policy_act(&policy, rng_at(3, (uint64_t)i), &row);
        cr_assert_float_eq(row.prob[0] + row.prob[1], 1.0, 1e-6);
        cr_assert_float_eq(row.log_prob, log(row.prob[row.action]), 1e-5);
        ones += row.action;
        expected += row.prob[1];
    }
    cr_assert_float_eq(ones / (double)rows, expected / rows, 0.018);    /* five standard errors */
}

Test(policy, certain_probabilities_stay_finite)
{
    struct policy policy;
    struct policy_row row = { .state = { 0 } };

    policy_init(&policy, 1);
    policy.params.v[POLICY_B2] = 1e4f;
    policy_act(&policy, 1, &row);
    cr_assert_eq(row.action, 0);
    cr_assert_eq(row.prob[0], 1.0f);
    cr_assert_eq(row.log_prob, 0.0f);
    policy.params.v[POLICY_B2] = -1e4f;
    policy_act(&policy, 1, &row);
    cr_assert_eq(row.action, 1);
    cr_assert(isfinite(row.log_prob));
}

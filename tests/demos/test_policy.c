/* SPDX-License-Identifier: MIT */
/*
 * demos/reinforce/policy.c: first values, and what is drawn. test_reference.c compares its numbers with the reference,
 * test_cartpole_net.c compares loss and gradient under dropout with those of the tape.
 */
#include "tests/harness/test.h"
#include "demos/common/rng.h"
#include "demos/reinforce/policy.h"

#include <math.h>

static const float STATE[POLICY_INPUTS] = { 0.3f, -0.2f, 0.05f, 0.4f };

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

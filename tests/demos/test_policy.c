/* SPDX-License-Identifier: MIT */
/*
 * demos/reinforce/policy.c: dropout (rate, scale, gradient), the gradient by differences, draws that depend
 * on their place alone, and that the whole learns, with the observers in this process. Its numbers
 * are compared with the reference in test_reference.c.
 */
#include "demos/reinforce/cartpole.h"
#include "demos/reinforce/policy.h"
#include "demos/common/rng.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <string.h>

static const float STATE[POLICY_INPUTS] = { 0.3f, -0.2f, 0.05f, 0.4f };

static double drop_fraction(const struct policy *policy, uint64_t seed, size_t rows)
{
    size_t kept = 0;

    for (uint64_t row = 0; row < rows; row++) {
        uint64_t keep[2];

        policy_draw_keep(policy, rng_at(seed, row), keep);
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
    policy_set_dropout(&policy, 0.1);
    cr_assert_float_eq(drop_fraction(&policy, 2, 10000), 0.1, 0.0014);
    policy_set_dropout(&policy, 0.0);
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

        policy_draw_keep(&policy, rng_at(9, (uint64_t)row), keep);
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

/* What a plain and slow program makes of it, in double. */
static void forward_by_hand(const struct policy *policy, const float *state, const uint64_t *keep,
                            double prob[2])
{
    const float *v = policy->params.v;
    double score[2] = { v[POLICY_B2], v[POLICY_B2 + 1] };

    for (size_t u = 0; u < POLICY_UNITS; u++) {
        double hidden = v[POLICY_B1 + u];

        for (size_t k = 0; k < POLICY_INPUTS; k++)
            hidden += (double)v[POLICY_W1 + k * POLICY_UNITS + u] * state[k];
        hidden *= (keep[u / 64] >> (u % 64) & 1) ? (double)policy->keep_scale : 0.0;
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
    uint64_t keep[2];

    policy_init(&policy, 543);
    cr_assert_float_eq(policy.keep_scale, 2.5, 1e-6);
    for (uint64_t key = 0; key < 100; key++) {
        float prob[2];
        double want[2];

        policy_draw_keep(&policy, rng_at(4, key), keep);
        policy_forward(&policy, STATE, keep, prob);
        forward_by_hand(&policy, STATE, keep, want);
        cr_assert_float_eq(prob[0], want[0], 1e-6);
        cr_assert_float_eq(prob[1], want[1], 1e-6);
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
        /* A unit that starts to fire inside the step bends the line a little. */
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

Test(policy, decision_does_not_depend_on_who_else_decides_or_when)
{
    struct policy_learner alone, crowd;
    float state[POLICY_INPUTS];

    cr_assert_eq(policy_learner_init(&alone, 5, 3, 4), 0);
    cr_assert_eq(policy_learner_init(&crowd, 5, 3, 4), 0);
    memcpy(state, STATE, sizeof(state));
    for (size_t observer = 0; observer < 3; observer++)
        for (int step = 0; step < 4; step++)
            cr_assert_geq(policy_learner_act(&alone, observer, state), 0);
    for (int step = 0; step < 4; step++)
        for (size_t observer = 3; observer-- > 0;)
            cr_assert_geq(policy_learner_act(&crowd, observer, state), 0);
    cr_assert_arr_eq(alone.rows, crowd.rows, 12 * sizeof(*alone.rows));
    policy_learner_fini(&alone);
    policy_learner_fini(&crowd);
}

Test(policy, learner_refuses_what_does_not_fit_the_episode)
{
    struct policy_learner learner;
    float returns[3] = { 3.0f, 2.0f, 1.0f };

    cr_assert_eq(policy_learner_init(&learner, 5, 2, 3), 0);
    cr_assert_eq(policy_learner_act(&learner, 2, STATE), -ERANGE);
    for (int step = 0; step < 3; step++)
        cr_assert_geq(policy_learner_act(&learner, 1, STATE), 0);
    cr_assert_eq(policy_learner_act(&learner, 1, STATE), -ERANGE);
    cr_assert_eq(policy_learner_returns(&learner, 2, 0, returns, 3), -ERANGE);
    cr_assert_eq(policy_learner_returns(&learner, 0, 1, returns, 3), -ERANGE);
    cr_assert_eq(policy_learner_returns(&learner, 0, SIZE_MAX, returns, 3), -ERANGE);
    cr_assert_eq(policy_learner_returns(&learner, 1, 1, returns, 2), 0);
    cr_assert_eq(learner.weight[3], 1.5f);
    cr_assert_eq(learner.weight[5], 1.0f);
    cr_assert_eq(policy_learner_update(&learner), -ERANGE);
    cr_assert_eq(learner.episode, 0);
    policy_learner_fini(&learner);
    cr_assert_eq(policy_learner_init(&learner, 5, SIZE_MAX / 2, 3), -ENOMEM);
}

struct seat {
    struct policy_learner *learner;
    size_t observer;
};

static int seat_choose(const float state[4], void *context)
{
    struct seat *seat = context;

    return policy_learner_act(seat->learner, seat->observer, state);
}

enum { LEARN_OBSERVERS = 5, LEARN_EPISODES = 60, LEARN_STEPS = 500 };

struct learned {
    double at_5, at_end;    /* average reward */
    double last_ten;        /* mean of the last ten episodes' last reward */
};

static struct learned learn(uint64_t seed)
{
    static float returns[LEARN_STEPS];
    struct cartpole_player players[LEARN_OBSERVERS];
    struct policy_learner learner;
    struct learned result = { 0 };

    cr_assert_eq(policy_learner_init(&learner, seed, LEARN_OBSERVERS, LEARN_STEPS), 0);
    for (int i = 0; i < LEARN_OBSERVERS; i++)
        players[i] = (struct cartpole_player){ .seed = seed, .rank = i + 1, .gamma = 1.0 };
    for (int episode = 0; episode < LEARN_EPISODES; episode++) {
        double reward = 0.0;

        for (size_t i = 0; i < LEARN_OBSERVERS; i++) {
            struct seat seat = { &learner, i };

            reward += cartpole_play(&players[i], LEARN_STEPS, returns, seat_choose, &seat);
            policy_learner_returns(&learner, i, 0, returns, LEARN_STEPS);
        }
        reward /= LEARN_OBSERVERS;
        cr_assert_eq(policy_learner_update(&learner), 0);
        result.at_end = 0.5 * reward + 0.5 * result.at_end;
        if (episode == 5)
            result.at_5 = result.at_end;
        if (episode >= LEARN_EPISODES - 10)
            result.last_ten += reward / 10;
    }
    policy_learner_fini(&learner);
    return result;
}

Test(policy, learns_to_balance_for_nine_seeds_of_ten)
{
    double last_ten = 0.0;
    int doubled = 0;

    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct learned result = learn(seed);

        doubled += result.at_end >= 2.0 * result.at_5;
        last_ten += result.last_ten / 10;
    }
    cr_assert_geq(doubled, 9);
    cr_assert_geq(last_ten, 250.0);
}

Test(policy, same_seed_gives_the_same_training)
{
    struct learned one = learn(42), two = learn(42);

    cr_assert_eq(one.at_end, two.at_end);
    cr_assert_eq(one.last_ten, two.last_ten);
}

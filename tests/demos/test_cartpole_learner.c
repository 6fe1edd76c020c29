/* SPDX-License-Identifier: MIT */
/*
 * demos/cartpole/learner.c: returns observer by observer, actions that depend on their place alone, and calls that do
 * not fit the episode. tests/e2e/cartpole.sh has it learn.
 */
#include "tests/harness/test.h"
#include "demos/cartpole/learner.h"

static const float STATE[POLICY_INPUTS] = { 0.3f, -0.2f, 0.05f, 0.4f };

static struct cp_learner make_learner(size_t observers, double gamma, uint64_t seed)
{
    const struct cp_learner_options options = { .observers = observers, .gamma = gamma, .seed = seed };
    struct cp_learner learner;

    cr_assert_eq(cp_learner_init(&learner, &options), 0);
    return learner;
}

static void take_steps(struct cp_learner *learner, size_t observer, int steps)
{
    for (int i = 0; i < steps; i++) {
        cr_assert_geq(cp_learner_select_action(learner, observer, STATE), 0);
        cr_assert_eq(cp_learner_report_reward(learner, observer, 1.0f), 0);
    }
}

TestSuite(cartpole_learner, .timeout = 600);

/* ---- Returns ------------------------------------------------------------------------------------------- */

Test(cartpole_learner, rewards_are_discounted_from_the_end)
{
    const float rewards[] = { 1.0f, 1.0f, 2.0f, 1.0f };
    float returns[4];

    cp_discount(rewards, 4, 0.5, returns);
    cr_assert_float_eq(returns[3], 1.0, 1e-6);
    cr_assert_float_eq(returns[2], 2.5, 1e-6);
    cr_assert_float_eq(returns[1], 2.25, 1e-6);
    cr_assert_float_eq(returns[0], 2.125, 1e-6);
    cp_discount(rewards, 4, 0.0, returns);
    cr_assert_eq(returns[2], 2.0f);
}

/* Observer 1: 1.5, 1. Observer 2: 1.75, 1.5, 1. Mean 1.35, sum of squares 0.45 over 4. */
Test(cartpole_learner, no_return_of_an_observer_is_part_of_another_ones)
{
    static const double WANT[2][3] = { { 0.4472136, -1.0434984 }, { 1.1925696, 0.4472136, -1.0434984 } };
    struct cp_learner learner = make_learner(2, 0.5, 1);
    double min_reward = 0.0;

    take_steps(&learner, 1, 3);
    take_steps(&learner, 0, 2);
    cr_assert_eq(cp_learner_finish_episode(&learner, &min_reward), 0);
    for (size_t o = 0; o < 2; o++)
        for (size_t i = 0; i < 2 + o; i++)
            cr_assert_float_eq(learner.tracks[o].returns[i], WANT[o][i], 2e-6, "observer %zu, step %zu: %g", o, i,
                               (double)learner.tracks[o].returns[i]);
    cp_learner_fini(&learner);
}

Test(cartpole_learner, running_reward_follows_the_shortest_episode)
{
    struct cp_learner learner = make_learner(3, 0.99, 1);
    double min_reward = 0.0;

    take_steps(&learner, 0, 30);
    take_steps(&learner, 1, 20);
    take_steps(&learner, 2, 25);
    cr_assert_eq(cp_learner_finish_episode(&learner, &min_reward), 0);
    cr_assert_eq(min_reward, 20.0);
    cr_assert_float_eq(learner.running_reward, 1.0, 1e-12);
    cr_assert_eq(learner.steps, 75);
    cr_assert_eq(learner.episode, 1);
    for (size_t o = 0; o < 3; o++)
        take_steps(&learner, o, 40);
    cr_assert_eq(cp_learner_finish_episode(&learner, &min_reward), 0);
    cr_assert_float_eq(learner.running_reward, 0.95 + 2.0, 1e-12);
    cp_learner_fini(&learner);
}

Test(cartpole_learner, an_episode_of_one_step_changes_nothing)
{
    struct cp_learner learner = make_learner(1, 0.99, 1);
    struct policy_params before = learner.net.policy.params;
    double min_reward = 0.0;

    take_steps(&learner, 0, 1);
    cr_assert_eq(cp_learner_finish_episode(&learner, &min_reward), 0);
    cr_assert_eq(learner.tracks[0].returns[0], 0.0f);
    for (size_t i = 0; i < POLICY_PARAMS; i++)
        cr_assert_eq(learner.net.policy.params.v[i], before.v[i]);
    cp_learner_fini(&learner);
}

/* ---- Actions ------------------------------------------------------------------------------------------- */

Test(cartpole_learner, an_action_does_not_depend_on_who_else_asks_or_when)
{
    struct cp_learner one_by_one = make_learner(3, 0.99, 5), in_turn = make_learner(3, 0.99, 5);

    for (size_t o = 0; o < 3; o++)
        take_steps(&one_by_one, o, 20);
    for (int step = 0; step < 20; step++)
        for (size_t o = 3; o-- > 0;)
            take_steps(&in_turn, o, 1);
    for (size_t o = 0; o < 3; o++)
        cr_assert_arr_eq(one_by_one.tracks[o].rows, in_turn.tracks[o].rows, 20 * sizeof(struct policy_row));
    cp_learner_fini(&one_by_one);
    cp_learner_fini(&in_turn);
}

Test(cartpole_learner, an_episode_draws_other_numbers_than_the_one_before)
{
    struct cp_learner learner = make_learner(1, 0.99, 3);
    struct policy_row before;
    double min_reward = 0.0;

    take_steps(&learner, 0, 1);
    before = learner.tracks[0].rows[0];
    cr_assert_eq(cp_learner_finish_episode(&learner, &min_reward), 0);
    take_steps(&learner, 0, 1);
    cr_assert_arr_neq(learner.tracks[0].rows[0].keep, before.keep, sizeof(before.keep));
    cp_learner_fini(&learner);
}

/* ---- Calls that do not fit ----------------------------------------------------------------------------- */

Test(cartpole_learner, refuses_what_does_not_fit_the_episode)
{
    struct cp_learner learner = make_learner(2, 0.99, 1);
    double min_reward = -1.0;

    cr_assert_eq(cp_learner_select_action(&learner, 2, STATE), -ERANGE);
    cr_assert_eq(cp_learner_select_action(&learner, SIZE_MAX, STATE), -ERANGE);
    cr_assert_eq(cp_learner_report_reward(&learner, SIZE_MAX, 1.0f), -ERANGE);
    cr_assert_eq(cp_learner_report_reward(&learner, 0, 1.0f), -ERANGE);
    cr_assert_geq(cp_learner_select_action(&learner, 0, STATE), 0);
    cr_assert_eq(cp_learner_select_action(&learner, 0, STATE), -ERANGE);
    cr_assert_str_eq(bx_error_text(), "observer 1 has not reported the reward of its last step");
    cr_assert_eq(cp_learner_report_reward(&learner, 0, 1.0f), 0);
    cr_assert_eq(cp_learner_report_reward(&learner, 0, 1.0f), -ERANGE);
    cr_assert_eq(cp_learner_finish_episode(&learner, &min_reward), -ERANGE);
    cr_assert_str_eq(bx_error_text(), "observer 2 has 0 actions and 0 rewards");
    cr_assert_geq(cp_learner_select_action(&learner, 1, STATE), 0);
    cr_assert_eq(cp_learner_finish_episode(&learner, &min_reward), -ERANGE);
    cr_assert_eq(min_reward, -1.0);
    cr_assert_eq(cp_learner_report_reward(&learner, 1, 1.0f), 0);
    cr_assert_eq(cp_learner_finish_episode(&learner, &min_reward), 0);
    take_steps(&learner, 0, CARTPOLE_POLE_STEPS);
    cr_assert_eq(cp_learner_select_action(&learner, 0, STATE), -ERANGE);
    cp_learner_fini(&learner);
    cp_learner_fini(&learner);
}

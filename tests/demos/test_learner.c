/* SPDX-License-Identifier: MIT */
/*
 * demos/reinforce/learner.c on the CPU: a decision depends on its place alone, requests that do not fit the episode are
 * refused, and the policy learns, with the observers in this process.
 */
#include "demos/reinforce/cartpole.h"
#include "demos/reinforce/learner.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

static const float STATE[POLICY_INPUTS] = { 0.3f, -0.2f, 0.05f, 0.4f };

TestSuite(learner, .timeout = 600);

Test(learner, a_decision_does_not_depend_on_who_else_decides_or_when)
{
    struct learner alone, crowd;
    float state[POLICY_INPUTS];

    cr_assert_eq(learner_init(&alone, 5, 3, 4), 0);
    cr_assert_eq(learner_init(&crowd, 5, 3, 4), 0);
    memcpy(state, STATE, sizeof(state));
    for (size_t observer = 0; observer < 3; observer++)
        for (int step = 0; step < 4; step++)
            cr_assert_geq(learner_act(&alone, observer, state), 0);
    for (int step = 0; step < 4; step++)
        for (size_t observer = 3; observer-- > 0;)
            cr_assert_geq(learner_act(&crowd, observer, state), 0);
    cr_assert_arr_eq(alone.rows, crowd.rows, 12 * sizeof(*alone.rows));
    learner_fini(&alone);
    learner_fini(&crowd);
}

Test(learner, refuses_what_does_not_fit_the_episode)
{
    struct learner learner;
    float returns[3] = { 3.0f, 2.0f, 1.0f };

    cr_assert_eq(learner_init(&learner, 5, 2, 3), 0);
    cr_assert_eq(learner_act(&learner, 2, STATE), -ERANGE);
    for (int step = 0; step < 3; step++)
        cr_assert_geq(learner_act(&learner, 1, STATE), 0);
    cr_assert_eq(learner_act(&learner, 1, STATE), -ERANGE);
    cr_assert_eq(learner_returns(&learner, 2, 0, returns, 3), -ERANGE);
    cr_assert_eq(learner_returns(&learner, 0, 1, returns, 3), -ERANGE);
    cr_assert_eq(learner_returns(&learner, 0, SIZE_MAX, returns, 3), -ERANGE);
    cr_assert_eq(learner_returns(&learner, 1, 1, returns, 2), 0);
    cr_assert_eq(learner.weight[3], 1.5f);
    cr_assert_eq(learner.weight[5], 1.0f);
    cr_assert_eq(learner_update(&learner), -ERANGE);
    cr_assert_eq(learner.episode, 0);
    learner_fini(&learner);
    cr_assert_eq(learner_init(&learner, 5, SIZE_MAX / 2, 3), -ENOMEM);
}

struct seat {
    struct learner *learner;
    size_t observer;
};

static int seat_choose(const float state[4], void *context)
{
    struct seat *seat = context;

    return learner_act(seat->learner, seat->observer, state);
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
    struct learner learner;
    struct learned result = { 0 };

    cr_assert_eq(learner_init(&learner, seed, LEARN_OBSERVERS, LEARN_STEPS), 0);
    for (int i = 0; i < LEARN_OBSERVERS; i++)
        players[i] = (struct cartpole_player){ .seed = seed, .rank = i + 1, .gamma = 1.0 };
    for (int episode = 0; episode < LEARN_EPISODES; episode++) {
        double reward = 0.0;

        for (size_t i = 0; i < LEARN_OBSERVERS; i++) {
            struct seat seat = { &learner, i };

            reward += cartpole_play(&players[i], LEARN_STEPS, returns, seat_choose, &seat);
            learner_returns(&learner, i, 0, returns, LEARN_STEPS);
        }
        reward /= LEARN_OBSERVERS;
        cr_assert_eq(learner_update(&learner), 0);
        result.at_end = 0.5 * reward + 0.5 * result.at_end;
        if (episode == 5)
            result.at_5 = result.at_end;
        if (episode >= LEARN_EPISODES - 10)
            result.last_ten += reward / 10;
    }
    learner_fini(&learner);
    return result;
}

Test(learner, learns_to_balance_for_nine_seeds_of_ten)
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

Test(learner, the_same_seed_gives_the_same_training)
{
    struct learned one = learn(42), two = learn(42);

    cr_assert_eq(one.at_end, two.at_end);
    cr_assert_eq(one.last_ten, two.last_ten);
}

/* SPDX-License-Identifier: MIT */
/*
 * demos/reinforce/cartpole.c: start and end of a pole, and an observer's episode of several poles. test_reference.c
 * checks the numbers of the dynamics.
 */
#include "tests/harness/test.h"
#include "demos/reinforce/cartpole.h"

#include <math.h>

TestSuite(cartpole, .timeout = 120);

Test(cartpole, start_depends_on_seed_rank_and_reset_alone)
{
    struct cartpole one, same, other;

    cartpole_reset(&one, 543, 1, 7);
    memset(&same, 0xff, sizeof(same));
    cartpole_reset(&same, 543, 1, 7);
    cr_assert_arr_eq(one.state, same.state, sizeof(one.state));
    cr_assert_eq(same.steps, 0);
    cr_assert_not(same.fell || same.done);
    cartpole_reset(&other, 544, 1, 7);
    cr_assert_arr_neq(one.state, other.state, sizeof(one.state));
    cartpole_reset(&other, 543, 2, 7);
    cr_assert_arr_neq(one.state, other.state, sizeof(one.state));
    cartpole_reset(&other, 543, 1, 8);
    cr_assert_arr_neq(one.state, other.state, sizeof(one.state));
}

Test(cartpole, starts_fill_the_range_evenly)
{
    struct cartpole pole;
    double sum = 0.0, most = 0.0;

    for (uint64_t reset = 0; reset < 2500; reset++) {
        cartpole_reset(&pole, 1, 1, reset);
        for (int i = 0; i < 4; i++) {
            sum += pole.state[i];
            most = fmax(most, fabs(pole.state[i]));
        }
    }
    cr_assert_leq(most, 0.05);
    cr_assert_gt(most, 0.0499);
    cr_assert_lt(fabs(sum / 10000.0), 0.0015);     /* five standard errors */
}

Test(cartpole, falls_at_twelve_degrees_and_off_the_rail)
{
    struct cartpole pole = { .state = { 0.0, 0.0, 0.2094, 0.0 } };

    cr_assert_not(cartpole_step(&pole, 1));
    pole = (struct cartpole){ .state = { 0.0, 0.0, 0.2094, 0.01 } };
    cr_assert(cartpole_step(&pole, 1));
    cr_assert(pole.fell);
    pole = (struct cartpole){ .state = { -2.4, 0.0, 0.0, 0.0 } };
    cr_assert_not(cartpole_step(&pole, 1));
    pole = (struct cartpole){ .state = { -2.4, -0.001, 0.0, 0.0 } };
    cr_assert(cartpole_step(&pole, 1));
    cr_assert(pole.fell);
}

static int balance(const float state[4], void *context)
{
    *(size_t *)context += 1;
    return state[2] + 0.5f * state[3] > 0.0f;
}

static int push_right(const float state[4], void *context)
{
    (void)state;
    *(size_t *)context += 1;
    return 1;
}

static int give_up(const float state[4], void *context)
{
    (void)state;
    return (*(size_t *)context)++ == 3 ? -110 : 0;
}

Test(cartpole, episode_of_a_standing_pole_is_cut_at_its_steps)
{
    struct cartpole_player player = { .seed = 1, .rank = 1, .gamma = 1.0 };
    float returns[100];
    size_t asked = 0;

    cr_assert_eq(cartpole_play(&player, 100, returns, balance, &asked), 100);
    cr_assert_eq(asked, 100);
    cr_assert_eq(player.resets, 1);
    for (int i = 0; i < 100; i++)
        cr_assert_eq(returns[i], (float)(100 - i));
}

Test(cartpole, pole_that_stands_500_steps_is_followed_by_another)
{
    struct cartpole_player player = { .seed = 1, .rank = 1, .gamma = 1.0 };
    static float returns[600];
    size_t asked = 0;

    cr_assert_eq(cartpole_play(&player, 600, returns, balance, &asked), 500);
    cr_assert_eq(player.resets, 2);
    cr_assert_eq(returns[499], 1.0f);
    cr_assert_eq(returns[500], 100.0f);
}

Test(cartpole, returns_are_summed_within_each_pole)
{
    struct cartpole_player player = { .seed = 1, .rank = 1, .gamma = 0.5 };
    float returns[64];
    size_t asked = 0, end;
    int first = cartpole_play(&player, 64, returns, push_right, &asked);

    cr_assert(first > 5 && first < 20, "a pole pushed one way falls at once, not after %d", first);
    cr_assert_geq(player.resets, 4);
    end = (size_t)first;
    for (size_t i = 0; i < end; i++)
        cr_assert_float_eq(returns[i], 2.0 - ldexp(1.0, -(int)(end - 1 - i)), 1e-6);
    cr_assert_gt(returns[end], 1.5f);
    cr_assert_eq(returns[63], 1.0f);
}

Test(cartpole, gives_up_with_the_code_of_the_chooser)
{
    struct cartpole_player player = { .seed = 1, .rank = 1, .gamma = 1.0 };
    float returns[10];
    size_t asked = 0;

    cr_assert_eq(cartpole_play(&player, 10, returns, give_up, &asked), -110);
    cr_assert_eq(asked, 4);
}

/* SPDX-License-Identifier: MIT */
/*
 * demos/reinforce/learner.c on the CPU: a decision depends on its place alone, and requests that do not fit the episode
 * are refused. tests/e2e/reinforce.sh has the policy and an MLP learn.
 */
#include "tests/demos/policy_reference.h"

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

/* Step by step with an MLP: observer by observer in one learner, all at once in the other. */
Test(learner, an_mlp_decides_the_same_alone_and_in_a_batch)
{
    static const struct mlp_shape SHAPE = { 2, { 64, 32 } };
    enum { OBSERVERS = 11, STEPS = 13, ROWS = OBSERVERS * STEPS };
    struct learner alone, batch;
    struct learner_ask asks[OBSERVERS + 1];
    float returns[STEPS];

    cr_assert_eq(learner_init(&alone, 5, OBSERVERS, STEPS), 0);
    cr_assert_eq(learner_init(&batch, 5, OBSERVERS, STEPS), 0);
    alone.mlp = mlp_create(&SHAPE, 5);
    batch.mlp = mlp_create(&SHAPE, 5);
    cr_assert(alone.mlp != NULL && batch.mlp != NULL);
    for (int episode = 0; episode < 3; episode++) {
        for (size_t step = 0; step < STEPS; step++) {
            for (size_t i = 0; i <= OBSERVERS; i++) {
                asks[i].observer = OBSERVERS - i;       /* the first one does not exist */
                for (size_t k = 0; k < POLICY_INPUTS; k++)
                    asks[i].state[k] = STATE[k] * (float)(i + step);
            }
            learner_decide(&batch, asks, OBSERVERS + 1);
            cr_assert_eq(asks[0].action, -ERANGE);
            for (size_t i = 1; i <= OBSERVERS; i++)
                cr_assert_eq(learner_act(&alone, asks[i].observer, asks[i].state), asks[i].action);
            returns[step] = 1.0f + (float)step;
        }
        cr_assert_arr_eq(alone.rows, batch.rows, ROWS * sizeof(*alone.rows));
        for (size_t i = 0; i < OBSERVERS; i++) {
            cr_assert_eq(learner_returns(&alone, i, 0, returns, STEPS), 0);
            cr_assert_eq(learner_returns(&batch, i, 0, returns, STEPS), 0);
        }
        cr_assert_eq(learner_update(&alone), 0);
        cr_assert_eq(learner_update(&batch), 0);
        cr_assert_arr_eq(alone.mlp->params, batch.mlp->params, alone.mlp->count * sizeof(float));
    }
    learner_fini(&alone);
    learner_fini(&batch);
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

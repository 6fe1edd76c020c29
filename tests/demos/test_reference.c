/* SPDX-License-Identifier: MIT */
/*
 * demos/reinforce: policy.c and cartpole.c against reference numbers in double precision. `make test-reference` runs
 * just this suite. BX_REFERENCE_DIR names another directory of such files (for example with another salt); without it
 * they are in tests/data below BX_SOURCE_DIR, or below the working directory.
 */
#include "demos/reinforce/cartpole.h"
#include "tests/demos/policy_reference.h"

#include <math.h>

#define ROWS REFERENCE_ROWS

static void make_rows(const struct policy *policy, const struct json *file, struct policy_row *rows,
                      float *weight)
{
    for (size_t r = 0; r < ROWS; r++) {
        reference_state(file, r, rows[r].state);
        policy_act(policy, r, &rows[r]);
        rows[r].action = reference_action(file, r);
        rows[r].log_prob = logf(rows[r].prob[rows[r].action]);
        weight[r] = reference_weight(file, r);
    }
}

TestSuite(reference, .timeout = 600);

Test(reference, policy_forward_gives_the_probabilities_and_the_loss)
{
    struct json *file = reference_load("policy.json");
    struct policy policy;
    struct policy_row rows[ROWS];
    float weight[ROWS];
    double loss = 0.0;

    reference_policy(file, &policy);
    make_rows(&policy, file, rows, weight);
    for (size_t r = 0; r < ROWS; r++) {
        check_probabilities(file, r, rows[r].prob);
        loss -= (double)(weight[r] * rows[r].log_prob);
    }
    check_near(loss, json_number(json_get(file, "loss")), 1e-5, "loss");
    json_free(file);
}

Test(reference, policy_backward_gives_the_gradient_and_adam_the_parameters)
{
    struct json *file = reference_load("policy.json");
    struct policy policy;
    struct policy_row rows[ROWS];
    struct policy_params grad;
    float weight[ROWS];

    reference_policy(file, &policy);
    make_rows(&policy, file, rows, weight);
    policy_backward(&policy, rows, weight, ROWS, &grad);
    check_params_like(file, "grads", &grad);
    policy_adam(&policy, &grad);
    check_params_like(file, "after_adam", &policy.params);
    json_free(file);
}

/* The action of the reference's two policies; t is the number of steps before this one. */
static int steer(int episode, int t, const double *state)
{
    if (episode % 2 != 0)
        return state[2] + 0.5 * state[3] > 0.0;
    return sin(0.9 * t + episode) > 0.0;
}

static void check_row(const struct cartpole *pole, int action, const struct json *row)
{
    cr_assert_eq(action, (int)json_number(json_get(row, "action")));
    for (size_t i = 0; i < 4; i++)
        check_near(pole->state[i], json_number(json_at(json_get(row, "state"), i)), 1e-12, "state");
    cr_assert_eq((double)pole->fell, json_number(json_get(row, "fell")));
    cr_assert_eq((double)pole->done, json_number(json_get(row, "done")));
}

Test(reference, cartpole_step_follows_every_listed_state)
{
    struct json *file = reference_load("cartpole.json");
    const struct json *row = json_at(json_get(file, "rows"), 0);
    struct cartpole pole = { .done = true };
    int episode = -1;
    size_t checked = 0;

    while (row != NULL) {
        int action;

        if (pole.done) {
            episode++;
            memset(&pole, 0, sizeof(pole));
            for (int j = 1; j <= 4; j++)
                pole.state[j - 1] = 0.05 * sin(j + episode + (double)reference_salt(file));
        }
        cr_assert_eq((int)json_number(json_get(row, "episode")), episode);
        action = steer(episode, pole.steps, pole.state);
        cartpole_step(&pole, action);
        if (pole.steps != (int)json_number(json_get(row, "step")))
            continue;
        check_row(&pole, action, row);
        row = row->next;
        checked++;
    }
    cr_assert_eq(checked, json_get(file, "rows")->count);
    cr_assert_geq(checked, 1);
    json_free(file);
}

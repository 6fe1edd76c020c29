/* SPDX-License-Identifier: MIT */
/*
 * demos/reinforce: policy.c and cartpole.c against reference numbers in double precision. `make test-reference` runs
 * just this suite. BX_REFERENCE_DIR names another directory of such files (for example with another salt); without it
 * they are in tests/data below BX_SOURCE_DIR, or below the working directory.
 */
#include "demos/reinforce/cartpole.h"
#include "demos/reinforce/policy.h"
#include "demos/common/rng.h"
#include "tests/harness/json.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 3
#define TENSORS 4

/* A tensor of the reference, and its offset in policy_params. */
static const struct tensor {
    const char *name;
    size_t count;
    size_t offset;
    size_t columns;         /* not 0: policy_params has it transposed; this is the reference's row length */
} TENSOR[TENSORS] = {
    { "affine1.weight", POLICY_INPUTS * POLICY_UNITS, POLICY_W1, POLICY_INPUTS },
    { "affine1.bias", POLICY_UNITS, POLICY_B1, 0 },
    { "affine2.weight", POLICY_ACTIONS * POLICY_UNITS, POLICY_W2, 0 },
    { "affine2.bias", POLICY_ACTIONS, POLICY_B2, 0 },
};

static struct json *load_reference(const char *name)
{
    struct json *file = json_load_reference(name);

    cr_assert_not_null(file);
    return file;
}

static uint64_t salt_of(const struct json *file)
{
    const struct json *salt = json_get(file, "salt");

    return salt == NULL ? 0 : (uint64_t)json_number(salt);
}

/* Element i of the reference's fill(k, ...). splitmix64 of z is draw 0 under the key z. */
static double fill_at(uint64_t k, uint64_t salt, uint64_t i, double scale)
{
    return scale * (2.0 * rng_unit(rng_at(((k + salt) << 40) + i, 0)) - 1.0);
}

static float element(const struct policy_params *params, const struct tensor *tensor, size_t i)
{
    size_t at = i;

    if (tensor->columns != 0)
        at = i % tensor->columns * (tensor->count / tensor->columns) + i / tensor->columns;
    return params->v[tensor->offset + at];
}

static void make_policy(struct policy *policy, uint64_t salt)
{
    policy_init(policy, 1);
    policy_set_dropout(policy, 0.0);
    for (size_t k = 0; k < TENSORS; k++) {
        const struct tensor *tensor = &TENSOR[k];

        for (size_t i = 0; i < tensor->count; i++) {
            size_t at = i;

            if (tensor->columns != 0)
                at = i % tensor->columns * POLICY_UNITS + i / tensor->columns;
            policy->params.v[tensor->offset + at] = (float)fill_at(k, salt, i, 0.3);
        }
    }
}

static void make_rows(const struct policy *policy, const struct json *file, struct policy_row *rows,
                      float *weight)
{
    for (size_t r = 0; r < ROWS; r++) {
        for (size_t i = 0; i < POLICY_INPUTS; i++)
            rows[r].state[i] = (float)fill_at(9, salt_of(file), r * POLICY_INPUTS + i, 0.8);
        policy_act(policy, r, &rows[r]);
        rows[r].action = (int32_t)json_number(json_at(json_get(file, "actions"), r));
        rows[r].log_prob = logf(rows[r].prob[rows[r].action]);
        weight[r] = (float)json_number(json_at(json_get(file, "weight"), r));
    }
}

static void check_near(double got, double want, double tolerance, const char *what)
{
    cr_assert(fabs(got - want) <= tolerance, "%s: %.9g instead of %.9g", what, got, want);
}

/* Compares norm, first four elements, last one, and the dot product if the reference has it. */
static void check_tensor(const struct policy_params *params, size_t k, const struct json *want,
                         uint64_t salt)
{
    const struct tensor *tensor = &TENSOR[k];
    double square = 0.0, dot = 0.0;

    for (size_t i = 0; i < tensor->count; i++) {
        double value = element(params, tensor, i);

        square += value * value;
        dot += value * fill_at(1000 + k, salt, i, 1.0);
    }
    check_near(sqrt(square), json_number(json_get(want, "norm")), 1e-5, tensor->name);
    for (size_t i = 0; i < 4 && i < tensor->count; i++)
        check_near(element(params, tensor, i), json_number(json_at(json_get(want, "first"), i)),
                   1e-5, tensor->name);
    check_near(element(params, tensor, tensor->count - 1), json_number(json_get(want, "last")),
               1e-5, tensor->name);
    if (json_get(want, "dot") != NULL)
        check_near(dot, json_number(json_get(want, "dot")), 1e-5, tensor->name);
}

TestSuite(reference, .timeout = 600);

Test(reference, policy_forward_gives_the_probabilities_and_the_loss)
{
    struct json *file = load_reference("policy.json");
    struct policy policy;
    struct policy_row rows[ROWS];
    float weight[ROWS];
    double loss = 0.0;

    make_policy(&policy, salt_of(file));
    make_rows(&policy, file, rows, weight);
    for (size_t r = 0; r < ROWS; r++) {
        const struct json *want = json_at(json_get(file, "probs"), r);

        check_near(rows[r].prob[0], json_number(json_at(want, 0)), 1e-5, "probability of action 0");
        check_near(rows[r].prob[1], json_number(json_at(want, 1)), 1e-5, "probability of action 1");
        loss -= (double)(weight[r] * rows[r].log_prob);
    }
    check_near(loss, json_number(json_get(file, "loss")), 1e-5, "loss");
    json_free(file);
}

Test(reference, policy_backward_gives_the_gradient_and_adam_the_parameters)
{
    struct json *file = load_reference("policy.json");
    struct policy policy;
    struct policy_row rows[ROWS];
    struct policy_params grad;
    float weight[ROWS];

    make_policy(&policy, salt_of(file));
    make_rows(&policy, file, rows, weight);
    policy_backward(&policy, rows, weight, ROWS, &grad);
    for (size_t k = 0; k < TENSORS; k++) {
        const struct json *want = json_at(json_get(file, "grads"), k);

        cr_assert_str_eq(json_text(json_get(want, "name")), TENSOR[k].name);
        check_tensor(&grad, k, want, salt_of(file));
    }
    policy_adam(&policy, &grad);
    for (size_t k = 0; k < TENSORS; k++)
        check_tensor(&policy.params, k, json_at(json_get(file, "after_adam"), k), salt_of(file));
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
    struct json *file = load_reference("cartpole.json");
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
                pole.state[j - 1] = 0.05 * sin(j + episode + (double)salt_of(file));
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

/* SPDX-License-Identifier: MIT */
/*
 * The reference's model in the layout of policy_params.
 */
#include "tests/demos/policy_reference.h"

#include "tests/autograd/gradient.h"

#include <math.h>

#define TENSORS 4
#define TOLERANCE 1e-5

/* A tensor of the reference, and its offset in policy_params. */
static const struct tensor {
    const char *name;
    size_t count;
    size_t offset;
    size_t columns;         /* not 0: policy_params has it transposed; this is the reference's row length */
} TENSOR[TENSORS] = {
    { "affine1.weight", POLICY_B1 - POLICY_W1, POLICY_W1, POLICY_INPUTS },
    { "affine1.bias", POLICY_UNITS, POLICY_B1, 0 },
    { "affine2.weight", POLICY_B2 - POLICY_W2, POLICY_W2, 0 },
    { "affine2.bias", POLICY_ACTIONS, POLICY_B2, 0 },
};

static size_t place_of(const struct tensor *tensor, size_t i)
{
    if (tensor->columns == 0)
        return tensor->offset + i;
    return tensor->offset + i % tensor->columns * (tensor->count / tensor->columns) + i / tensor->columns;
}

struct json *reference_load(const char *name)
{
    struct json *file = json_load_reference(name);

    cr_assert_not_null(file);
    return file;
}

uint64_t reference_salt(const struct json *file)
{
    const struct json *salt = json_get(file, "salt");

    return salt == NULL ? 0 : (uint64_t)json_number(salt);
}

void check_near(double got, double want, double tolerance, const char *what)
{
    cr_assert(fabs(got - want) <= tolerance, "%s: %.9g instead of %.9g, tolerance %.3g", what, got, want, tolerance);
}

void reference_policy(const struct json *file, struct policy *policy)
{
    policy_init(policy, 1);
    policy->dropout = policy_dropout(0.0);
    for (size_t k = 0; k < TENSORS; k++)
        for (size_t i = 0; i < TENSOR[k].count; i++)
            policy->params.v[place_of(&TENSOR[k], i)] = (float)fill_at(k + reference_salt(file), i, 0.3);
}

void reference_state(const struct json *file, size_t row, float state[POLICY_INPUTS])
{
    for (size_t i = 0; i < POLICY_INPUTS; i++)
        state[i] = (float)fill_at(9 + reference_salt(file), row * POLICY_INPUTS + i, 0.8);
}

int32_t reference_action(const struct json *file, size_t row)
{
    return (int32_t)json_number(json_at(json_get(file, "actions"), row));
}

float reference_weight(const struct json *file, size_t row)
{
    return (float)json_number(json_at(json_get(file, "weight"), row));
}

void check_probabilities(const struct json *file, size_t row, const float prob[POLICY_ACTIONS])
{
    const struct json *want = json_at(json_get(file, "probs"), row);

    check_near(prob[0], json_number(json_at(want, 0)), TOLERANCE, "probability of action 0");
    check_near(prob[1], json_number(json_at(want, 1)), TOLERANCE, "probability of action 1");
}

void check_params_like(const struct json *file, const char *key, const struct policy_params *params)
{
    for (size_t k = 0; k < TENSORS; k++) {
        const struct json *want = json_at(json_get(file, key), k);
        const struct tensor *tensor = &TENSOR[k];
        double square = 0.0, dot = 0.0;

        if (strcmp(key, "grads") == 0)      /* the others have no names */
            cr_assert_str_eq(json_text(json_get(want, "name")), tensor->name);
        for (size_t i = 0; i < tensor->count; i++) {
            double value = params->v[place_of(tensor, i)];

            square += value * value;
            dot += value * fill_at(1000 + k + reference_salt(file), i, 1.0);
            if (i < 4)
                check_near(value, json_number(json_at(json_get(want, "first"), i)), TOLERANCE, tensor->name);
            if (i + 1 == tensor->count)
                check_near(value, json_number(json_get(want, "last")), TOLERANCE, tensor->name);
        }
        check_near(sqrt(square), json_number(json_get(want, "norm")), TOLERANCE, tensor->name);
        if (json_get(want, "dot") != NULL)
            check_near(dot, json_number(json_get(want, "dot")), TOLERANCE, tensor->name);
    }
}

int learner_act(struct learner *learner, size_t observer, const float state[POLICY_INPUTS])
{
    struct learner_ask ask = { .observer = observer };

    memcpy(ask.state, state, sizeof(ask.state));
    learner_decide(learner, &ask, 1);
    return ask.action;
}

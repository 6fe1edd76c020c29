/* SPDX-License-Identifier: MIT */
/*
 * The reference numbers of the policy, policy.json: the model that they begin with, and what becomes of it. The file
 * gives actions and weights. Failures are Criterion assertions.
 */
#ifndef TESTS_POLICY_REFERENCE_H
#define TESTS_POLICY_REFERENCE_H

#include "tests/harness/test.h"
#include "demos/reinforce/learner.h"
#include "tests/harness/json.h"

#define REFERENCE_ROWS 3

struct json *reference_load(const char *name);
uint64_t reference_salt(const struct json *file);
void check_near(double got, double want, double tolerance, const char *what);

/* Without dropout. */
void reference_policy(const struct json *file, struct policy *policy);
void reference_state(const struct json *file, size_t row, float state[POLICY_INPUTS]);
int32_t reference_action(const struct json *file, size_t row);
float reference_weight(const struct json *file, size_t row);
void check_probabilities(const struct json *file, size_t row, const float prob[POLICY_ACTIONS]);

/* Compares with the file's tensors of that key ("grads", "after_adam"): names, norm, first four elements, last one, and
 * the dot product if the reference has it. */
void check_params_like(const struct json *file, const char *key, const struct policy_params *params);

/* learner_decide of one ask; returns its action. */
int learner_act(struct learner *learner, size_t observer, const float state[POLICY_INPUTS]);

#endif

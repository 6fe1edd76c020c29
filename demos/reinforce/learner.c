/* SPDX-License-Identifier: MIT */
/*
 * An episode's memory, and the choice between CPU, GPU and other networks. Run by the agent: decisions on the thread
 * that makes progress (inside select_action and select_action_batch), updates on the main thread between two episodes,
 * when no call can come.
 */
#include "learner.h"

#include "demos/common/rng.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void begin_episode(struct learner *learner, uint64_t episode)
{
    learner->episode = episode;
    learner->episode_key = rng_at(rng_at(learner->seed, RNG_DRAWS), episode);
    memset(learner->next_step, 0, learner->observers * sizeof(*learner->next_step));
}

int learner_init(struct learner *learner, uint64_t seed, size_t observers, size_t steps)
{
    memset(learner, 0, sizeof(*learner));
    if (steps > PTRDIFF_MAX / sizeof(*learner->rows) / observers)
        return -ENOMEM;
    learner->seed = seed;
    learner->observers = observers;
    learner->steps = steps;
    learner->next_step = calloc(observers, sizeof(*learner->next_step));
    learner->rows = calloc(steps * observers, sizeof(*learner->rows));
    learner->weight = calloc(steps * observers, sizeof(*learner->weight));
    if (learner->next_step == NULL || learner->rows == NULL || learner->weight == NULL) {
        learner_fini(learner);
        return -ENOMEM;
    }
    policy_init(&learner->policy, seed);
    begin_episode(learner, 0);
    return 0;
}

void learner_fini(struct learner *learner)
{
    policy_gpu_destroy(learner->gpu);
    mlp_destroy(learner->mlp);
    free(learner->next_step);
    free(learner->rows);
    free(learner->weight);
    memset(learner, 0, sizeof(*learner));
}

/* Advances the observer by a step and notes what it depends on. NULL: there is no such observer, or no step left. */
static struct policy_row *next_row(struct learner *learner, const struct learner_ask *ask)
{
    if (ask->observer >= learner->observers || learner->next_step[ask->observer] >= learner->steps)
        return NULL;

    size_t step = learner->next_step[ask->observer]++;
    struct policy_row *row = &learner->rows[step * learner->observers + ask->observer];

    memcpy(row->state, ask->state, sizeof(row->state));
    row->key = rng_at(learner->episode_key, (uint64_t)step << 8 | ask->observer);
    return row;
}

static int decide(struct learner *learner, struct policy_row *const *rows, size_t count)
{
    if (learner->gpu != NULL)
        return policy_gpu_act(learner->gpu, rows, count);
    if (learner->mlp != NULL)
        mlp_act(learner->mlp, rows, count);
    for (size_t i = 0; learner->mlp == NULL && i < count; i++)
        policy_act(&learner->policy, rows[i]->key, rows[i]);
    return 0;
}

void learner_decide(struct learner *learner, struct learner_ask *asks, size_t count)
{
    struct policy_row *rows[LEARNER_ASKS];
    struct learner_ask *due[LEARNER_ASKS];
    size_t left = 0;

    for (size_t i = 0; i < count; i++) {
        struct policy_row *row = left < LEARNER_ASKS ? next_row(learner, &asks[i]) : NULL;

        asks[i].action = -ERANGE;
        if (row != NULL) {
            rows[left] = row;
            due[left++] = &asks[i];
        }
    }
    int rc = decide(learner, rows, left);
    for (size_t i = 0; i < left; i++)
        due[i]->action = rc < 0 ? rc : rows[i]->action;
}

int learner_returns(struct learner *learner, size_t observer, size_t first_step, const float *returns, size_t count)
{
    if (observer >= learner->observers || first_step > learner->steps ||
        count > learner->steps - first_step)
        return -ERANGE;
    for (size_t i = 0; i < count; i++)
        learner->weight[(first_step + i) * learner->observers + observer] =
            returns[i] / (float)learner->observers;
    return 0;
}

int learner_update(struct learner *learner)
{
    size_t rows = learner->steps * learner->observers;
    struct policy_params grad;
    int rc = 0;

    for (size_t observer = 0; observer < learner->observers; observer++) {
        if (learner->next_step[observer] != learner->steps)
            return -ERANGE;
    }
    if (learner->mlp != NULL) {
        mlp_backward(learner->mlp, learner->rows, learner->weight, rows);
        mlp_adam(learner->mlp);
    } else {
        policy_backward(&learner->policy, learner->rows, learner->weight, rows, &grad);
        policy_adam(&learner->policy, &grad);
    }
    if (learner->gpu != NULL)
        rc = policy_gpu_write(learner->gpu, &learner->policy);
    begin_episode(learner, learner->episode + 1);
    return rc;
}

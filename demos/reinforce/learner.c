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
    free(learner->mlp_rows);
    free(learner->weight);
    memset(learner, 0, sizeof(*learner));
}

int learner_use_gpu(struct learner *learner, int ordinal)
{
    return policy_gpu_create(ordinal, &learner->policy, LEARNER_ASKS, &learner->gpu);
}

int learner_use_mlp(struct learner *learner, const struct mlp_shape *shape)
{
    size_t rows = learner->steps * learner->observers;

    learner->mlp = mlp_create(shape, learner->seed);
    learner->mlp_rows = calloc(rows, sizeof(*learner->mlp_rows));
    if (learner->mlp == NULL || learner->mlp_rows == NULL)
        return -ENOMEM;
    free(learner->rows);
    learner->rows = NULL;
    return 0;
}

/* Advances the observer by a step; that step's row in the episode, and its key. -ERANGE: there is none. */
static int next_row(struct learner *learner, size_t observer, size_t *row, uint64_t *key)
{
    if (observer >= learner->observers || learner->next_step[observer] >= learner->steps)
        return -ERANGE;

    size_t step = learner->next_step[observer]++;

    *row = step * learner->observers + observer;
    *key = rng_at(learner->episode_key, (uint64_t)step << 8 | observer);
    return 0;
}

/* An ask that has a step left: that step's row, and its key. */
struct due {
    struct learner_ask *ask;
    size_t row;
    uint64_t key;
};

/* One launch. */
static void decide_on_gpu(struct learner *learner, const struct due *due, size_t count)
{
    struct policy_gpu_ask *on_gpu = policy_gpu_asks(learner->gpu);

    _Static_assert(sizeof(struct policy_row) == sizeof(struct policy_gpu_row), "the same members, in other words");
    for (size_t i = 0; i < count; i++) {
        memcpy(on_gpu[i].row.state, due[i].ask->state, sizeof(due[i].ask->state));
        on_gpu[i].row_key = due[i].key;
    }
    int rc = policy_gpu_act(learner->gpu, count);
    for (size_t i = 0; i < count; i++) {
        memcpy(&learner->rows[due[i].row], &on_gpu[i].row, sizeof(on_gpu[i].row));
        due[i].ask->action = rc < 0 ? rc : on_gpu[i].row.action;
    }
}

/* One forward pass. */
static void decide_by_mlp(struct learner *learner, const struct due *due, size_t count)
{
    struct mlp_row *rows[LEARNER_ASKS];

    for (size_t i = 0; i < count; i++) {
        rows[i] = &learner->mlp_rows[due[i].row];
        memcpy(rows[i]->state, due[i].ask->state, sizeof(due[i].ask->state));
        rows[i]->key = due[i].key;
    }
    mlp_act(learner->mlp, rows, count);
    for (size_t i = 0; i < count; i++)
        due[i].ask->action = rows[i]->action;
}

static void decide_each(struct learner *learner, const struct due *due, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct policy_row *row = &learner->rows[due[i].row];

        memcpy(row->state, due[i].ask->state, sizeof(row->state));
        policy_act(&learner->policy, due[i].key, row);
        due[i].ask->action = row->action;
    }
}

void learner_decide(struct learner *learner, struct learner_ask *asks, size_t count)
{
    struct due due[LEARNER_ASKS];
    size_t left = 0;

    for (size_t i = 0; i < count; i++) {
        struct due *next = &due[left];

        asks[i].action = left == LEARNER_ASKS ? -ERANGE
                                              : next_row(learner, asks[i].observer, &next->row, &next->key);
        if (asks[i].action == 0)
            due[left++].ask = &asks[i];
    }
    if (learner->gpu != NULL)
        decide_on_gpu(learner, due, left);
    else if (learner->mlp != NULL)
        decide_by_mlp(learner, due, left);
    else
        decide_each(learner, due, left);
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
        mlp_backward(learner->mlp, learner->mlp_rows, learner->weight, rows);
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

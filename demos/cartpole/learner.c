/* SPDX-License-Identifier: MIT */
/*
 * The agent's side of an episode. Run by the agent: actions and rewards on the thread that makes progress, inside
 * select_action and report_reward; the end of an episode on the main thread, when no observer calls.
 *
 * Returns are discounted for each observer by itself: its last step has the return of its reward alone, whoever comes
 * next. The mean and the deviation are those of all observers' returns together.
 */
#include "learner.h"

#include "demos/common/rng.h"

#include <boxcar.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void begin_episode(struct cp_learner *learner, uint64_t episode)
{
    learner->episode = episode;
    learner->episode_key = rng_at(rng_at(learner->seed, RNG_DRAWS), episode);
    for (size_t i = 0; i < learner->observers; i++)
        learner->tracks[i].actions = learner->tracks[i].rewarded = 0;
}

int cp_learner_init(struct cp_learner *learner, const struct cp_learner_options *options)
{
    memset(learner, 0, sizeof(*learner));
    learner->observers = options->observers;
    learner->gamma = options->gamma;
    learner->seed = options->seed;
    learner->tracks = calloc(options->observers, sizeof(*learner->tracks));
    int rc = learner->tracks == NULL ? -ENOMEM : cp_net_init(&learner->net, options->seed);
    if (rc == 0)
        begin_episode(learner, 0);
    else
        cp_learner_fini(learner);
    return rc;
}

void cp_learner_fini(struct cp_learner *learner)
{
    cp_net_fini(&learner->net);
    free(learner->tracks);
    memset(learner, 0, sizeof(*learner));
}

/* ---- During an episode ------------------------------------------------------------------------------- */

int cp_learner_select_action(struct cp_learner *learner, size_t observer, const float state[POLICY_INPUTS])
{
    if (observer >= learner->observers)
        return bx_fail(-ERANGE, "there is no observer %zu", observer + 1);

    struct cp_track *track = &learner->tracks[observer];

    if (track->rewarded != track->actions)
        return bx_fail(-ERANGE, "observer %zu has not reported the reward of its last step", observer + 1);
    if (track->actions == CARTPOLE_POLE_STEPS)
        return bx_fail(-ERANGE, "observer %zu has had all %d steps", observer + 1, CARTPOLE_POLE_STEPS);

    struct policy_row *row = &track->rows[track->actions];

    memcpy(row->state, state, sizeof(row->state));
    policy_act(&learner->net.policy, rng_at(learner->episode_key, (uint64_t)track->actions << 8 | observer), row);
    track->actions++;
    return row->action;
}

int cp_learner_report_reward(struct cp_learner *learner, size_t observer, float reward)
{
    if (observer >= learner->observers)
        return bx_fail(-ERANGE, "there is no observer %zu", observer + 1);

    struct cp_track *track = &learner->tracks[observer];

    if (track->rewarded == track->actions)
        return bx_fail(-ERANGE, "observer %zu reports a reward without a step", observer + 1);
    track->rewards[track->rewarded++] = reward;
    return 0;
}

/* ---- After it ---------------------------------------------------------------------------------------- */

void cp_discount(const float *rewards, size_t count, double gamma, float *returns)
{
    double sum = 0.0;

    for (size_t i = count; i-- > 0;) {
        sum = rewards[i] + gamma * sum;
        returns[i] = (float)sum;
    }
}

void cp_normalise(struct cp_track *tracks, size_t observers)
{
    double sum = 0.0, squares = 0.0, mean, scale;
    size_t count = 0;

    for (size_t o = 0; o < observers; o++) {
        for (size_t i = 0; i < tracks[o].actions; i++)
            sum += tracks[o].returns[i];
        count += tracks[o].actions;
    }
    mean = sum / (double)count;
    for (size_t o = 0; o < observers; o++)
        for (size_t i = 0; i < tracks[o].actions; i++)
            squares += (tracks[o].returns[i] - mean) * (tracks[o].returns[i] - mean);
    scale = 1.0 / (sqrt(squares / (count > 1 ? (double)(count - 1) : 1.0)) + (double)FLT_EPSILON);
    for (size_t o = 0; o < observers; o++)
        for (size_t i = 0; i < tracks[o].actions; i++)
            tracks[o].returns[i] = (float)((tracks[o].returns[i] - mean) * scale);
}

/* The smallest sum of rewards of an observer. */
static double least_reward(const struct cp_learner *learner)
{
    double least = HUGE_VAL;

    for (size_t o = 0; o < learner->observers; o++) {
        const struct cp_track *track = &learner->tracks[o];
        double sum = 0.0;

        for (size_t i = 0; i < track->rewarded; i++)
            sum += track->rewards[i];
        least = fmin(least, sum);
    }
    return least;
}

static int check_tracks(const struct cp_learner *learner)
{
    for (size_t o = 0; o < learner->observers; o++) {
        const struct cp_track *track = &learner->tracks[o];

        if (track->actions == 0 || track->rewarded != track->actions)
            return bx_fail(-ERANGE, "observer %zu has %zu actions and %zu rewards", o + 1, track->actions,
                           track->rewarded);
    }
    return 0;
}

static int learn(struct cp_learner *learner)
{
    int rc = 0;

    for (size_t o = 0; o < learner->observers; o++) {
        struct cp_track *track = &learner->tracks[o];

        cp_discount(track->rewards, track->actions, learner->gamma, track->returns);
    }
    cp_normalise(learner->tracks, learner->observers);
    /* A pass for each observer: its tensors stay in the core's cache, and the table adds up the gradients. */
    for (size_t o = 0; rc == 0 && o < learner->observers; o++) {
        const struct cp_track *track = &learner->tracks[o];

        rc = cp_net_backward(&learner->net, &(struct cp_rows){ track->rows, track->returns, track->actions });
    }
    return rc == 0 ? cp_net_step(&learner->net) : rc;
}

int cp_learner_finish_episode(struct cp_learner *learner, double *min_reward)
{
    int rc = check_tracks(learner);

    if (rc == 0)
        rc = learn(learner);
    if (rc < 0)
        return rc;
    *min_reward = least_reward(learner);
    learner->running_reward = 0.05 * *min_reward + 0.95 * learner->running_reward;
    for (size_t o = 0; o < learner->observers; o++)
        learner->steps += learner->tracks[o].actions;
    begin_episode(learner, learner->episode + 1);
    return 0;
}

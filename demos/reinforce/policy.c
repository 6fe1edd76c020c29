/* SPDX-License-Identifier: MIT */
/*
 * The network, its gradient, Adam, and an episode's memory. Run by the agent: the forward pass
 * where progress runs (inside select_action and select_action_batch), the update on the main thread
 * between two episodes, when no call can come.
 *
 * Rows are computed one by one by the same code, vectorised over the hidden units, and every sum
 * has its order written down here: so a row's bits do not depend on how many others share its
 * batch, and a run can be repeated to the last digit. A matrix product over all rows at once would
 * be a little faster for large batches, and would choose its order of summation by their size.
 *
 * The gradient recomputes the hidden units from a row's state and mask (48 bytes) instead of
 * keeping their 512 bytes: one multiplication by four inputs costs less than the memory.
 */
#include "policy.h"

#include "demos/common/rng.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LANES 4
#define GROUPS (POLICY_UNITS / LANES)

/* Four units. GNU C vectors: both compilers have them, and the order of operations is ours, not the
 * vectoriser's. aligned(4): parameters lie anywhere. */
typedef float lanes_f32 __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t lanes_i32 __attribute__((vector_size(16), aligned(4), may_alias));

/* Four mask bits as four lanes, all ones where the unit is kept. */
static const int32_t KEEP_LANES[16][LANES] = {
    { 0, 0, 0, 0 },   { -1, 0, 0, 0 },   { 0, -1, 0, 0 },   { -1, -1, 0, 0 },
    { 0, 0, -1, 0 },  { -1, 0, -1, 0 },  { 0, -1, -1, 0 },  { -1, -1, -1, 0 },
    { 0, 0, 0, -1 },  { -1, 0, 0, -1 },  { 0, -1, 0, -1 },  { -1, -1, 0, -1 },
    { 0, 0, -1, -1 }, { -1, 0, -1, -1 }, { 0, -1, -1, -1 }, { -1, -1, -1, -1 },
};

static inline lanes_f32 load(const float *at)
{
    return *(const lanes_f32 *)at;
}

static inline lanes_f32 all(float value)
{
    return (lanes_f32){ value, value, value, value };
}

static inline float lanes_sum(lanes_f32 v)
{
    return (v[0] + v[2]) + (v[1] + v[3]);
}

static inline lanes_i32 keep_lanes(const uint64_t keep[2], size_t group)
{
    uint64_t bits = keep[group / 16] >> (group % 16 * LANES);

    return *(const lanes_i32 *)KEEP_LANES[bits & 15];
}

/* All ones in the lanes of the units that are kept and positive: through them values and gradients
 * pass. Dropout before ReLU and after it are the same, for the scale is positive. */
static inline lanes_i32 passes(lanes_f32 value, lanes_i32 kept)
{
    return (lanes_i32)(value > all(0.0f)) & kept;
}

void policy_set_dropout(struct policy *policy, double rate)
{
    double keep = 1.0 - rate;

    policy->keep_threshold = (uint64_t)llround(keep * 0x1p32);
    policy->keep_scale = (float)(1.0 / keep);
}

void policy_init(struct policy *policy, uint64_t seed)
{
    uint64_t key = rng_at(seed, RNG_WEIGHTS);

    memset(policy, 0, sizeof(*policy));
    for (size_t i = 0; i < POLICY_PARAMS; i++) {
        double bound = 1.0 / sqrt(i < POLICY_W2 ? POLICY_INPUTS : POLICY_UNITS);

        policy->params.v[i] = (float)(bound * (2.0 * rng_unit(rng_at(key, i)) - 1.0));
    }
    policy_set_dropout(policy, POLICY_DROPOUT);
}

/* Each unit compares a uniform number of its own with the threshold, bit by bit from the top, 64
 * units at once; a comparison is decided after two bits on average, so the loop ends after about
 * nine of the 32 (draw 2 * level + word). One draw for each unit would cost three times as much. */
void policy_draw_keep(const struct policy *policy, uint64_t row_key, uint64_t keep[2])
{
    uint64_t threshold = policy->keep_threshold;
    uint64_t undecided[2] = { UINT64_MAX, UINT64_MAX };

    keep[0] = keep[1] = 0;
    if (threshold >> 32 != 0) {
        keep[0] = keep[1] = UINT64_MAX;
        return;
    }
    for (uint64_t level = 0; level < 32 && (undecided[0] | undecided[1]) != 0; level++) {
        uint64_t bit = -(threshold >> (31 - level) & 1);

        for (uint64_t word = 0; word < 2; word++) {
            uint64_t draw = rng_at(row_key, 2 * level + word);

            keep[word] |= undecided[word] & bit & ~draw;
            undecided[word] &= ~(bit ^ draw);
        }
    }
}

/* The hidden units of one group, before ReLU and dropout. */
static inline lanes_f32 first_layer(const float *v, size_t unit, const lanes_f32 x[POLICY_INPUTS])
{
    lanes_f32 sum = load(v + POLICY_B1 + unit);

    for (size_t k = 0; k < POLICY_INPUTS; k++)
        sum += load(v + POLICY_W1 + k * POLICY_UNITS + unit) * x[k];
    return sum;
}

/* The score of action 1 over action 0. */
static float score_difference(const struct policy *policy, const float *state, const uint64_t *keep)
{
    const float *v = policy->params.v;
    lanes_f32 x[POLICY_INPUTS] = { all(state[0]), all(state[1]), all(state[2]), all(state[3]) };
    lanes_f32 sum[POLICY_ACTIONS] = { all(0.0f), all(0.0f) };

    for (size_t group = 0; group < GROUPS; group++) {
        size_t unit = group * LANES;
        lanes_f32 hidden = first_layer(v, unit, x);

        hidden = (lanes_f32)((lanes_i32)hidden & passes(hidden, keep_lanes(keep, group)));
        for (size_t a = 0; a < POLICY_ACTIONS; a++)
            sum[a] += load(v + POLICY_W2 + a * POLICY_UNITS + unit) * hidden;
    }
    return (policy->keep_scale * lanes_sum(sum[1]) + v[POLICY_B2 + 1]) -
           (policy->keep_scale * lanes_sum(sum[0]) + v[POLICY_B2]);
}

/* Softmax over two scores; log_prob may be NULL. */
static void softmax(float difference, float prob[POLICY_ACTIONS], float log_prob[POLICY_ACTIONS])
{
    int likely = difference > 0.0f;
    float ratio = expf(-fabsf(difference));

    prob[likely] = 1.0f / (1.0f + ratio);
    prob[!likely] = ratio / (1.0f + ratio);
    if (log_prob == NULL)
        return;
    log_prob[likely] = -log1pf(ratio);
    log_prob[!likely] = log_prob[likely] - fabsf(difference);
}

void policy_forward(const struct policy *policy, const float state[POLICY_INPUTS],
                    const uint64_t keep[2], float prob[POLICY_ACTIONS])
{
    softmax(score_difference(policy, state, keep), prob, NULL);
}

void policy_act(const struct policy *policy, uint64_t row_key, struct policy_row *row)
{
    float log_prob[POLICY_ACTIONS];

    policy_draw_keep(policy, row_key, row->keep);
    softmax(score_difference(policy, row->state, row->keep), row->prob, log_prob);
    row->action = rng_unit_f32(rng_at(row_key, POLICY_ACTION_DRAW)) >= row->prob[0];
    row->log_prob = log_prob[row->action];
}

struct block {
    const struct policy_row *rows;
    size_t count;
    float slope[POLICY_BLOCK_ROWS];    /* of the loss by the score of action 0; by action 1's: -slope */
};

/* Adds the gradient of a block of rows for the units of one group. Sums of a block stay in
 * registers and keep their small terms, where a single sum over millions of rows would not. */
static void backward_group(const struct policy *policy, const struct block *block, size_t group,
                           struct policy_params *grad)
{
    const float *v = policy->params.v;
    size_t unit = group * LANES;
    lanes_f32 spread = policy->keep_scale *
                       (load(v + POLICY_W2 + unit) - load(v + POLICY_W2 + POLICY_UNITS + unit));
    lanes_f32 bias = all(0.0f), second = all(0.0f);
    lanes_f32 first[POLICY_INPUTS] = { all(0.0f), all(0.0f), all(0.0f), all(0.0f) };

    for (size_t i = 0; i < block->count; i++) {
        const float *s = block->rows[i].state;
        lanes_f32 x[POLICY_INPUTS] = { all(s[0]), all(s[1]), all(s[2]), all(s[3]) };
        lanes_f32 hidden = first_layer(v, unit, x);
        lanes_i32 gate = passes(hidden, keep_lanes(block->rows[i].keep, group));
        lanes_f32 change = (lanes_f32)((lanes_i32)(spread * block->slope[i]) & gate);

        second += (lanes_f32)((lanes_i32)hidden & gate) * block->slope[i];
        bias += change;
        for (size_t k = 0; k < POLICY_INPUTS; k++)
            first[k] += change * x[k];
    }
    second *= policy->keep_scale;
    *(lanes_f32 *)(grad->v + POLICY_B1 + unit) += bias;
    *(lanes_f32 *)(grad->v + POLICY_W2 + unit) += second;
    for (size_t k = 0; k < POLICY_INPUTS; k++)
        *(lanes_f32 *)(grad->v + POLICY_W1 + k * POLICY_UNITS + unit) += first[k];
}

void policy_backward(const struct policy *policy, const struct policy_row *rows,
                     const float *weight, size_t count, struct policy_params *grad)
{
    memset(grad, 0, sizeof(*grad));
    for (size_t done = 0; done < count; done += POLICY_BLOCK_ROWS) {
        struct block block = { .rows = rows + done };
        float sum = 0.0f;

        block.count = count - done < POLICY_BLOCK_ROWS ? count - done : POLICY_BLOCK_ROWS;
        for (size_t i = 0; i < block.count; i++) {
            const struct policy_row *row = &block.rows[i];

            /* d(-log prob)/d(score 0): prob 0 - 1 = -prob 1 if it was taken, prob 0 if not. */
            block.slope[i] = weight[done + i] * (row->action == 0 ? -row->prob[1] : row->prob[0]);
            sum += block.slope[i];
        }
        for (size_t group = 0; group < GROUPS; group++)
            backward_group(policy, &block, group, grad);
        grad->v[POLICY_B2] += sum;
    }
    for (size_t unit = 0; unit < POLICY_UNITS; unit++)
        grad->v[POLICY_W2 + POLICY_UNITS + unit] = -grad->v[POLICY_W2 + unit];
    grad->v[POLICY_B2 + 1] = -grad->v[POLICY_B2];
}

void policy_adam_rates(struct policy *policy, float *rate, float *unbias)
{
    double step = (double)++policy->updates;

    *rate = (float)(POLICY_LEARNING_RATE / (1.0 - pow(0.9, step)));
    *unbias = (float)sqrt(1.0 - pow(0.999, step));
}

void policy_adam(struct policy *policy, const struct policy_params *grad)
{
    float rate, unbias;

    policy_adam_rates(policy, &rate, &unbias);
    for (size_t i = 0; i < POLICY_PARAMS; i++) {
        float g = grad->v[i];
        float mean = 0.9f * policy->mean.v[i] + 0.1f * g;
        float square = 0.999f * policy->square.v[i] + 0.001f * g * g;

        policy->mean.v[i] = mean;
        policy->square.v[i] = square;
        policy->params.v[i] -= rate * mean / (sqrtf(square) / unbias + 1e-8f);
    }
}

/* ---- Learning ----------------------------------------------------------------------------------
 * */

static void begin_episode(struct policy_learner *learner, uint64_t episode)
{
    learner->episode = episode;
    learner->episode_key = rng_at(rng_at(learner->seed, RNG_DRAWS), episode);
    memset(learner->next_step, 0, learner->observers * sizeof(*learner->next_step));
}

int policy_learner_init(struct policy_learner *learner, uint64_t seed, size_t observers,
                        size_t steps)
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
        policy_learner_fini(learner);
        return -ENOMEM;
    }
    policy_init(&learner->policy, seed);
    begin_episode(learner, 0);
    return 0;
}

void policy_learner_fini(struct policy_learner *learner)
{
    policy_gpu_destroy(learner->gpu);
    free(learner->next_step);
    free(learner->rows);
    free(learner->weight);
    memset(learner, 0, sizeof(*learner));
}

int policy_learner_use_gpu(struct policy_learner *learner, int ordinal)
{
    const struct policy_gpu_room room = { .rows = learner->steps * learner->observers, .asks = learner->observers };
    int rc = policy_gpu_create(ordinal, &learner->policy, &room, &learner->gpu);

    if (rc < 0)
        return rc;
    free(learner->rows);
    learner->rows = NULL;
    return 0;
}

/* Which row of the episode's an observer's next decision is, and its key; -ERANGE. */
static int next_row(struct policy_learner *learner, size_t observer, size_t *row, uint64_t *key)
{
    if (observer >= learner->observers || learner->next_step[observer] >= learner->steps)
        return -ERANGE;

    size_t step = learner->next_step[observer]++;

    *row = step * learner->observers + observer;
    *key = rng_at(learner->episode_key, (uint64_t)step << 8 | observer);
    return 0;
}

/* Those that get no answer keep their code; the others are asked all at once. */
static void decide_on_gpu(struct policy_learner *learner, struct policy_ask *asks, size_t count)
{
    struct policy_gpu_ask *on_gpu = policy_gpu_asks(learner->gpu);
    size_t asked = 0;
    int rc;

    for (size_t i = 0; i < count; i++) {
        size_t row = 0;
        uint64_t key = 0;

        asks[i].action = asked < learner->observers ? next_row(learner, asks[i].observer, &row, &key) : -ERANGE;
        if (asks[i].action < 0)
            continue;
        memcpy(on_gpu[asked].state, asks[i].state, sizeof(asks[i].state));
        on_gpu[asked].row = row;
        on_gpu[asked++].row_key = key;
    }
    rc = policy_gpu_act(learner->gpu, asked);
    asked = 0;
    for (size_t i = 0; i < count; i++)
        if (asks[i].action == 0)
            asks[i].action = rc < 0 ? rc : on_gpu[asked++].action;
}

void policy_learner_decide(struct policy_learner *learner, struct policy_ask *asks, size_t count)
{
    if (learner->gpu != NULL) {
        decide_on_gpu(learner, asks, count);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        size_t at = 0;
        uint64_t key = 0;
        struct policy_row *row;

        asks[i].action = next_row(learner, asks[i].observer, &at, &key);
        if (asks[i].action < 0)
            continue;
        row = &learner->rows[at];
        memcpy(row->state, asks[i].state, sizeof(row->state));
        policy_act(&learner->policy, key, row);
        asks[i].action = row->action;
    }
}

int policy_learner_act(struct policy_learner *learner, size_t observer,
                       const float state[POLICY_INPUTS])
{
    struct policy_ask ask = { .observer = observer };

    memcpy(ask.state, state, sizeof(ask.state));
    policy_learner_decide(learner, &ask, 1);
    return ask.action;
}

int policy_learner_returns(struct policy_learner *learner, size_t observer, size_t first_step,
                           const float *returns, size_t count)
{
    if (observer >= learner->observers || first_step > learner->steps ||
        count > learner->steps - first_step)
        return -ERANGE;
    for (size_t i = 0; i < count; i++)
        learner->weight[(first_step + i) * learner->observers + observer] =
            returns[i] / (float)learner->observers;
    return 0;
}

int policy_learner_update(struct policy_learner *learner)
{
    size_t rows = learner->steps * learner->observers;
    struct policy_params grad;
    int rc = 0;

    for (size_t observer = 0; observer < learner->observers; observer++) {
        if (learner->next_step[observer] != learner->steps)
            return -ERANGE;
    }
    if (learner->gpu != NULL) {
        rc = policy_gpu_learn(learner->gpu, &learner->policy, learner->weight, rows);
    } else {
        policy_backward(&learner->policy, learner->rows, learner->weight, rows, &grad);
        policy_adam(&learner->policy, &grad);
    }
    begin_episode(learner, learner->episode + 1);
    return rc;
}

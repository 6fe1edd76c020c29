/* SPDX-License-Identifier: MIT */
/*
 * The network, its gradient and Adam, on the CPU. Run by whichever thread uses the learner (learner.c).
 *
 * Each row is computed by itself with the same code, vectorised over the hidden units, and every sum has a fixed order.
 * So the bits of a row do not depend on how many others share its batch, and a run repeats exactly. A matrix product
 * over all rows would be a little faster for large batches, but its order of summation would depend on their number.
 *
 * The gradient recomputes the hidden units from a row's state and mask (32 bytes) instead of storing their 512 bytes:
 * one multiplication by four inputs costs less than that memory.
 */
#include "policy.h"

#include "demos/common/rng.h"

#include <math.h>
#include <string.h>

#define LANES 4
#define GROUPS (POLICY_UNITS / LANES)

/* Four units. GNU C vectors: both compilers have them, and the order of operations is ours, not the vectoriser's.
 * aligned(4): at any float. */
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

/* All ones in the lanes of the units that are kept and positive: values and gradients pass through these. Dropout
 * before ReLU and after it are the same, because the scale is positive. */
static inline lanes_i32 passes(lanes_f32 value, lanes_i32 kept)
{
    return (lanes_i32)(value > all(0.0f)) & kept;
}

struct policy_dropout policy_dropout(double rate)
{
    double keep = 1.0 - rate;

    return (struct policy_dropout){ .threshold = (uint64_t)llround(keep * 0x1p32), .scale = (float)(1.0 / keep) };
}

void policy_init(struct policy *policy, uint64_t seed)
{
    uint64_t key = rng_at(seed, RNG_WEIGHTS);

    memset(policy, 0, sizeof(*policy));
    for (size_t i = 0; i < POLICY_PARAMS; i++) {
        double bound = 1.0 / sqrt(i < POLICY_W2 ? POLICY_INPUTS : POLICY_UNITS);

        policy->params.v[i] = (float)(bound * (2.0 * rng_unit(rng_at(key, i)) - 1.0));
    }
    policy->dropout = policy_dropout(POLICY_DROPOUT);
}

/* Each unit compares a uniform number of its own with the threshold, bit by bit from the top, 64 units at once (draw
 * 2 * level + word). A comparison is decided after two bits on average, so the loop ends after about nine of the 32
 * levels. One draw for each unit would cost three times as much. */
void policy_draw_keep(struct policy_dropout dropout, uint64_t key, uint64_t keep[2])
{
    uint64_t undecided[2] = { UINT64_MAX, UINT64_MAX };

    keep[0] = keep[1] = 0;
    if (dropout.threshold >> 32 != 0) {
        keep[0] = keep[1] = UINT64_MAX;
        return;
    }
    for (uint64_t level = 0; level < 32 && (undecided[0] | undecided[1]) != 0; level++) {
        uint64_t bit = -(dropout.threshold >> (31 - level) & 1);

        for (uint64_t word = 0; word < 2; word++) {
            uint64_t draw = rng_at(key, 2 * level + word);

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

/* The score of action 1 minus that of action 0. */
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
    return (policy->dropout.scale * lanes_sum(sum[1]) + v[POLICY_B2 + 1]) -
           (policy->dropout.scale * lanes_sum(sum[0]) + v[POLICY_B2]);
}

/* Softmax over two scores. */
int32_t policy_choose(float difference, uint64_t row_key, float prob[POLICY_ACTIONS], float *log_prob)
{
    int likely = difference > 0.0f;
    float ratio = expf(-fabsf(difference)), log_probs[POLICY_ACTIONS];

    prob[likely] = 1.0f / (1.0f + ratio);
    prob[!likely] = ratio / (1.0f + ratio);
    log_probs[likely] = -log1pf(ratio);
    log_probs[!likely] = log_probs[likely] - fabsf(difference);

    int32_t action = rng_unit_f32(rng_at(row_key, POLICY_ACTION_DRAW)) >= prob[0];
    *log_prob = log_probs[action];
    return action;
}

void policy_act(const struct policy *policy, uint64_t row_key, struct policy_row *row)
{
    row->key = row_key;
    policy_draw_keep(policy->dropout, row_key, row->keep);
    row->action = policy_choose(score_difference(policy, row->state, row->keep), row_key, row->prob, &row->log_prob);
}

struct block {
    const struct policy_row *rows;
    size_t count;
    float slope[POLICY_BLOCK_ROWS];    /* d(loss)/d(score of action 0); for action 1: -slope */
};

/* Adds the gradient of a block of rows for the units of one group. The sums of a block stay in registers and keep their
 * small terms; a single sum over millions of rows would lose them. */
static void backward_group(const struct policy *policy, const struct block *block, size_t group,
                           struct policy_params *grad)
{
    const float *v = policy->params.v;
    size_t unit = group * LANES;
    lanes_f32 spread = policy->dropout.scale *
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
    second *= policy->dropout.scale;
    *(lanes_f32 *)(grad->v + POLICY_B1 + unit) += bias;
    *(lanes_f32 *)(grad->v + POLICY_W2 + unit) += second;
    for (size_t k = 0; k < POLICY_INPUTS; k++)
        *(lanes_f32 *)(grad->v + POLICY_W1 + k * POLICY_UNITS + unit) += first[k];
}

/* d(-log prob)/d(score 0): prob 0 - 1 = -prob 1 if action 0 was taken, else prob 0. */
float policy_slope(float weight, int32_t action, const float prob[POLICY_ACTIONS])
{
    return weight * (action == 0 ? -prob[1] : prob[0]);
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
            block.slope[i] = policy_slope(weight[done + i], block.rows[i].action, block.rows[i].prob);
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

void policy_adam_arrays(const struct policy_adam_arrays *arrays, uint64_t *updates)
{
    double step = (double)++*updates;
    float rate = (float)(POLICY_LEARNING_RATE / (1.0 - pow(0.9, step)));
    float unbias = (float)sqrt(1.0 - pow(0.999, step));

    for (size_t i = 0; i < arrays->count; i++) {
        float g = arrays->grad[i];
        float mean = 0.9f * arrays->mean[i] + 0.1f * g;
        float square = 0.999f * arrays->square[i] + 0.001f * g * g;

        arrays->mean[i] = mean;
        arrays->square[i] = square;
        arrays->params[i] -= rate * mean / (sqrtf(square) / unbias + 1e-8f);
    }
}

void policy_adam(struct policy *policy, const struct policy_params *grad)
{
    policy_adam_arrays(&(struct policy_adam_arrays){
        .params = policy->params.v, .mean = policy->mean.v, .square = policy->square.v, .grad = grad->v,
        .count = POLICY_PARAMS,
    }, &policy->updates);
}

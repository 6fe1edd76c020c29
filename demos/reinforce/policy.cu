/* SPDX-License-Identifier: MIT */
/*
 * The policy on a GPU. The kernels compute what policy.c computes, operation by operation and sum by sum in the same
 * order. Compiled without contraction they give the same bits, except in expf and log1pf, which CUDA rounds differently
 * for some arguments. This is text for NVRTC, compiled behind policy_kernels.h; and C for the tests' driver, which
 * defines the macros itself.
 *
 * One thread decides a whole row: 128 units take one thread 2 us, less than a second launch would cost, and rows are
 * few. The gradient has a thread for each unit of each 256 rows; the kernel of Adam adds these up.
 */
#ifndef BXK_KERNEL
#define BXK_KERNEL(name) extern "C" __global__ void name(struct name a)
#define BXK_EACH(i, count)                                                                      \
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < (count); \
         i += gridDim.x * (unsigned long long)blockDim.x)
#define BXK_DEVICE static __device__
#endif

/* rng_at of rng.h. */
BXK_DEVICE unsigned long long policy_draw(unsigned long long key, unsigned long long index)
{
    unsigned long long z = key + (index + 1) * 0x9E3779B97F4A7C15ull;

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

/* policy_draw_keep. */
BXK_DEVICE void policy_keep(unsigned long long threshold, unsigned long long row_key, unsigned long long *keep)
{
    unsigned long long undecided[2] = { ~0ull, ~0ull };

    keep[0] = keep[1] = threshold >> 32 != 0 ? ~0ull : 0;
    if (threshold >> 32 != 0)
        return;
    for (unsigned level = 0; level < 32 && (undecided[0] | undecided[1]) != 0; level++) {
        unsigned long long bit = (threshold >> (31 - level) & 1) != 0 ? ~0ull : 0;

        for (unsigned word = 0; word < 2; word++) {
            unsigned long long draw = policy_draw(row_key, 2 * level + word);

            keep[word] |= undecided[word] & bit & ~draw;
            undecided[word] &= ~(bit ^ draw);
        }
    }
}

/* A hidden unit before ReLU and dropout. */
BXK_DEVICE float policy_hidden(const float *v, unsigned unit, const float *state)
{
    float sum = v[POLICY_B1 + unit];

    for (unsigned k = 0; k < POLICY_INPUTS; k++)
        sum += v[POLICY_W1 + k * POLICY_UNITS + unit] * state[k];
    return sum;
}

BXK_DEVICE int policy_passes(float hidden, const unsigned long long *keep, unsigned unit)
{
    return hidden > 0.0f && (keep[unit / 64] >> unit % 64 & 1) != 0;
}

/* The score of action 1 minus that of action 0: four sums an action, each of every fourth unit. */
BXK_DEVICE float policy_score(const struct policy_gpu_act *a, const struct policy_gpu_row *row)
{
    const float *v = a->params;
    float sum[POLICY_ACTIONS][4] = { { 0.0f, 0.0f, 0.0f, 0.0f }, { 0.0f, 0.0f, 0.0f, 0.0f } };
    float score[POLICY_ACTIONS];

    for (unsigned unit = 0; unit < POLICY_UNITS; unit++) {
        float hidden = policy_hidden(v, unit, row->state);

        hidden = policy_passes(hidden, row->keep, unit) ? hidden : 0.0f;
        for (unsigned k = 0; k < POLICY_ACTIONS; k++)
            sum[k][unit % 4] += v[POLICY_W2 + k * POLICY_UNITS + unit] * hidden;
    }
    for (unsigned k = 0; k < POLICY_ACTIONS; k++)
        score[k] = a->keep_scale * ((sum[k][0] + sum[k][2]) + (sum[k][1] + sum[k][3])) + v[POLICY_B2 + k];
    return score[1] - score[0];
}

BXK_KERNEL(policy_gpu_act)
{
    BXK_EACH(i, a.count) {
        struct policy_gpu_ask *ask = &a.asks[i];
        struct policy_gpu_row row;
        float log_prob[POLICY_ACTIONS], difference, ratio;
        int likely;

        for (unsigned k = 0; k < POLICY_INPUTS; k++)
            row.state[k] = ask->state[k];
        policy_keep(a.keep_threshold, ask->row_key, row.keep);
        difference = policy_score(&a, &row);
        likely = difference > 0.0f;
        ratio = expf(-fabsf(difference));
        row.prob[likely] = 1.0f / (1.0f + ratio);
        row.prob[!likely] = ratio / (1.0f + ratio);
        log_prob[likely] = -log1pf(ratio);
        log_prob[!likely] = log_prob[likely] - fabsf(difference);
        row.action = (float)(policy_draw(ask->row_key, POLICY_ACTION_DRAW) >> 40) * (1.0f / 16777216.0f) >= row.prob[0];
        row.log_prob = log_prob[row.action];
        a.rows[ask->row] = row;
        ask->action = row.action;
    }
}

BXK_KERNEL(policy_gpu_backward)
{
    BXK_EACH(i, a.count) {
        unsigned unit = (unsigned)(i % POLICY_UNITS);
        unsigned long long block = i / POLICY_UNITS, first = block * POLICY_BLOCK_ROWS;
        unsigned long long end = a.row_count - first < POLICY_BLOCK_ROWS ? a.row_count : first + POLICY_BLOCK_ROWS;
        float *to = a.partial + block * POLICY_PARAMS;
        const float *w2 = a.params + POLICY_W2;
        float spread = a.keep_scale * (w2[unit] - w2[POLICY_UNITS + unit]);
        float bias = 0.0f, second = 0.0f, sum = 0.0f, weight[POLICY_INPUTS] = { 0.0f, 0.0f, 0.0f, 0.0f };

        for (unsigned long long r = first; r < end; r++) {
            const struct policy_gpu_row *row = &a.rows[r];
            float slope = a.weight[r] * (row->action == 0 ? -row->prob[1] : row->prob[0]);
            float hidden = policy_hidden(a.params, unit, row->state);
            int passes = policy_passes(hidden, row->keep, unit);
            float change = passes ? spread * slope : 0.0f;

            sum += slope;
            second += (passes ? hidden : 0.0f) * slope;
            bias += change;
            for (unsigned k = 0; k < POLICY_INPUTS; k++)
                weight[k] += change * row->state[k];
        }
        to[POLICY_B1 + unit] = bias;
        to[POLICY_W2 + unit] = second * a.keep_scale;
        for (unsigned k = 0; k < POLICY_INPUTS; k++)
            to[POLICY_W1 + k * POLICY_UNITS + unit] = weight[k];
        if (unit == 0)
            to[POLICY_B2] = sum;
    }
}

BXK_KERNEL(policy_gpu_adam)
{
    BXK_EACH(i, POLICY_PARAMS) {
        /* The gradient of action 1's parameters is that of action 0's with the opposite sign. */
        int is_other = (i >= POLICY_W2 + POLICY_UNITS && i < POLICY_B2) || i == POLICY_B2 + 1;
        unsigned long long from = i == POLICY_B2 + 1 ? POLICY_B2 : is_other ? i - POLICY_UNITS : i;
        float g = 0.0f, mean, square;

        for (unsigned long long block = 0; block < a.blocks; block++)
            g += a.partial[block * POLICY_PARAMS + from];
        g = is_other ? -g : g;
        mean = 0.9f * a.mean[i] + 0.1f * g;
        square = 0.999f * a.square[i] + 0.001f * g * g;
        a.grad[i] = g;
        a.mean[i] = mean;
        a.square[i] = square;
        a.params[i] -= a.rate * mean / (sqrtf(square) / a.unbias + 1e-8f);
    }
}

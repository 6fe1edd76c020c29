/* SPDX-License-Identifier: MIT */
/*
 * The policy's decisions on a GPU. The kernel computes what policy.c computes, operation by operation and sum by sum in
 * the same order. Compiled without contraction it gives the same bits, except in expf and log1pf, which CUDA rounds
 * differently for some arguments. This is text for NVRTC, compiled behind policy_kernels.h; and C for the tests'
 * driver, which defines the macros itself.
 *
 * One thread decides a whole row: 128 units take one thread 2 us, less than a second launch would cost, and rows are
 * few.
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

/* The score of action 1 minus that of action 0: four sums an action, each of every fourth unit. */
BXK_DEVICE float policy_score(const struct policy_gpu_act *a, const struct policy_gpu_row *row)
{
    const float *v = a->params;
    float sum[POLICY_ACTIONS][4] = { { 0.0f, 0.0f, 0.0f, 0.0f }, { 0.0f, 0.0f, 0.0f, 0.0f } };
    float score[POLICY_ACTIONS];

    for (unsigned unit = 0; unit < POLICY_UNITS; unit++) {
        int kept = (row->keep[unit / 64] >> unit % 64 & 1) != 0;
        float hidden = v[POLICY_B1 + unit];

        for (unsigned k = 0; k < POLICY_INPUTS; k++)
            hidden += v[POLICY_W1 + k * POLICY_UNITS + unit] * row->state[k];
        hidden = kept && hidden > 0.0f ? hidden : 0.0f;
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
        struct policy_gpu_row row = a.rows[i];
        float log_prob[POLICY_ACTIONS], difference, ratio;
        int likely;

        policy_keep(a.keep_threshold, row.key, row.keep);
        difference = policy_score(&a, &row);
        likely = difference > 0.0f;
        ratio = expf(-fabsf(difference));
        row.prob[likely] = 1.0f / (1.0f + ratio);
        row.prob[!likely] = ratio / (1.0f + ratio);
        log_prob[likely] = -log1pf(ratio);
        log_prob[!likely] = log_prob[likely] - fabsf(difference);
        row.action = (float)(policy_draw(row.key, POLICY_ACTION_DRAW) >> 40) * (1.0f / 16777216.0f) >= row.prob[0];
        row.log_prob = log_prob[row.action];
        a.rows[i] = row;
    }
}

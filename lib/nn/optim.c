/* SPDX-License-Identifier: MIT */
/*
 * Losses and optimizers: pure functions of their arguments, without oneDNN. Run by any thread.
 *
 * A step of SGD does a handful of operations for each 4 * (grad_count + 4) bytes that it moves, so memory limits its
 * speed. Two things bring it near that limit:
 *  - It writes `to`, when that is another block than `from`, with non-temporal stores. That leaves the caches to data
 *    that is read again, and saves reading the lines first.
 *  - It keeps few streams open at once: the processor's prefetchers follow few of them, and restart in each page. So it
 *    works in blocks that stay in the first-level cache, and adds one gradient after the other to a block's sum.
 *
 * Each operation is rounded to float, in the same order everywhere. This file must be compiled without contraction of
 * a * b + c (-ffp-contract=off), or a processor with fused operations would compute other bits than one without.
 */
#include "boxcar_nn.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <math.h>
#include <stdint.h>

#define LANES 4
#define LINE 16                 /* floats in a cache line */
#define BLOCK 512               /* floats, of which the first-level cache holds several blocks */

/* GNU C vectors, so that every processor runs the same code; aligned(4): at any float. */
typedef float lanes_f32 __attribute__((vector_size(16), aligned(4), may_alias));

static inline lanes_f32 load(const float *at)
{
    return *(const lanes_f32 *)at;
}

/* A non-temporal store; `at` is aligned to 16 bytes. */
static inline void stream(float *at, lanes_f32 value)
{
#ifdef __SSE2__
    _mm_stream_ps(at, value);
#else
    *(lanes_f32 *)at = value;
#endif
}

/* Orders the non-temporal stores before the stores that follow, such as those of a message that lends `to`. */
static inline void end_streams(void)
{
#ifdef __SSE2__
    _mm_sfence();
#endif
}

double bx_mse_loss(const float *output, const float *target, size_t count, float *grad)
{
    double sum = 0.0;

    if (count == 0)
        return 0.0;
    if (output == NULL || target == NULL)
        return NAN;
    for (size_t i = 0; i < count; i++) {
        double difference = (double)output[i] - (double)target[i];

        sum += difference * difference;
        if (grad != NULL)
            grad[i] = (float)(2.0 * difference / (double)count);
    }
    return sum / (double)count;
}

static void add(float *restrict sum, const float *restrict x, const float *restrict y, size_t count)
{
    for (size_t i = 0; i < count; i++)
        sum[i] = x[i] + y[i];
}

static void add_to(float *restrict sum, const float *restrict x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        sum[i] += x[i];
}

/* The mean of several gradients of a block. */
static void mean_block(const struct bx_sgd *step, size_t at, size_t count, float mean[BLOCK])
{
    const float grads = (float)step->grad_count;

    add(mean, step->grads[0] + at, step->grads[1] + at, count);
    for (size_t k = 2; k < step->grad_count; k++)
        add_to(mean, step->grads[k] + at, count);
    for (size_t i = 0; i < count; i++)
        mean[i] /= grads;
}

/* The rest of the formula over `count` elements, given their gradient. */
static void move(const struct bx_sgd *step, size_t at, size_t count, const float *gradient)
{
    for (size_t i = at; i < at + count; i++) {
        float v = step->momentum * step->velocity[i] + gradient[i - at];

        step->velocity[i] = v;
        step->to[i] = step->from[i] - step->lr * v;
    }
}

/* The same for a whole block that begins on a line, past the caches. */
static void move_past_caches(const struct bx_sgd *step, size_t at, const float *gradient)
{
    const lanes_f32 momentum = { step->momentum, step->momentum, step->momentum, step->momentum };
    const lanes_f32 lr = { step->lr, step->lr, step->lr, step->lr };
    const float *from = step->from + at;
    float *to = step->to + at, *velocity = step->velocity + at;

    for (size_t i = 0; i < BLOCK; i += LANES) {
        lanes_f32 v = momentum * load(velocity + i) + load(gradient + i);

        *(lanes_f32 *)(velocity + i) = v;
        stream(to + i, load(from + i) - lr * v);
    }
}

static void step_block(const struct bx_sgd *step, size_t at, size_t count)
{
    float mean[BLOCK];
    const float *gradient = step->grads[0] + at;

    if (step->grad_count > 1) {
        mean_block(step, at, count, mean);
        gradient = mean;
    }
    if (step->to != step->from && count == BLOCK)
        move_past_caches(step, at, gradient);
    else
        move(step, at, count, gradient);
}

/* The elements of `to` before its first whole cache line: a line that is streamed in two parts is written twice. */
static size_t before_line(const struct bx_sgd *step)
{
    size_t past = (uintptr_t)step->to / sizeof(float) % LINE, before = past == 0 ? 0 : LINE - past;

    return before < step->elements ? before : step->elements;
}

void bx_sgd_step(const struct bx_sgd *step)
{
    if (step == NULL || step->from == NULL || step->to == NULL || step->velocity == NULL || step->grads == NULL)
        return;

    size_t count = before_line(step);

    for (size_t at = 0; at < step->elements; at += count, count = BLOCK) {
        if (count > step->elements - at)
            count = step->elements - at;
        step_block(step, at, count);
    }
    end_streams();
}

/* SPDX-License-Identifier: MIT */
/*
 * Losses and optimizers: pure functions of their arguments, without oneDNN. Run by any thread.
 *
 * A step of SGD does a handful of operations for each 4 * (grad_count + 4) bytes that it moves, so memory limits its
 * speed. Three things bring it to that limit:
 *  - It writes `to`, when that is another block than `from`, with non-temporal stores. That leaves the caches to data
 *    that is read again, and saves reading the lines first.
 *  - It keeps few streams open at once. With eight of them (five gradients, from, velocity, to) the obvious loop
 *    reached two thirds of the speed of a copy: the processor's prefetchers follow fewer streams and restart in each
 *    page. So it works in blocks that stay in the first-level cache, and adds two gradients at a time to a block's sum.
 *  - It prefetches the block's part of the next two streams meanwhile, which no hardware prefetcher could predict.
 * One gradient needs none of that.
 *
 * The vector code and the plain loop for the ends do the same operations in the same order, each rounded to float. This
 * file must be compiled without contraction of a * b + c (-ffp-contract=off), or a processor with fused operations
 * would compute other bits than one without.
 */
#include "boxcar_nn.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <math.h>
#include <stdint.h>

#define LANES 4
#define LINE 16                 /* floats in a cache line */
#define BLOCK 512               /* floats; 256 to 512 were measured best, 1024 a twentieth slower */

/* GNU C vectors, so that every processor runs the same code; aligned(4): at any float. */
typedef float lanes_f32 __attribute__((vector_size(16), aligned(4), may_alias));

static inline lanes_f32 load(const float *at)
{
    return *(const lanes_f32 *)at;
}

static inline void store(float *at, lanes_f32 value)
{
    *(lanes_f32 *)at = value;
}

static inline lanes_f32 all(float value)
{
    return (lanes_f32){ value, value, value, value };
}

/* A non-temporal store; `at` is aligned to 16 bytes. */
static inline void stream(float *at, lanes_f32 value)
{
#ifdef __SSE2__
    _mm_stream_ps(at, value);
#else
    store(at, value);
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

static void step_plain(const struct bx_sgd *step, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
        float g = step->grads[0][i];

        for (size_t k = 1; k < step->grad_count; k++)
            g += step->grads[k][i];
        g /= (float)step->grad_count;
        g = step->momentum * step->velocity[i] + g;
        step->velocity[i] = g;
        step->to[i] = step->from[i] - step->lr * g;
    }
}

static inline void fetch(const float *const *streams, size_t count, size_t at)
{
    for (size_t k = 0; k < count; k++)
        __builtin_prefetch(streams[k] + at);
}

/* sum = x + y over a block. */
static void add_one(float *sum, const float *x, const float *y, const float *const next[2])
{
    for (size_t line = 0; line < BLOCK; line += LINE) {
        fetch(next, 2, line);
        for (size_t i = line; i < line + LINE; i += LANES)
            store(sum + i, load(x + i) + load(y + i));
    }
}

/* sum = (x + y) + z over a block. */
static void add_two(float *sum, const float *x, const float *const yz[2], const float *const next[2])
{
    for (size_t line = 0; line < BLOCK; line += LINE) {
        fetch(next, 2, line);
        for (size_t i = line; i < line + LINE; i += LANES)
            store(sum + i, load(x + i) + load(yz[0] + i) + load(yz[1] + i));
    }
}

/* Adds the gradients of a block, at least two, in their order. */
static void add_block(const struct bx_sgd *step, size_t at, float *sum)
{
    const float *x = step->grads[0] + at;
    size_t count = step->grad_count, k = 1;

    while (k < count) {
        size_t after = k + (count - k >= 2 ? 2 : 1);
        const float *streams[4] = { step->grads[k] + at };

        if (after == k + 2)
            streams[1] = step->grads[k + 1] + at;
        streams[2] = (after < count ? step->grads[after] : step->from) + at;
        streams[3] = (after + 1 < count ? step->grads[after + 1] : step->velocity) + at;
        if (after == k + 2)
            add_two(sum, x, streams, streams + 2);
        else
            add_one(sum, x, streams[0], streams + 2);
        x = sum;
        k = after;
    }
}

/* The rest of the formula over a block, given the sum of its gradients. If there are several gradients, prefetches
 * `next`, the streams that the next block begins with. */
static inline __attribute__((always_inline)) void move_block(const struct bx_sgd *step, size_t at,
                                                             const float *sum, const float *const next[3],
                                                             bool past_caches)
{
    lanes_f32 count = all((float)step->grad_count), momentum = all(step->momentum), lr = all(step->lr);
    const float *from = step->from + at;
    float *to = step->to + at, *velocity = step->velocity + at;
    bool several = step->grad_count > 1;

    for (size_t i = 0; i < BLOCK; i += LANES) {
        lanes_f32 g = load(sum + i);

        if (several && i % LINE == 0)
            fetch(next, 3, i);
        if (several)
            g /= count;
        g = momentum * load(velocity + i) + g;
        store(velocity + i, g);
        g = load(from + i) - lr * g;
        if (past_caches)
            stream(to + i, g);
        else
            store(to + i, g);
    }
}

static void step_block(const struct bx_sgd *step, size_t at, bool past_caches)
{
    float sum[BLOCK];
    const float *gradient = step->grads[0] + at;
    size_t ahead = step->elements - at >= 2 * BLOCK ? at + BLOCK : at;
    size_t count = step->grad_count;
    const float *next[3] = { step->grads[0] + ahead, NULL, NULL };

    if (count > 1) {
        next[1] = step->grads[1] + ahead;
        next[2] = (count > 2 ? step->grads[2] : step->from) + ahead;
        add_block(step, at, sum);
        gradient = sum;
    }
    if (past_caches)
        move_block(step, at, gradient, next, true);
    else
        move_block(step, at, gradient, next, false);
}

/* The elements of `to` before its first whole cache line: a line that is streamed in two parts is written twice. */
static size_t before_line(const struct bx_sgd *step)
{
    size_t past = (uintptr_t)step->to / sizeof(float) % LINE;

    return past == 0 ? 0 : LINE - past;
}

void bx_sgd_step(const struct bx_sgd *step)
{
    bool past_caches;
    size_t at;

    if (step == NULL || step->from == NULL || step->to == NULL || step->velocity == NULL || step->grads == NULL)
        return;
    past_caches = step->to != step->from;
    at = before_line(step);
    if (at > step->elements)
        at = step->elements;
    step_plain(step, 0, at);
    for (; step->elements - at >= BLOCK; at += BLOCK)
        step_block(step, at, past_caches);
    step_plain(step, at, step->elements);
    if (past_caches)
        end_streams();
}

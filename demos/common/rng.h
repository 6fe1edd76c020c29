/* SPDX-License-Identifier: MIT */
/*
 * Random numbers as a function of their place and not of time: draw number `index` under `key`.
 *
 * Keys are nested: rng_at(rng_at(seed, RNG_DRAWS), episode) is the key of an episode; one level further are the keys of
 * its rows, and below these the rows' draws. A draw depends on its path alone: no generator has state, and the order in
 * which calls arrive changes nothing. Each level is one step of splitmix64 (Steele, Lea, Flood 2014) from the key. A
 * stateful generator would be a little cheaper, but a run would depend on the order of arrival.
 */
#ifndef DEMOS_RNG_H
#define DEMOS_RNG_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

/* The first level under the seed, one number a use. All programs' uses are listed here, so that none is taken twice. */
enum rng_use {
    RNG_WEIGHTS = 1,    /* the network's first weights */
    RNG_DRAWS = 2,      /* dropout and actions: episode, then step and observer, then draw; or part, then iteration */
    RNG_STARTS = 3,     /* start states: rank, then reset number, then coordinate */
    RNG_IMAGES = 4,     /* images: rank, then batch, then pixel */
    RNG_LABELS = 5,     /* their labels: rank, then image */
    RNG_TOKENS = 6,     /* tokens: batch, then position */
    RNG_TARGETS = 7,    /* their targets: batch, then position */
    RNG_STATES = 8,     /* the first state of an LSTM: h and c, then element */
};

static inline uint64_t rng_at(uint64_t key, uint64_t index)
{
    uint64_t z = key + (index + 1) * UINT64_C(0x9E3779B97F4A7C15);

    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* [0, 1), 53 bits. */
static inline double rng_unit(uint64_t draw)
{
    return (double)(draw >> 11) * 0x1p-53;
}

/* [0, 1), 24 bits: every value is exact in an f32. */
static inline float rng_unit_f32(uint64_t draw)
{
    return (float)(draw >> 40) * 0x1p-24f;
}

/* Draws 0 to count - 1 under the key, uniform in +-bound. */
static inline void rng_fill_uniform(float *to, size_t count, uint64_t key, double bound)
{
    for (size_t i = 0; i < count; i++)
        to[i] = (float)(bound * (2.0 * rng_unit(rng_at(key, i)) - 1.0));
}

/* The same, normal: two numbers from two uniform ones (Box and Muller 1958). If the count is odd, the last one uses the
 * draw after the last. */
static inline void rng_fill_normal(float *to, size_t count, uint64_t key, double deviation)
{
    for (size_t i = 0; i < count; i += 2) {
        double radius = deviation * sqrt(-2.0 * log(1.0 - rng_unit(rng_at(key, i))));
        double angle = 2.0 * M_PI * rng_unit(rng_at(key, i + 1));

        to[i] = (float)(radius * cos(angle));
        if (i + 1 < count)
            to[i + 1] = (float)(radius * sin(angle));
    }
}

#endif

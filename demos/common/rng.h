/* SPDX-License-Identifier: MIT */
/*
 * Random numbers as a function of where they are used, not of when: draw number `index` under
 * `key`.
 *
 * Keys are nested: rng_at(rng_at(seed, RNG_DRAWS), episode) is the key of an episode, one level
 * further lies the key of a row, and below that the row's draws. A draw depends on its path alone,
 * so nobody keeps a generator's state and the order in which calls arrive changes nothing. Each
 * level is one step of splitmix64 (Steele, Lea, Flood 2014) from the key; a stateful generator
 * would be a little cheaper but would make a run depend on who came first.
 */
#ifndef DEMOS_RNG_H
#define DEMOS_RNG_H

#include <stdint.h>

enum rng_use {
    RNG_WEIGHTS = 1,    /* the network's first weights */
    RNG_DRAWS = 2,      /* dropout and actions: episode, then step and observer, then draw */
    RNG_STARTS = 3,     /* start states: rank, then reset number, then coordinate */
    RNG_IMAGES = 4,     /* images: rank, then batch, then pixel */
    RNG_LABELS = 5,     /* what they show: rank, then image */
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

#endif

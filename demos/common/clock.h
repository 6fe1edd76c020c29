/* SPDX-License-Identifier: MIT */
/*
 * Time as CLOCK_MONOTONIC counts it. All processes share that clock: a time that one worker sends can be compared in
 * another.
 */
#ifndef DEMOS_CLOCK_H
#define DEMOS_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static inline double clock_seconds_since(uint64_t start_ns)
{
    return 1e-9 * (double)(clock_now_ns() - start_ns);
}

#endif

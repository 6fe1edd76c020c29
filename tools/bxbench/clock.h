/* SPDX-License-Identifier: MIT */
/*
 * The clock that bxbench measures with.
 */
#ifndef BENCH_CLOCK_H
#define BENCH_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

extern bool bench_clock_is_counter;     /* the processor's counter; else CLOCK_MONOTONIC */

void bench_clock_init(void);
const char *bench_clock_name(void);
double bench_clock_ns_per_tick(void);   /* calibrated from init until now */
double bench_clock_cost_ns(void);       /* of one bench_ticks() */
double bench_clock_step_ticks(void);    /* how far it advances at once: 10 ns on some processors */
uint64_t bench_now_ns(void);            /* CLOCK_MONOTONIC */

/* Read once between two calls, so that each latency contains one read. No fence: its cost would hide a part of the
 * round trip, in the bare echo and in the call alike. */
static inline uint64_t bench_ticks(void)
{
#if defined(__x86_64__)
    if (bench_clock_is_counter)
        return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    if (bench_clock_is_counter) {
        uint64_t ticks;

        __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
        return ticks;
    }
#endif
    return bench_now_ns();
}

static inline uint32_t bench_short_ticks(uint64_t ticks)
{
    return ticks > UINT32_MAX ? UINT32_MAX : (uint32_t)ticks;
}

static inline uint32_t bench_ticks_since(uint64_t before)
{
    return bench_short_ticks(bench_ticks() - before);
}

#endif

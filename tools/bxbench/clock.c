/* SPDX-License-Identifier: MIT */
/*
 * The clock of bxbench.
 *
 * Latencies of single calls are read from the processor's counter, if that runs at a constant rate: the 27 ns of
 * clock_gettime would be a tenth of a latency. The bare echo and the call are read from the same clock. The counter's
 * rate is calibrated against CLOCK_MONOTONIC over the whole run.
 */
#include "clock.h"

#include "bxbench.h"

#include <time.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

bool bench_clock_is_counter;
static uint64_t init_ticks;
static uint64_t init_ns;
static double step_ticks;

uint64_t bench_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* NULL: there is none. */
static const char *steady_counter(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;

    return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & (1u << 8)) != 0 ? "rdtsc" : NULL;
#elif defined(__aarch64__)
    return "cntvct_el0";
#else
    return NULL;
#endif
}

/* The median, not the least: where a hypervisor scales a counter that advances by 26, some steps are 25 and 1. */
static double measure_step(void)
{
    enum { READS = 5000 };
    uint32_t steps[READS];
    size_t count = 0;
    uint64_t last = bench_ticks();

    for (int i = 0; i < READS; i++) {
        uint64_t ticks = bench_ticks();

        if (ticks != last)
            steps[count++] = (uint32_t)(ticks - last);
        last = ticks;
    }
    bench_sort(steps, count);
    return count > 0 ? steps[count / 2] : 1;
}

double bench_clock_step_ticks(void)
{
    return step_ticks;
}

void bench_clock_init(void)
{
    bench_clock_is_counter = steady_counter() != NULL;
    step_ticks = measure_step();
    init_ns = bench_now_ns();
    init_ticks = bench_ticks();
}

const char *bench_clock_name(void)
{
    return bench_clock_is_counter ? steady_counter() : "clock_gettime";
}

double bench_clock_ns_per_tick(void)
{
    while (bench_now_ns() - init_ns < 20000000)
        nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);

    uint64_t ticks = bench_ticks() - init_ticks;

    return (double)(bench_now_ns() - init_ns) / (double)ticks;
}

double bench_clock_cost_ns(void)
{
    enum { READS = 20000 };
    uint64_t before = bench_ticks();
    uint64_t last = before;

    for (int i = 0; i < READS; i++)
        last = bench_ticks();
    return (double)(last - before) * bench_clock_ns_per_tick() / READS;
}

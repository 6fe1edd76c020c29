/* SPDX-License-Identifier: MIT */
/*
 * The clocks of the engine. Any thread.
 */
#include "base.h"

#include <time.h>

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

uint64_t bxi_now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

uint64_t bxi_coarse_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC_COARSE);
}

uint64_t bxi_thread_ns(void)
{
    return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

uint64_t bxi_deadline_ns(uint64_t timeout_ns)
{
    /* A second or more does not need the exact clock, and the coarse one is five times cheaper. */
    uint64_t now = timeout_ns >= 1000000000 ? bxi_coarse_ns() : bxi_now_ns();

    return timeout_ns >= BX_FOREVER - now ? BX_FOREVER : now + timeout_ns;
}

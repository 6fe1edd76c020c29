/* SPDX-License-Identifier: MIT */
/*
 * What the files of the world share: how a function of world.syms begins, and times.
 */
#ifndef TESTS_SIM_WORLD_H
#define TESTS_SIM_WORLD_H

#include "sim.h"

#include <time.h>

#define NS_PER_S UINT64_C(1000000000)
#define PC ((uintptr_t)__builtin_return_address(0))

/* Begins each function here: a point, and a full fence. */
static inline void enter(const char *name, uintptr_t pc)
{
    if (sim_self == NULL)
        return;
    sim_point(name, 0, pc);
    sim_flush(sim_self);
}
#define ENTER() enter(__func__ + 4, PC)

/* Who sleeps on a descriptor looks again. */
static inline void wake_all(void)
{
    sim_changes++;
    sim_next = 1;
}
/* Of a function that may change what a descriptor is ready for. */
#define ENTER_FD() (ENTER(), wake_all())

static inline uint64_t ns_of(const struct timespec *time)
{
    return time == NULL ? SIM_FOREVER : (uint64_t)time->tv_sec * NS_PER_S + (uint64_t)time->tv_nsec;
}

static inline uint64_t until(uint64_t ns)
{
    return ns > SIM_FOREVER - sim_schedule.now_ns ? SIM_FOREVER : sim_schedule.now_ns + ns;
}

long sim_futex(uint32_t *word, int operation, uint32_t value, const struct timespec *time);    /* world_threads.c */
/* world_fail.c. This call of the function fails: errno is set. */
bool sim_fails(const char *name);
void sim_refusals_reset(void);
void sim_threads_reset(void);
void sim_mappings_reset(bool all);      /* world_memory.c */

#endif

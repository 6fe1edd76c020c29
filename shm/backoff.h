/* SPDX-License-Identifier: MIT */
/*
 * How a thread waits for another one that is between two instructions: about to release, to complete, to wake. It
 * yields, so that a thread that was preempted there gets the CPU. A thread with a real-time priority (SCHED_FIFO) that
 * only yields never gives the CPU to one of normal priority; so it sleeps after a while, which lets any thread run.
 * No futex: the other thread would have to look for a waiter on its way, which is a hot path in most of these places.
 */
#ifndef BXI_BACKOFF_H
#define BXI_BACKOFF_H

#include "cancel.h"

#include <sched.h>
#include <stdint.h>
#include <time.h>

#define BXI_BACKOFF_YIELDS 64u      /* some 30 us on an idle CPU: the other thread has run, unless it cannot */
#define BXI_BACKOFF_NS 50000

static inline void bxi_sleep_a_moment(void)
{
    BXI_UNCANCELLED;
    const struct timespec moment = { .tv_nsec = BXI_BACKOFF_NS };

    nanosleep(&moment, NULL);
}

/* One turn of a loop that waits. *turns: 0 before the first. */
static inline void bxi_back_off(uint32_t *turns)
{
    if (*turns >= BXI_BACKOFF_YIELDS) {
        bxi_sleep_a_moment();
        return;
    }
    ++*turns;
    sched_yield();
}

#endif

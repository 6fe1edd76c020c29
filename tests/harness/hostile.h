/* SPDX-License-Identifier: MIT */
/*
 * A worker that writes nonsense into its own segment when the test says so, and is killed at the end.
 *
 *     the hostile worker                      the test's worker
 *     READY    it is served                   waits for READY, prepares its calls
 *     STRIKE   runs strike(job)               strikes_now() returns when strike has returned
 *     FINISHED kills itself                   posts FINISHED
 */
#ifndef TESTS_HOSTILE_H
#define TESTS_HOSTILE_H

#include "harness.h"

#include <signal.h>

enum hostile_gate { READY = 56, STRIKE, STRUCK, FINISHED };

static void (*strike)(struct bx_job *job);

static inline void is_hostile(struct bx_job *job)
{
    harness_post(READY);
    harness_await(STRIKE, 1);
    strike(job);
    harness_post(STRUCK);
    harness_await(FINISHED, 1);
    raise(SIGKILL);
}

static inline void strikes_now(void)
{
    harness_post(STRIKE);
    harness_await(STRUCK, 1);
}

#endif

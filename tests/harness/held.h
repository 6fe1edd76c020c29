/* SPDX-License-Identifier: MIT */
/*
 * A handler that keeps the future of its answer: gate 0 is posted when it has run, gate 1 lets answer_when_told, a body
 * of the same worker, complete the future.
 */
#ifndef TESTS_HELD_H
#define TESTS_HELD_H

#include "harness.h"

static struct bx_future *held;

HARNESS_ASYNC_HANDLER(hold)
{
    held = bx_future_create(bx_request_job(request));
    *reply = bx_future_acquire(held);
    harness_post(0);
    return 0;
}

static inline void answer_when_told(struct bx_job *job)
{
    (void)job;
    harness_await(0, 1);
    harness_await(1, 1);
    HARNESS_EQ(bx_future_set(held, NULL), 0);
    bx_future_release(held);
}

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Shared by the tests of async handlers whose future ends before they complete it. park makes the future, which
 * note_end watches. check_end waits for its end, and checks with which code; the handler could not complete it any
 * more.
 */
#ifndef TESTS_PARKED_FIXTURE_H
#define TESTS_PARKED_FIXTURE_H

#include "tests/harness/harness.h"

enum { ENDED = 40 };                        /* a gate */
enum { CODE = 40, SET_AFTERWARDS };         /* values */

static inline void note_end(struct bx_future *future, void *context)
{
    (void)context;
    harness_store(CODE, (uint64_t)-bx_future_error(future));
    harness_store(SET_AFTERWARDS, (uint64_t)-bx_future_set(future, NULL));
    bx_future_release(future);      /* the reference that the handler acquired */
    harness_post(ENDED);
}

static struct bx_future *parked;             /* the last one */

static inline int park(struct bx_job *job, struct bx_future **reply)
{
    *reply = bx_future_acquire(bx_future_create(job));
    HARNESS_EQ(bx_future_on_done(*reply, note_end, NULL), 0);
    parked = *reply;
    return 0;
}

static inline void check_end(int code)
{
    harness_await(ENDED, 1);
    HARNESS_EQ(harness_load(CODE), -code);
    HARNESS_EQ(harness_load(SET_AFTERWARDS), EALREADY);
}

#endif

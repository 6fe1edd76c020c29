/* SPDX-License-Identifier: MIT */
/*
 * Calls that a handler makes for the request that it answers (nested.c).
 */
#ifndef BXI_NESTED_H
#define BXI_NESTED_H

#include "rpc.h"

/* The request for which this thread runs the program's code: a blocking or async handler, or a callback that was added
 * in one. It holds at its level of bxi_error_enter only: code that the engine runs inside of a wait is not the
 * handler's. */
struct bxi_nesting {
    struct bxi_waiting *request;    /* or NULL */
    uint32_t level;
};
extern _Thread_local struct bxi_nesting bxi_nesting;

/* NULL: this thread runs for no request that is still to be answered. */
static inline struct bxi_waiting *bxi_nested_in(void)
{
    if (__builtin_expect(bxi_nesting.request == NULL, 1) || bxi_nesting.level != bxi_error_level)
        return NULL;
    /* Relaxed: it is answered now or soon. */
    return bxi_load_relaxed(&bxi_nesting.request->gave_up) == BXI_ANSWERED ? NULL : bxi_nesting.request;
}

/* For which a call of this job is made; or NULL. Another job's request has that job's slots and lock. */
static inline struct bxi_waiting *bxi_nested_of(const struct bx_job *job)
{
    struct bxi_waiting *waiting = bxi_nested_in();

    return __builtin_expect(waiting == NULL, 1) || waiting->request.job == job ? waiting : NULL;
}

/* From here on this thread runs for the request, until bxi_nested_leave gets what this returns. Nobody waits for a
 * one-way call: it has no calls. */
static inline struct bxi_nesting bxi_nested_enter(struct bxi_waiting *waiting)
{
    struct bxi_nesting before = bxi_nesting;

    if (waiting != NULL)
        bxi_nesting = (struct bxi_nesting){ waiting->request.oneway ? NULL : waiting, bxi_error_level };
    return before;
}
static inline void bxi_nested_leave(struct bxi_nesting before)
{
    bxi_nesting = before;
}

/* ---- The calls of a request (lock) ------------------------------------------------------------------ */

/* True once its caller has given up. Any thread, also without the lock. */
bool bxi_nested_is_over(struct bxi_waiting *waiting);
/* The same, and its caller was there: it cancelled, or its deadline passed. */
bool bxi_nested_is_cancelled(struct bxi_waiting *waiting);
/* Makes room for one more call of the request. 0, -ENOMEM, or why its caller gave up; with a sentence. */
int bxi_nested_reserve(struct bxi_waiting *waiting);
void bxi_nested_add(struct bxi_waiting *waiting, const struct bxi_call *call);     /* which was sent just now */

/* ---- The end of a request --------------------------------------------------------------------------- */

/* Lock. Its caller gave up with this code: true if that was not known. Then the thread has got a reference, and calls
 * bxi_nested_end, without the lock. */
bool bxi_nested_give_up(struct bxi_waiting *waiting, int code);
/* Lock. The same caller, of a request that makes an object: its object has failed, if it was not made yet, and what
 * waits for it runs. Returns what to pass to bxi_wake behind the lock, or NULL. In object.c. */
const struct bx_rref *bxi_object_given_up(struct bx_job *job, const struct bxi_waiting *waiting, int code);
/* Ends the calls of the request that are still open, and runs its hook; drops the reference. Role. */
void bxi_nested_end(struct bxi_waiting *waiting);
/* The handler has returned: its hook does not run any more, and will not. */
void bxi_hook_end(struct bxi_waiting *waiting);
void bxi_hooks_run(struct bx_job *job);         /* those whose deadline has come; role, without the lock */

/* References to the memory of a request, and to what is in struct bxi_nested. */
struct bxi_waiting *bxi_waiting_acquire(struct bxi_waiting *waiting);      /* NULL is allowed */
void bxi_waiting_release(struct bxi_waiting *waiting);                     /* NULL is allowed */

#endif

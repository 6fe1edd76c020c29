/* SPDX-License-Identifier: MIT */
/*
 * Calls of the program's functions (handlers, batch bodies, callbacks), in which a thread may end (usercall.c).
 */
#ifndef BXI_USERCALL_H
#define BXI_USERCALL_H

#include "base.h"

extern _Thread_local void *bxi_leaving;           /* not NULL: this thread ended in one, and leaves the engine first */

/* Runs fn(context). Its value; or BX_E_HANDLER with a sentence if this thread ended in it: then bxi_leaving is set. */
int bxi_call_user(int (*fn)(void *), void *context);
/* The same for fn(a, b, c, d). fn may take fewer arguments, all pointers, and may return nothing: then the value means
 * nothing. */
typedef void (*bxi_user_fn)(void);
int bxi_call_user_with(const void *a, void *b, void *c, void *d, bxi_user_fn fn);
_Noreturn void bxi_leave_now(void);             /* ends this thread; bxi_leaving is set */

/* Every public function in which a thread may make a pass or complete a future returns through it. No lock is held. */
static inline int bxi_out(int rc)
{
    if (__builtin_expect(bxi_leaving != NULL, 0))
        bxi_leave_now();
    return rc;
}

#endif

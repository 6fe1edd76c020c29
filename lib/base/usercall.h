/* SPDX-License-Identifier: MIT */
/*
 * Calls of the program's functions, in which a thread may leave (usercall.c).
 */
#ifndef BXI_USERCALL_H
#define BXI_USERCALL_H

#include "base.h"

extern BXI_HOT_TLS void *bxi_leaving;           /* this thread left in one, and ends when it is out of the engine */

/* fn(context); BX_E_HANDLER with a sentence if this thread left in it: then bxi_leaving is set. */
int bxi_call_user(int (*fn)(void *), void *context);
/* fn(a, b, c, d), which may take fewer arguments, all pointers; as above. */
typedef void (*bxi_user_fn)(void);
int bxi_call_user_with(const void *a, void *b, void *c, void *d, bxi_user_fn fn);
_Noreturn void bxi_leave_now(void);

/* Ends every public function in which a thread may make a pass or complete a future. No lock is held. */
static inline int bxi_out(int rc)
{
    if (__builtin_expect(bxi_leaving != NULL, 0))
        bxi_leave_now();
    return rc;
}

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Disables the cancellation of this thread: a cancelled thread of the program must not end while it holds the progress
 * role or a lock, or in the middle of a frame. The hot path has no cancellation point (syscall(2) is none), so only
 * code that sleeps, opens or closes something, or runs a hook of the program needs this.
 */
#ifndef BXI_CANCEL_H
#define BXI_CANCEL_H

#include <pthread.h>

static inline int bxi_cancel_off(void)
{
    int before = PTHREAD_CANCEL_ENABLE;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

static inline void bxi_cancel_restore(const int *before)
{
    pthread_setcancelstate(*before, NULL);
}

/* A declaration: disables cancellation from here to the end of the block. */
#define BXI_UNCANCELLED \
    __attribute__((cleanup(bxi_cancel_restore), unused)) int bxi_cancel_before = bxi_cancel_off()

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The lock between threads of one process; never in shared memory.
 */
#ifndef BXI_LOCK_H
#define BXI_LOCK_H

#include "compiler.h"
#include "shm/atomic.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* A futex lock: 0 free, 1 held, 2 held and awaited. Lock and unlock take one locked instruction each and no function
 * call; pthread's take twice that, and each call takes a lock up to three times. lock.c has the slow half. */
struct bxi_lock {
    bxi_a32 word;
#ifdef BXI_LOCK_OWNERS
    _Atomic(pthread_t) owner;
#endif
};
BXI_COLD void bxi_lock_slow(struct bxi_lock *lock);
BXI_COLD void bxi_unlock_slow(struct bxi_lock *lock);

static inline void bxi_lock(struct bxi_lock *lock)
{
    uint32_t free = 0;

    /* [lock] acquire, pairs with the exchange in bxi_unlock. */
    if (!bxi_cas(&lock->word, &free, 1))
        bxi_lock_slow(lock);
#ifdef BXI_LOCK_OWNERS
    bxi_store_relaxed(&lock->owner, pthread_self());    /* relaxed: a thread compares it with itself only */
#endif
}

/* Takes the lock if it is free, and never waits: also for a signal handler. */
static inline bool bxi_try_lock(struct bxi_lock *lock)
{
    uint32_t free = 0;

    /* [lock] acquire, pairs with the exchange in bxi_unlock. */
    if (!bxi_cas(&lock->word, &free, 1))
        return false;
#ifdef BXI_LOCK_OWNERS
    bxi_store_relaxed(&lock->owner, pthread_self());    /* relaxed: as in bxi_lock */
#endif
    return true;
}

static inline void bxi_unlock(struct bxi_lock *lock)
{
#ifdef BXI_LOCK_OWNERS
    bxi_store_relaxed(&lock->owner, 0);                 /* relaxed: as in bxi_lock */
#endif
    /* [lock] release, pairs with the compare-and-swap in bxi_lock. It stays an exchange: on x86 it is the full fence
     * between a frame and bxi_bell_look_unlocked (rpc/bell.c) too. */
    if (bxi_exchange(&lock->word, 0) == 2)
        bxi_unlock_slow(lock);
}

/* For assertions. By this thread, where the build keeps the owners (all but CONFIG=release); else by any. */
static inline bool bxi_lock_is_held(const struct bxi_lock *lock)
{
#ifdef BXI_LOCK_OWNERS
    if (bxi_load_relaxed(&lock->owner) != pthread_self())   /* relaxed: as in bxi_lock */
        return false;
#endif
    return bxi_load_relaxed(&lock->word) != 0;              /* relaxed: the holder's own store */
}

#endif

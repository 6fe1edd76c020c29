/* SPDX-License-Identifier: MIT */
/*
 * The slow half of the futex lock (lock.h): waiting for a held lock, and waking. Any thread. The lock is held for tens
 * of nanoseconds, so a short spin usually gets it. A thread that sleeps leaves 2 in the word, so that the holder wakes
 * it. FUTEX_PRIVATE: the lock is never in shared memory.
 */
#include "base.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPINS 100               /* 1 us: whoever holds it longer has lost its CPU */

void bxi_lock_slow(struct bxi_lock *lock)
{
    for (int spins = 0; spins < SPINS; spins++) {
        uint32_t free = 0;

        bxi_pause();
        /* [lock] acquire, pairs with the exchange in bxi_unlock. */
        if (bxi_load_relaxed(&lock->word) == 0 && bxi_cas(&lock->word, &free, 1))
            return;
    }
    /* [lock] acquire, pairs with the exchange in bxi_unlock; 2 stays in the word while a thread may sleep. */
    while (bxi_exchange(&lock->word, 2) != 0)
        syscall(SYS_futex, &lock->word, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

void bxi_unlock_slow(struct bxi_lock *lock)
{
    syscall(SYS_futex, &lock->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

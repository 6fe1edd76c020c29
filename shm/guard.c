/* SPDX-License-Identifier: MIT */
/*
 * Survives a truncated segment: a chained SIGBUS handler over a table of guarded ranges.
 *
 * Who runs it: bxi_guard_add and bxi_guard_drop run in whichever thread maps or unmaps a segment,
 * one at a time under a private mutex. The handler runs in any thread, in several at once, between
 * any two instructions; so it takes no lock, calls no function of the C library but mmap and the
 * signal calls, and reads the table through atomics alone.
 *
 * How it works: a slot is free while its base is 0. add writes the other words of the slot, then
 * the base; drop writes 0 over the base. The handler reads base, then the rest, then the base once
 * more, so a slot that changed hands under it is passed over. The range that a thread faults in
 * cannot change: it is dropped before it is unmapped, and nobody reads a range that he is dropping.
 *
 * Two threads that fault in one range both map zero pages over it, which is the same as one doing
 * so: a store to the zero pages of one's own segment may be lost, but that segment is lost already.
 *
 * Why not check the file's size before each look: the file can shrink between the check and the
 * look, and fstat costs more than the look. Why not siglongjmp out of the fault: the reader would
 * leave its locks and its half-moved positions behind; with zeroes it simply finds nothing.
 *
 * Nothing of this lies in shared memory, so there is nothing left after a kill.
 */
#include "guard.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#define RANGES 1024

struct range {
    bxi_a64 base;                   /* 0: free */
    bxi_a64 bytes;
    bxi_a64 writable;
    _Atomic(bxi_a32 *) truncated;
};

static struct range ranges[RANGES];
static pthread_mutex_t ranges_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction old_action;
static bool is_installed;

/* Maps zero pages over the guarded range that holds `address`; false if there is none. */
static bool cover(uint64_t address)
{
    for (int i = 0; i < RANGES; i++) {
        struct range *range = &ranges[i];

        /* [guard.base] acquire, pairs with the release in bxi_guard_add: without it the words below
         * could be those of the slot's last tenant. */
        uint64_t base = bxi_load_acquire(&range->base);
        if (base == 0 || address < base)
            continue;
        /* [guard.rest] acquire three times, so that the base is read again after them; they pair
         * with the releases in bxi_guard_add, which come after the 0 of bxi_guard_drop. */
        uint64_t bytes = bxi_load_acquire(&range->bytes);
        uint64_t writable = bxi_load_acquire(&range->writable);
        bxi_a32 *truncated = bxi_load_acquire(&range->truncated);
        /* [guard.base] relaxed: the acquires above hold it behind them. */
        if (bxi_load_relaxed(&range->base) != base || address - base >= bytes)
            continue;

        /* [guard.truncated] relaxed, and before the zeroes: the system call orders them, so that a
         * thread that reads zeroes and then the flag knows them for what they are. */
        bxi_store_relaxed(truncated, 1);
        int prot = writable ? PROT_READ | PROT_WRITE : PROT_READ;
        /* NORESERVE: an arena is far larger than the memory that could be promised for it. */
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
        return mmap((void *)(uintptr_t)base, bytes, prot, flags, -1, 0) != MAP_FAILED;
    }
    return false;
}

/* What would have happened without us. */
static void chain(int signal_number, siginfo_t *info, void *context)
{
    if (old_action.sa_flags & SA_SIGINFO) {
        old_action.sa_sigaction(signal_number, info, context);
        return;
    }
    bool is_fault = info->si_code > 0;
    if (old_action.sa_handler == SIG_IGN && !is_fault)
        return;
    if (old_action.sa_handler != SIG_DFL && old_action.sa_handler != SIG_IGN) {
        old_action.sa_handler(signal_number);
        return;
    }
    /* The access faults again on return, and then it ends the process as it would have. A signal
     * that somebody sent does not come again by itself: it is blocked here, so raise leaves it
     * pending. */
    struct sigaction fallback = { .sa_handler = SIG_DFL };
    sigemptyset(&fallback.sa_mask);
    sigaction(signal_number, &fallback, NULL);
    if (!is_fault)
        raise(signal_number);
}

static void on_sigbus(int signal_number, siginfo_t *info, void *context)
{
    int saved_errno = errno;

    /* BUS_ADRERR alone: memory that the hardware lost (BUS_MCEERR_AR) is not for us to hide. */
    if (info->si_code != BUS_ADRERR || !cover((uint64_t)(uintptr_t)info->si_addr))
        chain(signal_number, info, context);
    errno = saved_errno;
}

/* Under ranges_lock. The old action is read before ours is installed: a fault may come in
 * between. */
static int install(void)
{
    struct sigaction action = { .sa_flags = SA_SIGINFO | SA_ONSTACK };

    if (is_installed)
        return 0;
    action.sa_sigaction = on_sigbus;
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, NULL, &old_action) < 0 || sigaction(SIGBUS, &action, NULL) < 0)
        return -errno;
    is_installed = true;
    return 0;
}

int bxi_guard_add(void *base, size_t bytes, bool writable, bxi_a32 *truncated)
{
    pthread_mutex_lock(&ranges_lock);
    int rc = install();
    if (rc < 0)
        goto unlock;
    rc = -ENOSPC;
    for (int i = 0; i < RANGES; i++) {
        struct range *range = &ranges[i];

        /* [guard.base] relaxed: written under the lock that is held here. */
        if (bxi_load_relaxed(&range->base) != 0)
            continue;
        /* [guard.rest] release three times, pairs with the acquires in cover: who reads one of
         * these also reads the 0 that the last tenant left in base, or a later base. */
        bxi_store_release(&range->bytes, bytes);
        bxi_store_release(&range->writable, writable);
        bxi_store_release(&range->truncated, truncated);
        /* [guard.base] release, pairs with the acquire in cover: without it the handler could
         * use an old size or flag. */
        bxi_store_release(&range->base, (uint64_t)(uintptr_t)base);
        rc = 0;
        break;
    }
unlock:
    pthread_mutex_unlock(&ranges_lock);
    return rc;
}

void bxi_guard_drop(void *base)
{
    pthread_mutex_lock(&ranges_lock);
    for (int i = 0; i < RANGES; i++) {
        /* [guard.base] relaxed: written under the lock that is held here. */
        if (bxi_load_relaxed(&ranges[i].base) != (uint64_t)(uintptr_t)base)
            continue;
        /* [guard.base] relaxed: the releases of the slot's next tenant hold it before them. */
        bxi_store_relaxed(&ranges[i].base, 0);
        break;
    }
    pthread_mutex_unlock(&ranges_lock);
}

/* SPDX-License-Identifier: MIT */
/*
 * Survives a truncated segment: a chained SIGBUS handler over a table of guarded ranges.
 *
 * Who runs it: the thread that maps or unmaps a segment runs bxi_guard_add and bxi_guard_drop, under a private mutex.
 * The handler runs in any thread, in several at once, between any two instructions. So it takes no lock, calls no
 * function of the C library but mmap and the signal calls, and reads the table only through atomics.
 *
 * How it works: a slot is free while its base is 0. add stores the other words of the slot, then the base; drop
 * stores 0 in the base. The handler loads the base, the other words and the base again, and skips a slot whose base
 * has changed. The range in which a thread faults cannot change: it is dropped before it is unmapped, and no thread
 * reads a range while it is dropped.
 *
 * Two threads that fault in one range both map zero pages over it, with the same result. A store to the zero pages of
 * the own segment may be lost then, but that segment is lost already.
 *
 * Why not check the file's size before each read: the file can shrink between the check and the read, and fstat costs
 * more than the read. Why not siglongjmp out of the fault: the reader would leave locks held and positions half
 * updated; with zeroes it finds no record and goes on.
 *
 * Nothing here is in shared memory, so a kill leaves nothing behind.
 */
#include "guard.h"

#include <errno.h>
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

        /* [guard.base] acquire, pairs with the release in bxi_guard_add: without it the words below could belong to
         * the slot's previous range. */
        uint64_t base = bxi_load_acquire(&range->base);
        if (base == 0 || address < base)
            continue;
        /* [guard.rest] acquire three times, so that the base is reread after them; they pair with the releases in
         * bxi_guard_add, which come after the 0 of bxi_guard_drop. */
        uint64_t bytes = bxi_load_acquire(&range->bytes);
        uint64_t writable = bxi_load_acquire(&range->writable);
        bxi_a32 *truncated = bxi_load_acquire(&range->truncated);
        /* [guard.base] relaxed: the acquires above come before it. */
        if (bxi_load_relaxed(&range->base) != base || address - base >= bytes)
            continue;

        /* [guard.truncated] relaxed, and set before the zeroes: the system call orders them, so a thread that has
         * read the zeroes reads the flag as 1. */
        bxi_store_relaxed(truncated, 1);
        int prot = writable ? PROT_READ | PROT_WRITE : PROT_READ;
        /* NORESERVE: an arena is far larger than the memory that the kernel could reserve for it. */
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
        return mmap((void *)(uintptr_t)base, bytes, prot, flags, -1, 0) != MAP_FAILED;
    }
    return false;
}

/* Does what would have happened without this handler. */
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
    /* A faulting access faults again on return, and then ends the process. A signal that was sent does not come
     * again: raise it. The signal is blocked in here, so it stays pending until the return. */
    struct sigaction fallback = { .sa_handler = SIG_DFL };
    sigemptyset(&fallback.sa_mask);
    sigaction(signal_number, &fallback, NULL);
    if (!is_fault)
        raise(signal_number);
}

static void on_sigbus(int signal_number, siginfo_t *info, void *context)
{
    int saved_errno = errno;

    /* Only BUS_ADRERR: this must not hide a memory error of the hardware (BUS_MCEERR_AR). */
    if (info->si_code != BUS_ADRERR || !cover((uint64_t)(uintptr_t)info->si_addr))
        chain(signal_number, info, context);
    errno = saved_errno;
}

/* Under ranges_lock. Reads the old action before it installs the handler, because a fault may come in between. */
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
        /* [guard.rest] release three times, pairs with the acquires in cover: a handler that reads one of these words
         * then reads as base the 0 of bxi_guard_drop, or a later base. */
        bxi_store_release(&range->bytes, bytes);
        bxi_store_release(&range->writable, writable);
        bxi_store_release(&range->truncated, truncated);
        /* [guard.base] release, pairs with the acquire in cover: without it the handler could use an old size or
         * flag. */
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
        /* [guard.base] relaxed: the releases of the slot's next bxi_guard_add come after it. */
        bxi_store_relaxed(&ranges[i].base, 0);
        break;
    }
    pthread_mutex_unlock(&ranges_lock);
}

int bxi_thread_create(pthread_t *thread, void *(*work)(void *), void *argument)
{
    sigset_t blocked, before;
    int rc;

    /* All but those that a fault raises: blocked, a SIGBUS in a truncated segment would end the process. */
    sigfillset(&blocked);
    sigdelset(&blocked, SIGBUS);
    sigdelset(&blocked, SIGSEGV);
    sigdelset(&blocked, SIGFPE);
    sigdelset(&blocked, SIGILL);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    rc = pthread_create(thread, NULL, work, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

/* SPDX-License-Identifier: MIT */
/*
 * The only header that includes stdatomic.h. Every access to shared memory uses one of these names; the comment
 * above it names its partner ([ring.commit], [bell.armed], ...).
 */
#ifndef BXI_ATOMIC_H
#define BXI_ATOMIC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef _Atomic uint64_t bxi_a64;
typedef _Atomic uint32_t bxi_a32;

#define bxi_load_relaxed(p) atomic_load_explicit((p), memory_order_relaxed)
#define bxi_load_acquire(p) atomic_load_explicit((p), memory_order_acquire)
#define bxi_load_seq_cst(p) atomic_load_explicit((p), memory_order_seq_cst)
#define bxi_store_relaxed(p, v) atomic_store_explicit((p), (v), memory_order_relaxed)
#define bxi_store_release(p, v) atomic_store_explicit((p), (v), memory_order_release)
#define bxi_exchange(p, v) atomic_exchange_explicit((p), (v), memory_order_acq_rel)
#define bxi_add(p, v) atomic_fetch_add_explicit((p), (v), memory_order_acq_rel)
#define bxi_add_seq_cst(p, v) atomic_fetch_add_explicit((p), (v), memory_order_seq_cst)
#define bxi_cas(p, expected, v)                                                                     \
    atomic_compare_exchange_strong_explicit((p), (expected), (v), memory_order_acq_rel,            \
                                            memory_order_acquire)

/* The full fence of the Dekker pairs: publish, fence, load / arm, fence, recheck. ThreadSanitizer does not know
 * fences, so there it is a read-modify-write on one word, which orders at least as much. */
static inline void bxi_fence_seq_cst(void)
{
#if defined(__SANITIZE_THREAD__)
    static bxi_a32 fence_word;
    atomic_fetch_add_explicit(&fence_word, 1, memory_order_seq_cst);
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

/* The same behind an exchange of this thread, which is a full fence itself on x86. */
static inline void bxi_fence_seq_cst_behind_exchange(void)
{
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
    atomic_signal_fence(memory_order_seq_cst);
#else
    bxi_fence_seq_cst();
#endif
}

/* Adds to a counter that has one writer at a time (by a lock or the role) and any number of readers: it needs no
 * read-modify-write. Relaxed: a reader wants a recent value, not an order. */
__attribute__((always_inline)) static inline void bxi_count(bxi_a64 *counter, uint64_t n)
{
    bxi_store_relaxed(counter, bxi_load_relaxed(counter) + n);
}

/* The pause instruction of a spin loop. */
static inline void bxi_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Begins to fetch a line that this core will soon write, out of the cache of the core that has it. Nothing waits for
 * it. __builtin_prefetch(p, 1) would only fetch it for reading, unless the compiler is told that the processor has
 * prefetchw. All x86-64 processors take it, the oldest of Intel's as a nop. */
static inline void bxi_prefetch_for_write(const void *address)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)address));
#else
    __builtin_prefetch(address, 1);
#endif
}

/* What happens before a frame is sent also happens before its reply is read, through another process. ThreadSanitizer
 * sees only this process and would report a race. So for it every send happens before every later receive. */
#if defined(__SANITIZE_THREAD__)
void __tsan_acquire(void *address);
void __tsan_release(void *address);
extern char bxi_elsewhere;
#define bxi_order_sent() __tsan_release(&bxi_elsewhere)
#define bxi_order_received() __tsan_acquire(&bxi_elsewhere)
#else
#define bxi_order_sent() ((void)0)
#define bxi_order_received() ((void)0)
#endif

#endif

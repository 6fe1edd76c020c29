/* SPDX-License-Identifier: MIT */
/*
 * Comes before each file of the library with CONFIG=sim. The simulator's fences are fences, so the library is not told
 * of the sanitizer, for which it has other ones; and they are called by name: of the compiler's own function it warns
 * that its sanitizer does not know them.
 */
#undef __SANITIZE_THREAD__
#define __atomic_thread_fence __tsan_atomic_thread_fence
/* What an exchange of x86 makes needless, another processor has to do (bxi_fence_seq_cst_behind_exchange). */
#define __atomic_signal_fence __tsan_atomic_thread_fence
void __tsan_atomic_thread_fence(int order);

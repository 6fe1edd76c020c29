/* SPDX-License-Identifier: MIT */
/*
 * Blocks of memory that belong to a thread: made when it first asks, zero at first, freed when it ends.
 *
 * For what is too large to be a _Thread_local variable. All those of the library lie in static thread-local storage
 * (-ftls-model=initial-exec), where no function call is needed to find them. glibc has about 1.5 KB of that for
 * everything that a process loads by dlopen, and refuses a library for which too little is left. tests/e2e/dlopen.sh
 * bounds what is used.
 */
#ifndef BXI_OWN_H
#define BXI_OWN_H

#include <stddef.h>

enum bxi_own {
    BXI_OWN_TEXTS,      /* lib/base/error.c */
    BXI_OWN_GPU_TEXT,   /* gpu/cuda_load.c */
    BXI_OWN_GPU_MODE,   /* gpu/context.c */
    BXI_OWN_RANK,       /* lib/rpc/names.c */
    BXI_OWN_COUNT
};

/* This thread's block, or NULL if it has not been made. */
void *bxi_own_find(enum bxi_own which);
/* This thread's block, which it makes if there is none. NULL: no memory, or no key is left (PTHREAD_KEYS_MAX). */
void *bxi_own_make(enum bxi_own which, size_t bytes);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Survives a truncated segment: an access to a page behind the new end of the file raises SIGBUS.
 *
 * The process has one SIGBUS handler, installed with the first guard. A fault outside all guarded ranges goes to the
 * handler that was there before. For a fault inside a range it sets the range's flag and maps zero pages over the
 * whole range, so the faulting access reads zeroes (an empty ring, an armed word of 0). The next pass reads the flag
 * and closes that peer. mmap is one system call and takes no lock of this process.
 */
#ifndef BXI_GUARD_H
#define BXI_GUARD_H

#include "atomic.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

/* Guards [base, base + bytes). writable: the zero pages are writable (the worker's own segment). The handler sets
 * *truncated to 1; it must exist until drop. 0, -ENOSPC (1024 ranges), -errno. */
int bxi_guard_add(void *base, size_t bytes, bool writable, bxi_a32 *truncated);

/* Ends the guard. Call it before unmapping the range. */
void bxi_guard_drop(void *base);

/* A thread of the library: its signals are the program's, so it blocks all but those that a fault raises. 0, or the
 * positive errno of pthread_create. */
int bxi_thread_create(pthread_t *thread, void *(*work)(void *), void *argument);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Survives a truncated segment: touching a page behind the new end of the file raises SIGBUS.
 *
 * One handler for the process, installed with the first guard, chained: a fault outside guarded ranges
 * goes to whoever handled SIGBUS before. Inside, it maps zero pages over the whole range, which makes
 * the faulting access see zeroes (an empty ring, an armed word 0), and raises the range's flag; the next
 * pass reads the flag and closes that peer. mmap is one system call and touches no lock of this process.
 */
#ifndef BXI_GUARD_H
#define BXI_GUARD_H

#include "atomic.h"

#include <stdbool.h>
#include <stddef.h>

/* Guards [base, base + bytes). writable: zero pages that may be written (one's own segment). *truncated
 * becomes 1 when the handler had to act; it must live until drop. 0, -ENOSPC (1024 ranges), -errno. */
int bxi_guard_add(void *base, size_t bytes, bool writable, bxi_a32 *truncated);

/* Stops guarding, to be called before the range is unmapped. */
void bxi_guard_drop(void *base);

#endif

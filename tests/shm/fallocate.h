/* SPDX-License-Identifier: MIT */
/*
 * fallocate(2) of the program of the unit tests, which a test may make fail. Each test has its own process; all is
 * zero at first: nothing fails.
 */
#ifndef TESTS_FALLOCATE_H
#define TESTS_FALLOCATE_H

#include "shm/atomic.h"

#include <stdbool.h>
#include <sys/types.h>

struct fake_fallocate {
    bool has_none;                  /* a file system without it */
    int interruptions;              /* by a signal, still to happen */
    off_t interrupts_above;         /* bytes: larger allocations do not end before the next signal; 0: all do */
    int fail_with;                  /* an errno, for allocations */
    int fail_after;                 /* allocations that still succeed */
    int fail_punches_with;
    bxi_a32 allocations, punches;   /* calls: other tests make them from several threads */
};
extern struct fake_fallocate fake_fallocate;

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Processes that a test started end with the test, even stopped ones; see keeper.c. Every Criterion test has a keeper.
 */
#ifndef TESTS_KEEPER_H
#define TESTS_KEEPER_H

#include "test.h"

/* Makes this process the leader of a process group whose other members end soon after it. Returns 0, or -1. */
int keeper_start(void);

#endif

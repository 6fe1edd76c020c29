/* SPDX-License-Identifier: MIT */
/*
 * Lets single allocations fail, in the library and in the tests, not in the C library: the linker replaces the
 * allocating functions (Makefile).
 */
#ifndef TESTS_MEMORY_H
#define TESTS_MEMORY_H

#include "test.h"

/* So many allocations of this thread later one fails; 0: none. */
extern _Thread_local int memory_fails_in;
/* The same for all threads of this process, in one of the harness's values, which other workers may set; -1: none. */
extern int memory_fails_value;

#endif

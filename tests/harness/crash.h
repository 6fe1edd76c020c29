/* SPDX-License-Identifier: MIT */
/*
 * A process that a signal ends says first which signal, who sent it and where the process was; see crash.c. Each
 * Criterion test does, and the processes that it forks.
 */
#ifndef TESTS_CRASH_H
#define TESTS_CRASH_H

#include <sys/wait.h>

/* How a child ended whose wait status this is. The text is valid until the next call. */
const char *crash_end_text(int status);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * What a test leaves running dies with it, stopped or not; see keeper.c. Every Criterion test has a keeper.
 */
#ifndef TESTS_KEEPER_H
#define TESTS_KEEPER_H

/* Makes this process the leader of a process group, whose other members end soon after it does. 0, or -1. */
int keeper_start(void);

#endif

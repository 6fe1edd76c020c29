/* SPDX-License-Identifier: MIT */
/*
 * What the tests of shmstat check share: planted jobs in which one invariant is broken, and those that are fine.
 */
#ifndef TESTS_STAT_CHECK_H
#define TESTS_STAT_CHECK_H

#include "stat_plant.h"
#include "stat_run.h"

struct check_wrong {
    const char *what;
    const char *invariant;          /* "I7" */
    void (*spoil)(void);            /* NULL: it is one word of a rank's segment */
    int rank;
    size_t offset, bytes;
    uint64_t value;
};

#define WORD_IS(of_rank, table, member, becomes)                                                        \
    .rank = (of_rank), .offset = offsetof(struct bxi_##table, member),                                 \
    .bytes = sizeof(((struct bxi_##table *)0)->member), .value = (becomes)

/* A word that goes back and forth. */
struct check_change {
    const char *what;
    const char *invariant;
    void (*turn)(int up);
};

/* Each of them, in a job made for it, of living or of killed workers, is found with its number, before any other. */
void check_each(struct plant *plant, void (*make)(void), const struct check_wrong *wrongs, size_t count, bool alive);
/* While the word turns, nothing else is found, and in the end that. */
void check_changes(struct plant *plant, void (*make)(void), const struct check_change *changes, size_t count);
void check_is_fine(const struct plant *plant, const char *what);

#endif

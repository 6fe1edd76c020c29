/* SPDX-License-Identifier: MIT */
/*
 * What the tests of shmstat check share: planted jobs in which one invariant is broken, and those that are fine.
 */
#ifndef TESTS_STAT_CHECK_H
#define TESTS_STAT_CHECK_H

#include "stat_plant.h"
#include "stat_run.h"

struct check_wrong {
    const char *invariant;          /* "I7" */
    const char *what;
    void (*spoil)(void);
};
/* Of lists of {invariant, what is wrong, the change that makes it so}: the functions, and the rows. */
#define CHECK_SPOILS(invariant, what, ...) \
    static void spoil_##what(void) \
    { \
        __VA_ARGS__; \
    }
#define CHECK_WRONG(invariant, what, ...) { #invariant, #what, spoil_##what },

/* A word that goes back and forth. */
struct check_change {
    const char *invariant;
    const char *what;
    void (*turn)(int up);
};
#define CHECK_TURNS(invariant, what, ...) \
    static void turn_##what(int up) \
    { \
        __VA_ARGS__; \
    }
#define CHECK_CHANGE(invariant, what, ...) { #invariant, #what, turn_##what },

/* Each of them, in a job made for it in the place of the one that is there, of living or of killed workers, is found
 * with its number, before any other. */
void check_each(void (*make)(void), const struct check_wrong *wrongs, size_t count, bool alive);
/* While the word turns, nothing else is found, and in the end that. */
void check_changes(void (*make)(void), const struct check_change *changes, size_t count);
void check_is_fine(const char *what);

#endif

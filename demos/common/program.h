/* SPDX-License-Identifier: MIT */
/*
 * The first process of a program, which joins no job: it reads the flags, opens the files for the results before any
 * work starts, runs the job, and prints and writes the results.
 *
 * The workers write their results to memory that is mapped before the fork: stdout is for people, and a pipe would have
 * to be read while waiting. The first process reads that memory after their end, so accesses need no order.
 */
#ifndef DEMOS_PROGRAM_H
#define DEMOS_PROGRAM_H

#include "flags.h"
#include "json.h"
#include "plot.h"

#include <stdbool.h>

/* Exit statuses; --help lists them. */
enum {
    PROGRAM_OK = 0,
    PROGRAM_FAILED = 1,     /* a file, memory or the plot */
    PROGRAM_USAGE = 2,
    PROGRAM_WORKER = 3,     /* a worker died or failed */
};

struct program {
    struct flags flags;
    const char *const *json, *const *plot;      /* the values of these flags; NULL: there is no such flag */
    /* What the table of flags does not check; may be NULL. 0, or -1 after a sentence. */
    int (*check)(const struct flags *flags);
    size_t (*result_bytes)(void);
    int (*run)(void *result);                   /* the job; an exit status */
    /* There are results although run failed; may be NULL. */
    bool (*is_complete)(const void *result);
    void (*print)(const void *result);          /* may be NULL */
    void (*write_json)(struct json *json, const void *result);      /* after the flags */
    struct plot (*figure)(const void *result);
};

/* All of main(). */
int program_main(const struct program *program, int argc, char **argv);

/* A worker runs in this process: one that was forked, or one that mpirun, say, has started. */
void program_runs_worker(void);
/* In the first process after the job: its own worker left no results, another process that was started like it has
 * them. */
bool program_has_none(const void *result, size_t bytes);

/* Zeros in memory that workers share with this process; NULL after a sentence on stderr. */
void *program_share(const char *program, size_t bytes);

/* The middle value, or the mean of the two in the middle; sorts them. NaN if there are none. */
double program_median(double *values, size_t count);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Runs shmstat as its users do, as a program, for the tests of it: $BX_BUILD_DIR/bin/shmstat.
 */
#ifndef TESTS_STAT_RUN_H
#define TESTS_STAT_RUN_H

#include "tests/harness/json.h"

struct stat_run {
    int status;             /* exit status; 128 + signal if one ended it */
    char *text;             /* stdout, and stderr unless it was JSON */
    struct json *json;      /* NULL if it is none */
};

/* With these arguments, words parted by blanks, given to a shell. Ends the process if it cannot be run. */
struct stat_run stat_run(const char *format, ...) __attribute__((format(printf, 1, 2)));
void stat_run_free(struct stat_run *run);

/* The first job of the list. */
const struct json *stat_run_job(const struct stat_run *run);
/* Its worker of that rank, and what that worker has in a list about a pair: the row whose key has the value. */
const struct json *stat_run_worker(const struct stat_run *run, int rank);
const struct json *stat_run_row(const struct json *worker, const char *list, const char *key, double value);
/* A number of the worker's counters. */
double stat_run_counter(const struct json *worker, const char *name);

#endif

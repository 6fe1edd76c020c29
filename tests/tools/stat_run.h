/* SPDX-License-Identifier: MIT */
/*
 * Runs the program $BX_BUILD_DIR/bin/shmstat, for its tests.
 */
#ifndef TESTS_STAT_RUN_H
#define TESTS_STAT_RUN_H

#include "tests/harness/test.h"
#include "tests/harness/json.h"

struct stat_run {
    int status;             /* exit status; 128 + signal if one ended it */
    char *text;             /* stdout, and stderr unless it was JSON */
    struct json *json;      /* NULL if stdout is not JSON */
};

/* Runs it in a shell with these arguments. Ends the process if it cannot be run. What it printed is there until the
 * process ends. */
struct stat_run stat_run(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* "COMMAND JOB --json", whose output must be JSON; FINE: its status must be 0 besides. */
struct stat_run stat_run_json(const char *command, const char *job);
struct stat_run stat_run_fine(const char *command, const char *job);

/* Where a value differs from what `wanted` says; NULL: nowhere. That is JSON with ' for ", a format of printf's. Of an
 * object it has some keys, of an array each element. The text is valid until the next call. */
const char *stat_run_differs(const struct json *value, const char *wanted, ...) __attribute__((format(printf, 2, 3)));
#define STAT_RUN_IS(value, ...) \
    do { \
        const char *differs = stat_run_differs((value), __VA_ARGS__); \
\
        cr_expect_null(differs, "%s", differs); \
    } while (0)

/* Its text has that part. */
#define STAT_RUN_SAYS(run, part) cr_expect_not_null(strstr((run).text, (part)), "%s", (run).text)
/* No line of its text is wider than 80 columns. */
void stat_run_fits(const struct stat_run *run);

/* The first job of the list. */
const struct json *stat_run_job(const struct stat_run *run);
/* The first job's worker of that rank; in a list of a worker, the row whose key has that value. */
const struct json *stat_run_worker(const struct stat_run *run, int rank);
const struct json *stat_run_row(const struct json *worker, const char *list, const char *key, double value);
/* A number of the worker's counters. */
double stat_run_counter(const struct json *worker, const char *name);

#endif

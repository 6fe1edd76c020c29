/* SPDX-License-Identifier: MIT */
/*
 * Reading a file of BX_TRACE: finding events in it, and checking what holds for every complete one. Assertions are
 * Criterion's.
 */
#ifndef TESTS_TRACE_READ_H
#define TESTS_TRACE_READ_H

#include "tests/harness/json.h"

#include <stdbool.h>

/* NULL and 0 match anything; pid < 0 too. A name that ends with a blank is a beginning. */
struct wanted {
    char phase;
    const char *category;
    const char *name;
    int pid;
};
#define ANY (-1)
#define HALF_NS 0.0005          /* sums of doubles */

/* The file of a job of `size` workers with default names, when this has been checked: it is of the job of
 * harness_job_name(), its workers are named, every slice lies within those around it, every arrow has two ends, in
 * slices that say so, and leads forward in time. Takes a square of its events. */
struct json *trace_read(const char *path, int size);

/* Parts of that. */
void workers_are_named(const struct json *root, int size);
void slices_nest(const struct json *root);
/* Each async span begins once and ends once, later. */
void spans_end(const struct json *root);
/* Within each sync call of the function: its handler, its answer, its reply, in this order. */
void calls_run_forward(const struct json *root, const char *function);

/* The next event after `event`, or the first after NULL. */
const struct json *next_of(const struct json *root, const struct json *event, struct wanted wanted);
int count_of(const struct json *root, struct wanted wanted);
#define COUNT(root, ...) count_of((root), (struct wanted){ __VA_ARGS__ })

double of(const struct json *event, const char *key);           /* a number of the event's own */
const struct json *arg(const struct json *event, const char *key);      /* of its args */
double end_of(const struct json *slice);
bool same_thread(const struct json *a, const struct json *b);
/* The slice of its thread around an event that began last: what a viewer binds an arrow to. */
const struct json *slice_around(const struct json *root, const struct json *event);
const char *thread_of(const struct json *root, const struct json *event);       /* its name, or "" */

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Reading a file of BX_TRACE: finding events in it, and checking what holds for every complete one. Assertions are
 * Criterion's.
 */
#ifndef TESTS_TRACE_READ_H
#define TESTS_TRACE_READ_H

#include "tests/harness/test.h"
#include "tests/harness/json.h"

/* Which events to find. NULL, 0 and a pid below 0 match anything. A name that ends with a blank is a prefix. */
struct wanted {
    char phase;
    const char *category;
    const char *name;
    int pid;
};
#define ANY (-1)
#define HALF_NS 0.0005          /* in microseconds: tolerance for sums of doubles */

/* A suite's .init and .fini: the workers trace into a file of the test. */
extern char trace_path[64];
void trace_into_file(void);
void trace_remove_file(void);

/* Reads the file of a job of `size` workers with default names. It checks that the file is of the job
 * harness_job_name(), that all workers are named, that slices nest, and that every arrow has two ends, both in slices
 * of its kind, and leads forward in time. The time is quadratic in the number of events. */
struct json *trace_read(const char *path, int size);

/* Parts of these checks. */
void workers_are_named(const struct json *root, int size);
void slices_nest(const struct json *root);
/* Each async span begins once, and ends once and later. */
void spans_end(const struct json *root);
/* Within each sync call of the function there are its handler, its answer and its reply, in this order. */
void calls_run_forward(const struct json *root, const char *function);

/* The next event after `event`, or the first after NULL. */
const struct json *next_of(const struct json *root, const struct json *event, struct wanted wanted);
int count_of(const struct json *root, struct wanted wanted);
#define COUNT(root, ...) count_of((root), (struct wanted){ __VA_ARGS__ })

double of(const struct json *event, const char *key);           /* a number of the event itself */
const struct json *arg(const struct json *event, const char *key);      /* a value of its args */
double end_of(const struct json *slice);
bool same_thread(const struct json *a, const struct json *b);
/* Of the slices of the event's thread that contain it, the one that began last. A viewer binds an arrow to it. */
const struct json *slice_around(const struct json *root, const struct json *event);
const char *thread_of(const struct json *root, const struct json *event);       /* its name, or "" */

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Shared by the tests of futures.
 */
#ifndef TESTS_FUTURE_FIXTURE_H
#define TESTS_FUTURE_FIXTURE_H

#include "tests/harness/harness.h"

/* INT64_MIN if there is none. */
static inline int64_t number_in(const struct bx_msg *value)
{
    struct bx_reader reader = bx_msg_reader(value);
    int64_t number = bx_read_i64(&reader);

    return reader.error < 0 ? INT64_MIN : number;
}

static inline int64_t number_of(const struct bx_future *future)
{
    return number_in(bx_future_value(future));
}

static inline struct bx_job *make_job(void)
{
    struct bx_options options = { .job = harness_job_name(), .world_size = 2 };
    struct bx_job *job = NULL;

    cr_assert_eq(bx_job_create(&options, &job), 0, "%s", bx_error_text());
    return job;
}

/* A callback that counts in an int, its context. */
static inline void count(struct bx_future *future, void *context)
{
    (void)future;
    ++*(int *)context;
}

/* Runs fn(&result) on a thread whose stack is too small for a recursion over a chain; returns the result. */
static inline int64_t on_a_small_stack(void *(*fn)(void *))
{
    pthread_attr_t attributes;
    pthread_t thread;
    int64_t result = 0;

    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 128 * 1024);
    cr_assert_eq(pthread_create(&thread, &attributes, fn, &result), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
    return result;
}

#endif

/* SPDX-License-Identifier: MIT */
/*
 * What tests ask about the switches of the tests' driver (tests/fake_cuda/fake.h), under each of which
 * tests/gpu/switches.sh runs them.
 */
#ifndef TESTS_FAKE_LIBRARY_H
#define TESTS_FAKE_LIBRARY_H

#include "tests/harness/test.h"

/* Whether the environment has this switch of the fake on. */
static inline bool fake_has(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && atoi(value) != 0;
}

/* For a test that forces what the switch forbids: skips it, and says why. */
static inline void fake_skip_under(const char *name, const char *why)
{
    if (fake_has(name))
        cr_skip_test("%s=%s: %s", name, getenv(name), why);
}

/* For a test that needs streams that do not hold up one another. */
static inline void fake_skip_few_queues(const char *why)
{
    const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");

    fake_skip_under("FAKE_CUDA_QUEUES", why);
    if (connections != NULL && atoi(connections) < 32)
        cr_skip_test("CUDA_DEVICE_MAX_CONNECTIONS=%s: %s", connections, why);
}

/* Whether gpu/ refuses the orders with words (-ENOTSUP). */
static inline bool fake_refuses_words(void)
{
    const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");

    return connections != NULL && atoi(connections) >= 1 && atoi(connections) < 4;
}

/* For a test that needs words. */
static inline void fake_skip_without_words(const char *why)
{
    if (fake_refuses_words())
        cr_skip_test("CUDA_DEVICE_MAX_CONNECTIONS=%s: %s", getenv("CUDA_DEVICE_MAX_CONNECTIONS"), why);
}

#endif

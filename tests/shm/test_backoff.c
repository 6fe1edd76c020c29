/* SPDX-License-Identifier: MIT */
/*
 * shm/backoff.h: a thread that waits for another one gives its CPU to any thread, whatever their priorities.
 */
#include "shm/backoff.h"

#include <criterion/criterion.h>
#include <sys/resource.h>

/* How often this thread has slept. A yield does not count: it stays ready to run. */
static long sleeps(void)
{
    struct rusage usage;

    cr_assert_eq(getrusage(RUSAGE_THREAD, &usage), 0);
    return usage.ru_nvcsw;
}

Test(backoff, sleeps_once_it_has_yielded_for_a_while, .timeout = 20)
{
    uint32_t turns = 0;
    long before;

    for (uint32_t i = 0; i < BXI_BACKOFF_YIELDS; i++) {
        cr_expect_eq(turns, i);
        bxi_back_off(&turns);
    }
    before = sleeps();
    for (int i = 0; i < 10; i++)
        bxi_back_off(&turns);
    cr_expect_geq(sleeps() - before, 10);
    cr_expect_eq(turns, BXI_BACKOFF_YIELDS);
}

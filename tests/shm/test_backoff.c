/* SPDX-License-Identifier: MIT */
/*
 * shm/backoff.h: a thread that waits for another one gives its CPU to any thread, whatever their priorities.
 */
#include "tests/harness/test.h"
#include "shm/backoff.h"

#include "base/base.h"

/*
 * Sleeps are told from yields by the time that they take at least. The kernel's count of sleeps (ru_nvcsw) tells less:
 * it leaves out one whose timer fires before the thread is off its CPU, as when the host takes the CPU away there.
 */
Test(backoff, sleeps_once_it_has_yielded_for_a_while, .timeout = 20)
{
    uint32_t turns = 0;
    uint64_t before;

    for (uint32_t i = 0; i < BXI_BACKOFF_YIELDS; i++) {
        cr_expect_eq(turns, i);
        bxi_back_off(&turns);
    }
    before = bxi_now_ns();
    for (int i = 0; i < 10; i++)
        bxi_back_off(&turns);
    cr_expect_geq(bxi_now_ns() - before, 10u * BXI_BACKOFF_NS);
    cr_expect_eq(turns, BXI_BACKOFF_YIELDS);
}

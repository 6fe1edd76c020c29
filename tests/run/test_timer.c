/* SPDX-License-Identifier: MIT */
/*
 * lib/run/timer.c: the heap returns the earliest timer first, whatever is set, moved and cleared in between. One thread
 * and no lock: the heap has none, its callers hold job->run->lock.
 */
#include "tests/harness/test.h"
#include "run/drive.h"

#define COUNT 1000

static struct bxi_timers timers;
static struct bxi_timer timer[COUNT];

static uint64_t next_random(void)
{
    static uint64_t state = 88172645463325252u;

    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static void check_heap(void)
{
    cr_assert_eq(bxi_heap_next_ns(&timers), timers.count == 0 ? BX_FOREVER : timers.heap[1]->at_ns);
    for (uint32_t i = 1; i <= timers.count; i++) {
        cr_assert_eq(timers.heap[i]->heap_index, i);
        cr_assert_leq(timers.heap[i == 1 ? 1 : i / 2]->at_ns, timers.heap[i]->at_ns);
    }
}

TestSuite(timer, .timeout = 120);

Test(timer, is_never_due_if_none_is_set)
{
    cr_expect_eq(bxi_heap_next_ns(&timers), BX_FOREVER);
    bxi_heap_clear(&timers, &timer[0]);
    cr_expect_eq(timers.count, 0);
}

Test(timer, may_be_cleared_and_set_again_in_any_order)
{
    size_t set = 0;

    for (int step = 0; step < 20000; step++) {
        struct bxi_timer *one = &timer[next_random() % COUNT];

        if (next_random() % 3 == 0) {
            set -= one->heap_index != 0;
            bxi_heap_clear(&timers, one);
            cr_assert_eq(one->heap_index, 0);
        } else {
            set += one->heap_index == 0;
            cr_assert_eq(bxi_heap_set(&timers, one, next_random() % 1000), 0);
        }
        cr_assert_eq(timers.count, set);
        if (step % 64 == 0)
            check_heap();
    }
    check_heap();
    free(timers.heap);
}

Test(timer, deadline_is_absolute_and_forever_stays_forever)
{
    uint64_t before_ns = bxi_now_ns(), deadline_ns = bxi_deadline_ns(1000000);

    cr_expect_geq(deadline_ns, before_ns + 1000000);
    cr_expect_eq(bxi_deadline_ns(BX_FOREVER), BX_FOREVER);
    cr_expect_eq(bxi_deadline_ns(BX_FOREVER - 1), BX_FOREVER);
}

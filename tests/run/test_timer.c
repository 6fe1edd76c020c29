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

static uint64_t take_first(void)
{
    struct bxi_timer *first = timers.heap[1];
    uint64_t at_ns = first->at_ns;

    cr_assert_eq(bxi_heap_next_ns(&timers), at_ns);
    bxi_heap_clear(&timers, first);
    return at_ns;
}

static void check_heap(void)
{
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

Test(timer, that_is_earliest_comes_first)
{
    for (int i = 0; i < COUNT; i++)
        cr_assert_eq(bxi_heap_set(&timers, &timer[i], next_random() % 500), 0);

    uint64_t before = 0;

    for (int i = 0; i < COUNT; i++) {
        uint64_t at_ns = take_first();

        cr_assert_leq(before, at_ns);
        before = at_ns;
    }
    cr_expect_eq(bxi_heap_next_ns(&timers), BX_FOREVER);
    free(timers.heap);
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

Test(timer, with_the_same_deadline_as_others_is_not_lost)
{
    for (int i = 0; i < COUNT; i++)
        bxi_heap_set(&timers, &timer[i], 42);
    for (int i = 0; i < COUNT; i += 2)
        bxi_heap_clear(&timers, &timer[i]);
    cr_assert_eq(timers.count, COUNT / 2);
    check_heap();
    for (int i = 0; i < COUNT / 2; i++)
        cr_assert_eq(take_first(), 42);
    free(timers.heap);
}

Test(timer, moves_when_it_is_set_again)
{
    bxi_heap_set(&timers, &timer[0], 10);
    bxi_heap_set(&timers, &timer[1], 20);
    bxi_heap_set(&timers, &timer[0], 30);
    cr_expect_eq(timers.count, 2);
    cr_expect_eq(bxi_heap_next_ns(&timers), 20);
    bxi_heap_set(&timers, &timer[0], 5);
    cr_expect_eq(bxi_heap_next_ns(&timers), 5);
    free(timers.heap);
}

Test(timer, deadline_is_absolute_and_forever_stays_forever)
{
    uint64_t before_ns = bxi_now_ns(), deadline_ns = bxi_deadline_ns(1000000);

    cr_expect_geq(deadline_ns, before_ns + 1000000);
    cr_expect_eq(bxi_deadline_ns(BX_FOREVER), BX_FOREVER);
    cr_expect_eq(bxi_deadline_ns(BX_FOREVER - 1), BX_FOREVER);
}

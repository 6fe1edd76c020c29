/* SPDX-License-Identifier: MIT */
/*
 * lib/rpc/gather.c: which future ended an any (bx_future_index), and what the futures of an all became
 * (bx_future_all_value, bx_future_all_error).
 */
#include "future_fixture.h"

#include "tests/harness/harness.h"

#include "rpc/rpc.h"

#define PARTS 4

static struct bx_future *parts[PARTS];

static void make(void)
{
    for (int i = 0; i < PARTS; i++)
        parts[i] = bx_future_create(NULL);
}

static void release(void)
{
    for (int i = 0; i < PARTS; i++)
        bx_future_release(parts[i]);
}

/* ---- The index of an any ----------------------------------------------------------------------- */

TestSuite(future_parts, .init = make, .fini = release, .timeout = 60);

Test(future_parts, any_has_the_index_of_the_future_that_failed_its_code_and_its_text)
{
    OWN(future) *any = bx_future_any(NULL, parts, PARTS);

    bx_future_fail(parts[3], -EIO, "broken axle");
    bx_future_set(parts[1], NULL);
    cr_expect_eq(bx_future_index(any), 3);
    cr_expect_eq(bx_future_error(any), -EIO);
    cr_expect_str_eq(bx_future_error_text(any), "broken axle");
}

Test(future_parts, only_any_has_an_index_and_only_all_has_parts)
{
    OWN(future) *done = bx_future_create(NULL), *all = NULL, *any = NULL;

    bx_future_set(done, harness_msg_i64(7));
    all = bx_future_all(NULL, &done, 1);
    any = bx_future_any(NULL, &done, 1);
    cr_expect_eq(bx_future_index(done), -1);
    cr_expect_eq(bx_future_index(all), -1);
    cr_expect_eq(bx_future_index(NULL), -1);
    cr_expect_eq(bx_future_index(any), 0);
    cr_expect_null(bx_future_all_value(done, 0));
    cr_expect_null(bx_future_all_value(any, 0));
    cr_expect_null(bx_future_all_value(NULL, 0));
    cr_expect_eq(bx_future_all_error(any, 0), 0);
    cr_expect_eq(number_in(bx_future_all_value(all, 0)), 7);
}

/* ---- The parts of an all ------------------------------------------------------------------------ */

Test(future_parts, all_has_every_value_though_its_futures_were_released)
{
    OWN(future) *all = bx_future_all(NULL, parts, PARTS);

    for (int i = PARTS - 1; i >= 0; i--) {
        cr_expect_null(bx_future_all_value(all, (size_t)i));
        bx_future_set(parts[i], harness_msg_i64(10 + i));
        bx_future_release(parts[i]);
        parts[i] = NULL;
    }
    for (int i = 0; i < PARTS; i++) {
        cr_expect_eq(number_in(bx_future_all_value(all, (size_t)i)), 10 + i);
        cr_expect_eq(bx_future_all_error(all, (size_t)i), 0);
    }
    cr_expect_null(bx_future_all_value(all, PARTS));
    cr_expect_eq(bx_future_all_error(all, PARTS), 0);
    cr_expect_eq(bx_future_error(all), 0);
    cr_expect_not_null(bx_future_value(all));
    cr_expect_eq(bx_msg_bytes(bx_future_value(all)), 0);
}

Test(future_parts, all_that_failed_has_the_values_that_were_set_and_every_code)
{
    OWN(future) *all = bx_future_all(NULL, parts, PARTS);

    bx_future_set(parts[0], harness_msg_i64(1));
    bx_future_fail(parts[3], -EPERM, "the first");
    cr_expect_null(bx_future_all_value(all, 0));
    cr_expect_eq(bx_future_all_error(all, 3), 0);
    bx_future_fail(parts[1], -EIO, "the second");
    cr_expect(!bx_future_is_done(all));
    bx_future_set(parts[2], harness_msg_i64(3));
    cr_expect_eq(bx_future_error(all), -EPERM);
    cr_expect_str_eq(bx_future_error_text(all), "the first");
    cr_expect_eq(number_in(bx_future_all_value(all, 0)), 1);
    cr_expect_null(bx_future_all_value(all, 1));
    cr_expect_eq(number_in(bx_future_all_value(all, 2)), 3);
    cr_expect_eq(bx_future_all_error(all, 0), 0);
    cr_expect_eq(bx_future_all_error(all, 1), -EIO);
    cr_expect_eq(bx_future_all_error(all, 3), -EPERM);
}

Test(future_parts, all_that_was_cancelled_has_what_was_done_before)
{
    OWN(future) *all = bx_future_all(NULL, parts, PARTS);

    bx_future_set(parts[1], harness_msg_i64(5));
    bx_future_cancel(all);
    bx_future_set(parts[2], harness_msg_i64(6));
    cr_expect_eq(number_in(bx_future_all_value(all, 1)), 5);
    cr_expect_null(bx_future_all_value(all, 2));
}

/* It holds no reference to a pending future: one that nobody can complete any more still fails. */
Test(future_parts, all_fails_when_one_of_its_futures_is_abandoned)
{
    struct bx_future *future = bx_future_create(NULL), *all = bx_future_all(NULL, &future, 1);

    bx_future_release(future);
    cr_expect_eq(bx_future_error(all), BX_E_ABANDONED);
    cr_expect_eq(bx_future_all_error(all, 0), BX_E_ABANDONED);
    bx_future_release(all);
}

#define NESTED 300000

static void *nest(void *context)
{
    struct bx_future *first = bx_future_create(NULL), *last = bx_future_acquire(first);

    for (int i = 0; i < NESTED; i++) {
        struct bx_future *next = bx_future_all(NULL, &last, 1);

        bx_future_release(last);
        last = next;
    }
    bx_future_set(first, NULL);
    bx_future_release(first);
    *(int64_t *)context = bx_future_is_done(last);
    bx_future_release(last);
    return NULL;
}

Test(future_parts, all_of_many_nested_ones_is_released_without_recursion)
{
    cr_expect(on_a_small_stack(nest));
}

/* ---- Calls -------------------------------------------------------------------------------------- */

/* A small reply lies in the memory of its call. */
HARNESS_TEST(future_parts, all_of_calls_has_their_replies, 60, .size = 2,
             .handlers = { HARNESS_INLINE("twice", harness_twice) })
{
    struct bx_future *calls[PARTS], *all;

    for (int i = 0; i < PARTS; i++)
        calls[i] = harness_start(job, i < 3 ? "worker1" : "worker0", "twice", harness_msg_i64(i), BX_FOREVER);
    all = bx_future_all(job, calls, PARTS);
    for (int i = 0; i < PARTS; i++)
        bx_future_release(calls[i]);
    HARNESS_EQ(bx_future_wait(all, BX_FOREVER), 0);
    for (int i = 0; i < PARTS; i++)
        HARNESS_EQ(number_in(bx_future_all_value(all, (size_t)i)), 2 * i);
    bx_future_release(all);
}

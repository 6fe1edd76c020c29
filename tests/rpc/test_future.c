/* SPDX-License-Identifier: MIT */
/*
 * lib/rpc/future.c. Most tests need no worker: any thread may complete a future without a job, as long as no thread
 * waits for it. Tests in which a thread waits have a job of two workers.
 */
#include "future_fixture.h"

#include "tests/harness/harness.h"

#include "rpc/rpc.h"

HARNESS_THEN(add_one)
{
    return bx_msg_put_i64(out, number_of(in) + 1);
}

/* ---- Set once, failed once ------------------------------------------------------------------- */

TestSuite(future, .timeout = 120);

Test(future, is_set_once)
{
    OWN(future) *future = bx_future_create(NULL);

    cr_expect(!bx_future_is_done(future));
    cr_expect_eq(bx_future_error(future), 0);
    cr_expect_str_eq(bx_future_error_text(future), "");
    cr_expect_null(bx_future_value(future));
    cr_expect_eq(bx_future_set(future, harness_msg_i64(7)), 0);
    cr_expect(bx_future_is_done(future));
    cr_expect_eq(number_of(future), 7);
    cr_expect_eq(bx_future_set(future, harness_msg_i64(8)), -EALREADY);
    cr_expect_eq(bx_future_fail(future, -EIO, "late"), -EALREADY);
    cr_expect_eq(bx_future_cancel(future), -EALREADY);
    cr_expect_eq(number_of(future), 7);
    cr_expect_eq(bx_future_error(future), 0);
    cr_expect_eq(bx_future_wait(future, 0), 0);
}

Test(future, is_failed_once_with_its_code_and_text)
{
    OWN(future) *future = bx_future_create(NULL);

    cr_expect_eq(bx_future_fail(future, 0, "no error"), -EINVAL);
    cr_expect_eq(bx_future_fail(future, 5, "no error"), -EINVAL);
    cr_expect(!bx_future_is_done(future));
    cr_expect_eq(bx_future_fail(future, -EIO, "the wagon is off the rails"), 0);
    cr_expect_eq(bx_future_error(future), -EIO);
    cr_expect_str_eq(bx_future_error_text(future), "the wagon is off the rails");
    cr_expect_null(bx_future_value(future));
    cr_expect_eq(bx_future_fail(future, -EPERM, NULL), -EALREADY);
    cr_expect_eq(bx_future_set(future, harness_msg_i64(1)), -EALREADY);
    cr_expect_eq(bx_future_wait(future, 0), -EIO);
    cr_expect_str_eq(bx_error_text(), "the wagon is off the rails");
}

Test(future, set_with_a_message_in_error_fails_with_that_error)
{
    OWN(future) *future = bx_future_create(NULL);
    struct bx_msg *msg = bx_msg_create(0);

    bx_msg_put_bytes(msg, "x", SIZE_MAX - 64);
    cr_expect_eq(bx_future_set(future, msg), 0);
    cr_expect_eq(bx_future_error(future), -ENOMEM);
}

HARNESS_THEN(put_too_much)
{
    bx_msg_put_bytes(out, "x", SIZE_MAX - 64);
    return 0;
}

Test(future, then_that_leaves_its_message_in_error_fails_with_that_error)
{
    OWN(future) *future = bx_future_create(NULL);
    OWN(future) *child = bx_future_then(future, put_too_much, NULL, NULL);

    cr_assert_eq(bx_future_set(future, harness_msg_i64(1)), 0);
    cr_expect_eq(bx_future_error(child), -ENOMEM);
    cr_expect_null(bx_future_value(child));
}

/* ---- Then ------------------------------------------------------------------------------------ */

HARNESS_THEN(mend)
{
    return bx_msg_put_i64(out, bx_future_error(in) == -EIO ? -1 : number_of(in));
}

Test(future, then_any_gets_values_and_may_replace_errors)
{
    OWN(future) *failed = bx_future_create(NULL), *set = bx_future_create(NULL);
    OWN(future) *mended = bx_future_then_any(failed, mend, NULL, NULL);
    OWN(future) *kept = bx_future_then_any(set, mend, NULL, NULL);

    bx_future_fail(failed, -EIO, NULL);
    bx_future_set(set, harness_msg_i64(5));
    cr_expect_eq(bx_future_error(mended), 0);
    cr_expect_eq(number_of(mended), -1);
    cr_expect_eq(number_of(kept), 5);
}

/* ---- A long chain ---------------------------------------------------------------------------- */

#define CHAIN 1000000

static void *run_chain(void *context)
{
    struct bx_future *first = bx_future_create(NULL), *last = bx_future_acquire(first);

    for (int i = 0; i < CHAIN; i++) {
        struct bx_future *next = bx_future_then(last, add_one, NULL, NULL);

        bx_future_release(last);
        last = next;
    }
    bx_future_set(first, harness_msg_i64(0));
    *(int64_t *)context = number_of(last);
    bx_future_release(last);
    bx_future_release(first);
    return NULL;
}

static void *abandon_chain(void *context)
{
    struct bx_future *first = bx_future_create(NULL), *last = bx_future_acquire(first);

    for (int i = 0; i < CHAIN / 4; i++) {
        struct bx_future *next = bx_future_then(last, add_one, NULL, NULL);

        bx_future_release(last);
        last = next;
    }
    bx_future_release(first);
    *(int64_t *)context = bx_future_error(last);
    bx_future_release(last);
    return NULL;
}

Test(future, completes_a_chain_of_a_million_without_growing_the_stack, .timeout = 20)
{
    cr_expect_eq(on_a_small_stack(run_chain), CHAIN);
}

Test(future, abandons_a_long_chain_without_growing_the_stack, .timeout = 20)
{
    cr_expect_eq(on_a_small_stack(abandon_chain), BX_E_ABANDONED);
}

/* ---- References ------------------------------------------------------------------------------ */

static void drop(struct bx_future *future, void *context)
{
    (*(int *)context)++;
    bx_future_release(future);
}

/* The address sanitizer sees whether the future is used after that. */
Test(future, may_be_released_for_the_last_time_by_a_callback_of_its_completion)
{
    int ran = 0;

    for (int i = 1; i <= 3; i++) {
        struct bx_future *future = bx_future_create(NULL);

        bx_future_on_done(future, drop, &ran);
        cr_expect_eq(bx_future_set(future, harness_msg_i64(i)), 0);
        cr_expect_eq(ran, i);
    }
}

/* ---- All and any ----------------------------------------------------------------------------- */

Test(future, all_and_any_take_futures_that_are_done_or_given_twice)
{
    OWN(future) *done = bx_future_create(NULL);
    struct bx_future *same[2] = { done, done };

    bx_future_set(done, NULL);

    OWN(future) *all = bx_future_all(NULL, same, 2), *any = bx_future_any(NULL, same, 2);

    cr_expect(bx_future_is_done(all));
    cr_expect_eq(bx_future_error(all), 0);
    cr_expect_eq(number_of(any), 0);
}

Test(future, all_of_none_is_done_and_any_of_none_is_null)
{
    OWN(future) *all = bx_future_all(NULL, NULL, 0);

    cr_expect(bx_future_is_done(all));
    cr_expect_eq(bx_future_error(all), 0);
    cr_expect_null(bx_future_any(NULL, NULL, 0));
}

/* ---- Waiting, which needs a job -------------------------------------------------------------- */

HARNESS_TEST(future, stays_pending_when_a_wait_for_it_timed_out, 20, .size = 2)
{
    OWN(future) *future = bx_future_create(job);

    HARNESS_EQ(bx_future_wait(future, 0), BX_E_TIMEOUT);
    HARNESS_EQ(bx_future_wait(future, 5 * HARNESS_MS), BX_E_TIMEOUT);
    HARNESS_CHECK(!bx_future_is_done(future));
    HARNESS_EQ(bx_future_set(future, harness_msg_i64(1)), 0);
    HARNESS_EQ(bx_future_wait(future, 0), 0);
}

/* SPDX-License-Identifier: MIT */
/*
 * lib/rpc/future.c and lib/rpc/gather.c: futures that are never completed. bx_job_destroy fails pending futures, which
 * may be released afterwards; an all or any that is done or released leaves no memory at the futures it waited for.
 */
#include "future_fixture.h"

#include "tests/harness/held.h"

#include "rpc/rpc.h"

#include <malloc.h>

/* ---- The job ends ---------------------------------------------------------------------------- */

HARNESS_THEN(never)
{
    ++*(int *)context;
    return 0;
}

static void check_ended(struct bx_future *future)
{
    cr_expect(bx_future_is_done(future));
    cr_expect_eq(bx_future_error(future), BX_E_SHUTDOWN);
    cr_expect_eq(bx_future_wait(future, BX_FOREVER), BX_E_SHUTDOWN);
    cr_expect_not_null(strstr(bx_future_error_text(future), "worker0"), "%s", bx_future_error_text(future));
    bx_future_release(future);
}

Test(future_end, fails_pending_futures_when_the_job_is_destroyed, .timeout = 20)
{
    struct bx_job *job = make_job();
    struct bx_future *made = bx_future_create(job), *set = bx_future_create(job), *released = bx_future_create(job);
    int called = 0, ran = 0;
    struct bx_future *then = bx_future_then(made, never, &ran, NULL);
    struct bx_future *all = bx_future_all(job, &made, 1), *any = bx_future_any(job, &made, 1);

    bx_future_on_done(made, count, &called);
    bx_future_on_done(any, count, &called);
    bx_future_set(set, NULL);
    bx_future_release(released);
    bx_job_destroy(job);
    cr_expect_eq(called, 2);
    cr_expect_eq(ran, 0);
    check_ended(any);
    check_ended(all);
    check_ended(then);
    check_ended(made);
    cr_expect_eq(bx_future_error(set), 0);
    bx_future_release(set);
}

static void make_another(struct bx_future *future, void *context)
{
    struct bx_job *job = context;

    cr_expect_null(bx_future_create(job));
    cr_expect_not_null(strstr(bx_error_text(), "worker0"), "%s", bx_error_text());
    cr_expect_null(bx_future_then(future, never, NULL, NULL));
}

Test(future_end, refuses_new_futures_in_callbacks_while_the_job_is_destroyed, .timeout = 20)
{
    struct bx_job *job = make_job();
    struct bx_future *future = bx_future_create(job);

    bx_future_on_done(future, make_another, job);
    bx_job_destroy(job);
    check_ended(future);
}

static int setup(struct bx_job *job)
{
    return bx_register_async(job, "hold", BX_INLINE, hold, NULL);
}

/* An async handler holds its future when its worker leaves: the request is answered, and the handler may release the
 * future after the end of the job. */
static void call_held(struct bx_job *job)
{
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "hold", NULL, NULL, NULL), BX_E_SHUTDOWN);
}

static void leave_with_a_held_future(struct bx_job *job)
{
    harness_leaves_by_itself();
    harness_await(0, 1);
    HARNESS_EQ(bx_job_shutdown(job, 50 * HARNESS_MS), BX_E_TIMEOUT);
    HARNESS_CHECK(!bx_future_is_done(held));
    bx_job_destroy(job);
    HARNESS_EQ(bx_future_error(held), BX_E_SHUTDOWN);
    bx_future_release(held);
}

HARNESS_WORLD(future_end, answers_requests_whose_future_a_handler_still_holds, 20, .size = 2, .setup = setup,
              .body = { call_held, leave_with_a_held_future });

/* The answer is a future that the job does not know: it has no job, or belongs to another job of this process. */
HARNESS_ASYNC_HANDLER(hold_foreign)
{
    held = bx_future_create(NULL);
    *reply = bx_future_acquire(held);
    harness_post(0);
    return 0;
}

HARNESS_WORLD(future_end, fails_a_future_without_a_job_that_was_to_be_an_answer, 20, .size = 2,
              .handlers = { HARNESS_ASYNC("hold", hold_foreign) }, .body = { call_held, leave_with_a_held_future });

/* ---- Memory that all and any leave ------------------------------------------------------------- */

#define TURNS 300000

/* Of the whole process. A sanitizer has its own allocator; then both figures are 0. */
static size_t bytes_in_use(void)
{
    return mallinfo2().uordblks;
}

typedef void (*turn_fn)(struct bx_future *slow);

static void take_turns(turn_fn turn)
{
    OWN(future) *slow = bx_future_create(NULL);
    size_t before;

    turn(slow);
    before = bytes_in_use();
    for (int i = 0; i < TURNS; i++)
        turn(slow);
    cr_expect_lt(bytes_in_use(), before + TURNS, "%zu bytes, %zu before", bytes_in_use(), before);
    cr_expect(!bx_future_is_done(slow));
    cr_expect_null(bxi_load_seq_cst(&slow->callbacks));
}

/* A test that leaves nothing behind, however often what follows is done, with `slow`. */
#define TAKES_TURNS(name) \
    static void name(struct bx_future *slow); \
    Test(future_end, name, .timeout = 60) \
    { \
        take_turns(name); \
    } \
    static void name(struct bx_future *slow)

TAKES_TURNS(any_that_is_done_leaves_nothing_at_a_pending_future)
{
    struct bx_future *quick = bx_future_create(NULL), *both[2] = { slow, quick };
    OWN(future) *any = bx_future_any(NULL, both, 2);

    bx_future_set(quick, NULL);
    cr_assert(bx_future_is_done(any));
    bx_future_release(quick);
}

TAKES_TURNS(any_that_was_done_at_once_leaves_nothing_at_pending_futures)
{
    struct bx_future *quick = bx_future_create(NULL), *three[3] = { slow, quick, slow };
    OWN(future) *any = NULL;

    bx_future_set(quick, NULL);
    any = bx_future_any(NULL, three, 3);
    cr_assert(bx_future_is_done(any));
    bx_future_release(quick);
}

TAKES_TURNS(any_that_is_released_leaves_nothing_behind)
{
    bx_future_release(bx_future_any(NULL, &slow, 1));
}

TAKES_TURNS(any_that_is_cancelled_leaves_nothing_behind)
{
    OWN(future) *any = bx_future_any(NULL, &slow, 1);

    cr_assert_eq(bx_future_cancel(any), 0);
}

TAKES_TURNS(all_that_is_released_leaves_nothing_behind)
{
    struct bx_future *quick = bx_future_create(NULL), *both[2] = { quick, slow };
    OWN(future) *all = bx_future_all(NULL, both, 2);

    bx_future_set(quick, NULL);
    cr_assert(!bx_future_is_done(all));
    bx_future_release(quick);
}

TAKES_TURNS(any_of_any_leaves_nothing_behind)
{
    struct bx_future *inner = bx_future_any(NULL, &slow, 1), *outer = bx_future_any(NULL, &inner, 1);

    bx_future_release(inner);           /* the outer any depends on it */
    cr_assert_not_null(bxi_load_seq_cst(&slow->callbacks));
    bx_future_release(outer);
}

Test(future_end, any_of_many_nested_ones_ends_without_recursion, .timeout = 60)
{
    struct bx_future *slow = bx_future_create(NULL), *last = bx_future_acquire(slow);

    for (int i = 0; i < TURNS; i++) {
        struct bx_future *next = bx_future_any(NULL, &last, 1);

        bx_future_release(last);
        last = next;
    }
    bx_future_release(last);
    cr_expect_null(bxi_load_seq_cst(&slow->callbacks));
    bx_future_release(slow);
}

/* An all that is released but has a callback lives until it is done. Other callbacks keep their order. */
static char order[8];

HARNESS_CALLBACK(note)
{
    strcat(order, context);
}

Test(future_end, all_that_is_released_still_runs_its_callback, .timeout = 20)
{
    OWN(future) *slow = bx_future_create(NULL), *other = bx_future_create(NULL);
    struct bx_future *both[2] = { slow, other };
    struct bx_future *all, *any;

    bx_future_on_done(slow, note, "1");
    all = bx_future_all(NULL, both, 2);
    any = bx_future_any(NULL, both, 2);
    bx_future_on_done(all, note, "a");
    bx_future_on_done(slow, note, "2");
    bx_future_release(all);
    bx_future_release(any);
    bx_future_on_done(slow, note, "3");
    bx_future_set(other, NULL);
    cr_expect_str_eq(order, "");
    bx_future_set(slow, NULL);
    cr_expect_str_eq(order, "123a");
}

/* While a call has a callback, job->run->eager counts it: its reply must wake a thread at once. */
HARNESS_TEST(future_end, any_that_is_released_makes_its_call_lazy_again, 20, .size = 2, .setup = setup,
             .body = { NULL, answer_when_told })
{
    OWN(future) *call = NULL;
    struct bx_future *any, *both[2];

    call = harness_async(job, "worker1", "hold");
    HARNESS_EQ(bxi_load_seq_cst(&job->run->eager), 0);
    for (int i = 0; i < 1000; i++) {
        both[0] = both[1] = call;
        any = bx_future_any(job, both, 2);
        HARNESS_EQ(bxi_load_seq_cst(&job->run->eager), 1);
        bx_future_release(any);
        HARNESS_EQ(bxi_load_seq_cst(&job->run->eager), 0);
    }
    any = bx_future_any(job, &call, 1);
    harness_post(1);
    HARNESS_EQ(bx_future_wait(any, BX_FOREVER), 0);
    HARNESS_EQ(bxi_load_seq_cst(&job->run->eager), 0);
    bx_future_release(any);
}

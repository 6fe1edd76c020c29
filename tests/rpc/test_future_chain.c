/* SPDX-License-Identifier: MIT */
/*
 * bx_future_then (lib/rpc/future.c) and bx_future_chain (lib/rpc/gather.c): the context is freed once, whatever
 * happens; a chain ends as its inner future does, and cancels it if it ends before.
 */
#include "future_fixture.h"

#include "tests/harness/harness.h"
#include "tests/harness/memory.h"

#include "rpc/rpc.h"

/* ---- Contexts ---------------------------------------------------------------------------------- */

struct context {
    struct bx_future *inner;        /* what fn returns; a reference */
    struct bx_future *result;       /* that fn cancels; not a reference */
    int code;                       /* what fn returns if it is not 0 */
    const char *text;
    bool exits;
    int ran, freed;
};

/* The context is the test's: it only counts. */
static void free_it(void *context)
{
    ((struct context *)context)->freed++;
    bx_fail(-EBADF, "free_context has a sentence of its own");
}

static int work(struct context *context)
{
    context->ran++;
    if (context->result != NULL)
        bx_future_cancel(context->result);
    if (context->exits)
        pthread_exit(NULL);
    return context->text != NULL ? bx_fail(context->code, "%s", context->text) : context->code;
}

static int then(struct bx_future *in, struct bx_msg *out, void *context)
{
    bx_msg_put_i64(out, number_of(in) + 1);
    return work(context);
}

static int next(struct bx_future *in, struct bx_future **inner, void *context)
{
    (void)in;
    *inner = ((struct context *)context)->inner;
    return work(context);
}

static struct bx_future *add_then(struct bx_future *future, struct context *context)
{
    return bx_future_then(future, then, context, free_it);
}

static struct bx_future *add_chain(struct bx_future *future, struct context *context)
{
    return bx_future_chain(future, next, context, free_it);
}

static void expect_calls(const struct context *context, int ran, int freed)
{
    cr_expect_eq(context->ran, ran, "ran %d times, not %d", context->ran, ran);
    cr_expect_eq(context->freed, freed, "freed %d times, not %d", context->freed, freed);
}

typedef struct bx_future *(*add_fn)(struct bx_future *future, struct context *context);
static const add_fn adders[] = { add_then, add_chain };
#define EACH_KIND(add) for (const add_fn *add = adders; add < adders + 2; add++)

TestSuite(future_context, .timeout = 60);
TestSuite(future_chain, .timeout = 60);

Test(future_context, is_freed_when_the_function_is_skipped_by_an_error)
{
    EACH_KIND(add) {
        struct bx_future *future = bx_future_create(NULL);
        struct context context = { 0 };
        struct bx_future *result = (*add)(future, &context);

        bx_future_fail(future, -EIO, "broken axle");
        expect_calls(&context, 0, 1);
        cr_expect_eq(bx_future_error(result), -EIO);
        cr_expect_str_eq(bx_future_error_text(result), "broken axle");
        bx_future_release(result);
        bx_future_release(future);
        expect_calls(&context, 0, 1);
    }
}

Test(future_context, is_freed_when_the_future_is_abandoned_or_cancelled)
{
    EACH_KIND(add) {
        struct bx_future *abandoned = bx_future_create(NULL), *cancelled = bx_future_create(NULL);
        struct context contexts[2] = { { 0 } };
        struct bx_future *results[2] = { (*add)(abandoned, &contexts[0]), (*add)(cancelled, &contexts[1]) };

        bx_future_release(abandoned);
        bx_future_cancel(cancelled);
        for (int i = 0; i < 2; i++) {
            expect_calls(&contexts[i], 0, 1);
            cr_expect_eq(bx_future_error(results[i]), i == 0 ? BX_E_ABANDONED : BX_E_CANCELLED);
            bx_future_release(results[i]);
        }
        bx_future_release(cancelled);
    }
}

Test(future_context, is_freed_after_a_function_that_fails_and_its_sentence_is_kept)
{
    EACH_KIND(add) {
        OWN(future) *future = bx_future_create(NULL);
        struct context with = { .code = -ERANGE, .text = "car 9 does not exist" }, without = { .code = -ERANGE };
        struct bx_future *results[2] = { (*add)(future, &with), (*add)(future, &without) };

        bx_future_set(future, harness_msg_i64(1));
        expect_calls(&with, 1, 1);
        expect_calls(&without, 1, 1);
        cr_expect_eq(bx_future_error(results[0]), -ERANGE);
        cr_expect_str_eq(bx_future_error_text(results[0]), "car 9 does not exist");
        cr_expect_str_eq(bx_future_error_text(results[1]), bx_strerror(-ERANGE));
        bx_future_release(results[0]);
        bx_future_release(results[1]);
    }
}

static void *set_and_leave(void *future)
{
    bx_future_set(future, NULL);
    return future;                  /* not reached: the thread ends in bx_future_set */
}

Test(future_context, is_freed_when_the_thread_leaves_in_the_function)
{
    EACH_KIND(add) {
        OWN(future) *future = bx_future_create(NULL);
        struct context context = { .exits = true };
        OWN(future) *result = (*add)(future, &context);
        void *returned = NULL;
        pthread_t thread;

        cr_assert_eq(pthread_create(&thread, NULL, set_and_leave, future), 0);
        pthread_join(thread, &returned);
        cr_expect_neq(returned, future);
        expect_calls(&context, 1, 1);
        cr_expect_eq(bx_future_error(result), BX_E_HANDLER);
    }
}

Test(future_context, is_not_freed_when_nothing_was_made)
{
    EACH_KIND(add) {
        OWN(future) *future = bx_future_create(NULL);
        struct context context = { .inner = NULL };
        int allocations = 0;
        OWN(future) *result = NULL;

        do {
            memory_fails_in = ++allocations;
            result = (*add)(future, &context);
            cr_expect_eq(context.freed, 0);
        } while (result == NULL);
        memory_fails_in = 0;
        cr_expect_eq(allocations, 3);           /* two of them failed: that of the future, and of its callback */
        cr_expect_null((*add)(NULL, &context));
        cr_expect_eq(context.freed, 0);
        bx_future_fail(future, -EIO, NULL);
        expect_calls(&context, 0, 1);
    }
}

Test(future_context, needs_no_free_function)
{
    OWN(future) *future = bx_future_create(NULL);
    struct context contexts[2] = { { 0 }, { .inner = bx_future_acquire(future) } };
    OWN(future) *a = bx_future_then(future, then, &contexts[0], NULL);
    OWN(future) *b = bx_future_chain(future, next, &contexts[1], NULL);

    bx_future_set(future, harness_msg_i64(4));
    cr_expect_eq(number_of(a), 5);
    cr_expect_eq(number_of(b), 4);
}

/* As that of any `then`. */
Test(future_context, of_then_is_freed_though_the_result_was_released_or_cancelled)
{
    OWN(future) *future = bx_future_create(NULL);
    struct context released = { 0 }, cancelled = { 0 };
    struct bx_future *result = add_then(future, &cancelled);

    bx_future_release(add_then(future, &released));
    bx_future_cancel(result);
    bx_future_release(result);
    bx_future_set(future, NULL);
    expect_calls(&released, 1, 1);
    expect_calls(&cancelled, 1, 1);
}

/* One chain waits for its first future, one for its inner one. */
Test(future_context, is_freed_when_the_job_is_destroyed)
{
    struct bx_job *job = make_job();
    OWN(future) *inner = bx_future_create(job), *first = bx_future_create(job), *done = bx_future_create(job);
    struct context waiting = { 0 }, linked = { .inner = bx_future_acquire(inner) }, then_context = { 0 };
    struct bx_future *results[3];

    bx_future_set(done, NULL);
    results[0] = add_chain(first, &waiting);
    results[1] = add_chain(done, &linked);
    results[2] = add_then(first, &then_context);
    expect_calls(&linked, 1, 1);
    bx_job_destroy(job);
    expect_calls(&waiting, 0, 1);
    expect_calls(&linked, 1, 1);
    expect_calls(&then_context, 0, 1);
    cr_expect(bx_future_is_done(inner));
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(bx_future_error(results[i]), BX_E_SHUTDOWN);
        bx_future_release(results[i]);
    }
}

/* ---- A chain ----------------------------------------------------------------------------------- */

struct chained {
    struct bx_future *first, *inner, *result;
    struct context context;
};

static void chain(struct chained *chained)
{
    *chained = (struct chained){ .first = bx_future_create(NULL), .inner = bx_future_create(NULL) };
    chained->context.inner = bx_future_acquire(chained->inner);
    chained->result = add_chain(chained->first, &chained->context);
    cr_assert_not_null(chained->result);
}

static void release(struct chained *chained)
{
    if (chained->context.ran == 0)
        bx_future_release(chained->context.inner);
    bx_future_release(chained->first);
    bx_future_release(chained->result);
    bx_future_release(chained->inner);
}

static struct chained the_chain;

static void make_the_chain(void)
{
    chain(&the_chain);
}

static void end_the_chain(void)
{
    release(&the_chain);
}

Test(future_chain, has_the_value_of_the_inner_future_without_a_copy, .init = make_the_chain, .fini = end_the_chain)
{
    bx_future_set(the_chain.first, NULL);
    expect_calls(&the_chain.context, 1, 1);
    cr_expect(!bx_future_is_done(the_chain.result));
    bx_future_set(the_chain.inner, harness_msg_i64(42));
    cr_expect_eq(bx_future_error(the_chain.result), 0);
    cr_expect_eq(bx_future_value(the_chain.result), bx_future_value(the_chain.inner));
    bx_future_release(the_chain.inner);
    the_chain.inner = NULL;
    cr_expect_eq(number_of(the_chain.result), 42);
}

Test(future_chain, has_the_code_and_the_text_of_the_inner_future, .init = make_the_chain, .fini = end_the_chain)
{
    bx_future_set(the_chain.first, NULL);
    bx_future_fail(the_chain.inner, -EIO, "broken axle");
    cr_expect_eq(bx_future_error(the_chain.result), -EIO);
    cr_expect_str_eq(bx_future_error_text(the_chain.result), "broken axle");
    cr_expect_null(bx_future_value(the_chain.result));
}

Test(future_chain, takes_an_inner_future_that_is_done_or_is_the_first_one)
{
    OWN(future) *first = bx_future_create(NULL), *done = bx_future_create(NULL);
    struct context contexts[2] = { { .inner = bx_future_acquire(first) }, { .inner = bx_future_acquire(done) } };
    struct bx_future *results[2];

    bx_future_set(done, harness_msg_i64(2));
    results[0] = add_chain(first, &contexts[0]);
    bx_future_set(first, harness_msg_i64(1));
    results[1] = add_chain(first, &contexts[1]);
    for (int i = 0; i < 2; i++) {
        cr_expect_eq(number_of(results[i]), i + 1);
        expect_calls(&contexts[i], 1, 1);
        bx_future_release(results[i]);
    }
}

Test(future_chain, fails_without_an_inner_future)
{
    OWN(future) *first = bx_future_create(NULL);
    struct context context = { 0 };
    OWN(future) *result = add_chain(first, &context);

    bx_future_set(first, NULL);
    cr_expect_eq(bx_future_error(result), BX_E_HANDLER);
    cr_expect_not_null(strstr(bx_future_error_text(result), "no future"), "%s", bx_future_error_text(result));
}

Test(future_chain, releases_the_inner_future_of_a_function_that_failed, .init = make_the_chain, .fini = end_the_chain)
{
    bx_future_release(the_chain.inner);           /* what is left is what fn returns */
    the_chain.context.code = -ERANGE;
    bx_future_set(the_chain.first, NULL);
    cr_expect_eq(bx_future_error(the_chain.result), -ERANGE);
    the_chain.inner = NULL;
}

Test(future_chain, refuses_to_wait_for_itself)
{
    OWN(future) *first = bx_future_create(NULL);
    struct context context = { 0 };
    OWN(future) *result = add_chain(first, &context);

    context.inner = bx_future_acquire(result);
    bx_future_set(first, NULL);
    cr_expect_eq(bx_future_error(result), -EDEADLK);
    expect_calls(&context, 1, 1);
}

/* The chain has the last reference, but nobody who could complete the future. */
Test(future_chain, fails_when_the_inner_future_is_abandoned, .init = make_the_chain, .fini = end_the_chain)
{
    bx_future_set(the_chain.first, NULL);
    bx_future_release(the_chain.inner);
    the_chain.inner = NULL;
    cr_expect_eq(bx_future_error(the_chain.result), BX_E_ABANDONED);
}

Test(future_chain, goes_on_when_its_result_is_released, .init = make_the_chain, .fini = end_the_chain)
{
    bx_future_release(the_chain.result);
    the_chain.result = NULL;
    bx_future_set(the_chain.first, NULL);
    expect_calls(&the_chain.context, 1, 1);
    cr_expect_not_null(bxi_load_seq_cst(&the_chain.inner->callbacks));
    bx_future_set(the_chain.inner, NULL);
}

/* ---- Its result is done first -------------------------------------------------------------------- */

Test(future_chain, that_is_cancelled_early_frees_its_context_and_leaves_nothing_at_the_first_future,
     .init = make_the_chain, .fini = end_the_chain)
{
    cr_expect_eq(bx_future_cancel(the_chain.result), 0);
    expect_calls(&the_chain.context, 0, 1);
    cr_expect_null(bxi_load_seq_cst(&the_chain.first->callbacks));
    bx_future_set(the_chain.first, NULL);
    expect_calls(&the_chain.context, 0, 1);
    cr_expect(!bx_future_is_done(the_chain.inner));
}

Test(future_chain, that_is_cancelled_cancels_its_inner_future, .init = make_the_chain, .fini = end_the_chain)
{
    bx_future_set(the_chain.first, NULL);
    cr_expect_eq(bx_future_cancel(the_chain.result), 0);
    cr_expect_eq(bx_future_error(the_chain.inner), BX_E_CANCELLED);
    cr_expect_eq(bx_future_set(the_chain.inner, harness_msg_i64(1)), -EALREADY);
    cr_expect_eq(bx_future_error(the_chain.result), BX_E_CANCELLED);
}

Test(future_chain, that_is_cancelled_by_its_function_cancels_what_that_returns,
     .init = make_the_chain, .fini = end_the_chain)
{
    the_chain.context.result = the_chain.result;
    bx_future_set(the_chain.first, NULL);
    expect_calls(&the_chain.context, 1, 1);
    cr_expect_eq(bx_future_error(the_chain.result), BX_E_CANCELLED);
    cr_expect_eq(bx_future_error(the_chain.inner), BX_E_CANCELLED);
}

Test(future_chain, that_the_program_sets_keeps_that_value_and_cancels_its_inner_future,
     .init = make_the_chain, .fini = end_the_chain)
{
    bx_future_set(the_chain.first, NULL);
    cr_expect_eq(bx_future_set(the_chain.result, harness_msg_i64(9)), 0);
    cr_expect_eq(bx_future_error(the_chain.inner), BX_E_CANCELLED);
    cr_expect_eq(number_of(the_chain.result), 9);
}

/* ---- Many of them ---------------------------------------------------------------------------------- */

#define STEPS 200000

static struct bx_future *base;
static int64_t steps_left;

/* A loop: each step returns the chain of the next one. */
static int step(struct bx_future *in, struct bx_future **inner, void *context)
{
    *inner = steps_left-- > 0 ? bx_future_chain(in, step, context, NULL) : bx_future_acquire(base);
    return *inner != NULL ? 0 : -ENOMEM;
}

static struct bx_future *begin_loop(void)
{
    struct bx_future *first = bx_future_create(NULL), *result;

    base = bx_future_create(NULL);
    steps_left = STEPS;
    bx_future_set(first, NULL);
    result = bx_future_chain(first, step, NULL, NULL);
    bx_future_release(first);
    return result;
}

static void *run_loop(void *context)
{
    OWN(future) *result = begin_loop();

    bx_future_set(base, harness_msg_i64(STEPS));
    bx_future_release(base);
    *(int64_t *)context = number_of(result);
    return NULL;
}

static void *cancel_loop(void *context)
{
    OWN(future) *result = begin_loop();

    bx_future_cancel(result);
    *(int64_t *)context = bx_future_error(base);
    bx_future_release(base);
    return NULL;
}

Test(future_chain, of_many_chains_ends_without_growing_the_stack)
{
    cr_expect_eq(on_a_small_stack(run_loop), STEPS);
}

Test(future_chain, of_many_chains_is_cancelled_without_growing_the_stack)
{
    cr_expect_eq(on_a_small_stack(cancel_loop), BX_E_CANCELLED);
}

/* ---- Calls ------------------------------------------------------------------------------------------ */

enum gate { PARKED, ENDED };
enum value { CODE };

HARNESS_CALLBACK(note_end)
{
    harness_store(CODE, (uint64_t)-bx_future_error(future));
    bx_future_release(future);
    harness_post(ENDED);
}

HARNESS_ASYNC_HANDLER(park)
{
    *reply = bx_future_acquire(bx_future_create(bx_request_job(request)));
    HARNESS_EQ(bx_future_on_done(*reply, note_end, NULL), 0);
    harness_post(PARKED);
    return 0;
}

/* The context is the job. */
static int call_again(struct bx_future *in, struct bx_future **inner, void *context)
{
    OWN(msg) *args = harness_msg_i64(number_of(in));

    return bx_rpc_async(context, "worker2", "twice", args, NULL, inner);
}

static int call_park(struct bx_future *in, struct bx_future **inner, void *context)
{
    (void)in;
    return bx_rpc_async(context, "worker2", "park", NULL, NULL, inner);
}

/* Two calls, one after the other; the handler holds no thread meanwhile. */
HARNESS_ASYNC_HANDLER(forward_twice)
{
    struct bx_job *job = bx_request_job(request);
    OWN(future) *first = harness_start(job, "worker2", "twice", harness_msg_i64(bx_read_i64(args)), BX_FOREVER);

    *reply = bx_future_chain(first, context != NULL ? call_park : call_again, job, NULL);
    return *reply != NULL ? 0 : -ENOMEM;
}

static int setup(struct bx_job *job)
{
    return HARNESS_REGISTER(job, HARNESS_INLINE("twice", harness_twice), HARNESS_ASYNC("park", park),
                            HARNESS_ASYNC("forward", forward_twice),
                            { "forward_and_park", BX_INLINE, NULL, forward_twice, "park" });
}

HARNESS_TEST(future_chain, of_calls_makes_one_after_the_other, 60, .size = 3, .setup = setup)
{
    struct bx_future *first = harness_start(job, "worker1", "twice", harness_msg_i64(5), BX_FOREVER);
    struct bx_future *result = bx_future_chain(first, call_again, job, NULL);

    bx_future_release(first);
    HARNESS_EQ(bx_future_wait(result, BX_FOREVER), 0);
    HARNESS_EQ(number_of(result), 20);
    bx_future_release(result);
    HARNESS_EQ(harness_call_i64(job, "worker1", "forward", 7), 28);
    HARNESS_EQ(bxi_load_seq_cst(&job->run->eager), 0);
}

HARNESS_TEST(future_chain, that_an_async_handler_returned_is_cancelled_with_its_request, 60, .size = 3, .setup = setup)
{
    struct bx_future *future = harness_start(job, "worker1", "forward_and_park", harness_msg_i64(5), BX_FOREVER);

    harness_await(PARKED, 1);
    harness_cancel(future);
    harness_await(ENDED, 1);
    HARNESS_EQ(harness_load(CODE), -BX_E_CANCELLED);
}

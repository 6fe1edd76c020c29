/* SPDX-License-Identifier: MIT */
/*
 * The lifetime of a tensor on loan: it outlives the handler of any kind, the future, the message and the job, and its
 * memory is not used again before.
 */
#include "tests/harness/loans.h"

#include "rpc/rpc.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum gate { KEPT = 0, RELEASED, SHUT_DOWN };

/* ---- Beyond the handler -------------------------------------------------------------------------------- */

static const char *const keepers[] = { "keep", "keep_blocking", "keep_async", "keep_batch" };
static const char *const verifiers[] = { "verify", "verify_blocking", "verify_async" };

HARNESS_TEST(tensor_life, is_kept_beyond_a_handler_of_any_kind, 20, .size = 2, .setup = loans_setup)
{
    for (int to = 0; to < 2; to++) {
        const char *name = bx_worker_name(job, to);

        for (int kind = 0; kind < 3; kind++) {
            HARNESS_EQ(harness_call(job, name, verifiers[kind], loans_msg(job, 30, 2, 4000)), 2);
            loans_come_back(job, -1);
        }
        for (int kind = 0; kind < 4; kind++) {
            HARNESS_EQ(harness_call(job, name, keepers[kind], loans_msg(job, 40 + 3 * kind, 3, 4000)), 3);
            HARNESS_EQ(loans_of(job, to).leases, (unsigned)kind + 1);
        }
        HARNESS_CHECK(loans_of(job, to).bytes >= 4 * 3 * 4000);
        HARNESS_EQ(loans_of(job, 1 - to).leases, 0);
        HARNESS_EQ(loans_of(job, -1).leases, 4);
        HARNESS_EQ(harness_call(job, name, "drop", harness_msg_i64(12)), 0);
        HARNESS_EQ(loans_of(job, -1).leases, 0);
    }
}

HARNESS_TEST(tensor_life, is_kept_beyond_a_one_way_call, 20, .size = 2, .setup = loans_setup)
{
    for (int to = 0; to < 2; to++) {
        const char *name = bx_worker_name(job, to);
        struct bx_msg *args = loans_msg(job, 50, 2, 4000);

        for (int kind = 0; kind < 4; kind++)
            HARNESS_EQ(bx_rpc_oneway(job, name, keepers[kind], args, NULL), 0);
        bx_msg_destroy(args);
        /* The handlers of the pool and of the batch keep theirs later. */
        while (harness_call(job, name, "drop", harness_msg_i64(0)) < 8)
            ;
        HARNESS_EQ(loans_of(job, to).leases, 4);
        HARNESS_EQ(harness_call(job, name, "drop", harness_msg_i64(8)), 0);
        loans_come_back(job, -1);
    }
}

HARNESS_TEST(tensor_life, is_kept_beyond_its_future, 20, .size = 2, .setup = loans_setup)
{
    for (int to = 0; to < 2; to++) {
        struct bx_future *future = loans_start(job, bx_worker_name(job, to), "make", harness_msg_i64(2));
        struct bx_tensor *first, *second, *view = NULL;

        HARNESS_EQ(bx_future_wait(future, BX_FOREVER), 0);

        struct bx_reader reader = bx_msg_reader(bx_future_value(future));

        first = bx_tensor_acquire(bx_read_tensor(&reader));
        second = bx_read_tensor(&reader);
        HARNESS_EQ(bx_tensor_slice(second, 0, 0, 1000, 1, &view), 0);
        bx_future_release(future);
        HARNESS_EQ(loans_of(job, to).borrowed, 1);
        HARNESS_CHECK(loans_hold(first, 0) && loans_hold(view, 1));
        bx_tensor_release(first);
        /* A view of a tensor keeps the lease too. */
        HARNESS_EQ(loans_of(job, to).borrowed, 1);
        HARNESS_CHECK(loans_hold(view, 1));
        bx_tensor_release(view);
        /* The thread that completed the call may not have dropped its own reference yet. */
        HARNESS_WAIT_WHILE(loans_of(job, to).borrowed != 0);
    }
}

static int make_larger(struct bx_future *in, struct bx_msg *out, void *context)
{
    struct bx_reader reader = bx_msg_reader(bx_future_value(in));

    (void)context;
    while (bx_reader_tensors_left(&reader) > 0)
        HARNESS_EQ(bx_msg_put_tensor(out, bx_read_tensor(&reader)), 0);
    return bx_msg_put_i64(out, 5);
}

HARNESS_TEST(tensor_life, is_passed_on_by_then, 20, .size = 2, .setup = loans_setup)
{
    struct bx_future *future = loans_start(job, "worker1", "make", harness_msg_i64(2));
    struct bx_future *then = bx_future_then(future, make_larger, NULL, NULL);

    bx_future_release(future);
    HARNESS_EQ(bx_future_wait(then, BX_FOREVER), 0);

    struct bx_reader reader = bx_msg_reader(bx_future_value(then));

    HARNESS_EQ(bx_msg_tensors(bx_future_value(then)), 2);
    HARNESS_CHECK(loans_hold(bx_read_tensor(&reader), 0));
    HARNESS_CHECK(loans_hold(bx_read_tensor(&reader), 1));
    HARNESS_EQ(bx_read_i64(&reader), 5);
    bx_future_release(then);
    HARNESS_EQ(loans_of(job, 1).borrowed, 0);
}

/* ---- Beyond the job -------------------------------------------------------------------------------------- */

/* Each worker holds tensors of both when the jobs end. */
static void outlives_its_job(struct bx_job *job)
{
    const char *other = bx_worker_name(job, 1 - bx_job_rank(job));
    struct bx_tensor *own = loans_tensor(job, BX_F32, 100000, 70), *borrowed, *view = NULL;
    struct bx_msg *reply;

    harness_leaves_by_itself();
    reply = harness_ask(job, other, "make", harness_msg_i64(2));

    struct bx_reader reader = bx_msg_reader(reply);

    borrowed = bx_tensor_acquire(bx_read_tensor(&reader));
    HARNESS_EQ(bx_tensor_slice(own, 0, 10, 20, 1, &view), 0);
    harness_post(KEPT);
    harness_await(KEPT, 2);
    harness_check_rescued(job);
    HARNESS_EQ(bx_job_shutdown(job, 0), 0);
    HARNESS_CHECK(loans_hold(own, 70) && loans_hold(borrowed, 0));
    bx_msg_destroy(reply);
    bx_job_destroy(job);
    harness_post(SHUT_DOWN);
    harness_await(SHUT_DOWN, 2);
    HARNESS_CHECK(loans_hold(borrowed, 0));
    bx_tensor_release(borrowed);
    loans_fill(own, 71);
    HARNESS_CHECK(loans_hold(own, 71));
    HARNESS_EQ(bx_tensor_on_loan(own), 0);
    bx_tensor_release(own);
    memset(bx_tensor_data_mut(view), 1, bx_tensor_bytes(view));
    bx_tensor_release(view);
}

HARNESS_WORLD(tensor_life, is_kept_beyond_the_job, 20, .size = 2, .setup = loans_setup,
              .body = { outlives_its_job, outlives_its_job });

/* The worker that left had borrowed from this one, and had lent it what it keeps. */
static void is_left_with_it(struct bx_job *job)
{
    harness_await(RELEASED, 1);
    HARNESS_EQ(bx_loans_wait(job, 0, 0, BX_FOREVER), 0);
    HARNESS_EQ(harness_call(job, "worker1", "drop", harness_msg_i64(1)), 0);
    HARNESS_EQ(harness_call(job, "worker2", "verify", loans_msg(job, 1, 1, 10)), 1);
}

HARNESS_TEST(tensor_life, is_kept_beyond_a_job_that_was_not_shut_down, 20, .size = 3, .setup = loans_setup,
             .body = { NULL, is_left_with_it })
{
    struct bx_tensor *own = loans_tensor(job, BX_F32, 1000, 72);
    struct bx_msg *args = harness_msg_i64(72), *reply = NULL;

    harness_leaves_by_itself();
    HARNESS_EQ(bx_msg_put_tensor(args, own), 0);
    HARNESS_EQ(harness_call(job, "worker1", "keep", args), 1);
    args = harness_msg_i64(1);
    reply = harness_ask(job, "worker1", "make", args);
    bx_job_destroy(job);
    loans_end(reply, 0, 1);
    HARNESS_CHECK(loans_hold(own, 72));
    bx_tensor_release(own);
    harness_post(RELEASED);
}

/* ---- Not used again before the last lease is back ----------------------------------------------------------- */

#define POOL 24
#define ROUNDS 1500

struct item {
    struct bx_tensor *tensor;
    uint64_t number;
};
static struct item items[POOL];
static uint64_t lender_seed, keeper_seed;       /* of the body and of the handler: they run on different threads */

static uint64_t next_random(uint64_t *seed, uint64_t below)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (*seed >> 33) % below;
}

/* Puts the tensor into a random place of the pool. Releases the one that was there; its bytes must be unchanged. */
HARNESS_HANDLER(replace)
{
    while (bx_reader_tensors_left(args) > 0) {
        struct item *item = &items[next_random(&keeper_seed, POOL)];

        HARNESS_CHECK(item->tensor == NULL || loans_hold(item->tensor, item->number));
        bx_tensor_release(item->tensor);
        item->tensor = bx_tensor_acquire(bx_read_tensor(args));
        item->number = bx_read_u64(args);
        HARNESS_CHECK(loans_hold(item->tensor, item->number));
    }
    return 0;
}

HARNESS_HANDLER(empty)
{
    for (int i = 0; i < POOL; i++) {
        HARNESS_CHECK(items[i].tensor == NULL || loans_hold(items[i].tensor, items[i].number));
        bx_tensor_release(items[i].tensor);
        items[i].tensor = NULL;
    }
    return 0;
}

static int setup_stress(struct bx_job *job)
{
    lender_seed = (uint64_t)bx_job_rank(job) + 7;
    keeper_seed = (uint64_t)bx_job_rank(job) + 77;
    HARNESS_REGISTER(job, HARNESS_INLINE("replace", replace), HARNESS_INLINE("empty", empty));
    return loans_setup(job);
}

/* A size near that of a page or of a size class of jemalloc. */
static int64_t some_size(void)
{
    if (next_random(&lender_seed, 3) == 0)
        return (int64_t)next_random(&lender_seed, 60000) + 1;
    return (int64_t)(next_random(&lender_seed, 4) * 4096 + next_random(&lender_seed, 130)) + 1;
}

static void lends_and_forgets(struct bx_job *job)
{
    uint64_t number = (uint64_t)bx_job_rank(job) << 32;

    for (int round = 0; round < ROUNDS; round++) {
        struct bx_msg *msg = bx_msg_create(0);

        for (uint64_t i = next_random(&lender_seed, 4) + 1; i > 0; i--) {
            struct bx_tensor *tensor = loans_tensor(job, BX_U8, some_size(), ++number);

            HARNESS_EQ(bx_msg_put_tensor(msg, tensor), 0);
            HARNESS_EQ(bx_msg_put_u64(msg, number), 0);
            bx_tensor_release(tensor);
        }
        /* Many are lent to two workers: the block is free when both have returned it. */
        for (uint64_t i = next_random(&lender_seed, 2) + 1; i > 0; i--) {
            const char *to = bx_worker_name(job, (int)next_random(&lender_seed, 3));

            HARNESS_EQ(bx_rpc_oneway(job, to, "replace", msg, NULL), 0);
        }
        bx_msg_destroy(msg);
        if (round % 64 == 0)
            HARNESS_EQ(harness_call(job, "worker2", "echo", harness_msg_i64(round)), round);
    }
    harness_post(KEPT);
    harness_await(KEPT, 3);
    for (int to = 0; to < 3; to++)
        HARNESS_EQ(loans_try(job, bx_worker_name(job, to), "empty", NULL, NULL), 0);
    loans_come_back(job, -1);
    HARNESS_CHECK(loans_of(job, -1).granted >= ROUNDS);
    HARNESS_EQ(loans_of(job, -1).taken_back, 0);

    struct bx_arena_info info = { 0 };

    HARNESS_EQ(bx_job_arena(job, &info), 0);
    HARNESS_EQ(info.used_bytes, 0);
}

HARNESS_WORLD(tensor_life, keeps_its_memory_until_the_last_lease_is_returned, 120, .size = 3, .setup = setup_stress,
              .options = { .arena_bytes = 64 << 20 },
              .body = { lends_and_forgets, lends_and_forgets, lends_and_forgets });

HARNESS_WORLD(tensor_life, keeps_its_memory_until_the_last_lease_is_returned_asleep, 120, .size = 3,
              .setup = setup_stress, .options = { .arena_bytes = 64 << 20, .no_spin = true },
              .body = { lends_and_forgets, lends_and_forgets, lends_and_forgets });

/* Several threads of each worker lend to all workers and wait for their leases at the same time. */
static void lends_on_a_thread(struct bx_job *job, int index)
{
    for (int i = 0; i < 100; i++) {
        const char *to = bx_worker_name(job, (i + index) % 3);
        struct bx_msg *args = loans_msg(job, i, 2, 3000), *reply = NULL;

        HARNESS_EQ(bx_rpc_sync(job, to, verifiers[i % 3], args, NULL, NULL), 0);
        reply = harness_ask(job, to, "back", args);
        if (i % 16 == index)
            HARNESS_EQ(bx_loans_wait(job, (i + index) % 3, 2, BX_FOREVER), 0);
        loans_end(reply, (uint64_t)i, 2);
    }
}

static void lends_on_threads(struct bx_job *job)
{
    harness_threads(job, 4, lends_on_a_thread);
    harness_post(KEPT);
    harness_await(KEPT, 3);         /* replies to other workers are on loan too */
    loans_come_back(job, -1);
}

Test(tensor_life, is_counted_correctly_by_several_threads, .timeout = 60)
{
    for (int no_spin = 0; no_spin < 2; no_spin++) {
        harness_reset();
        harness_run(&(struct harness_world){
            .size = 3, .setup = loans_setup, .options = { .no_spin = no_spin != 0 },
            .body = { lends_on_threads, lends_on_threads, lends_on_threads } });
    }
}

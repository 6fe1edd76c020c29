/* SPDX-License-Identifier: MIT */
/*
 * The lifetime of a tensor on loan: it outlives the handler of any kind, the future and the message, and its memory is
 * not used again before. That it outlives the job: test_lease_death.c, test_early.c, and the simulator (`tensors`).
 */
#include "tests/harness/loans.h"

#include "rpc/rpc.h"

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

HARNESS_THEN(make_larger)
{
    struct bx_reader reader = bx_msg_reader(bx_future_value(in));

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

/* SPDX-License-Identifier: MIT */
/*
 * Waiting for leases (bx_loans_wait), and a worker whose arena is full: memory on loan is used again as soon as it is
 * returned. Arenas have a few megabytes here, so that they fill up quickly. That a return wakes a thread that waits is
 * the simulator's (tensors).
 */
#include "tests/harness/loans.h"

#include "rpc/rpc.h"

#define MEGABYTE (UINT64_C(1) << 20)
#define HALF ((int64_t)(512 << 10))

/* ---- bx_loans_wait ----------------------------------------------------------------------------------------- */

HARNESS_TEST(loans_wait, ends_at_its_deadline, 20, .size = 2, .setup = loans_setup)
{
    HARNESS_EQ(bx_loans_wait(job, 2, 0, 0), -EINVAL);
    HARNESS_EQ(bx_loans_wait(job, -2, 0, 0), -EINVAL);
    HARNESS_EQ(bx_loans_wait(job, -1, 0, 0), 0);
    for (int to = 0; to < 2; to++) {
        const char *name = bx_worker_name(job, to);

        for (int i = 0; i < 3; i++)
            HARNESS_EQ(harness_call(job, name, "keep", loans_msg(job, i, 1, 100)), 1);
        HARNESS_EQ(bx_loans_wait(job, to, 3, 0), 0);
        HARNESS_EQ(bx_loans_wait(job, 1 - to, 0, 0), 0);
        HARNESS_EQ(bx_loans_wait(job, to, 2, HARNESS_MS), BX_E_TIMEOUT);
        HARNESS_EQ(bx_loans_wait(job, to, 2, 0), BX_E_TIMEOUT);
        HARNESS_EQ(bx_loans_wait(job, -1, 0, HARNESS_MS), BX_E_TIMEOUT);
        HARNESS_EQ(harness_call(job, name, "drop", harness_msg_i64(1)), 2);
        HARNESS_EQ(bx_loans_wait(job, to, 2, 0), 0);
        HARNESS_EQ(harness_call(job, name, "drop", harness_msg_i64(2)), 0);
        HARNESS_EQ(bx_loans_wait(job, to, 0, 0), 0);
    }
}

/* Waits for worker 0's leases, in an inline handler of worker 0. */
HARNESS_HANDLER(waits_where_it_may_not)
{
    struct bx_job *job = bx_request_job(request);

    HARNESS_EQ(loans_of(job, -1).leases, 1);
    HARNESS_EQ(bx_loans_wait(job, 1, 0, BX_FOREVER), BX_E_WOULD_DEADLOCK);
    return bx_loans_wait(job, 1, 1, BX_FOREVER);
}

/* At loan_bytes_max, a call in an inline handler fails instead of waiting. */
HARNESS_HANDLER(lends_where_it_may_not_wait)
{
    struct bx_job *job = bx_request_job(request);
    OWN(msg) *msg = loans_msg(job, 1, 1, HALF);
    struct bx_future *future = NULL;

    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "keep", msg, NULL), -EAGAIN);
    HARNESS_EQ(bx_rpc_async(job, "worker1", "keep", msg, NULL, &future), -EAGAIN);
    HARNESS_CHECK(future == NULL);
    return 0;
}

HARNESS_TEST(loans_wait, is_refused_where_a_thread_may_not_wait, 20, .size = 2, .setup = loans_setup,
             .handlers = { HARNESS_INLINE("wait", waits_where_it_may_not),
                           HARNESS_INLINE("lend", lends_where_it_may_not_wait) },
             .options = { .loan_bytes_max = 600 << 10 })
{
    HARNESS_EQ(harness_call(job, "worker1", "keep", loans_msg(job, 1, 1, HALF)), 1);
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "wait", NULL, NULL, NULL), 0);
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "lend", NULL, NULL, NULL), 0);
    HARNESS_EQ(harness_call(job, "worker1", "drop", harness_msg_i64(1)), 0);
}

/* ---- The arena ----------------------------------------------------------------------------------------------- */

static struct bx_arena_info arena_of(struct bx_job *job)
{
    struct bx_arena_info info = { 0 };

    HARNESS_EQ(bx_job_arena(job, &info), 0);
    return info;
}

/* Makes tensors until the arena is full. Returns how many. */
static int fill_arena(struct bx_job *job, int64_t elements, struct bx_tensor **tensors, int most)
{
    int count = 0, rc = 0;

    while (count < most && (rc = bx_tensor_create(job, BX_U8, 1, &elements, &tensors[count])) == 0)
        count++;
    HARNESS_EQ(rc, BX_E_ARENA_FULL);
    return count;
}

static void empty_arena(struct bx_tensor **tensors, int count)
{
    for (int i = 0; i < count; i++)
        bx_tensor_release(tensors[i]);
}

HARNESS_TEST(arena_full, is_an_error_until_leases_are_returned, 20, .size = 2, .setup = loans_setup,
             .options = { .arena_bytes = 4 * MEGABYTE })
{
    struct bx_tensor *tensors[64];
    int64_t elements = HALF;
    int count, again;

    HARNESS_EQ(arena_of(job).size_bytes, 4 * MEGABYTE);
    for (int64_t i = 0; i < 4; i++)
        HARNESS_EQ(harness_call(job, "worker1", "keep", loans_msg(job, i, 1, HALF)), 1);
    count = fill_arena(job, elements, tensors, 64);
    HARNESS_HAS(bx_error_text(), "on loan");
    HARNESS_HAS(bx_error_text(), "arena_bytes");
    HARNESS_CHECK(count >= 1 && count <= 4);
    HARNESS_CHECK(arena_of(job).used_bytes >= (uint64_t)(4 + count) * (uint64_t)HALF);
    HARNESS_CHECK(arena_of(job).used_bytes <= arena_of(job).committed_bytes);
    HARNESS_CHECK(arena_of(job).committed_bytes <= 4 * MEGABYTE);

    /* A call that must copy into the full arena fails, and takes no lease. */
    struct bx_tensor *heap = loans_tensor(NULL, BX_U8, HALF, 1);
    struct bx_msg *args = harness_msg_i64(1);

    HARNESS_EQ(bx_msg_put_tensor(args, heap), 0);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "keep", args, NULL, NULL), BX_E_ARENA_FULL);
    HARNESS_EQ(loans_of(job, -1).leases, 4);

    /* The owner reads the lease words when it needs memory. */
    HARNESS_EQ(harness_call(job, "worker1", "drop", harness_msg_i64(3)), 1);
    again = fill_arena(job, elements, tensors + count, 64 - count);
    HARNESS_EQ(again, 3);
    empty_arena(tensors, count + again);
    HARNESS_EQ(harness_call(job, "worker1", "keep", args), 1);
    bx_tensor_release(heap);
    HARNESS_EQ(harness_call(job, "worker1", "drop", harness_msg_i64(9)), 0);
    HARNESS_EQ(loans_of(job, -1).leases, 0);
    HARNESS_EQ(arena_of(job).used_bytes, 0);
}

/* The reply's tensors do not fit into the arena, and neither do its bytes. */
HARNESS_HANDLER(make_a_lot)
{
    OWN(tensor) *tensor = loans_tensor(NULL, BX_U8, bx_read_i64(args), 1);

    return bx_msg_put_tensor(reply, tensor);
}

HARNESS_HANDLER(many_bytes)
{
    size_t bytes = (size_t)bx_read_i64(args);
    char *zeroes = calloc(1, bytes);
    int rc = bx_msg_put_bytes(reply, zeroes, bytes);

    free(zeroes);
    return rc;
}

HARNESS_TEST(arena_full, fails_a_reply_with_the_same_code, 20, .size = 2, .setup = loans_setup,
             .handlers = { HARNESS_INLINE("make_a_lot", make_a_lot), HARNESS_INLINE("many_bytes", many_bytes) },
             .options = { .arena_bytes = 4 * MEGABYTE })
{
    static const char *const functions[] = { "make_a_lot", "many_bytes" };

    for (int to = 0; to < 2; to++)
        for (int i = 0; i < 2; i++) {
            const char *name = bx_worker_name(job, to);
            struct bx_msg *large = harness_msg_i64(5 << 20), *small = harness_msg_i64(1 << 20);

            HARNESS_EQ(loans_try(job, name, functions[i], large, NULL), BX_E_ARENA_FULL);
            HARNESS_HAS(bx_error_text(), name);
            HARNESS_EQ(loans_try(job, name, functions[i], small, NULL), 0);
        }
}

HARNESS_TEST(arena_full, does_not_happen_if_all_leases_are_returned, 20, .size = 2, .setup = loans_setup,
             .options = { .arena_bytes = 4 * MEGABYTE })
{
    for (int64_t i = 0; i < 200; i++)
        HARNESS_EQ(harness_call(job, "worker1", "verify", loans_msg(job, i, 2, HALF)), 2);
    HARNESS_EQ(loans_of(job, -1).granted, 200);
    HARNESS_CHECK(arena_of(job).high_water_bytes <= 4 * MEGABYTE);
    HARNESS_CHECK(arena_of(job).high_water_bytes >= 2 * (uint64_t)HALF);
}

static void sees_eight_megabytes(struct bx_job *job)
{
    HARNESS_EQ(arena_of(job).size_bytes, 8 * MEGABYTE);
    HARNESS_EQ(arena_of(job).used_bytes, 0);
}

static void sees_64_gigabytes(struct bx_job *job)
{
    HARNESS_EQ(arena_of(job).size_bytes, UINT64_C(64) << 30);
    HARNESS_EQ(arena_of(job).committed_bytes, 0);
}

Test(arena_size, comes_from_the_options_else_the_environment_else_is_64_gigabytes, .timeout = 20)
{
    harness_run(&(struct harness_world){ .size = 2, .body = { sees_64_gigabytes } });
    setenv("BX_ARENA_BYTES", "8000000", 1);         /* is rounded up */
    harness_run(&(struct harness_world){ .size = 2, .body = { sees_eight_megabytes } });
    setenv("BX_ARENA_BYTES", "2000000", 1);
    harness_run(&(struct harness_world){ .size = 2, .body = { sees_eight_megabytes },
                                         .options = { .arena_bytes = 8 * MEGABYTE } });
}

HARNESS_TEST(arena_trim, frees_unused_memory, 20, .size = 2, .setup = loans_setup)
{
    struct bx_tensor *large = loans_tensor(job, BX_U8, 8 << 20, 1), *small = loans_tensor(job, BX_U8, 100, 2);
    struct bx_msg *args = harness_msg_i64(2);

    HARNESS_EQ(bx_msg_put_tensor(args, small), 0);
    bx_tensor_release(small);
    HARNESS_EQ(harness_call(job, "worker1", "keep", args), 1);
    HARNESS_CHECK(arena_of(job).used_bytes >= 8 * MEGABYTE);
    bx_tensor_release(large);
    HARNESS_CHECK(arena_of(job).used_bytes < MEGABYTE);
    HARNESS_CHECK(arena_of(job).high_water_bytes >= 8 * MEGABYTE);
    HARNESS_EQ(bx_arena_trim(job), 0);
    HARNESS_CHECK(arena_of(job).committed_bytes < 8 * MEGABYTE);
    HARNESS_EQ(arena_of(job).high_water_bytes, arena_of(job).used_bytes);
    /* The tensor on loan is unchanged, and there is room again. */
    HARNESS_EQ(harness_call(job, "worker1", "drop", harness_msg_i64(1)), 0);
    large = loans_tensor(job, BX_U8, 8 << 20, 3);
    HARNESS_CHECK(loans_hold(large, 3));
    bx_tensor_release(large);
    /* Memory that was returned since is trimmed too. */
    HARNESS_EQ(bx_arena_trim(job), 0);
    HARNESS_EQ(arena_of(job).used_bytes, 0);
    HARNESS_CHECK(arena_of(job).committed_bytes < MEGABYTE);
}

/* ---- A full /dev/shm ------------------------------------------------------------------------------------------- */

/* Worker 0 has its ring and a tensor; worker 1 finds no room for its own ring, and so none for lease words. */
HARNESS_TEST(lease, of_a_refused_request_ends_with_the_refusal, 30, .size = 2, .setup = loans_setup,
             .shm_kib = HARNESS_HALF_RINGS(3))
{
    OWN(msg) *args = loans_msg(job, 1, 1, 100);
    struct bx_future *future[3];

    HARNESS_EQ(bx_rpc_sync(job, "worker1", "verify", args, NULL, NULL), BX_E_REFUSED);
    HARNESS_EQ(bx_loans_wait(job, 1, 0, BX_FOREVER), 0);
    for (int i = 0; i < 3; i++)
        HARNESS_EQ(bx_rpc_async(job, "worker1", "verify", args, NULL, &future[i]), 0);
    harness_end_all(future, 3, BX_E_REFUSED);
    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "verify", args, NULL), 0);
    HARNESS_EQ(bx_loans_wait(job, 1, 0, BX_FOREVER), 0);
    HARNESS_EQ(loans_of(job, 1).granted, 5);
    HARNESS_EQ(loans_of(job, 1).returned, 5);
    harness_resize_shm(8 << 20);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "verify", args, NULL, NULL), 0);
}

HARNESS_TEST(arena_full, is_another_error_than_a_full_dev_shm, 30, .size = 2, .setup = loans_setup, .shm_kib = 4096)
{
    struct bx_tensor *tensor = NULL, *heap = loans_tensor(NULL, BX_U8, 6 << 20, 1);
    struct bx_msg *args = harness_msg_i64(1);

    HARNESS_EQ(bx_msg_put_tensor(args, heap), 0);
    bx_tensor_release(heap);
    HARNESS_EQ(bx_tensor_create(job, BX_U8, 1, &(int64_t){ 6 << 20 }, &tensor), BX_E_NO_SPACE);
    HARNESS_HAS(bx_error_text(), "/dev/shm");
    HARNESS_CHECK(tensor == NULL);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "verify", args, NULL, NULL), BX_E_NO_SPACE);
    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "verify", args, NULL), BX_E_NO_SPACE);
    HARNESS_EQ(harness_call(job, "worker1", "verify", loans_msg(job, 1, 1, 10000)), 1);
    harness_resize_shm(16 << 20);
    HARNESS_EQ(harness_call(job, "worker1", "verify", args), 1);
}

/* ---- Before the start ---------------------------------------------------------------------------------------- */

static int setup_too_early(struct bx_job *job)
{
    struct bx_arena_info info = { 0 };
    struct bx_loans loans = { 0 };

    HARNESS_EQ(bx_job_arena(job, &info), BX_E_STATE);
    HARNESS_EQ(bx_arena_trim(job), BX_E_STATE);
    HARNESS_EQ(bx_job_loans(job, -1, &loans), BX_E_STATE);
    HARNESS_EQ(bx_loans_wait(job, -1, 0, 0), BX_E_STATE);
    return 0;
}

HARNESS_TEST(arena, has_no_figures_before_the_start, 20, .size = 2, .setup = setup_too_early)
{
    HARNESS_EQ(arena_of(job).used_bytes, 0);
}

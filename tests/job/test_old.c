/* SPDX-License-Identifier: MIT */
/*
 * lib/job/old.c, and BX_SINCE_0_2 of boxcar.h: each function that takes options reads a field since 0.2 that is set,
 * with struct_bytes or without; its symbol of 0.1 reads none behind the struct of 0.1. The functions that had fewer
 * parameters in 0.1.
 */
#include "tests/harness/harness.h"

#include "job/old.h"

#define UNKNOWN_FLAG (UINT64_C(1) << 63)
#define CALL_BYTES_0_1 24

static const struct bx_type type = { .name = "thing" };

HARNESS_HANDLER(make)
{
    return bx_msg_put_object(bx_request_job(request), reply, &type, NULL);
}

static int setup(struct bx_job *job)
{
    int rc = bx_register(job, "make", BX_INLINE, make, NULL);

    return rc < 0 ? rc : bx_register_method(job, &type, "make again", BX_INLINE, make, NULL);
}

static void end(struct bx_future *future)
{
    bx_future_wait(future, BX_FOREVER);
    bx_future_release(future);
}

/* The functions, by their names of today or by the symbols of 0.1. */
struct calls {
    __typeof__(bx_rpc_sync) *rpc_sync;
    __typeof__(bx_rpc_async) *rpc_async;
    __typeof__(bx_rpc_many) *rpc_many;
    __typeof__(bx_rpc_oneway) *rpc_oneway;
    __typeof__(bx_remote) *remote;
    __typeof__(bx_rref_sync) *rref_sync;
    __typeof__(bx_rref_async) *rref_async;
    __typeof__(bx_rref_oneway) *rref_oneway;
    __typeof__(bx_rref_remote) *rref_remote;
    __typeof__(bx_rref_to_here) *to_here;
    __typeof__(bx_rref_to_here_async) *to_here_async;
};
static const struct calls now = { bx_rpc_sync, bx_rpc_async, bx_rpc_many, bx_rpc_oneway, bx_remote, bx_rref_sync,
                                  bx_rref_async, bx_rref_oneway, bx_rref_remote, bx_rref_to_here,
                                  bx_rref_to_here_async };
static const struct calls old = { bxi_old_rpc_sync, bxi_old_rpc_async, bxi_old_rpc_many, bxi_old_rpc_oneway,
                                  bxi_old_remote, bxi_old_rref_sync, bxi_old_rref_async, bxi_old_rref_oneway,
                                  bxi_old_rref_remote, bxi_old_rref_to_here, bxi_old_rref_to_here_async };

/* Each returns rc; the object has no value. */
static void call_each(struct bx_job *job, const struct calls *calls, const struct bx_call_options *options, int rc)
{
    struct bx_future *future[4] = { NULL };
    struct bx_rref *rref = NULL, *made[2] = { NULL };
    struct bx_msg *value = NULL;

    HARNESS_EQ(bx_rref_create(job, &type, NULL, &rref), 0);
    HARNESS_EQ(calls->rpc_sync(job, "worker0", "make", NULL, options, NULL), rc);
    HARNESS_EQ(calls->rpc_async(job, "worker0", "make", NULL, options, &future[0]), rc);
    HARNESS_EQ(calls->rpc_many(job, "worker0", "make", 1, NULL, options, &future[1]), rc);
    HARNESS_EQ(calls->rpc_oneway(job, "worker0", "make", NULL, options), rc);
    HARNESS_EQ(calls->remote(job, "worker0", "make", NULL, options, &made[0]), rc);
    HARNESS_EQ(calls->rref_sync(rref, "make again", NULL, options, NULL), rc);
    HARNESS_EQ(calls->rref_async(rref, "make again", NULL, options, &future[2]), rc);
    HARNESS_EQ(calls->rref_oneway(rref, "make again", NULL, options), rc);
    HARNESS_EQ(calls->rref_remote(rref, "make again", NULL, options, &made[1]), rc);
    HARNESS_EQ(calls->to_here(rref, options, &value), rc == 0 ? BX_E_TYPE : rc);
    HARNESS_EQ(calls->to_here_async(rref, options, &future[3]), rc);
    for (int i = 0; i < 4; i++)
        if (future[i] != NULL)
            end(future[i]);
    for (int i = 0; i < 2; i++)
        bx_rref_release(made[i]);
    bx_rref_release(rref);
}

HARNESS_TEST(old, a_field_that_is_set_is_read_with_or_without_a_size, 20, .size = 2, .setup = setup)
{
    struct bx_call_options options = { .flags = UNKNOWN_FLAG };

    call_each(job, &now, &options, -EINVAL);
    options.struct_bytes = sizeof options;
    call_each(job, &now, &options, -EINVAL);
    call_each(job, &old, &options, -EINVAL);
}

/* The memory behind the struct of 0.1 cannot be read. */
HARNESS_TEST(old, symbols_read_nothing_behind_a_struct_of_0_1, 20, .size = 2, .setup = setup)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    HARNESS_CHECK(pages != MAP_FAILED);
    HARNESS_EQ(mprotect(pages + page, page, PROT_NONE), 0);
    call_each(job, &old, (struct bx_call_options *)(void *)(pages + page - CALL_BYTES_0_1), 0);
    call_each(job, &old, NULL, 0);
    munmap(pages, 2 * page);
}

/* ---- Functions with fewer parameters ------------------------------------------------------------------ */

HARNESS_THEN(add_one)
{
    return bx_msg_put_i64(out, 1 + bx_future_error(in));
}

Test(old, then_has_no_function_to_free, .timeout = 20)
{
    OWN(future) *set = bx_future_create(NULL), *failed = bx_future_create(NULL);
    OWN(future) *then = bxi_old_future_then(set, add_one, NULL);
    OWN(future) *any = bxi_old_future_then_any(failed, add_one, NULL);

    cr_expect(!bxi_old_future_done(set));
    bx_future_set(set, NULL);
    cr_expect(bxi_old_future_done(set));
    bx_future_fail(failed, -EIO, NULL);
    cr_expect_eq(*(const int64_t *)bx_msg_data(bx_future_value(then)), 1);
    cr_expect_eq(*(const int64_t *)bx_msg_data(bx_future_value(any)), 1 - EIO);
}

HARNESS_ASYNC_HANDLER(later)
{
    *reply = bx_future_create(bx_request_job(request));
    return bx_future_set(*reply, NULL);
}

static int setup_async(struct bx_job *job)
{
    int rc = bxi_old_register_async(job, "later", later, NULL);

    return rc < 0 ? rc : bxi_old_register_method_async(job, &type, "method", later, NULL);
}

HARNESS_TEST(old, async_handlers_have_no_kind, 20, .size = 2, .setup = setup_async)
{
    OWN(rref) *rref = NULL;

    HARNESS_EQ(bx_rpc_sync(job, "worker1", "later", NULL, NULL, NULL), 0);
    HARNESS_CHECK(bxi_old_worker_alive(job, 1));
    HARNESS_CHECK(!bxi_old_worker_alive(job, 2));
    HARNESS_EQ(bx_rref_create(job, &type, NULL, &rref), 0);
    HARNESS_EQ(bx_rref_sync(rref, "method", NULL, NULL, NULL), 0);
}

Test(old, dlpack_has_no_stream, .timeout = 20)
{
    OWN(tensor) *tensor = NULL, *back = NULL, *again = NULL;
    struct DLManagedTensor *managed = NULL;
    struct DLManagedTensorVersioned *versioned = NULL;

    cr_assert_eq(bx_tensor_create(NULL, BX_F32, 1, (const int64_t[]){ 3 }, &tensor), 0);
    cr_expect_eq(bxi_old_to_dlpack(tensor, &managed), 0);
    cr_expect_eq(bxi_old_to_dlpack_versioned(tensor, &versioned), 0);
    cr_assert_eq(bxi_old_from_dlpack(managed, &back), 0);
    cr_assert_eq(bxi_old_from_dlpack_versioned(versioned, &again), 0);
    cr_expect_eq(bx_tensor_data(back), bx_tensor_data(tensor));
    cr_expect_eq(bx_tensor_data(again), bx_tensor_data(tensor));
}

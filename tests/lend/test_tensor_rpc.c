/* SPDX-License-Identifier: MIT */
/*
 * Tensors in messages: which bytes arrive at another worker, which are copied, who may write to them, and how long they
 * stay unchanged. test_lease.c tests when leases are returned.
 */
#include "tests/harness/loans.h"

#include "rpc/rpc.h"

#include <setjmp.h>

enum gate { KEPT = 0, CHANGED };

static void expect_copied(struct bx_job *job, uint64_t tensors, uint64_t bytes)
{
    HARNESS_EQ(harness_counter(job, "tensors_copied"), tensors);
    HARNESS_EQ(harness_counter(job, "tensor_bytes_copied"), bytes);
}

/* ---- What arrives ------------------------------------------------------------------------------------ */

/* Sends a tensor and gets it back: a view of its own memory. */
static void there_and_back(struct bx_job *job, enum bx_dtype dtype, uint64_t number)
{
    static const int64_t shape[] = { 3, 1, 7 };
    OWN(msg) *args = bx_msg_create(0), *reply = NULL;
    OWN(tensor) *tensor = NULL;

    HARNESS_EQ(bx_tensor_create(job, dtype, 3, shape, &tensor), 0);
    HARNESS_CHECK(bx_tensor_is_shared(tensor) && !bx_tensor_is_borrowed(tensor));
    loans_fill(tensor, number);
    HARNESS_EQ(bx_msg_put_tensor(args, tensor), 0);
    HARNESS_EQ(bx_msg_tensors(args), 1);
    HARNESS_EQ(bx_msg_bytes(args), 0);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "back", args, NULL, &reply), 0);
    HARNESS_EQ(bx_msg_tensors(reply), 1);

    struct bx_reader reader = bx_msg_reader(reply);
    struct bx_tensor *other = bx_read_tensor(&reader);

    HARNESS_EQ(bx_tensor_dtype(other), dtype);
    HARNESS_EQ(bx_tensor_ndim(other), 3);
    HARNESS_EQ(memcmp(bx_tensor_shape(other), shape, sizeof(shape)), 0);
    HARNESS_EQ(memcmp(bx_tensor_strides(other), bx_tensor_strides(tensor), sizeof(shape)), 0);
    HARNESS_EQ(bx_tensor_elements(other), 21);
    HARNESS_EQ(bx_tensor_device(other).kind, BX_CPU);
    HARNESS_CHECK(bx_tensor_is_contiguous(other) && bx_tensor_is_borrowed(other));
    HARNESS_CHECK(loans_hold(other, number));
}

HARNESS_TEST(tensor_rpc, of_each_dtype_arrive_equal_and_nothing_is_copied, 20, .size = 2, .setup = loans_setup)
{
    uint64_t bytes = 0;

    for (enum bx_dtype dtype = BX_F32; dtype <= BX_C128; dtype++) {
        there_and_back(job, dtype, 1000 + (uint64_t)dtype);
        bytes += 21 * bx_dtype_bytes(dtype);
    }
    HARNESS_EQ(harness_counter(job, "tensors_sent"), BX_C128);
    HARNESS_EQ(harness_counter(job, "tensor_bytes_sent"), bytes);
    expect_copied(job, 0, 0);
}

static void sends_many(struct bx_job *job, int count, int64_t elements, const char *to)
{
    HARNESS_EQ(harness_call(job, to, "verify", loans_msg(job, 5, count, elements)), count);
    HARNESS_EQ(harness_call(job, to, "keep", loans_msg(job, 5, count, elements)), count);
    HARNESS_EQ(loans_of(job, bx_worker_rank(job, to)).leases, 1);
    /* The message is destroyed; only the last tensor keeps the lease. */
    HARNESS_EQ(harness_call(job, to, "drop", harness_msg_i64(count - 1)), 1);
    HARNESS_EQ(loans_of(job, bx_worker_rank(job, to)).leases, 1);
    HARNESS_EQ(harness_call(job, to, "drop", harness_msg_i64(1)), 0);
    HARNESS_EQ(loans_of(job, bx_worker_rank(job, to)).leases, 0);
    loans_come_back(job, -1);
}

/* Their descriptors have 240 kB, more than the 16 KiB of a frame, so they go by the arena. */
HARNESS_TEST(tensor_rpc, travel_10000_in_one_message, 60, .size = 2, .setup = loans_setup)
{
    struct bx_tensor *tensor = loans_tensor(job, BX_I64, 3, 5);
    struct bx_msg *args = harness_msg_i64(7), *reply = NULL;

    for (int i = 0; i < 10000; i++)
        HARNESS_EQ(bx_msg_put_tensor(args, tensor), 0);
    reply = harness_ask(job, "worker1", "back", args);
    bx_tensor_release(tensor);

    struct bx_reader reader = bx_msg_reader(reply);

    HARNESS_EQ(bx_reader_tensors_left(&reader), 10000);
    for (int i = 0; i < 10000; i++)
        HARNESS_CHECK(loans_hold(bx_read_tensor(&reader), 5));
    HARNESS_CHECK(bx_read_tensor(&reader) == NULL);
    bx_msg_destroy(reply);
    expect_copied(job, 0, 0);
    sends_many(job, 3000, 5, "worker1");
    sends_many(job, 3000, 5, "worker0");
}

/* Bytes lie before, between and behind the tensors: bytes and tensors have separate orders. */
HARNESS_TEST(tensor_rpc, travel_beside_the_bytes_of_their_message, 20, .size = 2, .setup = loans_setup)
{
    struct bx_msg *args = bx_msg_create(0), *reply = NULL;
    OWN(tensor) *tensor = loans_tensor(job, BX_F32, 10, 8);

    HARNESS_EQ(bx_msg_put_i64(args, 8), 0);
    HARNESS_EQ(bx_msg_put_tensor(args, tensor), 0);
    HARNESS_EQ(bx_msg_put_str(args, "behind it"), 0);
    HARNESS_EQ(harness_call(job, "worker1", "verify", args), 1);

    args = harness_msg_i64(2);
    reply = harness_ask(job, "worker1", "make", args);
    HARNESS_EQ(bx_msg_tensors(reply), 2);
    /* A received message can be extended and sent on. */
    HARNESS_EQ(bx_msg_put_tensor(reply, tensor), 0);
    HARNESS_EQ(bx_msg_put_i64(reply, 99), 0);
    HARNESS_EQ(bx_msg_tensors(reply), 3);
    args = reply;
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "back", args, NULL, &reply), 0);

    struct bx_reader reader = bx_msg_reader(reply);

    HARNESS_CHECK(loans_hold(bx_read_tensor(&reader), 0));
    HARNESS_CHECK(loans_hold(bx_read_tensor(&reader), 1));
    HARNESS_CHECK(loans_hold(bx_read_tensor(&reader), 8));
    bx_msg_destroy(reply);
    expect_copied(job, 0, 0);
    bx_msg_clear(args);
    HARNESS_EQ(bx_msg_tensors(args), 0);
    HARNESS_EQ(bx_msg_bytes(args), 0);
    HARNESS_EQ(bx_msg_put_i64(args, 3), 0);
    HARNESS_EQ(harness_call(job, "worker1", "echo", args), 3);
}

/* ---- Large messages without tensors -------------------------------------------------------------------- */

/* Sets a size that the message does not have, so that the test needs no gigabyte of memory. */
static void pretend_bytes(struct bx_msg *msg, uint64_t bytes)
{
    msg->bytes = bytes;
}

HARNESS_HANDLER(too_much)
{
    pretend_bytes(reply, BX_MSG_MAX + 1);
    return 0;
}

static void echoes_bytes(struct bx_job *job, const char *to, const char *function, size_t bytes)
{
    struct bx_msg *args = bx_msg_create(bytes), *reply = NULL;
    uint32_t *data = calloc(1, bytes);

    HARNESS_CHECK(args != NULL && data != NULL);
    for (size_t i = 0; i < bytes / 4; i++)
        data[i] = (uint32_t)(i * 2654435761u);
    HARNESS_EQ(bx_msg_put_bytes(args, data, bytes), 0);
    HARNESS_EQ(bx_rpc_sync(job, to, function, args, NULL, &reply), 0);
    HARNESS_EQ(bx_msg_bytes(reply), bytes);
    HARNESS_EQ(memcmp(bx_msg_data(reply), data, bytes), 0);
    bx_msg_destroy(reply);
    bx_msg_destroy(args);
    free(data);
}

HARNESS_TEST(tensor_rpc, are_not_needed_for_messages_of_1_and_20_megabytes, 60, .size = 2, .setup = loans_setup,
             .handlers = { HARNESS_INLINE("bytes", harness_echo_bytes),
                           HARNESS_BLOCKING("bytes_blocking", harness_echo_bytes) })
{
    static const size_t sizes[] = { BXI_BODY_MAX, BXI_BODY_MAX + 1, 1 << 20, 20 << 20 };

    for (int to = 0; to < 2; to++)
        for (int i = 0; i < 4; i++) {
            echoes_bytes(job, bx_worker_name(job, to), "bytes", sizes[i]);
            echoes_bytes(job, bx_worker_name(job, to), "bytes_blocking", sizes[i]);
        }
    expect_copied(job, 0, 0);
    loans_come_back(job, -1);
}

HARNESS_TEST(tensor_rpc, are_not_needed_to_fail_a_message_that_is_too_large, 20, .size = 2, .setup = loans_setup,
             .handlers = { HARNESS_INLINE("bytes", harness_echo_bytes), HARNESS_BLOCKING("too_much", too_much) })
{
    for (int to = 0; to < 2; to++) {
        const char *name = bx_worker_name(job, to);
        struct bx_msg *args = harness_msg_i64(1);
        struct bx_future *future = NULL;
        size_t bytes = bx_msg_bytes(args);

        pretend_bytes(args, BX_MSG_MAX + 1);
        HARNESS_EQ(bx_rpc_sync(job, name, "bytes", args, NULL, NULL), BX_E_TOO_LARGE);
        HARNESS_EQ(bx_rpc_oneway(job, name, "bytes", args, NULL), BX_E_TOO_LARGE);
        HARNESS_EQ(bx_rpc_async(job, name, "bytes", args, NULL, &future), BX_E_TOO_LARGE);
        HARNESS_CHECK(future == NULL);
        pretend_bytes(args, bytes);
        HARNESS_EQ(harness_call(job, name, "echo", args), 1);
        HARNESS_EQ(bx_rpc_sync(job, name, "too_much", NULL, NULL, NULL), BX_E_TOO_LARGE);
    }
    HARNESS_EQ(harness_counter(job, "leases_granted"), 0);
}

/* ---- Views, scalars, empty tensors ------------------------------------------------------------------------ */

static int64_t at(const struct bx_tensor *tensor, int64_t row, int64_t column)
{
    const int64_t *data = bx_tensor_data(tensor), *strides = bx_tensor_strides(tensor);

    return data[row * strides[0] + column * strides[1]];
}

/* Answers the tensor's strides and the elements that it reads through them. */
HARNESS_HANDLER(read_strided)
{
    struct bx_tensor *tensor = bx_read_tensor(args);

    HARNESS_EQ(bx_tensor_ndim(tensor), 2);
    for (int dim = 0; dim < 2; dim++)
        bx_msg_put_i64(reply, bx_tensor_strides(tensor)[dim]);
    for (int64_t row = 0; row < bx_tensor_dim(tensor, 0); row++)
        for (int64_t column = 0; column < bx_tensor_dim(tensor, 1); column++)
            bx_msg_put_i64(reply, at(tensor, row, column));
    return bx_msg_error(reply);
}

static void sends_view(struct bx_job *job, const char *to, struct bx_tensor *view)
{
    OWN(msg) *args = bx_msg_create(0), *reply = NULL;

    HARNESS_EQ(bx_msg_put_tensor(args, view), 0);
    HARNESS_EQ(bx_rpc_sync(job, to, "strided", args, NULL, &reply), 0);

    struct bx_reader reader = bx_msg_reader(reply);

    HARNESS_EQ(bx_read_i64(&reader), bx_tensor_strides(view)[0]);
    HARNESS_EQ(bx_read_i64(&reader), bx_tensor_strides(view)[1]);
    for (int64_t row = 0; row < bx_tensor_dim(view, 0); row++)
        for (int64_t column = 0; column < bx_tensor_dim(view, 1); column++)
            HARNESS_EQ(bx_read_i64(&reader), at(view, row, column));
    HARNESS_EQ(reader.error, 0);
    HARNESS_EQ(bx_reader_left(&reader), 0);
    bx_tensor_release(view);
}

HARNESS_TEST(tensor_rpc, that_are_strided_views_keep_their_strides, 20, .size = 2, .setup = loans_setup,
             .handlers = { HARNESS_INLINE("strided", read_strided) })
{
    static const int64_t shape[] = { 6, 10 }, again[] = { 4, 5 }, none[] = { 0, 1 };
    struct bx_tensor *tensor = NULL, *view = NULL;

    HARNESS_EQ(bx_tensor_create(job, BX_I64, 2, shape, &tensor), 0);
    for (int64_t i = 0; i < 60; i++)
        ((int64_t *)bx_tensor_data_mut(tensor))[i] = i * i;
    for (int to = 0; to < 2; to++) {
        const char *name = bx_worker_name(job, to);

        sends_view(job, name, bx_tensor_acquire(tensor));
        HARNESS_EQ(bx_tensor_slice(tensor, 1, 3, 9, 2, &view), 0);
        sends_view(job, name, view);
        HARNESS_EQ(bx_tensor_slice(tensor, 0, 2, 6, 3, &view), 0);
        sends_view(job, name, view);
        HARNESS_EQ(bx_tensor_transpose(tensor, 0, 1, &view), 0);
        sends_view(job, name, view);
        HARNESS_EQ(bx_tensor_as_strided(tensor, 7, 2, again, none, &view), 0);
        sends_view(job, name, view);
    }
    expect_copied(job, 0, 0);
    bx_tensor_release(tensor);
}

static struct bx_tensor *first_back(struct bx_job *job, struct bx_tensor *tensor)
{
    struct bx_msg *args = bx_msg_create(0), *reply = NULL;

    HARNESS_EQ(bx_msg_put_tensor(args, tensor), 0);
    reply = harness_ask(job, "worker1", "back", args);

    struct bx_reader reader = bx_msg_reader(reply);
    struct bx_tensor *other = bx_tensor_acquire(bx_read_tensor(&reader));

    bx_msg_destroy(reply);
    return other;
}

HARNESS_TEST(tensor_rpc, without_dimensions_or_without_elements_arrive, 20, .size = 2, .setup = loans_setup)
{
    static const int64_t empty[] = { 4, 0, 3 };
    struct bx_job *const where[] = { job, NULL };

    for (int i = 0; i < 2; i++) {
        struct bx_tensor *tensor = NULL, *other;

        HARNESS_EQ(bx_tensor_create(where[i], BX_F64, 0, NULL, &tensor), 0);
        *(double *)bx_tensor_data_mut(tensor) = 2.5;
        other = first_back(job, tensor);
        HARNESS_EQ(bx_tensor_ndim(other), 0);
        HARNESS_EQ(bx_tensor_elements(other), 1);
        HARNESS_CHECK(*(const double *)bx_tensor_data(other) == 2.5);
        bx_tensor_release(other);
        bx_tensor_release(tensor);

        HARNESS_EQ(bx_tensor_create(where[i], BX_I32, 3, empty, &tensor), 0);
        other = first_back(job, tensor);
        HARNESS_EQ(bx_tensor_ndim(other), 3);
        HARNESS_EQ(memcmp(bx_tensor_shape(other), empty, sizeof(empty)), 0);
        HARNESS_EQ(bx_tensor_elements(other), 0);
        HARNESS_EQ(bx_tensor_dtype(other), BX_I32);
        bx_tensor_release(other);
        bx_tensor_release(tensor);
    }
    loans_come_back(job, -1);
}

/* ---- What is copied ---------------------------------------------------------------------------------------- */

static void was_freed(void *context)
{
    ++*(int *)context;
}

HARNESS_TEST(tensor_rpc, outside_of_the_arena_are_copied_once_per_send_and_counted, 20, .size = 2, .setup = loans_setup)
{
    static const int64_t elements = 1000;
    static unsigned char memory[1000];
    struct bx_tensor *heap = loans_tensor(NULL, BX_F32, elements, 9), *wrapped = NULL, *other;
    int freed = 0;

    HARNESS_CHECK(!bx_tensor_is_shared(heap));
    for (uint64_t i = 1; i <= 3; i++) {
        other = first_back(job, heap);
        HARNESS_CHECK(loans_hold(other, 9));
        bx_tensor_release(other);
        expect_copied(job, i, i * 4000);
    }
    HARNESS_EQ(bx_tensor_wrap(memory, BX_U8, 1, &elements, NULL, was_freed, &freed, &wrapped), 0);
    loans_fill(wrapped, 10);
    other = first_back(job, wrapped);
    bx_tensor_release(wrapped);
    HARNESS_EQ(freed, 1);               /* the copy is on loan, not the original */
    memset(memory, 0, sizeof(memory));
    HARNESS_CHECK(loans_hold(other, 10));
    expect_copied(job, 4, 13000);
    bx_tensor_release(other);
    bx_tensor_release(heap);
    loans_come_back(job, -1);
}

/* ---- Lender and borrower share the memory --------------------------------------------------------------------- */

static sigjmp_buf fault_return;
static volatile uintptr_t fault_address;
static volatile int fault_code;

static void on_fault(int signal_number, siginfo_t *info, void *context)
{
    (void)signal_number, (void)context;
    fault_address = (uintptr_t)info->si_addr;
    fault_code = info->si_code;
    siglongjmp(fault_return, 1);
}

static bool write_faults(const void *place)
{
    struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO }, before;
    volatile bool faulted = true;

    HARNESS_EQ(sigaction(SIGSEGV, &action, &before), 0);
    if (sigsetjmp(fault_return, 1) == 0) {
        *(volatile unsigned char *)(uintptr_t)place = 1;
        faulted = false;
    }
    HARNESS_EQ(sigaction(SIGSEGV, &before, NULL), 0);
    return faulted;
}

HARNESS_TEST(tensor_rpc, on_loan_cannot_be_written_to, 20, .size = 2, .setup = loans_setup)
{
    for (int to = 0; to < 2; to++) {
        OWN(msg) *reply = harness_ask(job, bx_worker_name(job, to), "make", harness_msg_i64(1));

        struct bx_reader reader = bx_msg_reader(reply);
        struct bx_tensor *tensor = bx_read_tensor(&reader), *view = NULL;

        HARNESS_CHECK(bx_tensor_data_mut(tensor) == NULL);
        HARNESS_EQ(bx_tensor_slice(tensor, 0, 1, 2, 1, &view), 0);
        HARNESS_CHECK(bx_tensor_data_mut(view) == NULL && bx_tensor_is_borrowed(view));
        HARNESS_EQ(bx_tensor_copy_into(tensor, tensor), -EROFS);
        HARNESS_CHECK(write_faults(bx_tensor_data(tensor)));
        HARNESS_EQ(fault_address, (uintptr_t)bx_tensor_data(tensor));
        HARNESS_EQ(fault_code, SEGV_ACCERR);
        HARNESS_CHECK(loans_hold(tensor, 0));
        bx_tensor_release(view);
    }
}

static uint32_t on_loan(struct bx_job *job, const struct bx_tensor *tensor)
{
    loans_of(job, -1);          /* reads the lease words */
    return bx_tensor_on_loan(tensor);
}

/* Writes to a tensor on loan, which programs must not. It shows that lender and borrower have the same memory. */
HARNESS_TEST(tensor_rpc, on_loan_are_the_owner_s_own_memory, 20, .size = 2, .setup = loans_setup)
{
    for (int to = 0; to < 2; to++) {
        OWN(tensor) *tensor = loans_tensor(job, BX_U8, 100, 1);
        struct bx_msg *args = harness_msg_i64(1);
        const char *name = bx_worker_name(job, to);

        HARNESS_EQ(bx_msg_put_tensor(args, tensor), 0);
        HARNESS_EQ(on_loan(job, tensor), 0);
        HARNESS_EQ(bx_rpc_sync(job, name, "keep", args, NULL, NULL), 0);
        HARNESS_EQ(on_loan(job, tensor), 1);
        HARNESS_EQ(harness_call(job, name, "keep", args), 1);
        HARNESS_EQ(on_loan(job, tensor), 2);
        loans_fill(tensor, 2);
        HARNESS_EQ(harness_call(job, name, "peek", NULL), ((const unsigned char *)bx_tensor_data(tensor))[77]);
        loans_fill(tensor, 1);          /* the bytes that "drop" checks */
        HARNESS_EQ(harness_call(job, name, "drop", harness_msg_i64(1)), 1);
        HARNESS_EQ(on_loan(job, tensor), 1);
        HARNESS_EQ(harness_call(job, name, "drop", harness_msg_i64(1)), 0);
        HARNESS_EQ(on_loan(job, tensor), 0);
    }
}

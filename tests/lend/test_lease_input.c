/* SPDX-License-Identifier: MIT */
/*
 * A worker that sends wrong lease heads, tensor descriptors and lease words.
 *
 * As in test_fuzz.c worker 0 is the receiver, worker 1 is hostile and killed at the end of each test, and worker 2 is a
 * bystander. One test shows that a correct frame made by hand is accepted; each forgery differs from it in one field.
 * Worker 0 must then cut worker 1 off, keep nothing that it borrowed from it, get its own leases back once worker 1 is
 * dead, and go on with worker 2. Arenas have a few megabytes, so that offsets outside of them are small.
 */
#include "tests/harness/hostile.h"
#include "tests/harness/loans.h"

#include "rpc/rpc.h"

enum gate { TAKEN };
enum value { TAKEN_BYTES = 0, LENT_AT };

#define ARENA_BYTES (UINT64_C(4) << 20)
/* The id of the call of held_call: slot 0, after two earlier calls. */
#define HELD_ID (3 << 16)
#define TOUCH 0                     /* index of the function "touch": the first that is registered */

/* ---- A frame made by hand ------------------------------------------------------------------------------- */

/* A message with one f32 tensor of shape {2, 3} and 8 bytes behind it. */
struct forgery {
    struct bxi_frame frame;
    struct bxi_lease_head lease;
    struct bxi_tensor_head tensor;
    int64_t dims[2 * BX_DIMS_MAX + 4];      /* shape, then strides */
    size_t dim_count;                       /* how many of dims are written */
    size_t cut;                             /* bytes that are missing at the body's end */
    bool packed;                            /* the body is in the arena, not in the frame */
};

static unsigned char *block;        /* in worker 1's arena */
static uint64_t block_offset;

static void make_block(struct bx_job *job)
{
    struct bx_tensor *tensor = loans_tensor(job, BX_U8, 4096, 1);

    block = bx_tensor_data_mut(tensor);     /* never released: it stays until the worker is killed */
    block_offset = (uint64_t)(block - bxi_arena_base(job->lend->arena));
}

static struct forgery right_forgery(uint8_t kind, bool packed)
{
    struct forgery forgery = {
        .frame = { .kind = kind, .flags = BXI_FLAG_LEASE, .function = TOUCH, .id = HELD_ID,
                   .deadline_ns = BX_FOREVER },
        .lease = { .slot = 5, .tensor_count = 1, .generation = 1, .packed_offset = BXI_PACKED_HERE },
        .tensor = { .offset = block_offset, .dtype = BX_F32, .ndim = 2, .device = BX_CPU },
        .dims = { 2, 3 },
        .dim_count = 2,
        .packed = packed,
    };

    forgery.lease.packed_bytes = sizeof(forgery.tensor) + 2 * sizeof(int64_t) + 8;
    if (packed)
        forgery.lease.packed_offset = block_offset + 1024;
    return forgery;
}

static size_t write_body(const struct forgery *forgery, unsigned char *body)
{
    unsigned char *packed = forgery->packed ? block + 1024 : body + sizeof(forgery->lease);
    size_t dims = forgery->dim_count * sizeof(int64_t);

    memcpy(body, &forgery->lease, sizeof(forgery->lease));
    memcpy(packed, &forgery->tensor, sizeof(forgery->tensor));
    memcpy(packed + sizeof(forgery->tensor), forgery->dims, dims);
    memset(packed + sizeof(forgery->tensor) + dims, 0, 8);
    if (forgery->packed)
        return sizeof(forgery->lease) - forgery->cut;
    return sizeof(forgery->lease) + sizeof(forgery->tensor) + dims + 8 - forgery->cut;
}

static bool put_forgery(struct bx_job *job, const struct forgery *forgery)
{
    unsigned char body[1024];
    size_t bytes = write_body(forgery, body);

    return put_frame(job, &forgery->frame, body, bytes);
}

/* ---- Workers ----------------------------------------------------------------------------------------------- */

/* Reads only the first and the last element of each tensor, because a forged shape may have an absurd size. */
HARNESS_HANDLER(touch)
{
    while (bx_reader_tensors_left(args) > 0) {
        const struct bx_tensor *tensor = bx_read_tensor(args);
        const volatile unsigned char *data = bx_tensor_data(tensor);
        int64_t last = 0;

        harness_add(TAKEN_BYTES, bx_tensor_bytes(tensor));
        for (int dim = 0; dim < bx_tensor_ndim(tensor); dim++)
            last += (bx_tensor_dim(tensor, dim) - 1) * bx_tensor_strides(tensor)[dim];
        if (bx_tensor_elements(tensor) > 0)
            (void)(data[0] + data[(uint64_t)last * bx_dtype_bytes(bx_tensor_dtype(tensor))]);
    }
    bx_read_i64(args);
    harness_post(TAKEN);
    return 0;
}

static int setup(struct bx_job *job)
{
    HARNESS_EQ(bx_register(job, "touch", BX_INLINE, touch, NULL), 0);
    return loans_setup(job);
}

static void has_a_block_and_is_hostile(struct bx_job *job)
{
    make_block(job);
    is_hostile(job);
}

/* Before the strike: one block of 5000 bytes is on loan to worker 1, at LENT_AT in the arena, and one call to it is in
 * flight. */
static struct bx_future *held_call(struct bx_job *job)
{
    struct bx_future *future;
    struct bx_msg *lent = loans_msg(job, 1, 1, 5000);
    struct bx_reader reader = bx_msg_reader(lent);

    harness_store(LENT_AT, (uint64_t)((const unsigned char *)bx_tensor_data(bx_read_tensor(&reader)) -
                                      bxi_arena_base(job->lend->arena)));
    harness_await(READY, 1);
    HARNESS_EQ(harness_call(job, "worker1", "echo", harness_msg_i64(1)), 1);
    HARNESS_EQ(harness_call(job, "worker1", "keep", lent), 1);
    future = loans_start(job, "worker1", "hold", harness_msg_i64(1));
    HARNESS_EQ(harness_call(job, "worker1", "echo", harness_msg_i64(2)), 2);
    return future;
}

static void others_go_on(struct bx_job *job)
{
    HARNESS_EQ(harness_call(job, "worker2", "verify", loans_msg(job, 3, 5, 4000)), 5);
    HARNESS_EQ(loans_of(job, 2).leases, 0);
}

/* Ends worker 1, and with it its leases. */
static void ends_it(struct bx_job *job)
{
    harness_post(FINISHED);
    HARNESS_EQ(bx_loans_wait(job, -1, 0, BX_FOREVER), 0);
    others_go_on(job);
}

static void expect_corrupt(struct bx_job *job, struct bx_future *future)
{
    HARNESS_EQ(bx_future_wait(future, BX_FOREVER), BX_E_CORRUPT);
    HARNESS_HAS(bx_future_error_text(future), "'worker1' (rank 1");
    bx_future_release(future);
    HARNESS_EQ(loans_try(job, "worker1", "verify", loans_msg(job, 1, 1, 10), NULL), BX_E_CORRUPT);
    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "echo", NULL, NULL), BX_E_CORRUPT);
    HARNESS_EQ(loans_of(job, 1).borrowed, 0);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 1);
    HARNESS_EQ(harness_gate(TAKEN), 0);
    others_go_on(job);
    ends_it(job);
}

static void is_cut_off(struct bx_job *job)
{
    struct bx_future *future = held_call(job);

    strikes_now();
    expect_corrupt(job, future);
}

static void run(void (*how)(struct bx_job *job), harness_fn body)
{
    strike = how;
    harness_run(&(struct harness_world){ .size = 3, .setup = setup, .dies = 1u << 1,
                                         .body = { body, has_a_block_and_is_hostile, harness_serve },
                                         .options = { .arena_bytes = ARENA_BYTES } });
}

/* ---- Correct frames are accepted ----------------------------------------------------------------------------- */

/* What it has on loan in slot 0, it passes back. */
static void pass_back(struct forgery *forgery)
{
    forgery->tensor.flags = BXI_PASSED;
    forgery->tensor.owner = 0;
    forgery->tensor.offset = harness_load(LENT_AT);
}

static void right_frames(struct bx_job *job)
{
    struct forgery back = right_forgery(BXI_ONEWAY, false);

    for (int packed = 0; packed < 2; packed++) {
        struct forgery forgery = right_forgery(BXI_ONEWAY, packed != 0);

        HARNESS_CHECK(put_forgery(job, &forgery));
        harness_await(TAKEN, 3 * (uint32_t)packed + 1);
        forgery.tensor.flags = BXI_STRIDED;
        forgery.dims[2] = 100;
        forgery.dims[3] = 1;
        forgery.dim_count = 4;
        forgery.lease.packed_bytes += 16;
        HARNESS_CHECK(put_forgery(job, &forgery));
        harness_await(TAKEN, 3 * (uint32_t)packed + 2);
        forgery.tensor.offset = ARENA_BYTES - 24;           /* the last bytes of the arena */
        forgery.dims[2] = 3;
        HARNESS_CHECK(put_forgery(job, &forgery));
        harness_await(TAKEN, 3 * (uint32_t)packed + 3);
    }
    pass_back(&back);
    HARNESS_CHECK(put_forgery(job, &back));
    harness_await(TAKEN, 7);
}

static void takes_them(struct bx_job *job)
{
    struct bx_future *future = held_call(job);

    strikes_now();
    HARNESS_EQ(harness_load(TAKEN_BYTES), 7 * 24);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
    /* This answer is behind all of these frames. */
    HARNESS_EQ(harness_call(job, "worker1", "echo", harness_msg_i64(3)), 3);
    HARNESS_EQ(loans_of(job, 1).borrowed, 0);
    others_go_on(job);
    harness_post(FINISHED);
    harness_end(future, BX_E_PEER_DEAD);
}

Test(lease_input, that_is_correct_is_accepted, .timeout = 30)
{
    run(right_frames, takes_them);
}

/* ---- Forgeries ------------------------------------------------------------------------------------------------ */

static void strided(struct forgery *forgery, int64_t stride0, int64_t stride1)
{
    forgery->tensor.flags = BXI_STRIDED;
    forgery->dims[2] = stride0;
    forgery->dims[3] = stride1;
    forgery->dim_count = 4;
    forgery->lease.packed_bytes += 2 * sizeof(int64_t);
}

static void (*forge)(struct forgery *forgery);
static uint8_t forged_kind;
static bool forged_packed;

static void forges(struct bx_job *job)
{
    struct forgery forgery = right_forgery(forged_kind, forged_packed);

    forge(&forgery);
    HARNESS_CHECK(put_forgery(job, &forgery));
}

static void cuts_off(void (*how)(struct forgery *forgery), bool packed)
{
    static const uint8_t kinds[] = { BXI_ONEWAY, BXI_REQUEST, BXI_REPLY };

    forge = how;
    forged_packed = packed;
    for (int i = 0; i < 3; i++) {
        forged_kind = kinds[i];
        harness_reset();
        run(forges, is_cut_off);
    }
}

/* What the reply lends is neither borrowed nor returned. */
static void is_cut_off_unopened(struct bx_job *job)
{
    is_cut_off(job);
    HARNESS_EQ(bxi_load_relaxed(&bxi_tables(job->control)->loans[1].borrowed_total), 0);
    HARNESS_EQ(bxi_load_relaxed(&job->control->pair[1].given_back), 0);
}

static void is_not_opened(void (*how)(struct forgery *forgery))
{
    forge = how;
    forged_kind = BXI_REPLY;
    run(forges, is_cut_off_unopened);
}

/* A function that forges, and the test that its frames cut worker 1 off: in the frame, in the arena, in both; or that
 * a reply does, before it is opened. */
#define FORGES(how, ...) \
    static void how(struct forgery *forgery) \
    { \
        __VA_ARGS__; \
    }
#define TEST_HERE(how) \
    Test(lease_input, how##_cuts_off, .timeout = 60) { cuts_off(how, false); }
#define TEST_PACKED(how) \
    Test(lease_input, how##_cuts_off_in_the_arena, .timeout = 60) { cuts_off(how, true); }
#define TEST_REPLY(how) \
    Test(lease_input, how##_cuts_off_unopened, .timeout = 60) { is_not_opened(how); }
#define CUTS_OFF(how, ...) FORGES(how, __VA_ARGS__) TEST_HERE(how)
#define CUTS_OFF_PACKED(how, ...) FORGES(how, __VA_ARGS__) TEST_PACKED(how)
#define CUTS_OFF_BOTH(how, ...) FORGES(how, __VA_ARGS__) TEST_HERE(how) TEST_PACKED(how)
#define CUTS_OFF_REPLY(how, ...) FORGES(how, __VA_ARGS__) TEST_REPLY(how)

CUTS_OFF_BOTH(slot_beyond_the_ledger, forgery->lease.slot = BXI_LEASE_MAX)
CUTS_OFF(slot_of_all_ones, forgery->lease.slot = UINT32_MAX)
CUTS_OFF(generation_zero, forgery->lease.generation = 0)
CUTS_OFF_BOTH(one_tensor_too_many, forgery->lease.tensor_count++)
CUTS_OFF_BOTH(four_billion_tensors, forgery->lease.tensor_count = UINT32_MAX)
CUTS_OFF(more_bytes_than_the_frame_has, forgery->lease.packed_bytes += 8)
CUTS_OFF_BOTH(bytes_without_end, forgery->lease.packed_bytes = UINT64_MAX)
CUTS_OFF_BOTH(body_shorter_than_a_lease_head,
              forgery->cut = forgery->packed ? 1 : sizeof(struct bxi_tensor_head) + 2 * sizeof(int64_t) + 8 + 1)
CUTS_OFF(descriptor_cut_short,
         forgery->cut = 8 + 2 * sizeof(int64_t) + 1;
         forgery->lease.packed_bytes -= forgery->cut)
CUTS_OFF(shape_cut_short,
         forgery->cut = 8 + 1;
         forgery->lease.packed_bytes -= forgery->cut)
CUTS_OFF(strides_cut_short, forgery->tensor.flags = BXI_STRIDED)
CUTS_OFF_BOTH(offset_outside, forgery->tensor.offset = ARENA_BYTES + 64)
CUTS_OFF(offset_at_the_end, forgery->tensor.offset = ARENA_BYTES)
CUTS_OFF(last_element_outside, forgery->tensor.offset = ARENA_BYTES - 20)
CUTS_OFF(offset_that_overflows, forgery->tensor.offset = UINT64_MAX - 15)
CUTS_OFF(offset_between_elements, forgery->tensor.offset += 2)
CUTS_OFF(back_from_a_free_slot,
         pass_back(forgery);
         forgery->tensor.owner = (BXI_LEASE_MAX - 1) << 8)
CUTS_OFF(back_from_a_slot_beyond_the_ledger,
         pass_back(forgery);
         forgery->tensor.owner = UINT32_MAX << 8)
CUTS_OFF(back_from_before_the_block,
         pass_back(forgery);
         forgery->tensor.offset -= sizeof(float))
CUTS_OFF(back_from_behind_the_block,
         pass_back(forgery);
         forgery->tensor.offset += 5000)
CUTS_OFF(back_and_longer,
         pass_back(forgery);
         forgery->dims[0] = 1000)
CUTS_OFF(owner_of_what_is_not_passed, forgery->tensor.owner = 2)
CUTS_OFF(passed_by_a_process_that_is_not_yet,
         forgery->tensor.flags = BXI_PASSED;
         forgery->tensor.owner = 2 | 1 << BXI_RANK_BITS)
CUTS_OFF_BOTH(dtype_zero, forgery->tensor.dtype = 0)
CUTS_OFF(dtype_beyond_the_last, forgery->tensor.dtype = BX_C128 + 1)
CUTS_OFF(device_zero, forgery->tensor.device = 0)
CUTS_OFF(device_that_is_no_host_memory, forgery->tensor.device = BX_CUDA)
CUTS_OFF_BOTH(nine_dimensions,
              forgery->tensor.ndim = BX_DIMS_MAX + 1;
              forgery->dim_count = BX_DIMS_MAX + 1;
              for (int i = 0; i <= BX_DIMS_MAX; i++)
                  forgery->dims[i] = 1;
              forgery->lease.packed_bytes += (BX_DIMS_MAX - 1) * sizeof(int64_t))
CUTS_OFF(many_dimensions, forgery->tensor.ndim = 255)
CUTS_OFF(dimension_below_zero, forgery->dims[0] = -1)
CUTS_OFF(dimensions_below_zero,
         forgery->dims[0] = -2;
         forgery->dims[1] = -3)
CUTS_OFF(least_dimension, forgery->dims[1] = INT64_MIN)
CUTS_OFF(elements_that_overflow, forgery->dims[0] = forgery->dims[1] = INT64_C(1) << 32)
CUTS_OFF(bytes_that_overflow,
         forgery->dims[0] = INT64_C(1) << 61;
         forgery->dims[1] = 2)
CUTS_OFF(stride_below_zero, strided(forgery, 3, -1))
CUTS_OFF_BOTH(stride_beyond_the_arena, strided(forgery, (int64_t)(ARENA_BYTES / 4), 1))
CUTS_OFF(stride_that_overflows, strided(forgery, INT64_MAX, 1))
CUTS_OFF(strides_that_overflow_together, strided(forgery, INT64_MAX / 4 - 1, INT64_MAX / 8))
CUTS_OFF(flags_unknown, forgery->tensor.flags = 2)
CUTS_OFF(flags_all, forgery->tensor.flags = 255)
CUTS_OFF_REPLY(reply_to_a_free_slot, forgery->frame.id = 7)
CUTS_OFF_REPLY(reply_to_a_former_call,
               forgery->frame.id = 1 << 16;
               forgery->lease.tensor_count = 0)
CUTS_OFF_REPLY(reply_to_a_slot_beyond_the_last, forgery->frame.id = UINT64_MAX)
CUTS_OFF_REPLY(reply_to_no_id, forgery->frame.id = 0)
CUTS_OFF_REPLY(error_that_lends,
               forgery->frame.code = -EDOM;
               forgery->lease.tensor_count = 0)
CUTS_OFF_REPLY(code_above_zero_that_lends, forgery->frame.code = 1)
CUTS_OFF_PACKED(packed_outside, forgery->lease.packed_offset = ARENA_BYTES + 64)
CUTS_OFF_PACKED(packed_over_the_end, forgery->lease.packed_offset = ARENA_BYTES - 16)
CUTS_OFF_PACKED(packed_so_that_it_overflows,
                forgery->lease.packed_bytes = UINT64_MAX - forgery->lease.packed_offset + 64)
CUTS_OFF_PACKED(packed_nearly_here, forgery->lease.packed_offset = BXI_PACKED_HERE - 1)

static int64_t own_blocks(const struct bx_job *job)
{
    struct stat stat = { 0 };

    HARNESS_EQ(fstat(job->segment.fd, &stat), 0);
    return stat.st_blocks;
}

/* This worker's ring to worker 1 has no pages, and neither have the lease words behind it. */
static void is_answered_by_a_stranger(struct bx_job *job)
{
    int64_t blocks = own_blocks(job);

    harness_await(READY, 1);
    strikes_now();
    while (bx_worker_is_alive(job, 1)) {       /* a reply that no thread waits for wakes none */
        bx_progress(job);
        sched_yield();
    }
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 1);
    HARNESS_EQ(bxi_load_relaxed(&job->rpc->peers[1]->out_open), 0);
    HARNESS_EQ(own_blocks(job), blocks);
    ends_it(job);
}

Test(lease_input, reply_without_an_open_ring_cuts_off_and_allocates_nothing, .timeout = 60)
{
    void (*const ways[])(struct forgery *forgery) = { reply_to_a_free_slot, reply_to_a_former_call, error_that_lends };

    forged_kind = BXI_REPLY;
    for (int i = 0; i < 3; i++) {
        forge = ways[i];
        harness_reset();
        run(forges, is_answered_by_a_stranger);
    }
}

/* More bytes than a message may have, all within the arena. Worker 0 must refuse them before it copies them. */
static void more_than_a_message(struct bx_job *job)
{
    struct forgery forgery = right_forgery(BXI_ONEWAY, true);

    forgery.lease.packed_bytes = BX_MSG_MAX + (1 << 20);
    HARNESS_CHECK(put_forgery(job, &forgery));
}

Test(lease_input, that_is_larger_than_a_message_cuts_off, .timeout = 60)
{
    strike = more_than_a_message;
    harness_run(&(struct harness_world){ .size = 3, .setup = setup, .dies = 1u << 1,
                                         .body = { is_cut_off, has_a_block_and_is_hostile, harness_serve },
                                         .options = { .arena_bytes = BX_MSG_MAX + (8 << 20) } });
}

/* No handler takes the tensors, so the lease is returned with the error. */
static void lends_to_no_function(struct bx_job *job)
{
    struct forgery forgery = right_forgery(BXI_ONEWAY, false);

    forgery.frame.function = BXI_FUNCTION_MAX;
    HARNESS_CHECK(put_forgery(job, &forgery));
}

static void takes_nothing(struct bx_job *job)
{
    struct bx_future *future = held_call(job);

    strikes_now();
    /* This answer is behind that frame. */
    HARNESS_EQ(harness_call(job, "worker1", "echo", harness_msg_i64(3)), 3);
    HARNESS_EQ(harness_counter(job, "requests_refused"), 1);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
    HARNESS_EQ(loans_of(job, 1).borrowed, 0);
    harness_post(FINISHED);
    harness_end(future, BX_E_PEER_DEAD);
}

Test(lease_input, to_a_function_that_does_not_exist_is_returned, .timeout = 30)
{
    run(lends_to_no_function, takes_nothing);
}

/* The offset and the descriptors are inside of the arena, the message's bytes are behind its end. */
static void ends_outside(struct bx_job *job)
{
    struct forgery forgery = right_forgery(BXI_ONEWAY, true);
    unsigned char *arena = (unsigned char *)(uintptr_t)bxi_arena_base(job->lend->arena), body[64];
    size_t inside = forgery.lease.packed_bytes - 8;

    write_body(&forgery, body);
    forgery.lease.packed_offset = ARENA_BYTES - inside;
    memcpy(arena + ARENA_BYTES - inside, block + 1024, inside);
    HARNESS_CHECK(put_forgery(job, &forgery));
}

Test(lease_input, whose_bytes_end_outside_of_the_arena_cuts_off, .timeout = 30)
{
    run(ends_outside, is_cut_off);
}

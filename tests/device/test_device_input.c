/* SPDX-License-Identifier: MIT */
/*
 * A worker whose records of device tensors, points and regions are invalid.
 *
 * As in test_lease_input.c worker 0 is written to, worker 1 is the hostile one, which is killed at the end, and worker
 * 2 is a bystander. A hand-made frame that is valid in every field is accepted; each forgery differs from it in one
 * field. Then worker 0 cuts worker 1 off, or the call fails, and nothing else happens.
 */
#include "device_fixture.h"

enum gate { OPEN = 0, STRUCK, TAKEN, FINISHED, OVER };

#define TOUCH 0                     /* index of the function "touch", registered first */
#define COUNT 64                    /* i32 */

/* One tensor of {COUNT} i32 on worker 1's device. */
struct forgery {
    struct bxi_frame frame;
    struct bxi_lease_head lease;
    struct bxi_tensor_head tensor;
    struct bxi_gpu_ref ref;
    int64_t dims[1];
};

static int chosen;                  /* of FORGERIES */
static void forge(struct forgery *forgery);
static int expected;                /* BX_E_CORRUPT: worker 1 is cut off; else the code of the error reply */

/* ---- Worker 0 --------------------------------------------------------------------------------- */

HARNESS_HANDLER(touch)
{
    struct bx_tensor *tensor = bx_read_tensor(args);

    HARNESS_EQ(device_wrong(tensor, 5), 0);
    harness_post(TAKEN);
    return 0;
}

static int setup(struct bx_job *job)
{
    return bx_register(job, "touch", BX_INLINE, touch, NULL);
}

/* Until worker 2 leaves, which may be before this worker has noticed worker 1's death. */
static void serve_to_the_end(struct bx_job *job)
{
    int rc;

    do
        rc = bx_job_serve(job);
    while (rc == BX_E_PEER_DEAD);
    HARNESS_EQ(rc, 0);
}

static void is_struck(struct bx_job *job)
{
    struct bx_loans loans = { 0 };

    device_open(job, 0);
    harness_post(OPEN);
    harness_await(STRUCK, 1);
    if (expected == BX_E_CORRUPT) {
        HARNESS_EQ(bx_job_serve(job), BX_E_CORRUPT);
        HARNESS_EQ(harness_counter(job, "peers_corrupt"), 1);
    } else {
        HARNESS_EQ(bx_worker_is_alive(job, 1), true);
    }
    HARNESS_EQ(harness_gate(TAKEN), 1);
    HARNESS_EQ(bx_worker_is_alive(job, 2), true);
    HARNESS_EQ(bx_job_loans(job, 1, &loans), 0);
    HARNESS_EQ(loans.borrowed, 0);
    harness_post(FINISHED);
    serve_to_the_end(job);
}

/* ---- Worker 1 --------------------------------------------------------------------------------- */

/* Bypasses the library: reads its private records of loans. */
static struct forgery right_forgery(struct bx_tensor *tensor)
{
    struct bxi_device_block *block = tensor->storage->device;
    struct forgery forgery = {
        .frame = { .kind = BXI_REQUEST, .flags = BXI_FLAG_LEASE | BXI_FLAG_DEVICE, .function = TOUCH,
                   .deadline_ns = BX_FOREVER },
        .lease = { .slot = 5, .tensor_count = 1, .generation = 1, .packed_offset = BXI_PACKED_HERE },
        .tensor = { .dtype = BX_I32, .ndim = 1, .device = BX_CUDA },
        .dims = { COUNT },
    };

    HARNESS_EQ(bxi_gpu_ref(block->block, 0, COUNT * sizeof(int32_t), &forgery.ref), 0);
    forgery.ref.ready = block->written;
    forgery.lease.packed_bytes = sizeof forgery.tensor + sizeof forgery.ref + sizeof forgery.dims;
    return forgery;
}

static void put(struct bx_job *job, const struct forgery *forgery)
{
    void *payload = NULL;

    bxi_lock(&job->run->lock);
    HARNESS_EQ(bxi_peer_open_out(job, job->rpc->peers[0]), 0);
    HARNESS_EQ(bxi_ring_reserve(&job->rpc->peers[0]->out, sizeof *forgery, &payload), 0);
    memcpy(payload, forgery, sizeof *forgery);
    bxi_ring_commit(&job->rpc->peers[0]->out, sizeof *forgery);
    bxi_unlock(&job->run->lock);
    bxi_bell_ring(job->rpc->peers[0]->bell.fd[0]);
}

/* The id of a call in flight that gets no other answer, so that the answer to the forgery arrives. */
static struct bx_future *fake_call(struct bx_job *job, struct forgery *forgery)
{
    struct bx_future *future = NULL;
    OWN(msg) *args = bx_msg_create(0);

    HARNESS_EQ(bx_rpc_async(job, "worker0", "hang", args, NULL, &future), 0);
    forgery->frame.id = ((struct bxi_call *)(void *)future)->id;
    return future;
}

HARNESS_ASYNC_HANDLER(hang)
{
    static struct bx_future *never[4];
    static int count;

    *reply = never[count++] = bx_future_create(bx_request_job(request));
    bx_future_acquire(*reply);
    return 0;
}

static int setup_hang(struct bx_job *job)
{
    HARNESS_EQ(setup(job), 0);
    return bx_register_async(job, "hang", BX_INLINE, hang, NULL);
}

static void strikes(struct bx_job *job)
{
    struct bx_device device = device_open(job, 0);
    struct bx_tensor *tensor = device_numbers(job, device, COUNT, 5);
    struct forgery forgery = right_forgery(tensor);
    struct bx_future *future;

    harness_await(OPEN, 1);
    future = fake_call(job, &forgery);
    put(job, &forgery);
    HARNESS_EQ(bx_future_wait(future, BX_FOREVER), 0);
    HARNESS_EQ(harness_gate(TAKEN), 1);
    bx_future_release(future);

    forgery = right_forgery(tensor);
    forgery.lease.generation = 2;
    future = fake_call(job, &forgery);
    forge(&forgery);
    put(job, &forgery);
    if (expected != BX_E_CORRUPT)
        HARNESS_EQ(bx_future_wait(future, BX_FOREVER), expected);
    harness_post(STRUCK);
    harness_await(FINISHED, 1);
    kill(getpid(), SIGKILL);
}

/* Leaves when worker 1 is dead; worker 0 serves until then. */
static void stands_by(struct bx_job *job)
{
    harness_await(FINISHED, 1);
    HARNESS_EQ(bx_worker_is_alive(job, 0), true);
    HARNESS_EQ(bx_job_serve(job), BX_E_PEER_DEAD);
}

/* ---- Forgeries -------------------------------------------------------------------------------- */

/* First those that are detected in the frame: cut off. The block of a staged tensor has the bytes of its elements only,
 * so it must not have strides. Then those detected when the memory is mapped: the call fails. */
#define FORGERIES(X) \
    X("an unknown flag", BX_E_CORRUPT, forgery->tensor.flags = 8) \
    X("a tensor of its own that is passed on", BX_E_CORRUPT, forgery->tensor.flags = BXI_PASSED; \
      forgery->tensor.owner = 1) \
    X("the receiver's tensor that is passed on", BX_E_CORRUPT, forgery->tensor.flags = BXI_PASSED; \
      forgery->tensor.owner = 0) \
    X("a tensor of no worker that is passed on", BX_E_CORRUPT, forgery->tensor.flags = BXI_PASSED; \
      forgery->tensor.owner = 3) \
    X("a staged tensor that is passed on", BX_E_CORRUPT, forgery->tensor.flags = BXI_PASSED | BXI_STAGED; \
      forgery->tensor.owner = 2; forgery->tensor.offset = 0) \
    X("a staged tensor of the receiver's that it did not lend", BX_E_CORRUPT, \
      forgery->tensor.flags = BXI_PASSED | BXI_STAGED; forgery->tensor.owner = 0; forgery->tensor.offset = 0) \
    X("an invalid device", BX_E_CORRUPT, forgery->tensor.device = 3) \
    X("an address in place of a ref", BX_E_CORRUPT, forgery->tensor.offset = 4096) \
    X("a shape that exceeds the loan", BX_E_CORRUPT, forgery->dims[0] = COUNT + 1) \
    X("elements that are not aligned", BX_E_CORRUPT, forgery->ref.offset += 2) \
    X("a record that is cut short", BX_E_CORRUPT, forgery->lease.packed_bytes -= 8) \
    X("an invalid type", BX_E_CORRUPT, forgery->tensor.dtype = 0) \
    X("a frame without the device flag", BX_E_CORRUPT, forgery->frame.flags = BXI_FLAG_LEASE) \
    X("a staged tensor outside of the arena", BX_E_CORRUPT, forgery->tensor.flags = BXI_STAGED; \
      forgery->tensor.offset = UINT64_MAX - 7) \
    X("a staged tensor with strides", BX_E_CORRUPT, forgery->tensor.flags = BXI_STAGED | BXI_STRIDED; \
      forgery->ref = (struct bxi_gpu_ref)SHAPE_AND_STRIDE) \
    X("a passed tensor of a worker without a GPU", -ENODEV, forgery->tensor.flags = BXI_PASSED; \
      forgery->tensor.owner = 2) \
    X("an invalid slab", -EPROTO, forgery->ref.slab = BXI_GPU_SLABS) \
    X("a slab that does not exist", -ESTALE, forgery->ref.slab = 77) \
    X("another generation", -ESTALE, forgery->ref.generation++) \
    X("an offset that overflows", -EPROTO, forgery->ref.offset = UINT64_MAX - 127) \
    X("more bytes than there are", -EPROTO, forgery->ref.bytes = UINT64_C(1) << 60)

#define SHAPE_AND_STRIDE { .slab = COUNT, .generation = 2 }

static void forge(struct forgery *forgery)
{
    int number = 0;

#define APPLY(what, code, change) \
    if (number++ == chosen) { \
        change; \
    }
    FORGERIES(APPLY)
#undef APPLY
}

Test(device_input, cuts_off_or_fails_for_each_forgery, .timeout = 120)
{
#define ROW(what, code, change) { what, code },
    static const struct {
        const char *what;
        int code;
    } forgeries[] = { FORGERIES(ROW) };
#undef ROW

    device_world(DEVICE_FAKE);
    for (chosen = 0; chosen < (int)(sizeof(forgeries) / sizeof(forgeries[0])); chosen++) {
        fprintf(stderr, "device_input: %s\n", forgeries[chosen].what);      /* before the line of a worker that fails */
        expected = forgeries[chosen].code;
        harness_reset();
        device_run(&(struct harness_world){ .size = 3, .setup = setup_hang, .dies = 2,
                   .body = { is_struck, strikes, stands_by } });
    }
}

/* ---- Points ------------------------------------------------------------------------------------ */

static struct bx_tensor *lent;

/* Worker 1 gives worker 0's tensor back with a point of a lane that does not exist. */
HARNESS_HANDLER(give_back_wrongly)
{
    lent = bx_tensor_acquire(bx_read_tensor(args));
    return 0;
}

static int setup_points(struct bx_job *job)
{
    return bx_register(job, "keep", BX_INLINE, give_back_wrongly, NULL);
}

static void lies(struct bx_job *job)
{
    struct bxi_loan *loan;
    bxi_a64 *words;

    device_open(job, 0);
    harness_post(OPEN);
    harness_await(STRUCK, 1);
    loan = (struct bxi_loan *)lent->storage;
    words = bxi_segment_at(&job->segment, bxi_device_pair_offset(0) + BXI_DEVICE_POINTS);
    bxi_store_relaxed(&words[2 * loan->slot], BXI_GPU_HOST_WORDS | UINT64_C(99) << 16);
    bxi_store_relaxed(&words[2 * loan->slot + 1], 1);
    bxi_store_release(&bxi_segment_leases(&job->segment, 0)[loan->slot], loan->generation);
    bxi_add(&job->control->pair[0].given_back, 1);
    bxi_bell_ring(job->rpc->peers[0]->bell.fd[0]);
    harness_await(FINISHED, 1);
    kill(getpid(), SIGKILL);
}

DEVICE_TEST(device_input, cuts_off_for_an_invalid_point, 60, DEVICE_ANY, .size = 2, .setup = setup_points, .dies = 2,
            .body = { [1] = lies })
{
    struct bx_tensor *tensor = device_numbers(job, device_open(job, 0), COUNT, 5);

    harness_await(OPEN, 1);
    device_send(job, "keep", tensor);
    harness_post(STRUCK);
    HARNESS_EQ(bx_loans_wait(job, 1, 0, BX_FOREVER), 0);
    HARNESS_EQ(bx_job_serve(job), BX_E_CORRUPT);
    HARNESS_HAS(bx_error_text(), "worker1");
    bx_tensor_release(tensor);
    harness_post(FINISHED);
}

/* ---- A receiver without a GPU ------------------------------------------------------------------- */

static void does_not_ask(struct bx_job *job)
{
    struct bx_tensor *tensor = device_numbers(job, device_open(job, 0), COUNT, 5);
    struct forgery forgery = right_forgery(tensor);
    struct bx_future *future;

    harness_await(OPEN, 1);
    future = fake_call(job, &forgery);
    put(job, &forgery);
    HARNESS_EQ(bx_future_wait(future, BX_FOREVER), -ENODEV);
    HARNESS_HAS(bx_future_error_text(future), "it has no GPU open; call bx_gpu_open");
    bx_future_release(future);
    harness_post(FINISHED);
    harness_await(OVER, 1);
    kill(getpid(), SIGKILL);
}

/* The sender does not check whether worker 0 has one: the call is refused, and its lease is given back once. */
DEVICE_TEST(device_input, refuses_without_a_device_and_gives_the_lease_back_once, 60, DEVICE_FAKE, .size = 2,
            .setup = setup_hang, .dies = 2, .body = { [1] = does_not_ask })
{
    harness_post(OPEN);
    harness_await(FINISHED, 1);
    HARNESS_EQ(bxi_load_relaxed(&bxi_tables(job->control)->loans[1].borrowed), 0);
    HARNESS_EQ(bxi_load_relaxed(&bxi_tables(job->control)->loans[1].borrowed_total), 1);
    HARNESS_EQ(bxi_load_relaxed(&job->control->pair[1].given_back), 1);
    harness_post(OVER);
}

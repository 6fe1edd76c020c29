/* SPDX-License-Identifier: MIT */
/*
 * The first frame that refers to a slab waits in its ring until the slab is mapped: which frames wait with it, which do
 * not, and what happens if a worker cancels, dies or leaves meanwhile. Also many slabs and devices.
 *
 * Mapping waits here until a pipe is readable (FAKE_CUDA_OPEN_GATE), so that what must not wait for it is done before.
 * Where FAKE_CUDA_OPEN_MS makes it long, no test asserts a duration.
 */
#include "device_fixture.h"
#include "tests/gpu/fake_library.h"

enum gate { OPEN = 0, SENT, ECHOED, FINISHED };
enum value { SEQUENCE = 0, DEVICE_AT, HOST_AT, ECHO_AT };

static int may_map[2];                  /* a pipe, made before the workers are forked */

/* This process maps nothing until let_map. Call it before the GPU is opened. */
static void map_later(void)
{
    char fd[16];

    snprintf(fd, sizeof fd, "%d", may_map[0]);
    setenv("FAKE_CUDA_OPEN_GATE", fd, 1);
}

static void let_map(void)
{
    HARNESS_EQ(write(may_map[1], "", 1), 1);
}

static void run_with_gate(const struct harness_world *world)
{
    device_world(DEVICE_FAKE);
    cr_assert_eq(pipe(may_map), 0);
    device_run(world);
}

/* ---- Handlers -------------------------------------------------------------------------------- */

/* The position of a call in the order in which calls were handled. */
HARNESS_HANDLER(note)
{
    harness_store((int)bx_read_i64(args), harness_add(SEQUENCE, 1) + 1);
    while (bx_reader_tensors_left(args) > 0)
        HARNESS_EQ(device_wrong(bx_read_tensor(args), 3), 0);
    return 0;
}

/* Answers with a device tensor. */
HARNESS_HANDLER(give)
{
    struct bx_job *job = bx_request_job(request);
    OWN(tensor) *tensor = device_numbers(job, device_open(job, 0), 10, 3);

    return bx_msg_put_tensor(reply, tensor);
}

static int setup(struct bx_job *job)
{
    HARNESS_REGISTER(job, HARNESS_INLINE("note", note), HARNESS_BLOCKING("give", give));
    return 0;
}

static void serves_slowly(struct bx_job *job)
{
    int rc;

    map_later();
    device_open(job, 0);
    harness_post(OPEN);
    do
        rc = bx_job_serve(job);
    while (rc == BX_E_PEER_DEAD);
    HARNESS_EQ(rc, 0);
}

static struct bx_future *start(struct bx_job *job, struct bx_msg *args, const struct bx_call_options *options)
{
    struct bx_future *future = NULL;

    HARNESS_EQ(bx_rpc_async(job, "worker1", "note", args, options, &future), 0);
    bx_msg_destroy(args);
    return future;
}

static void end(struct bx_future *future, int code)
{
    HARNESS_EQ(bx_future_wait(future, BX_FOREVER), code);
    bx_future_release(future);
}

static struct bx_tensor *begin(struct bx_job *job)
{
    return device_numbers(job, device_begin(job, 1), 100, 3);
}

/* ---- Waiting --------------------------------------------------------------------------------- */

static void sends_what_must_be_mapped(struct bx_job *job)
{
    OWN(tensor) *tensor = begin(job);
    struct bx_future *device = start(job, device_msg(tensor, DEVICE_AT), NULL);
    struct bx_future *host = start(job, harness_msg_i64(HOST_AT), NULL);

    harness_post(SENT);
    end(host, 0);
    end(device, 0);
    HARNESS_CHECK(harness_load(ECHO_AT) < harness_load(DEVICE_AT));     /* worker 2 was not blocked */
    HARNESS_CHECK(harness_load(DEVICE_AT) < harness_load(HOST_AT));     /* worker 0's calls stayed in order */
}

static void is_answered_meanwhile(struct bx_job *job)
{
    harness_await(SENT, 1);
    end(start(job, harness_msg_i64(ECHO_AT), NULL), 0);
    let_map();
}

Test(device_map, delays_its_own_sender_in_order_and_no_other, .timeout = 60)
{
    run_with_gate(&(struct harness_world){ .size = 3, .setup = setup,
                  .body = { sends_what_must_be_mapped, serves_slowly, is_answered_meanwhile } });
}

static void gives_up(struct bx_job *job)
{
    OWN(tensor) *tensor = begin(job);
    struct bx_future *late = start(job, device_msg(tensor, DEVICE_AT),
                                   &(struct bx_call_options){ .timeout_ns = 20 * HARNESS_MS });
    struct bx_future *cancelled = start(job, device_msg(tensor, DEVICE_AT), NULL);

    HARNESS_EQ(bx_future_cancel(cancelled), 0);
    end(cancelled, BX_E_CANCELLED);
    end(late, BX_E_TIMEOUT);
    let_map();
    end(start(job, device_msg(tensor, HOST_AT), NULL), 0);      /* the worker continues with the next */
}

Test(device_map, lets_deadlines_pass_and_calls_be_cancelled, .timeout = 60)
{
    run_with_gate(&(struct harness_world){ .size = 2, .setup = setup, .body = { gives_up, serves_slowly } });
}

/* The caller maps the reply's slab; its deadline passes meanwhile, and the late reply gives its lease back. */
static void asks_and_gives_up(struct bx_job *job)
{
    struct bx_call_options short_one = { .timeout_ns = 100 * HARNESS_MS };
    struct bx_loans loans = { 0 };
    OWN(msg) *reply = NULL;
    struct bx_reader in;

    map_later();
    device_open(job, 0);
    harness_await(OPEN, 1);
    do {                                /* until a reply waits to be mapped */
        HARNESS_EQ(bx_rpc_sync(job, "worker1", "give", NULL, &short_one, &reply), BX_E_TIMEOUT);
        HARNESS_EQ(bx_job_loans(job, 1, &loans), 0);
    } while (loans.borrowed == 0);
    let_map();
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "give", NULL, NULL, &reply), 0);
    in = bx_msg_reader(reply);
    HARNESS_EQ(device_wrong(bx_read_tensor(&in), 3), 0);
}

Test(device_map, gives_back_a_reply_that_is_mapped_too_late, .timeout = 60)
{
    run_with_gate(&(struct harness_world){ .size = 2, .setup = setup, .body = { asks_and_gives_up, serves_slowly } });
}

/* ---- Ends meanwhile --------------------------------------------------------------------------- */

static void dies_meanwhile(struct bx_job *job)
{
    struct bx_tensor *tensor = begin(job);
    struct bx_msg *args = device_msg(tensor, DEVICE_AT);

    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "note", args, NULL), 0);
    harness_await(SENT, 1);
    kill(getpid(), SIGKILL);
}

/* Until the mapping has begun; then until worker 0 is dead and everything borrowed from it is closed. */
static void sees_it_die(struct bx_job *job)
{
    struct bx_loans loans = { 0 };

    map_later();
    device_open(job, 0);
    harness_post(OPEN);
    do
        HARNESS_EQ(bx_job_loans(job, 0, &loans), 0);
    while (loans.borrowed == 0);
    harness_post(SENT);
    HARNESS_EQ(bx_job_serve(job), BX_E_PEER_DEAD);
    let_map();
    do
        HARNESS_EQ(bx_job_loans(job, 0, &loans), 0);
    while (loans.borrowed > 0);
    HARNESS_EQ(harness_load(DEVICE_AT), 0);
}

Test(device_map, survives_an_owner_that_dies_meanwhile, .timeout = 60)
{
    run_with_gate(&(struct harness_world){ .size = 2, .setup = setup, .dies = 1,
                  .body = { dies_meanwhile, sees_it_die } });
}

/* A reply in the ring whose slab is already mapped is delivered although its owner has died since; the tensor can be
 * read. */
HARNESS_HANDLER(give_and_die)
{
    struct bx_job *job = bx_request_job(request);
    int rc = give(request, args, reply, context);

    device_wait(job, bx_gpu_stream(job, device_open(job, 0)));      /* written: else it could not be read */
    harness_post(SENT);
    return rc;
}

static int setup_last(struct bx_job *job)
{
    HARNESS_EQ(bx_register(job, "last", BX_BLOCKING, give_and_die, NULL), 0);
    return setup(job);
}

static void dies_when_told(struct bx_job *job)
{
    device_open(job, 0);
    harness_post(OPEN);
    harness_await(SENT, 1);
    while (harness_counter(job, "replies_sent") < 2)
        sched_yield();
    kill(getpid(), SIGKILL);
}

/* No thread drives worker 0 while the reply arrives and its sender dies: one pass finds both. */
DEVICE_TEST(device_map, delivers_the_replies_of_a_dead_worker, 60,
            (fake_skip_without_words("with events a dead owner's host may not have told what had passed"), DEVICE_ANY),
            .size = 2, .setup = setup_last, .dies = 2, .options = { .own_loop = false },
            .body = { NULL, dies_when_told })
{
    OWN(future) *future = NULL;
    struct bx_msg *reply = NULL;
    struct bx_reader in;

    device_open(job, 0);
    harness_await(OPEN, 1);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "give", NULL, NULL, &reply), 0);
    bx_msg_destroy(reply);
    HARNESS_EQ(bx_rpc_async(job, "worker1", "last", NULL, NULL, &future), 0);
    while (bx_worker_is_alive(job, 1))
        sched_yield();
    HARNESS_EQ(bx_future_wait(future, BX_FOREVER), 0);
    in = bx_msg_reader(bx_future_value(future));
    HARNESS_EQ(device_wrong(bx_read_tensor(&in), 3), 0);
}

static void leaves_too(struct bx_job *job)
{
    harness_leaves_by_itself();
    setenv("FAKE_CUDA_OPEN_MS", "700", 1);
    device_open(job, 0);
    harness_post(OPEN);
    harness_await(SENT, 1);
    HARNESS_EQ(bx_job_shutdown(job, 0), 0);
    bx_job_destroy(job);
}

DEVICE_TEST(device_map, ends_without_error_when_all_leave_meanwhile, 60, DEVICE_FAKE, .size = 2, .setup = setup,
            .body = { [1] = leaves_too })
{
    struct bx_tensor *tensor = begin(job);
    struct bx_msg *args = device_msg(tensor, DEVICE_AT);

    harness_leaves_by_itself();
    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "note", args, NULL), 0);
    bx_msg_destroy(args);
    bx_tensor_release(tensor);
    harness_post(SENT);
    HARNESS_EQ(bx_job_shutdown(job, 0), 0);
    bx_job_destroy(job);
}

/* ---- Slabs ----------------------------------------------------------------------------------- */

#define SLABS 5
#define SLAB_COUNT (INT64_C(66) << 18)          /* i32: 66 MiB, a slab of its own */

/* Each in a slab of its own, which worker 1 maps; all are given back, and gpu_bytes decreases again. */
static void lend_slabs(struct bx_job *job, struct bx_device device)
{
    struct bx_tensor *tensors[SLABS];
    uint64_t first = harness_counter(job, "gpu_bytes");

    for (int i = 0; i < SLABS; i++) {
        tensors[i] = device_tensor(job, device, SLAB_COUNT);

        OWN(tensor) *view = NULL;

        HARNESS_EQ(bx_tensor_slice(tensors[i], 0, 5, 9, 1, &view), 0);
        device_put_numbers(view, 3);
        end(start(job, device_msg(view, DEVICE_AT), NULL), 0);
    }
    HARNESS_CHECK(harness_counter(job, "gpu_bytes") >= first + SLABS * ((uint64_t)66 << 20));
    harness_post(SENT);
    for (int i = 0; i < SLABS; i++)
        bx_tensor_release(tensors[i]);
    HARNESS_EQ(bx_loans_wait(job, 1, 0, BX_FOREVER), 0);
}

static void serves_on(struct bx_job *job)
{
    device_open(job, 0);
    harness_post(OPEN);
    HARNESS_EQ(bx_job_serve(job), 0);
    /* The owner has freed them; the counters have it from the next poll on. */
    while (harness_counter(job, "gpu_slabs_closed") < SLABS - 1)
        bxi_devices_poll(job);
    HARNESS_CHECK(harness_counter(job, "gpu_open_ns") > 0);
    HARNESS_CHECK(harness_counter(job, "gpu_close_ns") > 0);
}

/* Both workers are always busy, and no call polls devices explicitly. */
DEVICE_TEST(device_map, frees_slabs_under_constant_load, 60, DEVICE_ANY, .size = 2, .setup = setup,
            .body = { [1] = serves_on })
{
    OWN(tensor) *small = begin(job);
    uint64_t first = harness_counter(job, "gpu_bytes");

    lend_slabs(job, bx_tensor_device(small));
    while (harness_counter(job, "gpu_bytes") > first + ((uint64_t)66 << 20))
        end(start(job, harness_msg_i64(HOST_AT), NULL), 0);
}

/* Both leave at once, while each has the other's slab open and closing takes long: neither frees an open slab. */
static void lends_and_leaves(struct bx_job *job)
{
    struct bx_device device;
    OWN(tensor) *tensor = NULL;
    OWN(msg) *args = NULL;

    setenv("FAKE_CUDA_OPEN_MS", bx_job_rank(job) == 0 ? "1" : "150", 1);
    device = device_open(job, 0);
    harness_post(OPEN);
    harness_await(OPEN, 2);
    tensor = device_numbers(job, device, 10, 3);
    args = device_msg(tensor, DEVICE_AT);
    HARNESS_EQ(bx_rpc_sync(job, bx_worker_name(job, 1 - bx_job_rank(job)), "note", args, NULL, NULL), 0);
}

DEVICE_WORLD(device_map, frees_no_open_slab_when_all_leave, 60, DEVICE_FAKE, .size = 2, .setup = setup,
             .body = { lends_and_leaves, lends_and_leaves });

/* SPDX-License-Identifier: MIT */
/*
 * Device tensors on loan that are sent on without a copy: worker0 owns them, worker1 passes them on, worker2 and
 * worker3 read them. Bodies that end a reader's stream at a gate check that memory comes back only when the stream has
 * passed.
 */
#include "device_fixture.h"
#include "tests/gpu/fake_library.h"
#include "tests/harness/loans.h"

enum gate { OPEN = 0, LATE, GO, DEAD, CLOSED, FREED, FINISHED };
enum value { PASSED, PASSED_BYTES, COPIED, COPIED_TENSORS };

#define COUNT 1000
#define BYTES (COUNT * sizeof(int32_t))
#define LARGE ((int64_t)(66 << 20) / 4)     /* i32, of a slab of its own */

TestSuite(device_passed, .timeout = 60);

static struct bx_tensor *kept;
static uint64_t *late;

/* ---- Handlers -------------------------------------------------------------------------------------------- */

/* Answers how many elements of the tensor are wrong. */
HARNESS_HANDLER(look)
{
    int32_t first = (int32_t)bx_read_i64(args);

    return bx_msg_put_i64(reply, device_wrong(bx_read_tensor(args), first));
}

HARNESS_HANDLER(keep)
{
    (void)bx_read_i64(args);
    kept = bx_tensor_acquire(bx_read_tensor(args));
    return bx_msg_put_i64(reply, 0);
}

/* Releases what is kept, with work on a stream that reads it and is not done before "open". */
HARNESS_HANDLER(drop_late)
{
    struct bx_job *job = bx_request_job(request);
    void *stream = device_stream(job, bx_tensor_device(kept));

    HARNESS_EQ(bx_tensor_read_on(kept, stream), 0);
    late = device_gate(job, stream);
    bx_tensor_release(kept);
    return bx_msg_put_i64(reply, 0);
}

HARNESS_HANDLER(open_gate)
{
    device_open_gate(late);
    return bx_msg_put_i64(reply, 0);
}

HARNESS_HANDLER(drop)
{
    int64_t wrong = device_wrong(kept, (int32_t)bx_read_i64(args));

    bx_tensor_release(kept);
    return bx_msg_put_i64(reply, wrong);
}

HARNESS_HANDLER(make)
{
    struct bx_job *job = bx_request_job(request);
    OWN(tensor) *tensor = device_numbers(job, device_open(job, 0), COUNT, (int32_t)bx_read_i64(args));

    return bx_msg_put_tensor(reply, tensor);
}

/* Answers with the tensor that worker2's make answers with. */
HARNESS_HANDLER(fetch)
{
    struct bx_msg *first = harness_msg_i64(bx_read_i64(args)), *made = NULL;
    int rc = bx_rpc_sync(bx_request_job(request), "worker2", "make", first, NULL, &made);
    struct bx_reader reader;

    bx_msg_destroy(first);
    if (rc < 0)
        return rc;
    reader = bx_msg_reader(made);
    rc = bx_msg_put_tensor(reply, bx_read_tensor(&reader));
    bx_msg_destroy(made);
    return rc;
}

HARNESS_HANDLER(count)
{
    const struct bx_job *job = bx_request_job(request);

    harness_store(PASSED, harness_counter(job, "tensors_passed_on"));
    harness_store(PASSED_BYTES, harness_counter(job, "passed_on_bytes"));
    harness_store(COPIED, device_copied(job));
    harness_store(COPIED_TENSORS, harness_counter(job, "tensors_copied"));
    return bx_msg_put_i64(reply, 0);
}

static int setup(struct bx_job *job)
{
    HARNESS_REGISTER(job, HARNESS_BLOCKING("pass_on", loans_pass_on), HARNESS_INLINE("look", look),
                     HARNESS_INLINE("keep", keep), HARNESS_BLOCKING("drop_late", drop_late),
                     HARNESS_INLINE("open_gate", open_gate), HARNESS_BLOCKING("drop", drop),
                     HARNESS_BLOCKING("make", make), HARNESS_BLOCKING("fetch", fetch), HARNESS_INLINE("count", count));
    return 0;
}

/* ---- Bodies ---------------------------------------------------------------------------------------------- */

static void open_and_serve(struct bx_job *job)
{
    device_open(job, 0);
    harness_post(OPEN);
    harness_serve(job);
}

/* Sends the tensor, numbered from `first`, that way; the answer. */
static int64_t by(struct bx_job *job, struct bx_tensor *tensor, int32_t first, const char *way)
{
    struct bx_msg *args = harness_msg_i64(first);

    bx_msg_put_str(args, way);
    HARNESS_EQ(bx_msg_put_tensor(args, tensor), 0);
    return harness_call(job, "worker1", "pass_on", args);
}

static void kill_worker(const struct bx_job *job, int rank)
{
    harness_signal(rank, SIGKILL);
    while (bx_worker_is_alive(job, rank))
        usleep(1000);
}

static void expect_counts(struct bx_job *job, uint64_t passed, uint64_t bytes)
{
    HARNESS_EQ(harness_call_i64(job, "worker1", "count", 0), 0);
    HARNESS_EQ(harness_load(PASSED), passed);
    HARNESS_EQ(harness_load(PASSED_BYTES), bytes);
    HARNESS_EQ(harness_load(COPIED), 0);
}

/* ---- Nobody dies ------------------------------------------------------------------------------------------ */

DEVICE_TEST(device_passed, tensors_reach_third_and_fourth_workers_without_a_copy, 60, DEVICE_ANY, .size = 4,
            .setup = setup, .body = { [1] = open_and_serve, open_and_serve, open_and_serve })
{
    struct bx_tensor *tensor = device_numbers(job, device_begin(job, 3), COUNT, 5), *view = NULL;

    for (int i = 0; i < 10; i++)
        HARNESS_EQ(by(job, tensor, 5, "2look"), 0);
    HARNESS_EQ(by(job, tensor, 6, "2look"), COUNT);             /* it checks the elements */
    HARNESS_EQ(by(job, tensor, 5, "23look"), 0);
    HARNESS_EQ(by(job, tensor, 5, "+2look"), 0);
    HARNESS_EQ(bx_tensor_slice(tensor, 0, 100, 300, 1, &view), 0);
    HARNESS_EQ(by(job, view, 105, "2look"), 0);
    bx_tensor_release(view);
    HARNESS_EQ(bx_tensor_slice(tensor, 0, 10, 90, 4, &view), 0);        /* strided: checked over its span */
    HARNESS_EQ(by(job, view, 15, "2look"), 0);
    bx_tensor_release(view);
    bx_tensor_release(tensor);
    HARNESS_EQ(bx_loans_wait(job, -1, 0, BX_FOREVER), 0);
    expect_counts(job, 15, 12 * BYTES + (900 + 200 + 20) * sizeof(int32_t));
}

DEVICE_TEST(device_passed, tensors_go_in_replies, 60, DEVICE_ANY, .size = 3, .setup = setup,
            .body = { [1] = open_and_serve, open_and_serve })
{
    device_begin(job, 2);
    for (int i = 0; i < 5; i++) {
        OWN(msg) *args = harness_msg_i64(i), *reply = NULL;
        struct bx_reader reader;

        HARNESS_EQ(bx_rpc_sync(job, "worker1", "fetch", args, NULL, &reply), 0);
        reader = bx_msg_reader(reply);
        HARNESS_EQ(device_wrong(bx_read_tensor(&reader), i), 0);
    }
    expect_counts(job, 5, 5 * BYTES);
}

/* ---- Readers that are late --------------------------------------------------------------------------------- */

static void waits_for_the_reader(struct bx_job *job)
{
    struct bx_tensor *tensor = device_numbers(job, device_begin(job, 2), COUNT, 5);

    HARNESS_EQ(by(job, tensor, 5, "2keep"), 0);
    bx_tensor_release(tensor);
    HARNESS_EQ(harness_call_i64(job, "worker2", "drop_late", 0), 0);
    HARNESS_EQ(bx_loans_wait(job, 1, 0, 200 * HARNESS_MS), BX_E_TIMEOUT);
    HARNESS_EQ(harness_call_i64(job, "worker2", "open_gate", 0), 0);
    HARNESS_EQ(bx_loans_wait(job, 1, 0, BX_FOREVER), 0);
}

static void run_late(const char *order)
{
    device_world(order == NULL ? DEVICE_ANY : DEVICE_FAKE);
    if (order != NULL)
        setenv("BX_GPU_ORDER", order, 1);
    device_run(&(struct harness_world){ .size = 3, .setup = setup,
                                        .body = { waits_for_the_reader, open_and_serve, open_and_serve } });
}

Test(device_passed, tensors_come_back_when_the_readers_stream_has_passed) { run_late(NULL); }
Test(device_passed, tensors_come_back_so_with_events) { run_late("events"); }

/* ---- Deaths ------------------------------------------------------------------------------------------------ */

/* The reader's stream is late, and the middle dies before (is_first) or after the reader has released the tensor. */
static void middle_dies(struct bx_job *job, bool is_first)
{
    struct bx_tensor *tensor = device_numbers(job, device_begin(job, 2), COUNT, 5);
    struct bx_loans loans = { 0 };

    HARNESS_EQ(by(job, tensor, 5, "2keep"), 0);
    bx_tensor_release(tensor);
    if (is_first)
        kill_worker(job, 1);
    HARNESS_EQ(harness_call_i64(job, "worker2", "drop_late", 0), 0);
    if (!is_first)
        kill_worker(job, 1);
    HARNESS_EQ(bx_loans_wait(job, 1, 0, 200 * HARNESS_MS), BX_E_TIMEOUT);
    HARNESS_EQ(harness_call_i64(job, "worker2", "open_gate", 0), 0);
    HARNESS_EQ(bx_loans_wait(job, 1, 0, BX_FOREVER), 0);
    HARNESS_EQ(bx_job_loans(job, 1, &loans), 0);
    HARNESS_EQ(loans.taken_back, 1);
}

DEVICE_TEST(device_passed, tensors_stay_for_a_late_reader_though_the_middle_is_dead, 60, DEVICE_ANY, .size = 3,
            .setup = setup, .dies = 1u << 1, .body = { [1] = open_and_serve, open_and_serve })
{
    middle_dies(job, true);
}

DEVICE_TEST(device_passed, tensors_stay_for_a_late_reader_though_the_middle_dies_then, 60, DEVICE_ANY, .size = 3,
            .setup = setup, .dies = 1u << 1, .body = { [1] = open_and_serve, open_and_serve })
{
    middle_dies(job, false);
}

DEVICE_TEST(device_passed, tensors_come_back_when_a_late_reader_dies, 60, DEVICE_ANY, .size = 3, .setup = setup,
            .dies = 1u << 2, .body = { [1] = open_and_serve, open_and_serve })
{
    struct bx_tensor *tensor = device_numbers(job, device_begin(job, 2), COUNT, 5);

    HARNESS_EQ(by(job, tensor, 5, "2keep"), 0);
    bx_tensor_release(tensor);
    HARNESS_EQ(harness_call_i64(job, "worker2", "drop_late", 0), 0);
    HARNESS_EQ(bx_loans_wait(job, 1, 0, 200 * HARNESS_MS), BX_E_TIMEOUT);
    kill_worker(job, 2);
    HARNESS_EQ(bx_loans_wait(job, 1, 0, BX_FOREVER), 0);
}

static void outlives_the_owner(struct bx_job *job)
{
    int64_t wrong;

    device_open(job, 0);
    harness_post(OPEN);
    harness_await(DEAD, 1);
    while (bx_worker_is_alive(job, 0))
        usleep(1000);
    if (bx_job_rank(job) == 1) {
        wrong = harness_call_i64(job, "worker2", "drop", 5);
        HARNESS_EQ(fake_has("FAKE_CUDA_DROP_DEAD") ? 0 : wrong, 0);
        HARNESS_EQ(bx_loans_wait(job, -1, 0, BX_FOREVER), 0);
    } else {
        harness_serve(job);
    }
}

DEVICE_TEST(device_passed, tensors_are_read_after_the_owners_death, 60,
            (fake_skip_without_words("with events a dead owner's host may not have told what had passed"), DEVICE_ANY),
            .size = 3, .setup = setup, .dies = 1u << 0, .body = { NULL, outlives_the_owner, outlives_the_owner })
{
    struct bx_tensor *tensor = device_numbers(job, device_begin(job, 2), COUNT, 5);

    HARNESS_EQ(by(job, tensor, 5, "2look"), 0);     /* its stream has written it */
    HARNESS_EQ(by(job, tensor, 5, "2keep"), 0);
    harness_post(DEAD);
    harness_die(job);
}

static void reads_what_was_not_written(struct bx_job *job)
{
    struct bx_device device = device_open(job, 0);
    int rc;

    harness_post(OPEN);
    harness_await(DEAD, 1);
    while ((rc = bx_tensor_read_on(kept, bx_gpu_stream(job, device))) == 0)     /* until the death is known */
        usleep(1000);
    HARNESS_EQ(rc, BX_E_PEER_DEAD);
    HARNESS_HAS(bx_error_text(), "worker0");
    bx_tensor_release(kept);
    harness_post(FINISHED);
}

static void ends_after_the_reader(struct bx_job *job)
{
    device_open(job, 0);
    harness_post(OPEN);
    harness_await(FINISHED, 1);
    HARNESS_EQ(bx_loans_wait(job, -1, 0, BX_FOREVER), 0);
}

/* The owner dies while a stream has still to write the tensor: the reader gets BX_E_PEER_DEAD. */
DEVICE_TEST(device_passed, tensors_that_their_dead_owner_has_not_written_are_an_error, 60, DEVICE_ANY, .size = 3,
            .setup = setup, .dies = 1u << 0, .body = { [1] = ends_after_the_reader, reads_what_was_not_written })
{
    struct bx_device device = device_begin(job, 2);
    struct bx_tensor *tensor = device_tensor(job, device, COUNT);
    void *stream = device_stream(job, device);

    device_gate(job, stream);
    HARNESS_EQ(bx_tensor_written_on(tensor, stream), 0);
    HARNESS_EQ(by(job, tensor, 5, "2keep"), 0);
    harness_post(DEAD);
    harness_die(job);
}

/* ---- Slabs and devices ------------------------------------------------------------------------------------ */

static void closes_soon(struct bx_job *job)
{
    device_open(job, 0);
    harness_post(OPEN);
    harness_await(GO, 1);
    while (harness_counter(job, "gpu_slabs_closed") == 0)
        bxi_devices_poll(job);
    harness_post(CLOSED);
    harness_serve(job);
}

static void closes_late(struct bx_job *job)
{
    struct bxi_devices *devices;

    device_open(job, 0);
    devices = bxi_devices_of(job);
    harness_post(OPEN);
    harness_await(LATE, 1);
    pthread_mutex_lock(&devices->lock);
    harness_post(CLOSED);
    harness_await(FREED, 1);
    pthread_mutex_unlock(&devices->lock);
    harness_serve(job);
}

/* worker2 has the owner's slab open, and the owner has never sent it anything. While worker2 cannot close it, the owner
 * does not free it. */
DEVICE_TEST(device_passed, slabs_are_not_freed_while_a_reader_unknown_to_the_owner_has_them_open, 60, DEVICE_ANY,
            .size = 3, .setup = setup, .body = { [1] = closes_soon, closes_late })
{
    struct bx_device device = device_begin(job, 2);
    struct bx_tensor *tensor[2];
    uint64_t most;

    for (int i = 0; i < 2; i++) {
        OWN(tensor) *view = NULL;

        tensor[i] = device_tensor(job, device, LARGE);
        HARNESS_EQ(bx_tensor_slice(tensor[i], 0, 0, 9, 1, &view), 0);
        device_put_numbers(view, 3);
        HARNESS_EQ(by(job, view, 3, "2look"), 0);
    }
    HARNESS_EQ(bx_loans_wait(job, -1, 0, BX_FOREVER), 0);
    most = harness_counter(job, "gpu_bytes");
    harness_post(LATE);
    harness_await(CLOSED, 1);               /* worker2 does not poll from now on */
    for (int i = 0; i < 2; i++)
        bx_tensor_release(tensor[i]);
    bxi_devices_poll(job);
    harness_post(GO);
    harness_await(CLOSED, 2);               /* worker1 has closed its map of a retired slab */
    for (int i = 0; i < 100; i++)
        bxi_devices_poll(job);
    HARNESS_EQ(harness_counter(job, "gpu_bytes"), most);
    harness_post(FREED);
    while (harness_counter(job, "gpu_bytes") == most)
        bxi_devices_poll(job);
}

static void opens_the_second(struct bx_job *job)
{
    device_open(job, 1);
    harness_post(OPEN);
    harness_serve(job);
}

static void passes_to_another_device(struct bx_job *job)
{
    struct bx_tensor *tensor = device_numbers(job, device_begin(job, 2), COUNT, 5);
    bool reaches = getenv("FAKE_CUDA_NO_PEER") == NULL;

    for (int i = 0; i < 3; i++)
        HARNESS_EQ(by(job, tensor, 5, "2look"), 0);
    bx_tensor_release(tensor);
    HARNESS_EQ(harness_call_i64(job, "worker1", "count", 0), 0);
    HARNESS_EQ(harness_load(PASSED), reaches ? 3 : 0);
    HARNESS_EQ(harness_load(COPIED_TENSORS), reaches ? 0 : 3);
    HARNESS_EQ(bx_loans_wait(job, -1, 0, BX_FOREVER), 0);
}

DEVICE_WORLD(device_passed, tensors_go_to_a_device_with_peer_access, 60, DEVICE_FAKE, .size = 3, .setup = setup,
             .body = { passes_to_another_device, open_and_serve, opens_the_second });

DEVICE_WORLD(device_passed, tensors_are_copied_for_a_device_without_peer_access, 60, DEVICE_FAKE, .size = 3,
             .setup = setup, .body = { passes_to_another_device, open_and_serve, opens_the_second },
             .env = { "FAKE_CUDA_NO_PEER=all" });

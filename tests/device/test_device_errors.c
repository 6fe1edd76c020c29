/* SPDX-License-Identifier: MIT */
/*
 * Refusals of device tensors, with exact codes and a sentence with advice; machines on which something is missing;
 * a process that forks with the GPU open. Memory of other libraries: test_device_foreign.c.
 */
#include "device_fixture.h"
#include "tests/gpu/fake_library.h"
#include "tests/harness/memory.h"

enum gate { OPEN = 0, DONE };

/* ---- Refused --------------------------------------------------------------------------------- */

static void without_a_driver(struct bx_job *job)
{
    struct bx_device device = { BX_CUDA, 0 };
    OWN(tensor) *tensor = NULL;

    HARNESS_EQ(bx_gpu_open(job, 0, &device), -ENODEV);
    HARNESS_HAS(bx_error_text(), "/nowhere/libcuda.so.1");
    HARNESS_HAS(bx_error_text(), "install NVIDIA's driver");
    HARNESS_EQ(bx_gpu_count(job), -ENODEV);
    HARNESS_CHECK(!bx_gpu_is_fake(job));
    HARNESS_CHECK(bx_gpu_stream(job, device) == NULL);
    HARNESS_EQ(bx_tensor_create_on(job, device, BX_F32, 0, NULL, &tensor), -ENODEV);
    HARNESS_HAS(bx_error_text(), "has no GPU open; call bx_gpu_open");
    HARNESS_EQ(bx_tensor_create_on(job, (struct bx_device){ BX_CPU, 0 }, BX_F32, 0, NULL, &tensor), 0);
    HARNESS_EQ(bx_tensor_device(tensor).kind, BX_CPU);
}

Test(device_errors, returns_an_error_without_a_driver_and_works_on_without, .timeout = 60)
{
    device_world(DEVICE_FAKE);
    setenv("BX_CUDA_DRIVER", "/nowhere/libcuda.so.1", 1);
    harness_run(&(struct harness_world){ .size = 2, .setup = device_setup, .body = { without_a_driver, NULL } });
}

/* Of another library's tensor, which is refused before anybody looks at its memory. */
static int take_foreign(int64_t stream)
{
    struct device_foreign foreign = device_foreign_at(4096, 1);
    struct bx_tensor *tensor = NULL;

    return device_take(&foreign, stream, &tensor);
}

DEVICE_TEST(device_errors, fail_with_a_code_and_advice, 60, DEVICE_FAKE, .size = 2, .setup = device_setup)
{
    struct bx_device device, other = { BX_CUDA, 1 }, none = { BX_CUDA, 7 };
    struct bx_tensor *tensor = NULL, *view = NULL, *host = NULL;
    struct DLManagedTensor *managed = NULL;

    HARNESS_EQ(bx_gpu_open(job, 7, &device), -ENODEV);
    HARNESS_HAS(bx_error_text(), "there is no device 7: this process sees 2");
    HARNESS_EQ(bx_gpu_count(job), 2);
    HARNESS_EQ(bx_tensor_create_on(job, none, BX_F32, 0, NULL, &tensor), -ENODEV);
    HARNESS_HAS(bx_error_text(), "cuda:7 is not open");
    device = device_open(job, 0);
    HARNESS_EQ(bx_gpu_open(job, 0, NULL), 0);                  /* a second open returns the same */
    HARNESS_CHECK(bx_gpu_stream(job, device) != NULL && bx_gpu_stream(job, other) == NULL);
    HARNESS_EQ(bx_tensor_create_on(job, other, BX_F32, 0, NULL, &tensor), -ENODEV);
    HARNESS_HAS(bx_error_text(), "cuda:1 is not open in worker 'worker0'; call bx_gpu_open");
    HARNESS_EQ(bx_tensor_create_on(NULL, device, BX_F32, 0, NULL, &tensor), -EINVAL);
    HARNESS_EQ(bx_tensor_create_on(job, device, BX_F32, 1, (int64_t[]){ -1 }, &tensor), -EINVAL);
    HARNESS_EQ(bx_tensor_create_on(job, device, BX_F32, 1, (int64_t[]){ INT64_MAX }, &tensor), -EOVERFLOW);
    HARNESS_EQ(bx_tensor_create_on(job, device, BX_U8, 1, (int64_t[]){ INT64_C(1) << 40 }, &tensor), -ENOMEM);
    HARNESS_HAS(bx_error_text(), "no room for 1099511627776 bytes");
    HARNESS_HAS(bx_error_text(), "free some, or wait");

    tensor = device_numbers(job, device, 12, 1);
    HARNESS_EQ(bx_tensor_create(job, BX_I32, 1, (int64_t[]){ 6 }, &host), 0);
    HARNESS_EQ(bx_tensor_slice(tensor, 0, 0, 12, 2, &view), 0);
    HARNESS_EQ(bx_tensor_copy_into(view, host), -ENOTSUP);
    HARNESS_HAS(bx_error_text(), "row-major without gaps");
    HARNESS_EQ(bx_tensor_copy(NULL, tensor, &host), -EINVAL);
    HARNESS_EQ(bx_tensor_written_on(host, NULL), -EINVAL);
    HARNESS_EQ(bx_tensor_read_on(host, NULL), -EINVAL);
    HARNESS_EQ(device_look_at(job, "worker1", tensor, 1), -ENODEV);
    HARNESS_HAS(bx_error_text(), "worker 'worker1' has no GPU open");
    HARNESS_HAS(bx_error_text(), "call bx_gpu_open there");
    HARNESS_EQ(device_look_at(job, "worker0", tensor, 1), 0);
    bx_tensor_release(view);
    bx_tensor_release(host);

    harness_leaves_by_itself();
    HARNESS_EQ(bx_job_shutdown(job, 0), 0);
    HARNESS_EQ(bx_gpu_open(job, 0, &device), BX_E_SHUTDOWN);
    HARNESS_EQ(bx_tensor_create_on(job, device, BX_F32, 0, NULL, &view), BX_E_SHUTDOWN);
    HARNESS_EQ(bx_tensor_written_on(tensor, NULL), BX_E_SHUTDOWN);
    HARNESS_EQ(bx_tensor_read_on(tensor, NULL), BX_E_SHUTDOWN);
    HARNESS_EQ(bx_tensor_copy(job, tensor, &view), BX_E_SHUTDOWN);
    HARNESS_EQ(bx_tensor_copy_into(tensor, tensor), BX_E_SHUTDOWN);
    HARNESS_EQ(bx_tensor_to_dlpack(tensor, 1, &managed), BX_E_SHUTDOWN);
    HARNESS_EQ(take_foreign(1), -ENODEV);
    HARNESS_EQ(take_foreign(-1), -ENODEV);
    bx_job_destroy(job);
    HARNESS_EQ(bx_tensor_read_on(tensor, NULL), BX_E_SHUTDOWN);
    bx_tensor_release(tensor);          /* after its job, and after the driver was closed */
}

/* ---- Call n fails ----------------------------------------------------------------------------- */

static int enters_left;                     /* so many calls of the driver later one fails; 0: none */
static unsigned (*real_enter)(struct CUctx_st *context);

static unsigned enter_or_fail(struct CUctx_st *context)
{
    return __atomic_sub_fetch(&enters_left, 1, __ATOMIC_RELAXED) == 0 ? CUDA_ERROR_OUT_OF_MEMORY : real_enter(context);
}

HARNESS_HANDLER(give)
{
    OWN(tensor) *tensor = device_numbers(bx_request_job(request), device_open(bx_request_job(request), 0), 12, 3);

    return bx_msg_put_tensor(reply, tensor);
}

static int setup_that_gives(struct bx_job *job)
{
    int rc = device_setup(job);

    return rc < 0 ? rc : bx_register(job, "give", BX_BLOCKING, give, NULL);
}

/* device_look_at, which checks that there is memory. */
static int lend(struct bx_job *job, struct bx_tensor *tensor)
{
    OWN(msg) *args = bx_msg_create(0);

    bx_msg_put_i64(args, 3);
    bx_msg_put_tensor(args, tensor);
    bx_msg_put_i64(args, 3);
    return args == NULL ? -ENOMEM : bx_rpc_sync(job, "worker1", "look", args, NULL, NULL);
}

/* Out to another library and in again, where a job's own memory is refused last. */
static int through_dlpack(struct bx_tensor *tensor, int64_t stream)
{
    struct DLManagedTensor *managed = NULL;
    struct bx_tensor *again = NULL;
    int rc = bx_tensor_to_dlpack(tensor, stream, &managed);

    if (rc < 0)
        return rc;
    rc = bx_tensor_from_dlpack(managed, stream, &again);
    ((struct bxi_dl_managed *)managed)->deleter((struct bxi_dl_managed *)managed);
    return rc == -EINVAL ? 0 : rc;
}

/* Makes, copies, lends, borrows, passes on: the first error, or 0. */
static int use_a_device(struct bx_job *job, struct bx_device device, struct bx_tensor *host)
{
    OWN(tensor) *tensor = NULL, *view = NULL, *half = NULL, *copy = NULL, *none = NULL;
    OWN(msg) *reply = NULL;
    struct bx_tensor *borrowed;
    struct bx_reader reader;
    int rc = bx_tensor_create_on(job, device, BX_I32, 1, (int64_t[]){ 12 }, &tensor);

    if (rc < 0 || (rc = through_dlpack(tensor, 2)) < 0 || (rc = bx_tensor_copy_into(tensor, host)) < 0 ||
        (rc = bx_tensor_written_on(tensor, NULL)) < 0 ||
        (rc = bx_tensor_read_on(tensor, NULL)) < 0 || (rc = bx_tensor_slice(tensor, 0, 0, 12, 2, &view)) < 0 ||
        (rc = bx_tensor_copy(job, view, &half)) < 0 || (rc = bx_tensor_copy(job, tensor, &copy)) < 0 ||
        (rc = through_dlpack(tensor, 1)) < 0)
        return rc;
    if ((rc = lend(job, tensor)) < 0 ||
        (rc = bx_rpc_sync(job, "worker1", "give", NULL, NULL, &reply)) < 0)
        return rc;
    reader = bx_msg_reader(reply);
    borrowed = bx_read_tensor(&reader);
    if (borrowed == NULL || (rc = bx_tensor_copy_into(host, borrowed)) < 0 ||
        (rc = bx_tensor_slice(borrowed, 0, 12, 12, 1, &none)) < 0 || (rc = bx_tensor_read_on(none, NULL)) < 0)
        return rc < 0 ? rc : reader.error;
    return lend(job, borrowed);
}

DEVICE_TEST(device_errors, of_any_one_call_leave_the_others, 120, DEVICE_FAKE, .size = 2, .setup = setup_that_gives,
            .env = { "FAKE_CUDA_DELAY_US=1" })
{
    struct bx_device device = device_open(job, 0);
    struct bxi_cuda *cu = &bxi_devices_of(job)->open[0].device->gpu->cu;
    OWN(tensor) *numbers = device_numbers(job, device, 12, 3), *host = NULL;

    HARNESS_EQ(bx_rpc_sync(job, "worker1", "give", NULL, NULL, NULL), 0);       /* it opens its device */
    HARNESS_EQ(bx_tensor_create(NULL, BX_I32, 1, (int64_t[]){ 12 }, &host), 0);
    HARNESS_EQ(bx_tensor_copy_into(host, numbers), 0);
    HARNESS_EQ(use_a_device(job, device, host), 0);
    real_enter = cu->cuCtxPushCurrent_v2;
    cu->cuCtxPushCurrent_v2 = enter_or_fail;
    for (int memory = 0; memory < 2; memory++) {
        int rc = -1, n = 0, left = 0;

        while (left <= 0) {
            *(memory ? &memory_fails_in : &enters_left) = ++n;
            rc = use_a_device(job, device, host);
            left = memory ? memory_fails_in : enters_left;
            memory_fails_in = enters_left = 0;
            HARNESS_CHECK(rc == 0 || (rc < 0 && left <= 0));
            HARNESS_EQ(use_a_device(job, device, host), 0);
        }
        HARNESS_EQ(rc, 0);
        HARNESS_CHECK(n > 10);
    }
    for (int n = 1, rc = -1; rc < 0; n++) {         /* the second device */
        enters_left = n;
        rc = bx_gpu_open(job, 1, NULL);
        HARNESS_CHECK(rc == 0 || enters_left <= 0);
    }
    enters_left = 0;
    HARNESS_EQ(use_a_device(job, (struct bx_device){ BX_CUDA, 1 }, host), 0);
}

DEVICE_TEST(device_errors, for_want_of_memory_leave_the_device_to_the_next_open, 60, DEVICE_FAKE, .size = 2)
{
    int n = 0;

    for (int rc = -1; rc < 0;) {
        memory_fails_in = ++n;
        rc = bx_gpu_open(job, 0, NULL);
        HARNESS_CHECK(rc == 0 || memory_fails_in <= 0);
    }
    memory_fails_in = 0;
    HARNESS_CHECK(n > 3);
    bx_tensor_release(device_numbers(job, device_open(job, 0), 12, 3));
}

/* ---- While a worker shuts down --------------------------------------------------------------- */

HARNESS_HANDLER(open_here)
{
    struct bx_device device;

    return bx_gpu_open(context, 0, &device);
}

static int setup_that_opens(struct bx_job *job)
{
    int rc = device_setup(job);

    return rc < 0 ? rc : bx_register(job, "open", BX_BLOCKING, open_here, job);
}

static void only_serves(struct bx_job *job)
{
    harness_leaves_by_itself();
    HARNESS_EQ(bx_job_shutdown(job, 0), 0);
}

DEVICE_TEST(device_errors, none_for_a_worker_that_opens_a_device_while_it_shuts_down, 60, DEVICE_ANY, .size = 2,
            .setup = setup_that_opens, .body = { [1] = only_serves })
{
    OWN(tensor) *tensor = device_numbers(job, device_open(job, 0), 1000, 5);

    HARNESS_WAIT_WHILE(bxi_load_acquire((bxi_a32 *)&job->rpc->peers[1]->view.control->header.state) < BXI_LEAVING);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "open", NULL, NULL, NULL), 0);
    HARNESS_EQ(device_look_at(job, "worker1", tensor, 5), 0);
}

/* A tensor of a job that has ended, sent by the next job of the same process. */
static void sends_what_is_over(struct bx_job *job)
{
    char name[BX_NAME_MAX + 1];
    int rank = bx_job_rank(job);
    struct bx_options options = { .job = name, .rank = rank, .world_size = 2, .name = rank == 0 ? "a" : "b" };
    struct bx_tensor *old = device_numbers(job, device_open(job, 0), 10, 1), *mine;

    snprintf(name, sizeof name, "%s-next", harness_job_name());
    harness_leaves_by_itself();
    HARNESS_EQ(bx_job_shutdown(job, 0), 0);
    bx_job_destroy(job);
    HARNESS_EQ(bx_job_create(&options, &job), 0);
    HARNESS_EQ(device_setup(job), 0);
    HARNESS_EQ(bx_job_start(job), 0);
    mine = device_numbers(job, device_open(job, 0), 10, 1);
    HARNESS_EQ(device_look_at(job, "a", old, 1), BX_E_SHUTDOWN);
    HARNESS_HAS(bx_error_text(), "has shut down");
    bx_tensor_release(old);
    bx_tensor_release(mine);
    HARNESS_EQ(bx_job_shutdown(job, 0), 0);
    bx_job_destroy(job);
}

DEVICE_WORLD(device_errors, does_not_lend_a_tensor_of_a_former_job, 60, DEVICE_ANY, .size = 2, .setup = device_setup,
             .body = { sends_what_is_over, sends_what_is_over });

static void forks(struct bx_job *job)
{
    struct bx_device device = device_open(job, 0), again;
    struct bx_tensor *tensor = device_numbers(job, device, 10, 1), *view = NULL;
    int status = 0;
    pid_t child;

    /* As if another thread were in the middle of an operation. */
    pthread_mutex_lock(&bxi_devices_of(job)->lock);
    child = fork();
    if (child == 0) {
        HARNESS_EQ(bx_gpu_open(job, 0, &again), BX_E_FORKED);
        HARNESS_EQ(bx_gpu_count(job), BX_E_FORKED);
        HARNESS_EQ(bx_tensor_create_on(job, device, BX_F32, 0, NULL, &view), BX_E_FORKED);
        HARNESS_EQ(bx_tensor_written_on(tensor, NULL), BX_E_FORKED);
        HARNESS_HAS(bx_error_text(), "fork first");
        HARNESS_EQ(bx_tensor_read_on(tensor, NULL), BX_E_FORKED);
        HARNESS_EQ(bx_tensor_copy(job, tensor, &view), BX_E_FORKED);
        HARNESS_EQ(take_foreign(1), BX_E_FORKED);
        HARNESS_EQ(take_foreign(-1), BX_E_FORKED);
        HARNESS_CHECK(bx_gpu_stream(job, device) == NULL && !bx_gpu_is_fake(job));
        bx_tensor_release(tensor);
        bx_job_destroy(job);
        _exit(0);
    }
    pthread_mutex_unlock(&bxi_devices_of(job)->lock);
    HARNESS_EQ(waitpid(child, &status, 0), child);
    HARNESS_EQ(status, 0);
    HARNESS_EQ(device_look_at(job, "worker0", tensor, 1), 0);
    bx_tensor_release(tensor);
}

DEVICE_WORLD(device_errors, gives_errors_to_a_child_of_a_fork, 60, DEVICE_ANY, .size = 2, .setup = device_setup,
             .body = { forks, NULL });

/* ---- Several devices -------------------------------------------------------------------------- */

static void sees_them_the_other_way_round(struct bx_job *job)
{
    setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);
    device_open(job, 0);
    harness_post(OPEN);
    HARNESS_EQ(bx_job_serve(job), 0);
}

DEVICE_TEST(device_errors, identifies_devices_by_uuid_and_not_by_ordinal, 60, DEVICE_FAKE, .size = 2,
            .setup = device_setup, .body = { [1] = sees_them_the_other_way_round })
{
    struct bx_device first = device_open(job, 0), second = device_open(job, 1);
    OWN(tensor) *tensor = device_numbers(job, second, 100, 4);

    HARNESS_EQ(bx_tensor_device(tensor).index, 1);
    HARNESS_CHECK(bx_gpu_stream(job, first) != bx_gpu_stream(job, second));
    harness_await(OPEN, 1);
    HARNESS_EQ(device_look_at(job, "worker0", tensor, 4), 0);
    HARNESS_EQ(harness_load(DEVICE_INDEX), 1);
    HARNESS_EQ(device_look_at(job, "worker1", tensor, 4), 0);
    HARNESS_EQ(harness_load(DEVICE_INDEX), 0);         /* its ordinal there */
}

static void has_another_device(struct bx_job *job)
{
    device_open(job, 1);
    harness_post(OPEN);
    HARNESS_EQ(bx_job_serve(job), 0);
}

/* A numbered tensor on the first visible device, and the bytes staged before it is sent. */
static struct bx_tensor *numbers_on_first_of(struct bx_job *job, const char *visible, uint64_t *staged)
{
    struct bx_tensor *tensor;

    setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    tensor = device_numbers(job, device_open(job, 0), 1000, 4);
    *staged = harness_counter(job, "gpu_staged_bytes");
    harness_await(OPEN, 1);
    return tensor;
}

/* A tensor in another slab: the borrower knows the device by now, and staged nothing for it. */
static void lend_another_slab(struct bx_job *job, struct bx_device device)
{
    OWN(tensor) *tensor = device_tensor(job, device, INT64_C(66) << 18), *view = NULL;
    uint64_t staged;

    HARNESS_EQ(bx_tensor_slice(tensor, 0, 5, 9, 1, &view), 0);
    device_put_numbers(view, 4);
    staged = harness_counter(job, "gpu_staged_bytes");
    HARNESS_EQ(device_look_at(job, "worker1", view, 4), 0);
    HARNESS_EQ(harness_counter(job, "gpu_staged_bytes"), staged);
}

/* Neither sees the other's device. */
static void lends_to_a_hidden_one(struct bx_job *job)
{
    uint64_t before, staged;
    OWN(tensor) *tensor = numbers_on_first_of(job, "0", &before);

    HARNESS_EQ(device_look_at(job, "worker1", tensor, 4), 0);
    HARNESS_EQ(harness_counter(job, "gpu_staged_bytes"), before + 4000);    /* the borrower has not tried yet */
    do {
        staged = harness_counter(job, "gpu_staged_bytes");
        HARNESS_EQ(device_look_at(job, "worker1", tensor, 4), 0);
        HARNESS_EQ(harness_load(DEVICE_BYTES_LEFT), 8);
    } while (harness_counter(job, "gpu_staged_bytes") != staged);
    lend_another_slab(job, bx_tensor_device(tensor));
}

static void is_a_hidden_one(struct bx_job *job)
{
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    device_open(job, 0);
    harness_post(OPEN);
    HARNESS_EQ(bx_job_serve(job), 0);
    HARNESS_EQ(harness_counter(job, "gpu_slabs_opened"), 2);
}

DEVICE_WORLD(device_errors, stages_to_a_hidden_device_until_the_borrower_has_tried, 60,
             (fake_skip_under("FAKE_CUDA_NO_VMM", "the borrower has tried a handle when it opened its device"),
              DEVICE_FAKE), .size = 2, .setup = device_setup, .body = { lends_to_a_hidden_one, is_a_hidden_one });

/* Sends a view whose elements are numbered from `first`; it arrives contiguous. */
static void send_view(struct bx_job *job, struct bx_tensor *view, int32_t first)
{
    uint64_t staged = harness_counter(job, "gpu_staged_bytes"), copied = harness_counter(job, "tensor_bytes_copied");
    uint64_t bytes = (uint64_t)bx_tensor_bytes(view);

    HARNESS_EQ(device_look_at(job, "worker1", view, first), 0);
    HARNESS_EQ(harness_load(DEVICE_BYTES_LEFT), 8);
    HARNESS_EQ(harness_counter(job, "tensor_bytes_copied"), copied + bytes);
    HARNESS_CHECK(harness_counter(job, "gpu_staged_bytes") >= staged + bytes);
}

/* A rows x step matrix, numbered so that its transpose is in order. */
static struct bx_tensor *columns(struct bx_job *job, struct bx_device device, int64_t rows, int64_t step)
{
    int64_t count = rows * step;
    struct bx_tensor *host = NULL, *tensor = device_tensor(job, device, count);

    HARNESS_EQ(bx_tensor_create(NULL, BX_I32, 1, &count, &host), 0);
    for (int64_t i = 0; i < count; i++)
        ((int32_t *)bx_tensor_data_mut(host))[i] = (int32_t)(i % step * rows + i / step);
    HARNESS_EQ(bx_tensor_copy_into(tensor, host), 0);
    bx_tensor_release(host);
    return tensor;
}

DEVICE_TEST(device_errors, packs_views_that_are_staged, 60, DEVICE_FAKE, .size = 2, .setup = device_setup,
            .body = { NULL, has_another_device }, .env = { "FAKE_CUDA_NO_PEER=all" })
{
    static const struct {
        int64_t rows, step;
    } sizes[] = { { 100, 3 }, { 7, 300000 }, { 300001, 5 } };      /* the last two need more than one piece */
    struct bx_device device = device_open(job, 0);

    harness_await(OPEN, 1);
    for (int i = 0; i < 3; i++) {
        int64_t rows = sizes[i].rows, step = sizes[i].step;
        struct bx_tensor *tensor = columns(job, device, rows, step), *view = NULL;

        HARNESS_EQ(bx_tensor_slice(tensor, 0, 2, rows * step, step, &view), 0);
        send_view(job, view, (int32_t)(2 * rows));
        bx_tensor_release(view);
        HARNESS_EQ(bx_tensor_as_strided(tensor, 0, 2, (int64_t[]){ step, rows }, (int64_t[]){ 1, step }, &view), 0);
        send_view(job, view, 0);
        bx_tensor_release(view);
        HARNESS_EQ(bx_tensor_as_strided(tensor, 0, 2, (int64_t[]){ 0, rows }, (int64_t[]){ 1, step }, &view), 0);
        send_view(job, view, 0);
        bx_tensor_release(view);
        bx_tensor_release(tensor);
    }
}

/* ---- Which of several devices ------------------------------------------------------------------ */

/* What the two workers see (NULL: all), the lender's device and those that the borrower opens, in this order; and what
 * becomes of the loans. */
static const struct placing {
    const char *what, *devices, *no_peer, *lender, *borrower;
    int from, opens[2];                 /* -1: no second one */
    uint64_t times, staged;
    int index, reader;                  /* of the tensor and of the device that reads it, there */
} placings[] = {
    { "staged between devices without peer access", "2", "all", NULL, NULL, 0, { 1, -1 }, 3, 3, 1, 0 },
    { "staged every time: hidden from each other, out of reach", "2", "all", "0", "1", 0, { 0, -1 }, 11, 11, 0, 0 },
    { "mapped on the device that both use", "2", "all", NULL, NULL, 1, { 0, 1 }, 1, 0, 1, 1 },
    { "mapped on the second there, which alone has peer access", "3", "0-1", NULL, NULL, 0, { 1, 2 }, 1, 0, 0, 1 },
    { "the same, hidden from the first", "3", "0-2", "0,1", "2,1", 0, { 0, 1 }, 5, 0, 1, 1 },
    { "staged once: the sender alone sees one device", "2", "", "0", "0,1", 0, { 1, -1 }, 20, 1, 0, 0 },
}, *placing;

static void see(const char *visible)
{
    if (visible != NULL)
        setenv("CUDA_VISIBLE_DEVICES", visible, 1);
}

static void lends_there(struct bx_job *job)
{
    OWN(tensor) *tensor = NULL;
    uint64_t before;

    see(placing->lender);
    tensor = device_numbers(job, device_open(job, placing->from), 1000, 4);
    before = harness_counter(job, "gpu_staged_bytes");
    harness_await(OPEN, 1);
    for (uint64_t i = 0; i < placing->times; i++) {
        HARNESS_EQ(device_look_at(job, "worker1", tensor, 4), 0);
        HARNESS_EQ(harness_load(DEVICE_BYTES_LEFT), 8);
    }
    HARNESS_EQ(harness_counter(job, "gpu_staged_bytes"), before + placing->staged * 4000);
    HARNESS_EQ(harness_load(DEVICE_STAGED), (placing->staged + placing->times) * 4000);     /* in, and out to check */
    HARNESS_EQ(harness_load(DEVICE_INDEX), placing->index);
    HARNESS_EQ(harness_load(DEVICE_READER), placing->reader);
}

static void borrows_there(struct bx_job *job)
{
    see(placing->borrower);
    for (int i = 0; i < 2 && placing->opens[i] >= 0; i++)
        device_open(job, placing->opens[i]);
    harness_post(OPEN);
    HARNESS_EQ(bx_job_serve(job), 0);
    HARNESS_EQ(harness_counter(job, "gpu_slabs_opened"), placing->staged < placing->times);
}

Test(device_errors, of_reach_are_found_before_a_device_is_chosen, .timeout = 60)
{
    device_world(DEVICE_FAKE);
    for (placing = placings; placing < placings + sizeof(placings) / sizeof(placings[0]); placing++) {
        fprintf(stderr, "device_errors: %s\n", placing->what);      /* before the line of a worker that fails */
        harness_reset();
        setenv("FAKE_CUDA_DEVICES", placing->devices, 1);
        setenv("FAKE_CUDA_NO_PEER", placing->no_peer, 1);
        device_run(&(struct harness_world){ .size = 2, .setup = device_setup,
                                            .body = { lends_there, borrows_there } });
    }
}

/* ---- Handles that the driver fails to open ----------------------------------------------------- */

/* Worker 0 opens its device first: it has tried no handle when worker 1 lends to it. */
static void lends_by_handle(struct bx_job *job)
{
    bool is_first = bx_job_rank(job) == 0;
    OWN(tensor) *tensor = NULL;
    uint64_t before;

    if (!is_first)
        harness_await(OPEN, 1);
    tensor = device_numbers(job, device_open(job, 0), 1000, 4);
    harness_post(OPEN);
    harness_await(OPEN, 2);
    before = harness_counter(job, "gpu_staged_bytes");
    HARNESS_EQ(device_look_at(job, is_first ? "worker1" : "worker0", tensor, 4), 0);
    HARNESS_CHECK(harness_counter(job, "gpu_staged_bytes") >= before + 4000);
    HARNESS_EQ(harness_counter(job, "gpu_slabs_opened"), 0);
}

DEVICE_WORLD(device_errors, stages_from_the_first_loan_on_where_no_handle_can_be_opened, 60, DEVICE_FAKE, .size = 2,
             .setup = device_setup, .body = { lends_by_handle, lends_by_handle },
             .env = { "BX_GPU_EXPORT=handle", "FAKE_CUDA_OPEN_205=1" });

/* SPDX-License-Identifier: MIT */
/*
 * DLPack with a stream: the consumer's stream waits for the tensor, an imported tensor is written by the stream that
 * its producer was given, and what the special numbers of streams mean. One worker; gates, no durations.
 */
#include "device_fixture.h"
#include "tests/gpu/fake_library.h"

#define BYTES 4096
#define COUNT (BYTES / (int64_t)sizeof(int32_t))
#define LEGACY ((void *)(uintptr_t)1)
#define THREADS ((void *)(uintptr_t)2)

static int64_t number(void *stream)
{
    return (int64_t)(intptr_t)stream;
}

/* Whether all work on the stream is done. */
static bool is_idle(struct bx_job *job, void *stream)
{
    struct bxi_gpu_device *device = bxi_devices_of(job)->open[0].device;
    unsigned result;

    HARNESS_EQ(bxi_gpu_enter(device), 0);
    result = device->gpu->cu.cuStreamQuery(stream);
    bxi_gpu_leave(device);
    HARNESS_CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY);
    return result == CUDA_SUCCESS;
}

/* A tensor of 0x11, which the stream makes 0x33 behind the gate. */
static struct bx_tensor *late_tensor(struct bx_job *job, struct bx_device device, void *stream, uint64_t **gate)
{
    struct bx_tensor *tensor = device_tensor(job, device, COUNT);

    device_set(job, stream, tensor, 0x11);
    device_wait(job, stream);
    *gate = device_gate(job, stream);
    device_set(job, stream, tensor, 0x33);
    return tensor;
}

static void give_back(struct DLManagedTensor *managed)
{
    struct bxi_dl_managed *given = (struct bxi_dl_managed *)(void *)managed;

    given->deleter(given);
}

/* Opens a gate as soon as a call of the library waits for a GPU. */
struct opener {
    struct bx_job *job;
    uint64_t *gate;
    pthread_t thread;
};

static void *open_when_waited_for(void *context)
{
    struct opener *opener = context;

    device_await_pin(opener->job);
    device_open_gate(opener->gate);
    return NULL;
}

static void start_opener(struct opener *opener, struct bx_job *job, uint64_t *gate)
{
    *opener = (struct opener){ .job = job, .gate = gate };
    HARNESS_EQ(pthread_create(&opener->thread, NULL, open_when_waited_for, opener), 0);
}

/* ---- Out --------------------------------------------------------------------------------------- */

DEVICE_TEST(device_dlpack, the_consumers_stream_waits_for_the_writer, 60, DEVICE_ANY, .size = 2)
{
    struct bx_device device = device_open(job, 0);
    void *writer = device_stream(job, device), *stream = device_stream(job, device);
    struct DLManagedTensor *managed = NULL;
    uint64_t *gate;
    struct bx_tensor *tensor = late_tensor(job, device, writer, &gate);

    HARNESS_EQ(bx_tensor_written_on(tensor, writer), 0);
    HARNESS_EQ(bx_tensor_to_dlpack(tensor, number(stream), &managed), 0);
    HARNESS_CHECK(!is_idle(job, stream));
    device_open_gate(gate);
    HARNESS_EQ(device_peek_wrong(job, stream, tensor, 0x33), 0);
    bx_tensor_release(tensor);
    give_back(managed);
}

DEVICE_TEST(device_dlpack, the_consumers_stream_waits_for_the_jobs_own_where_no_writer_was_named, 60, DEVICE_ANY,
            .size = 2)
{
    struct bx_device device = device_open(job, 0);
    void *stream = device_stream(job, device);
    struct DLManagedTensorVersioned *managed = NULL;
    struct bxi_dl_versioned *given;
    uint64_t *gate;
    struct bx_tensor *tensor = late_tensor(job, device, bx_gpu_stream(job, device), &gate);

    HARNESS_EQ(bx_tensor_to_dlpack_versioned(tensor, number(stream), &managed), 0);
    HARNESS_CHECK(!is_idle(job, stream));
    device_open_gate(gate);
    HARNESS_EQ(device_peek_wrong(job, stream, tensor, 0x33), 0);
    bx_tensor_release(tensor);
    given = (struct bxi_dl_versioned *)(void *)managed;
    given->deleter(given);
}

DEVICE_TEST(device_dlpack, stream_1_is_the_legacy_default_stream_and_minus_1_orders_nothing, 60,
            (fake_skip_under("FAKE_CUDA_BLOCKING", "it makes the legacy stream before it ends a wait of a stream"),
            DEVICE_ANY), .size = 2)
{
    struct bx_device device = device_open(job, 0);
    void *writer = device_stream(job, device);
    struct DLManagedTensor *managed = NULL;
    uint64_t *gate;
    struct bx_tensor *tensor = late_tensor(job, device, writer, &gate);

    HARNESS_EQ(bx_tensor_written_on(tensor, writer), 0);
    HARNESS_EQ(bx_tensor_to_dlpack(tensor, -1, &managed), 0);
    HARNESS_CHECK(is_idle(job, LEGACY));
    give_back(managed);
    HARNESS_EQ(bx_tensor_to_dlpack(tensor, 1, &managed), 0);
    HARNESS_CHECK(!is_idle(job, LEGACY));
    device_open_gate(gate);
    HARNESS_EQ(device_peek_wrong(job, LEGACY, tensor, 0x33), 0);
    bx_tensor_release(tensor);
    give_back(managed);
}

DEVICE_TEST(device_dlpack, stream_2_is_the_threads_and_the_host_waits_for_it, 60, DEVICE_ANY, .size = 2)
{
    struct bx_device device = device_open(job, 0);
    void *writer = device_stream(job, device), *other = device_stream(job, device);
    struct DLManagedTensor *managed = NULL;
    struct opener opener;
    uint64_t *gate;
    struct bx_tensor *tensor = late_tensor(job, device, writer, &gate);
    uint32_t streams;

    HARNESS_EQ(bx_tensor_written_on(tensor, writer), 0);
    streams = bxi_devices_of(job)->stream_count;
    start_opener(&opener, job, gate);
    HARNESS_EQ(bx_tensor_to_dlpack(tensor, 2, &managed), 0);
    HARNESS_EQ(device_peek_wrong(job, other, tensor, 0x33), 0);
    HARNESS_EQ(bxi_devices_of(job)->stream_count, streams);
    pthread_join(opener.thread, NULL);
    HARNESS_EQ(bx_tensor_read_on(tensor, THREADS), -EINVAL);
    HARNESS_HAS(bx_error_text(), "another one on each thread");
    HARNESS_EQ(bx_tensor_written_on(tensor, THREADS), -EINVAL);
    bx_tensor_release(tensor);
    give_back(managed);
}

DEVICE_TEST(device_dlpack, memory_is_not_reused_before_the_consumers_work_is_done, 60, DEVICE_ANY, .size = 2)
{
    struct bx_device device = device_open(job, 0);
    void *stream = device_stream(job, device);
    struct bx_tensor *tensor = device_numbers(job, device, COUNT, 1), *next = NULL;
    const void *address = bx_tensor_data(tensor);
    struct DLManagedTensor *managed = NULL;
    uint64_t *gate;

    HARNESS_EQ(bx_tensor_to_dlpack(tensor, number(stream), &managed), 0);
    bx_tensor_release(tensor);
    gate = device_gate(job, stream);
    give_back(managed);
    next = device_tensor(job, device, COUNT);
    HARNESS_CHECK(bx_tensor_data(next) != address);
    device_open_gate(gate);
    bx_tensor_release(next);
}

/* ---- In ---------------------------------------------------------------------------------------- */

static struct device_foreign *make_foreign(struct bx_job *job)
{
    return device_make_foreign(job, "cuMemAlloc_v2", COUNT);
}

/* The other library fills its memory on the stream, behind the gate. */
static uint64_t *fill_late(struct bx_job *job, void *stream, const struct device_foreign *foreign)
{
    struct bxi_gpu_device *device = bxi_devices_of(job)->open[0].device;
    uint64_t *gate = device_gate(job, stream);

    HARNESS_EQ(bxi_gpu_enter(device), 0);
    HARNESS_EQ(device->gpu->cu.cuMemsetD8Async((uintptr_t)foreign->managed.tensor.data, 0x33, BYTES, stream),
               CUDA_SUCCESS);
    bxi_gpu_leave(device);
    return gate;
}

static void end(struct bx_job *job, struct bx_tensor *tensor, struct device_foreign *foreign)
{
    bx_tensor_release(tensor);
    while (bxi_load_acquire(&foreign->ends) == 0) {
        bxi_devices_poll(job);
        sched_yield();
    }
    HARNESS_EQ(bxi_load_acquire(&foreign->ends), 1);
}

DEVICE_TEST(device_dlpack, an_imported_tensor_is_written_by_the_stream_that_its_producer_was_given, 60, DEVICE_ANY,
            .size = 2)
{
    struct bx_device device = device_open(job, 0);
    void *producer = device_stream(job, device), *reader = device_stream(job, device);
    struct device_foreign *foreign = make_foreign(job);
    struct bx_tensor *tensor = NULL;
    uint64_t *gate = fill_late(job, producer, foreign);

    HARNESS_EQ(device_take(foreign, number(producer), &tensor), 0);
    HARNESS_EQ(bx_tensor_read_on(tensor, reader), 0);
    HARNESS_CHECK(!is_idle(job, reader));
    device_open_gate(gate);
    HARNESS_EQ(device_peek_wrong(job, reader, tensor, 0x33), 0);
    end(job, tensor, foreign);
}

DEVICE_TEST(device_dlpack, an_import_from_the_threads_default_stream_waits_on_the_host, 60, DEVICE_ANY, .size = 2)
{
    struct bx_device device = device_open(job, 0);
    void *other = device_stream(job, device);
    struct device_foreign *foreign = make_foreign(job);
    struct bx_tensor *tensor = NULL;
    struct opener opener;

    start_opener(&opener, job, fill_late(job, THREADS, foreign));
    HARNESS_EQ(device_take(foreign, 2, &tensor), 0);
    HARNESS_EQ(device_peek_wrong(job, other, tensor, 0x33), 0);
    pthread_join(opener.thread, NULL);
    end(job, tensor, foreign);
}

/* ---- Refused ------------------------------------------------------------------------------------ */

DEVICE_TEST(device_dlpack, a_stream_that_is_none_is_refused_and_the_struct_stays_with_its_owner, 60, DEVICE_ANY,
            .size = 2)
{
    struct bx_device device = device_open(job, 0);
    struct bx_tensor *tensor = device_numbers(job, device, COUNT, 1), *taken = NULL;
    struct device_foreign *foreign = make_foreign(job);
    struct DLManagedTensor *managed = NULL;

    HARNESS_EQ(bx_tensor_to_dlpack(tensor, 0, &managed), -EINVAL);
    HARNESS_HAS(bx_error_text(), "ambiguous");
    HARNESS_EQ(bx_tensor_to_dlpack(tensor, -2, &managed), -EINVAL);
    HARNESS_EQ(device_take(foreign, 0, &taken), -EINVAL);
    HARNESS_EQ(device_take(foreign, -2, &taken), -EINVAL);
    foreign->managed.tensor.device_id = 1;
    HARNESS_EQ(device_take(foreign, 1, &taken), -ENODEV);
    foreign->managed.tensor.device_id = 0;
    foreign->managed.tensor.byte_offset = 2;
    HARNESS_EQ(device_take(foreign, 1, &taken), -EINVAL);
    HARNESS_CHECK(managed == NULL && taken == NULL);
    HARNESS_EQ(bxi_load_acquire(&foreign->ends), 0);
    bx_tensor_release(tensor);
}

Test(device_dlpack, a_tensor_in_host_memory_has_no_stream, .timeout = 60)
{
    OWN(tensor) *tensor = NULL, *again = NULL;
    struct DLManagedTensor *managed = NULL;
    int64_t shape[1] = { 3 };

    cr_assert_eq(bx_tensor_create(NULL, BX_F32, 1, shape, &tensor), 0);
    cr_assert_eq(bx_tensor_to_dlpack(tensor, 1, &managed), 0);
    cr_assert_eq(bx_tensor_from_dlpack(managed, 7, &again), 0);
    cr_expect_eq(bx_tensor_data(again), bx_tensor_data(tensor));
    cr_expect_eq(bx_tensor_to_dlpack(tensor, 0, &managed), -EINVAL);
}

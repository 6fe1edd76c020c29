/* SPDX-License-Identifier: MIT */
/*
 * Memory of other libraries on a device, in and out by DLPack.
 */
#include "device_fixture.h"
#include "tests/gpu/fake_library.h"

enum gate { OPEN = 0, DONE };

static int take(struct device_foreign *foreign, struct bx_tensor **tensor)
{
    return device_take(foreign, -1, tensor);
}

/* 100 elements from `offset` on of an allocation made without this library. */
static struct device_foreign *make_foreign(struct bx_job *job, const char *allocator, uint64_t offset)
{
    struct device_foreign *foreign = device_make_foreign(job, allocator, 100);

    foreign->managed.tensor.byte_offset = offset;
    return foreign;
}

static void wraps(struct bx_job *job)
{
    struct device_foreign *foreign, *odd;
    struct bx_tensor *tensor = NULL, *none = NULL;

    device_begin(job, 1);
    foreign = make_foreign(job, "cuMemAlloc_v2", 4096);
    HARNESS_EQ(take(foreign, &tensor), 0);
    HARNESS_CHECK((uintptr_t)bx_tensor_data(tensor) == (uintptr_t)foreign->managed.tensor.data + 4096);
    HARNESS_EQ(bx_tensor_device(tensor).kind, BX_CUDA);
    device_put_numbers(tensor, 8);
    HARNESS_EQ(device_look_at(job, "worker1", tensor, 8), 0);
    HARNESS_EQ(harness_counter(job, "tensor_bytes_copied"), 0);
    HARNESS_EQ(bxi_load_acquire(&foreign->ends), 0);
    bx_tensor_release(tensor);
    HARNESS_EQ(bx_loans_wait(job, 1, 0, BX_FOREVER), 0);
    while (bxi_load_acquire(&foreign->ends) == 0) {         /* when worker 1 has closed it */
        bxi_devices_poll(job);
        sched_yield();
    }
    HARNESS_EQ(bxi_load_acquire(&foreign->ends), 1);

    odd = make_foreign(job, "cuMemAlloc_v2", 4098);
    HARNESS_EQ(take(odd, &none), -EINVAL);
    HARNESS_HAS(bx_error_text(), "not a multiple of the 4 bytes");
    odd->managed.tensor.byte_offset = 4096;
    odd->managed.tensor.device_id = 1;
    HARNESS_EQ(take(odd, &none), -ENODEV);
    odd->managed.tensor.device_id = 0;
    odd->shape[0] = 1 << 20;
    HARNESS_EQ(take(odd, &none), -EINVAL);
    HARNESS_EQ(bxi_load_acquire(&odd->ends), 0);
    harness_post(DONE);
}

/* With descriptors no handle is tried before the first foreign memory is lent: that loan fails. */
static void lends_foreign_memory(struct bx_job *job)
{
    struct bx_tensor *own = device_numbers(job, device_begin(job, 1), 100, 8), *tensor = NULL;
    uint64_t before;

    HARNESS_EQ(take(make_foreign(job, "cuMemAlloc_v2", 4096), &tensor), 0);
    device_put_numbers(tensor, 8);
    before = harness_counter(job, "gpu_staged_bytes");
    HARNESS_EQ(device_look_at(job, "worker1", tensor, 8), -EXDEV);
    HARNESS_HAS(bx_error_text(), "what it lends is staged through host memory");
    HARNESS_EQ(harness_counter(job, "gpu_staged_bytes"), before);
    HARNESS_EQ(device_look_at(job, "worker1", tensor, 8), 0);
    HARNESS_EQ(harness_counter(job, "gpu_staged_bytes"), before + 400);
    HARNESS_EQ(device_look_at(job, "worker1", own, 8), 0);
    HARNESS_EQ(harness_counter(job, "gpu_staged_bytes"), before + 400);     /* the pool has descriptors */
    bx_tensor_release(own);
    bx_tensor_release(tensor);
    HARNESS_EQ(bx_loans_wait(job, 1, 0, BX_FOREVER), 0);
    harness_post(DONE);
}

static void polls(struct bx_job *job)
{
    device_open(job, 0);
    harness_post(OPEN);
    while (harness_gate(DONE) == 0) {
        bxi_devices_poll(job);
        sched_yield();
    }
}

Test(device_foreign, stages_foreign_memory_alone_after_its_handle_could_not_be_opened, .timeout = 60)
{
    device_world(DEVICE_FAKE);
    fake_skip_under("FAKE_CUDA_NO_VMM", "the pool is exported by handles too");
    setenv("FAKE_CUDA_OPEN_205", "1", 1);
    harness_run(&(struct harness_world){ .size = 2, .setup = device_setup, .body = { lends_foreign_memory, polls } });
}

Test(device_foreign, wraps_foreign_memory_and_calls_back_when_no_borrower_reads_it, .timeout = 60)
{
    device_world(DEVICE_ANY);
    fake_skip_under("FAKE_CUDA_OPEN_205", "foreign memory is lent by its handle");
    harness_run(&(struct harness_world){ .size = 2, .setup = device_setup, .body = { wraps, polls } });
}

/* A tensor without elements may have no address, as DLPack allows. */
DEVICE_TEST(device_foreign, wraps_a_tensor_without_elements_or_address, 60, DEVICE_ANY, .size = 2,
            .setup = device_setup, .body = { [1] = device_serves })
{
    struct device_foreign foreign = device_foreign_at(0, 0);
    struct bx_tensor *tensor = NULL;

    device_begin(job, 1);
    HARNESS_EQ(take(&foreign, &tensor), 0);
    HARNESS_EQ(bx_tensor_device(tensor).kind, BX_CUDA);
    HARNESS_EQ(bx_tensor_elements(tensor), 0);
    HARNESS_EQ(device_look_at(job, "worker1", tensor, 1), 0);
    HARNESS_EQ(bx_loans_wait(job, 1, 0, BX_FOREVER), 0);
    HARNESS_EQ(bxi_load_acquire(&foreign.ends), 0);
    bx_tensor_release(tensor);
    HARNESS_EQ(bxi_load_acquire(&foreign.ends), 1);
    foreign.managed.tensor.device_id = 1;
    HARNESS_EQ(take(&foreign, &tensor), -ENODEV);
    foreign.managed.tensor.device_id = 0;
    foreign.shape[0] = 1;
    HARNESS_EQ(take(&foreign, &tensor), -EINVAL);
    HARNESS_EQ(bxi_load_acquire(&foreign.ends), 1);
}

/* Which of a real driver's memory is made by cuMemCreate without export, only five of its calls would show. */
DEVICE_TEST(device_foreign, refuses_memory_that_cannot_be_exported, 60, DEVICE_ANY, .size = 2, .setup = device_setup)
{
    static const struct {
        const char *allocator, *says;
    } kinds[] = {
        { "cuMemAllocAsync", "cudaMallocAsync" },
        { "cuMemAllocManaged", "cudaMallocManaged" },
        { "bx_fake_vmm_alloc", "cuMemCreate" },
    };
    struct bx_tensor *tensor = NULL;

    device_open(job, 0);
    for (int i = 0; i < (bx_gpu_is_fake(job) ? 3 : 2); i++) {
        struct device_foreign *foreign = make_foreign(job, kinds[i].allocator, 0);

        HARNESS_EQ(take(foreign, &tensor), -EOPNOTSUPP);
        HARNESS_HAS(bx_error_text(), kinds[i].says);
        HARNESS_HAS(bx_error_text(), "copy it to a tensor of the job's");
        HARNESS_EQ(bxi_load_acquire(&foreign->ends), 0);
    }
}

DEVICE_TEST(device_foreign, exports_by_dlpack_without_a_copy, 60, DEVICE_ANY, .size = 2, .setup = device_setup)
{
    struct bx_device device = device_open(job, 0);
    struct bx_tensor *tensor = device_numbers(job, device, 12, 1), *view = NULL, *again = NULL;
    struct DLManagedTensor *out = NULL;
    struct bxi_dl_managed *managed;

    HARNESS_EQ(bx_tensor_slice(tensor, 0, 2, 12, 3, &view), 0);
    HARNESS_EQ(bx_tensor_to_dlpack(view, -1, &out), 0);
    bx_tensor_release(view);
    managed = (struct bxi_dl_managed *)(void *)out;
    HARNESS_EQ(managed->tensor.device_type, BXI_DL_CUDA);
    HARNESS_EQ(managed->tensor.device_id, 0);
    HARNESS_EQ(managed->tensor.ndim, 1);
    HARNESS_EQ(managed->tensor.shape[0], 4);
    HARNESS_EQ(managed->tensor.strides[0], 3);
    HARNESS_CHECK((uintptr_t)managed->tensor.data + managed->tensor.byte_offset ==
                  (uintptr_t)bx_tensor_data(tensor) + 8);
    /* Back in: the memory is the pool's, which needs no wrapping. */
    HARNESS_EQ(bx_tensor_from_dlpack(out, -1, &again), -EINVAL);
    HARNESS_HAS(bx_error_text(), "part of this worker's own pool");
    bx_tensor_release(tensor);
    HARNESS_CHECK(harness_counter(job, "gpu_bytes_used") > 0);
    managed->deleter(managed);
}

/* Memory of a device that no job has open cannot be wrapped. */
Test(device_foreign, wraps_nothing_without_an_open_device, .timeout = 60)
{
    struct device_foreign foreign = device_foreign_at(4096, 100);
    struct bx_tensor *tensor = NULL;

    cr_assert_eq(take(&foreign, &tensor), -ENODEV);
    cr_assert_not_null(strstr(bx_error_text(), "call bx_gpu_open"));
}

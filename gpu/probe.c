/* SPDX-License-Identifier: MIT */
/*
 * Finds out by trial which order works on a device. Runs once per device, when it is opened, with the context current
 * and without the lock, because a trial that fails ends with a timeout of seconds.
 *
 * The trial of words has two streams and two words. The second stream waits for word 0 and then writes word 1. The host
 * checks that word 1 has not changed, has the first stream write word 0, and polls word 1. With words in host memory
 * the trial is repeated with the host writing word 0, and the waiting stream accesses the words through a second
 * mapping, as a peer's stream would. An attribute of the device only says that the calls exist, not that they
 * work on this kind of memory.
 *
 * A trial that fails may leave a stream waiting. The host releases it, or a plain write to device memory. A stream that
 * does not end even then is leaked together with the memory that it waits on: destroying it, or unregistering or
 * reusing that memory, could block forever.
 */
#include "inside.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define PAGE_BYTES 4096u
#define PATIENCE_NS UINT64_C(2000000000)

struct trial {
    const struct bxi_cuda *cu;
    struct CUstream_st *writer, *waiter;
    bxi_a64 *host;                      /* host words; NULL: device words */
    uint64_t write_at, wait_at;         /* the addresses of the words for the two streams */
    struct CUstream_st *side;           /* copies device words to the host */
    bool is_stuck;                      /* the waiting stream was leaked */
};

static unsigned read_trial_word(const struct trial *trial, unsigned word, uint64_t *value)
{
    unsigned result;

    if (trial->host != NULL) {
        /* [gpu.trial] acquire, pairs with the write of a stream. */
        *value = bxi_load_acquire(&trial->host[word]);
        return CUDA_SUCCESS;
    }
    result = trial->cu->cuMemcpyDtoHAsync_v2(value, trial->write_at + word * sizeof(uint64_t), sizeof(uint64_t),
                                             trial->side);
    return result == CUDA_SUCCESS ? trial->cu->cuStreamSynchronize(trial->side) : result;
}

static void host_write(const struct trial *trial, uint64_t value)
{
    /* [gpu.trial] release, pairs with the wait of a stream. */
    bxi_store_release(&trial->host[0], value);
}

/* Whether word 1 gets the value within PATIENCE_NS. */
static bool gets_value(const struct trial *trial, uint64_t value)
{
    uint64_t end_ns = bxi_gpu_now_ns() + PATIENCE_NS;
    uint64_t seen = 0;

    do {
        if (read_trial_word(trial, 1, &seen) != CUDA_SUCCESS)
            return false;
        if (seen == value)
            return true;
    } while (bxi_gpu_now_ns() < end_ns);
    return false;
}

/* Whether the waiting stream, after its release, ends within PATIENCE_NS. */
static bool ends(const struct trial *trial)
{
    uint64_t end_ns = bxi_gpu_now_ns() + PATIENCE_NS;

    do {
        if (trial->cu->cuStreamQuery(trial->waiter) == CUDA_SUCCESS)
            return true;
    } while (bxi_gpu_now_ns() < end_ns);
    return false;
}

/* One wait, satisfied by the other stream or by the host. */
static bool round_works(struct trial *trial, uint64_t value, bool by_host)
{
    const struct bxi_cuda *cu = trial->cu;
    uint64_t seen = value;

    if (cu->cuStreamWaitValue64_v2(trial->waiter, trial->wait_at, value, CU_STREAM_WAIT_VALUE_GEQ) != CUDA_SUCCESS)
        return false;
    if (cu->cuStreamWriteValue64_v2(trial->waiter, trial->write_at + sizeof(uint64_t), value,
                                    CU_STREAM_WRITE_VALUE_DEFAULT) != CUDA_SUCCESS)
        return false;
    if (read_trial_word(trial, 1, &seen) != CUDA_SUCCESS || seen == value)
        return false;
    if (by_host)
        host_write(trial, value);
    else if (cu->cuStreamWriteValue64_v2(trial->writer, trial->write_at, value, CU_STREAM_WRITE_VALUE_DEFAULT) !=
             CUDA_SUCCESS)
        return false;
    return gets_value(trial, value);
}

static bool words_work(struct trial *trial)
{
    const struct bxi_cuda *cu = trial->cu;
    bool works = false;

    if (cu->cuStreamCreate(&trial->writer, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        return false;
    if (cu->cuStreamCreate(&trial->waiter, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        goto destroy_writer;
    works = round_works(trial, 1, false) && (trial->host == NULL || round_works(trial, 2, true));
    if (trial->host != NULL)
        host_write(trial, BXI_GPU_POISON);
    else
        (void)cu->cuMemsetD8Async(trial->write_at, 0x40, sizeof(uint64_t), trial->side);
    trial->is_stuck = !ends(trial);
    if (!trial->is_stuck)
        (void)cu->cuStreamDestroy_v2(trial->waiter);

destroy_writer:
    (void)cu->cuStreamDestroy_v2(trial->writer);
    return works;
}

/* Registers the second mapping as a peer's words are registered (peer.c): read-only, or writable where the driver
 * registers nothing read-only. */
static bool register_again(struct bxi_gpu_device *device, void *again)
{
    const struct bxi_cuda *cu = &device->gpu->cu;
    unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;

    if (mprotect(again, PAGE_BYTES, PROT_READ) < 0)
        return false;
    device->registers_read_only = cu->cuMemHostRegister_v2(again, PAGE_BYTES, flags | CU_MEMHOSTREGISTER_READ_ONLY) ==
        CUDA_SUCCESS;
    return device->registers_read_only || (mprotect(again, PAGE_BYTES, PROT_READ | PROT_WRITE) == 0 &&
                                           cu->cuMemHostRegister_v2(again, PAGE_BYTES, flags) == CUDA_SUCCESS);
}

/* A page of shared memory, registered twice: writable, and through a second mapping. */
static bool host_words_work(struct bxi_gpu_device *device)
{
    const struct bxi_cuda *cu = &device->gpu->cu;
    struct trial trial = { .cu = cu, .side = device->side };
    unsigned long long write_at = 0, wait_at = 0;
    bool works = false;
    void *page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    void *again;

    if (page == MAP_FAILED)
        return false;
    again = mremap(page, 0, PAGE_BYTES, MREMAP_MAYMOVE);
    if (again == MAP_FAILED)
        goto unmap_page;
    if (cu->cuMemHostRegister_v2(page, PAGE_BYTES, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP) !=
        CUDA_SUCCESS)
        goto unmap_again;
    if (!register_again(device, again))
        goto unregister_page;
    if (cu->cuMemHostGetDevicePointer_v2(&write_at, page, 0) == CUDA_SUCCESS &&
        cu->cuMemHostGetDevicePointer_v2(&wait_at, again, 0) == CUDA_SUCCESS) {
        trial.host = page;
        trial.write_at = write_at;
        trial.wait_at = wait_at;
        works = words_work(&trial);
    }
    if (trial.is_stuck)
        return false;
    (void)cu->cuMemHostUnregister(again);

unregister_page:
    (void)cu->cuMemHostUnregister(page);
unmap_again:
    munmap(again, PAGE_BYTES);
unmap_page:
    munmap(page, PAGE_BYTES);
    return works;
}

/* Registers the words' page of the region, once per process, and gets its address on this device. */
static bool register_words(struct bxi_gpu_device *device)
{
    struct bxi_gpu *gpu = device->gpu;
    const struct bxi_cuda *cu = &gpu->cu;
    unsigned long long address = 0;

    if (!gpu->words_registered &&
        cu->cuMemHostRegister_v2(gpu->region->word, sizeof(gpu->region->word), CU_MEMHOSTREGISTER_PORTABLE |
                                 CU_MEMHOSTREGISTER_DEVICEMAP) != CUDA_SUCCESS)
        return false;
    if (cu->cuMemHostGetDevicePointer_v2(&address, gpu->region->word, 0) != CUDA_SUCCESS) {
        if (!gpu->words_registered)
            (void)cu->cuMemHostUnregister(gpu->region->word);
        return false;
    }
    gpu->words_registered = true;
    device->host_words = address;
    return true;
}

static bool clear(const struct bxi_gpu_device *device, const struct bxi_gpu_block *block)
{
    const struct bxi_cuda *cu = &device->gpu->cu;

    return cu->cuMemsetD8Async(block->address, 0, block->bytes, device->side) == CUDA_SUCCESS &&
        cu->cuStreamSynchronize(device->side) == CUDA_SUCCESS;
}

static bool device_words_work(struct bxi_gpu_device *device)
{
    struct trial trial = { .cu = &device->gpu->cu, .side = device->side };
    struct bxi_gpu_block *block;

    if (bxi_gpu_alloc(device, BXI_GPU_LANES * sizeof(struct bxi_gpu_word), &block) < 0)
        return false;
    trial.write_at = trial.wait_at = block->address;
    if (clear(device, block) && words_work(&trial) && clear(device, block)) {
        device->word_block = block;
        return true;
    }
    if (!trial.is_stuck)
        bxi_gpu_free(block);
    return false;
}

static bool events_work(struct bxi_gpu_device *device)
{
    const struct bxi_cuda *cu = &device->gpu->cu;
    struct CUipcEventHandle_st handle;
    struct CUevent_st *event;
    bool works;

    if (cu->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS) != CUDA_SUCCESS)
        return false;
    works = cu->cuIpcGetEventHandle(&handle, event) == CUDA_SUCCESS &&
        cu->cuEventRecord(event, device->side) == CUDA_SUCCESS && cu->cuEventSynchronize(event) == CUDA_SUCCESS;
    (void)cu->cuEventDestroy_v2(event);
    return works;
}

static bool order_works(struct bxi_gpu_device *device, enum bxi_gpu_order order)
{
    const struct bxi_cuda *cu = &device->gpu->cu;
    bool has_words = cu->cuStreamWriteValue64_v2 != NULL && cu->cuStreamWaitValue64_v2 != NULL;

    switch (order) {
    case BXI_GPU_HOST_WORDS: return has_words && host_words_work(device) && register_words(device);
    case BXI_GPU_DEVICE_WORDS: return has_words && device_words_work(device);
    case BXI_GPU_EVENTS: return events_work(device);
    default: return true;
    }
}

int bxi_gpu_probe(struct bxi_gpu_device *device)
{
    enum bxi_gpu_order wanted = device->gpu->wanted;

    for (int order = BXI_GPU_HOST_WORDS; order <= BXI_GPU_HOST_SYNC; order++) {
        if (wanted != BXI_GPU_ORDER_AUTO && order != (int)wanted)
            continue;
        if (order_works(device, (enum bxi_gpu_order)order)) {
            device->order = (enum bxi_gpu_order)order;
            bxi_gpu_count(&device->gpu->figures.fallbacks, wanted == BXI_GPU_ORDER_AUTO && order != BXI_GPU_HOST_WORDS);
            return 0;
        }
    }
    return bxi_gpu_fail(-ENOTSUP, "the order asked for (BX_GPU_ORDER, %d) does not work on device %d: leave it at auto",
                        (int)wanted, device->ordinal);
}

/* SPDX-License-Identifier: MIT */
/*
 * Finds out by trial which order works on a device. Runs once per device, when it is opened, with the context current
 * and without the lock, because a trial that fails ends with a timeout of seconds. An attribute of the device only says
 * that the calls exist, not that they work on this kind of memory.
 *
 * The trial of words has two streams, two words and a payload in memory of the pool. The second stream waits for word
 * 0, copies the payload to the host and then writes word 1. The host pauses, and checks that nothing has come: a wait
 * that does not wait fails here. It checks that the side stream runs meanwhile. Then the first stream fills the payload
 * and writes word 0, which it cannot if it shares a hardware queue with the second; the host polls word 1 and checks
 * the payload: a wait that ends too early fails here. The trial is repeated with the host writing word 0. The words are
 * in a file in tmpfs, as a segment is, and word 0 is waited for through a second mapping, registered as a peer's words
 * are (peer.c). The trial has one process, because a library must not start others: README.md lists what that leaves
 * open.
 *
 * Every wait of the host has a deadline. Everything is made before a stream waits, because a driver may wait for all
 * streams where it makes something.
 *
 * A trial that fails may leave a stream waiting. The host releases it. A stream that does not end even then is leaked
 * together with the memory that it waits on: destroying it, or unregistering or reusing that memory, could block
 * forever.
 */
#include "inside.h"

#include "shm/cancel.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE_BYTES 4096u
#define PAYLOAD_BYTES (64u << 10)
#define PAUSE_NS 2000000
#define PATIENCE_NS UINT64_C(2000000000)

struct pages {                          /* a trial's host memory: a page with two words, then the payload */
    unsigned char *memory;
    unsigned char *again;               /* a second mapping of the words; NULL: none */
    uint64_t address, again_at;         /* as the device sees both */
};

struct trial {
    struct bxi_gpu_device *device;
    const struct bxi_cuda *cu;
    struct bxi_gpu_block *payload;
    struct CUstream_st *writer, *waiter;
    struct pages pages;
    bxi_a64 *host;                      /* the two words */
    unsigned char *seen;                /* the payload, as it came to the host */
    bool is_stuck;                      /* the waiting stream was leaked, and the pages and the payload stay */
};

/* ---- A trial --------------------------------------------------------------------------------- */

static bool becomes_idle(const struct trial *trial, struct CUstream_st *stream)
{
    return bxi_gpu_idle_by(trial->device, stream, bxi_gpu_now_ns() + PATIENCE_NS);
}

static uint64_t read_word(const struct trial *trial)
{
    /* [gpu.trial] acquire, pairs with the write of a stream. */
    return bxi_load_acquire(&trial->host[1]);
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

    while (read_word(trial) != value) {
        if (bxi_gpu_now_ns() >= end_ns)
            return false;
        sched_yield();
    }
    return true;
}

static bool has_payload(const struct trial *trial, uint64_t value)
{
    return trial->seen[0] == (unsigned char)value && memcmp(trial->seen, trial->seen + 1, PAYLOAD_BYTES - 1) == 0;
}

static void pause_for(long ns)
{
    BXI_UNCANCELLED;
    struct timespec pause = { .tv_nsec = ns };

    nanosleep(&pause, NULL);
}

static bool fill(const struct trial *trial, uint64_t value)
{
    return trial->cu->cuMemsetD8Async(trial->payload->address, (unsigned char)value, PAYLOAD_BYTES, trial->writer) ==
        CUDA_SUCCESS;
}

static bool write_word(const struct trial *trial, uint64_t value)
{
    return trial->cu->cuStreamWriteValue64_v2(trial->writer, trial->pages.address, value,
                                              CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS;
}

/* The waiting stream's work: the wait, the copy of the payload, and word 1. */
static bool begin_wait(const struct trial *trial, uint64_t value)
{
    const struct bxi_cuda *cu = trial->cu;

    return cu->cuStreamWaitValue64_v2(trial->waiter, trial->pages.again_at, value, CU_STREAM_WAIT_VALUE_GEQ) ==
               CUDA_SUCCESS &&
           cu->cuMemcpyDtoHAsync_v2(trial->seen, trial->payload->address, PAYLOAD_BYTES, trial->waiter) ==
               CUDA_SUCCESS &&
           cu->cuStreamWriteValue64_v2(trial->waiter, trial->pages.address + sizeof(uint64_t), value,
                                       CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS;
}

/* Whether another stream runs, the one of copies: not if it shares a hardware queue with one that waits. */
static bool streams_run(const struct trial *trial)
{
    struct CUstream_st *side = trial->device->side;

    return trial->cu->cuMemsetD8Async(trial->payload->address, 0, PAYLOAD_BYTES, side) == CUDA_SUCCESS &&
        becomes_idle(trial, side);
}

/* One wait, satisfied by the other stream or by the host. */
static bool round_works(struct trial *trial, uint64_t value, bool by_host)
{
    if (!fill(trial, ~value) || !becomes_idle(trial, trial->writer))
        return false;
    memset(trial->seen, (int)(unsigned char)~value, PAYLOAD_BYTES);
    if (!begin_wait(trial, value))
        return false;
    pause_for(PAUSE_NS);
    if (read_word(trial) == value || !has_payload(trial, ~value) || !streams_run(trial) || !fill(trial, value))
        return false;
    if (by_host) {
        if (!becomes_idle(trial, trial->writer))
            return false;
        host_write(trial, value);
    } else if (!write_word(trial, value)) {
        return false;
    }
    return gets_value(trial, value) && has_payload(trial, value);
}

/* Runs the trial; its words are 0 before. */
static bool words_work(struct trial *trial)
{
    const struct bxi_cuda *cu = trial->cu;
    bool works = false;

    if (cu->cuStreamCreate(&trial->writer, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        return false;
    if (cu->cuStreamCreate(&trial->waiter, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        goto destroy_writer;
    works = round_works(trial, 1, false) && round_works(trial, 2, true);
    host_write(trial, BXI_GPU_POISON);
    trial->is_stuck = !becomes_idle(trial, trial->waiter) || !becomes_idle(trial, trial->writer);
    if (trial->is_stuck)
        return false;                   /* both streams stay: their writes may still come */
    (void)cu->cuStreamDestroy_v2(trial->waiter);

destroy_writer:
    (void)cu->cuStreamDestroy_v2(trial->writer);
    return works;
}

/* ---- A trial's host memory ------------------------------------------------------------------- */

static bool get_address(const struct bxi_cuda *cu, void *memory, uint64_t *address)
{
    unsigned long long at = 0;
    bool knows = cu->cuMemHostGetDevicePointer_v2(&at, memory, 0) == CUDA_SUCCESS;

    *address = at;
    return knows;
}

/* Maps bytes of the file; NULL: failed. */
static unsigned char *map(int fd, size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    return memory == MAP_FAILED ? NULL : memory;
}

static void close_pages(const struct bxi_cuda *cu, const struct pages *pages)
{
    if (pages->again_at != 0)
        (void)cu->cuMemHostUnregister(pages->again);
    if (pages->address != 0)
        (void)cu->cuMemHostUnregister(pages->memory);
    if (pages->again != NULL)
        munmap(pages->again, PAGE_BYTES);
    if (pages->memory != NULL)
        munmap(pages->memory, PAGE_BYTES + PAYLOAD_BYTES);
}

static bool register_pages(const struct bxi_cuda *cu, void *memory, size_t bytes, unsigned flags, uint64_t *address)
{
    if (cu->cuMemHostRegister_v2(memory, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | flags) !=
        CUDA_SUCCESS)
        return false;
    if (get_address(cu, memory, address) && *address != 0)
        return true;
    (void)cu->cuMemHostUnregister(memory);
    *address = 0;
    return false;
}

/* A file in tmpfs, mapped twice and registered once. */
static bool open_pages(const struct bxi_cuda *cu, struct pages *pages)
{
    int fd = memfd_create("boxcar-probe", MFD_CLOEXEC);

    *pages = (struct pages){ 0 };
    if (fd < 0)
        return false;
    if (ftruncate(fd, PAGE_BYTES + PAYLOAD_BYTES) == 0) {
        pages->memory = map(fd, PAGE_BYTES + PAYLOAD_BYTES);
        pages->again = map(fd, PAGE_BYTES);
    }
    close(fd);
    if (pages->memory != NULL && pages->again != NULL &&
        register_pages(cu, pages->memory, PAGE_BYTES + PAYLOAD_BYTES, 0, &pages->address))
        return true;
    close_pages(cu, pages);
    return false;
}

/* Registers the second mapping as a peer's words are registered: read-only, or writable where the driver registers
 * nothing read-only. */
static bool register_again(struct bxi_gpu_device *device, struct pages *pages)
{
    const struct bxi_cuda *cu = &device->gpu->cu;

    if (mprotect(pages->again, PAGE_BYTES, PROT_READ) < 0)
        return false;
    device->registers_read_only = register_pages(cu, pages->again, PAGE_BYTES, CU_MEMHOSTREGISTER_READ_ONLY,
                                                 &pages->again_at);
    return device->registers_read_only || (mprotect(pages->again, PAGE_BYTES, PROT_READ | PROT_WRITE) == 0 &&
                                           register_pages(cu, pages->again, PAGE_BYTES, 0, &pages->again_at));
}

/* ---- The orders ------------------------------------------------------------------------------ */

static bool host_words_work(struct trial *trial)
{
    struct pages *pages = &trial->pages;
    bool works;

    if (!open_pages(trial->cu, pages))
        return false;
    trial->host = (bxi_a64 *)(void *)pages->memory;
    trial->seen = pages->memory + PAGE_BYTES;
    works = register_again(trial->device, pages) && words_work(trial);
    if (!trial->is_stuck)
        close_pages(trial->cu, pages);
    return works;
}

/* Registers the words' page of the region, once per process, and gets its address on this device. */
static bool register_words(struct bxi_gpu_device *device)
{
    struct bxi_gpu *gpu = device->gpu;
    const struct bxi_cuda *cu = &gpu->cu;
    uint64_t address = 0;

    if (gpu->words_registered ? !get_address(cu, gpu->region->word, &address)
                              : !register_pages(cu, gpu->region->word, sizeof(gpu->region->word), 0, &address))
        return false;
    gpu->words_registered = true;
    device->host_words = address;
    return true;
}

/* With few hardware queues a stream that waits holds up others: also the one that it waits for, and the side stream. */
static bool has_queues(void)
{
    return bxi_cu_connections() >= BXI_CU_CONNECTIONS_LEAST;
}

/* Whether streams run at all, which EVENTS needs, bxi_gpu_probe asks in the end. -ENOTSUP: not as requested. */
static int choose(struct trial *trial)
{
    struct bxi_gpu_device *device = trial->device;
    enum bxi_gpu_order wanted = device->gpu->wanted;
    bool has_words = trial->cu->cuStreamWriteValue64_v2 != NULL && trial->cu->cuStreamWaitValue64_v2 != NULL;

    if (wanted != BXI_GPU_EVENTS && has_words && has_queues() && host_words_work(trial) && register_words(device)) {
        device->order = BXI_GPU_HOST_WORDS;
        return 0;
    }
    if (wanted != BXI_GPU_HOST_WORDS) {
        device->order = BXI_GPU_EVENTS;
        bxi_gpu_count(&device->gpu->figures.fallbacks, wanted == BXI_GPU_ORDER_AUTO);
        return 0;
    }
    if (!has_queues())
        return bxi_gpu_fail(-ENOTSUP, "the order asked for (BX_GPU_ORDER, %d) needs CUDA_DEVICE_MAX_CONNECTIONS to be "
                            "%d or more, not %d: unset it, or leave the order at auto", (int)wanted,
                            BXI_CU_CONNECTIONS_LEAST, bxi_cu_connections());
    return bxi_gpu_fail(-ENOTSUP, "the order asked for (BX_GPU_ORDER, %d) does not work on device %d: leave it at auto",
                        (int)wanted, device->ordinal);
}

int bxi_gpu_probe(struct bxi_gpu_device *device)
{
    struct trial trial = { .device = device, .cu = &device->gpu->cu };
    int rc = bxi_gpu_alloc(device, PAYLOAD_BYTES, &trial.payload);

    if (rc < 0)
        return rc;
    rc = choose(&trial);
    if (rc == 0 && !streams_run(&trial))
        rc = bxi_gpu_fail(-EIO, "streams of device %d do not run any more, after order %d was chosen: see README.md of "
                          "gpu/, assumption 3, and choose an order with BX_GPU_ORDER", device->ordinal,
                          (int)device->order);
    if (!trial.is_stuck)
        bxi_gpu_free(trial.payload);
    return rc;
}

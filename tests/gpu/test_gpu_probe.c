/* SPDX-License-Identifier: MIT */
/*
 * gpu/probe.c: what the trial detects. A function of the driver is replaced in the process's own table before a device
 * is opened, so that waits do not wait, copies do not copy, or nothing ever completes.
 */
#include "gpu_fixture.h"

static int open_device(enum bxi_gpu_order order, void (*replace)(struct bxi_cuda *cu))
{
    struct bxi_gpu_options options = { .driver = gpu_driver_path(), .region = &gpu_shared->region[0],
                                       .slab_bytes = 2 * GPU_MIB, .order = order };

    GPU_EQ(bxi_gpu_open(&options, &gpu), 0);
    if (replace != NULL)
        replace(&gpu->cu);
    return bxi_gpu_device_open(gpu, 0, &gpu_device);
}

static void expect(void (*replace)(struct bxi_cuda *cu), enum bxi_gpu_order order)
{
    GPU_EQ(open_device(BXI_GPU_ORDER_AUTO, replace), 0);
    GPU_EQ(gpu_device->order, order);
    bxi_gpu_close(gpu);
    gpu_forget();
}

/* ---- Waits ------------------------------------------------------------------------------------- */

static unsigned wait_for_nothing(struct CUstream_st *stream, unsigned long long address, uint64_t value, unsigned flags)
{
    (void)stream, (void)address, (void)value, (void)flags;
    return CUDA_SUCCESS;
}

static unsigned (*write_value)(struct CUstream_st *stream, unsigned long long address, uint64_t value, unsigned flags);
static unsigned (*synchronize)(struct CUstream_st *stream);

/* What the stream did not wait for is there before the trial's pause of 2 ms, however slow this process is. */
static unsigned write_and_end(struct CUstream_st *stream, unsigned long long address, uint64_t value, unsigned flags)
{
    unsigned rc = write_value(stream, address, value, flags);

    return rc == CUDA_SUCCESS ? synchronize(stream) : rc;
}

static void lose_waits(struct bxi_cuda *cu)
{
    write_value = cu->cuStreamWriteValue64_v2;
    synchronize = cu->cuStreamSynchronize;
    cu->cuStreamWriteValue64_v2 = write_and_end;
    cu->cuStreamWaitValue64_v2 = wait_for_nothing;
}

GPU_ALONE(gpu_probe, detects_waits_that_do_not_wait, 60, GPU_FAKE)
{
    expect(lose_waits, BXI_GPU_EVENTS);
}

static unsigned (*copy)(void *to, unsigned long long from, size_t bytes, struct CUstream_st *stream);

/* The payload does not come. */
static unsigned copy_nothing_large(void *to, unsigned long long from, size_t bytes, struct CUstream_st *stream)
{
    return bytes > 4096 ? CUDA_SUCCESS : copy(to, from, bytes, stream);
}

static void lose_payload(struct bxi_cuda *cu)
{
    copy = cu->cuMemcpyDtoHAsync_v2;
    cu->cuMemcpyDtoHAsync_v2 = copy_nothing_large;
}

GPU_ALONE(gpu_probe, detects_waits_that_end_before_the_payload_is_there, 60, GPU_FAKE)
{
    expect(lose_payload, BXI_GPU_EVENTS);
}

/* ---- Deadlines --------------------------------------------------------------------------------- */

static unsigned never_ready(struct CUstream_st *stream)
{
    (void)stream;
    return CUDA_ERROR_NOT_READY;
}

static void never_end(struct bxi_cuda *cu)
{
    cu->cuStreamQuery = never_ready;
}

GPU_ALONE(gpu_probe, refuses_a_device_whose_streams_do_not_end, 60, GPU_FAKE)
{
    GPU_EQ(open_device(BXI_GPU_EVENTS, never_end), -EIO);
    GPU_SAYS("do not run any more");
    bxi_gpu_close(gpu);
}

/* ---- Hardware queues --------------------------------------------------------------------------- */

GPU_ALONE(gpu_probe, chooses_no_words_where_there_are_few_connections, 60, GPU_FAKE)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "3", 1);
    expect(NULL, BXI_GPU_EVENTS);
    GPU_EQ(open_device(BXI_GPU_HOST_WORDS, NULL), -ENOTSUP);
    GPU_SAYS("needs CUDA_DEVICE_MAX_CONNECTIONS to be 4 or more, not 3");
    bxi_gpu_close(gpu);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "4", 1);
    expect(NULL, BXI_GPU_HOST_WORDS);
    GPU_EQ(strcmp(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "4"), 0);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "many", 1);       /* CUDA's default holds */
    GPU_EQ(bxi_cu_connections(), 8);
}

GPU_ALONE(gpu_probe, asks_for_as_many_connections_as_there_can_be, 60, GPU_FAKE)
{
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    expect(NULL, BXI_GPU_HOST_WORDS);
    GPU_EQ(strcmp(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32"), 0);
}

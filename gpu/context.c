/* SPDX-License-Identifier: MIT */
/*
 * A device's primary context on the calling thread, and a word of device memory read by the host. Any thread.
 *
 * The context is made current around each call of the driver that needs one, and the caller's own is put back. It is
 * the primary one, which the CUDA runtime and its libraries use too: a context of gpu/'s own would take some hundred
 * megabytes more, and pointers would not be valid in both.
 */
#include "inside.h"

#include <errno.h>

int bxi_gpu_enter(const struct bxi_gpu_device *device)
{
    const struct bxi_cuda *cu = &device->gpu->cu;
    unsigned result;

    if (bxi_gpu_forked())
        return -EPERM;
    result = cu->cuCtxPushCurrent_v2(device->context);
    return result == CUDA_SUCCESS ? 0 : bxi_gpu_cuda_fail(cu, result, "the context of device %d", device->ordinal);
}

void bxi_gpu_leave(const struct bxi_gpu_device *device)
{
    struct CUctx_st *popped;

    (void)device->gpu->cu.cuCtxPopCurrent_v2(&popped);
}

int bxi_gpu_read_word(const struct bxi_gpu_device *device, uint64_t address, uint64_t *value)
{
    struct bxi_gpu *gpu = device->gpu;
    unsigned result;
    int rc = bxi_gpu_enter(device);

    if (rc < 0)
        return rc;
    bxi_gpu_count(&gpu->figures.word_reads, 1);
    result = gpu->cu.cuMemcpyDtoHAsync_v2(value, address, sizeof(*value), device->side);
    if (result == CUDA_SUCCESS)
        result = gpu->cu.cuStreamSynchronize(device->side);
    bxi_gpu_leave(device);
    return result == CUDA_SUCCESS ? 0 : bxi_gpu_cuda_fail(&gpu->cu, result, "reading a word of the device");
}

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
#include <sched.h>

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

bool bxi_gpu_idle_by(const struct bxi_gpu_device *device, struct CUstream_st *stream, uint64_t end_ns)
{
    unsigned result;

    while ((result = device->gpu->cu.cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY) {
        if (bxi_gpu_now_ns() >= end_ns)
            return false;
        sched_yield();
    }
    return result == CUDA_SUCCESS;
}

/* The target is pinned, so that the copy itself does not wait. A copy that comes late changes nothing: the next one is
 * behind it on the same stream. */
int bxi_gpu_read_word(const struct bxi_gpu_device *device, uint64_t address, uint64_t end_ns, uint64_t *value)
{
    struct bxi_gpu *gpu = device->gpu;
    unsigned result;
    bool is_idle = false;
    int rc = bxi_gpu_enter(device);

    if (rc < 0)
        return rc;
    bxi_gpu_count(&gpu->figures.word_reads, 1);
    result = gpu->cu.cuMemcpyDtoHAsync_v2(device->look, address, sizeof(*value), device->side);
    if (result == CUDA_SUCCESS)
        is_idle = bxi_gpu_idle_by(device, device->side, end_ns);
    bxi_gpu_leave(device);
    if (result != CUDA_SUCCESS)
        return bxi_gpu_cuda_fail(&gpu->cu, result, "reading a word of the device");
    if (!is_idle)
        return bxi_gpu_fail(-ETIMEDOUT, "a word of device %d could not be read in time", device->ordinal);
    /* [gpu.look] acquire, pairs with the copy, which is done: only a stream writes here. */
    *value = bxi_load_acquire(device->look);
    return 0;
}

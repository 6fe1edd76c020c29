/* SPDX-License-Identifier: MIT */
/*
 * Copies: between devices with peer access, and through pinned host memory without. The caller's thread.
 *
 * Staging has two pinned buffers of 1 MiB for each device: while the device fills or empties one, the host does the
 * other. It blocks until the device is done, and counts that: it is for devices without peer access, not for the hot
 * path. They are made when the device is opened, because pinning memory may wait for the device. Pinning the caller's
 * memory instead would cost more than the copy for anything that is staged once.
 *
 * Before the buffers are locked the lane is waited for, and the copies go to the side stream, on which nothing waits.
 * On the lane they could be queued behind a wait for another process's work. Then unrelated threads would block on the
 * buffers, even the one thread that must handle that process's death.
 */
#include "inside.h"

#include <errno.h>
#include <string.h>

int bxi_gpu_copy(struct bxi_gpu_lane *lane, uint64_t to, uint64_t from, uint64_t bytes)
{
    struct bxi_gpu *gpu = lane->gpu;
    unsigned result;
    int rc = bxi_gpu_enter_lane(lane, "a copy on a lane");

    if (rc < 0)
        return rc;
    result = gpu->cu.cuMemcpyAsync(to, from, bytes, lane->stream);
    bxi_gpu_leave(lane->device);
    if (result != CUDA_SUCCESS)
        return bxi_gpu_cuda_fail(&gpu->cu, result, "copying %llu bytes on device %d", (unsigned long long)bytes,
                                 lane->device->ordinal);
    bxi_gpu_count(&gpu->figures.d2d_copies, 1);
    bxi_gpu_count(&gpu->figures.d2d_bytes, (int64_t)bytes);
    return 0;
}

int bxi_gpu_stage_init(struct bxi_gpu_device *device)
{
    const struct bxi_cuda *cu = &device->gpu->cu;
    unsigned result = CUDA_SUCCESS;

    for (int i = 0; i < 2 && result == CUDA_SUCCESS; i++) {
        result = cu->cuMemHostAlloc(&device->bounce[i], BXI_GPU_BOUNCE_BYTES, CU_MEMHOSTALLOC_PORTABLE);
        if (result == CUDA_SUCCESS)
            result = cu->cuEventCreate(&device->bounce_event[i], CU_EVENT_DISABLE_TIMING);
    }
    return result == CUDA_SUCCESS ? 0 : bxi_gpu_cuda_fail(cu, result, "pinned memory for staging on device %d",
                                                          device->ordinal);
}

void bxi_gpu_stage_fini(struct bxi_gpu_device *device)
{
    const struct bxi_cuda *cu = &device->gpu->cu;

    for (int i = 0; i < 2; i++) {
        if (device->bounce[i] != NULL)
            (void)cu->cuMemFreeHost(device->bounce[i]);
        if (device->bounce_event[i] != NULL)
            (void)cu->cuEventDestroy_v2(device->bounce_event[i]);
    }
}

static size_t part_bytes(uint64_t bytes, uint64_t at)
{
    return bytes - at < BXI_GPU_BOUNCE_BYTES ? (size_t)(bytes - at) : BXI_GPU_BOUNCE_BYTES;
}

static unsigned fill_bounce(struct bxi_gpu_device *device, uint64_t from, uint64_t bytes, uint64_t at)
{
    const struct bxi_cuda *cu = &device->gpu->cu;
    unsigned which = (unsigned)(at / BXI_GPU_BOUNCE_BYTES % 2);
    unsigned result = cu->cuMemcpyDtoHAsync_v2(device->bounce[which], from + at, part_bytes(bytes, at), device->side);

    return result == CUDA_SUCCESS ? cu->cuEventRecord(device->bounce_event[which], device->side) : result;
}

static unsigned out(struct bxi_gpu_device *device, unsigned char *to, uint64_t from, uint64_t bytes)
{
    unsigned result = fill_bounce(device, from, bytes, 0);

    for (uint64_t at = 0; at < bytes && result == CUDA_SUCCESS; at += BXI_GPU_BOUNCE_BYTES) {
        unsigned which = (unsigned)(at / BXI_GPU_BOUNCE_BYTES % 2);

        if (bytes - at > BXI_GPU_BOUNCE_BYTES)
            result = fill_bounce(device, from, bytes, at + BXI_GPU_BOUNCE_BYTES);
        if (result == CUDA_SUCCESS)
            result = device->gpu->cu.cuEventSynchronize(device->bounce_event[which]);
        if (result == CUDA_SUCCESS)
            memcpy(to + at, device->bounce[which], part_bytes(bytes, at));
    }
    return result;
}

static unsigned in(struct bxi_gpu_device *device, uint64_t to, const unsigned char *from, uint64_t bytes)
{
    const struct bxi_cuda *cu = &device->gpu->cu;
    unsigned result = CUDA_SUCCESS;

    for (uint64_t at = 0; at < bytes && result == CUDA_SUCCESS; at += BXI_GPU_BOUNCE_BYTES) {
        unsigned which = (unsigned)(at / BXI_GPU_BOUNCE_BYTES % 2);

        if (at >= 2 * BXI_GPU_BOUNCE_BYTES)
            result = cu->cuEventSynchronize(device->bounce_event[which]);
        if (result != CUDA_SUCCESS)
            break;
        memcpy(device->bounce[which], from + at, part_bytes(bytes, at));
        result = cu->cuMemcpyHtoDAsync_v2(to + at, device->bounce[which], part_bytes(bytes, at), device->side);
        if (result == CUDA_SUCCESS)
            result = cu->cuEventRecord(device->bounce_event[which], device->side);
    }
    return result == CUDA_SUCCESS ? cu->cuStreamSynchronize(device->side) : result;
}

/* One of to and from is host memory. */
static int stage(struct bxi_gpu_lane *lane, void *host_to, const void *host_from, uint64_t address, uint64_t bytes)
{
    struct bxi_gpu_device *device = lane->device;
    struct bxi_gpu *gpu = lane->gpu;
    unsigned result;
    int rc;

    if (bxi_gpu_forked())
        return -EPERM;
    if (bytes == 0)
        return 0;
    rc = bxi_gpu_enter_lane(lane, "staging on a lane");
    if (rc < 0)
        return rc;
    result = gpu->cu.cuStreamSynchronize(lane->stream);
    pthread_mutex_lock(&device->bounce_lock);
    if (result == CUDA_SUCCESS)
        result = host_to != NULL ? out(device, host_to, address, bytes) : in(device, address, host_from, bytes);
    pthread_mutex_unlock(&device->bounce_lock);
    bxi_gpu_leave(device);
    if (result != CUDA_SUCCESS)
        return bxi_gpu_cuda_fail(&gpu->cu, result, "staging %llu bytes of device %d through host memory",
                                 (unsigned long long)bytes, device->ordinal);
    bxi_gpu_count(&gpu->figures.host_synchronises, 1);
    bxi_gpu_count(&gpu->figures.staged_bytes, (int64_t)bytes);
    return 0;
}

int bxi_gpu_stage_out(struct bxi_gpu_lane *lane, void *to, uint64_t from, uint64_t bytes)
{
    return stage(lane, to, NULL, from, bytes);
}

int bxi_gpu_stage_in(struct bxi_gpu_lane *lane, uint64_t to, const void *from, uint64_t bytes)
{
    return stage(lane, NULL, from, to, bytes);
}

/* SPDX-License-Identifier: MIT */
/*
 * A device's primary context on the calling thread. Any thread.
 *
 * Between enter and leave the thread's mode for stream capture is RELAXED. While a program captures in the default
 * mode, GLOBAL, the driver refuses "potentially unsafe" calls of all other threads, cuMemAlloc among them, and
 * invalidates the program's capture. In mode RELAXED it permits them, and the capture goes on
 * (cuThreadExchangeStreamCaptureMode). The calls here never belong to what the program captures: what would is refused
 * (bxi_gpu_refuse_capture).
 *
 * The context is made current around each call of the driver that needs one, and the caller's own is put back. It is
 * the primary one, which the CUDA runtime and its libraries use too: a context of gpu/'s own would take some hundred
 * megabytes more, and pointers would not be valid in both.
 */
#include "inside.h"

#include "shm/own.h"

#include <errno.h>
#include <sched.h>

/* A thread's calls between enter and leave, which may nest. */
struct entered {
    unsigned depth;
    unsigned mode;                      /* for stream capture: as it was before the outermost */
};

/* Without memory for the record the mode is left as it is. */
static void relax(const struct bxi_cuda *cu)
{
    struct entered *entered = bxi_own_make(BXI_OWN_GPU_MODE, sizeof(*entered));

    if (entered == NULL || entered->depth++ > 0)
        return;
    entered->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    (void)cu->cuThreadExchangeStreamCaptureMode(&entered->mode);
}

static void restore(const struct bxi_cuda *cu)
{
    struct entered *entered = bxi_own_find(BXI_OWN_GPU_MODE);

    if (entered != NULL && entered->depth > 0 && --entered->depth == 0)
        (void)cu->cuThreadExchangeStreamCaptureMode(&entered->mode);
}

int bxi_gpu_enter(const struct bxi_gpu_device *device)
{
    const struct bxi_cuda *cu = &device->gpu->cu;
    unsigned result;

    if (bxi_gpu_forked())
        return -EPERM;
    result = cu->cuCtxPushCurrent_v2(device->context);
    if (result != CUDA_SUCCESS)
        return bxi_gpu_cuda_fail(cu, result, "the context of device %d", device->ordinal);
    relax(cu);
    return 0;
}

void bxi_gpu_leave(const struct bxi_gpu_device *device)
{
    const struct bxi_cuda *cu = &device->gpu->cu;
    struct CUctx_st *popped;

    restore(cu);
    (void)cu->cuCtxPopCurrent_v2(&popped);
}

int bxi_gpu_refuse_capture(const struct bxi_gpu_device *device, struct CUstream_st *stream, const char *what)
{
    const struct bxi_cuda *cu = &device->gpu->cu;
    unsigned status = CU_STREAM_CAPTURE_STATUS_NONE;
    unsigned result = cu->cuStreamIsCapturing(stream, &status);

    if (result != CUDA_SUCCESS)
        return bxi_gpu_cuda_fail(cu, result, "%s: whether its stream is captured", what);
    if (status == CU_STREAM_CAPTURE_STATUS_NONE)
        return 0;
    return bxi_gpu_fail(-EBUSY, "%s while its stream is captured into a CUDA graph: each launch of the graph "
                        "would repeat it with the number of now; do it before the capture begins or after it has "
                        "ended, and launch the graph on this stream", what);
}

int bxi_gpu_enter_lane(const struct bxi_gpu_lane *lane, const char *what)
{
    int rc = bxi_gpu_enter(lane->device);

    if (rc < 0)
        return rc;
    rc = bxi_gpu_refuse_capture(lane->device, lane->stream, what);
    if (rc < 0)
        bxi_gpu_leave(lane->device);
    return rc;
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

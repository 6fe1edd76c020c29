/* SPDX-License-Identifier: MIT */
/*
 * DLPack with a stream: the conversions of lend/dlpack.c, ordered with a stream of the other library. Any thread.
 *
 * A stream is named by its number in Python's __dlpack__(stream=): -1, no order; 1, the legacy default stream; 2, the
 * calling thread's default stream; else a CUstream. 1 and 2 are handles of these streams in CUDA too.
 *
 * Stream 2 is another stream on each thread, so no lane may stay with it: marks that are made later, by other threads,
 * would go to other streams, and the lane's word could move backwards. It has a lane for the length of one call, in
 * which the host waits.
 *
 * The point of an imported tensor is taken before the struct is taken over. So a struct that is refused stays with the
 * caller, unchanged.
 */
#include "device.h"

#include "lend/dlpack_abi.h"

#include <errno.h>

enum { NO_ORDER = -1 };

static int check_stream(int64_t stream)
{
    if (stream == NO_ORDER || stream > 0)
        return 0;
    if (stream == 0)
        return bx_fail(-EINVAL, "stream 0 is ambiguous in DLPack: 1 is the legacy default stream, 2 the "
                                "per-thread one");
    return bx_fail(-EINVAL, "%lld is no stream: -1 is none, other numbers are positive", (long long)stream);
}

/* ---- Out --------------------------------------------------------------------------------------- */

static int order_reader(struct bx_tensor *tensor, int64_t stream)
{
    int rc = check_stream(stream);

    if (rc < 0 || stream == NO_ORDER || !bxi_is_device(tensor))
        return rc;
    return bxi_device_read_by(tensor, stream);
}

int bx_tensor_to_dlpack(struct bx_tensor *tensor, int64_t stream, struct DLManagedTensor **managed)
{
    int rc;

    if (tensor == NULL || managed == NULL)
        return bx_fail(-EINVAL, "bx_tensor_to_dlpack needs a tensor and a place to put the struct");
    rc = order_reader(tensor, stream);
    return rc < 0 ? rc : bxi_to_dlpack(tensor, managed);
}

int bx_tensor_to_dlpack_versioned(struct bx_tensor *tensor, int64_t stream,
                                  struct DLManagedTensorVersioned **managed)
{
    int rc;

    if (tensor == NULL || managed == NULL)
        return bx_fail(-EINVAL, "bx_tensor_to_dlpack_versioned needs a tensor and a place to put the struct");
    rc = order_reader(tensor, stream);
    return rc < 0 ? rc : bxi_to_dlpack_versioned(tensor, managed);
}

/* ---- In ---------------------------------------------------------------------------------------- */

/* Pinned. Waits for the work on the lane and closes it. */
static int end_threads_lane(struct bxi_gpu_lane *lane)
{
    int rc = bxi_gpu_lane_wait(lane);

    if (rc < 0)
        rc = bxi_devices_fail(rc, "the thread's default stream cannot be waited for");
    bxi_gpu_lane_close(lane);
    return rc;
}

/* Under devices->lock, which may be released while the host waits. */
static int point_of(struct bxi_devices *devices, uint32_t device, int64_t stream, struct bxi_gpu_point *point)
{
    struct bxi_gpu_lane *lane = NULL;
    int rc;

    if (stream != BXI_THREADS_NUMBER) {
        rc = bxi_devices_stream(devices, device, (void *)(intptr_t)stream);
        if (rc < 0)
            return rc;
        return bxi_devices_mark(devices, (uint32_t)rc, point) < 0
                   ? bxi_devices_fail(-EIO, "a stream cannot be marked") : 0;
    }
    rc = bxi_device_threads_lane(devices, device, &lane);
    if (rc < 0)
        return rc;
    bxi_devices_pin(devices);
    rc = end_threads_lane(lane);
    bxi_devices_reenter(devices);
    return rc;
}

static int written_by(int ordinal, int64_t stream, struct bxi_gpu_point *point)
{
    struct bxi_devices *devices = bxi_devices_current();
    int rc;

    if (devices == NULL)
        return bx_fail(-ENODEV, "the tensor lies on device cuda:%d, and no GPU is open; call bx_gpu_open", ordinal);
    if (!bxi_devices_enter(devices)) {
        rc = bxi_devices_gone(devices);
        goto release;
    }
    rc = bxi_devices_find(devices, ordinal);
    if (rc >= 0)
        rc = point_of(devices, (uint32_t)rc, stream, point);
    bxi_devices_leave(devices);

release:
    bxi_devices_release(devices);
    return rc;
}

static void set_written(struct bx_tensor *tensor, const struct bxi_gpu_point *point)
{
    struct bxi_device_block *block;

    if (point->order == 0)
        return;
    block = tensor->storage->device;
    if (!bxi_devices_enter(block->devices))
        return;
    block->written = *point;
    bxi_devices_leave(block->devices);
}

static int order_writer(const struct bxi_dl_tensor *from, int64_t stream, struct bxi_gpu_point *point)
{
    int rc = check_stream(stream);

    *point = (struct bxi_gpu_point){ 0 };
    if (rc < 0 || stream == NO_ORDER || from->device_type != BXI_DL_CUDA)
        return rc;
    return written_by(from->device_id, stream, point);
}

int bx_tensor_from_dlpack(struct DLManagedTensor *from, int64_t stream, struct bx_tensor **tensor)
{
    const struct bxi_dl_managed *given = (const struct bxi_dl_managed *)(void *)from;
    struct bxi_gpu_point point;
    int rc;

    if (from == NULL || tensor == NULL)
        return bx_fail(-EINVAL, "bx_tensor_from_dlpack needs a struct and a place to put the tensor");
    rc = order_writer(&given->tensor, stream, &point);
    if (rc == 0)
        rc = bxi_from_dlpack(from, tensor);
    if (rc == 0)
        set_written(*tensor, &point);
    return rc;
}

int bx_tensor_from_dlpack_versioned(struct DLManagedTensorVersioned *from, int64_t stream,
                                    struct bx_tensor **tensor)
{
    const struct bxi_dl_versioned *given = (const struct bxi_dl_versioned *)(void *)from;
    struct bxi_gpu_point point = { 0 };
    int rc;

    if (from == NULL || tensor == NULL)
        return bx_fail(-EINVAL, "bx_tensor_from_dlpack_versioned needs a struct and a place to put the tensor");
    /* Of another major version only the version is known; bxi_from_dlpack_versioned refuses it. */
    rc = given->major != BXI_DL_MAJOR ? 0 : order_writer(&given->tensor, stream, &point);
    if (rc == 0)
        rc = bxi_from_dlpack_versioned(from, tensor);
    if (rc == 0)
        set_written(*tensor, &point);
    return rc;
}

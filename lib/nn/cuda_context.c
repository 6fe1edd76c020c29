/* SPDX-License-Identifier: MIT */
/*
 * The work of a device's context that the rest of the GPU code is made of: results, entering and leaving the context,
 * waiting for the stream, allocating, copying. Run by the thread that uses the device.
 *
 * The context is the primary one, which gpu/ and the libraries on the CUDA runtime use too, so that a pointer means the
 * same to all of them. It is made current around each public call; then the caller's is restored. The stream does not
 * wait for the default stream, on which nothing here is done.
 */
#include "cuda.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- Results ------------------------------------------------------------------------------------- */

int bxi_cuda_code(unsigned result)
{
    switch (result) {
    case CUDA_SUCCESS: return 0;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_HANDLE: return -EINVAL;
    case CUDA_ERROR_OUT_OF_MEMORY: return -ENOMEM;
    case CUDA_ERROR_NOT_INITIALIZED: return -EPERM;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_DEVICE_UNAVAILABLE: return -ENODEV;
    case CUDA_ERROR_NOT_SUPPORTED: return -ENOTSUP;
    default: return -EIO;
    }
}

int bxi_cuda_fail(const struct bx_cuda *cuda, unsigned result, const char *format, ...)
{
    const struct bxi_cuda *cu = &cuda->driver.cu;
    char what[256];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(what, sizeof(what), format, arguments);
    va_end(arguments);
    return bx_fail(bxi_cuda_code(result), "%s: %s (%u, %s)", what, bxi_cu_name(cu, result), result,
                   bxi_cu_text(cu, result));
}

/* ---- Context ------------------------------------------------------------------------------------- */

int bxi_cuda_enter(const struct bx_cuda *cuda, const char *call)
{
    int rc = cuda == NULL ? bx_fail(-EINVAL, "%s was given no device", call) : bxi_cuda_check_fork();
    unsigned result;

    if (rc < 0)
        return rc;
    result = cuda->driver.cu.cuCtxPushCurrent_v2(cuda->context);
    return result == CUDA_SUCCESS ? 0 : bxi_cuda_fail(cuda, result, "%s: the context of device %d", call,
                                                      cuda->ordinal);
}

void bxi_cuda_leave(const struct bx_cuda *cuda)
{
    struct CUctx_st *popped;

    (void)cuda->driver.cu.cuCtxPopCurrent_v2(&popped);
}

/* ---- Stream and memory ----------------------------------------------------------------------------- */

int bxi_cuda_sync(const struct bx_cuda *cuda)
{
    unsigned result = cuda->driver.cu.cuStreamSynchronize(cuda->stream);

    return result == CUDA_SUCCESS ? 0 : bxi_cuda_fail(cuda, result, "device %d (%s), when its work was waited for",
                                                      cuda->ordinal, cuda->name);
}

int bxi_cuda_take(const struct bx_cuda *cuda, size_t bytes, void **memory)
{
    unsigned long long address = 0;
    unsigned result = cuda->driver.cu.cuMemAlloc_v2(&address, bytes);

    if (result != CUDA_SUCCESS)
        return bxi_cuda_fail(cuda, result, "%zu bytes of device %d (%s)", bytes, cuda->ordinal, cuda->name);
    *memory = (void *)(uintptr_t)address;
    return 0;
}

/* True if the driver knows the address: device memory, or pinned host memory. */
static bool is_known(const struct bx_cuda *cuda, const void *address)
{
    unsigned type = 0;

    return cuda->driver.cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)address) ==
        CUDA_SUCCESS;
}

int bxi_cuda_put_copy(const struct bx_cuda *cuda, void *to, const void *from, size_t bytes)
{
    const struct bxi_cuda *cu = &cuda->driver.cu;
    bool knows_to = is_known(cuda, to), knows_from = is_known(cuda, from);
    unsigned result;
    int rc;

    if (bytes == 0)
        return 0;
    if (!knows_to && !knows_from) {
        rc = bxi_cuda_sync(cuda);
        if (rc == 0)
            memmove(to, from, bytes);
        return rc;
    }
    if (knows_to && knows_from)
        result = cu->cuMemcpyAsync((uintptr_t)to, (uintptr_t)from, bytes, cuda->stream);
    else if (knows_to)
        result = cu->cuMemcpyHtoDAsync_v2((uintptr_t)to, from, bytes, cuda->stream);
    else
        result = cu->cuMemcpyDtoHAsync_v2(to, (uintptr_t)from, bytes, cuda->stream);
    return result == CUDA_SUCCESS ? 0 : bxi_cuda_fail(cuda, result, "a copy of %zu bytes by device %d (%s)", bytes,
                                                      cuda->ordinal, cuda->name);
}

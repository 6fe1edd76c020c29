/* SPDX-License-Identifier: MIT */
/*
 * The work of a device's context that the rest of the GPU code is made of: results, entering and leaving the context,
 * waiting for the stream, allocating, copying. Run by the thread that uses the device.
 *
 * What ends may wait for the device, and that for another process (a stream that waits for a word): it ends on a thread
 * of its own, and where that takes too long everything is left to the end of the process, as in gpu/.
 *
 * The context is the primary one, which gpu/ and the libraries on the CUDA runtime use too, so that a pointer means the
 * same to all of them. It is made current around each public call; then the caller's is restored. The stream does not
 * wait for the default stream, on which nothing here is done.
 */
#include "cuda.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- Results ------------------------------------------------------------------------------------- */

int bxi_cuda_fail(const struct bx_cuda *cuda, unsigned result, const char *format, ...)
{
    const struct bxi_cuda *cu = &cuda->cu;
    char what[256];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(what, sizeof(what), format, arguments);
    va_end(arguments);
    return bx_fail(bxi_cu_code(result), "%s: %s (%u, %s)", what, bxi_cu_name(cu, result), result,
                   bxi_cu_text(cu, result));
}

/* ---- Context ------------------------------------------------------------------------------------- */

int bxi_cuda_enter(const struct bx_cuda *cuda, const char *call)
{
    int rc = cuda == NULL ? bx_fail(-EINVAL, "%s was given no device", call) : bxi_cuda_check_fork();
    unsigned result;

    if (rc < 0)
        return rc;
    result = cuda->cu.cuCtxPushCurrent_v2(cuda->context);
    return result == CUDA_SUCCESS ? 0 : bxi_cuda_fail(cuda, result, "%s: the context of device %d", call,
                                                      cuda->ordinal);
}

void bxi_cuda_leave(const struct bx_cuda *cuda)
{
    struct CUctx_st *popped;

    (void)cuda->cu.cuCtxPopCurrent_v2(&popped);
}

/* ---- Ending -------------------------------------------------------------------------------------- */

#define END_NS UINT64_C(2000000000)             /* as gpu/ gives its lanes */

struct ending {                         /* freed by the second of the two threads */
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool has_ended, is_alone;           /* lock; is_alone: the first thread has gone */
    void (*end)(void *object);
    void *object;
};

static void free_ending(struct ending *ending)
{
    pthread_cond_destroy(&ending->change);
    pthread_mutex_destroy(&ending->lock);
    free(ending);
}

static void *run_ending(void *context)
{
    struct ending *ending = context;
    bool is_alone;

    ending->end(ending->object);
    pthread_mutex_lock(&ending->lock);
    ending->has_ended = true;
    is_alone = ending->is_alone;
    pthread_cond_signal(&ending->change);
    pthread_mutex_unlock(&ending->lock);
    if (is_alone)
        free_ending(ending);
    return NULL;
}

/* NULL: no memory, or no thread. */
static struct ending *begin_ending(void (*end)(void *object), void *object)
{
    struct ending *ending = calloc(1, sizeof(*ending));
    pthread_condattr_t attributes;
    pthread_t thread;

    if (ending == NULL)
        return NULL;
    ending->end = end;
    ending->object = object;
    pthread_mutex_init(&ending->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&ending->change, &attributes);
    pthread_condattr_destroy(&attributes);
    if (pthread_create(&thread, NULL, run_ending, ending) != 0) {
        free_ending(ending);
        return NULL;
    }
    pthread_detach(thread);
    return ending;
}

bool bxi_cuda_end(struct bx_cuda *cuda, void (*end)(void *object), void *object)
{
    struct timespec until;
    struct ending *ending;
    bool has_ended;

    if (cuda->is_left)
        return false;
    if (bxi_cuda_check_fork() < 0) {    /* the driver is not called: only host memory is freed */
        end(object);
        return true;
    }
    ending = begin_ending(end, object);
    if (ending == NULL) {
        cuda->is_left = true;
        return false;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(END_NS / UINT64_C(1000000000));
    pthread_mutex_lock(&ending->lock);
    while (!ending->has_ended && pthread_cond_timedwait(&ending->change, &ending->lock, &until) == 0)
        ;
    has_ended = ending->has_ended;
    ending->is_alone = !has_ended;
    pthread_mutex_unlock(&ending->lock);
    if (has_ended)
        free_ending(ending);
    else
        cuda->is_left = true;
    return has_ended;
}

/* ---- Stream and memory ----------------------------------------------------------------------------- */

int bxi_cuda_sync(const struct bx_cuda *cuda)
{
    unsigned result = cuda->cu.cuStreamSynchronize(cuda->stream);

    return result == CUDA_SUCCESS ? 0 : bxi_cuda_fail(cuda, result, "device %d (%s), when its work was waited for",
                                                      cuda->ordinal, cuda->name);
}

int bxi_cuda_take(const struct bx_cuda *cuda, size_t bytes, void **memory)
{
    unsigned long long address = 0;
    unsigned result = cuda->cu.cuMemAlloc_v2(&address, bytes);

    if (result != CUDA_SUCCESS)
        return bxi_cuda_fail(cuda, result, "%zu bytes of device %d (%s)", bytes, cuda->ordinal, cuda->name);
    *memory = (void *)(uintptr_t)address;
    return 0;
}

/* True if the driver knows the address: device memory, or pinned host memory. */
static bool is_known(const struct bx_cuda *cuda, const void *address)
{
    unsigned type = 0;

    return cuda->cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)address) ==
        CUDA_SUCCESS;
}

int bxi_cuda_put_copy(const struct bx_cuda *cuda, void *to, const void *from, size_t bytes)
{
    const struct bxi_cuda *cu = &cuda->cu;
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

/* SPDX-License-Identifier: MIT */
/*
 * Streams, and the work that can be put on them. queue.c runs it.
 */
#include "stream.h"

unsigned cuStreamCreate(struct CUstream_st **out, unsigned flags)
{
    struct CUctx_st *context;
    unsigned result = fake_current(&context);
    struct CUstream_st *stream;

    (void)flags;
    if (result != CUDA_SUCCESS)
        return result;
    fake_block();
    stream = fake_new(sizeof(*stream));
    stream->context = context;
    stream->delay_us = fake_options.delay_us;
    fake_stream_enter(stream);
    *out = stream;
    return CUDA_SUCCESS;
}

/* Does not wait: work queued on the stream still runs. */
unsigned cuStreamDestroy_v2(struct CUstream_st *stream)
{
    struct fake_work end = { .kind = WORK_END };

    fake_capture_drop(stream);
    fake_stream_hide(stream);
    return fake_put(stream, &end);
}

static struct CUstream_st *made(struct CUstream_st **place)
{
    if (*place == NULL && cuStreamCreate(place, 0) != CUDA_SUCCESS)
        *place = NULL;
    return *place;
}

struct CUstream_st *fake_stream(struct CUstream_st *handle)
{
    static pthread_mutex_t legacy_lock = PTHREAD_MUTEX_INITIALIZER;
    static struct CUstream_st *legacy[FAKE_DEVICES];
    static __thread struct CUstream_st *own[FAKE_DEVICES];
    struct CUctx_st *context;

    if ((uintptr_t)handle != 1 && (uintptr_t)handle != 2)
        return handle;
    if (fake_current(&context) != CUDA_SUCCESS)
        return NULL;
    if ((uintptr_t)handle == 2)
        return made(&own[context->device]);
    pthread_mutex_lock(&legacy_lock);
    handle = made(&legacy[context->device]);
    pthread_mutex_unlock(&legacy_lock);
    return handle;
}

unsigned cuStreamSynchronize(struct CUstream_st *stream)
{
    unsigned result;

    if (fake_ready() != CUDA_SUCCESS)
        return CUDA_ERROR_NOT_INITIALIZED;
    stream = fake_stream(stream);
    if (stream == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    result = fake_capture_refuses(stream);
    if (result == CUDA_SUCCESS)
        fake_wait_idle(stream);
    return result;
}

unsigned cuStreamQuery(struct CUstream_st *stream)
{
    unsigned result;

    stream = fake_stream(stream);
    if (stream == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    result = fake_capture_refuses(stream);
    if (result != CUDA_SUCCESS)
        return result;
    return fake_is_idle(stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

/* ---- Work ------------------------------------------------------------------------------------ */

unsigned cuMemsetD8Async(unsigned long long to, unsigned char value, size_t bytes, struct CUstream_st *stream)
{
    struct fake_work work = { .kind = WORK_SET, .to = to, .value = value, .bytes = bytes };

    return fake_may_touch(to, bytes, true) ? fake_put(stream, &work) : CUDA_ERROR_INVALID_VALUE;
}

unsigned cuMemcpyAsync(unsigned long long to, unsigned long long from, size_t bytes, struct CUstream_st *stream)
{
    struct fake_work work = { .kind = WORK_COPY, .to = to, .from = from, .bytes = bytes };

    return fake_may_touch(to, bytes, true) && fake_may_touch(from, bytes, false) ? fake_put(stream, &work)
        : CUDA_ERROR_INVALID_VALUE;
}

/* A copy from or to memory that is not pinned is complete when the call returns, as with the real driver. */
static unsigned copy_host(struct fake_work *work, struct CUstream_st *stream, bool is_pinned)
{
    unsigned result = fake_put(stream, work);

    if (result == CUDA_SUCCESS && !is_pinned)
        fake_wait_idle(fake_stream(stream));
    return result;
}

unsigned cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, struct CUstream_st *stream)
{
    struct fake_work work = { .kind = WORK_COPY, .to = to, .from = (uint64_t)(uintptr_t)from, .bytes = bytes };

    return fake_may_touch(to, bytes, true) ? copy_host(&work, stream, fake_may_touch(work.from, bytes, false))
        : CUDA_ERROR_INVALID_VALUE;
}

unsigned cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t bytes, struct CUstream_st *stream)
{
    struct fake_work work = { .kind = WORK_COPY, .to = (uint64_t)(uintptr_t)to, .from = from, .bytes = bytes };

    return fake_may_touch(from, bytes, false) ? copy_host(&work, stream, fake_may_touch(work.to, bytes, true))
        : CUDA_ERROR_INVALID_VALUE;
}

unsigned cuStreamWriteValue64_v2(struct CUstream_st *stream, unsigned long long address, uint64_t value,
                                 unsigned flags)
{
    static struct CUevent_st nowhere;
    struct fake_work work = { .kind = WORK_WRITE, .to = address, .value = value, .event = &nowhere };

    if (fake_options.lost_writes)
        work.kind = WORK_RECORD;
    if (fake_options.no_stream_ops)
        return CUDA_ERROR_NOT_SUPPORTED;
    return flags == 0 && address % 8 == 0 && fake_may_touch(address, 8, true) ? fake_put(stream, &work)
        : CUDA_ERROR_INVALID_VALUE;
}

unsigned cuLaunchHostFunc(struct CUstream_st *stream, void (*call)(void *context), void *context)
{
    struct fake_work work = { .kind = WORK_HOST, .host = call, .argument = context };

    return fake_put(stream, &work);
}

unsigned cuStreamWaitValue64_v2(struct CUstream_st *stream, unsigned long long address, uint64_t value,
                                unsigned flags)
{
    struct fake_work work = { .kind = WORK_WAIT, .to = address, .value = value };

    if (fake_options.no_stream_ops)
        return CUDA_ERROR_NOT_SUPPORTED;
    return flags == CU_STREAM_WAIT_VALUE_GEQ && address % 8 == 0 && fake_may_touch(address, 8, false)
        ? fake_put(stream, &work) : CUDA_ERROR_INVALID_VALUE;
}

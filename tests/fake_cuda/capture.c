/* SPDX-License-Identifier: MIT */
/*
 * Capture of streams, as far as a caller must find out that it goes on, or may break it. A captured stream takes work
 * and does not run it, and its capture ends without a graph. A call that the driver calls potentially unsafe is refused
 * as its documentation says (cuThreadExchangeStreamCaptureMode), and what it conflicted with is invalidated. Here these
 * are the calls that make or free memory, open or close handles, register, load modules, or query or synchronise.
 */
#include "stream.h"

struct CUgraph_st;

FAKE_EXPORT unsigned cuStreamBeginCapture_v2(struct CUstream_st *stream, unsigned mode);
FAKE_EXPORT unsigned cuStreamEndCapture(struct CUstream_st *stream, struct CUgraph_st **graph);
FAKE_EXPORT unsigned cuStreamIsCapturing(struct CUstream_st *stream, unsigned *status);
FAKE_EXPORT unsigned cuThreadExchangeStreamCaptureMode(unsigned *mode);

#define ILLEGAL_STATE 401
#define CAPTURE_UNSUPPORTED 900
#define WRONG_THREAD 908

enum { MODE_GLOBAL, MODE_THREAD_LOCAL, MODE_RELAXED };          /* CUstreamCaptureMode */

static struct CUstream_st *captured;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local unsigned thread_mode = MODE_GLOBAL;

enum fake_capture fake_capture_of(struct CUstream_st *stream)
{
    enum fake_capture status;

    pthread_mutex_lock(&lock);
    status = stream->capture.status;
    pthread_mutex_unlock(&lock);
    return status;
}

/* Under the lock. */
static bool conflicts(const struct CUstream_st *stream)
{
    if (thread_mode == MODE_RELAXED || stream->capture.status != CAPTURE_ACTIVE)
        return false;
    if (pthread_equal(stream->capture.by, pthread_self()))
        return stream->capture.mode != MODE_RELAXED;
    return thread_mode == MODE_GLOBAL && stream->capture.mode == MODE_GLOBAL;
}

unsigned fake_unsafe(void)
{
    unsigned result = CUDA_SUCCESS;

    pthread_mutex_lock(&lock);
    for (struct CUstream_st *stream = captured; stream != NULL; stream = stream->capture.next) {
        if (!conflicts(stream))
            continue;
        stream->capture.status = CAPTURE_INVALIDATED;
        result = CAPTURE_UNSUPPORTED;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

unsigned fake_capture_refuses(struct CUstream_st *stream)
{
    bool is_captured;

    pthread_mutex_lock(&lock);
    is_captured = stream->capture.status != CAPTURE_NONE;
    if (is_captured)
        stream->capture.status = CAPTURE_INVALIDATED;
    pthread_mutex_unlock(&lock);
    return is_captured ? CAPTURE_UNSUPPORTED : fake_unsafe();
}

void fake_capture_drop(struct CUstream_st *stream)
{
    struct CUstream_st **link;

    pthread_mutex_lock(&lock);
    for (link = &captured; *link != NULL && *link != stream; link = &(*link)->capture.next)
        ;
    if (*link != NULL)
        *link = stream->capture.next;
    stream->capture.status = CAPTURE_NONE;
    pthread_mutex_unlock(&lock);
}

unsigned cuStreamBeginCapture_v2(struct CUstream_st *stream, unsigned mode)
{
    struct CUctx_st *context;
    unsigned result = fake_current(&context);

    if (result != CUDA_SUCCESS)
        return result;
    if (stream == NULL || mode > MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    if (stream->capture.status != CAPTURE_NONE) {
        result = ILLEGAL_STATE;
    } else {
        stream->capture.status = CAPTURE_ACTIVE;
        stream->capture.mode = mode;
        stream->capture.by = pthread_self();
        stream->capture.next = captured;
        captured = stream;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

unsigned cuStreamEndCapture(struct CUstream_st *stream, struct CUgraph_st **graph)
{
    enum fake_capture status = fake_capture_of(stream);

    *graph = NULL;
    if (status == CAPTURE_NONE)
        return ILLEGAL_STATE;
    if (stream->capture.mode != MODE_RELAXED && !pthread_equal(stream->capture.by, pthread_self()))
        return WRONG_THREAD;
    fake_capture_drop(stream);
    return status == CAPTURE_ACTIVE ? CUDA_SUCCESS : FAKE_CAPTURE_INVALIDATED;
}

unsigned cuStreamIsCapturing(struct CUstream_st *stream, unsigned *status)
{
    unsigned result = fake_ready();

    *status = CAPTURE_NONE;
    if (result != CUDA_SUCCESS || stream == NULL || (stream = fake_stream(stream)) == NULL)
        return result;
    *status = fake_capture_of(stream);
    return CUDA_SUCCESS;
}

unsigned cuThreadExchangeStreamCaptureMode(unsigned *mode)
{
    unsigned before = thread_mode;

    if (*mode > MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

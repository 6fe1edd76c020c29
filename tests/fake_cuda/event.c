/* SPDX-License-Identifier: MIT */
/*
 * Events. An event counts its records and how many of them have completed.
 */
#include "stream.h"

void fake_wait_event(const struct fake_work *work)
{
    while (bxi_load_acquire(&work->event->completed) < work->value)
        fake_pause(50);
}

unsigned cuEventCreate(struct CUevent_st **out, unsigned flags)
{
    struct CUctx_st *context;
    unsigned result = fake_current(&context);

    if (result != CUDA_SUCCESS || flags != CU_EVENT_DISABLE_TIMING)
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    *out = fake_new(sizeof(**out));
    return CUDA_SUCCESS;
}

/* Not freed: work on a stream may still refer to it, and tests are short. */
unsigned cuEventDestroy_v2(struct CUevent_st *event)
{
    return event != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

unsigned cuEventRecord(struct CUevent_st *event, struct CUstream_st *stream)
{
    struct fake_work work = { .kind = WORK_RECORD, .event = event };

    stream = fake_stream(stream);
    if (stream != NULL && fake_capture_of(stream) != CAPTURE_NONE)
        return fake_put(stream, &work);
    work.value = bxi_add(&event->recorded, 1) + 1;
    return fake_put(stream, &work);
}

unsigned cuEventSynchronize(struct CUevent_st *event)
{
    struct fake_work work = { .kind = WORK_WAIT_EVENT, .event = event };
    unsigned result = fake_unsafe();

    if (result != CUDA_SUCCESS)
        return result;
    work.value = bxi_load_acquire(&event->recorded);
    fake_wait_event(&work);
    return CUDA_SUCCESS;
}

unsigned cuStreamWaitEvent(struct CUstream_st *stream, struct CUevent_st *event, unsigned flags)
{
    struct fake_work work = { .kind = WORK_WAIT_EVENT, .event = event };

    work.value = bxi_load_acquire(&event->recorded);
    return flags == 0 ? fake_put(stream, &work) : CUDA_ERROR_INVALID_VALUE;
}

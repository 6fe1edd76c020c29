/* SPDX-License-Identifier: MIT */
/*
 * Events. An event counts its records and how many of them have completed; events between processes are in the machine.
 */
#include "stream.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EVENT_MAGIC 0x544e5645u

struct CUevent_st {
    struct fake_shared_event *at;       /* private memory, or in the machine */
    struct fake_shared_event own;
    bool is_shared, is_opened;
};

struct event_handle {
    uint32_t magic;
    int32_t pid;
    uint64_t index;
    uint64_t serial;
};

/* A record of a dead process never completes by itself; here it ends with its process. */
void fake_wait_event(const struct fake_work *work)
{
    struct fake_process owner = work->event->owner;

    while (bxi_load_acquire(&work->event->completed) < work->value) {
        if (owner.pid != 0 && !fake_is_alive(&owner))
            return;
        fake_pause(50);
    }
}

static struct fake_shared_event *share_event(void)
{
    struct fake_shared_event *found = NULL;

    fake_lock();
    for (int i = 0; i < FAKE_EVENTS && found == NULL; i++) {
        if (fake_machine->event[i].owner.pid != 0)
            continue;
        found = &fake_machine->event[i];
        found->owner = fake_self();
        found->serial = ++fake_machine->serial;
        bxi_store_release(&found->recorded, 0);
        bxi_store_release(&found->completed, 0);
    }
    fake_unlock();
    return found;
}

unsigned cuEventCreate(struct CUevent_st **out, unsigned flags)
{
    struct CUctx_st *context;
    unsigned result = fake_current(&context);
    struct CUevent_st *event;

    if (result != CUDA_SUCCESS)
        return result;
    if ((flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0)
        return CUDA_ERROR_INVALID_VALUE;
    event = calloc(1, sizeof(*event));
    if (event == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    event->is_shared = (flags & CU_EVENT_INTERPROCESS) != 0;
    event->at = event->is_shared ? share_event() : &event->own;
    if (event->at == NULL) {
        free(event);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = event;
    return CUDA_SUCCESS;
}

unsigned cuEventDestroy_v2(struct CUevent_st *event)
{
    if (event->is_shared && !event->is_opened) {
        fake_lock();
        event->at->owner.pid = 0;
        fake_unlock();
    }
    /* Not freed: work on a stream may still refer to it, and tests are short. */
    return CUDA_SUCCESS;
}

unsigned cuEventRecord(struct CUevent_st *event, struct CUstream_st *stream)
{
    struct fake_work work = { .kind = WORK_RECORD, .event = event->at };

    if (event->is_opened)
        return CUDA_ERROR_INVALID_HANDLE;
    stream = fake_stream(stream);
    if (stream != NULL && fake_capture_of(stream) != CAPTURE_NONE)
        return fake_put(stream, &work);
    work.value = bxi_add(&event->at->recorded, 1) + 1;
    return fake_put(stream, &work);
}

unsigned cuEventQuery(struct CUevent_st *event)
{
    unsigned result = fake_unsafe();

    if (result != CUDA_SUCCESS)
        return result;
    return bxi_load_acquire(&event->at->completed) >= bxi_load_acquire(&event->at->recorded) ? CUDA_SUCCESS
        : CUDA_ERROR_NOT_READY;
}

unsigned cuEventSynchronize(struct CUevent_st *event)
{
    struct fake_work work = { .kind = WORK_WAIT_EVENT, .event = event->at };
    unsigned result = fake_unsafe();

    if (result != CUDA_SUCCESS)
        return result;
    work.value = bxi_load_acquire(&event->at->recorded);
    fake_wait_event(&work);
    return CUDA_SUCCESS;
}

unsigned cuStreamWaitEvent(struct CUstream_st *stream, struct CUevent_st *event, unsigned flags)
{
    struct fake_work work = { .kind = WORK_WAIT_EVENT, .event = event->at };

    work.value = bxi_load_acquire(&event->at->recorded);
    return flags == 0 ? fake_put(stream, &work) : CUDA_ERROR_INVALID_VALUE;
}

unsigned cuIpcGetEventHandle(struct CUipcEventHandle_st *out, struct CUevent_st *event)
{
    struct event_handle handle = { .magic = EVENT_MAGIC, .pid = (int32_t)getpid() };

    if (fake_options.no_event_ipc)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!event->is_shared || event->is_opened)
        return CUDA_ERROR_INVALID_VALUE;
    handle.index = (uint64_t)(event->at - fake_machine->event);
    handle.serial = event->at->serial;
    memset(out, 0, sizeof(*out));
    memcpy(out->reserved, &handle, sizeof(handle));
    return CUDA_SUCCESS;
}

unsigned cuIpcOpenEventHandle(struct CUevent_st **out, struct CUipcEventHandle_st bytes)
{
    struct event_handle handle;
    struct CUevent_st *event;
    unsigned result;

    memcpy(&handle, bytes.reserved, sizeof(handle));
    if (handle.magic != EVENT_MAGIC || handle.index >= FAKE_EVENTS ||
        fake_machine->event[handle.index].serial != handle.serial)
        return CUDA_ERROR_INVALID_VALUE;
    if (handle.pid == getpid() || fake_options.no_ipc)
        return CUDA_ERROR_INVALID_CONTEXT;
    result = fake_unsafe();
    if (result != CUDA_SUCCESS)
        return result;
    fake_block();
    event = calloc(1, sizeof(*event));
    if (event == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    event->is_shared = event->is_opened = true;
    event->at = &fake_machine->event[handle.index];
    *out = event;
    return CUDA_SUCCESS;
}

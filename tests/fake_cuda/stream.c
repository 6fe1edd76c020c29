/* SPDX-License-Identifier: MIT */
/*
 * Streams: a thread and a queue each. Every item of work waits for a random time and then runs, on the memory as it is
 * at that moment; so work that should have waited for another stream and did not gives wrong results. An event counts
 * its records and how many of them have completed; events between processes are in the machine.
 */
#include "fake.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DECLARE(name, arguments) FAKE_EXPORT unsigned name arguments;
BXI_CU_FUNCTIONS(DECLARE, DECLARE)
#undef DECLARE

#define EVENT_MAGIC 0x544e5645u

enum work_kind { WORK_SET = 1, WORK_COPY, WORK_WRITE, WORK_WAIT, WORK_RECORD, WORK_WAIT_EVENT, WORK_CALL, WORK_END };

struct work {
    struct work *next;
    enum work_kind kind;
    uint64_t to, from, bytes, value;
    struct fake_shared_event *event;
    fake_call_fn call;
    void *argument;                     /* its own copy */
};

struct CUstream_st {
    struct CUstream_st *next;
    struct CUctx_st *context;
    pthread_mutex_t lock;
    pthread_cond_t change;
    struct work *first, *last;
    bool is_busy;
    int users;                          /* threads that wait for it: it is not freed before they are done */
    int delay_us;                       /* a copy: a later cuInit reads the options again */
    uint64_t seed;
    pthread_t thread;
};

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

static struct CUstream_st *streams;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void pause_for(long us)
{
    struct timespec time = { .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 };

    nanosleep(&time, NULL);
}

/* ---- A stream's thread ----------------------------------------------------------------------- */

static void wait_for_word(const struct work *work)
{
    bxi_a64 *word = (bxi_a64 *)(uintptr_t)work->to;

    while ((int64_t)(bxi_load_acquire(word) - work->value) < 0)
        pause_for(20);
}

/* splitmix64: streams with adjacent seeds must not have similar delays. */
static uint64_t draw(uint64_t *seed)
{
    uint64_t x = *seed += UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* A record of a dead process never completes by itself; here it ends with its process. */
static void wait_for_event(const struct work *work)
{
    struct fake_process owner = work->event->owner;

    while (bxi_load_acquire(&work->event->completed) < work->value) {
        if (owner.pid != 0 && !fake_is_alive(&owner))
            return;
        pause_for(50);
    }
}

/* A word is set and copied atomically: another stream may be waiting for it, or writing it. */
static void set(const struct work *work)
{
    if (work->bytes == sizeof(uint64_t) && work->to % sizeof(uint64_t) == 0)
        bxi_store_release((bxi_a64 *)(uintptr_t)work->to, (work->value & 0xff) * UINT64_C(0x0101010101010101));
    else
        memset((void *)(uintptr_t)work->to, (int)work->value, work->bytes);
}

static void copy(const struct work *work)
{
    if (work->bytes == sizeof(uint64_t) && (work->to | work->from) % sizeof(uint64_t) == 0)
        bxi_store_release((bxi_a64 *)(uintptr_t)work->to, bxi_load_acquire((bxi_a64 *)(uintptr_t)work->from));
    else
        memmove((void *)(uintptr_t)work->to, (const void *)(uintptr_t)work->from, work->bytes);
}

static void run(struct CUstream_st *stream, const struct work *work)
{
    if (stream->delay_us > 0 && work->kind != WORK_WAIT && work->kind != WORK_WAIT_EVENT &&
        work->kind != WORK_END)
        pause_for((long)(draw(&stream->seed) % ((uint64_t)stream->delay_us + 1)));
    switch (work->kind) {
    case WORK_SET: set(work); break;
    case WORK_COPY: copy(work); break;
    case WORK_WRITE: bxi_store_release((bxi_a64 *)(uintptr_t)work->to, work->value); break;
    case WORK_WAIT: wait_for_word(work); break;
    case WORK_RECORD: bxi_store_release(&work->event->completed, work->value); break;
    case WORK_WAIT_EVENT: wait_for_event(work); break;
    case WORK_CALL:
        work->call(work->argument);
        free(work->argument);
        break;
    case WORK_END: break;
    }
}

static void *work_off(void *context)
{
    struct CUstream_st *stream = context;
    bool ends = false;

    pthread_mutex_lock(&stream->lock);
    while (!ends) {
        struct work *work = stream->first;

        if (work == NULL) {
            pthread_cond_wait(&stream->change, &stream->lock);
            continue;
        }
        stream->first = work->next;
        stream->is_busy = true;
        pthread_mutex_unlock(&stream->lock);
        run(stream, work);
        ends = work->kind == WORK_END;
        free(work);
        pthread_mutex_lock(&stream->lock);
        stream->is_busy = false;
        pthread_cond_broadcast(&stream->change);
    }
    while (stream->users > 0)
        pthread_cond_wait(&stream->change, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
    pthread_cond_destroy(&stream->change);
    pthread_mutex_destroy(&stream->lock);
    free(stream);
    return NULL;
}

/* ---- Streams --------------------------------------------------------------------------------- */

static unsigned put(struct CUstream_st *stream, const struct work *work)
{
    struct CUctx_st *context;
    unsigned result = fake_current(&context);
    struct work *copy;

    if (result != CUDA_SUCCESS)
        return result;
    if (stream == NULL || stream->context != context)
        return CUDA_ERROR_INVALID_HANDLE;
    copy = malloc(sizeof(*copy));
    if (copy == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *copy = *work;
    copy->next = NULL;
    pthread_mutex_lock(&stream->lock);
    if (stream->first == NULL)
        stream->first = copy;
    else
        stream->last->next = copy;
    stream->last = copy;
    pthread_cond_broadcast(&stream->change);
    pthread_mutex_unlock(&stream->lock);
    return CUDA_SUCCESS;
}

unsigned fake_stream_call(struct CUstream_st *stream, fake_call_fn call, const void *argument, size_t bytes)
{
    struct work work = { .kind = WORK_CALL, .call = call, .argument = malloc(bytes) };
    unsigned result;

    if (work.argument == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(work.argument, argument, bytes);
    result = put(stream, &work);
    if (result != CUDA_SUCCESS)
        free(work.argument);
    return result;
}

unsigned cuStreamCreate(struct CUstream_st **out, unsigned flags)
{
    const char *seed = getenv("FAKE_CUDA_SEED");
    struct CUctx_st *context;
    unsigned result = fake_current(&context);
    struct CUstream_st *stream;

    (void)flags;
    if (result != CUDA_SUCCESS)
        return result;
    stream = calloc(1, sizeof(*stream));
    if (stream == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stream->context = context;
    stream->delay_us = fake_options.delay_us;
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->change, NULL);
    pthread_mutex_lock(&lock);
    stream->seed = (seed != NULL ? (uint64_t)atoi(seed) : (uint64_t)getpid()) << 32 ^ (uint64_t)(uintptr_t)stream;
    stream->next = streams;
    streams = stream;
    pthread_mutex_unlock(&lock);
    if (pthread_create(&stream->thread, NULL, work_off, stream) != 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    pthread_detach(stream->thread);
    *out = stream;
    return CUDA_SUCCESS;
}

/* Does not wait: work queued on the stream still runs. */
unsigned cuStreamDestroy_v2(struct CUstream_st *stream)
{
    struct work end = { .kind = WORK_END };
    struct CUstream_st **link;

    pthread_mutex_lock(&lock);
    for (link = &streams; *link != NULL && *link != stream; link = &(*link)->next)
        ;
    if (*link != NULL)
        *link = stream->next;
    pthread_mutex_unlock(&lock);
    return put(stream, &end);
}

static void wait_idle(struct CUstream_st *stream)
{
    pthread_mutex_lock(&stream->lock);
    while (stream->first != NULL || stream->is_busy)
        pthread_cond_wait(&stream->change, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
}

void fake_synchronise_all(void)
{
    struct CUstream_st *some[64];
    int count = 0;

    pthread_mutex_lock(&lock);
    for (struct CUstream_st *stream = streams; stream != NULL && count < 64; stream = stream->next) {
        pthread_mutex_lock(&stream->lock);
        stream->users++;
        pthread_mutex_unlock(&stream->lock);
        some[count++] = stream;
    }
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < count; i++) {
        wait_idle(some[i]);
        pthread_mutex_lock(&some[i]->lock);
        some[i]->users--;
        pthread_cond_broadcast(&some[i]->change);
        pthread_mutex_unlock(&some[i]->lock);
    }
}

unsigned cuStreamSynchronize(struct CUstream_st *stream)
{
    if (fake_ready() != CUDA_SUCCESS)
        return CUDA_ERROR_NOT_INITIALIZED;
    wait_idle(stream);
    return CUDA_SUCCESS;
}

unsigned cuStreamQuery(struct CUstream_st *stream)
{
    bool is_idle;

    pthread_mutex_lock(&stream->lock);
    is_idle = stream->first == NULL && !stream->is_busy;
    pthread_mutex_unlock(&stream->lock);
    return is_idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

/* ---- Work ------------------------------------------------------------------------------------ */

unsigned cuMemsetD8Async(unsigned long long to, unsigned char value, size_t bytes, struct CUstream_st *stream)
{
    struct work work = { .kind = WORK_SET, .to = to, .value = value, .bytes = bytes };

    return fake_may_touch(to, bytes, true) ? put(stream, &work) : CUDA_ERROR_INVALID_VALUE;
}

unsigned cuMemcpyAsync(unsigned long long to, unsigned long long from, size_t bytes, struct CUstream_st *stream)
{
    struct work work = { .kind = WORK_COPY, .to = to, .from = from, .bytes = bytes };

    return fake_may_touch(to, bytes, true) && fake_may_touch(from, bytes, false) ? put(stream, &work)
        : CUDA_ERROR_INVALID_VALUE;
}

/* A copy from or to memory that is not pinned is complete when the call returns, as with the real driver. */
static unsigned copy_host(struct work *work, struct CUstream_st *stream, bool is_pinned)
{
    unsigned result = put(stream, work);

    if (result == CUDA_SUCCESS && !is_pinned)
        wait_idle(stream);
    return result;
}

unsigned cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, struct CUstream_st *stream)
{
    struct work work = { .kind = WORK_COPY, .to = to, .from = (uint64_t)(uintptr_t)from, .bytes = bytes };

    return fake_may_touch(to, bytes, true) ? copy_host(&work, stream, fake_may_touch(work.from, bytes, false))
        : CUDA_ERROR_INVALID_VALUE;
}

unsigned cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t bytes, struct CUstream_st *stream)
{
    struct work work = { .kind = WORK_COPY, .to = (uint64_t)(uintptr_t)to, .from = from, .bytes = bytes };

    return fake_may_touch(from, bytes, false) ? copy_host(&work, stream, fake_may_touch(work.to, bytes, true))
        : CUDA_ERROR_INVALID_VALUE;
}

unsigned cuStreamWriteValue64_v2(struct CUstream_st *stream, unsigned long long address, uint64_t value,
                                 unsigned flags)
{
    struct work work = { .kind = fake_options.lost_writes ? WORK_RECORD : WORK_WRITE, .to = address, .value = value };
    static struct fake_shared_event nowhere;

    work.event = &nowhere;
    if (fake_options.no_stream_ops)
        return CUDA_ERROR_NOT_SUPPORTED;
    return flags == 0 && address % 8 == 0 && fake_may_touch(address, 8, true) ? put(stream, &work)
        : CUDA_ERROR_INVALID_VALUE;
}

unsigned cuStreamWaitValue64_v2(struct CUstream_st *stream, unsigned long long address, uint64_t value,
                                unsigned flags)
{
    struct work work = { .kind = WORK_WAIT, .to = address, .value = value };

    if (fake_options.no_stream_ops)
        return CUDA_ERROR_NOT_SUPPORTED;
    return flags == CU_STREAM_WAIT_VALUE_GEQ && address % 8 == 0 && fake_may_touch(address, 8, false)
        ? put(stream, &work) : CUDA_ERROR_INVALID_VALUE;
}

/* ---- Events ---------------------------------------------------------------------------------- */

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
    struct work work = { .kind = WORK_RECORD, .event = event->at };

    if (event->is_opened)
        return CUDA_ERROR_INVALID_HANDLE;
    work.value = bxi_add(&event->at->recorded, 1) + 1;
    return put(stream, &work);
}

unsigned cuEventQuery(struct CUevent_st *event)
{
    return bxi_load_acquire(&event->at->completed) >= bxi_load_acquire(&event->at->recorded) ? CUDA_SUCCESS
        : CUDA_ERROR_NOT_READY;
}

unsigned cuEventSynchronize(struct CUevent_st *event)
{
    struct work work = { .kind = WORK_WAIT_EVENT, .event = event->at };

    work.value = bxi_load_acquire(&event->at->recorded);
    wait_for_event(&work);
    return CUDA_SUCCESS;
}

unsigned cuStreamWaitEvent(struct CUstream_st *stream, struct CUevent_st *event, unsigned flags)
{
    struct work work = { .kind = WORK_WAIT_EVENT, .event = event->at };

    work.value = bxi_load_acquire(&event->at->recorded);
    return flags == 0 ? put(stream, &work) : CUDA_ERROR_INVALID_VALUE;
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

    memcpy(&handle, bytes.reserved, sizeof(handle));
    if (handle.magic != EVENT_MAGIC || handle.index >= FAKE_EVENTS ||
        fake_machine->event[handle.index].serial != handle.serial)
        return CUDA_ERROR_INVALID_VALUE;
    if (handle.pid == getpid() || fake_options.no_ipc)
        return CUDA_ERROR_INVALID_CONTEXT;
    event = calloc(1, sizeof(*event));
    if (event == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    event->is_shared = event->is_opened = true;
    event->at = &fake_machine->event[handle.index];
    *out = event;
    return CUDA_SUCCESS;
}

/* SPDX-License-Identifier: MIT */
/*
 * Hardware queues: a thread and a list of items each. A queue runs its items in the order in which they were put, each
 * after a random delay, on the memory as it is at that moment; so work that should have waited for another stream and
 * did not gives wrong results. By default each stream has a queue of its own. With FAKE_CUDA_QUEUES=N the streams of a
 * device, in the order in which they are created, take turns at N queues: an item that waits holds up the items behind
 * it, of whatever stream. A queue ends with its last stream.
 */
#include "stream.h"

#define STREAMS 256                     /* that a call waits for, at most */

static struct CUstream_st *streams;
static struct fake_queue *shared[FAKE_DEVICES][FAKE_QUEUES];
static unsigned next_queue[FAKE_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;       /* of the list and the table; before a queue's lock */

void fake_pause(long us)
{
    struct timespec time = { .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 };

    nanosleep(&time, NULL);
}

/* ---- A queue's thread ------------------------------------------------------------------------ */

static void wait_for_word(const struct fake_work *work)
{
    bxi_a64 *word = (bxi_a64 *)(uintptr_t)work->to;

    while ((int64_t)(bxi_load_acquire(word) - work->value) < 0) {
        fake_pause(20);
        fake_drop_dead();
    }
}

/* splitmix64: streams with adjacent seeds must not have similar delays. */
static uint64_t draw(uint64_t *seed)
{
    uint64_t x = *seed += UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* A word is set and copied atomically: another stream may be waiting for it, or writing it. */
static void set(const struct fake_work *work)
{
    if (work->bytes == sizeof(uint64_t) && work->to % sizeof(uint64_t) == 0)
        bxi_store_release((bxi_a64 *)(uintptr_t)work->to, (work->value & 0xff) * UINT64_C(0x0101010101010101));
    else
        memset((void *)(uintptr_t)work->to, (int)work->value, work->bytes);
}

static void copy(const struct fake_work *work)
{
    if (work->bytes == sizeof(uint64_t) && (work->to | work->from) % sizeof(uint64_t) == 0)
        bxi_store_release((bxi_a64 *)(uintptr_t)work->to, bxi_load_acquire((bxi_a64 *)(uintptr_t)work->from));
    else
        memmove((void *)(uintptr_t)work->to, (const void *)(uintptr_t)work->from, work->bytes);
}

static void run(const struct fake_work *work)
{
    struct CUstream_st *stream = work->stream;

    if (stream->delay_us > 0 && work->kind != WORK_WAIT && work->kind != WORK_WAIT_EVENT &&
        work->kind != WORK_END)
        fake_pause((long)(draw(&stream->seed) % ((uint64_t)stream->delay_us + 1)));
    fake_drop_dead();
    switch (work->kind) {
    case WORK_SET: set(work); break;
    case WORK_COPY: copy(work); break;
    case WORK_WRITE: bxi_store_release((bxi_a64 *)(uintptr_t)work->to, work->value); break;
    case WORK_WAIT: wait_for_word(work); break;
    case WORK_RECORD: bxi_store_release(&work->event->completed, work->value); break;
    case WORK_WAIT_EVENT: fake_wait_event(work); break;
    case WORK_CALL:
        work->call(work->argument);
        free(work->argument);
        break;
    case WORK_HOST: work->host(work->argument); break;
    case WORK_END: break;
    }
}

/* Takes an ended stream off the list and its queue; returns whether it was the queue's last. */
static bool leave(struct CUstream_st *stream)
{
    struct fake_queue *queue = stream->queue;
    struct CUstream_st **link;
    bool is_last;

    pthread_mutex_lock(&lock);
    for (link = &streams; *link != NULL && *link != stream; link = &(*link)->next)
        ;
    if (*link != NULL)
        *link = stream->next;
    is_last = --queue->streams == 0;
    if (is_last && queue->place != NULL)
        *queue->place = NULL;
    pthread_mutex_unlock(&lock);
    return is_last;
}

/* Under the queue's lock. */
static void finish(struct fake_queue *queue, struct fake_work *work)
{
    struct CUstream_st *stream = work->stream;

    stream->done++;
    pthread_cond_broadcast(&queue->change);
    if (work->kind == WORK_END) {
        while (stream->users > 0)
            pthread_cond_wait(&queue->change, &queue->lock);
        free(stream);
    }
    free(work);
}

static void *work_off(void *context)
{
    struct fake_queue *queue = context;
    bool ends = false;

    pthread_mutex_lock(&queue->lock);
    while (!ends) {
        struct fake_work *work = queue->first;

        if (work == NULL) {
            pthread_cond_wait(&queue->change, &queue->lock);
            continue;
        }
        queue->first = work->next;
        pthread_mutex_unlock(&queue->lock);
        run(work);
        ends = work->kind == WORK_END && leave(work->stream);
        pthread_mutex_lock(&queue->lock);
        finish(queue, work);
    }
    pthread_mutex_unlock(&queue->lock);
    pthread_cond_destroy(&queue->change);
    pthread_mutex_destroy(&queue->lock);
    free(queue);
    return NULL;
}

/* ---- Queues and their streams ---------------------------------------------------------------- */

static struct fake_queue *make_queue(void)
{
    struct fake_queue *queue = fake_new(sizeof(*queue));

    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->change, NULL);
    if (pthread_create(&queue->thread, NULL, work_off, queue) != 0)
        abort();
    pthread_detach(queue->thread);
    return queue;
}

/* Under the lock: the next of the device's shared queues, or a new one. */
static struct fake_queue *choose_queue(int device)
{
    struct fake_queue **place;

    if (fake_options.queues == 0)
        return make_queue();
    place = &shared[device][next_queue[device]++ % (unsigned)fake_options.queues];
    if (*place == NULL) {
        *place = make_queue();
        (*place)->place = place;
    }
    return *place;
}

void fake_stream_enter(struct CUstream_st *stream)
{
    stream->seed = (uint64_t)getpid() << 32 ^ (uint64_t)(uintptr_t)stream;
    pthread_mutex_lock(&lock);
    stream->queue = choose_queue(stream->context->device);
    stream->queue->streams++;
    stream->next = streams;
    streams = stream;
    pthread_mutex_unlock(&lock);
}

void fake_stream_hide(struct CUstream_st *stream)
{
    pthread_mutex_lock(&lock);
    stream->is_destroyed = true;
    pthread_mutex_unlock(&lock);
}

static void append(struct fake_queue *queue, struct fake_work *work)
{
    pthread_mutex_lock(&queue->lock);
    if (queue->first == NULL)
        queue->first = work;
    else
        queue->last->next = work;
    queue->last = work;
    work->stream->put++;
    pthread_cond_broadcast(&queue->change);
    pthread_mutex_unlock(&queue->lock);
}

unsigned fake_put(struct CUstream_st *stream, const struct fake_work *work)
{
    struct CUctx_st *context;
    unsigned result = fake_current(&context);
    enum fake_capture capture;
    struct fake_work *copy;

    if (result != CUDA_SUCCESS)
        return result;
    stream = fake_stream(stream);
    if (stream == NULL || stream->context != context)
        return CUDA_ERROR_INVALID_HANDLE;
    capture = fake_capture_of(stream);
    if (capture == CAPTURE_INVALIDATED)
        return FAKE_CAPTURE_INVALIDATED;
    if (capture == CAPTURE_ACTIVE) {
        if (work->kind == WORK_CALL)
            free(work->argument);
        return CUDA_SUCCESS;
    }
    copy = fake_new(sizeof(*copy));
    *copy = *work;
    copy->next = NULL;
    copy->stream = stream;
    append(stream->queue, copy);
    return CUDA_SUCCESS;
}

unsigned fake_stream_call(struct CUstream_st *stream, fake_call_fn call, const void *argument, size_t bytes)
{
    struct fake_work work = { .kind = WORK_CALL, .call = call, .argument = fake_new(bytes) };
    unsigned result;

    memcpy(work.argument, argument, bytes);
    result = fake_put(stream, &work);
    if (result != CUDA_SUCCESS)
        free(work.argument);
    return result;
}

/* ---- Waiting for streams --------------------------------------------------------------------- */

bool fake_is_idle(struct CUstream_st *stream)
{
    bool is_idle;

    pthread_mutex_lock(&stream->queue->lock);
    is_idle = stream->put == stream->done;
    pthread_mutex_unlock(&stream->queue->lock);
    return is_idle;
}

static uint64_t put_so_far(struct CUstream_st *stream)
{
    uint64_t items;

    pthread_mutex_lock(&stream->queue->lock);
    items = stream->put;
    pthread_mutex_unlock(&stream->queue->lock);
    return items;
}

static void wait_done(struct CUstream_st *stream, uint64_t items)
{
    pthread_mutex_lock(&stream->queue->lock);
    while (stream->done < items)
        pthread_cond_wait(&stream->queue->change, &stream->queue->lock);
    pthread_mutex_unlock(&stream->queue->lock);
}

void fake_wait_idle(struct CUstream_st *stream)
{
    wait_done(stream, put_so_far(stream));
}

static void use(struct CUstream_st *stream, int users)
{
    pthread_mutex_lock(&stream->queue->lock);
    stream->users += users;
    pthread_cond_broadcast(&stream->queue->change);
    pthread_mutex_unlock(&stream->queue->lock);
}

/* Waits for what has been put so far: on all streams of the context, or, if it is NULL, on those of all that are not
 * destroyed. */
static void wait_for_streams(const struct CUctx_st *context)
{
    struct CUstream_st *some[STREAMS];
    uint64_t items[STREAMS];
    int count = 0;

    pthread_mutex_lock(&lock);
    for (struct CUstream_st *stream = streams; stream != NULL && count < STREAMS; stream = stream->next) {
        if (context == NULL ? stream->is_destroyed : stream->context != context)
            continue;
        use(stream, 1);
        items[count] = put_so_far(stream);
        some[count++] = stream;
    }
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < count; i++) {
        wait_done(some[i], items[i]);
        use(some[i], -1);
    }
}

void fake_synchronise_all(void)
{
    wait_for_streams(NULL);
}

void fake_block(void)
{
    struct CUctx_st *context;

    if (fake_options.blocking && fake_current(&context) == CUDA_SUCCESS)
        wait_for_streams(context);
}

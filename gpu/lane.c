/* SPDX-License-Identifier: MIT */
/*
 * Lanes and marks: a mark lets a stream write a number to its lane's word behind the work so far. README.md has the
 * four orders side by side; probe.c chooses one; point.c is the side that waits.
 *
 * bxi_gpu_mark runs on the hot path, in the thread that uses the lane, without the lock. Only EVENTS, a fallback, takes
 * it, because bxi_gpu_poll moves the word as well; it is released while a stream is waited for.
 *
 * The default write fences all earlier work of its stream for the whole system: whoever reads the number reads the
 * data too.
 *
 * Killed before the word is written: it never comes, and peers poison it (bxi_gpu_peer_died).
 */
#include "inside.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- Lanes ----------------------------------------------------------------------------------- */

/* The events of a device that peers may have imported. They are never destroyed: what a peer does with an imported
 * event after that is undefined (cuIpcOpenEventHandle), and no process knows who has imported one. The next lane of
 * that index records the same events, also when the GPU is opened again. The context stays with them. */
struct exported {
    struct exported *next;
    void *library;                      /* the driver that made them */
    uint8_t uuid[BXI_GPU_UUID_BYTES];
    struct CUevent_st *event[BXI_GPU_LANES][BXI_GPU_RING];
};
static struct exported *exported;       /* gpu->lock; a process has one GPU open at a time */

static struct exported *exported_of(const struct bxi_gpu_device *device)
{
    const uint8_t *uuid = device->gpu->info[device->ordinal].uuid;
    struct exported *found = exported;

    while (found != NULL && (found->library != device->gpu->cu.library ||
                             memcmp(found->uuid, uuid, sizeof(found->uuid)) != 0))
        found = found->next;
    return found;
}

bool bxi_gpu_has_exported(const struct bxi_gpu_device *device)
{
    return exported_of(device) != NULL;
}

static struct exported *export_for(const struct bxi_gpu_device *device)
{
    struct exported *of;

    pthread_mutex_lock(&device->gpu->lock);
    of = exported_of(device);
    if (of == NULL)
        of = calloc(1, sizeof(*of));
    if (of != NULL && of->library == NULL) {
        of->library = device->gpu->cu.library;
        memcpy(of->uuid, device->gpu->info[device->ordinal].uuid, sizeof(of->uuid));
        of->next = exported;
        exported = of;
    }
    pthread_mutex_unlock(&device->gpu->lock);
    return of;
}

/* The context current. The row and its events are the lane's own, and no entry of the list goes away: so the driver
 * makes events without the lock. */
static int make_events(struct bxi_gpu_lane *lane)
{
    const struct bxi_cuda *cu = &lane->gpu->cu;
    struct exported *of = export_for(lane->device);

    if (of == NULL)
        return bxi_gpu_fail(-ENOMEM, "no memory for the events of a lane");
    for (int i = 0; i < BXI_GPU_RING; i++) {
        struct CUevent_st **event = &of->event[lane->index][i];
        struct CUipcEventHandle_st handle;
        unsigned result = CUDA_SUCCESS;

        if (*event == NULL)
            result = cu->cuEventCreate(event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
        if (result != CUDA_SUCCESS)
            *event = NULL;
        else
            result = cu->cuIpcGetEventHandle(&handle, *event);
        if (result != CUDA_SUCCESS)
            return bxi_gpu_cuda_fail(cu, result, "an interprocess event");
        memcpy(lane->gpu->region->event[lane->index][i], handle.reserved, sizeof(handle.reserved));
        lane->event[i] = *event;
    }
    return 0;
}

static void publish_lane(struct bxi_gpu_lane *lane)
{
    struct bxi_gpu_lane_row *row = &lane->gpu->region->lane[lane->index];
    const struct bxi_gpu_block *words = lane->device->word_block;

    row->device = lane->device->index;
    row->slab = words != NULL ? words->slab : 0;
    row->generation = words != NULL ? words->generation : ++lane->gpu->lanes_made;
    row->offset = words != NULL ? words->offset + lane->index * sizeof(struct bxi_gpu_word) : 0;
    /* [gpu.lane] release, pairs with the acquire in lane_of: the row is complete. */
    bxi_store_release(&row->order, (uint32_t)lane->order);
}

/* Where hosts look at the words of DEVICE_WORDS: in the region if it is registered on this device, so that no poll is
 * needed; else the stream writes a pinned word, and polls of this host move the region's. */
static void find_host_word(struct bxi_gpu_lane *lane)
{
    const struct bxi_gpu_device *device = lane->device;
    uint64_t words = device->host_words != 0 ? device->host_words : device->pinned_at;

    lane->host_address = words + lane->index * sizeof(struct bxi_gpu_word);
    if (device->host_words == 0)
        lane->mirror = &device->pinned[lane->index].value;
    /* Relaxed: nobody else knows the lane yet. */
    bxi_store_relaxed(&lane->marked, lane->value);
}

static uint64_t word_address(const struct bxi_gpu_device *device, uint32_t index)
{
    if (device->order == BXI_GPU_HOST_WORDS)
        return device->host_words + index * sizeof(struct bxi_gpu_word);
    if (device->order == BXI_GPU_DEVICE_WORDS)
        return device->word_block->address + index * sizeof(struct bxi_gpu_word);
    return 0;
}

static void free_lane(struct bxi_gpu_lane *lane)
{
    if (lane->owns_stream && lane->stream != NULL)
        (void)lane->gpu->cu.cuStreamDestroy_v2(lane->stream);
    free(lane->awaits.list);
    free(lane);
}

/* Takes an index. Until its order is set the lane is in nobody's way: it has no word, and no points. */
static int reserve_index(struct bxi_gpu_lane *lane)
{
    struct bxi_gpu *gpu = lane->gpu;

    pthread_mutex_lock(&gpu->lock);
    while (lane->index < BXI_GPU_LANES && gpu->lane[lane->index] != NULL)
        lane->index++;
    if (lane->index < BXI_GPU_LANES)
        gpu->lane[lane->index] = lane;
    pthread_mutex_unlock(&gpu->lock);
    if (lane->index == BXI_GPU_LANES)
        return bxi_gpu_fail(-ENOSPC, "%d lanes are open, the most that a worker can have: close some, or share one",
                            BXI_GPU_LANES);
    return 0;
}

/* Without the lock, the context current: cuStreamCreate may wait for the device. */
static int make_stream(struct bxi_gpu_lane *lane, void *stream)
{
    struct bxi_gpu *gpu = lane->gpu;
    unsigned result = CUDA_SUCCESS;

    lane->stream = stream;
    lane->owns_stream = stream == NULL;
    if (lane->owns_stream)
        result = gpu->cu.cuStreamCreate(&lane->stream, CU_STREAM_NON_BLOCKING);
    if (result != CUDA_SUCCESS)
        return bxi_gpu_cuda_fail(&gpu->cu, result, "a stream of device %d", lane->device->ordinal);
    return lane->device->order == BXI_GPU_EVENTS ? make_events(lane) : 0;
}

static void fill_lane(struct bxi_gpu_lane *lane)
{
    pthread_mutex_lock(&lane->gpu->lock);
    lane->value = lane->done = lane->gpu->lane_value[lane->index];
    lane->word_address = word_address(lane->device, lane->index);
    lane->order = lane->device->order;
    if (lane->order == BXI_GPU_DEVICE_WORDS)
        find_host_word(lane);
    publish_lane(lane);
    pthread_mutex_unlock(&lane->gpu->lock);
}

static void release_index(struct bxi_gpu_lane *lane)
{
    pthread_mutex_lock(&lane->gpu->lock);
    lane->gpu->lane[lane->index] = NULL;
    pthread_mutex_unlock(&lane->gpu->lock);
}

int bxi_gpu_lane_open(struct bxi_gpu_device *device, void *stream, struct bxi_gpu_lane **out)
{
    struct bxi_gpu *gpu = device->gpu;
    struct bxi_gpu_lane *lane;
    int rc;

    if (bxi_gpu_forked())
        return -EPERM;
    lane = calloc(1, sizeof(*lane));
    if (lane == NULL)
        return bxi_gpu_fail(-ENOMEM, "no memory for a lane");
    lane->gpu = gpu;
    lane->device = device;
    rc = reserve_index(lane);
    if (rc < 0)
        goto free_lane;
    rc = bxi_gpu_enter(device);
    if (rc < 0)
        goto release_index;
    rc = make_stream(lane, stream);
    if (rc < 0) {
        release_index(lane);
        free_lane(lane);
        bxi_gpu_leave(device);
        return rc;
    }
    bxi_gpu_leave(device);
    fill_lane(lane);
    *out = lane;
    return 0;

release_index:
    release_index(lane);
free_lane:
    free(lane);
    return rc;
}

void bxi_gpu_lane_last(const struct bxi_gpu_lane *lane, struct bxi_gpu_point *point)
{
    *point = (struct bxi_gpu_point){ 0 };
    if (lane->value > 0)
        *point = (struct bxi_gpu_point){ (uint16_t)lane->order, (uint16_t)lane->index, 0, lane->value };
}

void *bxi_gpu_lane_stream(const struct bxi_gpu_lane *lane)
{
    return lane->stream;
}

int bxi_gpu_lane_wait(struct bxi_gpu_lane *lane)
{
    struct bxi_gpu *gpu = lane->gpu;
    unsigned result = CUDA_SUCCESS;
    int rc;

    rc = bxi_gpu_enter(lane->device);
    if (rc < 0)
        return rc;
    rc = bxi_gpu_refuse_capture(lane->device, lane->stream, "waiting for a lane");
    if (rc == 0) {
        bxi_gpu_count(&gpu->figures.host_synchronises, 1);
        result = gpu->cu.cuStreamSynchronize(lane->stream);
    }
    bxi_gpu_leave(lane->device);
    if (rc < 0)
        return rc;
    return result == CUDA_SUCCESS ? 0 : bxi_gpu_cuda_fail(&gpu->cu, result, "waiting for lane %u", lane->index);
}

/* Writes the lane's word in host memory from this host: with EVENTS and HOST_SYNC, and when a lane closes. */
static void set_word(struct bxi_gpu_lane *lane, uint64_t value)
{
    lane->done = value;
    /* [gpu.word] release, pairs with the acquire in host_word: the work before it is done. */
    bxi_store_release(&lane->gpu->region->word[lane->index].value, value);
}

/* Under the lock: the word of a lane whose stream has ended, or is left. Failed work never completes: its points do not
 * pass, but streams that wait for them are released, by the poison. */
static void end_word(struct bxi_gpu_lane *lane, int rc)
{
    bxi_a64 *value = &lane->gpu->region->word[lane->index].value;

    if (rc == 0)
        set_word(lane, lane->value);
    else
        /* [gpu.word] release, pairs with the acquire in host_word; the stream that also wrote it has ended. */
        bxi_store_release(value, bxi_load_relaxed(value) | BXI_GPU_POISON);
}

/* Its stream has ended, with an error if rc is one. */
static void end_lane(struct bxi_gpu_lane *lane, int rc)
{
    struct bxi_gpu *gpu = lane->gpu;
    struct bxi_gpu_device *device = lane->device;

    pthread_mutex_lock(&gpu->lock);
    end_word(lane, rc);
    /* [gpu.lane] release, pairs with the acquire in lane_of: its points have passed, or never will. */
    bxi_store_release(&gpu->region->lane[lane->index].order, 0);
    gpu->lane[lane->index] = NULL;
    gpu->lane_value[lane->index] = lane->value;
    pthread_mutex_unlock(&gpu->lock);
    if (bxi_gpu_enter(lane->device) == 0) {
        free_lane(lane);
        bxi_gpu_leave(device);
    }
}

void bxi_gpu_lane_close(struct bxi_gpu_lane *lane)
{
    if (lane != NULL && !bxi_gpu_forked())
        end_lane(lane, bxi_gpu_lane_wait(lane));
}

/* Whether its stream is idle: 0, or why its work has not ended well. -ETIMEDOUT: not idle at end_ns. A captured stream
 * is not queried: bxi_gpu_lane_close does not wait for it. */
static int end_by(const struct bxi_gpu_lane *lane, uint64_t end_ns)
{
    int rc = bxi_gpu_enter(lane->device);

    if (rc < 0)
        return rc;
    rc = bxi_gpu_refuse_capture(lane->device, lane->stream, "closing a lane");
    if (rc == 0 && !bxi_gpu_idle_by(lane->device, lane->stream, end_ns))
        rc = lane->gpu->cu.cuStreamQuery(lane->stream) == CUDA_ERROR_NOT_READY ? -ETIMEDOUT : -EIO;
    bxi_gpu_leave(lane->device);
    return rc;
}

/* Everything of the lane stays. Peers are released: this process will not tell them any more how far its work has
 * come. */
static void leave(struct bxi_gpu_lane *lane, int rc)
{
    pthread_mutex_lock(&lane->gpu->lock);
    end_word(lane, rc);
    pthread_mutex_unlock(&lane->gpu->lock);
}

/* All are looked at before one is closed: destroying a stream may wait for the others. */
bool bxi_gpu_lanes_close(struct bxi_gpu *gpu, uint64_t end_ns)
{
    int rc[BXI_GPU_LANES] = { 0 };
    bool have_ended = true;

    for (int i = 0; i < BXI_GPU_LANES; i++) {
        if (gpu->lane[i] != NULL)
            rc[i] = end_by(gpu->lane[i], end_ns);
        have_ended = have_ended && rc[i] != -ETIMEDOUT;
    }
    for (int i = 0; i < BXI_GPU_LANES; i++) {
        if (gpu->lane[i] != NULL && have_ended)
            bxi_gpu_lane_close(gpu->lane[i]);
        else if (gpu->lane[i] != NULL)
            leave(gpu->lane[i], rc[i]);
    }
    return have_ended;
}

/* ---- Marks ----------------------------------------------------------------------------------- */

/* Under the lock, EVENTS: moves the word as far as events have completed. */
static void advance(struct bxi_gpu_lane *lane)
{
    uint64_t done = lane->done;

    while (done < lane->value &&
           lane->gpu->cu.cuEventQuery(lane->event[(done + 1) % BXI_GPU_RING]) == CUDA_SUCCESS)
        done++;
    if (done != lane->done)
        set_word(lane, done);
}

/* Under the lock: moves the word to where the stream has written its mirror. Whether it is behind the last mark. */
static bool follow(struct bxi_gpu_lane *lane)
{
    /* [gpu.word] acquire, pairs with the fenced write of a stream: the work before it is done. */
    uint64_t done = bxi_load_acquire(lane->mirror);

    if (done > lane->done)
        set_word(lane, done);
    /* Relaxed: a mark of another thread may be missed; the next poll sees it. */
    return lane->done < bxi_load_relaxed(&lane->marked);
}

int bxi_gpu_lanes_poll(struct bxi_gpu *gpu)
{
    int left = 0;

    for (int i = 0; i < BXI_GPU_LANES; i++) {
        struct bxi_gpu_lane *lane = gpu->lane[i];

        if (lane != NULL && lane->mirror != NULL)
            left += follow(lane);
        if (lane == NULL || lane->order != BXI_GPU_EVENTS || lane->done == lane->value)
            continue;
        if (bxi_gpu_enter(lane->device) == 0) {
            advance(lane);
            bxi_gpu_leave(lane->device);
        }
        left += lane->done != lane->value;
    }
    return left;
}

/* Under the lock, which is released while it waits: until an event is free for the next mark. An event is recorded
 * again only after its last record has passed, so that the word misses none. */
static unsigned wait_for_event(struct bxi_gpu_lane *lane)
{
    struct bxi_gpu *gpu = lane->gpu;
    unsigned result = CUDA_SUCCESS;

    advance(lane);
    while (result == CUDA_SUCCESS && lane->value - lane->done >= BXI_GPU_RING) {
        struct CUevent_st *oldest = lane->event[(lane->value + 1) % BXI_GPU_RING];

        bxi_gpu_count(&gpu->figures.host_synchronises, 1);
        pthread_mutex_unlock(&gpu->lock);
        result = gpu->cu.cuEventSynchronize(oldest);
        pthread_mutex_lock(&gpu->lock);
        advance(lane);
    }
    return result;
}

static unsigned wait_for_stream(struct bxi_gpu_lane *lane)
{
    const struct bxi_cuda *cu = &lane->gpu->cu;
    unsigned result = cu->cuStreamQuery(lane->stream);

    if (result != CUDA_ERROR_NOT_READY)
        return result;
    bxi_gpu_count(&lane->gpu->figures.host_synchronises, 1);
    return cu->cuStreamSynchronize(lane->stream);
}

static unsigned mark_event(struct bxi_gpu_lane *lane)
{
    struct bxi_gpu *gpu = lane->gpu;
    unsigned result;

    pthread_mutex_lock(&gpu->lock);
    result = wait_for_event(lane);
    if (result == CUDA_SUCCESS)
        result = gpu->cu.cuEventRecord(lane->event[(lane->value + 1) % BXI_GPU_RING], lane->stream);
    if (result == CUDA_SUCCESS)
        lane->value++;
    pthread_mutex_unlock(&gpu->lock);
    return result;
}

static unsigned mark(struct bxi_gpu_lane *lane)
{
    const struct bxi_cuda *cu = &lane->gpu->cu;
    unsigned result;

    switch (lane->order) {
    case BXI_GPU_HOST_WORDS:
    case BXI_GPU_DEVICE_WORDS:
        result = cu->cuStreamWriteValue64_v2(lane->stream, lane->word_address, lane->value + 1,
                                             CU_STREAM_WRITE_VALUE_DEFAULT);
        if (result == CUDA_SUCCESS && lane->host_address != 0)
            result = cu->cuStreamWriteValue64_v2(lane->stream, lane->host_address, lane->value + 1,
                                                 CU_STREAM_WRITE_VALUE_DEFAULT);
        if (result == CUDA_SUCCESS)
            bxi_store_relaxed(&lane->marked, ++lane->value);    /* relaxed: polls only count with it */
        return result;
    case BXI_GPU_EVENTS:
        return mark_event(lane);
    default:
        result = wait_for_stream(lane);
        if (result == CUDA_SUCCESS)
            set_word(lane, ++lane->value);
        return result;
    }
}

int bxi_gpu_mark(struct bxi_gpu_lane *lane, struct bxi_gpu_point *point)
{
    unsigned result = CUDA_SUCCESS;
    int rc;

    rc = bxi_gpu_enter(lane->device);
    if (rc < 0)
        return rc;
    rc = bxi_gpu_refuse_capture(lane->device, lane->stream, "a mark on a lane");
    if (rc == 0)
        result = mark(lane);
    bxi_gpu_leave(lane->device);
    if (rc < 0)
        return rc;
    if (result != CUDA_SUCCESS)
        return bxi_gpu_cuda_fail(&lane->gpu->cu, result, "a mark on lane %u of device %d", lane->index,
                                 lane->device->ordinal);
    bxi_gpu_count(&lane->gpu->figures.marks, 1);
    *point = (struct bxi_gpu_point){
        .order = (uint16_t)lane->order,
        .lane = (uint16_t)lane->index,
        .value = lane->value,
    };
    return 0;
}

/* The lane is of an order whose marks wait, its context is current, and its stream is not captured: then leave must
 * follow. A captured stream must not be queried; its mark is refused without a wait. */
static bool enter_to_wait(const struct bxi_gpu_lane *lane)
{
    if (lane->order <= BXI_GPU_DEVICE_WORDS || bxi_gpu_enter(lane->device) < 0)
        return false;
    if (bxi_gpu_refuse_capture(lane->device, lane->stream, "a mark on a lane") == 0)
        return true;
    bxi_gpu_leave(lane->device);
    return false;
}

bool bxi_gpu_mark_waits(struct bxi_gpu_lane *lane)
{
    struct bxi_gpu *gpu = lane->gpu;
    bool waits = false;

    if (!enter_to_wait(lane))
        return false;
    pthread_mutex_lock(&gpu->lock);
    if (lane->order == BXI_GPU_EVENTS) {
        advance(lane);
        waits = lane->value - lane->done >= BXI_GPU_RING;
    } else {
        waits = gpu->cu.cuStreamQuery(lane->stream) == CUDA_ERROR_NOT_READY;
    }
    pthread_mutex_unlock(&gpu->lock);
    bxi_gpu_leave(lane->device);
    return waits;
}

/* Errors are ignored: the mark that follows fails with the same error and returns it. */
void bxi_gpu_mark_wait(struct bxi_gpu_lane *lane)
{
    struct bxi_gpu *gpu = lane->gpu;

    if (!enter_to_wait(lane))
        return;
    if (lane->order == BXI_GPU_EVENTS) {
        pthread_mutex_lock(&gpu->lock);
        (void)wait_for_event(lane);
        pthread_mutex_unlock(&gpu->lock);
    } else {
        (void)wait_for_stream(lane);
    }
    bxi_gpu_leave(lane->device);
}

/* SPDX-License-Identifier: MIT */
/*
 * Lanes and points: how work of one process is put behind work of another without a host that waits. A mark lets
 * the stream write a number to the lane's word behind its work; a peer's stream waits for the number. README.md has
 * the four orders side by side; the probe that chooses is in probe.c.
 *
 * Who runs it: mark and after whoever uses the lane, on the hot path, without the lock (but with EVENTS, a fallback,
 * whose books bxi_gpu_poll shares; it is not held while a stream is waited for); the rest under it.
 *
 * Why words, and not events alone: an event has to be recorded before the consumer may even ask about it, its
 * opening costs a call of the driver for each, and the host cannot see without another whether it has passed. A
 * word is written by its owner only, as everything shared here, and every host may look.
 *
 * The default write fences all earlier work of its stream for the whole system, so whoever sees the number sees
 * the data. The wait compares cyclically, (int64_t)(word - value) >= 0, so a word with the poison added meets every
 * wait; below the poison stands how far it really came.
 *
 * Killed before the word is written: it never comes, and peers poison it (bxi_gpu_peer_died).
 */
#include "inside.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* ---- Lanes ----------------------------------------------------------------------------------- */

/* Under the lock, the context current. */
static int make_events(struct bxi_gpu_lane *lane)
{
    const struct bxi_cuda *cu = &lane->gpu->cu;

    for (int i = 0; i < BXI_GPU_RING; i++) {
        struct CUipcEventHandle_st handle;
        unsigned result = cu->cuEventCreate(&lane->event[i], CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);

        if (result == CUDA_SUCCESS)
            result = cu->cuIpcGetEventHandle(&handle, lane->event[i]);
        if (result != CUDA_SUCCESS)
            return bxi_gpu_cuda_fail(cu, result, "an interprocess event");
        memcpy(lane->gpu->region->event[lane->index][i], handle.reserved, sizeof(handle.reserved));
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
    /* [gpu.lane] release, pairs with the acquire in lane_of. */
    bxi_store_release(&row->order, (uint32_t)lane->order);
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
    const struct bxi_cuda *cu = &lane->gpu->cu;

    for (int i = 0; i < BXI_GPU_RING; i++)
        if (lane->event[i] != NULL)
            (void)cu->cuEventDestroy_v2(lane->event[i]);
    if (lane->owns_stream && lane->stream != NULL)
        (void)cu->cuStreamDestroy_v2(lane->stream);
    free(lane);
}

/* Under the lock, the context current. */
static int fill_lane(struct bxi_gpu_lane *lane, void *stream)
{
    struct bxi_gpu *gpu = lane->gpu;
    unsigned result = CUDA_SUCCESS;

    while (lane->index < BXI_GPU_LANES && gpu->lane[lane->index] != NULL)
        lane->index++;
    if (lane->index == BXI_GPU_LANES)
        return bxi_gpu_fail(-ENOSPC, "%d lanes are open, the most that a worker can have: close some, or share one",
                            BXI_GPU_LANES);
    lane->stream = stream;
    lane->owns_stream = stream == NULL;
    if (lane->owns_stream)
        result = gpu->cu.cuStreamCreate(&lane->stream, CU_STREAM_NON_BLOCKING);
    if (result != CUDA_SUCCESS)
        return bxi_gpu_cuda_fail(&gpu->cu, result, "a stream of device %d", lane->device->ordinal);
    lane->order = lane->device->order;
    lane->value = lane->done = gpu->lane_value[lane->index];
    lane->word_address = word_address(lane->device, lane->index);
    return lane->order == BXI_GPU_EVENTS ? make_events(lane) : 0;
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
    pthread_mutex_lock(&gpu->lock);
    rc = bxi_gpu_enter(device);
    if (rc == 0) {
        rc = fill_lane(lane, stream);
        if (rc < 0)
            free_lane(lane);
        bxi_gpu_leave(device);
    } else {
        free(lane);
    }
    if (rc == 0) {
        gpu->lane[lane->index] = lane;
        publish_lane(lane);
        *out = lane;
    }
    pthread_mutex_unlock(&gpu->lock);
    return rc;
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
    bxi_gpu_count(&gpu->figures.host_synchronises, 1);
    result = gpu->cu.cuStreamSynchronize(lane->stream);
    bxi_gpu_leave(lane->device);
    return result == CUDA_SUCCESS ? 0 : bxi_gpu_cuda_fail(&gpu->cu, result, "waiting for lane %u", lane->index);
}

/* The lane's word in host memory, written by this host: with EVENTS and HOST_SYNC, and as a lane closes. */
static void set_word(struct bxi_gpu_lane *lane, uint64_t value)
{
    lane->done = value;
    /* [gpu.word] release, pairs with the acquire in host_word: the work before it is done. */
    bxi_store_release(&lane->gpu->region->word[lane->index].value, value);
}

/* Work that has failed is never done: its points do not pass, but nobody waits for them any longer. */
static void poison_word(struct bxi_gpu_lane *lane)
{
    bxi_a64 *value = &lane->gpu->region->word[lane->index].value;

    /* [gpu.word] release, pairs with the acquire in host_word; the stream that also wrote it has ended. */
    bxi_store_release(value, bxi_load_relaxed(value) | BXI_GPU_POISON);
}

void bxi_gpu_lane_close(struct bxi_gpu_lane *lane)
{
    if (lane == NULL || bxi_gpu_forked())
        return;

    struct bxi_gpu *gpu = lane->gpu;
    struct bxi_gpu_device *device = lane->device;
    int rc = bxi_gpu_lane_wait(lane);

    pthread_mutex_lock(&gpu->lock);
    if (rc == 0)
        set_word(lane, lane->value);
    else
        poison_word(lane);
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

/* ---- Marks ----------------------------------------------------------------------------------- */

/* Under the lock. Moves the word as far as events have completed. */
static void advance(struct bxi_gpu_lane *lane)
{
    uint64_t done = lane->done;

    while (done < lane->value &&
           lane->gpu->cu.cuEventQuery(lane->event[(done + 1) % BXI_GPU_RING]) == CUDA_SUCCESS)
        done++;
    if (done != lane->done)
        set_word(lane, done);
}

int bxi_gpu_lanes_poll(struct bxi_gpu *gpu)
{
    int left = 0;

    for (int i = 0; i < BXI_GPU_LANES; i++) {
        struct bxi_gpu_lane *lane = gpu->lane[i];

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

/* Under the lock, which is let go of for the wait: until the next mark has an event. One is recorded again only when
 * its last record has passed, so that the word misses none. */
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
        if (result == CUDA_SUCCESS)
            lane->value++;
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
    unsigned result;
    int rc;

    rc = bxi_gpu_enter(lane->device);
    if (rc < 0)
        return rc;
    result = mark(lane);
    bxi_gpu_leave(lane->device);
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

bool bxi_gpu_mark_waits(struct bxi_gpu_lane *lane)
{
    struct bxi_gpu *gpu = lane->gpu;
    bool waits = false;

    if (lane->order <= BXI_GPU_DEVICE_WORDS || bxi_gpu_enter(lane->device) < 0)
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

/* Whatever goes wrong here goes wrong in the mark again, which says so. */
void bxi_gpu_mark_wait(struct bxi_gpu_lane *lane)
{
    struct bxi_gpu *gpu = lane->gpu;

    if (lane->order <= BXI_GPU_DEVICE_WORDS || bxi_gpu_enter(lane->device) < 0)
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

/* ---- Points of others, and one's own --------------------------------------------------------- */

static const struct bxi_gpu_region *region_of(const struct bxi_gpu *gpu, const struct bxi_gpu_peer *peer)
{
    return peer != NULL ? peer->is.region : gpu->region;
}

static uint64_t host_word(const struct bxi_gpu_region *region, uint32_t lane)
{
    /* [gpu.word] acquire, pairs with the release in set_word and with the fenced write of a stream: what was
     * done before the point can be seen. */
    return bxi_load_acquire(&region->word[lane].value);
}

/* Whether the work that ends with value is done; a poisoned word still says so. */
static bool has_come(uint64_t word, uint64_t value)
{
    return (word & (BXI_GPU_POISON - 1)) >= value;
}

/* A copy of the lane's row as it is now; false: it is closed, or of another order. */
static bool lane_of(const struct bxi_gpu_region *region, const struct bxi_gpu_point *point,
                    struct bxi_gpu_lane_row *row)
{
    /* [gpu.lane] acquire, pairs with the release in publish_lane. */
    if (bxi_load_acquire(&region->lane[point->lane].order) != point->order)
        return false;
    row->slab = region->lane[point->lane].slab;
    row->generation = region->lane[point->lane].generation;
    row->offset = region->lane[point->lane].offset;
    return true;
}

static int bad_point(const struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point)
{
    return bxi_gpu_fail(-EPROTO, "%s names a point that cannot be one: order %u, lane %u, value %llu",
                        peer != NULL ? peer->name : "this worker", point->order, point->lane,
                        (unsigned long long)point->value);
}

/* 0, or bad_point. */
static int check_point(const struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point)
{
    if (point->order > BXI_GPU_HOST_SYNC || point->lane >= BXI_GPU_LANES || point->value == 0 ||
        point->value >= BXI_GPU_POISON)
        return bad_point(peer, point);
    return 0;
}

/* Where a DEVICE_WORDS word is found; address 0: its slab is not mapped. Under the lock. */
static struct bxi_gpu_place device_word(const struct bxi_gpu *gpu, const struct bxi_gpu_peer *peer,
                                        const struct bxi_gpu_point *point, const struct bxi_gpu_lane_row *row)
{
    const struct bxi_gpu_lane *lane = gpu->lane[point->lane];

    if (peer != NULL)
        return bxi_gpu_mapped(peer, row);
    return lane != NULL ? (struct bxi_gpu_place){ lane->word_address, lane->device } : (struct bxi_gpu_place){ 0 };
}

/* Copies a word of a device to the host: on the side stream, where nothing waits. Under the lock. */
int bxi_gpu_read_word(const struct bxi_gpu_device *device, uint64_t address, uint64_t *value)
{
    struct bxi_gpu *gpu = device->gpu;
    unsigned result;
    int rc = bxi_gpu_enter(device);

    if (rc < 0)
        return rc;
    bxi_gpu_count(&gpu->figures.word_reads, 1);
    result = gpu->cu.cuMemcpyDtoHAsync_v2(value, address, sizeof(*value), device->side);
    if (result == CUDA_SUCCESS)
        result = gpu->cu.cuStreamSynchronize(device->side);
    bxi_gpu_leave(device);
    return result == CUDA_SUCCESS ? 0 : bxi_gpu_cuda_fail(&gpu->cu, result, "reading a word of the device");
}

int bxi_gpu_point_passed(struct bxi_gpu *gpu, struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point)
{
    const struct bxi_gpu_region *region = region_of(gpu, peer);
    struct bxi_gpu_lane_row row;
    uint64_t value = 0;
    int rc;

    if (point->order == 0)
        return 1;
    rc = check_point(peer, point);
    if (rc < 0)
        return rc;
    if (has_come(host_word(region, point->lane), point->value) || (peer != NULL && bxi_gpu_peer_is_dead(peer)))
        return 1;
    if (point->order != BXI_GPU_DEVICE_WORDS || !lane_of(region, point, &row))
        return 0;

    struct bxi_gpu_place word = device_word(gpu, peer, point, &row);

    if (word.address == 0)
        return peer == NULL ? 0 : bxi_gpu_fail(-EAGAIN, "the word of %s's lane %u is not mapped yet", peer->name,
                                               point->lane);
    rc = bxi_gpu_read_word(word.device, word.address, &value);
    return rc < 0 ? rc : has_come(value, point->value);
}

int bxi_gpu_passed(struct bxi_gpu *gpu, struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point)
{
    int rc;

    if (bxi_gpu_forked())
        return -EPERM;
    pthread_mutex_lock(&gpu->lock);
    rc = bxi_gpu_point_passed(gpu, peer, point);
    pthread_mutex_unlock(&gpu->lock);
    return rc;
}

/* ---- Waiting for points ---------------------------------------------------------------------- */

/* What a dead peer had marked has come, or never will. Words in its slabs were looked at when it died. */
static int after_death(struct bxi_gpu *gpu, const struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point)
{
    uint64_t word = host_word(peer->is.region, point->lane);

    if (point->order == BXI_GPU_DEVICE_WORDS && !has_come(word, point->value)) {
        pthread_mutex_lock(&gpu->lock);
        word = peer->come[point->lane];
        pthread_mutex_unlock(&gpu->lock);
    }
    if (!has_come(word, point->value))
        return bxi_gpu_fail(-EOWNERDEAD, "%s has died with work that was waited for", peer->name);
    bxi_gpu_count(&gpu->figures.waits_saved, 1);
    return 0;
}

/* The lane's device cannot see that word: the host looks at it. Ends with the word, or with its writer. */
static int wait_on_host(struct bxi_gpu *gpu, struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point)
{
    const struct bxi_gpu_region *region = region_of(gpu, peer);
    int rc = 0;

    bxi_gpu_count(&gpu->figures.fallbacks, 1);
    bxi_gpu_count(&gpu->figures.host_synchronises, 1);
    for (uint64_t word; !has_come(word = host_word(region, point->lane), point->value);) {
        if (peer != NULL && (bxi_gpu_peer_is_dead(peer) || (word & BXI_GPU_POISON) != 0))
            return after_death(gpu, peer, point);
        if (point->order == BXI_GPU_DEVICE_WORDS && (rc = bxi_gpu_passed(gpu, peer, point)) < 0)
            return rc;
        if (rc == 1 && (peer == NULL || !bxi_gpu_peer_is_dead(peer)))
            return 0;
        sched_yield();
    }
    return 0;
}

/* The peer's event of this point, opened at its first use; NULL: the lane was closed, when all its points had passed.
 * Told by the lane's generation and not by the handle's bytes, which may come again. Under the lock, the context
 * current. */
static int peer_event(struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point, struct CUevent_st **event)
{
    const struct bxi_cuda *cu = &peer->gpu->cu;
    unsigned index = (unsigned)(point->value % BXI_GPU_RING);
    struct bxi_gpu_event_cache *cache = &peer->event[point->lane][index];
    struct CUipcEventHandle_st handle;
    struct bxi_gpu_lane_row row;
    unsigned result = CUDA_SUCCESS;

    if (!lane_of(peer->is.region, point, &row))
        return has_come(host_word(peer->is.region, point->lane), point->value) ? 0 : bad_point(peer, point);
    if (cache->event != NULL && cache->generation != row.generation) {
        (void)cu->cuEventDestroy_v2(cache->event);
        cache->event = NULL;
    }
    if (cache->event == NULL) {
        memcpy(handle.reserved, peer->is.region->event[point->lane][index], sizeof(handle.reserved));
        result = cu->cuIpcOpenEventHandle(&cache->event, handle);
        if (result != CUDA_SUCCESS)
            cache->event = NULL;
        cache->generation = row.generation;
    }
    *event = cache->event;
    return result == CUDA_SUCCESS ? 0 : bxi_gpu_cuda_fail(cu, result, "opening an event of %s", peer->name);
}

static int after_event(struct bxi_gpu_lane *lane, struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point)
{
    struct bxi_gpu *gpu = lane->gpu;
    struct CUevent_st *event = NULL;
    unsigned result;
    int rc = 0;

    pthread_mutex_lock(&gpu->lock);
    if (peer != NULL)
        rc = peer_event(peer, point, &event);
    else if (gpu->lane[point->lane] != NULL)
        event = gpu->lane[point->lane]->event[point->value % BXI_GPU_RING];
    if (rc == 0 && event != NULL) {
        result = gpu->cu.cuStreamWaitEvent(lane->stream, event, 0);
        rc = result == CUDA_SUCCESS ? 0 : bxi_gpu_cuda_fail(&gpu->cu, result, "waiting for an event");
    }
    pthread_mutex_unlock(&gpu->lock);
    return rc;
}

/* The page of words as the lane's device sees it; 0: it does not. A page that was registered may be seen at another
 * address by each device. */
static uint64_t words_page(const struct bxi_gpu_lane *lane, const struct bxi_gpu_peer *peer)
{
    unsigned long long address = 0;
    void *page;

    if (peer == NULL)
        return lane->device->host_words;
    if (peer->host_words == 0 || lane->device == peer->is.device)
        return peer->host_words;
    page = (void *)(uintptr_t)peer->is.region->word;
    return lane->gpu->cu.cuMemHostGetDevicePointer_v2(&address, page, 0) == CUDA_SUCCESS ? address : 0;
}

/* Where the lane's stream may wait for the point; 0: nowhere, the host has to. */
static int word_for(struct bxi_gpu_lane *lane, const struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point,
                    uint64_t *address)
{
    struct bxi_gpu *gpu = lane->gpu;
    struct bxi_gpu_lane_row row;
    struct bxi_gpu_place word;

    if (point->order == BXI_GPU_HOST_WORDS) {
        uint64_t page = words_page(lane, peer);

        *address = page != 0 ? page + point->lane * sizeof(struct bxi_gpu_word) : 0;
        return 0;
    }
    *address = 0;
    if (!lane_of(region_of(gpu, peer), point, &row))    /* closed; all its points had passed */
        return has_come(host_word(region_of(gpu, peer), point->lane), point->value) ? 0 : bad_point(peer, point);
    pthread_mutex_lock(&gpu->lock);
    word = device_word(gpu, peer, point, &row);
    pthread_mutex_unlock(&gpu->lock);
    if (word.address == 0)
        return bxi_gpu_fail(-EAGAIN, "the word of lane %u is not mapped yet", point->lane);
    *address = word.device == lane->device ? word.address : 0;
    return 0;
}

static int after_word(struct bxi_gpu_lane *lane, struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point)
{
    struct bxi_gpu *gpu = lane->gpu;
    uint64_t address = 0;
    unsigned result;
    int rc = word_for(lane, peer, point, &address);

    if (rc < 0)
        return rc;
    if (address == 0 || gpu->cu.cuStreamWaitValue64_v2 == NULL)
        return wait_on_host(gpu, peer, point);
    result = gpu->cu.cuStreamWaitValue64_v2(lane->stream, address, point->value, CU_STREAM_WAIT_VALUE_GEQ);
    return result == CUDA_SUCCESS ? 0 : bxi_gpu_cuda_fail(&gpu->cu, result, "waiting for lane %u", point->lane);
}

int bxi_gpu_after(struct bxi_gpu_lane *lane, struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point)
{
    struct bxi_gpu *gpu = lane->gpu;
    int rc;

    if (bxi_gpu_forked())
        return -EPERM;
    if (point->order == 0)
        return 0;
    rc = check_point(peer, point);
    if (rc < 0)
        return rc;

    uint64_t word = host_word(region_of(gpu, peer), point->lane);

    if (has_come(word, point->value)) {
        bxi_gpu_count(&gpu->figures.waits_saved, 1);
        return 0;
    }
    if (peer != NULL && (bxi_gpu_peer_is_dead(peer) || (word & BXI_GPU_POISON) != 0))
        return after_death(gpu, peer, point);
    if (point->order == BXI_GPU_HOST_SYNC)
        return bad_point(peer, point);
    rc = bxi_gpu_enter(lane->device);
    if (rc < 0)
        return rc;
    rc = point->order == BXI_GPU_EVENTS ? after_event(lane, peer, point) : after_word(lane, peer, point);
    bxi_gpu_leave(lane->device);
    if (rc == 0)
        bxi_gpu_count(&gpu->figures.waits, 1);
    return rc;
}

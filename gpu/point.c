/* SPDX-License-Identifier: MIT */
/*
 * Points: whether work of this or another process has been done, and how a stream is put behind it without a host that
 * waits. bxi_gpu_after runs on the hot path, in the thread that uses the lane, without the lock (with EVENTS, a
 * fallback, under it); the rest under it.
 *
 * Why words, and not events alone: an event must be recorded before the consumer may even ask about it, each costs a
 * call of the driver to open, and the host needs another call to see whether it has passed. A word has one writer, as
 * everything shared here, and every host can read it.
 *
 * The wait compares cyclically, (int64_t)(word - value) >= 0, so a word with the poison added satisfies every wait.
 * Below the poison stands how far the work really came.
 */
#include "inside.h"

#include "shm/backoff.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

#define REGISTER_NS UINT64_C(1000000000)        /* for the registration of a peer's words */
#define APART_NS UINT64_C(200000000)            /* for the side stream's write, microseconds as a rule */
#define LOOKS 256                               /* at a word, between two looks at a lock */

static const struct bxi_gpu_region *region_of(const struct bxi_gpu *gpu, const struct bxi_gpu_peer *peer)
{
    return peer != NULL ? peer->options.region : gpu->region;
}

static uint64_t host_word(const struct bxi_gpu_region *region, uint32_t lane)
{
    /* [gpu.word] acquire, pairs with the release in set_word and with the fenced write of a stream: the work before
     * the point is visible. */
    return bxi_load_acquire(&region->word[lane].value);
}

/* Whether the work before value is done; a poisoned word still has that. */
static bool has_reached(uint64_t word, uint64_t value)
{
    return (word & (BXI_GPU_POISON - 1)) >= value;
}

/* Copies the lane's row; false: the lane is closed, or has another order. */
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

/* 0, or -EPROTO. */
static int check_point(const struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point)
{
    if (point->order > BXI_GPU_HOST_SYNC || point->lane >= BXI_GPU_LANES || point->value == 0 ||
        point->value >= BXI_GPU_POISON)
        return bad_point(peer, point);
    return 0;
}

/* Under the lock: the place of a DEVICE_WORDS word; address 0: its slab is not mapped. */
static struct bxi_gpu_place device_word(const struct bxi_gpu *gpu, const struct bxi_gpu_peer *peer,
                                        const struct bxi_gpu_point *point, const struct bxi_gpu_lane_row *row)
{
    const struct bxi_gpu_lane *lane = gpu->lane[point->lane];

    if (peer != NULL)
        return bxi_gpu_mapped(peer, row);
    return lane != NULL ? (struct bxi_gpu_place){ lane->word_address, lane->device } : (struct bxi_gpu_place){ 0 };
}

/* Words in device memory have a copy in the region, which streams or polls of their owner write: no host looks at them
 * through the driver. */
int bxi_gpu_point_passed(struct bxi_gpu *gpu, struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point)
{
    int rc;

    if (point->order == 0)
        return 1;
    rc = check_point(peer, point);
    if (rc < 0)
        return rc;
    return has_reached(host_word(region_of(gpu, peer), point->lane), point->value) ||
        (peer != NULL && bxi_gpu_peer_is_dead(peer));
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

/* A dead peer's point has passed or never will. Words in its slabs were read when it was found dead (last_word). */
static int after_death(struct bxi_gpu *gpu, const struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point)
{
    uint64_t word = host_word(peer->options.region, point->lane);

    if (point->order == BXI_GPU_DEVICE_WORDS && !has_reached(word, point->value)) {
        pthread_mutex_lock(&gpu->lock);
        word = peer->last_word[point->lane];
        pthread_mutex_unlock(&gpu->lock);
    }
    if (!has_reached(word, point->value))
        return bxi_gpu_fail(-EOWNERDEAD, "%s has died with work that was waited for", peer->name);
    bxi_gpu_count(&gpu->figures.waits_saved, 1);
    return 0;
}

static bool is_left(struct bxi_gpu *gpu)
{
    bool is;

    pthread_mutex_lock(&gpu->lock);
    is = gpu->is_left;
    pthread_mutex_unlock(&gpu->lock);
    return is;
}

/* The lane's stream cannot or must not wait for the word, so the host polls it until it reaches the value or its writer
 * dies, or until bxi_gpu_abandon: after that nobody tells this process of deaths. */
static int wait_on_host(struct bxi_gpu *gpu, struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point)
{
    const struct bxi_gpu_region *region = region_of(gpu, peer);
    unsigned looks = 0;

    bxi_gpu_count(&gpu->figures.fallbacks, 1);
    bxi_gpu_count(&gpu->figures.host_synchronises, 1);
    for (uint64_t word; !has_reached(word = host_word(region, point->lane), point->value);) {
        if (peer != NULL && (bxi_gpu_peer_is_dead(peer) || (word & BXI_GPU_POISON) != 0))
            return after_death(gpu, peer, point);
        if (++looks % LOOKS == 0)
            bxi_sleep_a_moment();       /* the writer may be a host thread of lower priority */
        if (looks % LOOKS == 0 && is_left(gpu))
            return bxi_gpu_fail(-ECANCELED, "the GPU was closed while lane %u was waited for", point->lane);
        if (peer == NULL && point->order == BXI_GPU_DEVICE_WORDS) {     /* its word may have a mirror */
            pthread_mutex_lock(&gpu->lock);
            (void)bxi_gpu_lanes_poll(gpu);
            pthread_mutex_unlock(&gpu->lock);
        }
        sched_yield();
    }
    return 0;
}

/* The peer's event of this point, as the cache has it. The key is the lane's generation, because a handle's bytes may
 * recur. */
struct peer_event {
    struct bxi_gpu_event_cache *cache;
    uint64_t generation;
    struct CUipcEventHandle_st handle;
    struct CUevent_st *opened;          /* here, without the lock; or the one that it replaces: to be destroyed */
};

/* 1: the point has one; 0: the lane is closed, so all its points have passed. */
static int find_event(struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point, struct peer_event *event)
{
    unsigned index = (unsigned)(point->value % BXI_GPU_RING);
    struct bxi_gpu_lane_row row;

    if (!lane_of(peer->options.region, point, &row))
        return has_reached(host_word(peer->options.region, point->lane), point->value) ? 0 : bad_point(peer, point);
    event->cache = &peer->event[point->lane][index];
    event->generation = row.generation;
    memcpy(event->handle.reserved, peer->options.region->event[point->lane][index], sizeof(event->handle.reserved));
    return 1;
}

/* Opens the event without the lock, because cuIpcOpenEventHandle may wait for the device. Another thread may do the
 * same meanwhile: the first to have the lock puts its event into the cache. Takes the lock and keeps it if it returns
 * 0. The context is current. */
static int lock_with_event(const struct bxi_gpu_peer *peer, struct peer_event *event)
{
    struct bxi_gpu *gpu = peer->gpu;
    unsigned result = CUDA_SUCCESS;
    struct CUevent_st *before;

    pthread_mutex_lock(&gpu->lock);
    if (event->cache->event != NULL && event->cache->generation == event->generation)
        return 0;
    pthread_mutex_unlock(&gpu->lock);
    result = gpu->cu.cuIpcOpenEventHandle(&event->opened, event->handle);
    if (result != CUDA_SUCCESS) {
        event->opened = NULL;
        return bxi_gpu_cuda_fail(&gpu->cu, result, "opening an event of %s", peer->name);
    }
    pthread_mutex_lock(&gpu->lock);
    if (event->cache->event != NULL && event->cache->generation == event->generation)
        return 0;
    before = event->cache->event;
    event->cache->event = event->opened;
    event->cache->generation = event->generation;
    event->opened = before;
    return 0;
}

static int put_event(struct bxi_gpu_lane *lane, struct CUevent_st *event)
{
    unsigned result = event == NULL ? CUDA_SUCCESS : lane->gpu->cu.cuStreamWaitEvent(lane->stream, event, 0);

    return result == CUDA_SUCCESS ? 0 : bxi_gpu_cuda_fail(&lane->gpu->cu, result, "waiting for an event");
}

static int after_peers_event(struct bxi_gpu_lane *lane, struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point)
{
    struct bxi_gpu *gpu = lane->gpu;
    struct peer_event event = { 0 };
    int rc = find_event(peer, point, &event);

    if (rc <= 0)
        return rc;
    rc = lock_with_event(peer, &event);
    if (rc == 0) {
        rc = put_event(lane, event.cache->event);
        pthread_mutex_unlock(&gpu->lock);
    }
    if (event.opened != NULL)
        (void)gpu->cu.cuEventDestroy_v2(event.opened);
    return rc;
}

static int after_own_event(struct bxi_gpu_lane *lane, const struct bxi_gpu_point *point)
{
    struct bxi_gpu *gpu = lane->gpu;
    int rc;

    pthread_mutex_lock(&gpu->lock);
    rc = put_event(lane, gpu->lane[point->lane] == NULL ? NULL
                                                        : gpu->lane[point->lane]->event[point->value % BXI_GPU_RING]);
    pthread_mutex_unlock(&gpu->lock);
    return rc;
}

static int after_event(struct bxi_gpu_lane *lane, struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point)
{
    int rc = bxi_gpu_admission_enter(lane, peer, point);

    if (rc < 0)
        return rc;
    rc = peer != NULL ? after_peers_event(lane, peer, point) : after_own_event(lane, point);
    bxi_gpu_admission_leave(lane);
    return rc;
}

static bool is_registered(const struct bxi_gpu_peer *peer)
{
    /* [gpu.registered] acquire, pairs with the release in run_register. */
    return peer == NULL || bxi_load_acquire((bxi_a32 *)&peer->is_registered) != 0;
}

/* The helper registers the words of a peer that has just been opened. Waits for that, or until the point has passed or
 * its writer has died: the driver may wait for the streams here, and they for the same peer. After REGISTER_NS the host
 * waits in place of the stream. */
static void await_words(const struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point)
{
    uint64_t end_ns = bxi_gpu_now_ns() + REGISTER_NS;

    for (uint64_t word; !is_registered(peer) && bxi_gpu_now_ns() < end_ns; sched_yield()) {
        word = host_word(peer->options.region, point->lane);
        if (has_reached(word, point->value) || (word & BXI_GPU_POISON) != 0 || bxi_gpu_peer_is_dead(peer))
            return;
    }
}

/* The address of the words' page on the lane's device; 0: not accessible. A registered page may have another address on
 * each device. */
static uint64_t words_page(const struct bxi_gpu_lane *lane, const struct bxi_gpu_peer *peer)
{
    unsigned long long address = 0;

    if (peer == NULL)
        return lane->device->host_words;
    if (!is_registered(peer) || peer->host_words == 0)
        return 0;
    if (lane->device == peer->options.device)
        return peer->host_words;
    return lane->gpu->cu.cuMemHostGetDevicePointer_v2(&address, peer->registered, 0) == CUDA_SUCCESS ? address : 0;
}

/* The address at which the lane's stream can wait for the point; 0: none, the host must wait. */
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
    if (!lane_of(region_of(gpu, peer), point, &row))    /* closed, so all its points have passed */
        return has_reached(host_word(region_of(gpu, peer), point->lane), point->value) ? 0 : bad_point(peer, point);
    pthread_mutex_lock(&gpu->lock);
    word = device_word(gpu, peer, point, &row);
    pthread_mutex_unlock(&gpu->lock);
    if (word.address == 0)
        return bxi_gpu_fail(-EAGAIN, "the word of lane %u is not mapped yet", point->lane);
    *address = word.device == lane->device ? word.address : 0;
    return 0;
}

/* Words in device memory are poisoned by the side stream. If that shares a hardware queue with the lane's stream, a
 * wait there holds up the poison that is to end it. No call of the driver tells which streams share a queue, so it is
 * tried before the lane's first wait for such a word: the lane waits for a pinned word, the side stream writes
 * another, and the host ends the wait in any case. Work that is on the lane's stream already does not mislead: a queue
 * runs its items in the order in which they were put there. Two trials at a time may report a shared queue wrongly. */
static bool is_apart(const struct bxi_gpu_lane *lane)
{
    const struct bxi_gpu_device *device = lane->device;
    const struct bxi_cuda *cu = &lane->gpu->cu;
    uint64_t at = device->pinned_at + (uint64_t)((uintptr_t)device->look - (uintptr_t)device->pinned);
    uint32_t first = 2 + 2 * lane->index;
    bxi_a64 *opened = &device->look[first], *told = &device->look[first + 1];
    uint64_t value = bxi_load_relaxed(opened) + 1, end_ns = bxi_gpu_now_ns() + APART_NS;  /* relaxed: hosts write it */
    bool apart = false;

    at += first * sizeof(*opened);
    if (device->pinned_at == 0 ||
        cu->cuStreamWaitValue64_v2(lane->stream, at, value, CU_STREAM_WAIT_VALUE_GEQ) != CUDA_SUCCESS)
        return false;
    if (cu->cuStreamWriteValue64_v2(device->side, at + sizeof(*opened), value, CU_STREAM_WRITE_VALUE_DEFAULT) ==
        CUDA_SUCCESS)
        /* [gpu.trial] acquire, pairs with the write of a stream. */
        while (!(apart = bxi_load_acquire(told) == value) && bxi_gpu_now_ns() < end_ns)
            sched_yield();
    /* [gpu.trial] release, pairs with the wait of a stream. */
    bxi_store_release(opened, value);
    return apart;
}

static bool may_wait(struct bxi_gpu_lane *lane, const struct bxi_gpu_point *point)
{
    if (point->order == BXI_GPU_DEVICE_WORDS && lane->side == BXI_GPU_SIDE_UNKNOWN)
        lane->side = is_apart(lane) ? BXI_GPU_SIDE_APART : BXI_GPU_SIDE_SHARED;
    return lane->side != BXI_GPU_SIDE_SHARED;
}

static int after_word(struct bxi_gpu_lane *lane, struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point)
{
    struct bxi_gpu *gpu = lane->gpu;
    uint64_t address = 0;
    unsigned result;
    int rc;

    if (point->order == BXI_GPU_HOST_WORDS && !is_registered(peer))
        await_words(peer, point);
    rc = word_for(lane, peer, point, &address);
    if (rc < 0)
        return rc;
    if (address == 0 || gpu->cu.cuStreamWaitValue64_v2 == NULL || !may_wait(lane, point))
        return wait_on_host(gpu, peer, point);
    rc = bxi_gpu_admission_enter(lane, peer, point);
    if (rc < 0)
        return rc;
    result = gpu->cu.cuStreamWaitValue64_v2(lane->stream, address, point->value, CU_STREAM_WAIT_VALUE_GEQ);
    bxi_gpu_admission_leave(lane);
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

    if (has_reached(word, point->value)) {
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
    rc = bxi_gpu_refuse_capture(lane->device, lane->stream, "a wait on a lane");
    if (rc == 0 && point->order == BXI_GPU_EVENTS)
        rc = lane->side == BXI_GPU_SIDE_SHARED ? wait_on_host(gpu, peer, point) : after_event(lane, peer, point);
    else if (rc == 0)
        rc = after_word(lane, peer, point);
    bxi_gpu_leave(lane->device);
    if (rc == 0)
        bxi_gpu_count(&gpu->figures.waits, 1);
    return rc;
}

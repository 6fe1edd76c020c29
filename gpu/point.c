/* SPDX-License-Identifier: MIT */
/*
 * Points: whether work of this or another process has been done, and how a stream is put behind it, with words without
 * a host that waits. bxi_gpu_after runs on the hot path, in the thread that uses the lane, without the lock; the rest
 * under it.
 *
 * Why no stream waits for an event of another process: where that process is killed, the stream goes on waiting
 * (README.md, Order). A word can be poisoned. It has one writer, as everything shared here, and every host can read it.
 *
 * The wait compares cyclically, (int64_t)(word - value) >= 0, so a word with the poison added satisfies every wait.
 * Below the poison stands how far the work really came.
 */
#include "inside.h"

#include "shm/backoff.h"
#include "shm/cancel.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>

#define REGISTER_NS UINT64_C(1000000000)        /* for the registration of a peer's words */
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

/* Whether the point's lane is open, with its order. */
static bool is_open(const struct bxi_gpu_region *region, const struct bxi_gpu_point *point)
{
    /* [gpu.lane] acquire, pairs with the release in publish_lane. */
    return bxi_load_acquire(&region->lane[point->lane].order) == point->order;
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
    if (point->order > BXI_GPU_EVENTS || point->lane >= BXI_GPU_LANES || point->value == 0 ||
        point->value >= BXI_GPU_POISON)
        return bad_point(peer, point);
    return 0;
}

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

/* A dead peer's point has passed or never will. */
static int after_death(struct bxi_gpu *gpu, const struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point)
{
    if (!has_reached(host_word(peer->options.region, point->lane), point->value))
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

/* Whether the peer's process has ended, asked of the kernel: the thread that learns of deaths may be this one. */
static bool has_ended(const struct bxi_gpu_peer *peer)
{
    BXI_UNCANCELLED;
    struct pollfd process = { .fd = peer->options.process_fd, .events = POLLIN };

    return process.fd > 0 && poll(&process, 1, 0) == 1 && (process.revents & (POLLIN | POLLHUP)) != 0;
}

/* The lane's stream cannot wait for the word, so the host polls it until it reaches the value or its writer dies, or
 * until bxi_gpu_abandon: after that nobody tells this process of deaths. */
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
        if (looks % LOOKS == 0 && peer != NULL && has_ended(peer))
            return after_death(gpu, peer, point);
        if (looks % LOOKS == 0 && is_left(gpu))
            return bxi_gpu_fail(-ECANCELED, "the GPU was closed while lane %u was waited for", point->lane);
        sched_yield();
    }
    return 0;
}

/* Of a lane of this process. The event was recorded with this mark, or with a later one: then the stream waits longer
 * than it needs to, for work that is on a stream already. */
static int after_own_event(struct bxi_gpu_lane *lane, const struct bxi_gpu_point *point)
{
    struct bxi_gpu *gpu = lane->gpu;
    const struct bxi_gpu_lane *from;
    unsigned result = CUDA_SUCCESS;
    int rc = bxi_gpu_admission_enter(lane, NULL, point);

    if (rc < 0)
        return rc;
    pthread_mutex_lock(&gpu->lock);
    from = gpu->lane[point->lane];
    if (from != NULL && from->event != NULL)
        result = gpu->cu.cuStreamWaitEvent(lane->stream, from->event, 0);
    pthread_mutex_unlock(&gpu->lock);
    bxi_gpu_admission_leave(lane);
    return result == CUDA_SUCCESS ? 0 : bxi_gpu_cuda_fail(&gpu->cu, result, "waiting for an event");
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

/* A peer's lane that is closed has no more points to come: those before its end have passed. */
static int after_event(struct bxi_gpu *gpu, struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point)
{
    const struct bxi_gpu_region *region = peer->options.region;

    if (is_open(region, point))
        return wait_on_host(gpu, peer, point);
    return has_reached(host_word(region, point->lane), point->value) ? 0 : bad_point(peer, point);
}

static int after_word(struct bxi_gpu_lane *lane, struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point)
{
    struct bxi_gpu *gpu = lane->gpu;
    uint64_t page;
    unsigned result;
    int rc;

    if (!is_registered(peer))
        await_words(peer, point);
    page = words_page(lane, peer);
    if (page == 0 || gpu->cu.cuStreamWaitValue64_v2 == NULL)
        return wait_on_host(gpu, peer, point);
    rc = bxi_gpu_admission_enter(lane, peer, point);
    if (rc < 0)
        return rc;
    result = gpu->cu.cuStreamWaitValue64_v2(lane->stream, page + point->lane * sizeof(struct bxi_gpu_word),
                                            point->value, CU_STREAM_WAIT_VALUE_GEQ);
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
    rc = bxi_gpu_enter_lane(lane, "a wait on a lane");
    if (rc < 0)
        return rc;
    if (point->order == BXI_GPU_HOST_WORDS)
        rc = after_word(lane, peer, point);
    else
        rc = peer == NULL ? after_own_event(lane, point) : after_event(gpu, peer, point);
    bxi_gpu_leave(lane->device);
    if (rc == 0)
        bxi_gpu_count(&gpu->figures.waits, 1);
    return rc;
}

/* SPDX-License-Identifier: MIT */
/*
 * The admission of waits to a device: cuMemFree and cuIpcCloseMemHandle wait for the device, so they run only while no
 * lane of it waits for another process. Otherwise four things could wait for each other: the free for a lane, the lane
 * for a peer's word, the peer for a mark of this process, and the mark for the driver, which is busy with the free.
 *
 * bxi_gpu_after enters admission before it puts a wait on a lane's stream, records the point, and leaves it afterwards.
 * The helper closes admission, checks that every recorded wait is satisfied (by the words, without the driver), or that
 * its lane is idle (cuStreamQuery), frees, and opens it. If one is not, it opens admission at once, and a later poll
 * tries again. When that has failed for a second, an attempt every other second keeps admission closed for 200 ms,
 * until the waits that are on the streams have ended: else a worker whose streams always wait would never free memory.
 *
 * A free lasts no longer than the work that is on the device, and a wait that is put meanwhile is late by that. A
 * thread waits for admission for a second at most, and then goes on: admission prevents a circle that needs several
 * processes, and must not be the reason for one.
 *
 * Waits for points of the same device's own lanes do not wait for admission: the progress role puts them.
 *
 * Waits that a program puts on its streams by itself are unknown here.
 *
 * admission->lock is held for a few instructions, never over a call of the driver.
 */
#include "inside.h"

#include "shm/cancel.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#define PATIENCE_NS UINT64_C(1000000000)
#define STARVED_NS UINT64_C(1000000000) /* attempts have failed for so long: now and then one waits */
#define PACE_NS UINT64_C(2000000000)    /* between such attempts */
#define HOLD_NS UINT64_C(200000000)     /* how long one waits */
#define PAUSE_NS 200000
#define PER_THREAD 2                    /* CU_STREAM_PER_THREAD */

void bxi_gpu_admission_init(struct bxi_gpu_admission *admission)
{
    pthread_mutex_init(&admission->lock, NULL);
    bxi_gpu_cond_init(&admission->opened);
}

void bxi_gpu_admission_fini(struct bxi_gpu_admission *admission)
{
    pthread_cond_destroy(&admission->opened);
    pthread_mutex_destroy(&admission->lock);
}

/* As the stream compares: a poisoned word satisfies every wait. With EVENTS the stream waits for an event, which the
 * poison does not end. The word of a dead peer that could not be poisoned satisfies none. */
static bool is_satisfied(const struct bxi_gpu *gpu, const struct bxi_gpu_awaited *awaited)
{
    const struct bxi_gpu_region *region = awaited->peer != NULL ? awaited->peer->options.region : gpu->region;
    /* [gpu.word] relaxed: nothing is read that the word orders. */
    uint64_t word = bxi_load_relaxed(&region->word[awaited->lane].value);

    if (awaited->order != BXI_GPU_HOST_WORDS)
        word &= BXI_GPU_POISON - 1;
    return word >= awaited->value;
}

/* Under admission->lock: how many are left. */
static uint32_t drop_satisfied(struct bxi_gpu_lane *lane)
{
    struct bxi_gpu_awaits *awaits = &lane->awaits;
    uint32_t left = 0;

    for (uint32_t i = 0; i < awaits->count; i++)
        if (!is_satisfied(lane->gpu, &awaits->list[i]))
            awaits->list[left++] = awaits->list[i];
    awaits->count = left;
    return left;
}

/* Under admission->lock. A later point of the same lane of the same peer takes the place of an earlier one, so the list
 * has a bound. */
static int record(struct bxi_gpu_lane *lane, const struct bxi_gpu_awaited *awaited)
{
    struct bxi_gpu_awaits *awaits = &lane->awaits;

    for (uint32_t i = 0; i < awaits->count; i++) {
        struct bxi_gpu_awaited *earlier = &awaits->list[i];

        if (earlier->peer != awaited->peer || earlier->lane != awaited->lane || earlier->order != awaited->order)
            continue;
        if (earlier->value < awaited->value)
            earlier->value = awaited->value;
        return 0;
    }
    if (awaits->count == awaits->capacity && drop_satisfied(lane) == awaits->capacity) {
        uint32_t capacity = awaits->capacity == 0 ? 8 : awaits->capacity * 2;
        struct bxi_gpu_awaited *list = realloc(awaits->list, capacity * sizeof(*list));

        if (list == NULL)
            return bxi_gpu_fail(-ENOMEM, "no memory for the points that lane %u waits for", lane->index);
        awaits->list = list;
        awaits->capacity = capacity;
    }
    awaits->list[awaits->count++] = *awaited;
    return 0;
}

/* Under admission->lock. */
static void await_open(struct bxi_gpu_admission *admission)
{
    BXI_UNCANCELLED;
    struct timespec end = bxi_gpu_timespec(bxi_gpu_now_ns() + PATIENCE_NS);
    int late = 0;

    while (admission->is_closed && late == 0)
        late = pthread_cond_timedwait(&admission->opened, &admission->lock, &end);
}

/* Whether the point is of a lane of the same device here: that is quiet while admission is closed, so the point comes
 * without another process. Own rows change only while their lanes have no points. */
static bool comes_from_here(const struct bxi_gpu_lane *lane, const struct bxi_gpu_peer *peer,
                            const struct bxi_gpu_point *point)
{
    return peer == NULL && lane->gpu->region->lane[point->lane].device == lane->device->index;
}

int bxi_gpu_admission_enter(struct bxi_gpu_lane *lane, const struct bxi_gpu_peer *peer,
                            const struct bxi_gpu_point *point)
{
    struct bxi_gpu_admission *admission = &lane->device->admission;
    struct bxi_gpu_awaited awaited = { peer, point->order, point->lane, point->value };
    int rc;

    pthread_mutex_lock(&admission->lock);
    if (admission->is_closed && !comes_from_here(lane, peer, point))
        await_open(admission);
    rc = record(lane, &awaited);
    lane->awaits.putting += rc == 0;
    pthread_mutex_unlock(&admission->lock);
    return rc;
}

void bxi_gpu_admission_leave(struct bxi_gpu_lane *lane)
{
    pthread_mutex_lock(&lane->device->admission.lock);
    lane->awaits.putting--;
    pthread_mutex_unlock(&lane->device->admission.lock);
}

/* Whether the stream is idle, as far as the helper can ask: not a captured one, whose capture a query would invalidate,
 * and not a thread's own default stream, which has the same handle on each thread. */
static bool is_idle(const struct bxi_gpu_lane *lane)
{
    return (uintptr_t)lane->stream != PER_THREAD &&
        bxi_gpu_refuse_capture(lane->device, lane->stream, "freeing memory") == 0 &&
        lane->gpu->cu.cuStreamQuery(lane->stream) == CUDA_SUCCESS;
}

/* Under gpu->lock, admission is closed and the context current. */
static bool is_quiet(struct bxi_gpu_lane *lane)
{
    struct bxi_gpu_admission *admission = &lane->device->admission;
    bool is_putting;
    uint32_t left;

    pthread_mutex_lock(&admission->lock);
    is_putting = lane->awaits.putting > 0;
    left = drop_satisfied(lane);
    pthread_mutex_unlock(&admission->lock);
    if (is_putting || left == 0)
        return !is_putting;
    if (!is_idle(lane))
        return false;
    pthread_mutex_lock(&admission->lock);
    is_putting = lane->awaits.putting > 0 || lane->awaits.count != left;
    if (!is_putting)
        lane->awaits.count = 0;
    pthread_mutex_unlock(&admission->lock);
    return !is_putting;
}

/* Admission is closed. */
static bool are_quiet(struct bxi_gpu_device *device)
{
    struct bxi_gpu *gpu = device->gpu;
    bool are = bxi_gpu_enter(device) == 0;

    if (!are)
        return false;
    pthread_mutex_lock(&gpu->lock);
    for (int i = 0; are && i < BXI_GPU_LANES; i++)
        if (gpu->lane[i] != NULL && gpu->lane[i]->order != 0 && gpu->lane[i]->device == device)
            are = is_quiet(gpu->lane[i]);
    pthread_mutex_unlock(&gpu->lock);
    bxi_gpu_leave(device);
    return are;
}

/* How long this attempt keeps admission closed. Now and then one waits for the waits that are on the streams, while no
 * new ones are put: a worker whose streams wait all the time would never free anything. */
static uint64_t attempt_end(struct bxi_gpu_admission *admission)
{
    uint64_t now_ns = bxi_gpu_now_ns();

    if (admission->busy_ns == 0)
        admission->busy_ns = now_ns;
    if (now_ns - admission->busy_ns < STARVED_NS || now_ns - admission->held_ns < PACE_NS)
        return now_ns;
    admission->held_ns = now_ns;
    return now_ns + HOLD_NS;
}

bool bxi_gpu_admission_close(struct bxi_gpu_device *device)
{
    BXI_UNCANCELLED;
    struct bxi_gpu_admission *admission = &device->admission;
    struct timespec pause = { .tv_nsec = PAUSE_NS };
    uint64_t end_ns = attempt_end(admission);
    bool are;

    pthread_mutex_lock(&admission->lock);
    admission->is_closed = true;
    pthread_mutex_unlock(&admission->lock);
    while (!(are = are_quiet(device)) && bxi_gpu_now_ns() < end_ns)
        nanosleep(&pause, NULL);
    if (are)
        admission->busy_ns = 0;
    else
        bxi_gpu_admission_open(device);
    return are;
}

void bxi_gpu_admission_open(struct bxi_gpu_device *device)
{
    pthread_mutex_lock(&device->admission.lock);
    device->admission.is_closed = false;
    pthread_cond_broadcast(&device->admission.opened);
    pthread_mutex_unlock(&device->admission.lock);
}

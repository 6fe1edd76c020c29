/* SPDX-License-Identifier: MIT */
/*
 * Lanes and marks: a mark writes a number to its lane's word behind the work so far. README.md has both orders
 * side by side; probe.c chooses one; point.c is the side that waits.
 *
 * bxi_gpu_mark runs on the hot path, in the thread that uses the lane, without the lock, and does not wait. With words
 * the stream writes the number. Its default write fences all earlier work of its stream for the whole system: whoever
 * reads the number reads the data too. With EVENTS the driver calls `tell` on a thread of its own when the work is done
 * (cuLaunchHostFunc): the word moves whatever the threads of this process do, and no poll is needed.
 *
 * Killed before the word is written: it never comes, and peers poison it (bxi_gpu_peer_died).
 */
#include "inside.h"

#include <errno.h>
#include <stdlib.h>

/* ---- Lanes ----------------------------------------------------------------------------------- */

static void publish_lane(struct bxi_gpu_lane *lane)
{
    struct bxi_gpu_lane_row *row = &lane->gpu->region->lane[lane->index];

    row->device = lane->device->index;
    /* [gpu.lane] release, pairs with the acquire in is_open: the row is complete. */
    bxi_store_release(&row->order, (uint32_t)lane->order);
}

static void free_lane(struct bxi_gpu_lane *lane)
{
    if (lane->owns_stream && lane->stream != NULL)
        (void)lane->gpu->cu.cuStreamDestroy_v2(lane->stream);
    if (lane->event != NULL)
        (void)lane->gpu->cu.cuEventDestroy_v2(lane->event);
    free(lane->awaits.list);
    if (lane->order != BXI_GPU_EVENTS || lane->done == lane->value)     /* else tell may still be called */
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
    if (lane->device->order == BXI_GPU_EVENTS)
        result = gpu->cu.cuEventCreate(&lane->event, CU_EVENT_DISABLE_TIMING);
    return result == CUDA_SUCCESS ? 0 : bxi_gpu_cuda_fail(&gpu->cu, result, "an event");
}

static void fill_lane(struct bxi_gpu_lane *lane)
{
    pthread_mutex_lock(&lane->gpu->lock);
    lane->value = lane->done = lane->gpu->lane_value[lane->index];
    lane->word_address = lane->device->host_words + lane->index * sizeof(struct bxi_gpu_word);
    lane->order = lane->device->order;
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
    unsigned result;
    int rc = bxi_gpu_enter_lane(lane, "waiting for a lane");

    if (rc < 0)
        return rc;
    bxi_gpu_count(&gpu->figures.host_synchronises, 1);
    result = gpu->cu.cuStreamSynchronize(lane->stream);
    bxi_gpu_leave(lane->device);
    return result == CUDA_SUCCESS ? 0 : bxi_gpu_cuda_fail(&gpu->cu, result, "waiting for lane %u", lane->index);
}

/* Writes the lane's word from this host: with EVENTS, and when a lane closes. */
static void set_word(struct bxi_gpu_lane *lane, uint64_t value)
{
    lane->done = value;
    /* [gpu.word] release, pairs with the acquire in host_word: the work before it is done. */
    bxi_store_release(&lane->gpu->region->word[lane->index].value, value);
}

/* EVENTS, on a thread of the driver, behind the work before a mark. It must not call the driver, nor wait for a thread
 * that does: telling is held for a few instructions only. Marks may still be under way when a lane closes whose stream
 * could not be waited for: then nothing is told, and the lane's memory stays. */
static pthread_mutex_t telling = PTHREAD_MUTEX_INITIALIZER;

static void tell(void *context)
{
    struct bxi_gpu_lane *lane = context;

    pthread_mutex_lock(&telling);
    if (!lane->is_closed)
        set_word(lane, lane->done + 1);
    pthread_mutex_unlock(&telling);
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
    pthread_mutex_lock(&telling);
    lane->is_closed = true;
    pthread_mutex_unlock(&telling);
    end_word(lane, rc);
    /* [gpu.lane] release, pairs with the acquire in is_open: its points have passed, or never will. */
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
    int rc = bxi_gpu_enter_lane(lane, "closing a lane");

    if (rc < 0)
        return rc;
    if (!bxi_gpu_idle_by(lane->device, lane->stream, end_ns))
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

/* The event is for other streams of this process, the call for all hosts. */
static unsigned mark_event(struct bxi_gpu_lane *lane)
{
    const struct bxi_cuda *cu = &lane->gpu->cu;
    unsigned result = cu->cuEventRecord(lane->event, lane->stream);

    if (result == CUDA_SUCCESS)
        result = cu->cuLaunchHostFunc(lane->stream, tell, lane);
    if (result == CUDA_SUCCESS)
        lane->value++;
    return result;
}

static unsigned mark_word(struct bxi_gpu_lane *lane)
{
    const struct bxi_cuda *cu = &lane->gpu->cu;
    unsigned result = cu->cuStreamWriteValue64_v2(lane->stream, lane->word_address, lane->value + 1,
                                                  CU_STREAM_WRITE_VALUE_DEFAULT);

    if (result == CUDA_SUCCESS)
        lane->value++;
    return result;
}

int bxi_gpu_mark(struct bxi_gpu_lane *lane, struct bxi_gpu_point *point)
{
    unsigned result;
    int rc = bxi_gpu_enter_lane(lane, "a mark on a lane");

    if (rc < 0)
        return rc;
    result = lane->order == BXI_GPU_EVENTS ? mark_event(lane) : mark_word(lane);
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

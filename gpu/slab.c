/* SPDX-License-Identifier: MIT */
/*
 * Slabs: device memory that is allocated in one piece and exported once, so that a borrower opens one handle and then
 * reads any block in it. The thread that allocates a block makes slabs, under the lock; the helper frees them.
 *
 * A handle stands for a whole allocation, and opening one takes milliseconds; hence slabs of 64 MiB and more, and not a
 * handle for each block. Each further slab has at least a sixteenth of the bytes so far, so that 256 rows suffice for
 * any device.
 *
 * Freeing memory that another process has open is undefined. So a slab goes through RETIRING, where the pair of
 * README's G2 holds: store RETIRING, fence, load what every peer holds.
 *
 * Killed before a row's stamp is LIVE: no process has seen it. Killed at any later step: the stamp stays, borrowers
 * find out that the owner is dead and close; the driver frees the memory with the last of them.
 */
#include "inside.h"

#include "shm/cancel.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LARGEST_BYTES ((uint64_t)1 << 30)       /* of a slab that no large block asked for */
#define PAUSE_NS 200000
#define PATIENCE_PAUSES 10000                   /* for peers to close at the end: two seconds */

static uint64_t stamp_of(const struct bxi_gpu_slab *slab)
{
    return slab->generation << 2 | (uint64_t)slab->state;
}

static struct bxi_gpu_slab_row *row_of(const struct bxi_gpu_slab *slab)
{
    const struct bxi_gpu *gpu = slab->device->gpu;

    return &gpu->region->slab[slab - gpu->slab];
}

/* ---- Making ---------------------------------------------------------------------------------- */

struct bxi_gpu_slab *bxi_gpu_slab_vacant(struct bxi_gpu *gpu)
{
    for (int i = 0; i < BXI_GPU_SLABS; i++)
        if (gpu->slab[i].state == BXI_GPU_SLAB_EMPTY)
            return &gpu->slab[i];
    (void)bxi_gpu_fail(-ENOSPC, "%d slabs are in use, the most that a worker can have; make them larger "
                       "(slab_bytes), or free some blocks", BXI_GPU_SLABS);
    return NULL;
}

static int export_failed(const struct bxi_gpu_device *device, unsigned result)
{
    const struct bxi_gpu_info *info = &device->gpu->info[device->ordinal];

    if (info->is_mig)
        return bxi_gpu_fail(-EOPNOTSUPP, "device %d (%s) is a MIG instance, whose memory CUDA does not let other "
                            "processes open: use the whole GPU (\"nvidia-smi -mig 0\")", device->ordinal, info->name);
    (void)bxi_gpu_cuda_fail(&device->gpu->cu, result, "device %d (%s) lets no other process open its memory "
                            "(cuIpcGetMemHandle)", device->ordinal, info->name);
    return -EOPNOTSUPP;
}

int bxi_gpu_slab_publish(struct bxi_gpu_slab *slab)
{
    struct bxi_gpu *gpu = slab->device->gpu;
    struct bxi_gpu_slab_row *row = row_of(slab);
    struct CUipcMemHandle_st handle;
    unsigned result = gpu->cu.cuIpcGetMemHandle(&handle, slab->address);

    if (result != CUDA_SUCCESS)
        return export_failed(slab->device, result);
    row->bytes = slab->bytes;
    memcpy(row->handle, handle.reserved, sizeof(row->handle));
    memcpy(row->uuid, gpu->info[slab->device->ordinal].uuid, sizeof(row->uuid));
    slab->generation++;
    slab->state = BXI_GPU_SLAB_LIVE;
    /* [gpu.stamp] release, pairs with the acquire in hold_slab: the row is complete. */
    bxi_store_release(&row->stamp, stamp_of(slab));
    bxi_gpu_count(&gpu->figures.slabs, 1);
    bxi_gpu_count(&gpu->figures.slab_bytes, (int64_t)slab->bytes);
    return 0;
}

static uint64_t slab_bytes_for(struct bxi_gpu *gpu, uint64_t bytes)
{
    uint64_t grown = bxi_gpu_figure(&gpu->figures.slab_bytes) / 16;
    uint64_t wanted = gpu->slab_bytes;

    if (grown > LARGEST_BYTES)
        grown = LARGEST_BYTES;
    if (wanted < grown)
        wanted = grown;
    if (wanted < bytes)
        wanted = bytes;
    return (wanted + BXI_GPU_ROUND - 1) / BXI_GPU_ROUND * BXI_GPU_ROUND;
}

/* Allocates slab_bytes_for(bytes), or if the device has no room for that just enough for bytes. */
static int allocate(struct bxi_gpu_device *device, struct bxi_gpu_slab *slab, uint64_t bytes)
{
    const struct bxi_cuda *cu = &device->gpu->cu;
    uint64_t least = (bytes + BXI_GPU_ROUND - 1) / BXI_GPU_ROUND * BXI_GPU_ROUND;
    unsigned long long address = 0;
    unsigned result;

    slab->bytes = slab_bytes_for(device->gpu, bytes);
    result = cu->cuMemAlloc_v2(&address, slab->bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && slab->bytes > least) {
        slab->bytes = least;
        result = cu->cuMemAlloc_v2(&address, slab->bytes);
    }
    if (result != CUDA_SUCCESS)
        return bxi_gpu_cuda_fail(cu, result, "a slab of %llu bytes on device %d",
                                 (unsigned long long)slab->bytes, device->ordinal);
    slab->address = address;
    return 0;
}

int bxi_gpu_slab_make(struct bxi_gpu_device *device, uint64_t bytes)
{
    struct bxi_gpu *gpu = device->gpu;
    struct bxi_gpu_slab *slab = bxi_gpu_slab_vacant(gpu);
    int rc;

    if (slab == NULL)
        return -ENOSPC;
    rc = allocate(device, slab, bytes);
    if (rc < 0)
        return rc;
    slab->device = device;
    slab->is_foreign = false;
    slab->used = 0;
    slab->whole = bxi_gpu_heap_add(&device->heap, (uint32_t)(slab - gpu->slab), slab->bytes);
    rc = slab->whole == NULL ? bxi_gpu_fail(-ENOMEM, "no memory for a slab's books") : 0;
    if (rc < 0)
        goto free_memory;
    rc = bxi_gpu_slab_publish(slab);
    if (rc < 0)
        goto remove_chunk;
    return 0;

remove_chunk:
    bxi_gpu_heap_remove(&device->heap, slab->whole);
free_memory:
    slab->whole = NULL;
    (void)gpu->cu.cuMemFree_v2(slab->address);
    return rc;
}

/* ---- Retiring -------------------------------------------------------------------------------- */

static void retire(struct bxi_gpu_slab *slab)
{
    if (slab->whole != NULL)
        bxi_gpu_heap_remove(&slab->device->heap, slab->whole);
    slab->whole = NULL;
    slab->state = BXI_GPU_SLAB_RETIRING;
    /* [gpu.stamp] relaxed: the fence in is_held orders it. */
    bxi_store_relaxed(&row_of(slab)->stamp, stamp_of(slab));
}

/* The owner's half of the pair (G2). */
static bool is_held(const struct bxi_gpu_slab *slab)
{
    const struct bxi_gpu *gpu = slab->device->gpu;

    bxi_fence_seq_cst();
    return gpu->is_held != NULL && gpu->is_held(gpu->context, (uint32_t)(slab - gpu->slab), slab->generation);
}

/* Under the lock: the row may be used again. */
static void vacate(struct bxi_gpu_slab *slab)
{
    struct bxi_gpu *gpu = slab->device->gpu;

    slab->state = BXI_GPU_SLAB_EMPTY;
    slab->is_freeing = false;
    /* [gpu.stamp] relaxed: readers use the row only after a later release of LIVE. */
    bxi_store_relaxed(&row_of(slab)->stamp, stamp_of(slab));
    bxi_gpu_count(&gpu->figures.slabs, -1);
    bxi_gpu_count(&gpu->figures.slab_bytes, -(int64_t)slab->bytes);
    bxi_gpu_count(&gpu->figures.slabs_retired, 1);
}

static void call_freed(struct bxi_gpu_last *last)
{
    while (last != NULL) {
        struct bxi_gpu_last *next = last->next;

        last->freed(last->context);
        free(last);
        last = next;
    }
}

/* On the helper; at the end on the closing thread. */
static void free_slab(struct bxi_gpu_job *job)
{
    struct bxi_gpu_slab *slab = (struct bxi_gpu_slab *)(void *)job;
    struct bxi_gpu *gpu = slab->device->gpu;
    struct bxi_gpu_last *last = slab->last;

    if (!slab->is_foreign && bxi_gpu_enter(slab->device) == 0) {
        (void)gpu->cu.cuMemFree_v2(slab->address);
        bxi_gpu_leave(slab->device);
    }
    pthread_mutex_lock(&gpu->lock);
    slab->last = NULL;
    vacate(slab);
    pthread_mutex_unlock(&gpu->lock);
    call_freed(last);
}

int bxi_gpu_slabs_poll(struct bxi_gpu *gpu)
{
    int left = 0;

    for (int i = 0; i < BXI_GPU_SLABS; i++) {
        struct bxi_gpu_slab *slab = &gpu->slab[i];

        if (slab->state != BXI_GPU_SLAB_RETIRING)
            continue;
        left++;
        if (slab->is_freeing || is_held(slab))
            continue;
        slab->is_freeing = true;
        slab->job.run = free_slab;
        bxi_gpu_helper_post(&gpu->helper, &slab->job);
    }
    return left;
}

int bxi_gpu_slabs_retire_empty(struct bxi_gpu_device *device)
{
    struct bxi_gpu *gpu = device->gpu;
    int retired = 0;

    for (int i = 0; i < BXI_GPU_SLABS; i++) {
        struct bxi_gpu_slab *slab = &gpu->slab[i];

        if (slab->device != device || slab->state != BXI_GPU_SLAB_LIVE || slab->whole == NULL)
            continue;
        retire(slab);
        retired++;
    }
    return retired;
}

bool bxi_gpu_slabs_are_retiring(const struct bxi_gpu *gpu, const struct bxi_gpu_device *device)
{
    for (int i = 0; i < BXI_GPU_SLABS; i++) {
        const struct bxi_gpu_slab *slab = &gpu->slab[i];

        if (slab->state == BXI_GPU_SLAB_RETIRING &&
            (device == NULL || (slab->device == device && !slab->is_foreign)))
            return true;
    }
    return false;
}

/* One empty slab of a device is kept as a spare; further ones are retired. */
static bool has_spare(const struct bxi_gpu_slab *but)
{
    const struct bxi_gpu *gpu = but->device->gpu;

    for (int i = 0; i < BXI_GPU_SLABS; i++) {
        const struct bxi_gpu_slab *slab = &gpu->slab[i];

        if (slab != but && slab->whole != NULL && slab->device == but->device)
            return true;
    }
    return false;
}

void bxi_gpu_slab_drop(struct bxi_gpu_slab *slab)
{
    slab->used--;
    if (slab->used == 0 && (slab->is_foreign || has_spare(slab)))
        retire(slab);
}

/* ---- The end --------------------------------------------------------------------------------- */

/* Retires all slabs; how many of them peers have open. */
static int held_count(struct bxi_gpu *gpu)
{
    int held = 0;

    pthread_mutex_lock(&gpu->lock);
    for (int i = 0; i < BXI_GPU_SLABS; i++) {
        struct bxi_gpu_slab *slab = &gpu->slab[i];

        if (slab->state == BXI_GPU_SLAB_LIVE)
            retire(slab);
        held += slab->state != BXI_GPU_SLAB_EMPTY && is_held(slab);
    }
    pthread_mutex_unlock(&gpu->lock);
    return held;
}

void bxi_gpu_slabs_wait(struct bxi_gpu *gpu)
{
    BXI_UNCANCELLED;
    struct timespec pause = { .tv_nsec = PAUSE_NS };

    for (int i = 0; i < PATIENCE_PAUSES && held_count(gpu) > 0; i++)
        nanosleep(&pause, NULL);
}

static void forget(struct bxi_gpu_slab *slab)
{
    while (slab->last != NULL) {
        struct bxi_gpu_last *last = slab->last;

        slab->last = last->next;
        free(last);
    }
}

int bxi_gpu_device_slabs_free(struct bxi_gpu_device *device)
{
    struct bxi_gpu *gpu = device->gpu;
    int held = 0;

    for (int i = 0; i < BXI_GPU_SLABS; i++) {
        struct bxi_gpu_slab *slab = &gpu->slab[i];
        bool stays;

        pthread_mutex_lock(&gpu->lock);
        if (slab->device != device || slab->state == BXI_GPU_SLAB_EMPTY) {
            pthread_mutex_unlock(&gpu->lock);
            continue;
        }
        if (slab->state == BXI_GPU_SLAB_LIVE)
            retire(slab);
        stays = is_held(slab);
        slab->is_freeing = !stays;
        pthread_mutex_unlock(&gpu->lock);
        held += stays;
        if (stays)
            forget(slab);               /* it is never freed: no callbacks */
        else
            free_slab(&slab->job);
    }
    return held;
}

/* SPDX-License-Identifier: MIT */
/*
 * Slabs: device memory that is allocated in one piece and exported once, so that a borrower opens one handle and then
 * reads any block in it. The thread that allocates a block makes slabs; the helper frees them. Both call the driver
 * without the lock, because it may wait for the device. One thread at a time makes a slab of a device: the others
 * would make slabs too, and find that one was enough.
 *
 * A handle stands for a whole allocation, and opening one takes milliseconds; hence slabs of 64 MiB and more, and not a
 * handle for each block. Each further slab has at least a sixteenth of the bytes so far, so that 256 rows suffice for
 * any device.
 *
 * Freeing memory that another process has open is undefined. So a slab goes through RETIRING, where the pair of
 * README's G2 holds: store RETIRING, fence, load what every peer holds.
 *
 * That is for memory whose handle was exported. Where the device exports descriptors (vmm.c) the memory lives as long
 * as a process has it mapped, so at the end such slabs are freed here without a wait. While the process goes on they
 * are retired like the others: their memory is free only then, and their rows. Foreign memory is waited for at the end
 * too: after freed(context) the program uses it again, whoever reads it.
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
        if (gpu->slab[i].state == BXI_GPU_SLAB_EMPTY && !gpu->slab[i].is_making)
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

int bxi_gpu_slab_export(const struct bxi_gpu_device *device, uint64_t address, struct CUipcMemHandle_st *handle)
{
    unsigned result = device->gpu->cu.cuIpcGetMemHandle(handle, address);

    return result == CUDA_SUCCESS ? 0 : export_failed(device, result);
}

void bxi_gpu_slab_publish(struct bxi_gpu_slab *slab, const struct CUipcMemHandle_st *handle)
{
    struct bxi_gpu *gpu = slab->device->gpu;
    struct bxi_gpu_slab_row *row = row_of(slab);

    row->bytes = slab->bytes;
    row->flags = slab->parts != NULL ? BXI_GPU_SLAB_FD : 0;
    memcpy(row->handle, handle->reserved, sizeof(row->handle));
    memcpy(row->uuid, gpu->info[slab->device->ordinal].uuid, sizeof(row->uuid));
    slab->generation++;
    slab->state = BXI_GPU_SLAB_LIVE;
    /* [gpu.stamp] release, pairs with the acquire in hold_slab: the row is complete. */
    bxi_store_release(&row->stamp, stamp_of(slab));
    bxi_gpu_count(&gpu->figures.slabs, 1);
    bxi_gpu_count(&gpu->figures.slab_bytes, (int64_t)slab->bytes);
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

struct piece {                          /* of device memory, for a slab */
    uint64_t address;
    uint64_t bytes;
    struct bxi_gpu_parts *parts;        /* NULL: it has a handle */
    struct CUipcMemHandle_st handle;
};

/* Without the lock, the context current. */
static unsigned allocate_piece(const struct bxi_gpu_device *device, struct piece *piece)
{
    unsigned long long address = 0;
    unsigned result;

    if (piece->parts != NULL)
        return bxi_gpu_vmm_make(device, piece->bytes, piece->parts, &piece->address);
    result = device->gpu->cu.cuMemAlloc_v2(&address, piece->bytes);
    piece->address = address;
    return result;
}

/* Likewise. Closes the descriptors too. */
static void free_piece(const struct bxi_gpu_device *device, uint64_t address, struct bxi_gpu_parts *parts)
{
    if (parts != NULL)
        bxi_gpu_vmm_unmap(device, address, parts);
    else
        (void)device->gpu->cu.cuMemFree_v2(address);
    bxi_gpu_parts_free(device->gpu, parts);
}

/* Without the lock, the context current. Allocates piece->bytes, or if the device has no room for that just enough for
 * bytes, and exports it. */
static int allocate(struct bxi_gpu_device *device, struct piece *piece, uint64_t bytes)
{
    const struct bxi_cuda *cu = &device->gpu->cu;
    uint64_t least = (bytes + BXI_GPU_ROUND - 1) / BXI_GPU_ROUND * BXI_GPU_ROUND;
    unsigned result;
    int rc;

    piece->parts = device->exports_fds ? bxi_gpu_parts_new() : NULL;
    if (device->exports_fds && piece->parts == NULL)
        return -ENOMEM;
    result = allocate_piece(device, piece);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && piece->bytes > least) {
        piece->bytes = least;
        result = allocate_piece(device, piece);
    }
    if (result != CUDA_SUCCESS) {
        bxi_gpu_parts_free(device->gpu, piece->parts);
        return bxi_gpu_cuda_fail(cu, result, "a slab of %llu bytes on device %d",
                                 (unsigned long long)piece->bytes, device->ordinal);
    }
    rc = piece->parts != NULL ? 0 : bxi_gpu_slab_export(device, piece->address, &piece->handle);
    if (rc < 0)
        free_piece(device, piece->address, NULL);
    return rc;
}

/* Under the lock: the piece becomes a slab. -ENOMEM: there is no memory for its books. */
static int add_slab(struct bxi_gpu_device *device, struct bxi_gpu_slab *slab, const struct piece *piece)
{
    struct bxi_gpu_chunk *whole = bxi_gpu_heap_add(&device->heap, (uint32_t)(slab - device->gpu->slab), piece->bytes);

    if (whole == NULL)
        return bxi_gpu_fail(-ENOMEM, "no memory for a slab's books");
    slab->device = device;
    slab->address = piece->address;
    slab->bytes = piece->bytes;
    slab->parts = piece->parts;
    slab->is_foreign = false;
    slab->used = 0;
    slab->whole = whole;
    bxi_gpu_slab_publish(slab, &piece->handle);
    return 0;
}

int bxi_gpu_slab_make(struct bxi_gpu_device *device, uint64_t bytes)
{
    struct bxi_gpu *gpu = device->gpu;
    struct bxi_gpu_slab *slab = bxi_gpu_slab_vacant(gpu);
    struct piece piece = { .bytes = slab_bytes_for(gpu, bytes) };
    int rc;

    if (slab == NULL)
        return -ENOSPC;
    slab->is_making = true;
    device->is_growing = true;
    pthread_mutex_unlock(&gpu->lock);
    rc = bxi_gpu_enter(device);
    if (rc == 0) {
        rc = allocate(device, &piece, bytes);
        bxi_gpu_leave(device);
    }
    pthread_mutex_lock(&gpu->lock);
    slab->is_making = false;
    device->is_growing = false;
    pthread_cond_broadcast(&gpu->grown);
    if (rc < 0)
        return rc;
    rc = add_slab(device, slab, &piece);
    if (rc == 0)
        return 0;
    pthread_mutex_unlock(&gpu->lock);
    if (bxi_gpu_enter(device) == 0) {
        free_piece(device, piece.address, piece.parts);
        bxi_gpu_leave(device);
    }
    pthread_mutex_lock(&gpu->lock);
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

    if (gpu->is_left)                   /* the one who could tell has gone */
        return true;
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

/* With admission closed; at the end, when no lane is left, without it. */
static void free_slab(struct bxi_gpu_slab *slab)
{
    struct bxi_gpu *gpu = slab->device->gpu;
    struct bxi_gpu_last *last = slab->last;
    struct bxi_gpu_parts *parts;
    bool calls;

    pthread_mutex_lock(&gpu->lock);
    parts = slab->parts;
    slab->parts = NULL;                 /* the descriptor server sends none of them any more */
    pthread_mutex_unlock(&gpu->lock);
    if (bxi_gpu_enter(slab->device) == 0) {
        if (slab->is_foreign)
            bxi_gpu_parts_free(gpu, parts);
        else
            free_piece(slab->device, slab->address, parts);
        bxi_gpu_leave(slab->device);
    }
    pthread_mutex_lock(&gpu->lock);
    slab->last = NULL;
    vacate(slab);
    calls = last != NULL && bxi_gpu_call_begin(gpu);
    pthread_mutex_unlock(&gpu->lock);
    if (!calls)
        return;
    call_freed(last);
    bxi_gpu_call_end(gpu);
}

/* On the helper. If a lane waits for another process a later poll tries again. */
static void try_free(struct bxi_gpu_job *job)
{
    struct bxi_gpu_slab *slab = (struct bxi_gpu_slab *)(void *)job;
    struct bxi_gpu_device *device = slab->device;

    if (slab->is_foreign) {             /* its owner frees it */
        free_slab(slab);
    } else if (bxi_gpu_admission_close(device)) {
        free_slab(slab);
        bxi_gpu_admission_open(device);
    } else {
        pthread_mutex_lock(&device->gpu->lock);
        slab->is_freeing = false;
        pthread_mutex_unlock(&device->gpu->lock);
    }
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
        slab->job.run = try_free;
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

/* At the end: whether to free it would harm a peer that has it open. */
static bool harms(const struct bxi_gpu_slab *slab)
{
    return (slab->parts == NULL || slab->is_foreign) && is_held(slab);
}

/* Retires all slabs; how many of them must stay, because peers have them open. */
static int held_count(struct bxi_gpu *gpu)
{
    int held = 0;

    pthread_mutex_lock(&gpu->lock);
    for (int i = 0; i < BXI_GPU_SLABS; i++) {
        struct bxi_gpu_slab *slab = &gpu->slab[i];

        if (slab->state == BXI_GPU_SLAB_LIVE)
            retire(slab);
        held += slab->state != BXI_GPU_SLAB_EMPTY && harms(slab);
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
        stays = harms(slab);
        slab->is_freeing = !stays;
        pthread_mutex_unlock(&gpu->lock);
        held += stays;
        if (stays)
            forget(slab);               /* it is never freed: no callbacks */
        else
            free_slab(slab);
    }
    return held;
}

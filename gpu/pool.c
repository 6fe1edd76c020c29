/* SPDX-License-Identifier: MIT */
/*
 * The pool: blocks of a device's slabs, the poll that brings memory back, and the wait for memory that is coming back.
 * The caller's thread.
 *
 * An allocation takes a free chunk; else it polls freed blocks for passed points; else it makes a slab. Where the
 * device has no memory left or the region no row, slabs that are retiring will give some back: the caller's thread
 * polls until then, for a second and a little at most. It polls everything, so that two processes that both wait for
 * room close each other's slabs.
 */
#include "inside.h"

#include "shm/cancel.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#define ROOM_PAUSE_NS 200000

int bxi_gpu_poll(struct bxi_gpu *gpu)
{
    int left;

    if (bxi_gpu_forked())
        return -EPERM;
    pthread_mutex_lock(&gpu->lock);
    left = bxi_gpu_blocks_poll(gpu);
    for (struct bxi_gpu_peer *peer = gpu->peers; peer != NULL; peer = peer->next) {
        bxi_gpu_reach_poll(peer);
        left += bxi_gpu_maps_poll(peer);
    }
    left += bxi_gpu_slabs_poll(gpu);
    pthread_mutex_unlock(&gpu->lock);
    return left;
}

int bxi_gpu_trim(struct bxi_gpu_device *device)
{
    struct bxi_gpu *gpu = device->gpu;
    int retired;

    if (bxi_gpu_forked())
        return -EPERM;
    pthread_mutex_lock(&gpu->lock);
    (void)bxi_gpu_blocks_poll(gpu);
    retired = bxi_gpu_slabs_retire_empty(device);
    (void)bxi_gpu_slabs_poll(gpu);
    pthread_mutex_unlock(&gpu->lock);
    return retired;
}

/* ---- Where there is no room ------------------------------------------------------------------ */

bool bxi_gpu_room_comes(struct bxi_gpu *gpu, struct bxi_gpu_device *device, int rc)
{
    if (rc != -ENOMEM && rc != -ENOSPC)
        return false;
    if (device != NULL)
        (void)bxi_gpu_slabs_retire_empty(device);
    if (rc == -ENOSPC)
        return bxi_gpu_slabs_are_retiring(gpu, NULL);
    return device != NULL && bxi_gpu_slabs_are_retiring(gpu, device);
}

void bxi_gpu_room_wait(struct bxi_gpu *gpu)
{
    BXI_UNCANCELLED;
    struct timespec pause = { .tv_nsec = ROOM_PAUSE_NS };

    (void)bxi_gpu_poll(gpu);
    nanosleep(&pause, NULL);
}

/* ---- Handing out ----------------------------------------------------------------------------- */

static int no_room(struct bxi_gpu_device *device, uint64_t bytes, int rc)
{
    const struct bxi_gpu_figures *figures = &device->gpu->figures;

    if (rc != -ENOMEM)
        return rc;
    return bxi_gpu_fail(rc, "device %d has no room for %llu bytes: %llu are in slabs here, %llu of them in blocks, and "
                        "%llu freed blocks wait for their last readers; free some, or wait for those",
                        device->ordinal, (unsigned long long)bytes,
                        (unsigned long long)bxi_gpu_figure(&figures->slab_bytes),
                        (unsigned long long)bxi_gpu_figure(&figures->block_bytes),
                        (unsigned long long)bxi_gpu_figure(&figures->blocks_waiting));
}

/* A chunk that is free now, or after freed blocks have been polled; else NULL. */
static struct bxi_gpu_chunk *free_chunk(struct bxi_gpu_device *device, uint64_t bytes)
{
    struct bxi_gpu_chunk *chunk = bxi_gpu_heap_take(&device->heap, bytes);

    if (chunk == NULL && bxi_gpu_figure(&device->gpu->figures.blocks_waiting) != 0) {
        (void)bxi_gpu_blocks_poll(device->gpu);
        chunk = bxi_gpu_heap_take(&device->heap, bytes);
    }
    return chunk;
}

/* Under the lock, which is released while the driver makes a slab, and while another thread waits for that. */
static int take_chunk(struct bxi_gpu_device *device, uint64_t bytes, struct bxi_gpu_chunk **out)
{
    struct bxi_gpu_chunk *chunk = free_chunk(device, bytes);
    int rc;

    while (chunk == NULL && device->is_growing) {
        BXI_UNCANCELLED;

        pthread_cond_wait(&device->gpu->grown, &device->gpu->lock);
        chunk = free_chunk(device, bytes);
    }
    if (chunk == NULL) {
        rc = bxi_gpu_slab_make(device, bytes);
        if (rc < 0)
            return no_room(device, bytes, rc);
        chunk = bxi_gpu_heap_take(&device->heap, bytes);
    }
    device->gpu->slab[chunk->slab].whole = NULL;
    *out = chunk;
    return 0;
}

/* Under the lock, which it may release meanwhile. */
static int take_block(struct bxi_gpu_device *device, uint64_t bytes, struct bxi_gpu_block **out)
{
    struct bxi_gpu *gpu = device->gpu;
    struct bxi_gpu_block_inside *made;
    struct bxi_gpu_chunk *chunk = NULL;
    uint64_t rounded = (bytes + BXI_GPU_ALIGN - 1) / BXI_GPU_ALIGN * BXI_GPU_ALIGN;
    int rc;

    if (bytes > UINT64_MAX / 4)
        return bxi_gpu_fail(-ENOMEM, "no device has %llu bytes", (unsigned long long)bytes);
    made = calloc(1, sizeof(*made));
    if (made == NULL)
        return bxi_gpu_fail(-ENOMEM, "no memory for a block's books");
    rc = take_chunk(device, rounded == 0 ? BXI_GPU_ALIGN : rounded, &chunk);
    if (rc < 0) {
        free(made);
        return rc;
    }

    struct bxi_gpu_slab *slab = &gpu->slab[chunk->slab];

    slab->used++;
    made->chunk = chunk;
    made->block = (struct bxi_gpu_block){
        .device = device,
        .address = slab->address + chunk->offset,
        .bytes = bytes,
        .slab = chunk->slab,
        .generation = slab->generation,
        .offset = chunk->offset,
    };
    bxi_gpu_block_add(gpu, made, chunk->bytes);
    *out = &made->block;
    return 0;
}

int bxi_gpu_alloc(struct bxi_gpu_device *device, uint64_t bytes, struct bxi_gpu_block **block)
{
    struct bxi_gpu *gpu = device->gpu;
    uint64_t freed;
    bool comes;
    int rc;

    if (bxi_gpu_forked())
        return -EPERM;
    for (int pauses = 0;; pauses++) {
        pthread_mutex_lock(&gpu->lock);
        freed = bxi_gpu_figure(&gpu->figures.slabs_retired);
        rc = take_block(device, bytes, block);
        comes = bytes <= gpu->info[device->ordinal].bytes &&
                (bxi_gpu_room_comes(gpu, device, rc) ||     /* or a slab was freed since the driver refused */
                 (rc == -ENOMEM && freed != bxi_gpu_figure(&gpu->figures.slabs_retired)));
        pthread_mutex_unlock(&gpu->lock);
        if (!comes || pauses == BXI_GPU_ROOM_PAUSES)
            return rc;
        bxi_gpu_room_wait(gpu);
    }
}

/* SPDX-License-Identifier: MIT */
/*
 * Blocks: handing them out, the points that must have passed before one is used again, and memory that others
 * made. Any thread; books under the lock.
 *
 * A block that was freed waits in a list until its points have passed. Nobody waits for it: the list is gone
 * through when memory is wanted and nothing free is large enough, by bxi_gpu_poll, and by bxi_gpu_trim. So the order
 * in which memory comes back costs the owner a look at words in host memory, and no call of the driver (HOST_WORDS).
 *
 * Every block is in one of two lists, of those that are handed out and of those that wait, so that the books of all
 * can be given back at the end. Nothing here is shared: a process that is killed takes its books with it.
 */
#include "inside.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct bxi_gpu_block_inside *inside(struct bxi_gpu_block *block)
{
    return (struct bxi_gpu_block_inside *)(void *)block;
}

/* Under the lock. */
static void add_to(struct bxi_gpu_block_inside **list, struct bxi_gpu_block_inside *block)
{
    block->prev = NULL;
    block->next = *list;
    if (*list != NULL)
        (*list)->prev = block;
    *list = block;
}

static void take_from(struct bxi_gpu_block_inside **list, struct bxi_gpu_block_inside *block)
{
    if (block->prev != NULL)
        block->prev->next = block->next;
    else
        *list = block->next;
    if (block->next != NULL)
        block->next->prev = block->prev;
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

/* Under the lock. */
static int take_chunk(struct bxi_gpu_device *device, uint64_t bytes, struct bxi_gpu_chunk **out)
{
    struct bxi_gpu_chunk *chunk = bxi_gpu_heap_take(&device->heap, bytes);
    int rc;

    if (chunk == NULL && bxi_gpu_figure(&device->gpu->figures.blocks_waiting) != 0) {
        (void)bxi_gpu_blocks_poll(device->gpu);
        chunk = bxi_gpu_heap_take(&device->heap, bytes);
    }
    if (chunk == NULL) {
        rc = bxi_gpu_enter(device);
        if (rc == 0) {
            rc = bxi_gpu_slab_make(device, bytes);
            bxi_gpu_leave(device);
        }
        if (rc < 0)
            return no_room(device, bytes, rc);
        chunk = bxi_gpu_heap_take(&device->heap, bytes);
    }
    device->gpu->slab[chunk->slab].whole = NULL;
    *out = chunk;
    return 0;
}

/* Under the lock. */
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
    add_to(&gpu->blocks, made);
    bxi_gpu_count(&gpu->figures.block_bytes, (int64_t)chunk->bytes);
    *out = &made->block;
    return 0;
}

int bxi_gpu_alloc(struct bxi_gpu_device *device, uint64_t bytes, struct bxi_gpu_block **block)
{
    struct bxi_gpu *gpu = device->gpu;
    bool comes;
    int rc;

    if (bxi_gpu_forked())
        return -EPERM;
    for (int pauses = 0;; pauses++) {
        pthread_mutex_lock(&gpu->lock);
        rc = take_block(device, bytes, block);
        comes = bytes <= gpu->info[device->ordinal].bytes && bxi_gpu_room_comes(gpu, device, rc);
        pthread_mutex_unlock(&gpu->lock);
        if (!comes || pauses == BXI_GPU_ROOM_PAUSES)
            return rc;
        bxi_gpu_room_wait(gpu);
    }
}

int bxi_gpu_ref(const struct bxi_gpu_block *block, uint64_t offset, uint64_t bytes, struct bxi_gpu_ref *ref)
{
    if (offset > block->bytes || bytes > block->bytes - offset)
        return bxi_gpu_fail(-EINVAL, "%llu bytes from %llu on leave a block of %llu", (unsigned long long)bytes,
                            (unsigned long long)offset, (unsigned long long)block->bytes);
    *ref = (struct bxi_gpu_ref){
        .slab = block->slab,
        .generation = block->generation,
        .offset = block->offset + offset,
        .bytes = bytes,
    };
    return 0;
}

/* ---- Taking back ----------------------------------------------------------------------------- */

int bxi_gpu_block_until(struct bxi_gpu_block *block, struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point)
{
    struct bxi_gpu *gpu = block->device->gpu;
    struct bxi_gpu_block_inside *of = inside(block);
    int rc;

    if (bxi_gpu_forked())
        return -EPERM;
    pthread_mutex_lock(&gpu->lock);
    rc = bxi_gpu_point_passed(gpu, peer, point);
    if (rc == 0 && of->until_count == of->until_capacity) {
        uint32_t capacity = of->until_capacity == 0 ? 4 : of->until_capacity * 2;
        struct bxi_gpu_until *until = realloc(of->until, capacity * sizeof(*until));

        if (until == NULL) {
            rc = bxi_gpu_fail(-ENOMEM, "no memory for a block's points");
            goto unlock;
        }
        of->until = until;
        of->until_capacity = capacity;
    }
    if (rc == 0)
        of->until[of->until_count++] = (struct bxi_gpu_until){
            .peer = peer,
            .point = *point,
        };

unlock:
    pthread_mutex_unlock(&gpu->lock);
    return rc < 0 ? rc : 0;
}

/* Under the lock: forgets points that have passed; whether none is left. A point that cannot be one any more, for
 * its peer has begun to write nonsense, holds the block until the peer is cut off. */
static bool has_passed(struct bxi_gpu *gpu, struct bxi_gpu_block_inside *block)
{
    while (block->until_count > 0) {
        const struct bxi_gpu_until *until = &block->until[block->until_count - 1];

        if (until->peer != NULL && bxi_gpu_peer_is_dead(until->peer))
            bxi_gpu_count(&gpu->figures.points_dropped, 1);
        else if (bxi_gpu_point_passed(gpu, until->peer, &until->point) != 1)
            return false;
        block->until_count--;
    }
    return true;
}

/* Under the lock; it is in neither list. */
static void reuse(struct bxi_gpu *gpu, struct bxi_gpu_block_inside *block)
{
    struct bxi_gpu_slab *slab = &gpu->slab[block->block.slab];

    if (block->chunk != NULL) {
        bxi_gpu_count(&gpu->figures.block_bytes, -(int64_t)block->chunk->bytes);

        struct bxi_gpu_chunk *chunk = bxi_gpu_heap_give(&slab->device->heap, block->chunk);

        if (chunk->prev == NULL && chunk->next == NULL)
            slab->whole = chunk;
    } else {
        bxi_gpu_count(&gpu->figures.block_bytes, -(int64_t)block->block.bytes);
    }
    bxi_gpu_slab_drop(slab);
    free(block->until);
    free(block);
}

int bxi_gpu_blocks_poll(struct bxi_gpu *gpu)
{
    struct bxi_gpu_block_inside *next;
    int left = 0;

    for (struct bxi_gpu_block_inside *block = gpu->waiting; block != NULL; block = next) {
        next = block->next;
        if (!has_passed(gpu, block)) {
            left++;
            continue;
        }
        take_from(&gpu->waiting, block);
        bxi_gpu_count(&gpu->figures.blocks_waiting, -1);
        reuse(gpu, block);
    }
    return left;
}

void bxi_gpu_free(struct bxi_gpu_block *block)
{
    if (block == NULL || bxi_gpu_forked())
        return;

    struct bxi_gpu *gpu = block->device->gpu;
    struct bxi_gpu_block_inside *of = inside(block);

    pthread_mutex_lock(&gpu->lock);
    take_from(&gpu->blocks, of);
    if (has_passed(gpu, of)) {
        reuse(gpu, of);
    } else {
        add_to(&gpu->waiting, of);
        bxi_gpu_count(&gpu->figures.blocks_waiting, 1);
    }
    pthread_mutex_unlock(&gpu->lock);
}

static void forget(struct bxi_gpu_block_inside *list)
{
    struct bxi_gpu_block_inside *next;

    for (struct bxi_gpu_block_inside *block = list; block != NULL; block = next) {
        next = block->next;
        free(block->chunk);
        free(block->until);
        free(block);
    }
}

void bxi_gpu_blocks_forget(struct bxi_gpu *gpu)
{
    forget(gpu->waiting);
    forget(gpu->blocks);                /* those of words too */
    gpu->waiting = gpu->blocks = NULL;
}

/* ---- Memory made by others ------------------------------------------------------------------- */

struct foreign {
    unsigned long long base;
    size_t bytes;
    uint64_t buffer_id;
    struct bxi_gpu_device *device;
};

/* Asks one thing of a pointer; -1 where the driver does not know it. What is told as a bool fills but one byte. */
static int ask(const struct bxi_cuda *cu, unsigned attribute, uint64_t address)
{
    int value = 0;

    return cu->cuPointerGetAttribute(&value, attribute, address) == CUDA_SUCCESS ? value : -1;
}

static int check_exportable(struct bxi_gpu *gpu, uint64_t address)
{
    const struct bxi_cuda *cu = &gpu->cu;
    void *pool = NULL;

    /* First, for it may lie with the host at the moment. */
    if (ask(cu, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) == 1)
        return bxi_gpu_fail(-EOPNOTSUPP, "managed memory (cudaMallocManaged) cannot be opened by other processes: copy "
                            "it to a tensor of the job's");
    if (ask(cu, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) != CU_MEMORYTYPE_DEVICE)
        return bxi_gpu_fail(-EINVAL, "%#llx is no device memory that CUDA knows of", (unsigned long long)address);
    if (cu->cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) == CUDA_SUCCESS && pool != NULL)
        return bxi_gpu_fail(-EOPNOTSUPP, "memory of a pool (cudaMallocAsync) cannot be opened by other processes: "
                            "copy it to a tensor of the job's, or allocate it with cudaMalloc");
    if (ask(cu, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address) == 0)
        return bxi_gpu_fail(-EOPNOTSUPP, "memory made with cuMemCreate (VMM; PyTorch's expandable_segments) cannot be "
                            "exported by CUDA IPC: copy it to a tensor of the job's, or allocate it with cudaMalloc");
    return 0;
}

/* Under the lock, the context of some device current. */
static int look_up(struct bxi_gpu *gpu, uint64_t address, uint64_t bytes, struct foreign *foreign)
{
    unsigned long long id = 0;
    int rc = check_exportable(gpu, address);
    unsigned result;

    if (rc < 0)
        return rc;
    result = gpu->cu.cuMemGetAddressRange_v2(&foreign->base, &foreign->bytes, address);
    if (result != CUDA_SUCCESS)
        return bxi_gpu_cuda_fail(&gpu->cu, result, "the allocation that %#llx is in", (unsigned long long)address);
    if (address < foreign->base || bytes > foreign->bytes - (address - foreign->base))
        return bxi_gpu_fail(-EINVAL, "%llu bytes from %#llx on leave the allocation, which has %llu from %#llx on",
                            (unsigned long long)bytes, (unsigned long long)address,
                            (unsigned long long)foreign->bytes, foreign->base);
    (void)gpu->cu.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address);
    foreign->buffer_id = id;

    int ordinal = ask(&gpu->cu, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);

    for (uint32_t i = 0; i < gpu->device_count; i++) {
        if (gpu->device[i]->ordinal == ordinal) {
            foreign->device = gpu->device[i];
            return 0;
        }
    }
    return bxi_gpu_fail(-ENODEV, "the memory is on device %d, which is not in use here: open it first", ordinal);
}

/* The slab that stands for the allocation; made if there is none. A base may come back after a free: only with
 * the same buffer id is it the same allocation. */
static int foreign_slab(struct bxi_gpu *gpu, const struct foreign *foreign, struct bxi_gpu_slab **out)
{
    struct bxi_gpu_slab *slab;
    int rc;

    for (int i = 0; i < BXI_GPU_SLABS; i++) {
        slab = &gpu->slab[i];
        if (slab->state != BXI_GPU_SLAB_LIVE || foreign->base != slab->address ||
            (slab->is_foreign && slab->buffer_id != foreign->buffer_id))
            continue;
        if (!slab->is_foreign)
            return bxi_gpu_fail(-EINVAL, "the memory is part of this worker's own pool: lend its block");
        *out = slab;
        return 0;
    }
    slab = bxi_gpu_slab_vacant(gpu);
    if (slab == NULL)
        return -ENOSPC;
    slab->device = foreign->device;
    slab->address = foreign->base;
    slab->bytes = foreign->bytes;
    slab->buffer_id = foreign->buffer_id;
    slab->is_foreign = true;
    slab->used = 0;
    slab->whole = NULL;
    rc = bxi_gpu_enter(slab->device);       /* its own, not that of any device: it is exported */
    if (rc < 0)
        return rc;
    rc = bxi_gpu_slab_publish(slab);
    bxi_gpu_leave(slab->device);
    if (rc == 0)
        *out = slab;
    return rc;
}

/* Under the lock, with a context current. made and last are taken only on success. */
static int wrap(struct bxi_gpu *gpu, const struct bxi_gpu_block *range, struct bxi_gpu_block_inside *made,
                struct bxi_gpu_last *last)
{
    struct foreign foreign;
    struct bxi_gpu_slab *slab = NULL;
    int rc;

    if (bxi_gpu_is_mapped(gpu, range->address))
        return bxi_gpu_fail(-ESTALE, "the memory is another worker's, mapped here: pass on what named it");
    rc = look_up(gpu, range->address, range->bytes, &foreign);
    if (rc == 0)
        rc = foreign_slab(gpu, &foreign, &slab);
    if (rc < 0)
        return rc;
    slab->used++;
    if (last->freed != NULL) {
        last->next = slab->last;
        slab->last = last;
    }
    made->block = *range;
    made->block.device = slab->device;
    made->block.slab = (uint32_t)(slab - gpu->slab);
    made->block.generation = slab->generation;
    made->block.offset = range->address - slab->address;
    add_to(&gpu->blocks, made);
    bxi_gpu_count(&gpu->figures.block_bytes, (int64_t)range->bytes);
    return 0;
}

/* Under the lock. */
static int wrap_any(struct bxi_gpu *gpu, const struct bxi_gpu_foreign *foreign, struct bxi_gpu_block_inside *made,
                    struct bxi_gpu_last *last)
{
    struct bxi_gpu_block range = { .address = foreign->address, .bytes = foreign->bytes };
    int rc;

    if (gpu->device_count == 0)
        return bxi_gpu_fail(-ENODEV, "no device is in use here: open one first");
    rc = bxi_gpu_enter(gpu->device[0]);
    if (rc < 0)
        return rc;
    rc = wrap(gpu, &range, made, last);
    bxi_gpu_leave(gpu->device[0]);
    return rc;
}

int bxi_gpu_wrap(struct bxi_gpu *gpu, const struct bxi_gpu_foreign *foreign, struct bxi_gpu_block **block)
{
    struct bxi_gpu_block_inside *made;
    struct bxi_gpu_last *last;
    bool comes;
    int rc;

    if (bxi_gpu_forked())
        return -EPERM;
    made = calloc(1, sizeof(*made));
    last = calloc(1, sizeof(*last));
    rc = made == NULL || last == NULL ? bxi_gpu_fail(-ENOMEM, "no memory for a block's books") : 0;
    if (rc < 0)
        goto free_both;
    last->freed = foreign->freed;
    last->context = foreign->context;
    for (int pauses = 0;; pauses++) {
        pthread_mutex_lock(&gpu->lock);
        rc = wrap_any(gpu, foreign, made, last);
        comes = bxi_gpu_room_comes(gpu, NULL, rc);
        pthread_mutex_unlock(&gpu->lock);
        if (!comes || pauses == BXI_GPU_ROOM_PAUSES)
            break;
        bxi_gpu_room_wait(gpu);
    }
    if (rc < 0)
        goto free_both;
    if (foreign->freed == NULL)
        free(last);
    *block = &made->block;
    return 0;

free_both:
    free(made);
    free(last);
    return rc;
}

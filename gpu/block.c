/* SPDX-License-Identifier: MIT */
/*
 * Blocks: the points that must have passed before a block is used again, and the records of all blocks. pool.c and
 * foreign.c make them. Any thread, under the lock.
 *
 * A freed block waits in a list until its points have passed. No thread waits for it: the list is walked when memory
 * is wanted and no free chunk is large enough, by bxi_gpu_poll, and by bxi_gpu_trim. That walk reads
 * words in host memory and makes no call of the driver.
 *
 * Every block is in one of two lists (handed out, waiting), so that bxi_gpu_close can free them all. Nothing
 * here is shared: a process that is killed takes its blocks with it.
 */
#include "inside.h"

#include <errno.h>
#include <stdlib.h>

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

void bxi_gpu_block_add(struct bxi_gpu *gpu, struct bxi_gpu_block_inside *block, uint64_t bytes)
{
    add_to(&gpu->blocks, block);
    bxi_gpu_count(&gpu->figures.block_bytes, (int64_t)bytes);
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

/* Under the lock: removes points that have passed; true if none is left. An invalid point (its peer has begun to write
 * garbage) keeps the block until the peer is declared dead. */
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

/* Under the lock; the block is in neither list. */
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
    forget(gpu->blocks);
    gpu->waiting = gpu->blocks = NULL;
}

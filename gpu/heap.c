/* SPDX-License-Identifier: MIT */
/*
 * Offsets of blocks in their slabs. Segregated free lists with immediate joining of neighbours, as in TLSF: a chunk is
 * taken from the first list whose every chunk is large enough, split, and joined again when it is given back. All
 * metadata is in host memory; nothing is written to the device. Under the lock of the heap's owner.
 *
 * Why not jemalloc, as for host memory: its extents would have to be slabs and its metadata kept outside of them, for a
 * few thousand blocks at most. And a slab must be recognised as empty to be retired, which joining does.
 */
#include "inside.h"

#include <stdlib.h>

#define SEARCHED 64                     /* chunks of the class in which some may be too small */

/* The largest class that is not above bytes. Four per doubling: 256 bytes, 512, 768, 1024, 1280, 1536, ... */
static unsigned class_below(uint64_t bytes)
{
    uint64_t units = bytes / BXI_GPU_ALIGN;

    if (units < 8)
        return units == 0 ? 0 : (unsigned)units - 1;

    unsigned shift = 61u - (unsigned)__builtin_clzll(units);     /* leaves three bits: 4 .. 7 */
    unsigned class = 3 + 4 * shift + ((unsigned)(units >> shift) - 4);
    return class < BXI_GPU_CLASSES ? class : BXI_GPU_CLASSES - 1;
}

static void free_push(struct bxi_gpu_heap *heap, struct bxi_gpu_chunk *chunk)
{
    struct bxi_gpu_chunk **list = &heap->free[class_below(chunk->bytes)];

    chunk->is_free = true;
    chunk->free_prev = NULL;
    chunk->free_next = *list;
    if (*list != NULL)
        (*list)->free_prev = chunk;
    *list = chunk;
}

static void free_pull(struct bxi_gpu_heap *heap, struct bxi_gpu_chunk *chunk)
{
    if (chunk->free_prev != NULL)
        chunk->free_prev->free_next = chunk->free_next;
    else
        heap->free[class_below(chunk->bytes)] = chunk->free_next;
    if (chunk->free_next != NULL)
        chunk->free_next->free_prev = chunk->free_prev;
    chunk->is_free = false;
}

struct bxi_gpu_chunk *bxi_gpu_heap_add(struct bxi_gpu_heap *heap, uint32_t slab, uint64_t bytes)
{
    struct bxi_gpu_chunk *chunk = calloc(1, sizeof(*chunk));

    if (chunk == NULL)
        return NULL;
    chunk->slab = slab;
    chunk->bytes = bytes;
    free_push(heap, chunk);
    return chunk;
}

static struct bxi_gpu_chunk *find(struct bxi_gpu_heap *heap, uint64_t bytes)
{
    unsigned class = class_below(bytes);
    struct bxi_gpu_chunk *chunk = heap->free[class];

    for (int i = 0; chunk != NULL && i < SEARCHED; i++, chunk = chunk->free_next)
        if (chunk->bytes >= bytes)
            return chunk;
    while (++class < BXI_GPU_CLASSES)
        if (heap->free[class] != NULL)
            return heap->free[class];
    return NULL;
}

struct bxi_gpu_chunk *bxi_gpu_heap_take(struct bxi_gpu_heap *heap, uint64_t bytes)
{
    struct bxi_gpu_chunk *chunk = find(heap, bytes);

    if (chunk == NULL)
        return NULL;
    free_pull(heap, chunk);
    if (chunk->bytes == bytes)
        return chunk;

    struct bxi_gpu_chunk *rest = calloc(1, sizeof(*rest));

    if (rest == NULL)
        return chunk;                   /* larger than requested: harmless */
    rest->slab = chunk->slab;
    rest->offset = chunk->offset + bytes;
    rest->bytes = chunk->bytes - bytes;
    rest->prev = chunk;
    rest->next = chunk->next;
    if (rest->next != NULL)
        rest->next->prev = rest;
    chunk->next = rest;
    chunk->bytes = bytes;
    free_push(heap, rest);
    return chunk;
}

/* b follows a; a absorbs it. */
static void join(struct bxi_gpu_chunk *a, struct bxi_gpu_chunk *b)
{
    a->bytes += b->bytes;
    a->next = b->next;
    if (a->next != NULL)
        a->next->prev = a;
    free(b);
}

struct bxi_gpu_chunk *bxi_gpu_heap_give(struct bxi_gpu_heap *heap, struct bxi_gpu_chunk *chunk)
{
    if (chunk->next != NULL && chunk->next->is_free) {
        free_pull(heap, chunk->next);
        join(chunk, chunk->next);
    }
    if (chunk->prev != NULL && chunk->prev->is_free) {
        chunk = chunk->prev;
        free_pull(heap, chunk);
        join(chunk, chunk->next);
    }
    free_push(heap, chunk);
    return chunk;
}

void bxi_gpu_heap_remove(struct bxi_gpu_heap *heap, struct bxi_gpu_chunk *chunk)
{
    free_pull(heap, chunk);
    free(chunk);
}

void bxi_gpu_heap_fini(struct bxi_gpu_heap *heap)
{
    for (unsigned class = 0; class < BXI_GPU_CLASSES; class++) {
        struct bxi_gpu_chunk *next;

        for (struct bxi_gpu_chunk *chunk = heap->free[class]; chunk != NULL; chunk = next) {
            next = chunk->free_next;
            free(chunk);
        }
    }
}

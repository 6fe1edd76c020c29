/* SPDX-License-Identifier: MIT */
/*
 * The layer between arena.c and jemalloc: the pages of an arena's object, and the extent hooks over them. Private to
 * shm/arena*.c.
 */
#ifndef BXI_ARENA_PAGES_H
#define BXI_ARENA_PAGES_H

#include "arena.h"

#include <jemalloc/jemalloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define BXI_CLASSES 168u                /* more than blocks up to BXI_ARENA_BYTES_MAX need */
#define BXI_ARENA_BYTES_MAX ((uint64_t)1 << 46)

struct bxi_pages {
    extent_hooks_t hooks;               /* first: its address is all that a hook gets */
    unsigned char *base;
    uint64_t bytes;                     /* of the object */
    uint64_t extent_bytes;              /* of the address range: a size class; the object may be shorter */
    uint64_t *spare_bits;               /* one bit per page of the object, zero at first */
    unsigned forks;                     /* bxi_forks at creation */
    unsigned index;                     /* of jemalloc's arena */
    bxi_a64 keep;                       /* written by arena.c: bytes that stay allocated when they are free */
    bxi_a64 committed;

    pthread_mutex_t lock;               /* guards the fields below, spare_bits and writes of committed */
    int fd;
    bool pretends;                      /* the hooks succeed without doing anything */
    uint64_t bump;                      /* bytes of the address range that jemalloc has got */
    uint64_t top_page;                  /* behind the highest page that was ever committed */
    uint64_t spare_pages;
};

/* Classes are 64, 128, 192, 256 bytes, then four to each doubling. bytes > 0. */
static inline unsigned bxi_class_of(size_t bytes)
{
    uint64_t lines = (bytes + BXI_ARENA_ALIGN - 1) / BXI_ARENA_ALIGN;

    if (lines <= 4)
        return (unsigned)lines - 1;
    unsigned log2 = 63u - (unsigned)__builtin_clzll(lines - 1);
    return 4 * (log2 - 1) + (unsigned)((lines - 1) >> (log2 - 2) & 3);
}

static inline size_t bxi_class_bytes(unsigned class)
{
    size_t lines = class < 4 ? class + 1 : (size_t)(class % 4 + 5) << (class / 4 - 1);

    return lines * BXI_ARENA_ALIGN;
}

static inline uint64_t bxi_pages_committed(const struct bxi_pages *pages)
{
    /* [arena.committed] relaxed: pages.lock orders it where the order matters; else any recent value is good. */
    return bxi_load_relaxed(&pages->committed);
}

/* Sets hooks, forks and lock; the caller sets the other fields. */
void bxi_pages_init(struct bxi_pages *pages);

/* Creates jemalloc's arena. Call it until it succeeds; then any thread may allocate. -ENOTSUP: jemalloc put its records
 * into the object; -ENOBUFS: no private memory for its records; -errno. */
int bxi_pages_start(struct bxi_pages *pages);
/* A block, or NULL with *error: -ENOMEM: the arena has no room; -ENOBUFS: jemalloc has no private memory for its
 * records; -ENOSPC; -ESHUTDOWN: closed; -errno. */
void *bxi_pages_ask(struct bxi_pages *pages, size_t bytes, int *error);
void bxi_pages_free(void *block);
size_t bxi_pages_block_bytes(const void *block);

/* Decommits free extents: pages above `keep` are returned to /dev/shm, pages below it become spare. */
void bxi_pages_purge(struct bxi_pages *pages);
void bxi_pages_drop_spare(struct bxi_pages *pages);

/* Closes the descriptor: no page is allocated or returned afterwards. */
void bxi_pages_close(struct bxi_pages *pages);
/* Destroys all blocks. The caller unmaps. */
void bxi_pages_end(struct bxi_pages *pages, bool is_started);

bool bxi_pages_is_forked(const struct bxi_pages *pages);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Between arena.c and jemalloc: the pages of an arena's object, and the extent hooks that hand them out.
 * Private to shm/arena*.c.
 */
#ifndef BXI_ARENA_PAGES_H
#define BXI_ARENA_PAGES_H

#include "arena.h"

#include <jemalloc/jemalloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BXI_CLASSES 168u                /* of blocks up to BXI_ARENA_BYTES_MAX, and some */
#define BXI_ARENA_BYTES_MAX ((uint64_t)1 << 46)

struct bxi_pages {
    extent_hooks_t hooks;               /* first: a hook gets no more than its address */
    unsigned char *base;
    uint64_t bytes;                     /* of the object */
    uint64_t extent_bytes;              /* of addresses; a size class; the object may be shorter */
    uint64_t *spare_bits;               /* one a page of the object, zero at first */
    unsigned forks;                     /* bxi_pages_forks() when it was made */
    unsigned index;                     /* of jemalloc's arena */
    bxi_a64 keep;                       /* written by arena.c: bytes that stay warm when they are free */
    bxi_a64 committed;

    pthread_mutex_t lock;               /* guards the rest, spare_bits, who writes committed, and fd */
    int fd;
    bool pretends;                      /* the hooks do nothing, well */
    uint64_t bump;                      /* bytes of addresses that jemalloc has had */
    uint64_t top_page;                  /* behind the last that was ever committed */
    uint64_t spare_pages;
};

/* 64, 128, 192, 256, then four steps to each doubling. bytes > 0. */
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

/* 0, or -ENOSYS where jemalloc has no arenas with hooks but records elsewhere. */
int bxi_pages_probe(void);

/* Sets hooks, forks and lock; the other fields are the caller's to set. */
void bxi_pages_init(struct bxi_pages *pages);

/* Makes jemalloc's arena. Once; then blocks may be had, by any thread. -ENOTSUP where jemalloc puts its
 * records into the object; -ENOMEM, -errno. */
int bxi_pages_start(struct bxi_pages *pages);
/* *error says why there is none: 0 jemalloc has no extent, -ENOSPC, -ESHUTDOWN (closed), -errno. */
void *bxi_pages_ask(struct bxi_pages *pages, size_t bytes, int *error);
void bxi_pages_free(void *block);
size_t bxi_pages_block_bytes(const void *block);

/* Decommits what is free: above `keep` it goes, below it becomes spare. */
void bxi_pages_purge(struct bxi_pages *pages);
void bxi_pages_drop_spare(struct bxi_pages *pages);

/* Closes the descriptor: no page comes or goes any more. */
void bxi_pages_close(struct bxi_pages *pages);
/* With it go all blocks. The mapping is the caller's. */
void bxi_pages_end(struct bxi_pages *pages, bool is_started);

/* Grows in a forked child. */
unsigned bxi_pages_forks(void);
bool bxi_pages_is_forked(const struct bxi_pages *pages);

#endif

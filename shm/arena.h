/* SPDX-License-Identifier: MIT */
/*
 * The arena of a worker: one sparse shared memory object of fixed size, mapped whole. jemalloc hands out its blocks,
 * through extent hooks (arena_pages.c). Peers map it read-only from its descriptor. object.h has its name.
 *
 * Arenas and views are reference-counted, because blocks and borrowed tensors may outlive the job. create and attach
 * return one reference; the last release unmaps. The holder of a block must hold a reference. All functions may be
 * called from any thread. In a forked child alloc returns -EPERM, the others do nothing, and blocks can be read and
 * written: what it writes it alone sees.
 */
#ifndef BXI_ARENA_H
#define BXI_ARENA_H

#include "atomic.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BXI_ARENA_ALIGN 64u         /* of every block */
#define BXI_ARENA_PATH_BYTES 128u

struct bxi_arena;                   /* the worker's own, writable */
struct bxi_arena_view {             /* a peer's, or the own one a second time; read-only */
    const unsigned char *base;
    uint64_t bytes;
    bxi_a32 truncated;              /* set by the SIGBUS guard: the memory may read as zeroes */
    bxi_a32 refs;
    uint32_t forks;                 /* bxi_forks when it was mapped */
    char path[BXI_ARENA_PATH_BYTES];    /* of its object, when it was mapped, and which file that was */
    uint64_t device, inode;
    pthread_mutex_t lock;           /* of what follows */
    unsigned char *private_base;    /* the arena mapped once more, copy on write; NULL: not yet */
    uint64_t *private_pages;        /* a bit for each page of it that is in use */
    uint64_t private_left;          /* how many more may be */
    int pagemap;                    /* of this process, opened with that mapping; -1: refused */
};

struct bxi_arena_stats {
    uint64_t size_bytes;
    uint64_t used_bytes;            /* blocks handed out, by the sizes of their classes */
    uint64_t committed_bytes;       /* pages allocated in /dev/shm */
    uint64_t high_water_bytes;      /* maximum of used_bytes since the start or the last trim; a full /dev/shm trims */
};

/* The words to which the arena writes its figures for inspectors (relaxed), until bxi_arena_close. */
struct bxi_arena_words {
    bxi_a64 *used, *committed, *high_water;
};

/* The size of an arena that is created with so many bytes: a multiple of 2 MiB. */
static inline uint64_t bxi_arena_round(uint64_t bytes)
{
    const uint64_t unit = UINT64_C(2) << 20;

    return (bytes + unit - 1) / unit * unit;
}
/* Creates the object (O_EXCL, 0600, owner lock), sparse, with `bytes` rounded (bxi_arena_round), and maps it.
 * Allocates no page of /dev/shm yet. The arena owns the descriptor. words may be NULL; shm_name too: then the object
 * has no name until bxi_arena_name. -EEXIST; -ENOMEM; -EFBIG (RLIMIT_FSIZE, or more than 64 TiB); -EOPNOTSUPP: /dev/shm
 * has no objects without names; -errno. A failure leaves nothing behind. */
int bxi_arena_create(const char *shm_name, uint64_t bytes, const struct bxi_arena_words *words,
                     struct bxi_arena **arena);
/* Names the object of an arena that has no name, and writes its figures to the words from then on. 0, -EEXIST; -errno.
 */
int bxi_arena_name(struct bxi_arena *arena, const char *shm_name, const struct bxi_arena_words *words);
int bxi_arena_fd(const struct bxi_arena *arena);
uint64_t bxi_arena_bytes(const struct bxi_arena *arena);
const unsigned char *bxi_arena_base(const struct bxi_arena *arena);

/* A block of at least `bytes` (0 counts as 1), 64-byte aligned, contents undefined. 0; -ENOSPC: /dev/shm has no room
 * for its pages; -ENOMEM: the arena is used up; -ENOBUFS: the process has no private memory for jemalloc's records;
 * -ESHUTDOWN: after bxi_arena_close; -EIO: the object was truncated; -ENOTSUP: jemalloc put its records into the arena.
 * free accepts NULL. */
int bxi_arena_alloc(struct bxi_arena *arena, size_t bytes, void **block);
void bxi_arena_free(struct bxi_arena *arena, void *block);

/* Returns unused pages to /dev/shm and resets the high-water mark to what is used. */
void bxi_arena_trim(struct bxi_arena *arena);
void bxi_arena_read(struct bxi_arena *arena, struct bxi_arena_stats *stats);
bool bxi_arena_truncated(const struct bxi_arena *arena);

struct bxi_arena *bxi_arena_acquire(struct bxi_arena *arena);
void bxi_arena_release(struct bxi_arena *arena);

/* The end of the job: unlinks the name, if there is one, closes the descriptor (and with it drops the owner lock), and
 * writes the words no more. Existing blocks stay valid until they are freed, but not in a child that is forked later;
 * alloc fails with -ESHUTDOWN. */
void bxi_arena_close(struct bxi_arena *arena);

/* Maps a peer's arena read-only from its descriptor (which stays the caller's). `bytes` is from the peer's header;
 * -EPROTO if the file has another size; -errno. */
int bxi_arena_attach(struct bxi_arena_view **view, int fd, uint64_t bytes);
struct bxi_arena_view *bxi_arena_view_acquire(struct bxi_arena_view *view);
void bxi_arena_view_release(struct bxi_arena_view *view);
/* The address of memory of the view in a second mapping of the arena, which is writable and private: what is written
 * there this process alone sees, until bxi_arena_view_forget with the same memory, which comes before the memory is
 * given back. NULL: some of its pages are in use there already, or with them more than a quarter of the arena or of
 * /dev/shm would be; or the first call found the object's name gone (its owner has left), or no descriptor, memory or
 * address left. */
void *bxi_arena_view_private(struct bxi_arena_view *view, const void *memory, size_t bytes);
void bxi_arena_view_forget(struct bxi_arena_view *view, const void *memory, size_t bytes);
/* Whether a page of that memory in the private mapping may be the process's own. */
bool bxi_arena_view_is_written(const struct bxi_arena_view *view, const void *memory, size_t bytes);

#endif

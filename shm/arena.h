/* SPDX-License-Identifier: MIT */
/*
 * The arena of a worker: one sparse shared memory object of fixed size, mapped whole, from which jemalloc
 * hands out blocks through extent hooks of ours. Peers map it read-only from a passed descriptor. Names
 * are those of the control segment with ".arena" behind.
 *
 * An arena and a view are counted, because blocks and borrowed tensors may outlive the job: create and
 * attach return one reference each; the last release unmaps. Every block needs a reference of its holder's.
 * All functions may be called from any thread. In a forked child alloc answers -EPERM, and the others do
 * nothing.
 */
#ifndef BXI_ARENA_H
#define BXI_ARENA_H

#include "atomic.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define BXI_ARENA_ALIGN 64u         /* of every block */

struct bxi_arena;                   /* one's own, writable */
struct bxi_arena_view {             /* a peer's (or one's own once more), read-only */
    const unsigned char *base;
    uint64_t bytes;
    bxi_a32 truncated;              /* set by the SIGBUS guard: what is read there may be zeroes */
    bxi_a32 refs;
};

struct bxi_arena_stats {
    uint64_t size_bytes;
    uint64_t used_bytes;            /* blocks handed out, as large as they really are (size classes) */
    uint64_t committed_bytes;       /* pages allocated in /dev/shm */
    uint64_t high_water_bytes;      /* most of used_bytes since the start or the last trim; a full /dev/shm trims */
};

/* The blocks of one size class: those handed out, and those freed that wait on its shelf. */
struct bxi_arena_class {
    size_t block_bytes;             /* 0: no block of the class was ever made */
    uint64_t used;
    uint64_t shelved;
};

/* Where the arena writes its figures for inspectors (relaxed), until bxi_arena_close. */
struct bxi_arena_words {
    bxi_a64 *used, *committed, *high_water;
};

/* Creates the object (O_EXCL, 0600, owner lock), sparse, `bytes` rounded up to a multiple of 2 MiB, and maps
 * it; takes no page of /dev/shm yet. The file descriptor is the arena's. -EEXIST, -ENOMEM, -EFBIG (RLIMIT_FSIZE,
 * or more than 64 TiB), -ENOSYS (this jemalloc cannot keep its records elsewhere), -errno; nothing is left
 * behind on failure. words may be NULL. */
int bxi_arena_create(const char *shm_name, uint64_t bytes, const struct bxi_arena_words *words,
                     struct bxi_arena **arena);
int bxi_arena_fd(const struct bxi_arena *arena);
uint64_t bxi_arena_bytes(const struct bxi_arena *arena);
const unsigned char *bxi_arena_base(const struct bxi_arena *arena);

/* A block of at least `bytes` (0 counts as 1), 64-byte aligned, its contents undefined. 0; -ENOSPC: /dev/shm
 * has no room for its pages; -ENOMEM: the arena's own size is used up (or private memory for jemalloc's
 * records is); -ESHUTDOWN after bxi_arena_close; -EIO: somebody has truncated the object; -ENOTSUP: jemalloc's
 * records would lie in it. Free takes NULL too. */
int bxi_arena_alloc(struct bxi_arena *arena, size_t bytes, void **block);
void bxi_arena_free(struct bxi_arena *arena, void *block);
size_t bxi_arena_block_bytes(const struct bxi_arena *arena, const void *block);     /* its real size */

/* Gives unused pages back to /dev/shm and starts the high-water mark anew. */
void bxi_arena_trim(struct bxi_arena *arena);
void bxi_arena_read(struct bxi_arena *arena, struct bxi_arena_stats *stats);
/* False: there are no more classes. They are numbered from 0. */
bool bxi_arena_read_class(struct bxi_arena *arena, unsigned class, struct bxi_arena_class *out);
bool bxi_arena_truncated(const struct bxi_arena *arena);

struct bxi_arena *bxi_arena_acquire(struct bxi_arena *arena);
void bxi_arena_release(struct bxi_arena *arena);

/* The job is over: removes the name, closes the descriptor (and with it the owner lock), and forgets the
 * words. Blocks live on until they are freed; none can be made any more (-ESHUTDOWN). */
void bxi_arena_close(struct bxi_arena *arena);

/* Maps a peer's arena read-only from its descriptor (which stays the caller's); `bytes` is what the peer's
 * header says, and the file must have that size: -EPROTO. -errno. */
int bxi_arena_attach(struct bxi_arena_view **view, int fd, uint64_t bytes);
struct bxi_arena_view *bxi_arena_view_acquire(struct bxi_arena_view *view);
void bxi_arena_view_release(struct bxi_arena_view *view);

/* fallocate(2), unless a test puts another in its place. */
extern int (*bxi_arena_fallocate)(int fd, int mode, off_t offset, off_t bytes);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Making, mapping and removing control segments. Names are "/boxcar.<uid>.<job>.<instance>.<rank>", the
 * instance 16 hex digits; nobody opens a peer's by name, descriptors are passed. The arena of the same
 * worker has this name with ".arena" behind.
 */
#ifndef BXI_SEGMENT_H
#define BXI_SEGMENT_H

#include "layout.h"

#include <stddef.h>
#include <stdint.h>

#define BXI_SEGMENT_NAME_BYTES 96

struct bxi_segment {                /* one's own, writable */
    struct bxi_control *control;
    size_t bytes;
    int fd;                         /* holds the owner lock (F_OFD_SETLK, the whole file, write) */
    bxi_a32 truncated;
    char shm_name[BXI_SEGMENT_NAME_BYTES];
};

struct bxi_segment_view {           /* a peer's, read-only */
    const struct bxi_control *control;
    size_t bytes;
    bxi_a32 truncated;
};

void bxi_segment_name(char out[BXI_SEGMENT_NAME_BYTES], uint32_t uid, const char *job, uint64_t instance,
                      int rank);
void bxi_segment_arena_name(char out[BXI_SEGMENT_NAME_BYTES], uint32_t uid, const char *job,
                            uint64_t instance, int rank);

/* Makes an empty object (O_EXCL, 0600) whose owner lock the descriptor holds, safe from reapers. -EEXIST,
 * -errno. */
int bxi_segment_create_locked(const char *shm_name, int *fd);

/* 0, or -EFBIG: a file may not have so many bytes (RLIMIT_FSIZE). A thread that makes it grow beyond them gets
 * SIGXFSZ, whose default action ends the process. */
int bxi_file_limit(uint64_t bytes);
/* ftruncate after that check. 0, -EFBIG, -errno. */
int bxi_file_resize(int fd, uint64_t bytes);

/* Creates (O_EXCL, 0600), takes the owner lock, sizes it sparse, allocates the control pages, writes the
 * header (state STARTING; arena_bytes is the caller's to set before it passes the descriptor) and guards
 * the mapping. -ENOSPC when /dev/shm has no room for the control pages, or no inode; -EFBIG (RLIMIT_FSIZE), -EEXIST,
 * -errno; nothing is left behind on failure. Memory is MADV_DONTFORK. */
int bxi_segment_create(struct bxi_segment *segment, const char *job, const char *name, uint64_t instance,
                       int rank, int world_size);

/* Allocates the pages of ring `to`, of the lease words and of the first rows of calls behind it (fallocate, which
 * does not bring a truncated segment back). 0, -ENOSPC, -errno. */
int bxi_segment_open_ring(struct bxi_segment *segment, int to);
/* Allocates pages of a region that somebody else lays out, all zero; what is there already is kept. 0, -EINVAL outside
 * of the segment, -ENOSPC, -errno. */
int bxi_segment_allocate(struct bxi_segment *segment, uint64_t offset, uint64_t bytes);
/* Allocates the region of device memory, and the words for device memory of each of world_size peers. 0, -ENOSPC,
 * -errno; what is there already is kept. */
int bxi_segment_open_device(struct bxi_segment *segment, int world_size);
void *bxi_segment_device(const struct bxi_segment *segment);
unsigned char *bxi_segment_device_pair(const struct bxi_segment *segment, int to);
unsigned char *bxi_segment_ring(const struct bxi_segment *segment, int to);
/* BXI_LEASE_MAX words by which the owner gives leases of peer `to` back; not before open_ring. */
bxi_a64 *bxi_segment_leases(const struct bxi_segment *segment, int to);

/* Unmaps and closes; unlinks the name first unless keep_name. */
void bxi_segment_destroy(struct bxi_segment *segment);

/* Maps a peer's segment from its descriptor (which stays the caller's) and checks it against the
 * identity expected: -EPROTO where magic, sizes, rank, world size, instance or uid are wrong,
 * -EPROTONOSUPPORT for another layout version, -errno. */
int bxi_segment_attach(struct bxi_segment_view *view, int fd, uint64_t instance, int rank,
                       int world_size);
const unsigned char *bxi_segment_view_ring(const struct bxi_segment_view *view, int to);
const bxi_a64 *bxi_segment_view_leases(const struct bxi_segment_view *view, int to);
void bxi_segment_detach(struct bxi_segment_view *view);

/* Who owns the segment of a rank: 0; -ENOENT if its name is gone, its owner lock is free or it is not written yet;
 * -errno. */
struct bxi_segment_owner {
    uint32_t pid;
    uint32_t state;             /* enum bxi_state */
    char name[BXI_NAME_BYTES];
};
int bxi_segment_find_owner(const char *job, uint64_t instance, int rank, struct bxi_segment_owner *owner);

/* Unlinks the names of one job of this uid (any instance, or one: instance != 0), segments and arenas,
 * whose owner lock is free. Returns how many were removed, -errno. */
int bxi_segment_reap(const char *job, uint64_t instance);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Creates and maps control segments. Peers get a segment's descriptor over a socket; they never open it by name.
 */
#ifndef BXI_SEGMENT_H
#define BXI_SEGMENT_H

#include "layout.h"
#include "object.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bxi_segment {                /* the worker's own, writable */
    struct bxi_control *control;
    size_t bytes;
    int fd;                         /* holds the owner lock (object.h) */
    bxi_a32 truncated;
    bool stays;                     /* mapped until the process ends: a GPU may still write there */
    char shm_name[BXI_OBJECT_NAME_BYTES];
};

struct bxi_segment_view {           /* a peer's, read-only */
    const struct bxi_control *control;
    size_t bytes;
    bxi_a32 truncated;
    bool stays;                     /* mapped until the process ends: a GPU may still wait there */
};

/* Creates the object with its owner lock, sizes it sparse, allocates the control pages, maps and guards it and writes
 * the header (state STARTING; the caller sets arena_bytes before it passes the descriptor on). -ENOSPC: /dev/shm has
 * no room for the control pages, or no inode; -EFBIG (RLIMIT_FSIZE); -EEXIST; -errno. A failure leaves nothing behind.
 * The mapping is MADV_DONTFORK. */
int bxi_segment_create(struct bxi_segment *segment, const char *job, const char *name, uint64_t instance,
                       int rank, int world_size);

/* Allocates ring `to`, its lease words and its first rows of calls (by fallocate, which does not extend a truncated
 * segment). 0, -ENOSPC, -errno. */
int bxi_segment_open_ring(struct bxi_segment *segment, int to);
/* Zeroes what the owner tells a peer that is dead, and gives back the pages of their ring (I16). 0; -EINVAL: no such
 * rank; -errno. */
int bxi_segment_forget_peer(struct bxi_segment *segment, int peer);
/* Allocates pages that another room lays out; new pages are zero, pages already allocated are kept. 0; -EINVAL: not
 * inside the segment; -ENOSPC; -errno. */
int bxi_segment_allocate(struct bxi_segment *segment, uint64_t offset, uint64_t bytes);
/* Allocates the device region, and the words about device memory of each of world_size peers; pages already allocated
 * are kept. 0, -ENOSPC, -errno. */
int bxi_segment_open_device(struct bxi_segment *segment, int world_size);
/* What lies at an offset of layout.h or tables.h; beyond the control pages only once it is allocated. */
static inline void *bxi_segment_at(const struct bxi_segment *segment, uint64_t offset)
{
    return (unsigned char *)segment->control + offset;
}
/* BXI_LEASE_MAX words by which the owner returns leases of peer `to`; only after bxi_segment_open_ring. */
bxi_a64 *bxi_segment_leases(const struct bxi_segment *segment, int to);

/* Unlinks the name, unmaps (unless it stays) and closes. */
void bxi_segment_destroy(struct bxi_segment *segment);

/* Maps a peer's segment from its descriptor (which stays the caller's) and checks its header. -EPROTO: magic, sizes,
 * rank, world size, instance or uid are wrong; -EPROTONOSUPPORT: another layout version; -errno. */
int bxi_segment_attach(struct bxi_segment_view *view, int fd, uint64_t instance, int rank, int world_size);
static inline const void *bxi_segment_view_at(const struct bxi_segment_view *view, uint64_t offset)
{
    return (const unsigned char *)view->control + offset;
}
void bxi_segment_detach(struct bxi_segment_view *view);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Creates, maps and checks control segments. object.c has their names and the owner lock.
 *
 * Who runs it: a worker, in the thread that starts or ends its job (create, attach, destroy, detach); a thread that
 * holds run->lock, when a pair first talks (bxi_segment_open_ring); the progress role, when a rank is taken again
 * (bxi_segment_forget_peer).
 *
 * Killed after the owner lock: the kernel drops the lock with the last descriptor, a reaper removes the name, peers
 * keep their mappings.
 */
#include "segment.h"

#include "file.h"
#include "fork.h"
#include "guard.h"
#include "step.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static uint64_t realtime_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* I1: all this is written before the descriptor is passed on. The rest of a new object is zero. */
static void write_header(struct bxi_header *header, const char *job, const char *name)
{
    header->layout_version = BXI_LAYOUT_VERSION;
    header->uid = (uint32_t)geteuid();
    header->pid = (uint32_t)getpid();
    header->ring_bytes = BXI_RING_BYTES;
    header->started_ns = realtime_ns();
    header->generation = 1;
    memcpy(header->name, name, strlen(name) + 1);
    memcpy(header->job, job, strlen(job) + 1);
    header->magic = BXI_MAGIC;
    /* [state] release, pairs with the acquire of a peer or an inspector: a reader of STARTING reads the whole
     * header. */
    bxi_store_release(&header->state, BXI_STARTING);
}

/* Sizes, allocates, maps and guards the file behind segment->fd. */
static int map_own(struct bxi_segment *segment, int world_size)
{
    void *base = NULL;

    BXI_STEP("segment.locked");
    int rc = bxi_file_resize(segment->fd, segment->bytes);
    if (rc < 0)
        return rc;
    BXI_STEP("segment.sized");
    rc = bxi_file_allocate(segment->fd, 0, BXI_BY_RANK_OFFSET);
    for (int i = 0; rc == 0 && i < BXI_BY_RANK_TABLES; i++)
        rc = bxi_file_allocate(segment->fd, BXI_BY_RANK_OFFSET + (uint64_t)i * BXI_BY_RANK_STRIDE,
                               bxi_by_rank_bytes(world_size));
    if (rc < 0)
        return rc;
    BXI_STEP("segment.allocated");
    rc = bxi_file_map(segment->fd, segment->bytes, true, &segment->truncated, &base);
    if (rc == 0)
        segment->control = base;
    return rc;
}

int bxi_segment_create(struct bxi_segment *segment, const char *job, const char *name, uint64_t instance, int rank,
                       int world_size)
{
    if (world_size < 1 || world_size > BXI_WORKERS_MAX || rank < 0 || rank >= world_size)
        return -EINVAL;
    if (strlen(job) >= BXI_NAME_BYTES || strlen(name) >= BXI_NAME_BYTES)
        return -ENAMETOOLONG;

    memset(segment, 0, sizeof(*segment));
    segment->fd = -1;
    segment->bytes = bxi_segment_bytes(world_size);
    bxi_object_name(segment->shm_name, (uint32_t)geteuid(), job, instance, rank);

    int rc = bxi_object_create(segment->shm_name, &segment->fd);
    if (rc < 0)
        return rc;
    rc = map_own(segment, world_size);
    if (rc < 0)
        goto unlink;

    struct bxi_header *header = &segment->control->header;
    header->rank = (uint32_t)rank;
    header->world_size = (uint32_t)world_size;
    header->instance = instance;
    header->segment_bytes = segment->bytes;
    write_header(header, job, name);
    BXI_STEP("segment.written");
    return 0;

unlink:
    shm_unlink(segment->shm_name);
    bxi_unshared_close(segment->fd);
    segment->fd = -1;
    return rc;
}

int bxi_segment_open_ring(struct bxi_segment *segment, int to)
{
    if (to < 0 || bxi_segment_bytes(to + 1) > segment->bytes)
        return -EINVAL;
    return bxi_file_allocate(segment->fd, BXI_RINGS_OFFSET + (uint64_t)to * BXI_RING_STRIDE, BXI_OPEN_BYTES);
}

int bxi_segment_forget_peer(struct bxi_segment *segment, int peer)
{
    bxi_a64 *words;
    int rc;

    if (peer < 0 || bxi_segment_bytes(peer + 1) > segment->bytes)
        return -EINVAL;
    words = (bxi_a64 *)&segment->control->pair[peer];
    rc = bxi_file_punch(segment->fd, BXI_RINGS_OFFSET + (uint64_t)peer * BXI_RING_STRIDE, BXI_RING_STRIDE);
    if (rc < 0)
        return rc;
    /* Relaxed, all: no process of that rank reads them, and the next one maps them later. */
    for (size_t i = 0; i < sizeof(struct bxi_pair) / sizeof(*words); i++)
        bxi_store_relaxed(&words[i], 0);
    bxi_store_relaxed(&segment->control->credit[peer].position, 0);
    return 0;
}

int bxi_segment_allocate(struct bxi_segment *segment, uint64_t offset, uint64_t bytes)
{
    if (offset > segment->bytes || bytes > segment->bytes - offset)
        return -EINVAL;
    return bxi_file_allocate(segment->fd, offset, bytes);
}

int bxi_segment_open_device(struct bxi_segment *segment, int world_size)
{
    int rc = bxi_file_allocate(segment->fd, BXI_DEVICE_OFFSET, BXI_DEVICE_BYTES);

    for (int to = 0; rc == 0 && to < world_size; to++)
        rc = bxi_file_allocate(segment->fd, bxi_device_pair_offset(to), BXI_DEVICE_PAIR_BYTES);
    return rc;
}

bxi_a64 *bxi_segment_leases(const struct bxi_segment *segment, int to)
{
    return bxi_segment_at(segment, bxi_lease_offset(to));
}

void bxi_segment_destroy(struct bxi_segment *segment)
{
    if (segment->control == NULL)
        return;
    /* Before the lock is dropped: afterwards the name could lead to another object. */
    shm_unlink(segment->shm_name);
    bxi_guard_drop(segment->control);
    if (!segment->stays)
        munmap(segment->control, segment->bytes);
    bxi_unshared_close(segment->fd);
    segment->control = NULL;
    segment->fd = -1;
}

/* Copies memory that another process writes: reads each word once. */
static void copy_words(void *to, const void *from, size_t bytes)
{
    const volatile uint64_t *word = from;

    for (size_t i = 0; i < bytes / sizeof(uint64_t); i++) {
        uint64_t value = word[i];
        memcpy((unsigned char *)to + i * sizeof(value), &value, sizeof(value));
    }
}

/* Checks a private copy of the header, up to `state`, against the identity that the caller expects. */
static int check_header(const struct bxi_header *is, uint64_t instance, int rank, int world_size)
{
    if (is->magic != BXI_MAGIC)
        return -EPROTO;
    if (is->layout_version != BXI_LAYOUT_VERSION)
        return -EPROTONOSUPPORT;
    if (is->uid != (uint32_t)geteuid() || is->instance != instance)
        return -EPROTO;
    if (is->rank != (uint32_t)rank || is->world_size != (uint32_t)world_size)
        return -EPROTO;
    if (is->ring_bytes != BXI_RING_BYTES || is->segment_bytes != bxi_segment_bytes(world_size))
        return -EPROTO;
    if (memchr(is->name, 0, BXI_NAME_BYTES) == NULL || memchr(is->job, 0, BXI_NAME_BYTES) == NULL)
        return -EPROTO;
    return 0;
}

int bxi_segment_attach(struct bxi_segment_view *view, int fd, uint64_t instance, int rank, int world_size)
{
    struct bxi_header header;
    size_t bytes = bxi_segment_bytes(world_size);
    void *base = NULL;
    int rc;

    if (world_size < 1 || world_size > BXI_WORKERS_MAX || rank < 0 || rank >= world_size)
        return -EINVAL;
    memset(view, 0, sizeof(*view));
    /* Guarded before the first read: the file may shrink at any time. */
    rc = bxi_file_map(fd, bytes, false, &view->truncated, &base);
    if (rc < 0)
        return rc;
    memset(&header, 0, sizeof(header));
    copy_words(&header, base, offsetof(struct bxi_header, state));
    rc = check_header(&header, instance, rank, world_size);
    if (rc < 0) {
        bxi_guard_drop(base);
        munmap(base, bytes);
        return rc;
    }
    view->control = base;
    view->bytes = bytes;
    return 0;
}

void bxi_segment_detach(struct bxi_segment_view *view)
{
    if (view->control == NULL)
        return;
    void *base = (void *)(uintptr_t)view->control;
    bxi_guard_drop(base);
    if (!view->stays)
        munmap(base, view->bytes);
    view->control = NULL;
    view->bytes = 0;
}

/* SPDX-License-Identifier: MIT */
/*
 * What stands for a remote worker in this process: a control segment and an arena without names, from which the
 * bootstrap makes a peer as from any other worker's, with this worker's own bells. The thread in bx_job_start, and at
 * the end whoever destroys the job.
 *
 * This process writes the twin in one mapping, as the remote worker would its segment, and reads it in another one,
 * which cannot be written.
 */
#include "net.h"

#include "shm/fork.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* An object of that size without a name, mapped writable. The descriptor; -errno. */
static int make_object(const char *name, uint64_t bytes, void **base)
{
    int fd = memfd_create(name, MFD_CLOEXEC);

    if (fd < 0)
        return -errno;
    *base = MAP_FAILED;
    if (ftruncate(fd, (off_t)bytes) == 0)
        *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (*base != MAP_FAILED) {
        madvise(*base, bytes, MADV_DONTFORK);
        return fd;
    }
    int rc = -errno;

    close(fd);
    *base = NULL;
    return rc;
}

/* A second descriptor of the same object, which can only be read. */
static int reopen(int fd)
{
    char path[32];
    int other;

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    other = open(path, O_RDONLY | O_CLOEXEC);
    return other < 0 ? -errno : other;
}

static void write_header(struct bxi_twin *twin)
{
    const struct bx_job *job = twin->job;
    const struct bxi_place *place = &job->net->places[twin->rank];
    struct bxi_header *header = &twin->control->header;

    header->layout_version = BXI_LAYOUT_VERSION;
    header->uid = (uint32_t)geteuid();
    header->pid = place->pid;
    header->rank = (uint32_t)twin->rank;
    header->world_size = (uint32_t)job->world_size;
    header->ring_bytes = BXI_RING_BYTES;
    header->instance = job->instance;
    header->segment_bytes = bxi_segment_bytes(job->world_size);
    memcpy(header->name, place->name, sizeof header->name);
    memcpy(header->job, job->job_name, sizeof header->job);
    header->generation = 1;
    header->arena_bytes = place->arena_bytes;
    header->magic = BXI_MAGIC;
    memcpy(twin->control->function, place->functions, place->function_count * sizeof *place->functions);
    /* Relaxed, both: nobody else has it yet. It has passed the gate when it is first called. */
    bxi_store_relaxed(&header->function_count, place->function_count);
    bxi_store_relaxed(&header->state, BXI_RUNNING);
    twin->sent.common = (struct bxi_net_common){ .state = BXI_RUNNING,
                                                 .function_count = job->net->places[job->rank].function_count };
}

static int attach(struct bxi_twin *twin, int fds[BXI_BOOT_FDS])
{
    struct bx_job *job = twin->job;
    const struct bxi_place *place = &job->net->places[twin->rank];
    const struct bxi_join join = { twin->rank, 1, place->pid, place->name, fds };
    struct bxi_peer *peer = job->rpc->peers[twin->rank];
    int rc = bxi_peer_attach(job, peer, &join);

    if (rc < 0)
        return rc;
    peer->bell.word = &job->control->header.armed;      /* whoever drives this worker sends */
    peer->is_remote = peer->lend->is_remote = true;
    snprintf(peer->on_host, sizeof peer->on_host, " on host '%s'", place->machine);
    peer->lend->landed = &twin->landed;
    bxi_join_set_generation(job, twin->rank, 1);
    /* Relaxed: no other thread of the job exists yet. */
    bxi_store_relaxed(&peer->state, BXI_PEER_ALIVE);
    return 0;
}

/* 0, -errno. */
static int make_twin(struct bxi_twin *twin)
{
    const struct bx_job *job = twin->job;
    int fds[BXI_BOOT_FDS] = { [BXI_BOOT_BELL] = job->run->bell_fd[0], [BXI_BOOT_BELL_LEADER] = job->run->bell_fd[1],
                              [BXI_BOOT_PIDFD] = -1 };
    int segment_fd, rc = 0;
    void *base = NULL;

    segment_fd = make_object("boxcar-twin", bxi_segment_bytes(job->world_size), &base);
    twin->control = base;
    if (segment_fd < 0)
        return segment_fd;
    twin->arena_fd = make_object("boxcar-twin-arena", job->net->places[twin->rank].arena_bytes, &base);
    if (twin->arena_fd < 0) {
        close(segment_fd);
        return twin->arena_fd;
    }
    twin->arena = base;
    write_header(twin);
    fds[BXI_BOOT_SEGMENT] = reopen(segment_fd);
    fds[BXI_BOOT_ARENA] = reopen(twin->arena_fd);
    for (int i = BXI_BOOT_SEGMENT; i <= BXI_BOOT_ARENA && rc == 0; i++)
        rc = fds[i] < 0 ? fds[i] : 0;
    if (rc == 0)
        rc = attach(twin, fds);
    for (int i = BXI_BOOT_SEGMENT; i <= BXI_BOOT_ARENA; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    close(segment_fd);
    bxi_ring_writer_init(&twin->in, (unsigned char *)twin->control + bxi_ring_offset(job->rank), BXI_RING_BYTES, 0,
                         &job->control->credit[twin->rank].position, &twin->in_want);
    return rc;
}

int bxi_twins_attach(struct bx_job *job)
{
    for (int rank = 0; job->net != NULL && rank < job->world_size; rank++) {
        struct bxi_twin *twin;
        int rc;

        if (bxi_net_is_here(job, rank))
            continue;
        twin = job->net->twins[rank] = aligned_alloc(BXI_LINE, (sizeof *twin + BXI_LINE - 1) / BXI_LINE * BXI_LINE);
        if (twin == NULL)
            return bx_fail(-ENOMEM, "no memory for %d workers", job->world_size);
        memset(twin, 0, sizeof *twin);
        twin->job = job;
        twin->rank = rank;
        twin->place = job->net->remote_count;
        job->net->remote[job->net->remote_count++] = twin;
        twin->arena_fd = -1;
        twin->landed_end = &twin->landed;
        twin->returned = calloc(BXI_LEASE_MAX, sizeof *twin->returned);
        rc = twin->returned == NULL ? -ENOMEM : make_twin(twin);
        if (rc < 0)
            return bx_fail(rc, "what stands for worker '%s' (rank %d) of host '%s' cannot be made here: %s",
                           job->net->places[rank].name, rank, job->net->places[rank].machine, bx_strerror(rc));
    }
    if (job->net != NULL)
        bxi_net_show(job);
    return 0;
}

void bxi_twin_activate(struct bxi_twin *twin)
{
    struct bxi_net *net = twin->job->net;
    struct bxi_twin *first;

    if (twin->place < net->active_count)
        return;
    first = net->remote[net->active_count];
    net->remote[first->place = twin->place] = first;
    net->remote[twin->place = net->active_count++] = twin;
}

void bxi_twin_dies(struct bxi_net *net, struct bxi_twin *twin)
{
    bool was_dead;

    bxi_net_show_death(twin);
    bxi_lock(&net->lock);
    was_dead = twin->is_dead;
    twin->is_dead = true;
    bxi_unlock(&net->lock);
    if (was_dead)
        return;
    bxi_exchange(&twin->job->rpc->peers[twin->rank]->death_seen, BXI_PEER_DEAD);
    bxi_event(twin->job->run, BXI_EVENT_DEATH);
}

void bxi_twin_lost(void *context, void *peer)
{
    struct bx_job *job = context;
    struct bxi_twin *twin = peer;

    bxi_lock(&job->net->lock);
    if (twin->lost_ns == 0)
        twin->lost_ns = bxi_now_ns();
    bxi_unlock(&job->net->lock);
    bxi_bell_ring(job->net->stop_fd);           /* the thread waits for that long at most */
}

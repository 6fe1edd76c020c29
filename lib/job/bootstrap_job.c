/* SPDX-License-Identifier: MIT */
/*
 * What both sides of the bootstrap make of the job: this worker's segment and arena, and a peer of each set of
 * descriptors that came; and how all of it is undone. Called by the thread in bx_job_start.
 */
#include "job.h"

#include "shm/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_same_file(int fd, int other)
{
    struct stat one = { 0 }, two = { .st_ino = 1 };

    fstat(fd, &one);
    fstat(other, &two);
    return one.st_dev == two.st_dev && one.st_ino == two.st_ino;
}

/* A descriptor of the object that can only be read. By its name, which borrowers then find by the descriptor
 * (shm/arena_view.c): the own one of an object that had none at first has no path. By that if somebody has removed the
 * name. */
static int open_readable(const struct bx_job *job, const char *name, int own_fd, int *readable_fd)
{
    char path[32];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", own_fd);
    int fd = shm_open(name, O_RDONLY | O_NONBLOCK, 0);
    if (fd >= 0 && !is_same_file(fd, own_fd)) {
        close(fd);
        fd = -1;
    }
    if (fd < 0)
        fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && bxi_file_none_left(-errno))
        return bxi_limits_no_descriptors(job);
    if (fd < 0)
        return bx_fail(-errno, "/dev/shm%s cannot be opened for reading by %s: %s", name, path, bx_strerror(-errno));
    *readable_fd = fd;
    return 0;
}

/* A tensor may have made the arena before: then it gets its name here. */
static int make_arena(struct bx_job *job, const char *name)
{
    struct bxi_header *header = &job->segment.control->header;
    struct bxi_arena_words words = { &header->arena_used, &header->arena_committed, &header->arena_high_water };
    int rc;

    bxi_lock(&job->run->lock);
    rc = job->lend->arena != NULL ? bxi_arena_name(job->lend->arena, name, &words)
                                  : bxi_arena_create(name, job->options.arena_bytes, &words, &job->lend->arena);
    bxi_unlock(&job->run->lock);
    return rc;
}

int bxi_boot_early_arena(struct bx_job *job)
{
    int rc = job->lend->arena != NULL ? 0 : bxi_arena_create(NULL, job->options.arena_bytes, NULL, &job->lend->arena);

    if (rc == -EOPNOTSUPP)
        return bx_fail(rc, "worker '%s' cannot make tensors before bx_job_start here: the file system of /dev/shm has "
                           "no files without a name (O_TMPFILE)", job->name);
    return rc < 0 ? bxi_limits_no_arena(job, "", rc) : 0;
}

/* Shows the functions registered so far to the peers. Lock. */
static void publish_functions(struct bx_job *job)
{
    uint32_t count = bxi_functions_copy(job, job->control->function);

    /* [functions] release, pairs with the acquire in refresh (names.c). */
    bxi_store_release(&job->control->header.function_count, count);
}

/* Points the job to its segment, and fills the segment in, before any peer can see it. */
static void adopt_segment(struct bx_job *job)
{
    /* Lock: another thread may register a function meanwhile. Either this thread sees it, or it sees the segment. */
    bxi_lock(&job->run->lock);
    job->control = job->segment.control;
    for (int i = 0; i < BXI_COUNTER_COUNT; i++)
        bxi_store_relaxed(&bxi_tables(job->control)->counters[i], bxi_load_relaxed(&job->observe->private_counters[i]));
    job->counters = bxi_tables(job->control)->counters;
    bxi_run_attach(job->run, &job->control->header.armed, job->counters, &bxi_tables(job->control)->now.spins);
    job->control->header.generation = job->rpc->peers[job->rank]->generation;
    job->control->header.rejoin = job->options.rejoin != 0;
    job->control->header.arena_bytes = bxi_arena_bytes(job->lend->arena);
    for (const struct bxi_batcher *batcher = job->rpc->batchers; batcher != NULL; batcher = batcher->next)
        bxi_batch_show(job, batcher);
    bxi_machine_publish(&job->control->header);
    publish_functions(job);
    bxi_unlock(&job->run->lock);
}

int bxi_boot_readable(const struct bx_job *job, int *segment_fd, int *arena_fd)
{
    char arena_name[BXI_OBJECT_NAME_BYTES];

    bxi_object_arena_name(arena_name, (uint32_t)geteuid(), job->job_name, job->instance, job->rank);
    int rc = open_readable(job, job->segment.shm_name, job->segment.fd, segment_fd);
    if (rc < 0)
        return rc;
    rc = open_readable(job, arena_name, bxi_arena_fd(job->lend->arena), arena_fd);
    if (rc < 0) {
        close(*segment_fd);
        *segment_fd = -1;
    }
    return rc;
}

int bxi_boot_segment(struct bx_job *job, int *segment_fd, int *arena_fd)
{
    char name[BXI_OBJECT_NAME_BYTES], arena_name[BXI_OBJECT_NAME_BYTES], hint[BXI_MAP_HINT_BYTES];
    uint32_t uid = (uint32_t)geteuid();

    /* Noted before the names exist, so a kill leaves no name that is not noted. */
    bxi_object_name(name, uid, job->job_name, job->instance, job->rank);
    bxi_object_arena_name(arena_name, uid, job->job_name, job->instance, job->rank);
    bxi_spawn_note_segment(job, name, arena_name);
    int rc = bxi_segment_create(&job->segment, job->job_name, job->name, job->instance, job->rank,
                                job->world_size);
    if (rc < 0)
        return bxi_limits_no_segment(job, name, rc);
    if ((rc = make_arena(job, arena_name)) < 0)
        return bxi_limits_no_arena(job, arena_name, rc);
    if ((rc = bxi_boot_readable(job, segment_fd, arena_fd)) < 0)
        return rc;
    rc = bxi_arena_attach(&job->rpc->peers[job->rank]->lend->arena, *arena_fd, bxi_arena_bytes(job->lend->arena));
    if (rc < 0) {
        bx_fail(rc, "/dev/shm%s cannot be mapped: %s%s", arena_name, bx_strerror(rc),
                bxi_limits_map_hint(job, rc, hint));
    } else {
        adopt_segment(job);
        rc = bxi_twins_attach(job);
    }
    if (rc < 0) {
        close(*arena_fd);
        close(*segment_fd);
        *arena_fd = *segment_fd = -1;
    }
    return rc;
}

void bxi_boot_fill_self(struct bx_job *job)
{
    struct bxi_peer *self = job->rpc->peers[job->rank];

    self->rank = job->rank;
    self->pid = (uint32_t)getpid();
    bxi_join_set_generation(job, job->rank, 1);
    self->pidfd = -1;
    self->bell.fd[0] = self->bell.fd[1] = -1;
    memcpy(self->name, job->name, sizeof(self->name));
    /* Relaxed: no other thread of the job exists yet. */
    bxi_store_relaxed(&self->state, BXI_PEER_ALIVE);
}

void bxi_boot_describe_self(const struct bx_job *job, struct bxi_boot_entry *entry, int fds[BXI_BOOT_FDS])
{
    const struct bxi_peer *self = job->rpc->peers[job->rank];

    *entry = (struct bxi_boot_entry){ .rank = job->rank, .pid = self->pid, .generation = self->generation };
    memcpy(entry->name, job->name, sizeof(entry->name));
    fds[BXI_BOOT_BELL] = job->run->bell_fd[0];
    fds[BXI_BOOT_BELL_LEADER] = job->run->bell_fd[1];
    fds[BXI_BOOT_PIDFD] = job->boot->pidfd;
}

/* NULL: it is none of this job, or is attached already. */
static struct bxi_peer *place_of(struct bx_job *job, const struct bxi_boot_entry *entry)
{
    if (entry->rank < 0 || entry->rank >= job->world_size || entry->rank == job->rank ||
        job->rpc->peers[entry->rank]->view.control != NULL ||
        memchr(entry->name, 0, sizeof(entry->name)) == NULL || !bxi_name_is_valid(entry->name))
        return NULL;
    return job->rpc->peers[entry->rank];
}

int bxi_boot_add_peer(struct bx_job *job, const struct bxi_boot_entry *entry, int fds[BXI_BOOT_FDS])
{
    struct bxi_join join = { entry->rank, entry->generation, entry->pid, entry->name, fds };
    struct bxi_peer *peer = place_of(job, entry);
    int rc = peer != NULL ? bxi_peer_attach(job, peer, &join) : -EPROTO;

    if (rc < 0)
        return bxi_boot_cannot_attach(job, entry->name, entry->rank, rc);
    fds[BXI_BOOT_BELL] = fds[BXI_BOOT_BELL_LEADER] = fds[BXI_BOOT_PIDFD] = -1;
    bxi_join_set_generation(job, entry->rank, entry->generation);
    /* Relaxed: no other thread of the job exists yet. */
    bxi_store_relaxed(&peer->state, BXI_PEER_ALIVE);
    return 0;
}

void bxi_boot_undo(struct bx_job *job)
{
    struct bxi_arena *arena;

    for (int rank = 0; rank < job->world_size; rank++) {
        struct bxi_peer *peer = job->rpc->peers[rank];

        if (peer->view.control != NULL) {
            bxi_segment_detach(&peer->view);
            if (!peer->is_remote) {         /* else its bells are this worker's own */
                close(peer->bell.fd[0]);
                close(peer->bell.fd[1]);
                close(peer->pidfd);
            }
        }
        if (peer->lend->arena != NULL)
            bxi_arena_view_release(peer->lend->arena);
        bxi_peer_init(job, rank);
    }
    bxi_lock(&job->run->lock);          /* another thread may register a function, or make a tensor */
    /* The pointers that adopt_segment set. */
    job->control = NULL;
    job->counters = job->observe->private_counters;
    bxi_run_attach(job->run, NULL, job->counters, NULL);
    arena = job->lend->arena;
    job->lend->arena = NULL;
    bxi_unlock(&job->run->lock);
    if (arena != NULL) {
        bxi_arena_close(arena);
        bxi_arena_release(arena);
    }
    if (job->segment.control != NULL)
        bxi_segment_destroy(&job->segment);
    bxi_door_close(job);
    bxi_joiners_release(job);           /* last: the next joiner finds nothing of this one */
    job->instance = 0;
}

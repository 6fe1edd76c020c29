/* SPDX-License-Identifier: MIT */
/*
 * Finds jobs by the names in /dev/shm and copies the control pages of their workers.
 *
 * A file name counts only if bxi_object_parse takes it. A worker is alive if its
 * owner lock is held; the lock is queried (F_OFD_GETLK) and not taken. Pids are only displayed. The state of a segment
 * is read before the rest of it, as a peer does: a reader that sees STARTING sees the header.
 *
 * The control pages of all workers are copied first, then, once more, the words that say what each has consumed. So the
 * read position of a ring is never older than its write position in the copy, and the two differ by at most the ring.
 * The pages are not mapped: if a mapped file is truncated, this process dies of SIGBUS.
 */
#include "jobs.h"

#include "remote.h"
#include "state.h"
#include "text.h"

#include "shm/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define SHM_DIRECTORY "/dev/shm"
#define INSTANCE_DIGITS 16

/* ---- Names -------------------------------------------------------------------------------------- */

/* `select`: NULL, a job's name, or NAME.INSTANCE. */
static bool is_selected(const struct bxi_object_parts *name, const char *select)
{
    char full[BXI_NAME_BYTES + INSTANCE_DIGITS + 2];

    if (select == NULL || strcmp(select, name->job) == 0)
        return true;
    snprintf(full, sizeof(full), "%s.%016llx", name->job, (unsigned long long)name->instance);
    return strcmp(select, full) == 0;
}

/* ---- Finding ------------------------------------------------------------------------------------ */

static struct stat_job *job_of(struct stat_jobs *jobs, const struct bxi_object_parts *name)
{
    for (size_t i = 0; i < jobs->count; i++)
        if (jobs->list[i].instance == name->instance && strcmp(jobs->list[i].name, name->job) == 0)
            return &jobs->list[i];

    struct stat_job *list = realloc(jobs->list, (jobs->count + 1) * sizeof(*list));
    if (list == NULL)
        return NULL;
    jobs->list = list;
    list[jobs->count] = (struct stat_job){ .instance = name->instance };
    memcpy(list[jobs->count].name, name->job, BXI_NAME_BYTES);
    return &list[jobs->count++];
}

static int add_name(struct stat_jobs *jobs, const struct bxi_object_parts *name)
{
    struct stat_job *job = job_of(jobs, name);

    if (job == NULL)
        return -ENOMEM;
    if (job->workers[name->rank] == NULL) {
        struct stat_worker *worker = calloc(1, sizeof(*worker));
        if (worker == NULL)
            return -ENOMEM;
        worker->rank = name->rank;
        worker->segment.fd = worker->arena.fd = -1;
        job->workers[name->rank] = worker;
    }
    if (name->is_arena)
        job->workers[name->rank]->arena.exists = true;
    else
        job->workers[name->rank]->segment.exists = true;
    return 0;
}

static int by_name(const void *one, const void *other)
{
    const struct stat_job *a = one, *b = other;
    int order = strcmp(a->name, b->name);

    return order != 0 ? order : (a->instance > b->instance) - (a->instance < b->instance);
}

int stat_jobs_find(struct stat_jobs *jobs, const char *select)
{
    struct dirent *entry;
    struct bxi_object_parts name;
    int rc = 0;

    *jobs = (struct stat_jobs){ 0 };
    DIR *directory = opendir(SHM_DIRECTORY);
    if (directory == NULL)
        return -errno;
    while (rc == 0 && (entry = readdir(directory)) != NULL)
        if (bxi_object_parse(entry->d_name, &name) && is_selected(&name, select))
            rc = add_name(jobs, &name);
    closedir(directory);
    if (rc < 0) {
        stat_jobs_free(jobs);
        return rc;
    }
    if (jobs->count > 1)
        qsort(jobs->list, jobs->count, sizeof(*jobs->list), by_name);
    for (size_t i = 1; i < jobs->count; i++)
        if (strcmp(jobs->list[i].name, jobs->list[i - 1].name) == 0)
            jobs->list[i].twin = jobs->list[i - 1].twin = true;
    return 0;
}

static void free_worker(struct stat_worker *worker)
{
    if (worker == NULL)
        return;
    free(worker->control);
    free(worker->hists);
    free(worker->objects);
    free(worker->remotes);
    free(worker->gpu);
    free(worker);
}

void stat_jobs_free(struct stat_jobs *jobs)
{
    for (size_t i = 0; i < jobs->count; i++) {
        stat_job_close(&jobs->list[i]);
        for (int rank = 0; rank < BXI_WORKERS_MAX; rank++)
            free_worker(jobs->list[i].workers[rank]);
        free(jobs->list[i].calls);
    }
    free(jobs->list);
    *jobs = (struct stat_jobs){ 0 };
}

/* ---- Objects ------------------------------------------------------------------------------------ */

/* 0; -ENOENT if it has been removed meanwhile; -errno. */
static int open_object(struct stat_object *object, const char *shm_name)
{
    struct stat status;
    struct statfs system;

    /* O_NONBLOCK: the object of this name may be a pipe. */
    int fd = shm_open(shm_name, O_RDONLY | O_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &status) < 0 || !S_ISREG(status.st_mode) || status.st_uid != geteuid()) {
        close(fd);
        return -EPERM;
    }
    object->fd = fd;
    object->alive = bxi_file_is_locked(fd, 0, 0);
    object->bytes = (uint64_t)status.st_size;
    object->held = (uint64_t)status.st_blocks * 512;
    object->on_tmpfs = fstatfs(fd, &system) == 0 && system.f_type == TMPFS_MAGIC;
    return 0;
}

static void close_object(struct stat_object *object)
{
    if (object->fd >= 0)
        close(object->fd);
    object->fd = -1;
}

int stat_pread(const struct stat_object *object, void *to, uint64_t bytes, uint64_t offset)
{
    uint64_t done = 0;

    while (done < bytes) {
        ssize_t got = pread(object->fd, (char *)to + done, bytes - done, (off_t)(offset + done));

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? -errno : -ENODATA;
        done += (uint64_t)got;
    }
    /* Orders two reads in a row, on every processor. */
    bxi_fence_seq_cst();
    return 0;
}

/* ---- Workers ------------------------------------------------------------------------------------ */

#define HEADER(worker) ((worker)->control->header)

static void __attribute__((format(printf, 3, 4)))
set_problem(struct stat_worker *worker, enum stat_found found, const char *format, ...)
{
    va_list args;

    worker->found = found;
    va_start(args, format);
    vsnprintf(worker->problem, sizeof(worker->problem), format, args);
    va_end(args);
}

/* Compares the header with the file's name and size. A worker of this version never writes a header that differs. */
static void judge(const struct stat_job *job, struct stat_worker *worker)
{
    const struct bxi_header *header = &HEADER(worker);
    unsigned long long bytes = header->segment_bytes;

    if (header->uid != (uint32_t)geteuid() || header->rank != (uint32_t)worker->rank ||
        header->instance != job->instance || memchr(header->name, 0, BXI_NAME_BYTES) == NULL ||
        strncmp(header->job, job->name, BXI_NAME_BYTES) != 0)
        set_problem(worker, STAT_NOISE, "its header is not that of a worker of the file's name");
    else if (header->world_size < 1 || header->world_size > BXI_WORKERS_MAX || header->rank >= header->world_size)
        set_problem(worker, STAT_NOISE, "its header says %u workers", header->world_size);
    else if (header->ring_bytes != BXI_RING_BYTES)
        set_problem(worker, STAT_NOISE, "its header says rings of %u bytes", header->ring_bytes);
    else if (bytes != bxi_segment_bytes((int)header->world_size))
        set_problem(worker, STAT_NOISE, "its header says %llu bytes, where %u workers need %llu", bytes,
                    header->world_size, (unsigned long long)bxi_segment_bytes((int)header->world_size));
    else if (bytes != worker->segment.bytes)
        set_problem(worker, STAT_NOISE, "its header says %llu bytes, and the file has %llu: truncated, or grown", bytes,
                    (unsigned long long)worker->segment.bytes);
    else
        worker->found = STAT_READABLE;
}

static void blank(struct stat_worker *worker)
{
    set_problem(worker, STAT_BLANK, worker->segment.alive ? "it is just being made"
                                                          : "its owner was killed while it made the segment");
}

char stat_thread_state(uint32_t pid, uint64_t thread)
{
    char path[96], text[512];

    snprintf(path, sizeof(path), "/proc/%u/task/%llu/stat", pid, (unsigned long long)thread);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    size_t bytes = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[bytes] = '\0';
    /* After the last bracket: a program's name may contain one. */
    const char *bracket = strrchr(text, ')');
    if (bracket == NULL || bracket[1] != ' ')
        return 0;
    return bracket[2];
}

/* These fields lie at the same place in every layout. */
static void read_first_fields(struct stat_worker *worker)
{
    worker->layout_version = HEADER(worker).layout_version;
    worker->pid = HEADER(worker).pid;
    if (worker->segment.alive)
        worker->process = stat_thread_state(worker->pid, worker->pid);
}

/* The owner writes the magic, then the state. */
static bool is_being_made(const struct stat_worker *worker, uint32_t state)
{
    const struct bxi_header *header = &HEADER(worker);

    return state == 0 && (header->magic == 0 ||
                          (header->magic == BXI_MAGIC && header->layout_version == BXI_LAYOUT_VERSION &&
                           worker->segment.bytes >= BXI_CONTROL_BYTES));
}

int stat_control_read(const struct stat_object *object, uint64_t bytes, struct bxi_control *control)
{
    uint64_t fixed = bytes < BXI_BY_RANK_OFFSET ? bytes : BXI_BY_RANK_OFFSET;
    int rc = stat_pread(object, control, fixed, 0);
    uint32_t world_size = control->header.world_size;
    uint64_t rows = bxi_by_rank_bytes(world_size <= BXI_WORKERS_MAX ? (int)world_size : 0);

    for (uint64_t at = BXI_BY_RANK_OFFSET; rc == 0 && at < BXI_CONTROL_BYTES; at += BXI_BY_RANK_STRIDE)
        if (at + rows <= bytes)
            rc = stat_pread(object, (char *)control + at, rows, at);
    return rc;
}

/* Fills worker->control from its open segment. */
static void read_control(const struct stat_job *job, struct stat_worker *worker)
{
    uint32_t state = 0;
    uint64_t bytes = worker->segment.bytes < BXI_CONTROL_BYTES ? worker->segment.bytes : BXI_CONTROL_BYTES;

    if (bytes == 0) {
        blank(worker);
        return;
    }
    if (bytes >= sizeof(struct bxi_header))
        stat_pread(&worker->segment, &state, sizeof(state), offsetof(struct bxi_header, state));
    int rc = stat_control_read(&worker->segment, bytes, worker->control);
    if (rc < 0) {
        set_problem(worker, STAT_NOISE, "it cannot be read: %s", strerror(-rc));
    } else if (is_being_made(worker, state)) {
        blank(worker);
    } else if (HEADER(worker).magic != BXI_MAGIC) {
        set_problem(worker, STAT_NOISE, "it begins with %016llx and is no segment",
                    (unsigned long long)HEADER(worker).magic);
    } else if (HEADER(worker).layout_version != BXI_LAYOUT_VERSION) {
        read_first_fields(worker);
        set_problem(worker, STAT_OTHER_VERSION, "it has layout version %u, and this shmstat knows %u",
                    worker->layout_version, BXI_LAYOUT_VERSION);
    } else if (bytes < BXI_CONTROL_BYTES) {
        set_problem(worker, STAT_NOISE, "it is truncated to %llu bytes", (unsigned long long)worker->segment.bytes);
    } else {
        read_first_fields(worker);
        worker->state = state;
        judge(job, worker);
    }
}

static int read_worker(const struct stat_job *job, struct stat_worker *worker)
{
    char shm_name[BXI_OBJECT_NAME_BYTES];
    int rc = -ENOENT;

    bxi_object_arena_name(shm_name, (uint32_t)geteuid(), job->name, job->instance, worker->rank);
    if (worker->arena.exists)
        worker->arena.exists = open_object(&worker->arena, shm_name) == 0;
    bxi_object_name(shm_name, (uint32_t)geteuid(), job->name, job->instance, worker->rank);
    if (worker->segment.exists)
        rc = open_object(&worker->segment, shm_name);
    worker->segment.exists = rc == 0;
    if (rc < 0) {
        set_problem(worker, rc == -ENOENT ? STAT_ABSENT : STAT_NOISE, "%s",
                    rc == -ENOENT ? "its segment is gone"
                    : rc == -EPERM ? "it is no file of this user" : strerror(-rc));
        return 0;
    }
    worker->control = calloc(1, sizeof(*worker->control));
    if (worker->control == NULL)
        return -ENOMEM;
    read_control(job, worker);
    if (worker->found == STAT_READABLE) {
        stat_printable(worker->name, sizeof(worker->name), HEADER(worker).name, BXI_NAME_BYTES);
        return stat_remotes_read(worker);
    }
    free(worker->control);
    worker->control = NULL;
    return 0;
}

/* Copies again what the worker has consumed, after the write positions of all workers. */
static void read_late(struct stat_worker *worker)
{
    const uint64_t rows = bxi_by_rank_bytes((int)HEADER(worker).world_size);

    memcpy(worker->credit, worker->control->credit, rows);
    memcpy(worker->received, bxi_tables(worker->control)->pair_counters, rows);
    stat_pread(&worker->segment, worker->credit, rows, offsetof(struct bxi_control, credit));
    stat_pread(&worker->segment, worker->received, rows, offsetof(struct bxi_tables, pair_counters));
}

int stat_job_read(struct stat_job *job)
{
    struct stat_worker *worker = NULL;
    int rc = 0;

    while (rc == 0 && (worker = stat_next(job, worker)) != NULL)
        rc = read_worker(job, worker);
    if (rc < 0)
        stat_job_close(job);
    while (rc == 0 && (worker = stat_next_reader(job, worker)) != NULL)
        read_late(worker);
    return rc;
}

void stat_job_close(struct stat_job *job)
{
    for (struct stat_worker *worker = NULL; (worker = stat_next(job, worker)) != NULL;) {
        close_object(&worker->segment);
        close_object(&worker->arena);
    }
}

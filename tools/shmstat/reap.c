/* SPDX-License-Identifier: MIT */
/*
 * shmstat reap: what jobs without a living worker left in /dev/shm and in the directory of sockets.
 *
 * Lists it; with --yes, removes it. No decision depends on a pid: bxi_object_reap unlinks an object of shared memory
 * under its owner lock. A job's socket is unlinked under the lock of its lock file, which rank 0 holds while it lives;
 * so is the lock file itself, and the file of the joiners' mutex under its own lock. The door of a worker is dead if
 * connect(2) is refused. An object that is locked again between the list and the removal stays. A job with a living
 * worker is not touched: its survivors remove what their dead left.
 */
#include "json.h"
#include "list.h"
#include "shmstat.h"
#include "state.h"
#include "text.h"

#include "shm/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define PATH_BYTES 512

struct reaping {
    const struct stat_options *options;
    unsigned listed;
    unsigned removed;
    unsigned failed;
    bool has_files;             /* the job has some in the directory of sockets, held or not */
};

static void report(struct reaping *reaping, const char *path, uint64_t bytes, const char *job, int error, bool removed)
{
    const char *what = removed ? "removed" : error != 0 ? "FAILED" : reaping->options->yes ? "kept" : "dead";

    reaping->listed++;
    reaping->removed += removed;
    reaping->failed += error != 0;
    if (!reaping->options->json) {
        printf("%-8s %10s  %s%s%s\n", what, stat_bytes_text(bytes), path, error != 0 ? ": " : "",
               error != 0 ? strerror(error) : "");
        return;
    }
    stat_json_open(NULL, '{');
    stat_json_text("path", path);
    stat_json_text("job", job);
    stat_json_u64("shm_bytes", bytes);
    stat_json_bool("removed", removed);
    stat_json_text("error", error != 0 ? strerror(error) : NULL);
    stat_json_close('}');
}

/* ---- /dev/shm ----------------------------------------------------------------------------------- */

/* After the removal: reports whether the object is gone. */
static void report_object(struct reaping *reaping, const struct stat_job *job, const struct stat_object *object,
                          const char *shm_name)
{
    char path[PATH_BYTES];
    int error = 0;
    bool removed = false;

    if (!object->exists)
        return;
    snprintf(path, sizeof(path), "/dev/shm%s", shm_name);
    if (reaping->options->yes) {
        int fd = shm_open(shm_name, O_RDONLY | O_NONBLOCK, 0);

        removed = fd < 0 && errno == ENOENT;
        /* It exists. Without an owner: it could not be removed. With one: a new owner has it, and it stays. */
        if (fd >= 0 && !bxi_file_is_locked(fd, 0, 0))
            error = EPERM;
        if (fd >= 0)
            close(fd);
    }
    report(reaping, path, object->held, job->name, error, removed);
}

static void reap_job(struct reaping *reaping, const struct stat_job *job)
{
    char name[BXI_OBJECT_NAME_BYTES];

    if (stat_job_alive(job))
        return;
    if (reaping->options->yes)
        bxi_object_reap(job->name, job->instance);
    for (int rank = 0; rank < BXI_WORKERS_MAX; rank++) {
        if (job->workers[rank] == NULL)
            continue;
        bxi_object_name(name, (uint32_t)geteuid(), job->name, job->instance, rank);
        report_object(reaping, job, &job->workers[rank]->segment, name);
        bxi_object_arena_name(name, (uint32_t)geteuid(), job->name, job->instance, rank);
        report_object(reaping, job, &job->workers[rank]->arena, name);
    }
}

/* ---- Sockets ------------------------------------------------------------------------------------ */

static bool exists(const char *path)
{
    struct stat status;

    return lstat(path, &status) == 0;
}

/* Removes the file under the lock, and a lock file that was not there before. False if the lock is held. */
static bool sweep(const char *path, const char *lock_path)
{
    bool had_lock = exists(lock_path);
    int fd = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    bool taken = fd >= 0 && bxi_file_lock(fd, F_WRLCK, 0, 0) == 0 && bxi_file_leads_to(lock_path, fd);

    if (taken)
        unlink(path);
    if (taken && !had_lock)
        unlink(lock_path);
    if (fd >= 0)
        close(fd);
    return taken;
}

/* True if somebody holds the lock. */
static bool is_held(const char *lock_path)
{
    int fd = open(lock_path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    bool held = fd >= 0 && bxi_file_is_locked(fd, 0, 0);

    if (fd >= 0)
        close(fd);
    return held;
}

static bool has_living(const struct stat_jobs *jobs, const char *name)
{
    for (size_t i = 0; i < jobs->count; i++)
        if (strcmp(jobs->list[i].name, name) == 0 && stat_job_alive(&jobs->list[i]))
            return true;
    return false;
}

static bool nobody_listens(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    size_t bytes = strlen(path);
    bool is_refused;

    memcpy(address.sun_path, path, bytes < sizeof(address.sun_path) ? bytes : 0);
    is_refused = fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 && errno == ECONNREFUSED;
    if (fd >= 0)
        close(fd);
    return is_refused;
}

/* What the directory holds for a job. A file is dead if nobody has the lock of the job's file with that suffix; a door,
 * if nobody listens at it. */
static const struct kind {
    const char *suffix, *lock_suffix;
} kinds[] = {
    { ".sock", ".lock" }, { ".lock", ".lock" }, { ".join", ".join" }, { ".door", NULL },
};

/* The kind of that file, and the job in its name: of a door in "JOB.INSTANCE.RANK.GENERATION.door". */
static const struct kind *kind_of(const char *file, char job[NAME_MAX + 1])
{
    const char *suffix = strrchr(file, '.');

    for (size_t i = 0; suffix != NULL && i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(suffix, kinds[i].suffix) != 0)
            continue;
        snprintf(job, NAME_MAX + 1, "%.*s", (int)(suffix - file), file);
        for (int dots = kinds[i].lock_suffix == NULL ? 3 : 0; dots > 0; dots--) {
            char *dot = strrchr(job, '.');

            if (dot == NULL)
                return NULL;
            *dot = '\0';
        }
        return job[0] != '\0' && strlen(job) < BXI_NAME_BYTES ? &kinds[i] : NULL;
    }
    return NULL;
}

static bool is_selected(struct reaping *reaping, const struct stat_jobs *jobs, const char *job)
{
    if (reaping->options->select != NULL && strcmp(reaping->options->select, job) != 0)
        return false;
    reaping->has_files = true;
    return !has_living(jobs, job);
}

static void reap_file(struct reaping *reaping, const struct stat_jobs *jobs, const char *directory, const char *file)
{
    char job[NAME_MAX + 1], path[PATH_BYTES], lock_path[PATH_BYTES] = "";
    const struct kind *kind = kind_of(file, job);
    bool taken = false;

    if (kind == NULL || !is_selected(reaping, jobs, job))
        return;
    snprintf(path, sizeof(path), "%s/%s", directory, file);
    if (kind->lock_suffix != NULL)
        snprintf(lock_path, sizeof(lock_path), "%s/%s%s", directory, job, kind->lock_suffix);
    if (kind->lock_suffix != NULL ? is_held(lock_path) : !nobody_listens(path))
        return;
    if (reaping->options->yes)
        taken = kind->lock_suffix != NULL ? sweep(path, lock_path) : unlink(path) == 0 || errno != ENOENT;
    report(reaping, path, 0, job, taken && exists(path) ? EPERM : 0, reaping->options->yes && !exists(path));
}

static void reap_sockets(struct reaping *reaping, const struct stat_jobs *jobs)
{
    char directory[256];
    struct stat status;
    struct dirent *entry;

    bxi_object_sockets(directory, sizeof(directory));
    if (lstat(directory, &status) < 0 || !S_ISDIR(status.st_mode) || status.st_uid != geteuid())
        return;
    DIR *stream = opendir(directory);
    if (stream == NULL)
        return;
    while ((entry = readdir(stream)) != NULL)
        reap_file(reaping, jobs, directory, entry->d_name);
    closedir(stream);
}

/* ---- All of it ---------------------------------------------------------------------------------- */

static void print_sum(const struct reaping *reaping)
{
    if (reaping->listed == 0)
        printf("dead jobs of this user left nothing\n");
    else if (!reaping->options->yes)
        printf("%u left by dead jobs; nothing was removed, --yes does that\n", reaping->listed);
    else
        printf("%u removed of %u left by dead jobs\n", reaping->removed, reaping->listed);
}

int stat_reap(const struct stat_options *options)
{
    struct reaping reaping = { .options = options };
    struct stat_jobs jobs;
    int rc = stat_jobs_find(&jobs, options->select);

    if (rc < 0) {
        fprintf(stderr, "shmstat: /dev/shm cannot be read: %s\n", strerror(-rc));
        return STAT_NOTHING;
    }
    if (options->json) {
        stat_json_begin("reap");
        stat_json_bool("yes", options->yes);
        stat_json_open("left", '[');
    }
    for (size_t i = 0; i < jobs.count && rc == 0; i++) {
        rc = stat_read(&jobs.list[i], 0) == STAT_FINE ? 0 : -ENOMEM;
        stat_job_close(&jobs.list[i]);
        if (rc == 0)
            reap_job(&reaping, &jobs.list[i]);
    }
    if (rc == 0)
        reap_sockets(&reaping, &jobs);
    /* A job that is not in /dev/shm may have files beside its sockets. */
    bool is_there = options->select == NULL || jobs.count > 0 || reaping.has_files;
    if (options->json) {
        stat_json_close(']');
        stat_json_u64("listed", reaping.listed);
        stat_json_u64("removed", reaping.removed);
        stat_json_end();
    } else if (is_there) {
        print_sum(&reaping);
    }
    stat_jobs_free(&jobs);
    if (rc == 0 && !is_there)
        return stat_find(&jobs, options);
    return rc < 0 ? STAT_NOTHING : reaping.failed > 0 ? STAT_FOUND : STAT_FINE;
}

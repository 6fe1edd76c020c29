/* SPDX-License-Identifier: MIT */
/*
 * The names of doors (door.c) and the joiners' mutex (rejoin.c), in the socket directory.
 *
 * Who runs it: the thread in bx_job_start; the door's thread; the thread that ends the job; a survivor of a worker that
 * died; the launcher.
 *
 * A door is a socket with the name "JOB.INSTANCE.RANK.GENERATION.door". The directory has mode 0700, so no other user
 * can take such a name, nor connect. Why not abstract names, which end with their process: they have no owner, so any
 * user may take one first; and they end at a network namespace, where a directory that is mounted does not. With the
 * generation in the name, a process that removes the door of a dead worker never removes that of its successor.
 *
 * The mutex is a lock of the open file description (OFD) of "JOB.join". The holder removes the name before it releases
 * the lock, so a process that has taken the lock checks that the name still leads to its file, and begins again if not.
 *
 * Killed at any step: the name of a door stays, and connect(2) is refused, for the kernel closes the socket. A survivor
 * removes the name of each worker whose pidfd it has; the next joiner that has the same rank and generation replaces
 * the name; bxi_doors_sweep removes all at which nobody listens, at the end of the job. A door that is not listening
 * yet is taken for one of these: its thread makes the name again (door.c). The name of the mutex stays, and its lock is
 * free: the next joiner takes the file as it is, and bxi_doors_sweep removes it under its lock.
 */
#include "job.h"

#include "shm/file.h"
#include "shm/fork.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#define LOCK_ATTEMPTS 16                /* all but the last lost to a process that removed the name */

/* ---- Names ------------------------------------------------------------------------------------- */

static int file_name(char *out, size_t bytes, const char *job_name, const struct bxi_door_id *id)
{
    return snprintf(out, bytes, "%s.%016llx.%d.%u.door", job_name, (unsigned long long)id->instance, id->rank,
                    id->generation);
}

int bxi_door_path(char out[BXI_BOOT_PATH_BYTES], const struct bxi_boot_paths *paths, const char *job_name,
                  const struct bxi_door_id *id)
{
    int length = snprintf(out, BXI_BOOT_PATH_BYTES, "%s/", paths->directory);

    length += file_name(out + length, BXI_BOOT_PATH_BYTES - (size_t)length, job_name, id);
    if (length < BXI_BOOT_PATH_BYTES)
        return 0;
    return bx_fail(BX_E_SOCKET_DIR, "the socket directory %s has too long a name for the doors of job '%s' (%d bytes "
                                    "at most in all); set XDG_RUNTIME_DIR to a shorter one", paths->directory, job_name,
                   BXI_BOOT_PATH_BYTES - 1);
}

/* True if file is the name of a door of this job: the name made again from the parsed parts must be equal. */
static bool is_door_of(const char *file, const char *job_name, struct bxi_door_id *id)
{
    char canonical[BXI_BOOT_PATH_BYTES];
    size_t prefix = strlen(job_name);
    unsigned long long instance;

    if (strncmp(file, job_name, prefix) != 0 ||
        sscanf(file + prefix, ".%16llx.%d.%u.door", &instance, &id->rank, &id->generation) != 3)
        return false;
    id->instance = instance;
    if (id->rank < 0 || id->rank >= BXI_WORLD_MAX || id->generation < 1 || id->generation > BXI_GENERATION_MAX)
        return false;
    file_name(canonical, sizeof(canonical), job_name, id);
    return strcmp(file, canonical) == 0;
}

int bxi_doors_find(const char *directory, const char *job_name, bxi_door_fn *found, void *context)
{
    DIR *stream = opendir(directory);
    struct bxi_door_id id;
    struct dirent *entry;

    if (stream == NULL)
        return errno == ENOENT ? 0 : -errno;
    while ((entry = readdir(stream)) != NULL)
        if (is_door_of(entry->d_name, job_name, &id))
            found(context, &id);
    closedir(stream);
    return 0;
}

void bxi_door_close(struct bx_job *job)
{
    if (job->boot->door_fd <= 0)
        return;
    unlink(job->boot->door_path);
    bxi_unshared_close(job->boot->door_fd);
    job->boot->door_fd = 0;
    bxi_spawn_note(job, BXI_NOTED_DOOR, NULL);
}

/* ---- The mutex --------------------------------------------------------------------------------- */

int bxi_boot_lock_file(const char *path, int flags, int (*take)(int fd))
{
    for (int attempt = 0; attempt < LOCK_ATTEMPTS; attempt++) {
        int fd = BXI_UNSHARED(open(path, O_RDWR | flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));

        if (fd < 0)
            return -errno;
        int rc = take(fd);
        bool is_named = bxi_file_leads_to(path, fd);
        if (rc == 0 && is_named)
            return fd;
        bxi_unshared_close(fd);
        if (is_named)
            return rc;
    }
    return -EAGAIN;
}

static int take_mutex(int fd)
{
    return bxi_file_lock(fd, F_WRLCK, 0, 0);
}

int bxi_joiners_lock(const char *path)
{
    return bxi_boot_lock_file(path, O_CREAT, take_mutex);
}

void bxi_joiners_unlock(const char *path, int fd)
{
    if (bxi_file_leads_to(path, fd))
        unlink(path);
    bxi_unshared_close(fd);
}

void bxi_joiners_release(struct bx_job *job)
{
    if (job->boot->mutex_fd <= 0)
        return;
    bxi_spawn_note(job, BXI_NOTED_MUTEX, NULL);
    bxi_joiners_unlock(job->boot->paths.join, job->boot->mutex_fd);
    job->boot->mutex_fd = 0;
}

/* ---- What dead workers left -------------------------------------------------------------------- */

struct sweep {
    const struct bxi_boot_paths *paths;
    const char *job_name;
};

static void sweep_one(void *context, const struct bxi_door_id *id)
{
    const struct sweep *sweep = context;
    char path[BXI_BOOT_PATH_BYTES];
    uint32_t pid;

    if (bxi_door_path(path, sweep->paths, sweep->job_name, id) < 0)
        return;
    int fd = bxi_boot_connect(path, &pid);
    if (fd == -ECONNREFUSED)
        unlink(path);
    if (fd >= 0)
        close(fd);
}

void bxi_doors_sweep(const struct bxi_boot_paths *paths, const char *job_name)
{
    struct sweep sweep = { paths, job_name };

    bxi_doors_find(paths->directory, job_name, sweep_one, &sweep);
    int fd = bxi_boot_lock_file(paths->join, 0, take_mutex);
    if (fd >= 0)
        bxi_joiners_unlock(paths->join, fd);
}

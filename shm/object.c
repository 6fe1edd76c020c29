/* SPDX-License-Identifier: MIT */
/*
 * Names of segments and arenas, the owner lock, and the removal of what dead workers left.
 *
 * Who runs it: a worker, in the thread that starts its job (names, create); a survivor, a launcher or shmstat (reap).
 *
 * The owner lock distinguishes a living owner from a dead one, so no process may take a name whose owner has not
 * locked it yet for a dead one. Creation takes two steps, the name and then the lock. The reaper does not only ask who
 * has the lock: it takes the lock before it unlinks. So one of the two is first:
 *
 *     owner    create the name (O_EXCL), lock, check that the name still exists    reaper   open, lock, unlink, close
 *
 * If the reaper has the lock, the owner's lock fails, or the owner finds its name gone afterwards; it starts again. If
 * the owner has the lock, the reaper skips the object. A name is unlinked only under the lock of the object that it
 * names; so an object that is locked and has a link is the one to which its name leads.
 *
 * Why not always an unnamed file that is linked once it is complete (O_TMPFILE): not every file system that is mounted
 * on /dev/shm has it. Only an arena that is made before the job has an instance, and so a name, is made like that.
 *
 * Killed while it has no name: nothing is left. After the name, before the lock: an empty file, which the next reaper
 * removes. Killed later: the kernel drops the lock with the last descriptor, and a reaper removes the file; peers keep
 * their mappings. A child that the owner has forked has closed the descriptor (fork.c).
 */
#include "object.h"

#include "backoff.h"
#include "file.h"
#include "fork.h"
#include "step.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define CREATE_ATTEMPTS 1000          /* all but the last lost to a reaper */
#define SHM_DIRECTORY "/dev/shm"
#define ARENA_SUFFIX ".arena"

/* The longest name: uid, job, instance and rank at their full lengths. */
static_assert(sizeof("/boxcar.4294967295.") + BXI_NAME_BYTES + sizeof(".0123456789abcdef.127" ARENA_SUFFIX) <=
                  BXI_OBJECT_NAME_BYTES,
              "names fit");

void bxi_object_name(char out[BXI_OBJECT_NAME_BYTES], uint32_t uid, const char *job, uint64_t instance, int rank)
{
    snprintf(out, BXI_OBJECT_NAME_BYTES, "/boxcar.%u.%.*s.%016llx.%d", uid, BXI_NAME_BYTES - 1, job,
             (unsigned long long)instance, rank);
}

void bxi_object_arena_name(char out[BXI_OBJECT_NAME_BYTES], uint32_t uid, const char *job, uint64_t instance, int rank)
{
    bxi_object_name(out, uid, job, instance, rank);
    memcpy(out + strlen(out), ARENA_SUFFIX, sizeof(ARENA_SUFFIX));
}

int bxi_object_sockets(char *out, size_t bytes)
{
    const char *runtime = secure_getenv("XDG_RUNTIME_DIR");

    return runtime != NULL && runtime[0] == '/' ? snprintf(out, bytes, "%s/boxcar", runtime)
                                                : snprintf(out, bytes, "/tmp/boxcar-%u", (unsigned)geteuid());
}

/* Creates the object and locks it. 0; -EAGAIN: a reaper was faster; -errno. */
static int create_locked(const char *shm_name, int *fd_out)
{
    struct stat status = { 0 };
    int rc;

    int fd = BXI_UNSHARED(shm_open(shm_name, O_RDWR | O_CREAT | O_EXCL, 0600));
    if (fd < 0)
        return -errno;
    BXI_STEP("segment.named");
    rc = bxi_file_lock(fd, F_WRLCK, 0, 0);
    if (rc < 0)
        goto close_fd;      /* the reaper that has the lock unlinks the name */
    fstat(fd, &status);
    if (status.st_nlink == 0) {
        rc = -EAGAIN;
        goto close_fd;
    }
    *fd_out = fd;
    return 0;

close_fd:
    bxi_unshared_close(fd);
    return rc;
}

int bxi_object_create(const char *shm_name, int *fd)
{
    uint32_t turns = 0;
    int rc = -EAGAIN;

    for (int attempt = 0; attempt < CREATE_ATTEMPTS && rc == -EAGAIN; attempt++) {
        if (attempt > 0)
            bxi_back_off(&turns);   /* the reaper is about to unlink and unlock */
        rc = create_locked(shm_name, fd);
        if (attempt > 0 && rc == -EEXIST)
            rc = -EAGAIN;           /* the name of the last attempt, not unlinked yet */
    }
    return rc;
}

int bxi_object_create_unnamed(int *fd_out)
{
    int fd = BXI_UNSHARED(open(SHM_DIRECTORY, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));

    if (fd < 0)     /* EISDIR: the kernel does not know O_TMPFILE */
        return errno == EISDIR ? -EOPNOTSUPP : -errno;
    BXI_STEP("object.unnamed");

    int rc = bxi_file_lock(fd, F_WRLCK, 0, 0);

    if (rc < 0) {
        bxi_unshared_close(fd);
        return rc;
    }
    *fd_out = fd;
    return 0;
}

int bxi_object_link(int fd, const char *shm_name)
{
    char from[32], to[sizeof(SHM_DIRECTORY) + BXI_OBJECT_NAME_BYTES];

    snprintf(from, sizeof(from), "/proc/self/fd/%d", fd);
    snprintf(to, sizeof(to), SHM_DIRECTORY "%.*s", BXI_OBJECT_NAME_BYTES - 1, shm_name);
    if (linkat(AT_FDCWD, from, AT_FDCWD, to, AT_SYMLINK_FOLLOW) < 0)
        return -errno;
    BXI_STEP("object.linked");
    return 0;
}

int bxi_object_find_owner(const char *job, uint64_t instance, int rank, struct bxi_object_owner *owner)
{
    char shm_name[BXI_OBJECT_NAME_BYTES];
    struct bxi_header header;

    bxi_object_name(shm_name, (uint32_t)geteuid(), job, instance, rank);
    int fd = shm_open(shm_name, O_RDONLY | O_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    /* Read, not mapped: the file may be truncated meanwhile. */
    bool is_whole = bxi_file_is_locked(fd, 0, 0) && pread(fd, &header, sizeof(header), 0) == (ssize_t)sizeof(header) &&
                    header.magic == BXI_MAGIC && header.layout_version == BXI_LAYOUT_VERSION;
    close(fd);
    if (!is_whole)
        return -ENOENT;
    owner->pid = header.pid;
    owner->state = bxi_load_relaxed(&header.state);     /* relaxed: of a private copy */
    owner->world_size = header.world_size;
    owner->generation = header.generation;
    owner->rejoin = header.rejoin != 0;
    memcpy(owner->name, header.name, sizeof(owner->name));
    owner->name[sizeof(owner->name) - 1] = '\0';
    return 0;
}

bool bxi_object_parse(const char *file_name, struct bxi_object_parts *parts)
{
    const size_t suffix = sizeof(ARENA_SUFFIX) - 1;
    char canonical[BXI_OBJECT_NAME_BYTES];
    size_t length = strlen(file_name);
    int job_at = 0;

    parts->is_arena = length > suffix && strcmp(file_name + length - suffix, ARENA_SUFFIX) == 0;
    length -= parts->is_arena ? suffix : 0;
    (void)sscanf(file_name, "boxcar.%*u.%n", &job_at);

    /* A job's name may have dots. */
    const char *rank = memrchr(file_name, '.', length);
    const char *instance = rank != NULL ? memrchr(file_name, '.', (size_t)(rank - file_name)) : NULL;
    ptrdiff_t job_bytes = instance != NULL ? instance - file_name - job_at : 0;

    if (job_at == 0 || job_bytes < 1 || job_bytes >= BXI_NAME_BYTES)
        return false;
    memset(parts->job, 0, sizeof(parts->job));
    memcpy(parts->job, file_name + job_at, (size_t)job_bytes);
    parts->instance = strtoull(instance + 1, NULL, 16);
    parts->rank = (int)strtol(rank + 1, NULL, 10);
    if (parts->rank < 0 || parts->rank >= BXI_WORKERS_MAX)
        return false;
    (parts->is_arena ? bxi_object_arena_name : bxi_object_name)(canonical, (uint32_t)geteuid(), parts->job,
                                                                parts->instance, parts->rank);
    return strcmp(file_name, canonical + 1) == 0;
}

static bool is_name_of(const char *file_name, const char *job, uint64_t *instance)
{
    struct bxi_object_parts parts;

    if (!bxi_object_parse(file_name, &parts) || strncmp(parts.job, job, BXI_NAME_BYTES - 1) != 0)
        return false;
    *instance = parts.instance;
    return true;
}

int bxi_object_instances(const char *job, uint64_t *instances, int most)
{
    struct dirent *entry;
    uint64_t instance;
    int count = 0, seen;

    DIR *directory = opendir(SHM_DIRECTORY);
    if (directory == NULL)
        return -errno;
    while (count < most && (entry = readdir(directory)) != NULL) {
        if (!is_name_of(entry->d_name, job, &instance))
            continue;
        for (seen = 0; seen < count && instances[seen] != instance; seen++)
            ;
        if (seen == count)
            instances[count++] = instance;
    }
    closedir(directory);
    return count;
}

/* 1 if it removed the name; 0 if the object is not this user's, has an owner or is gone already; -errno. */
static int reap_one(const char *file_name)
{
    char shm_name[BXI_OBJECT_NAME_BYTES];
    struct stat before = { 0 }, locked = { 0 };
    int removed = 0;

    snprintf(shm_name, sizeof(shm_name), "/%.*s", BXI_OBJECT_NAME_BYTES - 2, file_name);
    /* O_NONBLOCK: an object of this name need not be a regular file. */
    int fd = BXI_UNSHARED(shm_open(shm_name, O_RDWR | O_NONBLOCK, 0));
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    fstat(fd, &before);
    if (!S_ISREG(before.st_mode) || before.st_uid != geteuid())
        goto close_fd;
    if (bxi_file_lock(fd, F_WRLCK, 0, 0) < 0)
        goto close_fd;
    /* Unlinked before the lock was taken: then the name may lead to another object by now. */
    fstat(fd, &locked);
    if (locked.st_nlink == 0)
        goto close_fd;
    removed = shm_unlink(shm_name) < 0 ? -errno : 1;

close_fd:
    bxi_unshared_close(fd);
    return removed;
}

int bxi_object_reap(const char *job, uint64_t instance)
{
    struct dirent *entry;
    uint64_t its_instance;
    int removed = 0;
    int error = 0;

    DIR *directory = opendir(SHM_DIRECTORY);
    if (directory == NULL)
        return -errno;
    while ((entry = readdir(directory)) != NULL) {
        if (!is_name_of(entry->d_name, job, &its_instance) || (instance != 0 && its_instance != instance))
            continue;
        int rc = reap_one(entry->d_name);
        if (rc < 0)
            error = rc;
        else
            removed += rc;
    }
    closedir(directory);
    return removed == 0 ? error : removed;
}

void bxi_object_unlink(const char *job, uint64_t instance, int rank)
{
    char name[BXI_OBJECT_NAME_BYTES];

    bxi_object_name(name, (uint32_t)geteuid(), job, instance, rank);
    shm_unlink(name);
    bxi_object_arena_name(name, (uint32_t)geteuid(), job, instance, rank);
    shm_unlink(name);
}

/* SPDX-License-Identifier: MIT */
/*
 * The names of a job outside of /dev/shm: the socket directory, the socket, the lock file beside it (door_files.c has
 * the others); and the removal of what a dead worker left, in /dev/shm too.
 *
 * Who runs it: the thread in bx_job_start; the thread that ends the job; a survivor of a worker that died; the
 * launcher.
 *
 * The lock file. Two bytes of it are locked by open file description (OFD), so a lock ends with its process, whose
 * forked children have closed the descriptor (shm/fork.c):
 *
 *     byte 0  the job     rank 0 holds it from its start until the end of its job. The holder may replace the socket
 *                         that a dead rank 0 left; a second rank 0 learns at once that a job of that name runs.
 *     byte 1  the guard   held for the moments in which a process takes byte 0, or removes names that no process holds.
 *                         So a process that removes them is never taken for a rank 0.
 *
 * Rank 0 removes the file's name while it holds byte 0. A process that has taken byte 0 checks that the name still
 * leads to the file, and begins again if not.
 *
 * The text of the file is one line, written by rank 0. A worker that waits for rank 0 keeps the file open, so it can
 * read the last line of a rank 0 that has removed the name already:
 *
 *     PID starting
 *     PID running INSTANCE        the gate is open: no worker can join any more
 *     PID failed CODE SENTENCE    there will be no job. Counts once the name is gone. (PID 0: rank 0 has died; the
 *                                 process that saw it wrote the line and removes the name.)
 *
 * Killed at any step: the locks are free, the text is what it was. "running" counts only while byte 0 is held and the
 * segment of that instance has a living owner. "failed" while the name is still there was left by a rank 0 that was
 * killed before it could remove the name; the next one overwrites it.
 */
#include "job.h"

#include "shm/file.h"
#include "shm/step.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define GUARD_ATTEMPTS 5000             /* a millisecond each */
#define SWEEP_ATTEMPTS 50               /* the same; if it is held for longer, a job begins */
#define LINE_BYTES (BXI_TEXT_BYTES + 64)
enum lock_byte { JOB_BYTE = 0, GUARD_BYTE = 1 };

/* ---- The directory ----------------------------------------------------------------------------- */

int bxi_socket_dir_make(const char *path)
{
    struct stat status;
    int rc = lstat(path, &status);

    if (rc < 0 && errno == ENOENT) {
        if (mkdir(path, 0700) == 0)
            chmod(path, 0700);      /* an umask may have taken away too much */
        else if (errno != EEXIST)
            return bx_fail(BX_E_SOCKET_DIR, "the socket directory %s cannot be made: %s; set XDG_RUNTIME_DIR to "
                                            "a directory of your own", path, bx_strerror(-errno));
        rc = lstat(path, &status);
    }
    if (rc < 0)
        return bx_fail(BX_E_SOCKET_DIR, "the socket directory %s cannot be looked at: %s; set XDG_RUNTIME_DIR to "
                                        "a directory of your own", path, bx_strerror(-errno));
    if (!S_ISDIR(status.st_mode))
        return bx_fail(BX_E_SOCKET_DIR, "%s, where the socket directory should be, is not a directory; "
                                        "remove it", path);
    if (status.st_uid != geteuid())
        return bx_fail(BX_E_SOCKET_DIR, "the socket directory %s belongs to user %u and not to you (%u); set "
                                        "XDG_RUNTIME_DIR to a directory of your own", path,
                       (unsigned)status.st_uid, (unsigned)geteuid());
    if ((status.st_mode & 077) != 0)
        return bx_fail(BX_E_SOCKET_DIR, "the socket directory %s is open to other users (mode %04o); "
                                        "chmod 700 it", path, (unsigned)status.st_mode & 07777);
    if (access(path, W_OK | X_OK) < 0)
        return bx_fail(BX_E_SOCKET_DIR, "the socket directory %s cannot be written to: %s; %s", path,
                       bx_strerror(-errno), errno != EROFS ? "chmod 700 it" :
                       "set XDG_RUNTIME_DIR to a directory of your own, on a file system that can be written to");
    return 0;
}

int bxi_socket_dir(char *out, size_t bytes)
{
    int length = bxi_object_sockets(out, bytes);

    if ((size_t)length >= bytes)
        return bx_fail(BX_E_SOCKET_DIR, "the socket directory %s... has too long a name; set XDG_RUNTIME_DIR to a "
                                        "shorter one", out);
    return bxi_socket_dir_make(out);
}

int bxi_boot_paths(const char *job_name, struct bxi_boot_paths *paths)
{
    int length;

    int rc = bxi_socket_dir(paths->directory, sizeof(paths->directory));
    if (rc < 0)
        return rc;
    length = snprintf(paths->socket, sizeof(paths->socket), "%s/%s.sock", paths->directory, job_name);
    if ((size_t)length >= sizeof(paths->socket))
        return bx_fail(BX_E_SOCKET_DIR, "%s/%s.sock is too long for a socket's name (%d bytes at most); set "
                                        "XDG_RUNTIME_DIR to a shorter one", paths->directory, job_name,
                       BXI_BOOT_PATH_BYTES - 1);
    snprintf(paths->lock, sizeof(paths->lock), "%.*s.lock", length - 5, paths->socket);
    snprintf(paths->join, sizeof(paths->join), "%.*s.join", length - 5, paths->socket);
    return 0;
}

/* ---- The lock file ----------------------------------------------------------------------------- */

static int set_lock(int fd, enum lock_byte byte, short type)
{
    return bxi_file_lock(fd, type, byte, 1);
}

static bool is_held(int fd)
{
    return bxi_file_is_locked(fd, JOB_BYTE, 1);
}

static void read_line(int fd, char line[LINE_BYTES])
{
    ssize_t got = pread(fd, line, LINE_BYTES - 1, 0);

    line[got > 0 ? got : 0] = '\0';
}

/* Each line is longer than the one that it replaces. */
static void write_line(const struct bx_job *job, const char *line)
{
    size_t bytes = strlen(line);
    int rc = bxi_file_limit(bytes);

    if (rc == 0 && pwrite(job->boot->lock_fd, line, bytes, 0) != (ssize_t)bytes)
        rc = -errno;
    if (rc < 0)
        bxi_log(job, 1, "the lock file of job '%s' cannot be written: %s", job->job_name, bx_strerror(rc));
}

/* The pid that the lock file's line begins with, and whether byte 0 is held. 0: no line, or no file of that name. */
static long look_at_lock(const char *lock_path, bool *held)
{
    char line[LINE_BYTES];
    long pid = 0;

    *held = false;
    int fd = open(lock_path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return 0;
    *held = is_held(fd);
    read_line(fd, line);
    if (*held || bxi_file_leads_to(lock_path, fd))       /* it is released after the name has gone */
        pid = strtol(line, NULL, 10);
    close(fd);
    return pid;
}

bool bxi_boot_lock_holder(const char *lock_path, char holder[BXI_HOLDER_BYTES])
{
    bool held;
    long pid = look_at_lock(lock_path, &held);

    if (holder != NULL && pid > 0)
        snprintf(holder, BXI_HOLDER_BYTES, "process %ld", pid);
    else if (holder != NULL)
        snprintf(holder, BXI_HOLDER_BYTES, "a process that has not written its pid yet");
    return held;
}

bool bxi_boot_lock_is_left(const char *lock_path)
{
    bool held;

    return look_at_lock(lock_path, &held) > 0 && !held;
}

static bool has_no_name(int fd)
{
    struct stat status = { .st_nlink = 1 };

    fstat(fd, &status);
    return status.st_nlink == 0;
}

/* The guard is held for moments only; -EAGAIN if it is held through all attempts. */
static int take_guard(int fd, int attempts)
{
    const struct timespec moment = { .tv_nsec = 1000000 };
    int rc = set_lock(fd, GUARD_BYTE, F_WRLCK);

    for (int attempt = 1; attempt < attempts && rc < 0; attempt++) {
        nanosleep(&moment, NULL);
        rc = set_lock(fd, GUARD_BYTE, F_WRLCK);
    }
    return rc;
}

static int open_lock_file(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);

    return fd < 0 ? -errno : fd;
}

static int take_job_byte(int fd)
{
    int rc = take_guard(fd, GUARD_ATTEMPTS);

    if (rc == 0)
        rc = set_lock(fd, JOB_BYTE, F_WRLCK);
    set_lock(fd, GUARD_BYTE, F_UNLCK);
    return rc;
}

int bxi_boot_lock(struct bx_job *job, const struct bxi_boot_paths *paths)
{
    char line[LINE_BYTES], holder[BXI_HOLDER_BYTES];

    int fd = bxi_boot_lock_file(paths->lock, O_CREAT, take_job_byte);
    if (fd == -EAGAIN) {
        bxi_boot_lock_holder(paths->lock, holder);
        return bx_fail(BX_E_JOB_RUNNING, "a job named '%s' is running: its rank 0 is %s; wait for its end or choose "
                                         "another name", job->job_name, holder);
    }
    if (fd < 0)
        return bxi_limits_no_file(job, "lock file", paths->lock, fd);
    BXI_STEP("boot.locked");
    job->boot->lock_fd = fd;
    bxi_spawn_note(job, BXI_NOTED_SOCKET, paths->socket);
    bxi_spawn_note(job, BXI_NOTED_LOCK, paths->lock);
    snprintf(line, sizeof(line), "%ld starting\n", (long)getpid());
    if (ftruncate(fd, 0) == 0)
        write_line(job, line);
    BXI_STEP("boot.lock_noted");
    return 0;
}

void bxi_boot_lock_running(const struct bx_job *job)
{
    char line[LINE_BYTES];

    snprintf(line, sizeof(line), "%ld running %016llx\n", (long)getpid(), (unsigned long long)job->instance);
    write_line(job, line);
    BXI_STEP("boot.running_noted");
}

static void unlock_job(struct bx_job *job, const char *path)
{
    bxi_spawn_note(job, BXI_NOTED_SOCKET, NULL);
    bxi_spawn_note(job, BXI_NOTED_LOCK, NULL);
    if (bxi_file_leads_to(path, job->boot->lock_fd))
        unlink(path);
    BXI_STEP("boot.lock_gone");
    bxi_unshared_close(job->boot->lock_fd);
    job->boot->lock_fd = -1;
}

void bxi_boot_unlock_failed(struct bx_job *job, const struct bxi_boot_paths *paths, int code)
{
    char line[LINE_BYTES];

    snprintf(line, sizeof(line), "%ld failed %d %s\n", (long)getpid(), code, bx_error_text());
    write_line(job, line);
    unlock_job(job, paths->lock);
}

void bxi_bootstrap_release(struct bx_job *job)
{
    if (job->boot->lock_fd >= 0)
        unlock_job(job, job->boot->paths.lock);
}

void bxi_boot_sweep(const char *lock_path, int code)
{
    char line[LINE_BYTES], socket_path[BXI_BOOT_PATH_BYTES];
    int fd;

    memcpy(socket_path, lock_path, strlen(lock_path) + 1);
    memcpy(strrchr(socket_path, '.'), ".sock", sizeof(".sock"));
    /* The lock file is made before the socket, and removed after it. */
    if (access(lock_path, F_OK) < 0 && access(socket_path, F_OK) < 0)
        return;
    fd = open_lock_file(lock_path);
    if (fd < 0)
        return;
    if (take_guard(fd, SWEEP_ATTEMPTS) == 0 && !is_held(fd) && bxi_file_leads_to(lock_path, fd)) {
        if (code < 0) {
            snprintf(line, sizeof(line), "0 failed %d %s\n", code, bx_error_text());
            /* Best effort: without this line the other workers wait until their time is over. */
            if (bxi_file_limit(strlen(line)) == 0 && pwrite(fd, line, strlen(line), 0) < 0)
                bxi_log(NULL, 1, "%s cannot be written: %s", lock_path, bx_strerror(-errno));
        }
        unlink(socket_path);
        unlink(lock_path);
    }
    /* A child may have the descriptor: forks do not wait for a signal handler. */
    set_lock(fd, GUARD_BYTE, F_UNLCK);
    close(fd);
}

void bxi_bootstrap_sweep(const char *job_name)
{
    struct bxi_boot_paths paths;

    if (bxi_boot_paths(job_name, &paths) < 0)
        return;
    bxi_boot_sweep(paths.lock, 0);
    bxi_doors_sweep(&paths, job_name);
}

/* ---- Another user ------------------------------------------------------------------------------ */

/* The workers of another user have another socket directory, so neither side can meet the other, and both wait. Names
 * in /dev/shm show that there is such a user. */
const char *bxi_boot_other_user(const char *job_name, char text[BXI_OTHER_USER_BYTES])
{
    size_t bytes = strlen(job_name);
    DIR *stream = opendir("/dev/shm");
    struct dirent *entry;

    text[0] = '\0';
    while (stream != NULL && text[0] == '\0' && (entry = readdir(stream)) != NULL) {
        struct stat status;
        unsigned uid;
        int at = 0;

        if (sscanf(entry->d_name, "boxcar.%u.%n", &uid, &at) != 1 || at == 0 || uid == (unsigned)geteuid())
            continue;
        const char *name = entry->d_name + at;
        /* A job's name may have dots: an instance must follow it. */
        if (strncmp(name, job_name, bytes) != 0 || name[bytes] != '.' ||
            strspn(name + bytes + 1, "0123456789abcdef") != 16 ||
            fstatat(dirfd(stream), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) < 0 || status.st_uid != uid)
            continue;
        snprintf(text, BXI_OTHER_USER_BYTES, "; user %u has a job of that name, and all workers of a job must belong "
                                             "to one user (this one to user %u)", uid, (unsigned)geteuid());
    }
    if (stream != NULL)
        closedir(stream);
    return text;
}

/* ---- Waiting for rank 0 ------------------------------------------------------------------------ */

/* 0; BX_E_RANK_TAKEN: this rank belongs to a living worker of the job that runs. */
static int check_rank(const struct bx_job *job, uint64_t instance)
{
    struct bxi_object_owner owner;

    if (bxi_object_find_owner(job->job_name, instance, 0, &owner) < 0 || owner.state >= BXI_LEAVING)
        return 0;           /* rank 0 is ending, or dead */
    if (bxi_object_find_owner(job->job_name, instance, job->rank, &owner) < 0 || owner.state >= BXI_LEAVING)
        return 0;
    return bxi_boot_rank_taken(job, job->rank, owner.name, owner.pid);
}

static int take_line(const struct bx_job *job, int fd)
{
    unsigned long long instance;
    char line[LINE_BYTES];
    long pid;
    int code, text_at = 0;

    read_line(fd, line);
    if (has_no_name(fd) && sscanf(line, "%ld failed %d %n", &pid, &code, &text_at) == 2 && code < 0)
        return bx_fail(code, "%.*s", (int)strcspn(line + text_at, "\n"), line + text_at);
    if (sscanf(line, "%ld running %llx", &pid, &instance) == 2 && is_held(fd))
        return check_rank(job, instance);
    return 0;
}

int bxi_boot_watch(int *fd, const struct bx_job *job, const struct bxi_boot_paths *paths)
{
    if (*fd >= 0) {
        /* Looked at before the line is read: rank 0 writes the line, then removes the name. The other way round, a
         * line written between the two looks would be closed unread, and this worker would wait until its time is
         * over. */
        bool is_named = bxi_file_leads_to(paths->lock, *fd);
        int rc = take_line(job, *fd);
        if (rc < 0 || is_named)
            return rc;
        close(*fd);
    }
    /* Create it if it does not exist, so that rank 0 writes to this file. */
    *fd = open_lock_file(paths->lock);
    BXI_STEP("boot.waits");
    return *fd < 0 ? 0 : take_line(job, *fd);
}

/* ---- What dead workers left -------------------------------------------------------------------- */

void bxi_boot_unlink_dead(const struct bx_job *job, int rank)
{
    struct bxi_door_id door = { job->instance, rank, job->rpc->peers[rank]->generation };
    const uint32_t known = (uint32_t)bxi_join_generation(job, rank), last = known > 0 ? known : 1;
    char path[BXI_BOOT_PATH_BYTES];
    struct bxi_object_owner owner;
    int rc;

    /* Its door, or that of one that died before it was known, or had joined; no successor's, whoever removes the
     * name. */
    for (; job->options.rejoin; door.generation++) {
        if (bxi_door_path(path, &job->boot->paths, job->job_name, &door) == 0)
            unlink(path);
        if (door.generation >= last)
            break;
    }
    /* A worker that has left keeps nobody from joining, and may look later than the successor came. If it cannot look,
     * the names stay until the end of the job. */
    if (job->options.rejoin) {
        rc = bxi_object_find_owner(job->job_name, job->instance, rank, &owner);
        if ((rc == 0 && owner.generation > door.generation) || (rc < 0 && rc != -ENOENT))
            return;
    }
    /* The owner lock is not tested: the kernel may close the socket, which reported the death, before the segment. */
    bxi_object_unlink(job->job_name, job->instance, rank);
}

void bxi_boot_clear_dead(const struct bx_job *job)
{
    struct pollfd entries[BXI_WORKERS_MAX];
    bool is_root_dead = false;

    for (int rank = 0; rank < job->world_size; rank++) {
        int pidfd = rank == job->rank ? -1 : job->rpc->peers[rank]->pidfd;
        entries[rank] = (struct pollfd){ .fd = pidfd > 0 ? pidfd : -1, .events = POLLIN };
    }
    if (poll(entries, (nfds_t)job->world_size, 0) <= 0)
        return;
    for (int rank = 0; rank < job->world_size; rank++) {
        if (entries[rank].revents == 0)
            continue;
        bxi_boot_unlink_dead(job, rank);
        is_root_dead |= rank == job->root;
    }
    if (is_root_dead)
        bxi_bootstrap_sweep(job->job_name);
}

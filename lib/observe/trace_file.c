/* SPDX-License-Identifier: MIT */
/*
 * The file of BX_TRACE, to which all workers of a job write: a JSON array that is complete at every moment.
 *
 *     [
 *     {"ph":"M","name":"boxcar","args":{"instance":"0123456789abcdef", ...
 *     ,...
 *     {...}
 *     ]
 *
 * Who runs it: the thread of a worker that writes (trace.c), under flock(2), so one at a time over all workers. Events
 * are added by one pwrite that begins at the closing bracket and ends with a new one. No thread waits for the lock: a
 * worker may be stopped while it holds it, and that must not stop the others.
 *
 * What is left if a worker is killed: before the pwrite nothing of it; after it everything. During it the kernel may
 * stop between two pages, and the array ends in half a line, which both viewers can read. The next worker that writes
 * cuts the file back to its last whole line, and each worker does so when it leaves, even if it has no events. If the
 * disk is full, or a limit on file sizes is reached, the worker cuts back what it wrote, and stops.
 *
 * The first line has the instance of the job. Each write checks it: a file that was truncated, or begun anew by another
 * job, is left alone. Rank 0 truncates an old file in place and does not replace it by a new file of its name, so hard
 * links and permissions stay as they are. A symbolic link is refused.
 */
#include "trace.h"

#include "shm/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 8192         /* no line is longer */
#define HEAD_BYTES 128
#define BEGIN_TRIES 1000            /* a millisecond apart */

static const char closing[] = "\n]\n";
#define CLOSING_BYTES (sizeof closing - 1)
static_assert(sizeof closing == BXI_TRACE_CLOSING, "the room that trace.c leaves for it, and for a zero");

/* ---- the head ---------------------------------------------------------------------------------- */

static size_t make_head(char head[HEAD_BYTES], uint64_t instance)
{
    int bytes = snprintf(head, HEAD_BYTES, "[\n{\"ph\":\"M\",\"name\":\"boxcar\",\"args\":{\"instance\":\"%016llx\"",
                         (unsigned long long)instance);

    return (size_t)bytes;
}

static bool is_ours(int fd, uint64_t instance)
{
    char wanted[HEAD_BYTES], found[HEAD_BYTES];
    size_t bytes = make_head(wanted, instance);

    return pread(fd, found, bytes, 0) == (ssize_t)bytes && memcmp(wanted, found, bytes) == 0;
}

/* ---- the end ----------------------------------------------------------------------------------- */

/* The position of the closing bracket, or where it has to be. -EIO: there is no whole line. */
static off_t find_end(int fd, off_t size)
{
    char last[LINE_MAX_BYTES];
    off_t from = size > (off_t)sizeof last ? size - (off_t)sizeof last : 0;
    ssize_t bytes = pread(fd, last, sizeof last, from);

    if (bytes < 0)
        return -errno;
    if ((size_t)bytes >= CLOSING_BYTES && memcmp(last + bytes - CLOSING_BYTES, closing, CLOSING_BYTES) == 0)
        return from + bytes - (off_t)CLOSING_BYTES;
    /* Torn: a newline follows every whole event, that of the closing bracket or of the next event. */
    for (ssize_t i = bytes - 1; i > 0; i--)
        if (last[i] == '\n' && last[i - 1] == '}')
            return from + i;
    return -EIO;
}

/* Closes the array at `end` again. A failure is logged: nothing else can be done. */
static void close_at(int fd, off_t end)
{
    if (pwrite(fd, closing, CLOSING_BYTES, end) == (ssize_t)CLOSING_BYTES &&
        ftruncate(fd, end + (off_t)CLOSING_BYTES) == 0)
        return;
    bxi_log(NULL, 1, "the trace could not be closed: %s", strerror(errno));
}

/* Under the lock. Behind the text there is room for the closing bracket; size is the file's. */
static int write_at(int fd, off_t end, off_t size, char *text, size_t bytes)
{
    ssize_t written;

    strcpy(text + bytes, closing);
    bytes += CLOSING_BYTES;
    if (bxi_file_limit((uint64_t)end + bytes) < 0)
        return -EFBIG;
    do
        written = pwrite(fd, text, bytes, end);
    while (written < 0 && errno == EINTR);
    if (written == (ssize_t)bytes)      /* the torn line may have been longer */
        return size > end + written && ftruncate(fd, end + written) < 0 ? -errno : 0;

    int rc = written < 0 ? -errno : -ENOSPC;

    close_at(fd, end);
    return rc;
}

/* ---- what trace.c calls ------------------------------------------------------------------------ */

static int lock_file(int fd, int tries)
{
    struct timespec nap = { .tv_nsec = 1000000 };

    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return -errno;
        if (--tries <= 0)
            return -EAGAIN;
        nanosleep(&nap, NULL);
    }
    return 0;
}

static int open_file(const char *path, int flags)
{
    struct stat status = { 0 };
    /* O_NOFOLLOW: in a directory that others may write to, a link would choose what is truncated. */
    int fd = open(path, flags | O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW, 0666);

    if (fd < 0)
        return -errno;
    fstat(fd, &status);
    if (S_ISREG(status.st_mode))
        return fd;
    close(fd);
    return -EINVAL;
}

int bxi_trace_file_begin(const char *path, uint64_t instance, const char *first_event)
{
    char head[HEAD_BYTES], *text = NULL;
    size_t head_bytes = make_head(head, instance);
    int fd = open_file(path, O_CREAT), rc;

    if (fd < 0)
        return fd;
    rc = lock_file(fd, BEGIN_TRIES);
    if (rc == 0 && (text = malloc(head_bytes + strlen(first_event) + BXI_TRACE_CLOSING)) == NULL)
        rc = -ENOMEM;
    if (rc == 0) {
        strcpy(stpcpy(text, head), first_event);
        rc = ftruncate(fd, 0) < 0 ? -errno : write_at(fd, 0, 0, text, head_bytes + strlen(first_event));
    }
    free(text);
    flock(fd, LOCK_UN);
    if (rc == 0)
        return fd;
    close(fd);
    return rc;
}

int bxi_trace_file_open(const char *path, uint64_t instance)
{
    int fd = open_file(path, 0);

    if (fd < 0 || is_ours(fd, instance))
        return fd;
    close(fd);
    return -ESTALE;
}

int bxi_trace_file_append(const struct bxi_trace_file *file, char *events, size_t bytes)
{
    struct stat status = { 0 };
    off_t end;
    int rc;

    if ((rc = lock_file(file->fd, 1)) < 0)
        return rc;
    fstat(file->fd, &status);
    if (!is_ours(file->fd, file->instance))
        rc = -ESTALE;
    else if ((end = find_end(file->fd, status.st_size)) < 0)
        rc = (int)end;
    else
        rc = write_at(file->fd, end, status.st_size, events, bytes);
    flock(file->fd, LOCK_UN);
    return rc;
}

/* SPDX-License-Identifier: MIT */
/*
 * file.h. Killed at any step: pages that are allocated stay so until the name and all mappings of the file are gone.
 */
#include "file.h"

#include "cancel.h"
#include "guard.h"
#include "layout.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

int bxi_file_limit(uint64_t bytes)
{
    struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };

    getrlimit(RLIMIT_FSIZE, &limit);
    return limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur ? 0 : -EFBIG;
}

int bxi_file_resize(int fd, uint64_t bytes)
{
    int rc = bxi_file_limit(bytes);

    if (rc == 0 && ftruncate(fd, (off_t)bytes) < 0)
        rc = -errno;
    return rc;
}

int bxi_file_allocate(int fd, uint64_t offset, uint64_t bytes)
{
    BXI_UNCANCELLED;
    const uint64_t end = offset + bytes;
    uint64_t step = bytes;

    while (offset < end) {
        int error = fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)step) < 0 ? errno : 0;
        if (error == EOPNOTSUPP)        /* not a tmpfs */
            error = posix_fallocate(fd, (off_t)offset, (off_t)step);
        if (error != 0 && error != EINTR)
            return -error;
        if (error == 0)
            offset += step;
        else if (step > BXI_PAGE)       /* a signal undoes the whole call: smaller calls succeed */
            step = (step / 2 + BXI_PAGE - 1) / BXI_PAGE * BXI_PAGE;
        if (step > end - offset)
            step = end - offset;
    }
    return 0;
}

int bxi_file_punch(int fd, uint64_t offset, uint64_t bytes)
{
    BXI_UNCANCELLED;
    int rc;

    do
        rc = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes);
    while (rc < 0 && errno == EINTR);
    return rc < 0 ? -errno : 0;
}

int bxi_file_lock(int fd, short type, uint64_t offset, uint64_t bytes)
{
    struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)offset, .l_len = (off_t)bytes };

    if (fcntl(fd, F_OFD_SETLK, &lock) == 0)
        return 0;
    return -errno;
}

bool bxi_file_is_locked(int fd, uint64_t offset, uint64_t bytes)
{
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)offset, .l_len = (off_t)bytes };

    return fcntl(fd, F_OFD_GETLK, &lock) < 0 || lock.l_type != F_UNLCK;
}

bool bxi_file_leads_to(const char *path, int fd)
{
    struct stat named, held = { 0 };

    fstat(fd, &held);
    return lstat(path, &named) == 0 && named.st_ino == held.st_ino && named.st_dev == held.st_dev;
}

int bxi_file_map(int fd, size_t bytes, bool writable, bxi_a32 *truncated, void **base_out)
{
    struct stat status;

    if (fstat(fd, &status) < 0)
        return -errno;
    if (!S_ISREG(status.st_mode) || (uint64_t)status.st_size != bytes)
        return -EPROTO;
    void *base = mmap(NULL, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return -errno;
    int rc = madvise(base, bytes, MADV_DONTFORK) < 0 ? -errno : bxi_guard_add(base, bytes, writable, truncated);
    if (rc < 0) {
        munmap(base, bytes);
        return rc;
    }
    *base_out = base;
    return 0;
}

/* SPDX-License-Identifier: MIT */
/*
 * What the system refuses to a worker that starts, as sentences: descriptors, room, inodes, the size of a file,
 * addresses. Called by the bootstrap, in bx_job_start.
 */
#include "job.h"

#include "shm/file.h"

#include <errno.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

static unsigned long long mib(uint64_t bytes)
{
    return bytes >> 20;
}

static rlim_t soft_limit(int resource)
{
    struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };

    getrlimit(resource, &limit);
    return limit.rlim_cur;
}

int bxi_limits_no_descriptors(const struct bx_job *job)
{
    struct rlimit limit = { 0 };
    /* Rank 0 has for a while, of each worker, a socket and the segment's descriptor besides. */
    int needed = (job->rank == 0 ? 5 : 3) * job->world_size + 64;

    getrlimit(RLIMIT_NOFILE, &limit);
    return bx_fail(BX_E_DESCRIPTORS, "rank %d of a job of %d workers needs about %d open files, and its limit "
                                     "is %llu (or the system's is reached); raise it (ulimit -Hn, "
                                     "fs.file-max)", job->rank, job->world_size, needed,
                   (unsigned long long)limit.rlim_cur);
}

int bxi_limits_no_file(const struct bx_job *job, const char *what, const char *path, int rc)
{
    if (bxi_file_none_left(rc))
        return bxi_limits_no_descriptors(job);
    return bx_fail(BX_E_SOCKET_DIR, "the %s %s cannot be opened by worker '%s' (rank %d) of job '%s': %s", what, path,
                   job->name, job->rank, job->job_name, bx_strerror(rc));
}

/* BX_E_NO_SPACE: room in /dev/shm, or inodes. */
static int no_space(const struct bx_job *job)
{
    struct statvfs status = { 0 };

    statvfs("/dev/shm", &status);
    /* A file system without a bound for inodes has 0 of them in all. */
    if (status.f_files != 0 && status.f_favail == 0 &&
        status.f_bavail * status.f_frsize >= bxi_control_used(job->world_size))
        return bx_fail(BX_E_NO_SPACE, "/dev/shm has no inode left (all %llu are in use), though it has %llu KiB free; "
                                      "each worker needs 2; remove files from it or give it more "
                                      "(mount -o remount,nr_inodes=N /dev/shm)",
                       (unsigned long long)status.f_files,
                       (unsigned long long)(status.f_bavail * status.f_frsize / 1024));
    return bx_fail(BX_E_NO_SPACE, "/dev/shm has %llu of %llu KiB free; each of %d workers needs %u KiB to "
                                  "start, and then %u KiB for each worker that it calls or answers; enlarge "
                                  "it (mount -o remount,size=1G /dev/shm; in docker --shm-size=1g)",
                   (unsigned long long)(status.f_bavail * status.f_frsize / 1024),
                   (unsigned long long)(status.f_blocks * status.f_frsize / 1024), job->world_size,
                   (unsigned)(bxi_control_used(job->world_size) / 1024), BXI_OPEN_BYTES / 1024);
}

int bxi_limits_no_segment(const struct bx_job *job, const char *name, int rc)
{
    rlim_t limit = soft_limit(RLIMIT_FSIZE);

    if (rc == -ENOSPC)
        return no_space(job);
    if (bxi_file_none_left(rc))
        return bxi_limits_no_descriptors(job);
    if (rc == -EFBIG)
        return bx_fail(rc, "worker '%s' needs a file of %llu KiB in /dev/shm, and a file may have %llu KiB here "
                           "(RLIMIT_FSIZE); raise the limit (ulimit -f)", job->name,
                       (unsigned long long)(bxi_segment_bytes(job->world_size) / 1024),
                       (unsigned long long)limit / 1024);
    return bx_fail(rc, "/dev/shm%s cannot be made: %s", name, bx_strerror(rc));
}

int bxi_limits_no_arena(const struct bx_job *job, const char *name, int rc)
{
    rlim_t limit = soft_limit(RLIMIT_FSIZE);
    char hint[BXI_MAP_HINT_BYTES];

    if (rc == -EFBIG)
        return bx_fail(rc, "the arena of worker '%s' is a sparse file of %llu MiB in /dev/shm, and a file may have "
                           "%llu MiB here (RLIMIT_FSIZE); raise the limit (ulimit -f), or make the arena smaller "
                           "(BX_ARENA_BYTES, options.arena_bytes)", job->name, mib(job->options.arena_bytes),
                       mib(limit));
    if (rc == -ENOMEM || rc == -EINVAL)
        return bx_fail(rc, "the arena of worker '%s' cannot be mapped: %s%s", job->name, bx_strerror(rc),
                       bxi_limits_map_hint(job, rc, hint));
    return bxi_limits_no_segment(job, name, rc);
}

const char *bxi_limits_map_hint(const struct bx_job *job, int rc, char hint[BXI_MAP_HINT_BYTES])
{
    rlim_t limit = soft_limit(RLIMIT_AS);
    char limited[96] = "";

    hint[0] = '\0';
    if (rc != -ENOMEM && rc != -EINVAL)         /* -EINVAL: valgrind, which has 128 GiB of addresses */
        return hint;
    if (limit != RLIM_INFINITY)
        snprintf(limited, sizeof(limited), ", and the process may have %llu MiB in all (RLIMIT_AS, ulimit -v)",
                 mib(limit));
    snprintf(hint, BXI_MAP_HINT_BYTES, "; every worker's arena takes %llu MiB of addresses here, the own one twice%s; "
                                       "make the arenas smaller (BX_ARENA_BYTES, options.arena_bytes)%s",
             mib(job->options.arena_bytes), limited, limited[0] != '\0' ? " or raise the limit" : "");
    return hint;
}

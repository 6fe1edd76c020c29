/* SPDX-License-Identifier: MIT */
/*
 * What the machine gives a worker: descriptors, CPUs, and a way to sleep (io_uring or epoll). Called by the threads in
 * bx_job_create and bx_job_start.
 */
#include "job.h"

#include "shm/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KERNEL_CPUS 8192            /* the most that Linux is built for */

int bxi_machine_raise_limit(const struct bx_job *job)
{
    struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };
    /* A worker that comes back has three more: those of the one before are kept. One of another host has its arena's, a
     * link, and two of UCX's. */
    rlim_t needed = (rlim_t)((job->options.rejoin ? 6 : bxi_has_launcher() ? 4 : 3) * job->world_size + 64);

    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur >= needed + 64)
        return 0;
    if (limit.rlim_max < needed)
        return bx_fail(BX_E_DESCRIPTORS, "a job of %d workers needs %llu open files, the hard limit is "
                                         "%llu; raise it (ulimit -Hn)", job->world_size,
                       (unsigned long long)needed, (unsigned long long)limit.rlim_max);
    limit.rlim_cur = limit.rlim_max < needed + 64 ? limit.rlim_max : needed + 64;
    setrlimit(RLIMIT_NOFILE, &limit);
    return 0;
}

void bxi_machine_publish(struct bxi_header *header)
{
    uint64_t set[KERNEL_CPUS / 64] = { 0 };
    struct bxi_quota quota;

    /* Not the C library's function, whose set may be too small for the kernel. */
    syscall(SYS_sched_getaffinity, 0, sizeof(set), set);
    for (size_t i = 0; i < sizeof(set) / sizeof(set[0]); i++)
        header->cpu_mask[i % BXI_CPU_WORDS] |= set[i];
    bxi_quota_read("", &quota);
    memcpy(header->quota_cgroup, quota.cgroup, sizeof(quota.cgroup));
    memcpy(header->quota_thousandths, quota.thousandths, sizeof(quota.thousandths));
}

int bxi_machine_cpus(const struct bx_job *job)
{
    uint64_t mask[BXI_CPU_WORDS] = { 0 };
    struct bxi_quota quotas[BXI_WORLD_MAX];
    int count = 0, cpus = 0;

    for (int rank = 0; rank < job->world_size; rank++) {
        const struct bxi_control *theirs = rank == job->rank ? job->control : job->rpc->peers[rank]->view.control;

        if (theirs == NULL || !bxi_net_is_here(job, rank))
            continue;
        for (int i = 0; i < BXI_CPU_WORDS; i++)
            mask[i] |= theirs->header.cpu_mask[i];
        memcpy(quotas[count].cgroup, theirs->header.quota_cgroup, sizeof(quotas[count].cgroup));
        memcpy(quotas[count].thousandths, theirs->header.quota_thousandths, sizeof(quotas[count].thousandths));
        count++;
    }
    for (int i = 0; i < BXI_CPU_WORDS; i++)
        cpus += __builtin_popcountll(mask[i]);

    int quota = bxi_quota_cpus(quotas, count);

    return cpus == 0 ? 1 : cpus < quota ? cpus : quota;
}

int bxi_machine_sleeper(struct bx_job *job)
{
    if (job->options.wait == BX_WAIT_EPOLL) {
        job->run->sleeper_kind = BXI_SLEEPER_EPOLL;
        return 0;
    }

    int rc = bxi_sleeper_probe_uring();

    if (rc < 0 && job->options.wait == BX_WAIT_URING)
        return bx_fail(BX_E_URING, "io_uring was asked for and the kernel refuses it (%s); see "
                                   "kernel.io_uring_disabled, seccomp and ulimit -l, or use BX_WAIT=epoll",
                       bx_strerror(rc));
    if (rc < 0)
        bxi_log(job, 2, "io_uring is refused (%s), epoll takes over", bx_strerror(rc));
    job->run->sleeper_kind = rc < 0 ? BXI_SLEEPER_EPOLL : BXI_SLEEPER_URING;
    return 0;
}

/* A descriptor that gets ready when this process ends. Filters of old containers refuse a pidfd, and valgrind does.
 * Then it is a pipe, which hangs up when no process has it open for writing: this one has, and its children close it.
 * It hangs up a moment before a pidfd gets ready: when the last thread has left the program and closes the files. */
static int open_end(struct bx_job *job)
{
    int ends[2], error;

    job->boot->pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (job->boot->pidfd >= 0 || bxi_file_none_left(-errno))
        return job->boot->pidfd < 0 ? -errno : 0;
    error = errno;
    job->boot->alive_fd = BXI_UNSHARED(pipe2(ends, O_CLOEXEC) < 0 ? -1 : ends[1]);
    if (job->boot->alive_fd < 0)
        return -errno;
    job->boot->pidfd = ends[0];
    bxi_log(job, 1, "pidfd_open is refused (%s): the other workers see the end of this one by the hang-up of a pipe",
            bx_strerror(-error));
    return 0;
}

int bxi_machine_descriptors(struct bx_job *job)
{
    int rc = bxi_run_open_bells(job->run);

    if (rc == 0)
        rc = open_end(job);
    if (bxi_file_none_left(rc))
        return bx_fail(BX_E_DESCRIPTORS, "no descriptor is left for the doorbells (%s)", bx_strerror(rc));
    return rc < 0 ? bx_fail(rc, "the doorbells cannot be made: %s", bx_strerror(rc)) : 0;
}

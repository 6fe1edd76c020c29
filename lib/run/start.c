/* SPDX-License-Identifier: MIT */
/*
 * Waits for a descriptor where nobody drives yet: those of the start, in which the workers of a host meet (job/), and
 * before it those of several hosts (net/).
 *
 * Who runs it: the thread in bx_job_start. bxi_poll: any thread.
 *
 * bx_job_interrupt rings the leader's eventfd, which nobody else uses before the job has started: each wait of the
 * start polls it too.
 */
#include "run.h"

#include <errno.h>
#include <time.h>

/* How many have something; 0: the deadline has passed; -errno. */
static int poll_until(struct pollfd *entries, nfds_t count, uint64_t deadline_ns)
{
    for (;;) {
        uint64_t now_ns = bxi_now_ns();
        uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
        struct timespec left = { .tv_sec = (time_t)(left_ns / 1000000000u),
                                 .tv_nsec = (long)(left_ns % 1000000000u) };
        int rc = ppoll(entries, count, deadline_ns == BX_FOREVER ? NULL : &left, NULL);

        if (rc >= 0)
            return rc;
        if (errno != EINTR)
            return -errno;
    }
}

int bxi_poll(int fd, short events, uint64_t deadline_ns)
{
    struct pollfd entry = { .fd = fd, .events = events };

    return poll_until(&entry, 1, deadline_ns);
}

int bxi_start_interrupted(const struct bx_job *job)
{
    /* First: a request that comes after the check rings again. */
    bxi_bell_drain(job->run->bell_fd[1]);
    if (!bxi_is_interrupted(job->run))
        return 0;
    return bx_fail(BX_E_INTERRUPTED, "bx_job_interrupt ended the start of worker '%s' (rank %d)", job->name, job->rank);
}

int bxi_poll_start(const struct bx_job *job, int fd, short events, uint64_t deadline_ns)
{
    struct pollfd entries[] = { { .fd = job->run->bell_fd[1], .events = POLLIN }, { .fd = fd, .events = events } };

    for (;;) {
        int rc = bxi_start_interrupted(job);

        if (rc == 0)
            rc = poll_until(entries, 2, deadline_ns);
        if (rc <= 0 || entries[1].revents != 0)
            return rc <= 0 ? rc : 1;
    }
}

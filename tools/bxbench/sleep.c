/* SPDX-License-Identifier: MIT */
/*
 * bxbench sleep: one call at a time, both sides asleep before each, no spinning at all.
 *
 * The bare limit is the least that the kernel must do: write(2) on the other's eventfd, one-shot POLL_ADD in an
 * io_uring with SINGLE_ISSUER and DEFER_TASKRUN, read(2) of the eventfd; no bytes are carried. Worker 0 runs both
 * kinds after the same idle gap, so that the cores are equally deep asleep. The echo process and the Boxcar callee
 * share a core and never run at the same time: each sleeps until it is called.
 */
#include "bxbench.h"

#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define WARM_CALLS 5
#define BARE_WAIT_S 10
#define ECHO_WAIT_S 1000000     /* it is killed in the end */

enum { BARE, CALL, KINDS };
enum { WITH_URING };            /* values: of worker 0 */

/* ---- Bare: waiting for an eventfd ------------------------------------------------------------------ */

struct waiter {
    struct io_uring ring;
    bool has_ring;              /* else poll(2), where io_uring is refused */
    int fd, fd_out;
    int wait_s;
};

static void waiter_init(struct waiter *waiter, int fd, int fd_out, int wait_s)
{
    struct io_uring_params params = { .flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN };

    waiter->fd = fd;
    waiter->fd_out = fd_out;
    waiter->wait_s = wait_s;
    waiter->has_ring = io_uring_queue_init_params(8, &waiter->ring, &params) == 0;
    if (!waiter->has_ring)      /* a kernel before 6.1 does not know the flags */
        waiter->has_ring = io_uring_queue_init(8, &waiter->ring, 0) == 0;
}

static int waiter_sleep(struct waiter *waiter)
{
    struct __kernel_timespec most = { .tv_sec = waiter->wait_s };
    struct io_uring_cqe *done;
    struct io_uring_sqe *entry;
    int rc;

    if (!waiter->has_ring) {
        struct pollfd poll_fd = { .fd = waiter->fd, .events = POLLIN };

        rc = poll(&poll_fd, 1, waiter->wait_s * 1000);
        return rc > 0 ? 0 : rc < 0 ? -errno : -ETIME;
    }
    entry = io_uring_get_sqe(&waiter->ring);
    io_uring_prep_poll_add(entry, waiter->fd, POLLIN);
    rc = io_uring_submit_and_wait_timeout(&waiter->ring, &done, 1, &most, NULL);
    if (rc < 0)
        return rc;
    io_uring_cqe_seen(&waiter->ring, done);
    return 0;
}

/* 0, or -ETIME and the like. */
static int waiter_wait(struct waiter *waiter)
{
    uint64_t count;
    int rc = waiter_sleep(waiter);

    if (rc < 0)
        return rc;
    return read(waiter->fd, &count, sizeof count) == sizeof count ? 0 : -errno;
}

static int ring_bell(const struct waiter *waiter)
{
    return write(waiter->fd_out, &(uint64_t){ 1 }, sizeof(uint64_t)) == sizeof(uint64_t) ? 0 : -errno;
}

/* Runs until it is killed, at the latest with its parent. */
static pid_t start_echo(int fd_in, int fd_out, int cpu)
{
    struct waiter waiter;
    pid_t pid = bench_fork();
    int rc;

    if (pid != 0)
        return pid;
    rc = bench_pin(&cpu, 1);
    waiter_init(&waiter, fd_in, fd_out, ECHO_WAIT_S);
    while (rc == 0)
        if ((rc = waiter_wait(&waiter)) == 0)
            rc = ring_bell(&waiter);
    _exit(bench_fail("the bare echo", rc));
}

/* ---- Slices ---------------------------------------------------------------------------------------- */

static void idle_gap(const struct bench_caller *caller)
{
    int64_t gap_us = caller->run->options->gap_us;
    struct timespec gap = { .tv_sec = gap_us / 1000000, .tv_nsec = gap_us % 1000000 * 1000 };

    nanosleep(&gap, NULL);
}

static int bell_once(struct bench_caller *caller)
{
    int rc = ring_bell(caller->own);

    if (rc == 0)
        rc = waiter_wait(caller->own);
    if (rc < 0)
        bench_fail("the bare echo does not answer", rc);
    return rc;
}

static int slice_bare(struct bench_caller *caller, int kind, int64_t slice)
{
    return bench_each(caller, WARM_CALLS, bench_place(caller, kind, slice), bell_once, idle_gap);
}

static int slice_calls(struct bench_caller *caller, int kind, int64_t slice)
{
    return bench_each(caller, WARM_CALLS, bench_place(caller, kind, slice), bench_echo, idle_gap);
}

static int begin(struct bench_caller *caller)
{
    static struct waiter waiter;
    const int *fd = caller->run->context;

    waiter_init(&waiter, fd[1], fd[0], BARE_WAIT_S);
    caller->own = &waiter;
    caller->run->values[WITH_URING][0] = waiter.has_ring;
    prctl(PR_SET_TIMERSLACK, 1);        /* so that the gap is exact */
    return 0;
}

int bench_sleep(struct bench_options *options)
{
    int fd[2] = { eventfd(0, EFD_CLOEXEC), eventfd(0, EFD_CLOEXEC) };   /* there, back */
    struct bench_run run = {
        .options = options, .slices = options->slices, .calls = options->calls, .workers = 2, .callers = 1,
        .kinds = { slice_bare, slice_calls }, .series_count = KINDS, .common = { .no_spin = true },
        .begin = begin, .context = fd
    };
    const struct bench_series *bare = &run.series[BARE], *call = &run.series[CALL];
    pid_t echo;
    bool done;

    if (fd[0] < 0 || fd[1] < 0)
        return bench_fail("eventfd", -errno);
    echo = start_echo(fd[0], fd[1], options->cpus[options->cpu_count > 1 ? 1 : 0]);
    if (echo < 0)
        return bench_fail("fork", echo);
    done = bench_run_job(&run);
    bench_reap(echo, 0);
    if (!done)
        return 1;
    bench_open(options, "64 bytes there and back, both sides asleep before each call");
    bench_string("bare", run.values[WITH_URING][0] != 0 ? "io_uring" : "poll", "what the bare side waits with");
    bench_counts(&run);
    bench_number("gap_us", (double)options->gap_us, 0, "idle before each");
    bench_number("bare_p50_us", bench_middle_ns(bare) / 1000, 2, "write(2), poll in the ring, read(2), there and back");
    bench_number("bare_p99_us", bench_percentile_ns(bare, 99) / 1000, 2, "");
    bench_number("call_p50_us", bench_middle_ns(call) / 1000, 2, "bx_rpc_sync of an inline handler, no spinning");
    bench_number("call_p99_us", bench_percentile_ns(call, 99) / 1000, 2, "");
    bench_number("ratio", bench_ratio(call, bare), 3, "call over bare, median over neighbouring slices");
    bench_close();
    return 0;
}

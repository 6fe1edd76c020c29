/* SPDX-License-Identifier: MIT */
/*
 * bxbench sleep: one call at a time, both sides asleep before each, no spinning at all.
 *
 * The bare limit is the least that the kernel must do: write(2) on the other's eventfd, one-shot POLL_ADD in an
 * io_uring with SINGLE_ISSUER and DEFER_TASKRUN, read(2) of the eventfd; no bytes are carried. Worker 0 runs both
 * kinds after the same idle gap, so that the cores are equally deep asleep. The echo process and the Boxcar callee
 * share a core and never run at the same time: each sleeps until it is called.
 */
#include "bare.h"
#include "bxbench.h"
#include "clock.h"
#include "process.h"
#include "report.h"
#include "statistics.h"
#include "worker.h"

#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define WARM_CALLS 5
#define BARE_WAIT_S 10

struct sleeping {
    const struct bench_options *options;
    int64_t slices;
    int64_t calls;
    int64_t gap_us;
    uint32_t *bare_ticks;
    uint32_t *call_ticks;
    bool *with_uring;       /* set by worker 0 */
};

/* ---- Bare: waiting for an eventfd -------------------------------------------------------------- */

struct waiter {
    struct io_uring ring;
    bool has_ring;          /* else poll(2), where io_uring is refused */
    int fd;
};

static void waiter_init(struct waiter *waiter, int fd)
{
    struct io_uring_params params = { .flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN };

    waiter->fd = fd;
    waiter->has_ring = io_uring_queue_init_params(8, &waiter->ring, &params) == 0;
    if (!waiter->has_ring)      /* a kernel before 6.1 does not know the flags */
        waiter->has_ring = io_uring_queue_init(8, &waiter->ring, 0) == 0;
}

static int waiter_sleep(struct waiter *waiter)
{
    struct __kernel_timespec most = { .tv_sec = BARE_WAIT_S };
    struct io_uring_cqe *done;
    struct io_uring_sqe *entry;
    int rc;

    if (!waiter->has_ring) {
        struct pollfd poll_fd = { .fd = waiter->fd, .events = POLLIN };

        rc = poll(&poll_fd, 1, BARE_WAIT_S * 1000);
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

static int ring_bell(int fd)
{
    return write(fd, &(uint64_t){ 1 }, sizeof(uint64_t)) == sizeof(uint64_t) ? 0 : -errno;
}

/* Runs until it is killed, at the latest with its parent. -ETIME only means a long slice of calls. */
static void run_echo(int fd_in, int fd_out, int cpu)
{
    struct waiter waiter;
    int rc = bench_pin(cpu);

    waiter_init(&waiter, fd_in);
    while (rc == 0) {
        do
            rc = waiter_sleep(&waiter);
        while (rc == -ETIME && !waiter.has_ring);
        if (rc == -ETIME) {         /* the poll is still in the ring: make a new ring */
            io_uring_queue_exit(&waiter.ring);
            waiter_init(&waiter, fd_in);
            rc = 0;
            continue;
        }
        if (rc == 0)
            rc = read(fd_in, &(uint64_t){ 0 }, sizeof(uint64_t)) < 0 ? -errno : ring_bell(fd_out);
    }
    bench_say("the bare echo: %s", strerror(-rc));
    _exit(1);
}

/* ---- Slices ------------------------------------------------------------------------------------ */

static void idle_gap(int64_t gap_us)
{
    struct timespec gap = { .tv_sec = gap_us / 1000000, .tv_nsec = gap_us % 1000000 * 1000 };

    nanosleep(&gap, NULL);
}

static int slice_bare(const struct sleeping *bench, struct waiter *waiter, int fd_out, uint32_t *ticks)
{
    for (int64_t i = -WARM_CALLS; i < bench->calls; i++) {
        idle_gap(bench->gap_us);

        uint64_t before = bench_ticks();
        int rc = ring_bell(fd_out);

        if (rc == 0)
            rc = waiter_wait(waiter);
        if (rc < 0) {
            bench_say("the bare echo does not answer: %s", strerror(-rc));
            return 1;
        }
        if (i >= 0)
            ticks[i] = bench_ticks_since(before);
    }
    return 0;
}

static int slice_calls(const struct sleeping *bench, struct bx_job *job, struct bx_msg *args,
                       uint32_t *ticks)
{
    static uint64_t number;
    const char *to = bx_worker_name(job, 1);

    for (int64_t i = -WARM_CALLS; i < bench->calls; i++) {
        idle_gap(bench->gap_us);

        uint64_t before = bench_ticks();

        if (bench_call(job, to, BENCH_FUNCTION, args, ++number) < 0)
            return 1;
        if (i >= 0)
            ticks[i] = bench_ticks_since(before);
    }
    return 0;
}

static int run_slices(const struct sleeping *bench, struct bx_job *job, const int *fd)
{
    struct bx_msg *args = bx_msg_create(BENCH_MESSAGE_BYTES);
    struct waiter waiter;
    int status = args != NULL ? 0 : 1;

    waiter_init(&waiter, fd[1]);
    *bench->with_uring = waiter.has_ring;
    prctl(PR_SET_TIMERSLACK, 1);        /* so that the gap is exact */
    for (int64_t i = 0; status == 0 && i < bench->slices; i++) {
        status = slice_bare(bench, &waiter, fd[0], bench->bare_ticks + i * bench->calls);
        if (status == 0)
            status = slice_calls(bench, job, args, bench->call_ticks + i * bench->calls);
    }
    if (waiter.has_ring)
        io_uring_queue_exit(&waiter.ring);
    bx_msg_destroy(args);
    return status;
}

static int caller(const struct sleeping *bench, const struct bx_options *options, int echo_cpu)
{
    int fd[2] = { eventfd(0, EFD_CLOEXEC), eventfd(0, EFD_CLOEXEC) };   /* there, back */
    struct bx_job *job;

    if (fd[0] < 0 || fd[1] < 0)
        return bench_fail("eventfd", -errno);

    pid_t echo = bench_fork();

    if (echo == 0)
        run_echo(fd[0], fd[1], echo_cpu);
    if (echo < 0)
        return bench_fail("fork", echo);
    if (bench_worker_start(options, bench->options->cpus[0], NULL, NULL, &job) != 0)
        return 1;

    int status = bench_worker_end(job, run_slices(bench, job, fd));

    bench_reap(echo, 0);
    return status;
}

static int worker(const struct bx_options *options, void *context)
{
    const struct sleeping *bench = context;
    int callee_cpu = bench->options->cpus[bench->options->cpu_count > 1 ? 1 : 0];
    struct bx_job *job;

    if (options->rank == 0)
        return caller(bench, options, callee_cpu);
    if (bench_worker_start(options, callee_cpu, NULL, NULL, &job) != 0)
        return 1;
    return bench_worker_serve(job);
}

static void report(const struct sleeping *bench)
{
    size_t slices = (size_t)bench->slices, calls = (size_t)bench->calls, all = slices * calls;
    double us = bench_clock_ns_per_tick() / 1000;
    double *bare = calloc(slices * 3, sizeof *bare);

    if (bare == NULL)
        return;

    double *call = bare + slices, *ratio = call + slices;

    for (size_t i = 0; i < slices; i++) {
        bench_sort(bench->bare_ticks + i * calls, calls);
        bench_sort(bench->call_ticks + i * calls, calls);
        bare[i] = bench_percentile(bench->bare_ticks + i * calls, calls, 50);
        call[i] = bench_percentile(bench->call_ticks + i * calls, calls, 50);
        ratio[i] = call[i] / bare[i];
    }
    bench_sort(bench->bare_ticks, all);
    bench_sort(bench->call_ticks, all);
    bench_report_open(bench->options, "64 bytes there and back, both sides asleep before each call");
    bench_report_string("bare", *bench->with_uring ? "io_uring" : "poll", "what the bare side waits with");
    bench_report_number("slices", (double)slices, 0, "of each kind, in turn");
    bench_report_number("calls", (double)calls, 0, "in each");
    bench_report_number("gap_us", (double)bench->gap_us, 0, "idle before each");
    bench_report_number("bare_p50_us", bench_median(bare, slices) * us, 2,
                        "write(2), poll in the ring, read(2), there and back");
    bench_report_number("bare_p99_us", bench_percentile(bench->bare_ticks, all, 99) * us, 2, "");
    bench_report_number("call_p50_us", bench_median(call, slices) * us, 2,
                        "bx_rpc_sync of an inline handler, no spinning");
    bench_report_number("call_p99_us", bench_percentile(bench->call_ticks, all, 99) * us, 2, "");
    bench_report_number("ratio", bench_median(ratio, slices), 3,
                        "call over bare, median over neighbouring slices");
    bench_report_close();
    free(bare);
}

int bench_sleep(const struct bench_options *options)
{
    struct sleeping bench = {
        .options = options,
        .slices = options->slices != 0 ? options->slices : 40,
        .calls = options->calls != 0 ? options->calls : 50,
        .gap_us = options->gap_us != 0 ? options->gap_us : 200,
    };
    size_t all = (size_t)bench.slices * (size_t)bench.calls;

    bench.bare_ticks = bench_map(all * sizeof(uint32_t));
    bench.call_ticks = bench_map(all * sizeof(uint32_t));
    bench.with_uring = bench_map(sizeof(bool));
    if (!bench_spawn(2, &(struct bx_options){ .no_spin = true }, worker, &bench))
        return 1;
    report(&bench);
    return 0;
}

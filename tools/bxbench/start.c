/* SPDX-License-Identifier: MIT */
/*
 * bxbench start: how long a job takes to start and to end, and the shared memory it holds.
 *
 * A run is one job. `ready` is the time from before bx_spawn until the last worker's bx_job_start has returned;
 * `gone` from the first call of bx_job_shutdown until bx_spawn has returned, that is, until every process is reaped.
 * In between rank 0 adds up the pages of the job's segments (st_blocks), at rest and, in the last run, once more
 * after each worker has called every other; neither is part of the times. Runs of bare processes, as many of them
 * forked and reaped, alternate with the jobs.
 */
#include "bxbench.h"
#include "clock.h"
#include "process.h"
#include "report.h"
#include "statistics.h"
#include "worker.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define RUNS_MAX BENCH_SLICES_MAX

struct start {
    const struct bench_options *options;
    int workers;
    bool with_pairs;
    struct times {
        struct bench_barrier barrier;
        uint64_t ready_ns[BX_WORLD_MAX];
        uint64_t leave_ns[BX_WORLD_MAX];
        int64_t bytes_rest;
        int64_t bytes_all_pairs;
    } *times;
};

/* Bytes allocated by the job's segments, or -1. */
static int64_t job_bytes(const char *job)
{
    char prefix[128];
    int length = snprintf(prefix, sizeof prefix, "boxcar.%u.%s.", (unsigned)geteuid(), job);
    DIR *dir = opendir("/dev/shm");
    int64_t bytes = 0;

    if (dir == NULL)
        return -1;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        struct stat status;

        if (strncmp(entry->d_name, prefix, (size_t)length) == 0 &&
            fstatat(dirfd(dir), entry->d_name, &status, 0) == 0)
            bytes += (int64_t)status.st_blocks * 512;
    }
    closedir(dir);
    return bytes;
}

static int call_all(struct bx_job *job)
{
    int size = bx_job_world_size(job), rank = bx_job_rank(job);
    struct bx_msg *args = bx_msg_create(BENCH_MESSAGE_BYTES);
    int rc = args != NULL ? 0 : -ENOMEM;

    for (int i = 1; rc == 0 && i < size; i++)
        rc = bench_call(job, bx_worker_name(job, (rank + i) % size), BENCH_FUNCTION, args, (uint64_t)i);
    bx_msg_destroy(args);
    return rc;
}

static int run_worker(const struct start *start, struct bx_job *job, const char *job_name)
{
    struct times *times = start->times;
    int rank = bx_job_rank(job);

    times->ready_ns[rank] = bench_now_ns();
    if (bench_barrier_wait(&times->barrier, start->workers) < 0)
        return 1;
    if (rank == 0)
        times->bytes_rest = job_bytes(job_name);
    if (start->with_pairs) {
        if (bench_barrier_wait(&times->barrier, start->workers) < 0 || call_all(job) < 0 ||
            bench_barrier_wait(&times->barrier, start->workers) < 0)
            return 1;
        if (rank == 0)
            times->bytes_all_pairs = job_bytes(job_name);
    }
    if (bench_barrier_wait(&times->barrier, start->workers) < 0)
        return 1;
    times->leave_ns[rank] = bench_now_ns();
    return 0;
}

static int worker(const struct bx_options *options, void *context)
{
    const struct start *start = context;
    struct bx_job *job;
    int rc = bench_pin_all(start->options);

    if (rc < 0)
        return bench_fail("sched_setaffinity", rc);
    if (bench_worker_start(options, -1, NULL, NULL, &job) != 0)
        return 1;
    return bench_worker_end(job, run_worker(start, job, options->job));
}

/* Forks and reaps as many processes that do nothing; seconds. */
static double run_bare(int workers)
{
    pid_t pids[BX_WORLD_MAX];
    uint64_t before_ns = bench_now_ns();
    int forked = 0;

    while (forked < workers && (pids[forked] = bench_fork()) > 0)
        forked++;
    if (forked < workers && pids[forked] == 0)
        _exit(0);
    for (int i = 0; i < forked; i++)
        waitpid(pids[i], NULL, 0);
    return forked == workers ? (double)(bench_now_ns() - before_ns) * 1e-9 : NAN;
}

static bool run_job(struct start *start, double *ready, double *gone)
{
    struct times *times = start->times;
    uint64_t ready_ns = 0, leave_ns = UINT64_MAX;

    times->bytes_all_pairs = -1;

    uint64_t before_ns = bench_now_ns();

    if (!bench_spawn(start->workers, NULL, worker, start))
        return false;

    uint64_t end_ns = bench_now_ns();

    for (int i = 0; i < start->workers; i++) {
        ready_ns = times->ready_ns[i] > ready_ns ? times->ready_ns[i] : ready_ns;
        leave_ns = times->leave_ns[i] < leave_ns ? times->leave_ns[i] : leave_ns;
    }
    *ready = (double)(ready_ns - before_ns) * 1e-9;
    *gone = (double)(end_ns - leave_ns) * 1e-9;
    return true;
}

/* A ring of 128 KiB and a page for each ordered pair. Too little memory is reported before the run, not during it. */
static bool has_room_for_pairs(int workers)
{
    struct statvfs fs;
    uint64_t needed = (uint64_t)workers * (uint64_t)(workers - 1) * (BXI_RING_BYTES + BXI_PAGE);

    if (statvfs("/dev/shm", &fs) != 0 || (uint64_t)fs.f_bavail * fs.f_frsize >= needed + needed / 4)
        return true;
    bench_say("/dev/shm has no %llu MB for all pairs of %d workers: shm_bytes_all_pairs is left out",
              (unsigned long long)(needed >> 20), workers);
    return false;
}

static double bytes_or_nothing(int64_t bytes)
{
    return bytes >= 0 ? (double)bytes : NAN;
}

int bench_start(const struct bench_options *options)
{
    struct start start = { .options = options,
                           .workers = options->workers != 0 ? (int)options->workers : 64 };
    int runs = options->slices != 0 ? (int)options->slices : 3;
    double bare[RUNS_MAX], ready[RUNS_MAX], gone[RUNS_MAX], sum[RUNS_MAX];
    bool pairs = !options->no_pairs && has_room_for_pairs(start.workers);

    start.times = bench_map(sizeof *start.times);
    for (int i = 0; i < runs; i++) {
        bare[i] = run_bare(start.workers);
        start.with_pairs = pairs && i == runs - 1;
        if (!run_job(&start, &ready[i], &gone[i]))
            return 1;
        sum[i] = ready[i] + gone[i];
    }
    bench_report_open(options, "a job from bx_spawn until all are there, and from shutdown to the end");
    bench_report_number("workers", start.workers, 0, "");
    bench_report_number("runs", runs, 0, "of jobs and of bare processes, in turn");
    bench_report_number("bare_seconds", bench_median(bare, (size_t)runs), 4,
                        "as many processes forked and reaped, no job");
    bench_report_number("ready_seconds", bench_median(ready, (size_t)runs), 4, "all have started");
    bench_report_number("gone_seconds", bench_median(gone, (size_t)runs), 4, "all have been reaped");
    bench_report_number("seconds", bench_median(sum, (size_t)runs), 4, "both");
    bench_report_number("shm_bytes_rest", bytes_or_nothing(start.times->bytes_rest), 0,
                        "allocated in /dev/shm, nobody has talked");
    bench_report_number("shm_bytes_all_pairs", bytes_or_nothing(start.times->bytes_all_pairs), 0,
                        "the same when everybody has called everybody");
    bench_report_close();
    return 0;
}

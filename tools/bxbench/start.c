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

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { READY_NS, LEAVE_NS, BYTES };     /* values: by rank; at rest, of all pairs */

/* Bytes allocated by the job's segments; NAN if they cannot be counted. */
static double job_bytes(const char *job)
{
    char prefix[128];
    int length = snprintf(prefix, sizeof prefix, "boxcar.%u.%s.", (unsigned)geteuid(), job);
    DIR *dir = opendir("/dev/shm");
    double bytes = 0;

    if (dir == NULL)
        return NAN;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        struct stat status;

        if (strncmp(entry->d_name, prefix, (size_t)length) == 0 &&
            fstatat(dirfd(dir), entry->d_name, &status, 0) == 0)
            bytes += (double)status.st_blocks * 512;
    }
    closedir(dir);
    return bytes;
}

static int slice(struct bench_caller *caller, int kind, int64_t slice)
{
    const struct bench_run *run = caller->run;
    const bool *with_pairs = run->context;
    int rank = caller->index;

    (void)kind, (void)slice;
    run->values[READY_NS][rank] = (double)bench_now_ns();
    pthread_barrier_wait(run->barrier);
    if (rank == 0)
        run->values[BYTES][0] = job_bytes(caller->job_name);
    if (*with_pairs) {
        pthread_barrier_wait(run->barrier);
        if (bench_call_all(caller) < 0)
            return 1;
        pthread_barrier_wait(run->barrier);
        if (rank == 0)
            run->values[BYTES][1] = job_bytes(caller->job_name);
    }
    pthread_barrier_wait(run->barrier);
    run->values[LEAVE_NS][rank] = (double)bench_now_ns();
    return 0;
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

static bool run_job(struct bench_run *run, double *ready, double *gone)
{
    double before_ns = (double)bench_now_ns(), ready_ns = 0, leave_ns = INFINITY, end_ns;

    if (!bench_run_job(run))
        return false;
    end_ns = (double)bench_now_ns();
    for (int i = 0; i < run->workers; i++) {
        ready_ns = fmax(ready_ns, run->values[READY_NS][i]);
        leave_ns = fmin(leave_ns, run->values[LEAVE_NS][i]);
    }
    *ready = (ready_ns - before_ns) * 1e-9;
    *gone = (end_ns - leave_ns) * 1e-9;
    return true;
}

/* A ring of 128 KiB and a page for each ordered pair. Too little memory is reported before the run, not during it. */
static bool has_room_for_pairs(int workers)
{
    uint64_t needed = (uint64_t)workers * (uint64_t)(workers - 1) * (BXI_RING_BYTES + BXI_PAGE);

    if (bench_shm_room() >= needed + needed / 4)
        return true;
    bench_say("/dev/shm has no %llu MB for all pairs of %d workers: shm_bytes_all_pairs is left out",
              (unsigned long long)(needed >> 20), workers);
    return false;
}

int bench_start(struct bench_options *options)
{
    int workers = (int)options->workers;
    bool with_pairs = false, pairs = !options->no_pairs && has_room_for_pairs(workers);
    struct bench_run run = {
        .options = options, .slices = 1, .workers = workers, .callers = workers, .kinds = { slice },
        .context = &with_pairs
    };
    double bare[BENCH_SLICES_MAX], ready[BENCH_SLICES_MAX], gone[BENCH_SLICES_MAX], sum[BENCH_SLICES_MAX];
    size_t runs = (size_t)options->slices;

    for (size_t i = 0; i < runs; i++) {
        bare[i] = run_bare(workers);
        with_pairs = pairs && i == runs - 1;
        if (!run_job(&run, &ready[i], &gone[i]))
            return 1;
        sum[i] = ready[i] + gone[i];
    }
    bench_open(options, "a job from bx_spawn until all are there, and from shutdown to the end");
    bench_number("workers", workers, 0, "");
    bench_number("runs", (double)runs, 0, "of jobs and of bare processes, in turn");
    bench_number("bare_seconds", bench_median(bare, runs), 4, "as many processes forked and reaped, no job");
    bench_number("ready_seconds", bench_median(ready, runs), 4, "all have started");
    bench_number("gone_seconds", bench_median(gone, runs), 4, "all have been reaped");
    bench_number("seconds", bench_median(sum, runs), 4, "both");
    bench_number("shm_bytes_rest", run.values[BYTES][0], 0, "allocated in /dev/shm, nobody has talked");
    bench_number("shm_bytes_all_pairs", pairs ? run.values[BYTES][1] : NAN, 0,
                 "the same when everybody has called everybody");
    bench_close();
    return 0;
}

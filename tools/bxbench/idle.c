/* SPDX-License-Identifier: MIT */
/*
 * bxbench idle: the cost of workers that have made one call and have nothing to do.
 *
 * Each worker calls its right neighbour, waits a little until its spinning has ended, reads its process's CPU clock and
 * its count of wake-ups, sleeps for --seconds with its main thread outside of the library, and reads both again. Beside
 * them runs a bare process that only sleeps. Then rank 0 calls every worker, to show that the idle workers are alive.
 */
#include "bxbench.h"

#include <errno.h>
#include <math.h>
#include <time.h>
#include <unistd.h>

#define REST_SECONDS 0.3

enum { CPU_PERCENT, WAKEUPS_PER_S };    /* values, by rank */

static void sleep_seconds(double seconds)
{
    struct timespec left = { .tv_sec = (time_t)seconds,
                             .tv_nsec = (long)((seconds - floor(seconds)) * 1e9) };

    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

static double cpu_seconds(void)
{
    struct timespec used;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (double)used.tv_sec + (double)used.tv_nsec * 1e-9;
}

static double sleep_and_measure(double seconds)
{
    double before = cpu_seconds();

    sleep_seconds(seconds);
    return (cpu_seconds() - before) * 100 / seconds;
}

static int watch_idle(const struct bench_caller *caller)
{
    double seconds = caller->run->options->seconds;
    uint64_t before, after;
    int rc = bx_counter(caller->job, "wakeups", &before);

    caller->run->values[CPU_PERCENT][caller->index] = sleep_and_measure(seconds);
    if (rc == 0)
        rc = bx_counter(caller->job, "wakeups", &after);
    if (rc < 0)
        return bench_fail("bx_counter", rc);
    caller->run->values[WAKEUPS_PER_S][caller->index] = (double)(after - before) / seconds;
    return 0;
}

static int slice(struct bench_caller *caller, int kind, int64_t slice)
{
    const struct bench_run *run = caller->run;

    (void)kind, (void)slice;
    caller->to = bx_worker_name(caller->job, (caller->index + 1) % run->workers);
    if (bench_echo(caller) < 0)
        return 1;
    pthread_barrier_wait(run->barrier);
    sleep_seconds(REST_SECONDS);
    if (watch_idle(caller) != 0)
        return 1;
    pthread_barrier_wait(run->barrier);
    return caller->index == 0 && bench_call_all(caller) < 0;
}

/* The same rest and sleep, in a process that is no worker. */
static pid_t start_bare(double seconds, double *percent)
{
    pid_t pid = bench_fork();

    if (pid != 0)
        return pid;
    sleep_seconds(REST_SECONDS);
    *percent = sleep_and_measure(seconds);
    _exit(0);
}

int bench_idle(struct bench_options *options)
{
    int workers = (int)options->workers;
    struct bench_run run = {
        .options = options, .slices = 1, .workers = workers, .callers = workers, .kinds = { slice }
    };
    double wakeups = 0, most = 0, *bare_percent = bench_map(sizeof *bare_percent), *percents;
    pid_t bare = start_bare(options->seconds, bare_percent);
    bool done = bench_run_job(&run);

    if (bare < 0 || bench_reap(bare, done ? BENCH_WAIT_NS : 0) != 0 || !done)
        return 1;
    percents = run.values[CPU_PERCENT];
    for (int i = 0; i < workers; i++) {
        wakeups += run.values[WAKEUPS_PER_S][i];
        most = percents[i] > most ? percents[i] : most;
    }
    bench_open(options, "workers that have talked once, then idle");
    bench_number("workers", workers, 0, "");
    bench_number("seconds", options->seconds, 1, "of idleness");
    bench_number("bare_cpu_percent", *bare_percent, 3, "of a core: a process that only sleeps");
    bench_numbers("cpu_percent", percents, workers, 3);
    bench_number("cpu_percent_max", most, 3, "of a core: the busiest worker");
    bench_number("wakeups_per_s", wakeups, 2, "of all workers together");
    bench_numbers("wakeups_per_s_by_rank", run.values[WAKEUPS_PER_S], workers, 2);
    bench_number("answered", workers, 0, "workers alive afterwards, rank 0 counted");
    bench_close();
    return 0;
}

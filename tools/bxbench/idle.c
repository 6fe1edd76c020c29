/* SPDX-License-Identifier: MIT */
/*
 * bxbench idle: the cost of workers that have made one call and have nothing to do.
 *
 * Each worker calls its right neighbour, waits a little until its spinning has ended, reads its process's CPU clock and
 * its count of wake-ups, sleeps for --seconds with its main thread outside of the library, and reads both again. Beside
 * them runs a bare process that only sleeps. Then rank 0 calls every worker, to show that the idle workers are alive.
 */
#include "bxbench.h"
#include "process.h"
#include "report.h"
#include "worker.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define REST_SECONDS 0.3

struct idle {
    const struct bench_options *options;
    int workers;
    double seconds;
    struct bench_barrier *barrier;
    double *cpu_percent;            /* by rank; the last is the bare process's */
    double *wakeups_per_s;
    uint32_t *answered;
};

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

static int watch_idle(const struct idle *idle, struct bx_job *job)
{
    int rank = bx_job_rank(job);
    uint64_t before, after;
    int rc = bx_counter(job, "wakeups", &before);
    double cpu_before = cpu_seconds();

    sleep_seconds(idle->seconds);
    idle->cpu_percent[rank] = (cpu_seconds() - cpu_before) * 100 / idle->seconds;
    if (rc == 0)
        rc = bx_counter(job, "wakeups", &after);
    if (rc < 0)
        return bench_fail("bx_counter", rc);
    idle->wakeups_per_s[rank] = (double)(after - before) / idle->seconds;
    return 0;
}

/* Calls all others. Returns how many answered correctly. */
static int call_all(struct bx_job *job, struct bx_msg *args, uint32_t *answered)
{
    for (int rank = 1; rank < bx_job_world_size(job); rank++) {
        if (bench_call(job, bx_worker_name(job, rank), BENCH_FUNCTION, args, (uint64_t)rank) < 0)
            return 1;
        ++*answered;
    }
    return 0;
}

static int run_worker(const struct idle *idle, struct bx_job *job, struct bx_msg *args)
{
    int rank = bx_job_rank(job);

    if (bench_call(job, bx_worker_name(job, (rank + 1) % idle->workers), BENCH_FUNCTION, args, 1) < 0 ||
        bench_barrier_wait(idle->barrier, idle->workers) < 0)
        return 1;
    sleep_seconds(REST_SECONDS);
    if (watch_idle(idle, job) != 0 || bench_barrier_wait(idle->barrier, idle->workers) < 0)
        return 1;
    return rank == 0 ? call_all(job, args, idle->answered) : 0;
}

static int worker(const struct bx_options *options, void *context)
{
    const struct idle *idle = context;
    struct bx_job *job;
    int rc = bench_pin_all(idle->options);

    if (rc < 0)
        return bench_fail("sched_setaffinity", rc);
    if (bench_worker_start(options, -1, NULL, NULL, &job) != 0)
        return 1;

    struct bx_msg *args = bx_msg_create(BENCH_MESSAGE_BYTES);
    int status = args != NULL ? run_worker(idle, job, args) : 1;

    bx_msg_destroy(args);
    return bench_worker_end(job, status);
}

/* The same rest and sleep, in a process that is no worker. */
static pid_t start_bare(const struct idle *idle)
{
    pid_t pid = bench_fork();

    if (pid != 0)
        return pid;
    sleep_seconds(REST_SECONDS);

    double before = cpu_seconds();

    sleep_seconds(idle->seconds);
    idle->cpu_percent[idle->workers] = (cpu_seconds() - before) * 100 / idle->seconds;
    _exit(0);
}

static void report(const struct idle *idle)
{
    double wakeups = 0, most = 0;

    for (int i = 0; i < idle->workers; i++) {
        wakeups += idle->wakeups_per_s[i];
        most = idle->cpu_percent[i] > most ? idle->cpu_percent[i] : most;
    }
    bench_report_open(idle->options, "workers that have talked once, then idle");
    bench_report_number("workers", idle->workers, 0, "");
    bench_report_number("seconds", idle->seconds, 1, "of idleness");
    bench_report_number("bare_cpu_percent", idle->cpu_percent[idle->workers], 3,
                        "of a core: a process that only sleeps");
    bench_report_numbers("cpu_percent", idle->cpu_percent, (size_t)idle->workers, 3);
    bench_report_number("cpu_percent_max", most, 3, "of a core: the busiest worker");
    bench_report_number("wakeups_per_s", wakeups, 2, "of all workers together");
    bench_report_numbers("wakeups_per_s_by_rank", idle->wakeups_per_s, (size_t)idle->workers, 2);
    bench_report_number("answered", *idle->answered + 1, 0, "workers alive afterwards, rank 0 counted");
    bench_report_close();
}

int bench_idle(const struct bench_options *options)
{
    struct idle idle = {
        .options = options,
        .workers = options->workers != 0 ? (int)options->workers : 8,
        .seconds = options->seconds > 0 ? options->seconds : 5,
    };

    idle.barrier = bench_map(sizeof *idle.barrier);
    idle.cpu_percent = bench_map(((size_t)idle.workers + 1) * sizeof(double));
    idle.wakeups_per_s = bench_map((size_t)idle.workers * sizeof(double));
    idle.answered = bench_map(sizeof *idle.answered);

    pid_t bare = start_bare(&idle);
    bool done = bench_spawn(idle.workers, NULL, worker, &idle);

    if (bare < 0 || bench_reap(bare, done ? BENCH_WAIT_NS : 0) != 0 || !done)
        return 1;
    if (*idle.answered != (uint32_t)idle.workers - 1) {
        bench_say("only %u of %d workers answered after the idle time", *idle.answered + 1, idle.workers);
        return 1;
    }
    report(&idle);
    return 0;
}

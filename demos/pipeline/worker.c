/* SPDX-License-Identifier: MIT */
/*
 * The life of each worker, and the job from its fork to its end. pl_run_job is run by the program's first process,
 * which is no worker itself.
 *
 * The pool of a shard's worker has one thread: see shard.c. All processes end when one of them dies: half a network
 * cannot train.
 */
#include "demos/common/ending.h"
#include "pipeline.h"

#include <stdio.h>
#include <time.h>

static volatile int dead;               /* the rank of the worker that died first, plus 1; 0: none */

/* On the thread that makes progress. */
static void note_death(struct bx_job *job, int rank, void *context)
{
    (void)job, (void)context;
    if (dead == 0)
        dead = rank + 1;
}

/* Prints why this worker ends. One that stops because another died leaves the job, and the third may see that first:
 * so it waits a moment for the news of the death, and names the one that died. */
static void report(struct bx_job *job, const char *name, int rc)
{
    for (int i = 0; i < 500 && rc == BX_E_SHUTDOWN && dead == 0; i++)
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    if (rc == BX_E_SHUTDOWN && dead != 0)
        fprintf(stderr, "pipeline: %s: worker '%s' died\n", name, bx_worker_name(job, dead - 1));
    else
        fprintf(stderr, "pipeline: %s: %s\n", name, bx_error_text()[0] != '\0' ? bx_error_text() : bx_strerror(rc));
}

struct task {
    const struct pl_flags *flags;
    struct pl_result *result;
};

static int run_role(struct bx_job *job, struct bx_dist *dist, const struct task *task)
{
    return bx_job_rank(job) == 0 ? pl_train(job, dist, task->flags, task->result) : bx_job_serve(job);
}

static int start(const struct bx_options *options, struct bx_job **job, struct bx_dist **dist)
{
    struct bx_options own = *options;

    own.pool_threads = options->rank == 0 ? 0 : 1;
    int rc = bx_job_create(&own, job);
    if (rc == 0)
        rc = bx_on_death(*job, note_death, NULL);
    if (rc == 0)
        rc = bx_dist_create(*job, dist);
    if (rc == 0)
        rc = pl_shard_register(*job, *dist);
    return rc < 0 ? rc : bx_job_start(*job);
}

static int run_worker(const struct bx_options *options, void *context)
{
    struct bx_dist *dist = NULL;
    struct bx_job *job = NULL;
    int rc = start(options, &job, &dist);

    if (rc == 0)
        rc = run_role(job, dist, context);
    if (rc == 0)
        rc = bx_job_shutdown(job, 0);
    if (rc < 0)
        report(job, options->name, rc);
    bx_job_destroy(job);
    bx_dist_destroy(dist);
    return ending_output("pipeline") < 0 || rc < 0 ? PL_FAILED : PL_OK;
}

int pl_run_job(const struct pl_flags *flags, struct pl_result *result)
{
    static const char *const NAMES[PL_WORLD] = { "master", "worker1", "worker2" };
    struct task task = { flags, result };
    struct bx_spawn_options options = { .world_size = PL_WORLD, .names = NAMES };
    struct bx_spawn_report report = { .failed_rank = -1 };

    fflush(NULL);       /* else every child would print what is buffered now */
    int rc = bx_spawn(&options, run_worker, &task, &report);
    if (rc == 0)
        return PL_OK;
    if (rc == BX_E_INTERRUPTED)
        return ending_by(report.interrupt_signal, PL_WORKER);
    fprintf(stderr, "pipeline: %s\n", bx_error_text()[0] != '\0' ? bx_error_text() : bx_strerror(rc));
    return PL_WORKER;
}

/* SPDX-License-Identifier: MIT */
/*
 * The life of each worker, and the job from its fork to its end. pl_run_job is run by the program's first process,
 * which is no worker itself.
 *
 * The pool of a shard's worker has one thread: see shard.c. All processes end when one of them dies: half a network
 * cannot train.
 */
#include "demos/common/worker.h"
#include "pipeline.h"

struct task {
    const struct pl_flags *flags;
    struct pl_result *result;
};

static int start(struct bx_job *job, struct bx_dist **dist)
{
    int rc = bx_dist_create(job, dist);

    if (rc == 0)
        rc = pl_shard_register(job, *dist);
    return rc < 0 ? rc : bx_job_start(job);
}

static int run_role(struct bx_job *job, struct bx_dist *dist, const struct task *task)
{
    return bx_job_rank(job) == 0 ? pl_train(job, dist, task->flags, task->result) : bx_job_serve(job);
}

static int run_worker(const struct bx_options *options, void *context)
{
    static struct worker worker;
    struct bx_options own = *options;
    struct bx_dist *dist = NULL;

    own.pool_threads = options->rank == 0 ? 0 : 1;
    int rc = worker_open(&worker, "pipeline", &own);
    if (rc < 0)
        goto close;
    rc = start(worker.job, &dist);
    if (rc == 0)
        rc = run_role(worker.job, dist, context);
    if (rc < 0)
        worker_fail(&worker, rc, "the job ends", bx_error_text());
close:
    rc = worker_close(&worker, rc);
    bx_dist_destroy(dist);
    return rc;
}

int pl_run_job(const struct pl_flags *flags, struct pl_result *result)
{
    static const char *const NAMES[PL_WORLD] = { "master", "worker1", "worker2" };
    struct task task = { flags, result };
    struct bx_spawn_options options = { .world_size = PL_WORLD, .names = NAMES };

    return worker_spawn("pipeline", &options, run_worker, &task) < 0 ? PL_WORKER : PL_OK;
}

/* SPDX-License-Identifier: MIT */
/*
 * The life of each worker.
 *
 * The pool of a shard's worker has one thread: see shard.c. All processes end when one of them dies: half a network
 * cannot train.
 */
#include "demos/common/worker.h"
#include "pipeline.h"

static int start(struct bx_job *job, struct bx_dist **dist)
{
    int rc = bx_dist_create(job, dist);

    if (rc == 0)
        rc = pl_shard_register(job, *dist);
    return rc < 0 ? rc : bx_job_start(job);
}

static int run_role(struct bx_job *job, struct bx_dist *dist, const struct pl_task *task)
{
    return bx_job_rank(job) == 0 ? pl_train(job, dist, task->flags, task->result) : bx_job_serve(job);
}

int pl_worker(const struct bx_options *options, void *context)
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

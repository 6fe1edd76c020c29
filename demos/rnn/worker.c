/* SPDX-License-Identifier: MIT */
/*
 * The two workers. `ps` registers its functions and serves until the trainer begins the shutdown. The trainer makes the
 * model, trains it, and writes each iteration's loss and time to the result. Each runs on its process's main thread.
 *
 * When one of them dies, the other prints a sentence with its name, and ends.
 */
#include "demos/common/clock.h"
#include "demos/common/worker.h"
#include "rnn.h"

#include <stdio.h>

/* ---- ps ---------------------------------------------------------------------------------------------------- */

static int serve(struct bx_job *job, struct bx_dist *dist)
{
    int rc = rnn_serve(job, dist);

    if (rc == 0)
        rc = bx_job_start(job);
    return rc < 0 ? rc : bx_job_serve(job);
}

/* ---- The trainer -------------------------------------------------------------------------------------------- */

struct training {
    const struct rnn_run *run;
    struct rnn_model model;
    struct bx_dist_optim *optim;
    struct rnn_batch batches[RNN_BATCHES];
};

static int make_optim(struct training *training, struct bx_dist *dist)
{
    const struct bx_optim_sgd sgd = { .lr = training->run->flags->lr };
    struct rnn_params params;
    int rc = rnn_model_params(&training->model, &params);

    if (rc == 0)
        rc = bx_dist_optim_create(dist, params.at, params.count, &sgd, NULL, &training->optim);
    rnn_params_release(&params);
    return rc;
}

static int init_training(struct training *training, struct bx_job *job, struct bx_dist *dist)
{
    const struct rnn_flags *flags = training->run->flags;
    int rc = rnn_model_init(&training->model, job, dist, flags);

    if (rc == 0)
        rc = make_optim(training, dist);
    for (int i = 0; rc == 0 && i < RNN_BATCHES; i++)
        rc = rnn_batch_init(&training->batches[i], job, flags, i);
    return rc;
}

static void fini_training(struct training *training)
{
    for (int i = 0; i < RNN_BATCHES; i++)
        rnn_batch_fini(&training->batches[i]);
    bx_dist_optim_destroy(training->optim);
    rnn_model_fini(&training->model);
}

double rnn_epoch_loss(const struct rnn_result *result, size_t epoch)
{
    double sum = 0.0;

    for (size_t i = 0; i < RNN_BATCHES; i++)
        sum += result->at[epoch * RNN_BATCHES + i].loss;
    return sum / RNN_BATCHES;
}

static int train_epoch(struct training *training, size_t epoch)
{
    struct rnn_result *result = training->run->result;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < RNN_BATCHES; i++) {
        struct rnn_iteration *at = &result->at[epoch * RNN_BATCHES + i];
        uint64_t start_ns = clock_now_ns();

        rc = rnn_model_train(&training->model, training->optim, &training->batches[i], epoch * RNN_BATCHES + i,
                             &at->loss);
        at->seconds = clock_seconds_since(start_ns);
    }
    if (rc == 0)
        printf("Training epoch %zu: loss %.6f\n", epoch, rnn_epoch_loss(result, epoch));
    return rc;
}

static int train(struct training *training, struct bx_job *job)
{
    struct rnn_result *result = training->run->result;
    uint64_t start_ns = clock_now_ns(), before = 0, after = 0;
    int rc = bx_counter(job, "calls_sent", &before);

    for (size_t epoch = 0; rc == 0 && epoch < (size_t)training->run->flags->epochs; epoch++)
        rc = train_epoch(training, epoch);
    result->total_s = clock_seconds_since(start_ns);
    if (rc == 0)
        rc = bx_counter(job, "calls_sent", &after);
    result->calls = after - before;
    result->ended = rc == 0;
    return rc;
}

static int run_trainer(struct bx_job *job, struct bx_dist *dist, const struct rnn_run *run)
{
    struct training training = { .run = run };
    int rc = bx_job_start(job);

    if (rc == 0)
        rc = init_training(&training, job, dist);
    if (rc == 0)
        rc = train(&training, job);
    fini_training(&training);
    return rc;
}

/* ---- Both --------------------------------------------------------------------------------------------------- */

struct life {
    const struct rnn_run *run;
    struct bx_dist *dist;       /* outlives the job */
};

static int live(struct worker *worker, void *context)
{
    struct life *life = context;
    int rc = bx_dist_create(worker->job, &life->dist);

    if (rc < 0)
        return rc;
    return bx_job_rank(worker->job) == 0 ? serve(worker->job, life->dist)
                                         : run_trainer(worker->job, life->dist, life->run);
}

int rnn_worker(const struct bx_options *options, void *run)
{
    struct life life = { run, NULL };
    int status = worker_main("rnn", options, live, &life);

    bx_dist_destroy(life.dist);
    return status;
}

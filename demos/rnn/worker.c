/* SPDX-License-Identifier: MIT */
/*
 * The two workers. `ps` registers its functions and serves until the trainer begins the shutdown. The trainer makes the
 * model, trains it, and writes each iteration's loss and time to the result. Each runs on its process's main thread.
 *
 * When one of them dies, the other prints a sentence with its name, and ends.
 */
#include "demos/common/clock.h"
#include "demos/common/ending.h"
#include "rnn.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>

struct worker {
    const struct bx_options *options;
    struct bx_job *job;
    struct bx_dist *dist;
};

static int open_worker(struct worker *worker)
{
    int rc;

    /* ^C at a terminal signals every process of the job; the launcher ends the workers. */
    signal(SIGINT, SIG_IGN);
    rc = bx_job_create(worker->options, &worker->job);
    if (rc == 0)
        rc = bx_dist_create(worker->job, &worker->dist);
    return rc;
}

/* Leaves the job; if rc is 0, together with the other worker. Returns the exit status. */
static int close_worker(struct worker *worker, int rc)
{
    const char *text;

    if (rc == 0)
        rc = bx_job_shutdown(worker->job, 0);
    text = bx_error_text()[0] != '\0' ? bx_error_text() : bx_strerror(rc);
    if (rc < 0) {
        /* If the launcher is ending all workers, its SIGTERM arrives within this time, and nothing is printed. */
        nanosleep(&(struct timespec){ .tv_nsec = 30000000 }, NULL);
        fprintf(stderr, "rnn: %s: %s\n", worker->options->name, text);
    }
    bx_job_destroy(worker->job);
    bx_dist_destroy(worker->dist);
    return ending_output("rnn") == 0 && rc == 0 ? RNN_OK : RNN_FAILED;
}

/* ---- ps ---------------------------------------------------------------------------------------------------- */

int rnn_ps(const struct bx_options *options)
{
    struct worker worker = { .options = options };
    int rc = open_worker(&worker);

    if (rc == 0)
        rc = rnn_serve(worker.job, worker.dist);
    if (rc == 0)
        rc = bx_job_start(worker.job);
    if (rc == 0)
        rc = bx_job_serve(worker.job);
    return close_worker(&worker, rc);
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
    struct bx_rref **params = NULL;
    size_t count = 0;
    int rc = rnn_model_params(&training->model, &params, &count);

    if (rc == 0)
        rc = bx_dist_optim_create(dist, params, count, &sgd, NULL, &training->optim);
    for (size_t i = 0; i < count; i++)
        bx_rref_release(params[i]);
    free(params);
    return rc;
}

static int init_training(struct training *training, const struct worker *worker)
{
    const struct rnn_flags *flags = training->run->flags;
    int rc = rnn_model_init(&training->model, worker->job, worker->dist, flags);

    if (rc == 0)
        rc = make_optim(training, worker->dist);
    for (int i = 0; rc == 0 && i < RNN_BATCHES; i++)
        rc = rnn_batch_init(&training->batches[i], worker->job, flags, i);
    return rc;
}

static void fini_training(struct training *training)
{
    for (int i = 0; i < RNN_BATCHES; i++)
        rnn_batch_fini(&training->batches[i]);
    bx_dist_optim_destroy(training->optim);
    rnn_model_fini(&training->model);
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

static int train(struct training *training, const struct worker *worker)
{
    struct rnn_result *result = training->run->result;
    uint64_t start_ns = clock_now_ns(), before = 0, after = 0;
    int rc = bx_counter(worker->job, "calls_sent", &before);

    for (size_t epoch = 0; rc == 0 && epoch < (size_t)training->run->flags->epochs; epoch++)
        rc = train_epoch(training, epoch);
    result->total_s = clock_seconds_since(start_ns);
    if (rc == 0)
        rc = bx_counter(worker->job, "calls_sent", &after);
    result->calls = after - before;
    result->ended = rc == 0;
    return rc;
}

int rnn_trainer(const struct bx_options *options, const struct rnn_run *run)
{
    struct worker worker = { .options = options };
    struct training training = { .run = run };
    int rc = open_worker(&worker);

    if (rc == 0)
        rc = bx_job_start(worker.job);
    if (rc == 0)
        rc = init_training(&training, &worker);
    if (rc == 0)
        rc = train(&training, &worker);
    fini_training(&training);
    return close_worker(&worker, rc);
}

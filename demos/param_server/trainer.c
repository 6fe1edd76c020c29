/* SPDX-License-Identifier: MIT */
/*
 * A trainer, rank 1 and up: fetches the model; then, for each batch, sends its gradients to the server and receives the
 * next version of the model.
 *
 * "train" is a blocking handler: it gets a reference to the server, runs on the pool, and calls the server's methods
 * from there, calls inside a call. The main thread only serves. The gradients are written in this worker's arena, where
 * the server reads them; the model is read where the server wrote it. A trainer repacks the model into the network's
 * own layout at once and returns it before it computes the next batch, so that a slow trainer holds no version. On a
 * GPU all this is put on a stream: the call is sent while the gradients are still being computed, and its duration
 * includes their time.
 *
 * A trainer that takes the place of one that died (--restart) does nothing else: the server calls its "train" with the
 * number of the first batch whose gradient it lacks.
 */
#include "demos/common/clock.h"
#include "demos/common/worker.h"
#include "ps.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct trainer {
    struct bx_job *job;
    const struct ps_run *run;
    struct ps_learner learner;
    struct ps_params params;
    struct bx_rref *server;         /* while it trains */
    struct ps_set grads;            /* all zero: none */
    struct bx_msg *model;           /* the server's last reply, until the model has been repacked */
    const float **model_params;
    uint64_t version;
    uint64_t start_ns;
    struct ps_report report;
    _Atomic int rc;                 /* of the training; the server gets it too */
    int init_rc;                    /* of init_trainer; < 0: `why` has the sentence */
    char why[512];
};

/* ---- Gradients ------------------------------------------------------------------------------------- */

/* Reuses the arrays of the last batch if the server has returned them, else makes new ones: arrays on loan must not be
 * written. On a GPU they are returned before the server's stream has read them; this is safe, because this worker's
 * stream waits for the version that was made of them. */
static int ready_grads(struct trainer *trainer)
{
    struct bx_loans loans = { 0 };
    int rc = bx_job_loans(trainer->job, bx_rref_owner(trainer->server), &loans);      /* collects returned leases */

    if (rc == 0 && trainer->grads.tensors != NULL && !ps_set_is_on_loan(&trainer->grads))
        return 0;
    ps_set_destroy(&trainer->grads);
    return rc < 0 ? rc : ps_set_create(&trainer->grads, &trainer->learner.place, &trainer->params);
}

/* ---- The model --------------------------------------------------------------------------------------- */

static void drop_model(struct trainer *trainer)
{
    bx_msg_destroy(trainer->model);
    trainer->model = NULL;
}

/* Checks the server's reply and finds its tensors. Takes ownership of the reply. */
static int take_model(struct trainer *trainer, struct bx_msg *reply, uint64_t *waited_ns)
{
    struct bx_reader in = bx_msg_reader(reply);

    drop_model(trainer);
    trainer->model = reply;
    trainer->version = bx_read_u64(&in);
    if (waited_ns != NULL)
        *waited_ns = bx_read_u64(&in);
    if (in.error != 0)
        return in.error;
    int rc = ps_read_set(&in, &trainer->learner.place, &trainer->params, "the server's model", trainer->model_params);
    if (rc < 0)
        return rc;
    trainer->report.spent.handed_bytes += ps_params_bytes(&trainer->params);
    return 0;
}

/* Fetches the newest model. */
static int get_model(struct trainer *trainer)
{
    struct bx_msg *reply = NULL;
    int rc = bx_rref_sync(trainer->server, "get_model", NULL, NULL, &reply);

    return rc < 0 ? rc : take_model(trainer, reply, NULL);
}

static void note_report(struct trainer *trainer)
{
    trainer->report.spent.total = clock_seconds_since(trainer->start_ns);
    trainer->report.spent.copied_bytes = worker_copied_bytes(trainer->job);
}

/* Sends the gradients and receives the next model. ready_s: the time that ready_grads took. */
static int update_and_fetch_model(struct trainer *trainer, double loss, double ready_s)
{
    struct ps_spent *spent = &trainer->report.spent;
    struct bx_msg *args = bx_msg_create(256), *reply = NULL;
    uint64_t start_ns = clock_now_ns(), waited_ns = 0;

    if (args == NULL)
        return -ENOMEM;
    note_report(trainer);
    bx_msg_put_u64(args, trainer->version);
    bx_msg_put_u64(args, start_ns);
    bx_msg_put_f64(args, loss);
    ps_put_report(args, &trainer->report);
    ps_put_set(args, &trainer->grads);
    int rc = bx_rref_sync(trainer->server, "update_and_fetch_model", args,
                          &(struct bx_call_options){ .timeout_ns = BX_FOREVER }, &reply);
    bx_msg_destroy(args);
    if (rc == 0)
        rc = take_model(trainer, reply, &waited_ns);
    if (rc == -EALREADY)        /* of the process before this one, which died before it got the reply */
        return get_model(trainer);
    if (rc < 0)
        return rc;

    double waited_s = 1e-9 * (double)waited_ns;
    trainer->report.spent.handed_bytes += ps_params_bytes(&trainer->params);
    trainer->report.last_version = trainer->version;
    trainer->report.last_call_s = ready_s + clock_seconds_since(start_ns) - waited_s;
    spent->call += trainer->report.last_call_s;
    spent->wait += waited_s;
    return 0;
}

/* ---- Training ---------------------------------------------------------------------------------------- */

/* Adds the time since *start_ns to *seconds, and restarts *start_ns. */
static void add_time(double *seconds, uint64_t *start_ns)
{
    uint64_t now_ns = clock_now_ns();

    *seconds += 1e-9 * (double)(now_ns - *start_ns);
    *start_ns = now_ns;
}

static int train_batch(struct trainer *trainer, uint64_t batch)
{
    struct ps_spent *spent = &trainer->report.spent;
    uint64_t at_ns = clock_now_ns();
    double loss = 0.0, ready_s = 0.0;

    trainer->report.batch = batch;
    int rc = bx_net_set_params(trainer->learner.net, trainer->model_params);
    drop_model(trainer);
    add_time(&spent->repack, &at_ns);
    if (rc < 0)
        return rc;
    ps_learner_draw(&trainer->learner, batch);
    add_time(&spent->data, &at_ns);
    rc = ps_learner_forward(&trainer->learner, &loss);
    add_time(&spent->forward, &at_ns);
    if (rc == 0)
        rc = ready_grads(trainer);
    add_time(&ready_s, &at_ns);
    if (rc == 0)
        rc = ps_learner_backward(&trainer->learner, trainer->grads.at);
    if (rc == 0)
        rc = ps_set_written(&trainer->grads, &trainer->learner.place);
    add_time(&spent->backward, &at_ns);
    return rc < 0 ? rc : update_and_fetch_model(trainer, loss, ready_s);
}

static int train(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct trainer *trainer = context;

    (void)request;
    trainer->server = bx_read_rref(args);
    if (trainer->server == NULL)
        return args->error != 0 ? args->error : bx_fail(-EINVAL, "there is no reference to the server");
    if (trainer->init_rc < 0)
        return bx_fail(trainer->init_rc, "%s", trainer->why);
    uint64_t first = bx_read_u64(args);
    trainer->start_ns = clock_now_ns();
    int rc = ps_place_join(&trainer->learner.place, trainer->job);
    if (rc == 0)
        rc = get_model(trainer);
    trainer->report.spent.call += clock_seconds_since(trainer->start_ns);
    for (uint64_t batch = first; rc == 0 && batch < trainer->run->flags->num_batches; batch++)
        rc = train_batch(trainer, batch);
    drop_model(trainer);
    ps_set_destroy(&trainer->grads);
    trainer->rc = rc;
    if (rc < 0)
        return rc;
    note_report(trainer);
    return ps_put_report(reply, &trainer->report);
}

/* ---- The worker's life ------------------------------------------------------------------------------- */

static int init_trainer(struct trainer *trainer, int rank)
{
    int rc = ps_learner_init(&trainer->learner, trainer->run->flags, rank);

    if (rc == 0)
        rc = ps_params_init(&trainer->params, trainer->learner.net);
    if (rc < 0)
        return rc;
    trainer->model_params = calloc(trainer->params.count, sizeof(const float *));
    trainer->report.pid = getpid();
    return trainer->model_params != NULL ? 0 : bx_fail(-ENOMEM, "not enough memory for a list of %zu parameters",
                                                       trainer->params.count);
}

/* A trainer that cannot train, because a GPU, a library or memory is missing, joins the job all the same and fails when
 * "train" is called: else the others would wait for it until the start times out, and could not continue without it. */
static void init_or_note(struct trainer *trainer, int rank)
{
    trainer->init_rc = init_trainer(trainer, rank);
    trainer->rc = trainer->init_rc;
    if (trainer->init_rc < 0)
        snprintf(trainer->why, sizeof(trainer->why), "%s", worker_reason(trainer->init_rc));
}

/* Serves until the server starts the shutdown. The server reports why a training failed and that a trainer died. */
static int serve(struct trainer *trainer)
{
    int rc;

    do
        rc = bx_job_serve(trainer->job);
    while (rc == BX_E_PEER_DEAD && bx_worker_is_alive(trainer->job, 0));
    return rc;
}

static void fini_trainer(struct trainer *trainer)
{
    ps_learner_fini(&trainer->learner);
    ps_params_fini(&trainer->params);
    free(trainer->model_params);
}

int ps_trainer(const struct bx_options *options, const struct ps_run *run)
{
    static struct trainer trainer;

    trainer.run = run;
    int rc = bx_job_create(options, &trainer.job);
    if (rc == 0)
        init_or_note(&trainer, options->rank);
    if (rc == 0)
        rc = bx_register(trainer.job, "train", BX_BLOCKING, train, &trainer);
    if (rc == 0)
        rc = bx_job_start(trainer.job);
    if (rc == 0)
        rc = serve(&trainer);
    if (rc == 0)
        rc = bx_job_shutdown(trainer.job, 0);
    if (rc == 0 && trainer.rc == BX_E_PEER_DEAD)    /* the server died, and the others left before this worker knew */
        rc = bx_fail(BX_E_PEER_DEAD, "worker '" PS_SERVER "' died");
    if (rc < 0)
        fprintf(stderr, "param_server: %s: %s\n", options->name, worker_reason(rc));
    bx_job_destroy(trainer.job);
    fini_trainer(&trainer);
    return rc == 0 && trainer.rc == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

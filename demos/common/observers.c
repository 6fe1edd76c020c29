/* SPDX-License-Identifier: MIT */
/*
 * The calls between an agent and its observers, and the life of an observer's worker: its main thread only serves, and
 * run_episode runs on the pool. The agent runs one episode at a time, so an observer needs no lock.
 */
#include "observers.h"

#include <errno.h>
#include <string.h>

int observers_start(struct observers *observers, const struct bx_type *type, void *agent, struct bx_msg *args)
{
    struct bx_job *job = observers->job;
    int rc = bx_msg_error(args);

    if (rc == 0)
        rc = bx_job_start(job);
    if (rc == 0)
        rc = bx_rref_create(job, type, agent, &observers->agent);
    for (size_t i = 0; rc == 0 && i < observers->count; i++)
        rc = bx_remote(job, bx_worker_name(job, (int)i + 1), "new_observer", args, NULL, &observers->at[i]);
    bx_msg_destroy(args);
    return rc;
}

void observers_release(struct observers *observers)
{
    observers_forget(observers);
    for (size_t i = 0; i < observers->count; i++)
        bx_rref_release(observers->at[i]);
    bx_rref_release(observers->agent);
}

/* A failure ends the training at once: the other observers may be waiting for a batch that will never be full. After
 * BX_E_SHUTDOWN it waits on: that observer stopped because another worker failed, and that worker's own failure, the
 * one to report, will arrive. */
static int wait_for_all(struct observers *observers)
{
    struct bx_future *pending[BX_WORLD_MAX];
    size_t left = observers->count;
    int rc = 0;

    memcpy(pending, observers->episodes, left * sizeof pending[0]);
    while (left > 0 && (rc == 0 || rc == BX_E_SHUTDOWN)) {
        struct bx_future *any = bx_future_any(observers->job, pending, left);
        int code = bx_future_wait(any, BX_FOREVER);
        int64_t ended = bx_future_index(any);

        bx_future_release(any);
        if (code < 0)
            rc = code;
        if (ended < 0)
            break;
        pending[ended] = pending[--left];
    }
    return rc;
}

int observers_run(struct observers *observers, struct bx_msg *args)
{
    struct bx_call_options options = { .timeout_ns = BX_FOREVER };
    int rc = bx_msg_put_rref(args, observers->agent);

    for (size_t i = 0; rc == 0 && i < observers->count; i++)
        rc = bx_rref_async(observers->at[i], "run_episode", args, &options, &observers->episodes[i]);
    bx_msg_destroy(args);
    return rc == 0 ? wait_for_all(observers) : rc;
}

void observers_forget(struct observers *observers)
{
    for (size_t i = 0; i < observers->count; i++) {
        bx_future_release(observers->episodes[i]);
        observers->episodes[i] = NULL;
    }
}

/* ---- An observer's side -------------------------------------------------------------------------------- */

static int serve(struct worker *worker, void *context)
{
    const struct observer_functions *functions = context;
    struct bx_job *job = worker->job;
    int rc = bx_register(job, "new_observer", BX_INLINE, functions->make, worker);

    if (rc == 0)
        rc = bx_register_method(job, functions->type, "run_episode", BX_BLOCKING, functions->run_episode, NULL);
    if (rc == 0)
        rc = bx_job_start(job);
    return rc < 0 ? rc : bx_job_serve(job);
}

int observer_main(const char *program, const struct bx_options *options, struct observer_functions *functions)
{
    return worker_main(program, options, serve, functions);
}

int observer_ask(const struct worker *worker, struct bx_rref *agent, const char *method, const struct bx_msg *args)
{
    struct bx_msg *reply = NULL;
    int rc;

    /* Without the dead worker the episode cannot be used. The code tells the agent that this observer is not the one
     * that failed. */
    if (worker->dead != 0)
        return bx_fail(BX_E_SHUTDOWN, "another worker has died");
    rc = bx_rref_sync(agent, method, args, NULL, &reply);
    if (rc < 0)
        return rc;
    struct bx_reader reader = bx_msg_reader(reply);
    int64_t action = bx_read_i64(&reader);
    bx_msg_destroy(reply);
    if (reader.error != 0)
        return reader.error;
    return action == 0 || action == 1 ? (int)action : bx_fail(-EDOM, "the agent chose no action");
}

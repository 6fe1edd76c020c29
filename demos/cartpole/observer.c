/* SPDX-License-Identifier: MIT */
/*
 * An observer, rank 1 and up: serves one function, which makes an observer object, and its method run_episode.
 *
 * run_episode is blocking: it runs on the pool and calls the agent from there, calls inside a call. The main thread
 * only serves. The agent starts one episode at a time, so an object needs no lock.
 */
#include "cp.h"
#include "demos/common/worker.h"
#include "demos/reinforce/cartpole.h"

#include <errno.h>
#include <stdlib.h>

struct observer {
    const struct worker *worker;
    struct bx_msg *args;        /* of each call to the agent; reused */
    uint64_t seed;
    uint64_t resets;            /* poles so far */
    bool pack;
};

/* ---- Calls to the agent -------------------------------------------------------------------------------- */

static int put_state(struct bx_msg *args, const struct cartpole *pole)
{
    const double *s = pole->state;
    const float state[4] = { (float)s[0], (float)s[1], (float)s[2], (float)s[3] };

    return bx_msg_put_f32s(args, state, 4);
}

/* Calls a method that replies with an action, which it returns. */
static int call_for_action(struct observer *observer, struct bx_rref *agent, const char *method)
{
    struct bx_msg *reply = NULL;
    int rc = bx_rref_sync(agent, method, observer->args, NULL, &reply);

    if (rc < 0)
        return rc;
    struct bx_reader reader = bx_msg_reader(reply);
    int64_t action = bx_read_i64(&reader);
    bx_msg_destroy(reply);
    if (reader.error != 0)
        return reader.error;
    return action == 0 || action == 1 ? (int)action : bx_fail(-EDOM, "the agent chose no action");
}

static int select_action(struct observer *observer, struct bx_rref *agent, const struct cartpole *pole)
{
    bx_msg_clear(observer->args);
    int rc = put_state(observer->args, pole);

    return rc < 0 ? rc : call_for_action(observer, agent, "select_action");
}

static int report_reward(struct observer *observer, struct bx_rref *agent, float reward)
{
    bx_msg_clear(observer->args);
    int rc = bx_msg_put_f32(observer->args, reward);

    return rc < 0 ? rc : bx_rref_sync(agent, "report_reward", observer->args, NULL, NULL);
}

static int report_and_select(struct observer *observer, struct bx_rref *agent, const struct cartpole *pole,
                             float reward)
{
    bx_msg_clear(observer->args);
    int rc = bx_msg_put_f32(observer->args, reward);

    if (rc == 0)
        rc = put_state(observer->args, pole);
    return rc < 0 ? rc : call_for_action(observer, agent, "report_and_select");
}

/* ---- The object ---------------------------------------------------------------------------------------- */

static void destroy_observer(void *object)
{
    struct observer *observer = object;

    bx_msg_destroy(observer->args);
    free(observer);
}

static const struct bx_type observer_type = { .name = "observer", .destroy = destroy_observer };

static int new_observer(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct observer *observer = calloc(1, sizeof(*observer));

    if (observer == NULL || (observer->args = bx_msg_create(32)) == NULL) {
        free(observer);
        return -ENOMEM;
    }
    observer->worker = context;
    observer->seed = bx_read_u64(args);
    observer->pack = bx_read_i32(args) != 0;
    int rc = args->error != 0 ? args->error
                              : bx_msg_put_object(bx_request_job(request), reply, &observer_type, observer);
    if (rc < 0)
        destroy_observer(observer);
    return rc;
}

/* One pole, from its start to its end. */
static int run_episode(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    const float reward = 1.0f;      /* of every step: the pole stood when it began */
    struct observer *observer = bx_request_object(request);
    struct bx_rref *agent = bx_read_rref(args);
    struct cartpole pole;

    (void)reply, (void)context;
    if (agent == NULL)
        return args->error != 0 ? args->error : bx_fail(-EINVAL, "there is no reference to the agent");
    cartpole_reset(&pole, observer->seed, bx_job_rank(bx_request_job(request)), observer->resets++);
    int action = select_action(observer, agent, &pole);
    while (action >= 0) {
        /* Without the dead worker the episode cannot be used. The code tells the agent that this observer is not the
         * one that failed. */
        if (observer->worker->dead != 0)
            return bx_fail(BX_E_SHUTDOWN, "another worker has died");
        cartpole_step(&pole, action);
        if (pole.done)
            return report_reward(observer, agent, reward);
        if (observer->pack) {
            action = report_and_select(observer, agent, &pole, reward);
            continue;
        }
        action = report_reward(observer, agent, reward);
        if (action == 0)
            action = select_action(observer, agent, &pole);
    }
    return action;
}

/* ---- The worker ---------------------------------------------------------------------------------------- */

static int serve(struct worker *worker)
{
    struct bx_job *job = worker->job;
    int rc = bx_register(job, "new_observer", BX_INLINE, new_observer, worker);

    if (rc == 0)
        rc = bx_register_method(job, &observer_type, "run_episode", BX_BLOCKING, run_episode, NULL);
    if (rc == 0)
        rc = bx_job_start(job);
    if (rc == 0)
        rc = bx_job_serve(job);
    if (rc == 0 && worker->dead != 0)
        rc = BX_E_PEER_DEAD;
    if (rc < 0)
        worker_fail(worker, rc, "the job ends", bx_error_text());
    return rc;
}

int cp_observer(const struct bx_options *options)
{
    static struct worker worker;
    int rc = worker_open(&worker, CP_PROGRAM, options);

    if (rc == 0)
        rc = serve(&worker);
    return worker_close(&worker, rc);
}

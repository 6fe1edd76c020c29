/* SPDX-License-Identifier: MIT */
/*
 * An observer, rank 1 and up: serves one function, which makes an observer object, and its methods.
 *
 * "run_episode" is a blocking method: it runs on the pool, plays CartPole, and asks the agent for the action of each
 * step, calls inside a call. The main thread only serves. "fetch_rewards" returns what the reply of run_episode had no
 * room for. The agent runs one episode at a time and fetches between two, so an object needs no lock.
 */
#include "cartpole.h"
#include "demos/common/worker.h"
#include "reinforce.h"

#include <errno.h>
#include <stdlib.h>

struct observer {
    const struct worker *worker;
    struct cartpole_player player;
    const char *method;         /* of the agent: select_action or select_action_batch */
    struct bx_rref *agent;      /* while an episode runs */
    struct bx_msg *args;        /* of each step's call; reused */
    float *rewards;
    size_t steps;
};

/* ---- An episode ---------------------------------------------------------------------------------------- */

/* The call of one step; its action. */
static int ask_agent(const float state[4], void *context)
{
    struct observer *observer = context;
    struct bx_msg *reply = NULL;
    int rc;

    /* Without the dead worker the episode cannot be used. The code tells the agent that this observer is not the one
     * that failed. */
    if (observer->worker->dead != 0)
        return bx_fail(BX_E_SHUTDOWN, "another worker has died");
    bx_msg_clear(observer->args);
    rc = bx_msg_put_f32s(observer->args, state, 4);
    if (rc == 0)
        rc = bx_rref_sync(observer->agent, observer->method, observer->args, NULL, &reply);
    if (rc < 0)
        return rc;
    struct bx_reader reader = bx_msg_reader(reply);
    int64_t action = bx_read_i64(&reader);
    bx_msg_destroy(reply);
    if (reader.error != 0)
        return reader.error;
    return action == 0 || action == 1 ? (int)action : bx_fail(-EDOM, "the agent chose no action");
}

static int put_rewards(const struct observer *observer, size_t first_step, struct bx_msg *reply)
{
    size_t left = observer->steps - first_step;

    return bx_msg_put_f32s(reply, observer->rewards + first_step,
                           left < REINFORCE_REWARDS_PER_FRAME ? left : REINFORCE_REWARDS_PER_FRAME);
}

static int make_room(struct observer *observer, uint64_t steps)
{
    if (steps == 0 || steps > REINFORCE_STEPS_MAX)
        return bx_fail(-EINVAL, "an episode of %llu steps", (unsigned long long)steps);
    if (steps == observer->steps)
        return 0;
    float *rewards = realloc(observer->rewards, steps * sizeof(*rewards));

    if (rewards == NULL)
        return -ENOMEM;
    observer->rewards = rewards;
    observer->steps = steps;
    return 0;
}

static int run_episode(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct observer *observer = bx_request_object(request);
    uint64_t steps = bx_read_u64(args);

    (void)context;
    observer->agent = bx_read_rref(args);
    if (observer->agent == NULL)
        return args->error != 0 ? args->error : bx_fail(-EINVAL, "there is no reference to the agent");
    int rc = make_room(observer, steps);
    if (rc < 0)
        return rc;
    int first_pole_steps = cartpole_play(&observer->player, steps, observer->rewards, ask_agent, observer);
    if (first_pole_steps < 0)
        return first_pole_steps;
    rc = bx_msg_put_i64(reply, first_pole_steps);
    return rc < 0 ? rc : put_rewards(observer, 0, reply);
}

static int fetch_rewards(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    const struct observer *observer = bx_request_object(request);
    uint64_t first_step = bx_read_u64(args);

    (void)context;
    if (first_step >= observer->steps)
        return bx_fail(-ERANGE, "the episode has no step %llu", (unsigned long long)first_step);
    return put_rewards(observer, first_step, reply);
}

/* ---- The object ---------------------------------------------------------------------------------------- */

static void destroy_observer(void *object)
{
    struct observer *observer = object;

    bx_msg_destroy(observer->args);
    free(observer->rewards);
    free(observer);
}

static const struct bx_type observer_type = { .name = "observer", .destroy = destroy_observer };

static int new_observer(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct bx_job *job = bx_request_job(request);
    struct observer *observer = calloc(1, sizeof(*observer));

    if (observer == NULL || (observer->args = bx_msg_create(16)) == NULL) {
        free(observer);
        return -ENOMEM;
    }
    observer->worker = context;
    observer->player.rank = bx_job_rank(job);
    observer->player.seed = bx_read_u64(args);
    observer->player.gamma = bx_read_f64(args);
    observer->method = bx_read_i32(args) == REINFORCE_BATCH ? "select_action_batch" : "select_action";
    int rc = args->error != 0 ? args->error : bx_msg_put_object(job, reply, &observer_type, observer);
    if (rc < 0)
        destroy_observer(observer);
    return rc;
}

/* ---- The worker ---------------------------------------------------------------------------------------- */

static int serve(struct worker *worker)
{
    struct bx_job *job = worker->job;
    int rc = bx_register(job, "new_observer", BX_INLINE, new_observer, worker);

    if (rc == 0)
        rc = bx_register_method(job, &observer_type, "run_episode", BX_BLOCKING, run_episode, NULL);
    if (rc == 0)
        rc = bx_register_method(job, &observer_type, "fetch_rewards", BX_INLINE, fetch_rewards, NULL);
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

int reinforce_observer(const struct bx_options *options)
{
    static struct worker worker;
    int rc = worker_open(&worker, "reinforce", options);

    if (rc == 0)
        rc = serve(&worker);
    return worker_close(&worker, rc);
}

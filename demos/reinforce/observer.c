/* SPDX-License-Identifier: MIT */
/*
 * An observer, rank 1 and up: plays CartPole, and asks the agent for the action of each step.
 *
 * "run_episode" is a blocking handler: it runs on the pool and calls the agent from there, a call inside a call. The
 * main thread only serves. "fetch_rewards" returns what the reply of run_episode had no room for. The agent runs one
 * episode at a time and fetches between two, so the returns need no lock.
 */
#include "cartpole.h"
#include "demos/common/worker.h"
#include "reinforce.h"

#include <errno.h>
#include <stdlib.h>

struct observer {
    struct worker worker;
    struct cartpole_player player;
    const char *function;       /* of the agent: select_action or select_action_batch */
    struct bx_msg *args;        /* of each step's call; reused */
    float *rewards;
    size_t steps;
};

/* The call of one step; its action. */
static int ask_agent(const float state[4], void *context)
{
    struct observer *observer = context;
    struct bx_msg *reply = NULL;
    int rc;

    /* Without the dead worker the episode cannot be used. The code tells the agent that this observer is not the one
     * that failed. */
    if (observer->worker.dead != 0)
        return bx_fail(BX_E_SHUTDOWN, "another worker has died");
    bx_msg_clear(observer->args);
    rc = bx_msg_put_f32s(observer->args, state, 4);
    if (rc == 0)
        rc = bx_rpc_sync(observer->worker.job, REINFORCE_AGENT, observer->function, observer->args,
                         NULL, &reply);
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

static int run_episode(const struct bx_request *request, struct bx_reader *args,
                       struct bx_msg *reply, void *context)
{
    struct observer *observer = context;
    uint64_t steps = bx_read_u64(args);
    int32_t mode = bx_read_i32(args);

    (void)request;
    if (args->error != 0)
        return args->error;
    if (steps == 0 || steps > REINFORCE_STEPS_MAX)
        return bx_fail(-EINVAL, "an episode of %llu steps", (unsigned long long)steps);
    if (steps != observer->steps) {
        float *rewards = realloc(observer->rewards, steps * sizeof(*rewards));

        if (rewards == NULL)
            return -ENOMEM;
        observer->rewards = rewards;
        observer->steps = steps;
    }
    observer->function = mode == REINFORCE_BATCH ? "select_action_batch" : "select_action";
    int first_pole_steps = cartpole_play(&observer->player, steps, observer->rewards, ask_agent,
                                         observer);
    if (first_pole_steps < 0)
        return first_pole_steps;
    int rc = bx_msg_put_i64(reply, first_pole_steps);
    return rc < 0 ? rc : put_rewards(observer, 0, reply);
}

static int fetch_rewards(const struct bx_request *request, struct bx_reader *args,
                         struct bx_msg *reply, void *context)
{
    struct observer *observer = context;
    uint64_t first_step = bx_read_u64(args);

    (void)request;
    if (first_step >= observer->steps)
        return bx_fail(-ERANGE, "the episode has no step %llu", (unsigned long long)first_step);
    return put_rewards(observer, first_step, reply);
}

static int serve(struct observer *observer)
{
    struct bx_job *job = observer->worker.job;
    int rc = bx_register(job, "run_episode", BX_BLOCKING, run_episode, observer);

    if (rc == 0)
        rc = bx_register(job, "fetch_rewards", BX_INLINE, fetch_rewards, observer);
    if (rc == 0)
        rc = bx_job_start(job);
    if (rc == 0)
        rc = bx_job_serve(job);
    if (rc == 0 && observer->worker.dead != 0)
        rc = BX_E_PEER_DEAD;
    if (rc < 0)
        worker_fail(&observer->worker, rc, "the job ends", bx_error_text());
    return rc;
}

int reinforce_observer(const struct bx_options *options, const struct reinforce_run *run)
{
    static struct observer observer;
    int rc = worker_open(&observer.worker, "reinforce", options);

    if (rc < 0)
        goto close;
    observer.player = (struct cartpole_player){ .seed = run->flags->seed, .rank = options->rank,
                                                .gamma = run->flags->gamma };
    observer.args = bx_msg_create(16);
    rc = observer.args != NULL ? serve(&observer)
                               : worker_fail(&observer.worker, -ENOMEM, "start", NULL);
close:
    rc = worker_close(&observer.worker, rc);
    bx_msg_destroy(observer.args);
    free(observer.rewards);
    return rc;
}

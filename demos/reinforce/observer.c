/* SPDX-License-Identifier: MIT */
/*
 * An observer, rank 1 and up: serves one function, which makes an observer object, and its methods.
 *
 * "run_episode" is a blocking method: it runs on the pool, plays CartPole, and asks the agent for the action of each
 * step, calls inside a call.
 */
#include "cartpole.h"
#include "demos/common/observers.h"
#include "reinforce.h"

#include <errno.h>
#include <stdlib.h>

struct observer {
    const struct worker *worker;
    struct cartpole_player player;
    const char *method;         /* of the agent: select_action or select_action_batch */
    struct bx_rref *agent;      /* while an episode runs */
    struct bx_msg *args;        /* of each step's call; reused */
};

/* ---- An episode ---------------------------------------------------------------------------------------- */

/* The call of one step; its action. */
static int ask_agent(const float state[4], void *context)
{
    struct observer *observer = context;
    int rc;

    bx_msg_clear(observer->args);
    rc = bx_msg_put_f32s(observer->args, state, 4);
    return rc < 0 ? rc : observer_ask(observer->worker, observer->agent, observer->method, observer->args);
}

static int run_episode(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct observer *observer = bx_request_object(request);
    uint64_t steps = bx_read_u64(args);

    (void)context;
    observer->agent = bx_read_rref(args);
    if (observer->agent == NULL)
        return args->error != 0 ? args->error : bx_fail(-EINVAL, "there is no reference to the agent");
    if (steps == 0 || steps > REINFORCE_STEPS_MAX)
        return bx_fail(-EINVAL, "an episode of %llu steps", (unsigned long long)steps);
    float *rewards = calloc(steps, sizeof(*rewards));
    if (rewards == NULL)
        return -ENOMEM;
    int rc = cartpole_play(&observer->player, steps, rewards, ask_agent, observer);
    if (rc >= 0)
        rc = bx_msg_put_i64(reply, rc);
    if (rc == 0)
        rc = bx_msg_put_f32s(reply, rewards, steps);
    free(rewards);
    return rc;
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

int reinforce_observer(const struct bx_options *options)
{
    return observer_main("reinforce", options,
                         &(struct observer_functions){ &observer_type, new_observer, run_episode });
}

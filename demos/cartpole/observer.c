/* SPDX-License-Identifier: MIT */
/*
 * An observer, rank 1 and up: serves one function, which makes an observer object, and its method run_episode.
 *
 * run_episode is blocking: it runs on the pool and calls the agent from there, calls inside a call.
 */
#include "cp.h"
#include "demos/common/observers.h"
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

static int select_action(struct observer *observer, struct bx_rref *agent, const struct cartpole *pole)
{
    bx_msg_clear(observer->args);
    int rc = put_state(observer->args, pole);

    return rc < 0 ? rc : observer_ask(observer->worker, agent, "select_action", observer->args);
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
    return rc < 0 ? rc : observer_ask(observer->worker, agent, "report_and_select", observer->args);
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

int cp_observer(const struct bx_options *options)
{
    return observer_main(CP_PROGRAM, options,
                         &(struct observer_functions){ &observer_type, new_observer, run_episode });
}

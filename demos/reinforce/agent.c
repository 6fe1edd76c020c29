/* SPDX-License-Identifier: MIT */
/*
 * The agent, rank 0: answers each observer's state with an action, and learns between episodes.
 *
 * The agent is an object with two methods, and each observer gets a reference to it with run_episode. "select_action"
 * answers one call at a time. "select_action_batch" runs once every observer has a row, and decides for all at once.
 * Both run on the thread that makes progress. The main thread makes an observer in each other worker by bx_remote, and
 * holds a reference to it. It starts an episode by calling run_episode on all of them, waits for all, and updates the
 * policy. No observer calls during the update, so one thread at a time uses the learner, and it needs no lock. A
 * decision depends on episode, step and observer only: both modes, and every order of arrival, give the same training.
 */
#include "demos/common/clock.h"
#include "demos/common/flags.h"
#include "demos/common/worker.h"
#include "learner.h"
#include "reinforce.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct agent {
    struct worker worker;
    const struct reinforce_run *run;
    struct learner learner;
    struct bx_rref *self;
    struct bx_rref *observers[BX_WORLD_MAX];
    struct bx_future *futures[BX_WORLD_MAX];    /* of run_episode, by observer */
    double running_reward;
};

/* ---- The methods --------------------------------------------------------------------------------------- */

static const struct bx_type agent_type = { .name = "agent" };

/* Fills in an ask except its action. */
static int read_ask(int caller, struct bx_reader *args, struct learner_ask *ask)
{
    ask->observer = (size_t)(caller - 1);
    return bx_read_f32s(args, ask->state, POLICY_INPUTS);
}

static int select_action(const struct bx_request *request, struct bx_reader *args,
                         struct bx_msg *reply, void *context)
{
    struct agent *agent = bx_request_object(request);
    struct learner_ask ask;
    int rc = read_ask(bx_request_caller(request), args, &ask);

    (void)context;
    if (rc < 0)
        return rc;
    learner_decide(&agent->learner, &ask, 1);
    return ask.action < 0 ? ask.action : bx_msg_put_i64(reply, ask.action);
}

static int select_action_batch(struct bx_batch *batch, void *context)
{
    struct agent *agent = context;
    struct learner_ask asks[BX_WORLD_MAX];
    size_t row_of[BX_WORLD_MAX], count = 0;
    int rc = 0;

    for (size_t row = 0; rc == 0 && row < bx_batch_rows(batch); row++) {
        struct bx_reader args = bx_batch_args(batch, row);
        int code = count == BX_WORLD_MAX ? -ERANGE : read_ask(bx_batch_caller(batch, row), &args, &asks[count]);

        if (code < 0)
            rc = bx_batch_fail_row(batch, row, code, "no state to act on");
        else
            row_of[count++] = row;
    }
    learner_decide(&agent->learner, asks, count);
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = asks[i].action < 0
                 ? bx_batch_fail_row(batch, row_of[i], asks[i].action, "no action for this state")
                 : bx_batch_reply_i64(batch, row_of[i], asks[i].action);
    return rc;
}

/* ---- Start and end ------------------------------------------------------------------------------------- */

static int register_methods(struct agent *agent)
{
    struct bx_job *job = agent->worker.job;
    int rc = bx_register_method(job, &agent_type, "select_action", BX_INLINE, select_action, NULL);

    if (rc == 0)
        rc = bx_register_method_batch(job, &agent_type, "select_action_batch", select_action_batch, agent, NULL);
    for (int rank = 1; rc == 0 && rank < agent->run->world_size; rank++)
        rc = bx_batch_add_member(job, "select_action_batch", rank);
    return rc;
}

static int make_observers(struct agent *agent)
{
    struct bx_job *job = agent->worker.job;
    struct bx_msg *args = bx_msg_create(32);
    int rc = args == NULL ? bx_fail(-ENOMEM, "not enough memory") : 0;

    if (rc == 0)
        rc = bx_rref_create(job, &agent_type, agent, &agent->self);
    if (rc == 0)
        rc = bx_msg_put_u64(args, agent->run->flags->seed);
    if (rc == 0)
        rc = bx_msg_put_f64(args, agent->run->flags->gamma);
    if (rc == 0)
        rc = bx_msg_put_i32(args, (int32_t)agent->run->mode);
    for (size_t i = 0; rc == 0 && i < agent->learner.observers; i++)
        rc = bx_remote(job, bx_worker_name(job, (int)i + 1), "new_observer", args, NULL, &agent->observers[i]);
    bx_msg_destroy(args);
    return rc;
}

static int start_agent(struct agent *agent)
{
    int rc = register_methods(agent);

    if (rc == 0)
        rc = bx_job_start(agent->worker.job);
    if (rc == 0)
        rc = make_observers(agent);
    if (rc < 0)
        worker_fail(&agent->worker, rc, "the job does not start", bx_error_text());
    return rc;
}

static void release_references(struct agent *agent)
{
    for (size_t i = 0; i < agent->learner.observers; i++)
        bx_rref_release(agent->observers[i]);
    bx_rref_release(agent->self);
}

/* ---- An episode ---------------------------------------------------------------------------------------- */

/* Waits until every observer has ended its episode. A failure ends the training at once: the other observers may be
 * waiting for a batch that will never be full. After BX_E_SHUTDOWN it waits on: that observer stopped because another
 * worker failed, and that worker's own failure, the one to report, will arrive. */
static int wait_for_observers(struct agent *agent)
{
    struct bx_future *pending[BX_WORLD_MAX];
    size_t left = agent->learner.observers;
    int rc = 0;

    memcpy(pending, agent->futures, left * sizeof pending[0]);
    while (left > 0 && (rc == 0 || rc == BX_E_SHUTDOWN)) {
        struct bx_future *any = bx_future_any(agent->worker.job, pending, left);
        int code = bx_future_wait(any, BX_FOREVER);
        int64_t ended = bx_future_index(any);

        bx_future_release(any);
        if (code < 0)
            rc = code;
        if (ended < 0)
            break;
        pending[ended] = pending[--left];
    }
    if (rc < 0)
        worker_fail(&agent->worker, rc, "run_episode", bx_error_text());
    return rc;
}

/* Starts the episode on all observers and waits for its end. */
static int run_observers(struct agent *agent)
{
    struct bx_call_options options = { .timeout_ns = BX_FOREVER };
    struct bx_msg *args = bx_msg_create(16);
    int rc = args == NULL ? -ENOMEM : 0;

    if (rc == 0)
        rc = bx_msg_put_u64(args, agent->run->flags->steps);
    if (rc == 0)
        rc = bx_msg_put_rref(args, agent->self);
    for (size_t i = 0; rc == 0 && i < agent->learner.observers; i++)
        rc = bx_rref_async(agent->observers[i], "run_episode", args, &options, &agent->futures[i]);
    if (rc < 0)
        worker_fail(&agent->worker, rc, "run_episode", bx_error_text());
    bx_msg_destroy(args);
    return rc < 0 ? rc : wait_for_observers(agent);
}

/* Reads the next returns from a message into the learner. The number of steps read, or a code. */
static int take_rewards(struct agent *agent, size_t observer, size_t first_step,
                        struct bx_reader *reader)
{
    float rewards[REINFORCE_REWARDS_PER_FRAME];
    size_t left = agent->learner.steps - first_step;
    size_t count = left < REINFORCE_REWARDS_PER_FRAME ? left : REINFORCE_REWARDS_PER_FRAME;
    int rc = bx_read_f32s(reader, rewards, count);

    if (rc == 0)
        rc = learner_returns(&agent->learner, observer, first_step, rewards, count);
    return rc < 0 ? rc : (int)count;
}

/* Fetches the returns that the reply of run_episode had no room for. */
static int fetch_rewards(struct agent *agent, size_t observer, size_t first_step)
{
    struct bx_msg *args = bx_msg_create(8);
    int rc = args == NULL ? -ENOMEM : 0;

    while (rc >= 0 && first_step < agent->learner.steps) {
        struct bx_msg *reply = NULL;

        bx_msg_clear(args);
        rc = bx_msg_put_u64(args, first_step);
        if (rc == 0)
            rc = bx_rref_sync(agent->observers[observer], "fetch_rewards", args, NULL, &reply);
        if (rc == 0) {
            struct bx_reader reader = bx_msg_reader(reply);

            rc = take_rewards(agent, observer, first_step, &reader);
        }
        if (rc > 0)
            first_step += (size_t)rc;
        bx_msg_destroy(reply);
    }
    bx_msg_destroy(args);
    return rc < 0 ? rc : 0;
}

/* Reads the observers' replies, and sets *last_reward to the mean length of their first poles. */
static int take_replies(struct agent *agent, double *last_reward)
{
    size_t observers = agent->learner.observers;
    double sum = 0.0;

    for (size_t i = 0; i < observers; i++) {
        struct bx_reader reader = bx_msg_reader(bx_future_value(agent->futures[i]));
        int64_t first_pole_steps = bx_read_i64(&reader);
        int rc = take_rewards(agent, i, 0, &reader);

        if (rc > 0)
            rc = fetch_rewards(agent, i, (size_t)rc);
        if (rc < 0)
            return worker_fail(&agent->worker, rc, "the rewards of an episode", bx_error_text());
        sum += (double)first_pole_steps;
    }
    *last_reward = sum / (double)observers;
    return 0;
}

static void release_futures(struct agent *agent)
{
    for (size_t i = 0; i < agent->learner.observers; i++) {
        bx_future_release(agent->futures[i]);
        agent->futures[i] = NULL;
    }
}

/* ---- The training -------------------------------------------------------------------------------------- */

/* On a terminal: a line that overwrites itself; empty at the end. */
static void show_progress(const struct agent *agent, uint64_t episode)
{
    const struct reinforce_flags *flags = agent->run->flags;

    if (!isatty(STDERR_FILENO))
        return;
    if (episode < flags->episodes)
        fprintf(stderr, "\r\033[Kworld size %d of %d, %s: episode %llu of %llu",
                agent->run->world_size, flags->max_world_size,
                reinforce_mode_name(agent->run->mode), (unsigned long long)episode + 1,
                (unsigned long long)flags->episodes);
    else
        fprintf(stderr, "\r\033[K");
}

static void print_episode(const struct agent *agent, uint64_t episode, double last_reward)
{
    if (agent->run->flags->quiet)
        return;
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K");
    printf("Episode %llu\tLast reward: %.2f\tAverage reward: %.2f\n", (unsigned long long)episode,
           last_reward, agent->running_reward);
}

static int run_episode(struct agent *agent, uint64_t episode)
{
    double last_reward = 0.0;
    int rc = run_observers(agent);

    if (rc == 0)
        rc = take_replies(agent, &last_reward);
    release_futures(agent);
    if (rc < 0)
        return rc;

    uint64_t start_ns = clock_now_ns();
    rc = learner_update(&agent->learner);
    agent->run->result->learn_seconds += clock_seconds_since(start_ns);
    if (rc < 0)
        return worker_fail(&agent->worker, rc, "update", rc != -ERANGE ? bx_error_text()
                           : "an observer did not ask for an action in every step");
    agent->running_reward = 0.5 * last_reward + 0.5 * agent->running_reward;
    print_episode(agent, episode, last_reward);
    return 0;
}

static int train(struct agent *agent)
{
    struct reinforce_result *result = agent->run->result;
    uint64_t start_ns = clock_now_ns();
    int rc = 0;

    for (uint64_t episode = 0; rc == 0 && episode < agent->run->flags->episodes; episode++) {
        show_progress(agent, episode);
        rc = run_episode(agent, episode);
    }
    show_progress(agent, agent->run->flags->episodes);
    result->train_seconds = clock_seconds_since(start_ns);
    if (rc == 0)
        rc = bx_counter(agent->worker.job, "requests_batched", &result->requests_batched);
    if (rc == 0)
        rc = bx_counter(agent->worker.job, "requests_inline", &result->requests_inline);
    if (rc == 0)
        rc = bx_counter(agent->worker.job, "replies_sent", &result->replies_sent);
    return rc;
}

/* Also prints the GPU's name: `make demo` does not know its machine. */
static int use_gpu(struct agent *agent)
{
    int rc = learner_use_gpu(&agent->learner, agent->run->flags->device);

    if (rc < 0)
        return worker_fail(&agent->worker, rc, "the policy cannot be put on a GPU", bx_error_text());
    if (!agent->run->flags->quiet)
        printf("the policy is on cuda:%d, %s\n", agent->run->flags->device, policy_gpu_name(agent->learner.gpu));
    return 0;
}

int reinforce_agent(const struct bx_options *options, const struct reinforce_run *run)
{
    static struct agent agent;
    size_t observers = (size_t)run->world_size - 1;
    int rc = worker_open(&agent.worker, "reinforce", options);

    if (rc < 0)
        goto close;
    agent.run = run;
    rc = learner_init(&agent.learner, run->flags->seed, observers, run->flags->steps);
    if (rc == 0 && reinforce_has_mlp(run->flags))
        rc = learner_use_mlp(&agent.learner, &run->flags->hidden);
    if (rc < 0) {
        worker_fail(&agent.worker, rc, "an episode", "not enough memory for its steps and the network");
        goto close;
    }
    if (run->flags->device != DEVICE_CPU)
        rc = use_gpu(&agent);
    if (rc < 0)
        goto close;
    rc = start_agent(&agent);
    if (rc == 0)
        rc = train(&agent);
    release_references(&agent);
close:
    rc = worker_close(&agent.worker, rc);
    learner_fini(&agent.learner);
    return rc;
}

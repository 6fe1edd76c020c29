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
#include "demos/common/observers.h"
#include "learner.h"
#include "reinforce.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

struct agent {
    struct bx_job *job;
    const struct reinforce_run *run;
    struct learner learner;
    struct observers observers;
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
    struct bx_job *job = agent->job;
    int rc = bx_register_method(job, &agent_type, "select_action", BX_INLINE, select_action, NULL);

    if (rc == 0)
        rc = bx_register_method_batch(job, &agent_type, "select_action_batch", select_action_batch, agent, NULL);
    for (int rank = 1; rc == 0 && rank < agent->run->world_size; rank++)
        rc = bx_batch_add_member(job, "select_action_batch", rank);
    return rc;
}

static int start_observers(struct agent *agent)
{
    const struct reinforce_flags *flags = agent->run->flags;
    struct bx_msg *args = bx_msg_create(32);

    bx_msg_put_u64(args, flags->seed);
    bx_msg_put_f64(args, flags->gamma);
    bx_msg_put_i32(args, (int32_t)agent->run->mode);
    return observers_start(&agent->observers, &agent_type, agent, args);
}

/* ---- An episode ---------------------------------------------------------------------------------------- */

/* Starts the episode on all observers and waits for its end. */
static int run_observers(struct agent *agent)
{
    struct bx_msg *args = bx_msg_create(16);

    bx_msg_put_u64(args, agent->run->flags->steps);
    return observers_run(&agent->observers, args);
}

/* Reads an observer's returns from a message into the learner. */
static int take_rewards(struct agent *agent, size_t observer, struct bx_reader *reader)
{
    float rewards[1024];
    int rc = 0;

    for (size_t first = 0, count; rc == 0 && first < agent->learner.steps; first += count) {
        const size_t left = agent->learner.steps - first, most = sizeof(rewards) / sizeof(rewards[0]);

        count = left < most ? left : most;
        rc = bx_read_f32s(reader, rewards, count);
        if (rc == 0)
            rc = learner_returns(&agent->learner, observer, first, rewards, count);
    }
    return rc;
}

/* Reads the observers' replies, and sets *last_reward to the mean length of their first poles. */
static int take_replies(struct agent *agent, double *last_reward)
{
    size_t observers = agent->learner.observers;
    double sum = 0.0;

    for (size_t i = 0; i < observers; i++) {
        struct bx_reader reader = bx_msg_reader(bx_future_value(agent->observers.episodes[i]));
        int64_t first_pole_steps = bx_read_i64(&reader);
        int rc = take_rewards(agent, i, &reader);

        if (rc < 0)
            return rc;
        sum += (double)first_pole_steps;
    }
    *last_reward = sum / (double)observers;
    return 0;
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
    observers_forget(&agent->observers);
    if (rc < 0)
        return rc;

    uint64_t start_ns = clock_now_ns();
    rc = learner_update(&agent->learner);
    agent->run->result->learn_seconds += clock_seconds_since(start_ns);
    if (rc < 0)
        return rc == -ERANGE ? bx_fail(rc, "an observer did not ask for an action in every step") : rc;
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
        rc = bx_counter(agent->job, "requests_batched", &result->requests_batched);
    if (rc == 0)
        rc = bx_counter(agent->job, "requests_inline", &result->requests_inline);
    if (rc == 0)
        rc = bx_counter(agent->job, "replies_sent", &result->replies_sent);
    return rc;
}

/* Also prints the GPU's name: `make demo` does not know its machine. */
static int use_gpu(struct agent *agent)
{
    int rc = policy_gpu_create(agent->run->flags->device, &agent->learner.policy, LEARNER_ASKS, &agent->learner.gpu);

    if (rc < 0)
        return bx_fail(rc, "the policy cannot be put on a GPU: %s", bx_error_text());
    if (!agent->run->flags->quiet)
        printf("the policy is on cuda:%d, %s\n", agent->run->flags->device, policy_gpu_name(agent->learner.gpu));
    return 0;
}

static int make_learner(struct agent *agent)
{
    const struct reinforce_flags *flags = agent->run->flags;
    int rc = learner_init(&agent->learner, flags->seed, agent->observers.count, flags->steps);

    if (rc == 0 && reinforce_has_mlp(flags) &&
        (agent->learner.mlp = mlp_create(&flags->hidden, flags->seed)) == NULL)
        rc = -ENOMEM;
    if (rc < 0)
        return bx_fail(rc, "not enough memory for the steps of an episode and the network");
    return flags->device != DEVICE_CPU ? use_gpu(agent) : 0;
}

static int live(struct worker *worker, void *context)
{
    struct agent *agent = context;
    int rc;

    agent->job = worker->job;
    agent->observers = (struct observers){ .job = worker->job, .count = (size_t)agent->run->world_size - 1 };
    rc = make_learner(agent);
    if (rc == 0)
        rc = register_methods(agent);
    if (rc == 0)
        rc = start_observers(agent);
    if (rc == 0)
        rc = train(agent);
    observers_release(&agent->observers);
    return rc;
}

int reinforce_agent(const struct bx_options *options, const struct reinforce_run *run)
{
    static struct agent agent;

    agent.run = run;
    int status = worker_main("reinforce", options, live, &agent);
    learner_fini(&agent.learner);
    return status;
}

/* SPDX-License-Identifier: MIT */
/*
 * The agent, rank 0: answers the observers' states with actions, notes their rewards, and learns between episodes.
 *
 * The agent is an object with three methods, and each observer gets a reference to it with run_episode. The methods are
 * inline: they run on the thread that makes progress. The main thread makes an observer in each other worker by
 * bx_remote, and holds a reference to it. It starts an episode by calling run_episode on all of them, waits for all,
 * and learns. No observer calls while it learns, so one thread at a time uses the learner, and it needs no lock.
 */
#include "cp.h"
#include "demos/common/clock.h"
#include "demos/common/observers.h"
#include "learner.h"

#include <stdio.h>

struct agent {
    const struct cp_run *run;
    struct cp_learner learner;
    struct observers observers;
};

/* ---- The methods --------------------------------------------------------------------------------------- */

static const struct bx_type agent_type = { .name = "agent" };

static size_t observer_of(const struct bx_request *request)
{
    return (size_t)bx_request_caller(request) - 1;      /* the agent itself: a number that no observer has */
}

static int select_action(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply,
                         void *context)
{
    struct agent *agent = bx_request_object(request);
    float state[POLICY_INPUTS];
    int rc = bx_read_f32s(args, state, POLICY_INPUTS);

    (void)context;
    if (rc == 0)
        rc = cp_learner_select_action(&agent->learner, observer_of(request), state);
    return rc < 0 ? rc : bx_msg_put_i64(reply, rc);
}

static int report_reward(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply,
                         void *context)
{
    struct agent *agent = bx_request_object(request);
    float reward = bx_read_f32(args);

    (void)reply, (void)context;
    return args->error != 0 ? args->error : cp_learner_report_reward(&agent->learner, observer_of(request), reward);
}

static int report_and_select(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply,
                             void *context)
{
    int rc = report_reward(request, args, reply, context);

    return rc < 0 ? rc : select_action(request, args, reply, context);
}

static int register_methods(struct bx_job *job)
{
    int rc = bx_register_method(job, &agent_type, "select_action", BX_INLINE, select_action, NULL);

    if (rc == 0)
        rc = bx_register_method(job, &agent_type, "report_reward", BX_INLINE, report_reward, NULL);
    if (rc == 0)
        rc = bx_register_method(job, &agent_type, "report_and_select", BX_INLINE, report_and_select, NULL);
    return rc;
}

/* ---- Start and end ------------------------------------------------------------------------------------- */

static int start_observers(struct agent *agent)
{
    struct bx_msg *args = bx_msg_create(16);

    bx_msg_put_u64(args, agent->run->flags->seed);
    bx_msg_put_i32(args, agent->run->flags->pack);
    return observers_start(&agent->observers, &agent_type, agent, args);
}

/* ---- An episode ---------------------------------------------------------------------------------------- */

static int run_episode(struct agent *agent)
{
    int rc = observers_run(&agent->observers, bx_msg_create(0));

    observers_forget(&agent->observers);
    return rc;
}

static int finish_episode(struct agent *agent, double *last_reward)
{
    uint64_t start_ns = clock_now_ns();
    int rc = cp_learner_finish_episode(&agent->learner, last_reward);

    agent->run->result->learn_s += clock_seconds_since(start_ns);
    return rc;
}

/* ---- The training -------------------------------------------------------------------------------------- */

static void note_progress(const struct agent *agent, double last_reward)
{
    struct cp_result *result = agent->run->result;
    const struct cp_learner *learner = &agent->learner;
    bool is_logged = learner->episode % agent->run->flags->log_interval == 0;

    result->episodes = learner->episode;
    result->steps = learner->steps;
    result->running_reward = learner->running_reward;
    result->solved = learner->running_reward > CP_REWARD_THRESHOLD;
    if (is_logged)
        printf("Episode %llu\tLast reward: %.2f\tAverage reward: %.2f\n", (unsigned long long)learner->episode,
               last_reward, learner->running_reward);
    if (is_logged || result->solved || learner->episode == agent->run->flags->max_episodes)
        result->points[result->point_count++] = (struct cp_point){ learner->episode, last_reward,
                                                                   learner->running_reward };
}

static void print_end(const struct cp_result *result)
{
    if (result->solved)
        printf("Solved! Running reward is now %.12g!\n", result->running_reward);
    else
        printf("Not solved in %llu episodes: the running reward is %.12g.\n", (unsigned long long)result->episodes,
               result->running_reward);
}

static int train(struct agent *agent)
{
    const struct cp_flags *flags = agent->run->flags;
    struct cp_result *result = agent->run->result;
    uint64_t start_ns = clock_now_ns();
    int rc = 0;

    printf("This will run until reward threshold of %.1f is reached. Ctrl+C to exit.\n", CP_REWARD_THRESHOLD);
    while (rc == 0 && !result->solved && agent->learner.episode < flags->max_episodes) {
        double last_reward = 0.0;

        rc = run_episode(agent);
        if (rc == 0)
            rc = finish_episode(agent, &last_reward);
        if (rc == 0)
            note_progress(agent, last_reward);
    }
    result->train_s = clock_seconds_since(start_ns);
    if (rc == 0)
        print_end(result);
    return rc;
}

static int live(struct worker *worker, void *context)
{
    struct agent *agent = context;
    const struct cp_flags *flags = agent->run->flags;
    const struct cp_learner_options learner = { .observers = (size_t)flags->world_size - 1,
                                                .gamma = flags->gamma, .seed = flags->seed };
    int rc = cp_learner_init(&agent->learner, &learner);

    if (rc < 0)
        return bx_fail(rc, "not enough memory for an episode");
    agent->observers = (struct observers){ .job = worker->job, .count = learner.observers };
    rc = register_methods(worker->job);
    if (rc == 0)
        rc = start_observers(agent);
    if (rc == 0)
        rc = train(agent);
    observers_release(&agent->observers);
    return rc;
}

int cp_agent(const struct bx_options *options, const struct cp_run *run)
{
    static struct agent agent;

    agent.run = run;
    int status = worker_main(CP_PROGRAM, options, live, &agent);
    cp_learner_fini(&agent.learner);
    return status;
}

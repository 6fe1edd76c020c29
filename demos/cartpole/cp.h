/* SPDX-License-Identifier: MIT */
/*
 * The private header of the program `cartpole`: its flags, its results, and the two kinds of worker.
 *
 *     net.c                     the network on a tape (net.h)
 *     learner.c                 the agent's side of an episode (learner.h)
 *     agent.c, observer.c       the two kinds of worker (demos/common/worker.h)
 *     cartpole.c                the first process: flags, the job, results
 *
 * Each file uses only what stands above it, and from demos/reinforce the simulator (cartpole.c) and the policy
 * (policy.c).
 */
#ifndef DEMOS_CARTPOLE_CP_H
#define DEMOS_CARTPOLE_CP_H

#include <boxcar.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CP_PROGRAM "cartpole"
#define CP_AGENT "agent"                /* rank 0; the observers are obs1, obs2, ... */
#define CP_REWARD_THRESHOLD 475.0       /* of CartPole-v1: the running reward beyond which it is solved */
#define CP_EPISODES_MAX 1000000

struct cp_flags {
    int world_size;
    uint64_t log_interval;
    double gamma;
    uint64_t seed;
    uint64_t max_episodes;
    bool pack;
    const char *json;           /* NULL: none */
    const char *plot;
};

/* A line of the progress, for the figure. */
struct cp_point {
    uint64_t episode;
    double last_reward;
    double running_reward;
};

/* The agent's figures for the first process (demos/common/program.h). */
struct cp_result {
    bool solved;
    uint64_t episodes;
    uint64_t steps;             /* of all observers */
    double running_reward;
    double train_s;             /* from the first episode to the end of the last */
    double learn_s;             /* of that, learning after the episodes */
    size_t point_count;
    struct cp_point points[];   /* room for one each log_interval, and the last episode */
};

struct cp_run {
    const struct cp_flags *flags;
    struct cp_result *result;
};

/* ---- agent.c, observer.c: the workers ----------------------------------------------------------------- */

/* Each runs a worker from start to end and returns its exit status. */
int cp_agent(const struct bx_options *options, const struct cp_run *run);
int cp_observer(const struct bx_options *options);

/* How arguments and replies are written. An observer has the function
 *
 *   new_observer              u64 seed, i32 pack -> reference to an observer
 *
 * and its objects the method
 *
 *   run_episode               reference to the agent -> nothing
 *
 * The agent's object has the methods
 *
 *   select_action             f32s state (4) -> i64 action
 *   report_reward             f32 reward -> nothing
 *   report_and_select         f32 reward of the last step, f32s state -> i64 action
 *
 * report_and_select is both calls in one. --pack uses it in every step but the first, which has no reward to report,
 * and reports the last reward by report_reward. */

#endif

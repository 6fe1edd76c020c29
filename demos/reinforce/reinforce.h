/* SPDX-License-Identifier: MIT */
/*
 * The private header of the program `reinforce`: its flags, a run (one world size in one mode), and the workers.
 *
 *     cartpole.c                the simulator (cartpole.h)
 *     policy.c, policy_cuda.c   the network on the CPU and on a GPU (policy.h)
 *     product.c, mlp.c          a product of matrices; networks with other hidden layers (product.h, mlp.h)
 *     learner.c                 an episode's memory; chooses between them (learner.h)
 *     agent.c, observer.c       the two kinds of worker (demos/common/worker.h)
 *     reinforce.c               the first process: flags, runs, results
 *
 * Each file uses only what stands above it.
 */
#ifndef DEMOS_REINFORCE_H
#define DEMOS_REINFORCE_H

#include "mlp.h"

#include <boxcar.h>
#include <stdbool.h>
#include <stdint.h>

#define REINFORCE_STEPS_MAX 1000000
#define REINFORCE_EPISODES_MAX 1000000000
#define REINFORCE_AGENT "agent"             /* rank 0; the observers are obs1, obs2, ... */

enum reinforce_mode { REINFORCE_BATCH, REINFORCE_NO_BATCH, REINFORCE_MODES };

struct reinforce_flags {
    int min_world_size;
    int max_world_size;
    uint64_t episodes;
    uint64_t steps;
    double gamma;
    uint64_t seed;
    bool mode[REINFORCE_MODES];
    bool quiet;
    bool count_frames;
    int device;                 /* of the policy: DEVICE_CPU, or the ordinal of a GPU (demos/common/flags.h) */
    struct mlp_shape hidden;    /* one layer of POLICY_UNITS: policy.c; any other: mlp.c */
    const char *json;           /* NULL: none */
    const char *plot;
};

/* The agent's figures for the first process (demos/common/program.h). */
struct reinforce_result {
    double train_seconds;
    double learn_seconds;       /* of them: the updates between the episodes */
    uint64_t requests_batched;
    uint64_t requests_inline;
    uint64_t replies_sent;
};

struct reinforce_run {
    const struct reinforce_flags *flags;
    enum reinforce_mode mode;
    int world_size;
    struct reinforce_result *result;
};

static inline bool reinforce_has_mlp(const struct reinforce_flags *flags)
{
    return flags->hidden.count != 1 || flags->hidden.units[0] != POLICY_UNITS;
}

static inline const char *reinforce_mode_name(enum reinforce_mode mode)
{
    return mode == REINFORCE_BATCH ? "batch" : "no-batch";
}

/* ---- agent.c, observer.c: the workers ------------------------------------------------------------------ */

/* Each runs a worker from start to end and returns its exit status. */
int reinforce_agent(const struct bx_options *options, const struct reinforce_run *run);
int reinforce_observer(const struct bx_options *options);

/* How arguments and replies are written. An observer has the function
 *
 *   new_observer              u64 seed, f64 gamma, i32 mode -> reference to an observer
 *
 * and its objects the method
 *
 *   run_episode               u64 steps, reference to the agent -> i64 length of the first pole, f32s returns (steps)
 *
 * The agent's object has the methods
 *
 *   select_action             f32s state (4) -> i64 action
 *   select_action_batch       the same, as a batch of all observers */

#endif

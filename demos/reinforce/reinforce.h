/* SPDX-License-Identifier: MIT */
/*
 * What the parts of the program `reinforce` share: its flags, a run (one world size in one mode),
 * and what a run came to.
 */
#ifndef DEMOS_REINFORCE_H
#define DEMOS_REINFORCE_H

#include <boxcar.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REINFORCE_STEPS_MAX 1000000
#define REINFORCE_EPISODES_MAX 1000000000
#define REINFORCE_AGENT "agent"             /* rank 0; the observers are obs1, obs2, ... */

/* Exit statuses of the program; --help tells them. */
enum {
    REINFORCE_OK = 0,
    REINFORCE_FAILED = 1,       /* a file, memory, the plot */
    REINFORCE_USAGE = 2,
    REINFORCE_WORKER = 3,       /* a worker died or failed */
};

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
    int device;                 /* of the policy: flags.h's DEVICE_CPU, or a GPU's ordinal */
    const char *csv;            /* NULL: none */
    const char *plot;
};

/* One mode of one world size, as measured. */
struct reinforce_timing {
    bool ran;
    double seconds;             /* start-up, training and shutdown */
    double train_seconds;
};

struct reinforce_outcome {
    int world_size;
    struct reinforce_timing timing[REINFORCE_MODES];
};

/* What the agent tells the launcher: memory mapped by both, written by the agent alone, and read
 * when the agent has ended, so it needs no order of its own. */
struct reinforce_result {
    double train_seconds;
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

static inline const char *reinforce_mode_name(enum reinforce_mode mode)
{
    return mode == REINFORCE_BATCH ? "batch" : "no-batch";
}

/* agent.c and observer.c: a worker's whole life; give its exit status. */
int reinforce_agent(const struct bx_options *options, const struct reinforce_run *run);
int reinforce_observer(const struct bx_options *options, const struct reinforce_run *run);

/* ---- worker.c: what agent and observers have in common -----------------------------------------
 * */

struct reinforce_worker {
    struct bx_job *job;
    char name[BX_NAME_MAX + 1];
    _Atomic int dead;           /* 1 + the rank of the first worker that died, 0 while all live */
};

/* Makes the job, to register with and start. 0, or a code after a sentence on stderr. */
int reinforce_worker_open(struct reinforce_worker *worker, const struct bx_options *options);

/* Says on stderr what failed: the worker that died if one did, else `text`. Gives code back. */
int reinforce_worker_fail(struct reinforce_worker *worker, int code, const char *what,
                          const char *text);

/* Leaves the job, together with the others if code is 0. Gives the exit status. */
int reinforce_worker_close(struct reinforce_worker *worker, int code);

/* How run_episode and fetch_rewards hand over an episode's rewards: as many at a time. */
#define REINFORCE_REWARDS_PER_FRAME 3072

#endif

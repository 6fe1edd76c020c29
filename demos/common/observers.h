/* SPDX-License-Identifier: MIT */
/*
 * One agent, rank 0, and its observers: objects with references to each other. The agent has a reference to an observer
 * in each other worker, and an episode is a call of "run_episode" on all of them, with a reference to the agent.
 */
#ifndef DEMOS_OBSERVERS_H
#define DEMOS_OBSERVERS_H

#include "worker.h"

#include <stddef.h>

/* ---- The agent's side: its main thread ----------------------------------------------------------------- */

struct observers {
    struct bx_job *job;         /* these two are the caller's to set */
    size_t count;
    struct bx_rref *agent;
    struct bx_rref *at[BX_WORLD_MAX];
    struct bx_future *episodes[BX_WORLD_MAX];
};

/* Starts the job, makes `agent` an object, and an observer in each other worker by "new_observer" with these args,
 * which are destroyed. 0 or a code, as below. */
int observers_start(struct observers *observers, const struct bx_type *type, void *agent, struct bx_msg *args);
void observers_release(struct observers *observers);

/* Runs an episode and waits for its end: calls run_episode with these args, which are destroyed, and a reference to the
 * agent behind them. The replies are the values of `episodes`, until observers_forget. */
int observers_run(struct observers *observers, struct bx_msg *args);
void observers_forget(struct observers *observers);

/* ---- An observer's side -------------------------------------------------------------------------------- */

struct observer_functions {
    const struct bx_type *type;
    bx_handler_fn make;         /* "new_observer", inline; its context is the worker */
    bx_handler_fn run_episode;  /* blocking: it calls the agent */
};
/* Runs the worker from start to end. An exit status. */
int observer_main(const char *program, const struct bx_options *options, struct observer_functions *functions);

/* Calls a method of the agent that replies with an action, 0 or 1, which it returns; or a code. */
int observer_ask(const struct worker *worker, struct bx_rref *agent, const char *method, const struct bx_msg *args);

#endif

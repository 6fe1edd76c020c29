/* SPDX-License-Identifier: MIT */
/*
 * cartpole - the first program of PyTorch's RPC tutorial: an agent and observers learn CartPole-v1, with references to
 * each other.
 *
 * This file is the first process: flags, the job, and what a run prints and writes. demos/README.md lists the keys of
 * the JSON.
 */
#include "cp.h"
#include "demos/common/program.h"
#include "demos/common/worker.h"

static struct cp_flags flags = { .world_size = 2, .log_interval = 10, .gamma = 0.99, .seed = 1, .max_episodes = 2000 };

static const char HELP[] =
    "Usage: cartpole [flags]\n"
    "\n"
    "Trains a CartPole policy by the policy gradient until it is solved, with one agent and N observers,\n"
    "each a process. In every step an observer calls the agent twice: for an action, and to report the\n"
    "reward.\n"
    "\n"
    "  --world-size N       workers, the agent counted (2; 2 to 128)\n"
    "  --log-interval N     episodes between two lines of the progress (10)\n"
    "  --gamma G            discount of later rewards (0.99; 0 to 1)\n"
    "  --seed N             the same seed gives the same training (1)\n"
    "  --max-episodes N     ends even if it is not solved (2000; at most 1000000)\n"
    "  --pack               one call a step: the state and the reward of the step before it\n"
    "  --json FILE          the figures of the run\n"
    "  --plot FILE          draws the rewards, FILE.svg or FILE.png (needs gnuplot)\n"
    "  --help, --version\n"
    "\n"
    "An episode is one pole of each observer. It is solved when the running average of the shortest one's\n"
    "reward is more than 475.\n"
    "\n"
    "Exit status: 0 the training has ended, solved or not; 1 a file or the plot could not be written; 2 a\n"
    "wrong flag; 3 a worker died or failed. SIGINT and SIGTERM end the workers, then the program by that\n"
    "signal.\n";

static const struct flag TABLE[] = {
    { "world-size", FLAG_INT, &flags.world_size, .least = BX_WORLD_MIN, .most = BX_WORLD_MAX },
    { "log-interval", FLAG_U64, &flags.log_interval, .least = 1, .most = CP_EPISODES_MAX },
    { "gamma", FLAG_REAL, &flags.gamma, .real_least = 0.0, .real_most = 1.0 },
    { "seed", FLAG_U64, &flags.seed, .most = UINT64_MAX },
    { "max-episodes", FLAG_U64, &flags.max_episodes, .least = 1, .most = CP_EPISODES_MAX },
    { "pack", FLAG_SWITCH, .value = &flags.pack },
    { "json", FLAG_TEXT, .value = &flags.json },
    { "plot", FLAG_FIGURE, .value = &flags.plot },
};

/* ---- The job ------------------------------------------------------------------------------------------- */

static size_t result_bytes(void)
{
    return sizeof(struct cp_result) + (flags.max_episodes / flags.log_interval + 1) * sizeof(struct cp_point);
}

static int run_worker(const struct bx_options *options, void *context)
{
    return options->rank == 0 ? cp_agent(options, context) : cp_observer(options);
}

static int run_job(void *result)
{
    struct worker_names names;
    const struct bx_spawn_options options = { .world_size = flags.world_size, .names = names.at };
    struct cp_run run = { .flags = &flags, .result = result };

    worker_name_all(&names, flags.world_size, CP_AGENT, "obs");
    return worker_spawn(CP_PROGRAM, &options, run_worker, &run) < 0 ? PROGRAM_WORKER : PROGRAM_OK;
}

/* ---- Results ------------------------------------------------------------------------------------------- */

static double us_per_step(const struct cp_result *result)
{
    return result->steps > 0 ? 1e6 * result->train_s / (double)result->steps : 0.0;
}

static void print(const void *context)
{
    const struct cp_result *result = context;

    printf("%llu steps in %.3f s, %.2f us a step\n", (unsigned long long)result->steps, result->train_s,
           us_per_step(result));
}

static void write_json(struct json *json, const void *context)
{
    const struct cp_result *result = context;

    json_put(json, "solved", result->solved ? "true" : "false");
    json_u64(json, "episodes", result->episodes);
    json_u64(json, "steps", result->steps);
    json_put(json, "running_reward", "%.17g", result->running_reward);
    json_line(json);
    json_real(json, "us_per_step", us_per_step(result));
    json_real(json, "train_s", result->train_s);
    json_real(json, "learn_s", result->learn_s);
}

static double point(const void *context, size_t line, size_t i, int *x)
{
    const struct cp_point *at = &((const struct cp_result *)context)->points[i];

    *x = (int)at->episode;
    return line == 0 ? at->last_reward : at->running_reward;
}

static struct plot figure(const void *context)
{
    const struct cp_result *result = context;

    return (struct plot){ CP_PROGRAM, "CartPole-v1: one agent, the others observers", "episode", "reward",
                          { "last reward", "average reward" }, result->point_count, point, result };
}

int main(int argc, char **argv)
{
    static const struct program PROGRAM = {
        .flags = { CP_PROGRAM, HELP, TABLE, sizeof(TABLE) / sizeof(TABLE[0]) },
        .json = &flags.json,
        .plot = &flags.plot,
        .result_bytes = result_bytes,
        .run = run_job,
        .print = print,
        .write_json = write_json,
        .figure = figure,
    };

    return program_main(&PROGRAM, argc, argv);
}

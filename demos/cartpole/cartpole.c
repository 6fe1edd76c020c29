/* SPDX-License-Identifier: MIT */
/*
 * cartpole - the first program of PyTorch's RPC tutorial: an agent and observers learn CartPole-v1, with references to
 * each other.
 *
 * This file is the launcher: it reads the flags, opens the files for the results before any work starts, runs the job,
 * and writes its results (report.c). It joins no job. The agent writes its result to memory that is mapped before the
 * fork: stdout is for people, and a pipe would have to be read while waiting.
 */
#include "cp.h"
#include "demos/common/ending.h"
#include "demos/common/flags.h"
#include "demos/common/plot.h"
#include "demos/common/worker.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

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

/* 0; 1: --help or --version is done; -1 after a sentence on stderr. */
static int parse_flags(int argc, char **argv, struct cp_flags *to)
{
    const struct flag table[] = {
        { "world-size", FLAG_INT, &to->world_size, .least = BX_WORLD_MIN, .most = BX_WORLD_MAX },
        { "log-interval", FLAG_U64, &to->log_interval, .least = 1, .most = CP_EPISODES_MAX },
        { "gamma", FLAG_REAL, &to->gamma, .real_least = 0.0, .real_most = 1.0 },
        { "seed", FLAG_U64, &to->seed, .most = UINT64_MAX },
        { "max-episodes", FLAG_U64, &to->max_episodes, .least = 1, .most = CP_EPISODES_MAX },
        { "pack", FLAG_SWITCH, .value = &to->pack },
        { "json", FLAG_TEXT, .value = &to->json },
        { "plot", FLAG_FIGURE, .value = &to->plot },
    };
    const struct flags flags = { CP_PROGRAM, HELP, table, sizeof(table) / sizeof(table[0]) };

    *to = (struct cp_flags){ .world_size = 2, .log_interval = 10, .gamma = 0.99, .seed = 1, .max_episodes = 2000 };
    return flags_parse(&flags, argc, argv);
}

/* ---- The job ------------------------------------------------------------------------------------------- */

static int run_worker(const struct bx_options *options, void *context)
{
    return options->rank == 0 ? cp_agent(options, context) : cp_observer(options);
}

static int run_job(const struct cp_run *run)
{
    char text[BX_WORLD_MAX][BX_NAME_MAX + 1];
    const char *names[BX_WORLD_MAX];
    struct bx_spawn_options options = { .world_size = run->flags->world_size, .names = names };

    for (int rank = 0; rank < options.world_size; rank++) {
        snprintf(text[rank], sizeof(text[rank]), rank == 0 ? CP_AGENT : "obs%d", rank);
        names[rank] = text[rank];
    }
    return worker_spawn(CP_PROGRAM, &options, run_worker, (void *)(uintptr_t)run) < 0 ? CP_WORKER : CP_OK;
}

/* ---- Results ------------------------------------------------------------------------------------------- */

static size_t result_bytes(const struct cp_flags *flags)
{
    size_t points = flags->max_episodes / flags->log_interval + 1;

    return sizeof(struct cp_result) + points * sizeof(struct cp_point);
}

static int json_failed(const struct cp_flags *flags)
{
    fprintf(stderr, CP_PROGRAM ": %s cannot be written: %s\n", flags->json, strerror(errno));
    return CP_FAILED;
}

static int report(const struct cp_run *run, FILE *json)
{
    const struct cp_result *result = run->result;

    printf("%llu steps in %.3f s, %.2f us a step\n", (unsigned long long)result->steps, result->train_s,
           cp_us_per_step(result));
    if (json != NULL) {
        cp_write_json(run, json);
        if (fflush(json) != 0)
            return json_failed(run->flags);
    }
    if (run->flags->plot != NULL && cp_plot(run) < 0)
        return CP_FAILED;
    return ending_output(CP_PROGRAM) < 0 ? CP_FAILED : CP_OK;
}

/* Runs the job and reports it; the caller opens and closes `json`. */
static int run_and_report(const struct cp_flags *flags, FILE *json)
{
    int kind = MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE;
    /* cppcheck-suppress invalidFunctionArg ; -1 is what MAP_ANONYMOUS asks for */
    void *result = mmap(NULL, result_bytes(flags), PROT_READ | PROT_WRITE, kind, -1, 0);
    struct cp_run run = { .flags = flags, .result = result };

    if (result == MAP_FAILED) {
        fprintf(stderr, CP_PROGRAM ": no memory to share with the agent: %s\n", strerror(errno));
        return CP_FAILED;
    }
    int status = run_job(&run);
    if (status == CP_OK)
        status = report(&run, json);
    munmap(result, result_bytes(flags));
    return status;
}

int main(int argc, char **argv)
{
    struct cp_flags flags;
    FILE *json = NULL;

    /* The workers inherit line buffering: the lines of all processes stay whole and in order. */
    setvbuf(stdout, NULL, _IOLBF, 0);
    int rc = parse_flags(argc, argv, &flags);
    if (rc != 0)
        return rc < 0 ? CP_USAGE : ending_output(CP_PROGRAM) < 0 ? CP_FAILED : CP_OK;
    if (flags.plot != NULL && plot_check(CP_PROGRAM, flags.plot) < 0)
        return CP_FAILED;
    if (flags.json != NULL && (json = fopen(flags.json, "we")) == NULL)
        return json_failed(&flags);
    int status = run_and_report(&flags, json);
    if (json != NULL && fclose(json) != 0)
        status = json_failed(&flags);
    return status;
}

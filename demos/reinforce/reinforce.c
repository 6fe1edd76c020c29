/* SPDX-License-Identifier: MIT */
/*
 * reinforce - the batched CartPole solver, trained over shared-memory rings.
 *
 * This file is the launcher. For each world size and mode it forks one agent and the observers (agent.c, observer.c),
 * waits for them, and prints and writes the times. It joins no job and only waits while they train. `seconds` counts
 * the whole run with start-up and shutdown. The agent writes the time of the training to memory mapped before the fork:
 * stdout is for people, and a pipe would have to be read while waiting.
 */
#include "demos/common/clock.h"
#include "demos/common/ending.h"
#include "demos/common/flags.h"
#include "demos/common/plot.h"
#include "demos/common/worker.h"
#include "reinforce.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* One mode of one world size, as measured. */
struct timing {
    bool ran;
    double seconds;             /* start-up, training and shutdown */
    double train_seconds;
};

struct outcome {
    int world_size;
    struct timing timing[REINFORCE_MODES];
};

struct launcher {
    struct reinforce_flags flags;
    struct reinforce_result *result;
    FILE *json;
    struct outcome outcomes[BX_WORLD_MAX];
    size_t outcome_count;
};

/* ---- Flags ------------------------------------------------------------------------------------- */

static const char HELP[] =
    "Usage: reinforce [flags]\n"
    "\n"
    "Trains a CartPole policy by the policy gradient, with one agent and N observers, each a\n"
    "process; every step of every observer is a call to the agent, batched and not batched.\n"
    "\n"
    "  --min-world-size N   fewest workers, the agent counted (2; 2 to 128)\n"
    "  --max-world-size N   most workers (11)\n"
    "  --max-episodes N     episodes of a run (10)\n"
    "  --num-steps N        steps of an episode, for each observer (500; at most 1000000)\n"
    "  --gamma G            discount of later rewards (1.0; 0 to 1)\n"
    "  --seed N             the same seed gives the same episodes (543)\n"
    "  --mode MODE          both, batch or no-batch (both)\n"
    "  --hidden LIST        widths of the policy's 1 to 4 hidden layers, each a multiple of 16 up to\n"
    "                       4096 (128); other lists than 128 print the time of learning too\n"
    "  --device DEVICE      where the policy decides and learns: cpu, cuda or cuda:N (cpu)\n"
    "  --quiet              no line for each episode\n"
    "  --json FILE          the figures of all runs\n"
    "  --plot FILE          draws seconds over world size, FILE.svg or FILE.png (needs gnuplot)\n"
    "  --count-frames       a line with the agent's counts of requests and replies after each run\n"
    "  --help, --version\n"
    "\n"
    "Prints for each world size: world_size, batch_seconds, no_batch_seconds; then a table.\n"
    "BX_WAIT=uring|epoll in the environment chooses how workers sleep.\n"
    "\n"
    "Exit status: 0 done; 1 a file or the plot could not be written; 2 a wrong flag; 3 a worker\n"
    "died or failed. SIGINT and SIGTERM end the workers, then the program by that signal.\n";

/* Reads widths with commas between them. */
static int read_hidden(const struct flags *flags, const char *text, struct mlp_shape *to)
{
    to->count = 0;
    for (const char *at = text;; at++) {
        size_t digits = strspn(at, "0123456789");
        unsigned long units = digits > 0 && digits < 9 ? strtoul(at, NULL, 10) : 0;

        if (to->count == MLP_HIDDEN_MAX)
            return flags_wrong(flags, "--hidden takes at most %d layers, and \"%s\" has more", MLP_HIDDEN_MAX, text);
        if (units < MLP_UNITS_STEP || units > MLP_UNITS_MAX || units % MLP_UNITS_STEP != 0)
            return flags_wrong(flags, "--hidden takes widths that are multiples of %d up to %d, and layer %zu of "
                               "\"%s\" is \"%.*s\"", MLP_UNITS_STEP, MLP_UNITS_MAX, to->count + 1, text,
                               (int)strcspn(at, ","), at);
        to->units[to->count++] = units;
        at += digits;
        if (*at == '\0')
            return 0;
        if (*at != ',')
            return flags_wrong(flags, "--hidden takes widths with commas between them, and \"%s\" has \"%c\" after "
                               "layer %zu", text, *at, to->count);
    }
}

/* What the flags' table does not check. 0, or -1 after a sentence on stderr. */
static int check_flags(const struct flags *flags, const char *hidden, struct reinforce_flags *to)
{
    if (read_hidden(flags, hidden, &to->hidden) < 0)
        return -1;
    if (to->device != DEVICE_CPU && reinforce_has_mlp(to))
        return flags_wrong(flags, "--hidden %s is computed on the CPU only, so --device cannot be a GPU", hidden);
    if (to->min_world_size > to->max_world_size)
        return flags_wrong(flags, "--min-world-size %d is more than --max-world-size %d", to->min_world_size,
                           to->max_world_size);
    return 0;
}

/* 0; 1: --help or --version is done; -1 after a sentence on stderr. */
static int parse_flags(int argc, char **argv, struct reinforce_flags *to)
{
    static const char *const MODES[] = { "both", "batch", "no-batch", NULL };
    const char *hidden = "128";
    int mode = 0;
    const struct flag table[] = {
        { "min-world-size", FLAG_INT, &to->min_world_size, .least = BX_WORLD_MIN, .most = BX_WORLD_MAX },
        { "max-world-size", FLAG_INT, &to->max_world_size, .least = BX_WORLD_MIN, .most = BX_WORLD_MAX },
        { "max-episodes", FLAG_U64, &to->episodes, .least = 1, .most = REINFORCE_EPISODES_MAX },
        { "num-steps", FLAG_U64, &to->steps, .least = 1, .most = REINFORCE_STEPS_MAX },
        { "gamma", FLAG_REAL, &to->gamma, .real_least = 0.0, .real_most = 1.0 },
        { "seed", FLAG_U64, &to->seed, .most = UINT64_MAX },
        { "mode", FLAG_CHOICE, &mode, .choices = MODES },
        { "hidden", FLAG_LIST, .value = &hidden },
        { "device", FLAG_DEVICE, .value = &to->device },
        { "quiet", FLAG_SWITCH, .value = &to->quiet },
        { "json", FLAG_TEXT, .value = &to->json },
        { "plot", FLAG_FIGURE, .value = &to->plot },
        { "count-frames", FLAG_SWITCH, .value = &to->count_frames },
    };
    const struct flags flags = { "reinforce", HELP, table, sizeof(table) / sizeof(table[0]) };

    *to = (struct reinforce_flags){ .min_world_size = 2, .max_world_size = 11, .episodes = 10,
                                    .steps = 500, .gamma = 1.0, .seed = 543,
                                    .device = DEVICE_CPU };
    int rc = flags_parse(&flags, argc, argv);
    if (to->device == DEVICE_CUDA)
        to->device = 0;
    to->mode[REINFORCE_BATCH] = mode != 2;
    to->mode[REINFORCE_NO_BATCH] = mode != 1;
    return rc == 0 ? check_flags(&flags, hidden, to) : rc;
}

/* ---- One run ------------------------------------------------------------------------------------- */

static int run_worker(const struct bx_options *options, void *context)
{
    const struct reinforce_run *run = context;

    return options->rank == 0 ? reinforce_agent(options, run) : reinforce_observer(options);
}

/* Microseconds of `seconds` per step and observer. */
static double per_step_us(const struct reinforce_flags *flags, const struct outcome *outcome, double seconds)
{
    double steps = (double)flags->episodes * (double)flags->steps * (outcome->world_size - 1);

    return 1e6 * seconds / steps;
}

/* One world size in one mode. */
static int run_once(struct launcher *launcher, enum reinforce_mode mode,
                    struct outcome *outcome)
{
    char text[BX_WORLD_MAX][BX_NAME_MAX + 1];
    const char *names[BX_WORLD_MAX];
    char program[64];
    struct reinforce_run run = { .flags = &launcher->flags, .mode = mode,
                                 .world_size = outcome->world_size, .result = launcher->result };

    for (int rank = 0; rank < run.world_size; rank++) {
        snprintf(text[rank], sizeof(text[rank]), rank == 0 ? REINFORCE_AGENT : "obs%d", rank);
        names[rank] = text[rank];
    }
    memset(launcher->result, 0, sizeof(*launcher->result));

    uint64_t start_ns = clock_now_ns();
    struct bx_spawn_options options = { .world_size = run.world_size, .names = names };
    snprintf(program, sizeof(program), "reinforce: world size %d, %s", run.world_size, reinforce_mode_name(mode));
    if (worker_spawn(program, &options, run_worker, &run) < 0)
        return REINFORCE_WORKER;
    outcome->timing[mode] = (struct timing){
        .ran = true,
        .seconds = clock_seconds_since(start_ns),
        .train_seconds = launcher->result->train_seconds,
    };
    if (reinforce_has_mlp(&launcher->flags))
        printf("learning: world_size %d, %s: %.3f us/step/observer\n", run.world_size, reinforce_mode_name(mode),
               per_step_us(&launcher->flags, outcome, launcher->result->learn_seconds));
    if (launcher->flags.count_frames)
        printf("frames: world_size %d, %s: requests_batched %llu, requests_inline %llu, "
               "replies_sent %llu\n", run.world_size, reinforce_mode_name(mode),
               (unsigned long long)launcher->result->requests_batched,
               (unsigned long long)launcher->result->requests_inline,
               (unsigned long long)launcher->result->replies_sent);
    return REINFORCE_OK;
}

/* Microseconds of training per step and observer. */
static double step_us(const struct reinforce_flags *flags, const struct outcome *outcome,
                      enum reinforce_mode mode)
{
    return per_step_us(flags, outcome, outcome->timing[mode].train_seconds);
}

static int json_failed(const struct launcher *launcher)
{
    fprintf(stderr, "reinforce: %s cannot be written: %s\n", launcher->flags.json, strerror(errno));
    return REINFORCE_FAILED;
}

static void write_timing(const struct launcher *launcher, const struct outcome *outcome, enum reinforce_mode mode,
                         const char *before)
{
    const struct timing *timing = &outcome->timing[mode];

    fprintf(launcher->json, "%s\n    { \"world_size\": %d, \"mode\": \"%s\", \"seconds\": %.6f, ", before,
            outcome->world_size, reinforce_mode_name(mode), timing->seconds);
    fprintf(launcher->json, "\"train_seconds\": %.6f, \"us_per_step_observer\": %.4f }", timing->train_seconds,
            step_us(&launcher->flags, outcome, mode));
}

static int write_json(const struct launcher *launcher)
{
    const struct reinforce_flags *flags = &launcher->flags;
    const char *before = "";

    fprintf(launcher->json, "{\n  \"max_episodes\": %llu, \"num_steps\": %llu, \"gamma\": %.9g, \"seed\": %llu,\n",
            (unsigned long long)flags->episodes, (unsigned long long)flags->steps, flags->gamma,
            (unsigned long long)flags->seed);
    fputs("  \"runs\": [", launcher->json);
    for (size_t i = 0; i < launcher->outcome_count; i++)
        for (int mode = 0; mode < REINFORCE_MODES; mode++)
            if (launcher->outcomes[i].timing[mode].ran) {
                write_timing(launcher, &launcher->outcomes[i], (enum reinforce_mode)mode, before);
                before = ",";
            }
    fputs("\n  ]\n}\n", launcher->json);
    return ferror(launcher->json) || fclose(launcher->json) != 0 ? json_failed(launcher) : REINFORCE_OK;
}

/* Runs the modes of one world size and prints its line. */
static int run_world_size(struct launcher *launcher, int world_size)
{
    struct outcome *outcome = &launcher->outcomes[launcher->outcome_count];
    char seconds[REINFORCE_MODES][32] = { "-", "-" };

    outcome->world_size = world_size;
    for (int mode = 0; mode < REINFORCE_MODES; mode++) {
        if (!launcher->flags.mode[mode])
            continue;
        int status = run_once(launcher, mode, outcome);
        if (status != REINFORCE_OK)
            return status;
        snprintf(seconds[mode], sizeof(seconds[mode]), "%.4f", outcome->timing[mode].seconds);
    }
    launcher->outcome_count++;
    printf("%d, %s, %s\n", world_size, seconds[REINFORCE_BATCH], seconds[REINFORCE_NO_BATCH]);
    return REINFORCE_OK;
}

static void print_table(const struct launcher *launcher)
{
    printf("\n%10s  %9s  %22s  %25s  %8s\n", "world size", "observers", "batch us/step/observer",
           "no batch us/step/observer", "speed-up");
    for (size_t i = 0; i < launcher->outcome_count; i++) {
        const struct outcome *outcome = &launcher->outcomes[i];
        char cell[REINFORCE_MODES][32] = { "-", "-" }, speed_up[32] = "-";

        for (int mode = 0; mode < REINFORCE_MODES; mode++) {
            if (outcome->timing[mode].ran)
                snprintf(cell[mode], sizeof(cell[mode]), "%.3f",
                         step_us(&launcher->flags, outcome, mode));
        }
        if (outcome->timing[REINFORCE_BATCH].ran && outcome->timing[REINFORCE_NO_BATCH].ran)
            snprintf(speed_up, sizeof(speed_up), "%.2f",
                     outcome->timing[REINFORCE_NO_BATCH].train_seconds /
                         outcome->timing[REINFORCE_BATCH].train_seconds);
        printf("%10d  %9d  %22s  %25s  %8s\n", outcome->world_size, outcome->world_size - 1,
               cell[REINFORCE_BATCH], cell[REINFORCE_NO_BATCH], speed_up);
    }
}

/* Writes "4 - 128 - 2". */
static void name_network(const struct mlp_shape *hidden, char *text, size_t bytes)
{
    size_t length = (size_t)snprintf(text, bytes, "%d", POLICY_INPUTS);

    for (size_t i = 0; i <= hidden->count && length < bytes; i++)
        length += (size_t)snprintf(text + length, bytes - length, " - %zu",
                                   i < hidden->count ? hidden->units[i] : POLICY_ACTIONS);
}

/* Draws seconds over world size, a line for each mode. */
static int draw(const struct launcher *launcher)
{
    static const char *const TITLE[REINFORCE_MODES] = { "batch", "no batch" };
    int x[BX_WORLD_MAX];
    double y[REINFORCE_MODES][BX_WORLD_MAX];
    struct plot_line lines[REINFORCE_MODES];
    char network[64], title[160];
    struct plot plot = { "reinforce", title, "world size", "seconds", lines, 0 };

    name_network(&launcher->flags.hidden, network, sizeof(network));
    snprintf(title, sizeof(title), "Batched CartPole: one agent, the others observers; network %s", network);
    for (int mode = 0; mode < REINFORCE_MODES; mode++) {
        if (!launcher->flags.mode[mode])
            continue;
        for (size_t i = 0; i < launcher->outcome_count; i++) {
            x[i] = launcher->outcomes[i].world_size;
            y[mode][i] = launcher->outcomes[i].timing[mode].seconds;
        }
        lines[plot.line_count++] = (struct plot_line){ TITLE[mode], x, y[mode], launcher->outcome_count };
    }
    return plot_draw(&plot, launcher->flags.plot);
}

/* Opens the files for the results, before any training, and maps the memory that the agent writes. */
static int open_outputs(struct launcher *launcher)
{
    const struct reinforce_flags *flags = &launcher->flags;

    if (flags->plot != NULL && plot_check("reinforce", flags->plot) < 0)
        return REINFORCE_FAILED;
    if (flags->json != NULL && (launcher->json = fopen(flags->json, "we")) == NULL)
        return json_failed(launcher);
    size_t bytes = sizeof(*launcher->result);
    int kind = MAP_SHARED | MAP_ANONYMOUS;
    /* cppcheck-suppress invalidFunctionArg ; -1 is what MAP_ANONYMOUS asks for */
    void *result = mmap(NULL, bytes, PROT_READ | PROT_WRITE, kind, -1, 0);
    if (result == MAP_FAILED) {
        fprintf(stderr, "reinforce: no memory to share with the agent: %s\n", strerror(errno));
        return REINFORCE_FAILED;
    }
    launcher->result = result;
    return REINFORCE_OK;
}

static int run_all(struct launcher *launcher)
{
    const struct reinforce_flags *flags = &launcher->flags;
    int status = open_outputs(launcher);
    int world_size = flags->min_world_size;

    while (status == REINFORCE_OK && world_size <= flags->max_world_size)
        status = run_world_size(launcher, world_size++);
    if (status != REINFORCE_OK)
        return status;
    print_table(launcher);
    if (launcher->json != NULL && write_json(launcher) != REINFORCE_OK)
        return REINFORCE_FAILED;
    if (flags->plot != NULL && draw(launcher) < 0)
        return REINFORCE_FAILED;
    return ending_output("reinforce") < 0 ? REINFORCE_FAILED : REINFORCE_OK;
}

int main(int argc, char **argv)
{
    static struct launcher launcher;

    /* The workers inherit line buffering: the lines of all processes stay whole and in order. */
    setvbuf(stdout, NULL, _IOLBF, 0);
    int rc = parse_flags(argc, argv, &launcher.flags);
    if (rc != 0)
        return rc < 0 ? REINFORCE_USAGE : ending_output("reinforce") < 0 ? REINFORCE_FAILED : REINFORCE_OK;
    return run_all(&launcher);
}

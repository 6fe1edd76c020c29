/* SPDX-License-Identifier: MIT */
/*
 * reinforce - the batched CartPole solver, trained over shared-memory rings.
 *
 * This file is the first process. For each world size and mode it forks one agent and the observers (agent.c,
 * observer.c), waits for them, and prints and writes the times. `seconds` counts the whole run with start-up and
 * shutdown.
 */
#include "demos/common/clock.h"
#include "demos/common/program.h"
#include "demos/common/worker.h"
#include "reinforce.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One mode of one world size, as measured. */
struct timing {
    bool ran;
    double seconds;             /* start-up, training and shutdown */
    double train_seconds;
};

static struct outcome {
    int world_size;
    struct timing timing[REINFORCE_MODES];
} outcomes[BX_WORLD_MAX];
static size_t outcome_count;

/* ---- Flags ------------------------------------------------------------------------------------- */

static struct reinforce_flags flags = { .min_world_size = 2, .max_world_size = 11, .episodes = 10, .steps = 500,
                                        .gamma = 1.0, .seed = 543, .device = DEVICE_CPU };
static const char *hidden_text = "128";
static int mode_choice;

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
    "  --device DEVICE      where the policy decides: cpu, cuda or cuda:N (cpu)\n"
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

static const char *const MODES[] = { "both", "batch", "no-batch", NULL };
static const struct flag TABLE[] = {
    { "min-world-size", FLAG_INT, &flags.min_world_size, .least = BX_WORLD_MIN, .most = BX_WORLD_MAX },
    { "max-world-size", FLAG_INT, &flags.max_world_size, .least = BX_WORLD_MIN, .most = BX_WORLD_MAX },
    { "max-episodes", FLAG_U64, &flags.episodes, .least = 1, .most = REINFORCE_EPISODES_MAX },
    { "num-steps", FLAG_U64, &flags.steps, .least = 1, .most = REINFORCE_STEPS_MAX },
    { "gamma", FLAG_REAL, &flags.gamma, .real_least = 0.0, .real_most = 1.0 },
    { "seed", FLAG_U64, &flags.seed, .most = UINT64_MAX },
    { "mode", FLAG_CHOICE, &mode_choice, .choices = MODES },
    { "hidden", FLAG_LIST, .value = &hidden_text },
    { "device", FLAG_DEVICE, .value = &flags.device },
    { "quiet", FLAG_SWITCH, .value = &flags.quiet },
    { "json", FLAG_TEXT, .value = &flags.json },
    { "plot", FLAG_FIGURE, .value = &flags.plot },
    { "count-frames", FLAG_SWITCH, .value = &flags.count_frames },
};

/* Reads widths with commas between them. */
static int read_hidden(const struct flags *of, const char *text, struct mlp_shape *to)
{
    to->count = 0;
    for (const char *at = text;; at++) {
        size_t digits = strspn(at, "0123456789");
        unsigned long units = digits > 0 && digits < 9 ? strtoul(at, NULL, 10) : 0;

        if (to->count == MLP_HIDDEN_MAX)
            return flags_wrong(of, "--hidden takes at most %d layers, and \"%s\" has more", MLP_HIDDEN_MAX, text);
        if (units < MLP_UNITS_STEP || units > MLP_UNITS_MAX || units % MLP_UNITS_STEP != 0)
            return flags_wrong(of, "--hidden takes widths that are multiples of %d up to %d, and layer %zu of "
                               "\"%s\" is \"%.*s\"", MLP_UNITS_STEP, MLP_UNITS_MAX, to->count + 1, text,
                               (int)strcspn(at, ","), at);
        to->units[to->count++] = units;
        at += digits;
        if (*at == '\0')
            return 0;
        if (*at != ',')
            return flags_wrong(of, "--hidden takes widths with commas between them, and \"%s\" has \"%c\" after "
                               "layer %zu", text, *at, to->count);
    }
}

static int check(const struct flags *of)
{
    if (flags.device == DEVICE_CUDA)
        flags.device = 0;
    flags.mode[REINFORCE_BATCH] = mode_choice != 2;
    flags.mode[REINFORCE_NO_BATCH] = mode_choice != 1;
    if (read_hidden(of, hidden_text, &flags.hidden) < 0)
        return -1;
    if (flags.device != DEVICE_CPU && reinforce_has_mlp(&flags))
        return flags_wrong(of, "--hidden %s is computed on the CPU only, so --device cannot be a GPU", hidden_text);
    if (flags.min_world_size > flags.max_world_size)
        return flags_wrong(of, "--min-world-size %d is more than --max-world-size %d", flags.min_world_size,
                           flags.max_world_size);
    return 0;
}

/* ---- The runs ------------------------------------------------------------------------------------ */

static size_t result_bytes(void)
{
    return sizeof(struct reinforce_result);
}

static int run_worker(const struct bx_options *options, void *context)
{
    const struct reinforce_run *run = context;

    return options->rank == 0 ? reinforce_agent(options, run) : reinforce_observer(options);
}

/* Microseconds of `seconds` per step and observer. */
static double per_step_us(const struct outcome *outcome, double seconds)
{
    return 1e6 * seconds / ((double)flags.episodes * (double)flags.steps * (outcome->world_size - 1));
}

/* One world size in one mode. */
static int run_once(struct reinforce_result *result, enum reinforce_mode mode, struct outcome *outcome)
{
    struct worker_names names;
    char program[64];
    struct reinforce_run run = { .flags = &flags, .mode = mode, .world_size = outcome->world_size, .result = result };
    struct bx_spawn_options options = { .world_size = run.world_size, .names = names.at };

    worker_name_all(&names, run.world_size, REINFORCE_AGENT, "obs");
    memset(result, 0, sizeof(*result));

    uint64_t start_ns = clock_now_ns();
    snprintf(program, sizeof(program), "reinforce: world size %d, %s", run.world_size, reinforce_mode_name(mode));
    if (worker_spawn(program, &options, run_worker, &run) < 0)
        return PROGRAM_WORKER;
    if (program_has_none(result, sizeof(*result)))
        return PROGRAM_OK;
    outcome->timing[mode] = (struct timing){ true, clock_seconds_since(start_ns), result->train_seconds };
    if (reinforce_has_mlp(&flags))
        printf("learning: world_size %d, %s: %.3f us/step/observer\n", run.world_size, reinforce_mode_name(mode),
               per_step_us(outcome, result->learn_seconds));
    if (flags.count_frames)
        printf("frames: world_size %d, %s: requests_batched %llu, requests_inline %llu, "
               "replies_sent %llu\n", run.world_size, reinforce_mode_name(mode),
               (unsigned long long)result->requests_batched, (unsigned long long)result->requests_inline,
               (unsigned long long)result->replies_sent);
    return PROGRAM_OK;
}

/* Writes a number, or a dash if there is none. */
static const char *cell(char text[32], bool is_there, int decimals, double number)
{
    if (!is_there)
        return strcpy(text, "-");
    snprintf(text, 32, "%.*f", decimals, number);
    return text;
}

/* Runs the modes of one world size and prints its line. */
static int run_world_size(struct reinforce_result *result, int world_size)
{
    struct outcome *outcome = &outcomes[outcome_count];
    const struct timing *batch = &outcome->timing[REINFORCE_BATCH], *single = &outcome->timing[REINFORCE_NO_BATCH];
    char text[REINFORCE_MODES][32];

    outcome->world_size = world_size;
    for (int mode = 0; mode < REINFORCE_MODES; mode++) {
        int status = flags.mode[mode] ? run_once(result, (enum reinforce_mode)mode, outcome) : PROGRAM_OK;

        if (status != PROGRAM_OK)
            return status;
    }
    if (program_has_none(result, sizeof(*result)))
        return PROGRAM_OK;
    outcome_count++;
    printf("%d, %s, %s\n", world_size, cell(text[0], batch->ran, 4, batch->seconds),
           cell(text[1], single->ran, 4, single->seconds));
    return PROGRAM_OK;
}

static int run_all(void *result)
{
    int status = PROGRAM_OK;

    for (int size = flags.min_world_size; status == PROGRAM_OK && size <= flags.max_world_size; size++)
        status = run_world_size(result, size);
    return status;
}

/* ---- Results ------------------------------------------------------------------------------------- */

static void print_table(const void *result)
{
    (void)result;
    printf("\n%10s  %9s  %22s  %25s  %8s\n", "world size", "observers", "batch us/step/observer",
           "no batch us/step/observer", "speed-up");
    for (size_t i = 0; i < outcome_count; i++) {
        const struct outcome *at = &outcomes[i];
        const struct timing *batch = &at->timing[REINFORCE_BATCH], *single = &at->timing[REINFORCE_NO_BATCH];
        char text[3][32];

        printf("%10d  %9d  %22s  %25s  %8s\n", at->world_size, at->world_size - 1,
               cell(text[0], batch->ran, 3, per_step_us(at, batch->train_seconds)),
               cell(text[1], single->ran, 3, per_step_us(at, single->train_seconds)),
               cell(text[2], batch->ran && single->ran, 2, single->train_seconds / batch->train_seconds));
    }
}

static void write_json(struct json *json, const void *result)
{
    (void)result;
    json_list(json, "runs");
    for (size_t i = 0; i < outcome_count * REINFORCE_MODES; i++) {
        const struct outcome *outcome = &outcomes[i / REINFORCE_MODES];
        enum reinforce_mode mode = (enum reinforce_mode)(i % REINFORCE_MODES);
        const struct timing *timing = &outcome->timing[mode];

        if (!timing->ran)
            continue;
        json_item(json);
        json_put(json, "world_size", "%d", outcome->world_size);
        json_put(json, "mode", "\"%s\"", reinforce_mode_name(mode));
        json_real(json, "seconds", timing->seconds);
        json_real(json, "train_seconds", timing->train_seconds);
        json_real(json, "us_per_step_observer", per_step_us(outcome, timing->train_seconds));
        json_item_end(json);
    }
    json_list_end(json);
}

static double point(const void *context, size_t line, size_t i, int *x)
{
    (void)context;
    *x = outcomes[i].world_size;
    return outcomes[i].timing[flags.mode[REINFORCE_BATCH] ? line : REINFORCE_NO_BATCH].seconds;
}

/* Seconds over world size, a line for each mode. */
static struct plot figure(const void *result)
{
    static char title[160];
    struct plot plot = { "reinforce", title, "world size", "seconds", { "batch" }, outcome_count, point, result };
    int length = snprintf(title, sizeof(title), "Batched CartPole: one agent, the others observers; network %d",
                          POLICY_INPUTS);

    for (size_t i = 0; i <= flags.hidden.count; i++)        /* "4 - 128 - 2" */
        length += snprintf(title + length, sizeof(title) - (size_t)length, " - %zu",
                           i < flags.hidden.count ? flags.hidden.units[i] : POLICY_ACTIONS);
    if (flags.mode[REINFORCE_NO_BATCH])
        plot.lines[flags.mode[REINFORCE_BATCH]] = "no batch";
    return plot;
}

int main(int argc, char **argv)
{
    static const struct program PROGRAM = {
        .flags = { "reinforce", HELP, TABLE, sizeof(TABLE) / sizeof(TABLE[0]) },
        .json = &flags.json,
        .plot = &flags.plot,
        .check = check,
        .result_bytes = result_bytes,
        .run = run_all,
        .print = print_table,
        .write_json = write_json,
        .figure = figure,
    };

    return program_main(&PROGRAM, argc, argv);
}

/* SPDX-License-Identifier: MIT */
/*
 * The flags of `reinforce`. Run once, by the launcher, before anything else. A wrong flag is
 * answered by one sentence, and nothing has been started or written then.
 */
#include "reinforce.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char HELP[] =
    "Usage: reinforce [flags]\n"
    "\n"
    "Trains a CartPole policy by the policy gradient, with one agent and N observers, each a\n"
    "process; every step of every observer is a call to the agent, batched and not batched.\n"
    "\n"
    "  --min-world-size N   fewest workers, the agent counted (2; 2 to 128)\n"
    "  --max-world-size N   most workers (11)\n"
    "  --num-episode N      episodes of a run (10)\n"
    "  --num-steps N        steps of an episode, for each observer (500; at most 1000000)\n"
    "  --gamma G            discount of later rewards (1.0; 0 to 1)\n"
    "  --seed N             the same seed gives the same episodes (543)\n"
    "  --mode MODE          both, batch or no-batch (both)\n"
    "  --quiet              no line for each episode\n"
    "  --csv FILE           world_size,mode,seconds,train_seconds,us_per_step_observer\n"
    "  --plot FILE          draws seconds over world size, FILE.svg or FILE.png (needs gnuplot)\n"
    "  --count-frames       a line with the agent's counts of requests and replies after each run\n"
    "  --help, --version\n"
    "\n"
    "Prints for each world size: world_size, batch_seconds, no_batch_seconds; then a table.\n"
    "BX_WAIT=uring|epoll in the environment chooses how workers sleep.\n"
    "\n"
    "Exit status: 0 done; 1 a file or the plot could not be written; 2 a wrong flag; 3 a worker\n"
    "died or failed. SIGINT and SIGTERM end the workers, then the program by that signal.\n";

enum flag {
    FLAG_MIN = 256,
    FLAG_MAX,
    FLAG_EPISODES,
    FLAG_STEPS,
    FLAG_GAMMA,
    FLAG_SEED,
    FLAG_MODE,
    FLAG_QUIET,
    FLAG_CSV,
    FLAG_PLOT,
    FLAG_COUNT,
    FLAG_HELP,
    FLAG_VERSION,
};

static const struct option OPTIONS[] = {
    { "min-world-size", required_argument, NULL, FLAG_MIN },
    { "max-world-size", required_argument, NULL, FLAG_MAX },
    { "num-episode", required_argument, NULL, FLAG_EPISODES },
    { "num-steps", required_argument, NULL, FLAG_STEPS },
    { "gamma", required_argument, NULL, FLAG_GAMMA },
    { "seed", required_argument, NULL, FLAG_SEED },
    { "mode", required_argument, NULL, FLAG_MODE },
    { "quiet", no_argument, NULL, FLAG_QUIET },
    { "csv", required_argument, NULL, FLAG_CSV },
    { "plot", required_argument, NULL, FLAG_PLOT },
    { "count-frames", no_argument, NULL, FLAG_COUNT },
    { "help", no_argument, NULL, FLAG_HELP },
    { "version", no_argument, NULL, FLAG_VERSION },
    { NULL, 0, NULL, 0 },
};

const char *reinforce_mode_name(enum reinforce_mode mode)
{
    return mode == REINFORCE_BATCH ? "batch" : "no-batch";
}

__attribute__((format(printf, 1, 2))) static int usage_error(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fputs("reinforce: ", stderr);
    vfprintf(stderr, format, args);
    fputs("; see reinforce --help\n", stderr);
    va_end(args);
    return -1;
}

static int parse_number(const char *flag, const char *text, uint64_t least, uint64_t most,
                        uint64_t *value)
{
    char *end = NULL;

    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (strspn(text, "0123456789") != strlen(text) || end == text || errno != 0 || number < least ||
        number > most)
        return usage_error("--%s takes a whole number from %llu to %llu, not \"%s\"", flag,
                           (unsigned long long)least, (unsigned long long)most, text);
    *value = number;
    return 0;
}

static int parse_world_size(const char *flag, const char *text, int *world_size)
{
    uint64_t value = 0;
    int rc = parse_number(flag, text, BX_WORLD_MIN, BX_WORLD_MAX, &value);

    if (rc == 0)
        *world_size = (int)value;
    return rc;
}

static int parse_gamma(const char *text, double *gamma)
{
    char *end = NULL;
    double value = strtod(text, &end);

    if (end == text || *end != '\0' || !(value >= 0.0 && value <= 1.0))
        return usage_error("--gamma takes a number from 0 to 1, not \"%s\"", text);
    *gamma = value;
    return 0;
}

static int parse_mode(const char *text, bool mode[REINFORCE_MODES])
{
    bool both = strcmp(text, "both") == 0;

    mode[REINFORCE_BATCH] = both || strcmp(text, "batch") == 0;
    mode[REINFORCE_NO_BATCH] = both || strcmp(text, "no-batch") == 0;
    if (!mode[REINFORCE_BATCH] && !mode[REINFORCE_NO_BATCH])
        return usage_error("--mode is both, batch or no-batch, not \"%s\"", text);
    return 0;
}

static int parse_plot(const char *text, const char **plot)
{
    const char *type = strlen(text) > 4 ? text + strlen(text) - 4 : "";

    if (strcmp(type, ".svg") != 0 && strcmp(type, ".png") != 0)
        return usage_error("--plot takes a file name that ends in .svg or .png, not \"%s\"", text);
    *plot = text;
    return 0;
}

static int parse_flag(int flag, const char *text, struct reinforce_flags *flags)
{
    switch (flag) {
    case FLAG_MIN:
        return parse_world_size("min-world-size", text, &flags->min_world_size);
    case FLAG_MAX:
        return parse_world_size("max-world-size", text, &flags->max_world_size);
    case FLAG_EPISODES:
        return parse_number("num-episode", text, 1, REINFORCE_EPISODES_MAX, &flags->episodes);
    case FLAG_STEPS:
        return parse_number("num-steps", text, 1, REINFORCE_STEPS_MAX, &flags->steps);
    case FLAG_GAMMA:
        return parse_gamma(text, &flags->gamma);
    case FLAG_SEED:
        return parse_number("seed", text, 0, UINT64_MAX, &flags->seed);
    case FLAG_MODE:
        return parse_mode(text, flags->mode);
    case FLAG_QUIET:
        flags->quiet = true;
        return 0;
    case FLAG_CSV:
        flags->csv = text;
        return 0;
    case FLAG_PLOT:
        return parse_plot(text, &flags->plot);
    case FLAG_COUNT:
        flags->count_frames = true;
        return 0;
    case FLAG_HELP:
        fputs(HELP, stdout);
        return 1;
    default:
        printf("reinforce %s\n", bx_version());
        return 1;
    }
}

int reinforce_parse_flags(int argc, char **argv, struct reinforce_flags *flags)
{
    int flag;

    *flags = (struct reinforce_flags){ .min_world_size = 2, .max_world_size = 11, .episodes = 10,
                                       .steps = 500, .gamma = 1.0, .seed = 543,
                                       .mode = { true, true } };
    while ((flag = getopt_long(argc, argv, "+:", OPTIONS, NULL)) != -1) {
        if (flag == ':')
            return usage_error("%s needs a value", argv[optind - 1]);
        if (flag == '?')
            return usage_error("there is no flag %s, or it takes no value", argv[optind - 1]);
        int rc = parse_flag(flag, optarg, flags);
        if (rc != 0)
            return rc;
    }
    if (optind < argc)
        return usage_error("\"%s\" is not a flag", argv[optind]);
    if (flags->min_world_size > flags->max_world_size)
        return usage_error("--min-world-size %d is more than --max-world-size %d",
                           flags->min_world_size, flags->max_world_size);
    return 0;
}

/* SPDX-License-Identifier: MIT */
/*
 * bxbench: the machine's limits, and Boxcar beside them. `bxbench --help` says what each subcommand measures and which
 * flags it takes; README.md says what the keys mean. This file reads the flags; each subcommand is a file of its own.
 *
 * Exit status: 0; 1 if a measurement failed (a sentence on stderr); 2 for wrong flags.
 */
#include "bxbench.h"
#include "clock.h"
#include "process.h"
#include "tensors.h"

#include <errno.h>
#include <getopt.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum flag {
    F_SLICES = 1, F_CALLS = 2, F_INFLIGHT = 4, F_CALLERS = 8, F_WORKERS = 16, F_GAP = 32, F_SECONDS = 64,
    F_UCX = 128 /* and --cork */, F_NO_PAIRS = 256, F_TENSORS = 512, F_BYTES = 1024, F_DEVICE = 2048,
};

static const struct command {
    const char *name;
    int (*run)(const struct bench_options *options);
    int flags;              /* enum flag, beside --json and --cpus */
    int cpus;               /* cores used without --cpus; 0: all that are allowed */
    int cpus_least;
    const char *text;
} commands[] = {
    { "pingpong", bench_pingpong, F_SLICES | F_CALLS, 2, 2,
      "empty call and reply beside a bare ring echo and a bare cache line" },
    { "sleep", bench_sleep, F_SLICES | F_CALLS | F_GAP, 2, 1,
      "the same with both sides asleep, beside bare eventfd and io_uring" },
    { "rate", bench_rate, F_SLICES | F_CALLS | F_INFLIGHT | F_UCX, 2, 2,
      "calls a second of one caller with many in flight, beside bare rings" },
    { "fanin", bench_fanin, F_SLICES | F_CALLS | F_CALLERS, 0, 2,
      "many callers of one callee, each with one call at a time" },
    { "batch", bench_batch, F_SLICES | F_CALLS | F_CALLERS, 0, 2,
      "the same calls one by one and gathered in batches" },
    { "idle", bench_idle, F_WORKERS | F_SECONDS, 0, 1,
      "what workers that have nothing to do cost" },
    { "start", bench_start, F_SLICES | F_WORKERS | F_NO_PAIRS, 0, 1,
      "time to start and to end a job, and its shared memory" },
    { "handover", bench_handover, F_SLICES | F_CALLS | F_TENSORS | F_BYTES, 2, 2,
      "tensors made, sent, checked and released, beside one copy of them" },
    { "rref", bench_rref, F_SLICES | F_CALLS, 2, 2,
      "references to objects: made, called on, passed on, dropped, beside a plain call" },
    { "gpu", bench_gpu, F_CALLS | F_BYTES | F_DEVICE, 2, 1,
      "tensors in device memory handed over, beside copies of them" },
};

#define COMMANDS (sizeof commands / sizeof *commands)

static const struct number_flag {
    const char *name;
    enum flag flag;
    size_t offset;
    int64_t least, most;
    const char *text;
} number_flags[] = {
    { "slices", F_SLICES, offsetof(struct bench_options, slices), 1, BENCH_SLICES_MAX,
      "slices of each kind (start: runs)" },
    { "calls", F_CALLS, offsetof(struct bench_options, calls), 10, 10000000,
      "calls in a slice, of each caller" },
    { "inflight", F_INFLIGHT, offsetof(struct bench_options, inflight), 1, BENCH_INFLIGHT_MAX,
      "calls in flight (64)" },
    { "callers", F_CALLERS, offsetof(struct bench_options, callers), 1, BX_WORLD_MAX - 1,
      "callers (fanin: 1, 2, 4, 10 one after the other; batch: 4)" },
    { "workers", F_WORKERS, offsetof(struct bench_options, workers), BX_WORLD_MIN, BX_WORLD_MAX,
      "workers (idle: 8, start: 64)" },
    { "gap-us", F_GAP, offsetof(struct bench_options, gap_us), 1, 1000000,
      "idle microseconds before each call (200)" },
    { "tensors", F_TENSORS, offsetof(struct bench_options, tensors), 1, 4096,
      "tensors in a message (161)" },
    { "bytes", F_BYTES, offsetof(struct bench_options, bytes), BENCH_TENSOR_BYTES_MIN, INT64_C(1) << 35,
      "bytes of all tensors of a message (94278008, ResNet-50's; gpu: sizes up to it)" },
    { "device", F_DEVICE, offsetof(struct bench_options, device), 0, 63,
      "which GPU (0)" },
};

#define NUMBER_FLAGS (sizeof number_flags / sizeof *number_flags)

enum { O_NUMBER = 256, O_SECONDS = O_NUMBER + NUMBER_FLAGS, O_CPUS, O_JSON, O_UCX, O_CORK, O_NO_PAIRS,
       O_DRY_RUN, O_HELP, O_VERSION };

static void help(void)
{
    puts("Usage: bxbench SUBCOMMAND [flags]\n\n"
         "Measures Boxcar beside the limit of the machine, in slices that take turns within one run,\n"
         "and prints medians. Processes are pinned: the caller to the first core, the callee to the\n"
         "second, further callers to the others in turn (idle and start: all to all).\n");
    for (size_t i = 0; i < COMMANDS; i++) {
        printf("  %-10s %s\n            ", commands[i].name, commands[i].text);
        for (size_t j = 0; j < NUMBER_FLAGS; j++)
            if (commands[i].flags & (int)number_flags[j].flag)
                printf(" --%s N", number_flags[j].name);
        printf("%s%s%s\n", commands[i].flags & F_SECONDS ? " --seconds S" : "",
               commands[i].flags & F_UCX ? " --ucx --cork" : commands[i].flags & F_DEVICE ? " --dry-run" : "",
               commands[i].flags & F_NO_PAIRS ? " --no-pairs" : "");
    }
    puts("\nFlags:");
    for (size_t j = 0; j < NUMBER_FLAGS; j++)
        printf("  --%-12s %s\n", number_flags[j].name, number_flags[j].text);
    puts("  --seconds      how long to be idle (5)\n"
         "  --ucx          five runs of ucx_perftest -t ucp_am_bw between the slices\n"
         "  --cork         send a quarter of the calls in flight together, by bx_rpc_many\n"
         "  --no-pairs     leave out the phase in which every worker calls every other\n"
         "  --dry-run      with a driver that has no GPU: everything but figures\n"
         "  --cpus A,B     cores to use, the caller's first (the first two allowed, or all where\n"
         "                 there may be more than two processes)\n"
         "  --json         one JSON object instead of the table\n"
         "  --help, --version\n\n"
         "BX_WAIT=uring|epoll says how Boxcar sleeps. Exit status: 0; 1 where a measurement failed;\n"
         "2 where the flags are wrong.");
}

static int usage(const char *what, const char *value)
{
    bench_say("%s%s%s; see bxbench --help", what, value[0] != '\0' ? ": " : "", value);
    return 2;
}

static bool parse_number(const char *text, int64_t least, int64_t most, int64_t *out)
{
    char *end;

    errno = 0;

    long long value = strtoll(text, &end, 10);

    if (errno != 0 || end == text || *end != '\0' || value < least || value > most)
        return false;
    *out = value;
    return true;
}

static int parse_number_flag(const struct number_flag *flag, const char *text,
                             struct bench_options *options)
{
    if (parse_number(text, flag->least, flag->most, (int64_t *)(void *)((char *)options + flag->offset)))
        return 0;
    bench_say("--%s takes a number from %lld to %lld, not '%s'", flag->name, (long long)flag->least,
              (long long)flag->most, text);
    return 2;
}

static int parse_cpus(const char *text, struct bench_options *options)
{
    cpu_set_t allowed;
    char *end;

    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return usage("the allowed cores are not to be found out", strerror(errno));
    options->cpu_count = 0;
    for (const char *at = text;; at = end + 1) {
        errno = 0;

        long cpu = strtol(at, &end, 10);

        if (end == at || errno != 0 || (*end != ',' && *end != '\0'))
            return usage("--cpus takes core numbers with commas between them", text);
        if (cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET((int)cpu, &allowed))
            return usage("--cpus names a core that this process may not use", text);
        for (int i = 0; i < options->cpu_count; i++)
            if (options->cpus[i] == cpu)
                return usage("--cpus names a core twice", text);
        if (options->cpu_count == BENCH_CPUS_MAX)
            return usage("--cpus names too many cores", text);
        options->cpus[options->cpu_count++] = (int)cpu;
        if (*end == '\0')
            return 0;
    }
}

/* The first `most` allowed cores; 0: all. */
static void default_cpus(int most, struct bench_options *options)
{
    cpu_set_t allowed;

    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        CPU_ZERO(&allowed);
    for (int cpu = 0; cpu < CPU_SETSIZE && options->cpu_count < BENCH_CPUS_MAX; cpu++)
        if (CPU_ISSET(cpu, &allowed) && (most == 0 || options->cpu_count < most))
            options->cpus[options->cpu_count++] = cpu;
}

static int parse_seconds(const char *text, double *seconds)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end != '\0' || !(value >= 0.1 && value <= 3600))
        return usage("--seconds takes a number from 0.1 to 3600, not", text);
    *seconds = value;
    return 0;
}

static void make_flags(struct option *flags)
{
    for (size_t i = 0; i < NUMBER_FLAGS; i++)
        *flags++ = (struct option){ number_flags[i].name, required_argument, NULL, O_NUMBER + (int)i };
    *flags++ = (struct option){ "seconds", required_argument, NULL, O_SECONDS };
    *flags++ = (struct option){ "cpus", required_argument, NULL, O_CPUS };
    *flags++ = (struct option){ "json", no_argument, NULL, O_JSON };
    *flags++ = (struct option){ "ucx", no_argument, NULL, O_UCX };
    *flags++ = (struct option){ "cork", no_argument, NULL, O_CORK };
    *flags++ = (struct option){ "no-pairs", no_argument, NULL, O_NO_PAIRS };
    *flags++ = (struct option){ "dry-run", no_argument, NULL, O_DRY_RUN };
    *flags++ = (struct option){ "help", no_argument, NULL, O_HELP };
    *flags = (struct option){ "version", no_argument, NULL, O_VERSION };
}

/* 0, or an exit status; -1 after --help or --version. */
static int take_flag(int flag, const struct command *command, struct bench_options *options)
{
    int belongs = flag < O_SECONDS ? (int)number_flags[flag - O_NUMBER].flag
                  : flag == O_SECONDS ? F_SECONDS
                  : flag == O_UCX || flag == O_CORK ? F_UCX
                  : flag == O_DRY_RUN ? F_DEVICE
                  : flag == O_NO_PAIRS ? F_NO_PAIRS : 0;

    if (belongs != 0 && (command->flags & belongs) == 0) {
        bench_say("%s has no such flag; see bxbench --help", command->name);
        return 2;
    }
    switch (flag) {
    case O_SECONDS: return parse_seconds(optarg, &options->seconds);
    case O_CPUS: return parse_cpus(optarg, options);
    case O_JSON: options->json = true; return 0;
    case O_UCX: options->ucx = true; return 0;
    case O_CORK: options->cork = true; return 0;
    case O_NO_PAIRS: options->no_pairs = true; return 0;
    case O_DRY_RUN: options->dry_run = true; return 0;
    case O_HELP: help(); return -1;
    case O_VERSION: printf("bxbench %s\n", bx_version()); return -1;
    default: return parse_number_flag(&number_flags[flag - O_NUMBER], optarg, options);
    }
}

static int parse(int argc, char **argv, const struct command *command, struct bench_options *options)
{
    struct option flags[NUMBER_FLAGS + 10] = { 0 };
    int flag;

    make_flags(flags);
    opterr = 0;
    while ((flag = getopt_long(argc, argv, "+", flags, NULL)) != -1) {
        int rc = flag == '?' ? usage("no such flag, or its value is missing", argv[optind - 1])
                             : take_flag(flag, command, options);

        if (rc != 0)
            return rc;
    }
    if (optind < argc)
        return usage("not a flag", argv[optind]);
    if (options->cpu_count == 0)
        default_cpus(command->cpus, options);
    if (options->cpu_count < command->cpus_least) {
        bench_say("%s needs %d cores, both sides spin; %d given", command->name, command->cpus_least,
                  options->cpu_count);
        return 2;
    }
    return 0;
}

/* The exit status: 1, after a line on stderr, if the output could not be written. */
static int end(int status)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    bench_say("the output could not be written");
    return status == 0 ? 1 : status;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";

    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        help();
        return end(0);
    }
    if (strcmp(name, "--version") == 0) {
        printf("bxbench %s\n", bx_version());
        return end(0);
    }
    for (size_t i = 0; i < COMMANDS; i++) {
        if (strcmp(name, commands[i].name) != 0)
            continue;

        struct bench_options options = { .name = name };
        int rc = parse(argc - 1, argv + 1, &commands[i], &options);

        if (rc != 0)
            return end(rc < 0 ? 0 : rc);
        bench_clock_init();
        return end(commands[i].run(&options));
    }
    return usage(name[0] == '\0' ? "a subcommand is needed" : "no such subcommand", name);
}

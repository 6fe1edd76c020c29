/* SPDX-License-Identifier: MIT */
/*
 * bxbench: the machine's limits, and Boxcar beside them. `bxbench --help` says what each subcommand measures and which
 * flags it takes; README.md says what the keys mean. This file reads the flags; each subcommand is a file of its own.
 *
 * Exit status: 0; 1 if a measurement failed (a sentence on stderr); 2 for wrong flags.
 */
#include "bxbench.h"

#include <getopt.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    F_SLICES = 1, F_CALLS = 2, F_INFLIGHT = 4, F_CALLERS = 8, F_WORKERS = 16, F_GAP = 32, F_SECONDS = 64,
    F_RATE = 128, F_NO_PAIRS = 256, F_TENSORS = 512, F_BYTES = 1024, F_GPU = 2048, F_NET = 4096, F_NONE = 8192,
    F_ALL = -1
};

static const struct command {
    const char *name;
    int (*run)(struct bench_options *options);
    int flags;
    int cpus;               /* cores used without --cpus; 0: all that are allowed */
    int cpus_least;
    const char *text;
    struct bench_options without;       /* what it runs with where no flags are given */
} commands[] = {
    { "pingpong", bench_pingpong, F_SLICES | F_CALLS, 2, 2,
      "empty call and reply beside a bare ring echo and a bare cache line", { .slices = 40, .calls = 10000 } },
    { "sleep", bench_sleep, F_SLICES | F_CALLS | F_GAP, 2, 1,
      "the same with both sides asleep, beside bare eventfd and io_uring",
      { .slices = 40, .calls = 50, .gap_us = 200 } },
    { "rate", bench_rate, F_SLICES | F_CALLS | F_INFLIGHT | F_RATE, 2, 2,
      "calls a second of one caller with many in flight, beside bare rings",
      { .slices = 20, .calls = 100000, .inflight = 64 } },
    { "fanin", bench_fanin, F_SLICES | F_CALLS | F_CALLERS, 0, 2,
      "many callers of one callee, each with one call at a time", { .slices = 20 } },
    { "batch", bench_batch, F_SLICES | F_CALLS | F_CALLERS, 0, 2,
      "the same calls one by one and gathered in batches", { .slices = 20, .callers = 4 } },
    { "idle", bench_idle, F_WORKERS | F_SECONDS, 0, 1,
      "what workers that have nothing to do cost", { .workers = 8, .seconds = 5 } },
    { "start", bench_start, F_SLICES | F_WORKERS | F_NO_PAIRS, 0, 1,
      "time to start and to end a job, and its shared memory", { .slices = 3, .workers = 64 } },
    { "handover", bench_handover, F_SLICES | F_CALLS | F_TENSORS | F_BYTES, 2, 2,
      "tensors made, sent, checked and released, beside one copy of them",
      { .slices = 10, .calls = 500, .tensors = 161 } },
    { "rref", bench_rref, F_SLICES | F_CALLS, 2, 2,
      "references to objects: made, called on, passed on, dropped, beside a plain call",
      { .slices = 9, .calls = 2000 } },
    { "gpu", bench_gpu, F_CALLS | F_BYTES | F_GPU, 2, 1,
      "tensors in device memory handed over, beside copies of them", { .calls = 1000 } },
    { "net", bench_net, F_SLICES | F_CALLS | F_INFLIGHT | F_TENSORS | F_BYTES | F_NET, 2, 2,
      "two workers on two hosts, beside UCX",
      { .slices = 15, .calls = 5000, .inflight = 64, .tensors = 161, .bytes = 94278008 } },
};

enum kind { WHOLE, REAL, YES, CPUS, HELP, VERSION };

static const struct flag {
    const char *name;
    int belongs;            /* to the commands with this bit */
    enum kind kind;
    size_t offset;
    double least, most;     /* of a number */
    const char *text;
} flags[] = {
#define FIELD(name) offsetof(struct bench_options, name)
    { "slices", F_SLICES, WHOLE, FIELD(slices), 1, BENCH_SLICES_MAX, "slices of each kind (start: runs)" },
    { "calls", F_CALLS, WHOLE, FIELD(calls), 10, 10000000, "calls in a slice, of each caller" },
    { "inflight", F_INFLIGHT, WHOLE, FIELD(inflight), 1, BENCH_INFLIGHT_MAX, "calls in flight (64)" },
    { "callers", F_CALLERS, WHOLE, FIELD(callers), 1, BX_WORLD_MAX - 1,
      "callers (fanin: 1, 2, 4, 10 one after the other; batch: 4)" },
    { "workers", F_WORKERS, WHOLE, FIELD(workers), BX_WORLD_MIN, BX_WORLD_MAX, "workers (idle: 8, start: 64)" },
    { "gap-us", F_GAP, WHOLE, FIELD(gap_us), 1, 1000000, "idle microseconds before each call (200)" },
    { "tensors", F_TENSORS, WHOLE, FIELD(tensors), 1, 4096, "tensors in a message (161)" },
    { "bytes", F_BYTES, WHOLE, FIELD(bytes), BENCH_TENSOR_BYTES_MIN, (double)(INT64_C(1) << 35),
      "bytes of all tensors of a message (94278008, ResNet-50's; gpu: sizes up to it)" },
    { "device", F_GPU, WHOLE, FIELD(device), 0, 63, "which GPU (0)" },
    { "seconds", F_SECONDS, REAL, FIELD(seconds), 0.1, 3600, "how long to be idle (5)" },
    { "ucx", F_RATE, YES, FIELD(ucx), 0, 0, "five runs of ucx_perftest -t ucp_am_bw between the slices" },
    { "cork", F_RATE, YES, FIELD(cork), 0, 0, "send a quarter of the calls in flight together, by bx_rpc_many" },
    { "no-pairs", F_NO_PAIRS, YES, FIELD(no_pairs), 0, 0,
      "leave out the phase in which every worker calls every other" },
    { "veth", F_NET, YES, FIELD(veth), 0, 0,
      "the hosts are two network namespaces with a pair of devices, not loopback" },
    { "dry-run", F_GPU, YES, FIELD(dry_run), 0, 0, "with a driver that has no GPU: everything but figures" },
    { "cpus", F_ALL, CPUS, 0, 0, 0,
      "cores to use, with commas between them, the caller's first (the first two\n"
      "                 allowed, or all where there may be more than two processes)" },
    { "json", F_ALL, YES, FIELD(json), 0, 0, "one JSON object instead of the table" },
    { "help", F_ALL, HELP, 0, 0, 0, "this text" },
    { "version", F_ALL, VERSION, 0, 0, 0, "of Boxcar" },
#undef FIELD
};

#define COMMANDS (sizeof commands / sizeof *commands)
#define FLAGS (sizeof flags / sizeof *flags)

static void help(void)
{
    puts("Usage: bxbench SUBCOMMAND [flags]\n\n"
         "Measures Boxcar beside the limit of the machine, in slices that take turns within one run,\n"
         "and prints medians. Processes are pinned: the caller to the first core, the callee to the\n"
         "second, further callers to the others in turn (idle and start: all to all).\n");
    for (size_t i = 0; i < COMMANDS; i++) {
        printf("  %-10s %s\n            ", commands[i].name, commands[i].text);
        for (const struct flag *flag = flags; flag < flags + FLAGS; flag++)
            if (flag->belongs != F_ALL && (commands[i].flags & flag->belongs) != 0)
                printf(flag->kind == YES ? " --%s" : " --%s N", flag->name);
        putchar('\n');
    }
    puts("\nFlags:");
    for (const struct flag *flag = flags; flag < flags + FLAGS; flag++)
        printf("  --%-12s %s\n", flag->name, flag->text);
    puts("\nBX_WAIT=uring|epoll says how Boxcar sleeps. Exit status: 0; 1 where a measurement failed;\n"
         "2 where the flags are wrong.");
}

static int usage(const char *what, const char *value)
{
    bench_say("%s%s%s; see bxbench --help", what, value[0] != '\0' ? ": " : "", value);
    return 2;
}

static cpu_set_t allowed_cpus(void)
{
    cpu_set_t allowed;

    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        CPU_ZERO(&allowed);
    return allowed;
}

static int parse_cpus(const char *text, struct bench_options *options)
{
    cpu_set_t allowed = allowed_cpus();
    char *end;

    options->cpu_count = 0;
    for (const char *at = text;; at = end + 1) {
        long cpu = strtol(at, &end, 10);

        if (end == at || (*end != ',' && *end != '\0'))
            return usage("--cpus takes core numbers with commas between them", text);
        if (cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET((int)cpu, &allowed))
            return usage("--cpus names a core twice, or one that this process may not use", text);
        if (options->cpu_count == BENCH_CPUS_MAX)
            return usage("--cpus names too many cores", text);
        CPU_CLR((int)cpu, &allowed);
        options->cpus[options->cpu_count++] = (int)cpu;
        if (*end == '\0')
            return 0;
    }
}

/* The first `most` allowed cores; 0: all. */
static void default_cpus(int most, struct bench_options *options)
{
    cpu_set_t allowed = allowed_cpus();

    for (int cpu = 0; cpu < CPU_SETSIZE && options->cpu_count < BENCH_CPUS_MAX; cpu++)
        if (CPU_ISSET(cpu, &allowed) && (most == 0 || options->cpu_count < most))
            options->cpus[options->cpu_count++] = cpu;
}

static int parse_number(const struct flag *flag, const char *text, void *field)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end != '\0' || !(value >= flag->least && value <= flag->most) ||
        (flag->kind == WHOLE && floor(value) < value)) {
        bench_say("--%s takes a%s number from %.12g to %.12g, not '%s'", flag->name,
                  flag->kind == WHOLE ? " whole" : "", flag->least, flag->most, text);
        return 2;
    }
    if (flag->kind == WHOLE)
        *(int64_t *)field = (int64_t)value;
    else
        *(double *)field = value;
    return 0;
}

/* 0, or an exit status; -1 after --help or --version. */
static int take_flag(const struct flag *flag, const struct command *command, struct bench_options *options)
{
    void *field = (char *)options + flag->offset;

    if ((command->flags & flag->belongs) == 0) {
        bench_say("%s has no such flag; see bxbench --help", command->name);
        return 2;
    }
    switch (flag->kind) {
    case YES: *(bool *)field = true; return 0;
    case CPUS: return parse_cpus(optarg, options);
    case HELP: help(); return -1;
    case VERSION: printf("bxbench %s\n", bx_version()); return -1;
    default: return parse_number(flag, optarg, field);
    }
}

static int parse(int argc, char **argv, const struct command *command, struct bench_options *options)
{
    struct option longs[FLAGS + 1] = { 0 };
    int index, at = optind;

    for (size_t i = 0; i < FLAGS; i++)
        longs[i] = (struct option){ flags[i].name, flags[i].kind <= REAL || flags[i].kind == CPUS, NULL, (int)i + 1 };
    opterr = 0;
    for (; (index = getopt_long(argc, argv, "+", longs, NULL)) != -1; at = optind) {
        int rc = index == '?' ? usage("no such flag, or its value is missing", argv[at])
                              : take_flag(&flags[index - 1], command, options);

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
    static const struct command none = { .name = "bxbench", .flags = F_NONE };
    const char *name = argc > 1 ? argv[1] : "";
    const struct command *command = name[0] == '-' ? &none : NULL;
    struct bench_options options;
    int rc;

    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0)
            command = &commands[i];
    if (command == NULL)
        return usage(name[0] == '\0' ? "a subcommand is needed" : "no such subcommand", name);
    if (strcmp(name, "-h") == 0) {
        help();
        return end(0);
    }
    options = command->without;
    options.name = name;
    rc = command == &none ? parse(argc, argv, command, &options) : parse(argc - 1, argv + 1, command, &options);
    if (rc != 0)
        return end(rc < 0 ? 0 : rc);
    if (command == &none)
        return usage("a subcommand is needed", "");
    bench_clock_init();
    return end(command->run(&options));
}

/* SPDX-License-Identifier: MIT */
/*
 * bxbench stats: what counters, tables and histograms (all that shmstat reads) add to an empty call.
 *
 * The engine is built four times: without any of it, with counters, with counters and the tables of calls and requests,
 * and as it is. Each run makes a pingpong of each of the four, in a rotating order, each in a program of its own
 * (`bxbench pingpong --stats off` is the first). These are programs and not a run-time switch, because testing a switch
 * on every call costs about as much as what it switches off. The figure is a call over a bare echo in the same run,
 * compared between the runs: a disturbance of the machine affects all four.
 */
#include "bxbench.h"
#include "process.h"
#include "report.h"
#include "statistics.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RUNS 20
#define SLICES "6"
#define CALLS "10000"

static const struct build {
    const char *key;
    int stats;
    const char *text;
} builds[] = {
    { "none", 0, "nothing is kept" },
    { "counters", 1, "counters" },
    { "tables", 3, "and the tables of calls in flight, requests, batches" },
    { "all", 7, "and histograms of one call in 64: as it is" },
};

#define BUILDS ((int)(sizeof builds / sizeof *builds))

/* The path of the bxbench whose engine keeps exactly that: this program, or one that `make stats` builds. */
static int program_of(int stats, char path[PATH_MAX])
{
    ssize_t bytes = readlink("/proc/self/exe", path, PATH_MAX - 1);
    char *slash;

    if (bytes < 0)
        return bench_fail("/proc/self/exe", -errno);
    path[bytes] = '\0';
    if (stats == BXI_STATS)
        return 0;
    for (int i = 0; i < 2; i++)
        if ((slash = strrchr(path, '/')) != NULL)
            *slash = '\0';
    bytes = (ssize_t)strlen(path);
    if (snprintf(path + bytes, PATH_MAX - (size_t)bytes, "/bench/stats-%d/bxbench", stats) >= PATH_MAX - bytes ||
        access(path, X_OK) != 0) {
        bench_say("there is no %s; `make stats` builds it", path);
        return 1;
    }
    return 0;
}

int bench_stats_off(char **argv)
{
    char path[PATH_MAX];

    if (program_of(0, path) != 0)
        return 1;
    execv(path, argv);
    return bench_fail(path, -errno);
}

/* The number behind "key": in a line of JSON; NAN if there is none. */
static double number_of(const char *text, const char *key)
{
    char quoted[32];
    const char *at;

    snprintf(quoted, sizeof quoted, "\"%s\": ", key);
    at = strstr(text, quoted);
    return at != NULL ? strtod(at + strlen(quoted), NULL) : NAN;
}

static int run(const struct bench_options *options, const char *path, double *ns, double *bare_ns)
{
    char cpus[32], text[8192];
    char *argv[] = { (char *)(uintptr_t)path, "pingpong", "--json", "--slices", SLICES, "--calls", CALLS, "--cpus",
                     cpus, NULL };
    int status;

    snprintf(cpus, sizeof cpus, "%d,%d", options->cpus[0], options->cpus[1]);
    status = bench_run_program(-1, argv, text, sizeof text);
    *ns = status == 0 ? number_of(text, "call_p50_ns") : NAN;
    *bare_ns = status == 0 ? number_of(text, "bare_p50_ns") : NAN;
    if (isfinite(*ns) && isfinite(*bare_ns))
        return 0;
    bench_say("%s pingpong gave no latency (status %d)", path, status);
    return 1;
}

struct times {
    double ns[BUILDS][BENCH_SLICES_MAX];        /* of a call, by run */
    double bare_ns[BUILDS][BENCH_SLICES_MAX];
};

static void report(const struct bench_options *options, struct times *times, size_t runs)
{
    static double cost[BUILDS][BENCH_SLICES_MAX];

    for (int i = 0; i < BUILDS; i++)
        for (size_t j = 0; j < runs; j++)
            cost[i][j] = times->ns[i][j] / times->bare_ns[i][j] / (times->ns[0][j] / times->bare_ns[0][j]);
    bench_report_open(options, "what is kept for shmstat, over an engine that keeps nothing, both sides spinning");
    bench_report_number("runs", (double)runs, 0, "of each of the four engines, in turn");
    bench_report_rows_open("engines");
    for (int i = 0; i < BUILDS; i++) {
        double middle = bench_median(cost[i], runs);        /* sorts */

        bench_report_row_open();
        bench_report_number("stats", builds[i].stats, 0, NULL);
        bench_report_number("cost_p25", (cost[i][runs / 4] - 1) * 100, 2, NULL);
        bench_report_number("cost_p50", (middle - 1) * 100, 2, NULL);
        bench_report_number("cost_p75", (cost[i][runs * 3 / 4] - 1) * 100, 2, NULL);
        bench_report_number("call_ns", bench_median(times->ns[i], runs), 1, NULL);
        bench_report_row_close();
    }
    bench_report_rows_close();
    for (int i = 0; !options->json && i < BUILDS; i++)
        printf("  stats %d: %s\n", builds[i].stats, builds[i].text);
    bench_report_close();
}

int bench_stats(const struct bench_options *options)
{
    static struct times times;
    static char paths[BUILDS][PATH_MAX];
    size_t runs = options->slices != 0 ? (size_t)options->slices : RUNS;

    for (int i = 0; i < BUILDS; i++)
        if (program_of(builds[i].stats, paths[i]) != 0)
            return 1;
    for (size_t j = 0; j < runs; j++)
        for (int i = 0; i < BUILDS; i++) {
            int build = (i + (int)j) % BUILDS;

            if (run(options, paths[build], &times.ns[build][j], &times.bare_ns[build][j]) != 0)
                return 1;
        }
    report(options, &times, runs);
    return 0;
}

/* SPDX-License-Identifier: MIT */
/*
 * bxbench pingpong: one call at a time, both sides awake.
 *
 * Worker 0 runs, in turn, a slice of bare cache lines, two slices of bare ring echoes (with the echo process on the
 * callee's core; the second with a pause between two polls) and a slice of calls of worker 1. A call is compared with
 * the echo that is faster, by the medians of all slices. The host may move the cores between two slices, which can
 * change the cost of a cache line threefold. So ratios are taken between neighbouring slices, and their median is
 * reported. The latencies of echo and call are read from the same clock, one read per round trip. The first round
 * trips of a slice do not count: the other side has to wake up. If the clock advances in steps, medians are
 * interpolated within a step.
 */
#include "bare.h"
#include "bxbench.h"
#include "clock.h"
#include "process.h"
#include "report.h"
#include "statistics.h"
#include "worker.h"

#include <stdlib.h>

#define WARM_CALLS 1000

struct results {
    double *line_ticks;         /* a mean for each slice */
    uint32_t *bare_ticks[2];    /* calls for each slice; [1]: with a pause */
    uint32_t *call_ticks;
};

struct pingpong {
    const struct bench_options *options;
    int64_t slices;
    int64_t calls;
    struct results results;
    struct bench_bare *bare;
};

static int slice_bare(const struct pingpong *bench, struct bench_bare_client *client, enum bare_kind kind,
                      uint32_t *ticks)
{
    static uint64_t number;
    int64_t warm = WARM_CALLS;

    bench_bare_order(bench->bare, kind, (uint64_t)(warm + bench->calls));
    for (int64_t i = -warm; i < bench->calls; i++) {
        uint64_t before = bench_ticks();
        int rc = bench_bare_send(client, ++number);

        if (rc == 0)
            rc = bench_bare_receive(client, number);
        if (rc < 0)
            return bench_fail("the bare echo", rc);
        if (i >= 0)
            ticks[i] = bench_ticks_since(before);
    }
    return 0;
}

static int slice_calls(const struct pingpong *bench, struct bx_job *job, struct bx_msg *args,
                       uint32_t *ticks)
{
    static uint64_t number;
    const char *to = bx_worker_name(job, 1);

    for (int64_t i = -WARM_CALLS; i < bench->calls; i++) {
        uint64_t before = bench_ticks();

        if (bench_call(job, to, BENCH_FUNCTION, args, ++number) < 0)
            return 1;
        if (i >= 0)
            ticks[i] = bench_ticks_since(before);
    }
    return 0;
}

static int run_slices(const void *context, struct bx_job *job)
{
    const struct pingpong *bench = context;
    struct bx_msg *args = bx_msg_create(BENCH_MESSAGE_BYTES);
    struct bench_bare_client client;
    int status = args != NULL ? 0 : 1;

    bench_bare_client_init(&client, bench->bare, 0);
    for (int64_t i = 0; status == 0 && i < bench->slices; i++) {
        const struct results *results = &bench->results;

        results->line_ticks[i] = bench_bare_line(bench->bare, (uint64_t)bench->calls);
        if (results->line_ticks[i] == 0) {
            bench_say("the bare cache line did not come back");
            status = 1;
        }
        if (status == 0)
            status = slice_bare(bench, &client, BARE_ECHO, results->bare_ticks[0] + i * bench->calls);
        if (status == 0)
            status = slice_bare(bench, &client, BARE_ECHO_PAUSED, results->bare_ticks[1] + i * bench->calls);
        if (status == 0)
            status = slice_calls(bench, job, args, results->call_ticks + i * bench->calls);
    }
    bx_msg_destroy(args);
    return status;
}

static int worker(const struct bx_options *options, void *context)
{
    const struct pingpong *bench = context;

    return bench_pair_worker(options, bench->bare, bench->options->cpus, run_slices, bench);
}

/* Sorts each slice's ticks; gives the median of each. */
static void find_middles(uint32_t *ticks, size_t slices, size_t calls, double *middles)
{
    for (size_t i = 0; i < slices; i++) {
        bench_sort(ticks + i * calls, calls);
        middles[i] = bench_middle(ticks + i * calls, calls);
    }
}

static void report(const struct pingpong *bench)
{
    size_t slices = (size_t)bench->slices, calls = (size_t)bench->calls, all = slices * calls;
    double ns = bench_clock_ns_per_tick();
    double *call = calloc(slices * 8, sizeof *call);

    if (call == NULL)
        return;

    double *ratio_line = call + slices, *bare[2], *ratio[2], *over[2];
    const struct results *results = &bench->results;

    find_middles(results->call_ticks, slices, calls, call);
    for (size_t kind = 0; kind < 2; kind++) {
        bare[kind] = call + (2 + kind) * slices;
        ratio[kind] = call + (4 + kind) * slices;
        over[kind] = call + (6 + kind) * slices;
        find_middles(results->bare_ticks[kind], slices, calls, bare[kind]);
        for (size_t i = 0; i < slices; i++) {
            ratio[kind][i] = call[i] / bare[kind][i];
            over[kind][i] = call[i] - bare[kind][i];
        }
    }
    for (size_t i = 0; i < slices; i++)
        ratio_line[i] = call[i] / results->line_ticks[i];

    bool paused = bench_median(bare[1], slices) < bench_median(bare[0], slices);

    bench_sort(results->call_ticks, all);

    const uint32_t *sorted = results->call_ticks;

    bench_report_open(bench->options, "64 bytes there and back, one call at a time, both sides spinning");
    bench_report_string("clock", bench_clock_name(), "the clock, read once for each echo and each call");
    bench_report_number("clock_ns", bench_clock_cost_ns(), 1, "what a read of it costs");
    bench_report_number("clock_step_ns", bench_clock_step_ticks() * ns, 1,
                        "how finely it tells times apart");
    bench_report_number("slices", (double)slices, 0, "of each kind, in turn");
    bench_report_number("calls", (double)calls, 0, "in each");
    bench_report_number("crt_ns", bench_median(results->line_ticks, slices) * ns, 1,
                        "a bare cache line, there and back");
    bench_report_number("bare_p50_ns", bench_median(bare[paused], slices) * ns, 1,
                        "the same bytes echoed over two bare rings");
    bench_report_number("bare_pause", paused, 0, "1: it is faster with a pause between two polls");
    bench_report_number("call_p50_ns", bench_median(call, slices) * ns, 1,
                        "bx_rpc_sync of an inline handler");
    bench_report_number("call_p99_ns", bench_percentile(sorted, all, 99) * ns, 1, "");
    bench_report_number("call_p999_ns", bench_percentile(sorted, all, 99.9) * ns, 1, "");
    bench_report_number("call_max_ns", sorted[all - 1] * ns, 1, "");
    bench_report_number("ratio", bench_median(ratio[paused], slices), 3,
                        "call over echo, median over neighbouring slices");
    bench_report_number("ratio_crt", bench_median(ratio_line, slices), 3, "call over cache line");
    bench_report_number("over_ns", bench_median(over[paused], slices) * ns, 1, "call less echo, median likewise");
    bench_report_close();
    free(call);
}

int bench_pingpong(const struct bench_options *options)
{
    struct pingpong bench = {
        .options = options,
        .slices = options->slices != 0 ? options->slices : 40,
        .calls = options->calls != 0 ? options->calls : 10000,
    };
    size_t all = (size_t)bench.slices * (size_t)bench.calls;

    bench.results.line_ticks = bench_map((size_t)bench.slices * sizeof(double));
    bench.results.bare_ticks[0] = bench_map(all * sizeof(uint32_t));
    bench.results.bare_ticks[1] = bench_map(all * sizeof(uint32_t));
    bench.results.call_ticks = bench_map(all * sizeof(uint32_t));
    bench.bare = bench_bare_create(1);
    if (!bench_spawn(2, NULL, worker, &bench))
        return 1;
    report(&bench);
    return 0;
}

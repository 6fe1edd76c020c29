/* SPDX-License-Identifier: MIT */
/*
 * bxbench pingpong: one call at a time, both sides awake.
 *
 * Worker 0 runs, in turn, a slice of bare cache lines, two slices of bare ring echoes (with the echo process on the
 * callee's core; the second with a pause between two polls) and a slice of calls of worker 1. A call is compared with
 * the echo that is faster, by the medians of all slices. The latencies of echo and call are read from the same clock,
 * one read per round trip.
 */
#include "bxbench.h"

#define WARM_CALLS 1000

enum { LINE, ECHO, PAUSED, CALL, KINDS };

static int slice_line(struct bench_caller *caller, int kind, int64_t slice)
{
    const struct bench_run *run = caller->run;
    double ticks = bench_bare_line(run->bare, (uint64_t)run->calls);

    run->series[kind].middle[slice] = ticks;
    if (ticks > 0)
        return 0;
    bench_say("the bare cache line did not come back");
    return 1;
}

static int slice_echo(struct bench_caller *caller, int kind, int64_t slice)
{
    bench_bare_order(caller->run->bare, kind == ECHO ? BENCH_BARE_ECHO : BENCH_BARE_ECHO_PAUSED,
                     (uint64_t)(WARM_CALLS + caller->run->calls));
    return bench_each(caller, WARM_CALLS, bench_place(caller, kind, slice), bench_echo_bare, NULL);
}

static int slice_calls(struct bench_caller *caller, int kind, int64_t slice)
{
    return bench_each(caller, WARM_CALLS, bench_place(caller, kind, slice), bench_echo, NULL);
}

int bench_pingpong(struct bench_options *options)
{
    struct bench_run run = {
        .options = options, .slices = options->slices, .calls = options->calls, .workers = 2, .callers = 1,
        .with_bare = true, .kinds = { slice_line, slice_echo, slice_echo, slice_calls },
        .series_count = KINDS, .means = 1 << LINE
    };
    const struct bench_series *call = &run.series[CALL], *line = &run.series[LINE], *echo;
    bool paused;

    if (!bench_run_job(&run))
        return 1;
    paused = bench_middle_ns(&run.series[PAUSED]) < bench_middle_ns(&run.series[ECHO]);
    echo = &run.series[paused ? PAUSED : ECHO];
    bench_open(options, "64 bytes there and back, one call at a time, both sides spinning");
    bench_string("clock", bench_clock_name(), "the clock, read once for each echo and each call");
    bench_number("clock_ns", bench_clock_cost_ns(), 1, "what a read of it costs");
    bench_number("clock_step_ns", bench_clock_step_ticks() * bench_clock_ns_per_tick(), 1,
                 "how finely it tells times apart");
    bench_counts(&run);
    bench_number("crt_ns", bench_middle_ns(line), 1, "a bare cache line, there and back");
    bench_number("bare_p50_ns", bench_middle_ns(echo), 1, "the same bytes echoed over two bare rings");
    bench_number("bare_pause", paused, 0, "1: it is faster with a pause between two polls");
    bench_number("call_p50_ns", bench_middle_ns(call), 1, "bx_rpc_sync of an inline handler");
    bench_number("call_p99_ns", bench_percentile_ns(call, 99), 1, "");
    bench_number("call_p999_ns", bench_percentile_ns(call, 99.9), 1, "");
    bench_number("call_max_ns", bench_percentile_ns(call, 100), 1, "");
    bench_number("ratio", bench_ratio(call, echo), 3, "call over echo, median over neighbouring slices");
    bench_number("ratio_crt", bench_ratio(call, line), 3, "call over cache line");
    bench_number("over_ns", bench_over_ns(call, echo), 1, "call less echo, median likewise");
    bench_close();
    return 0;
}

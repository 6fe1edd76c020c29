/* SPDX-License-Identifier: MIT */
/*
 * bxbench fanin and batch: N callers of one callee, each with one call at a time.
 *
 * Worker 1 is the callee and serves; the others call. In a slice each caller makes the same number of calls of one
 * kind: bare frames over rings to one echo process that polls all rings in turn; calls of the inline echo; or calls
 * of a batch whose members are all callers. The kinds alternate, and all callers meet at a barrier before each slice.
 * A slice has a count and not a duration, because a batch waits for all its members: a caller that stopped by the
 * clock would block the others. The time of a slice is from the first caller's first call to the last caller's last.
 *
 * With more callers than cores the bare callers are no faster limit: they spin until the scheduler takes the core away,
 * one after the other, and their p99 shows it.
 */
#include "bxbench.h"

#define BATCH_FUNCTION "batch"
#define CALLEE 1
#define WARM_SHARE 5        /* the slice before the first is a fifth as long and does not count */

/* Kinds, and the series of their latencies; the series of their times of a call, of all callers, follow. */
enum { BARE, INLINE, BATCH, KINDS };
enum { BEGIN, END, COUNTS };    /* values, by caller; the callee's counters at the end: rows, bodies */

static int batch_body(struct bx_batch *batch, void *context)
{
    (void)context;
    for (size_t row = 0; row < bx_batch_rows(batch); row++) {
        struct bx_reader args = bx_batch_args(batch, row);
        const void *data = bx_read_bytes(&args, BENCH_MESSAGE_BYTES);

        if (data == NULL)
            bx_batch_fail_row(batch, row, args.error, NULL);
        else
            bx_msg_put_bytes(bx_batch_reply(batch, row), data, BENCH_MESSAGE_BYTES);
    }
    return 0;
}

static int register_batch(struct bx_job *job, void *context)
{
    int rc = bx_register_batch(job, BATCH_FUNCTION, batch_body, NULL, context);

    for (int rank = 0; rc == 0 && rank < bx_job_world_size(job); rank++)
        if (rank != CALLEE)
            rc = bx_batch_add_member(job, BATCH_FUNCTION, rank);
    return rc;
}

static int call_batch(struct bench_caller *caller)
{
    return bench_call(caller, BATCH_FUNCTION);
}

/* By one caller, when all have come to the end of the slice. */
static void note_slice(const struct bench_run *run, int kind, int64_t slice)
{
    double begin_ns = run->values[BEGIN][0], end_ns = run->values[END][0];

    for (int i = 1; i < run->callers; i++) {
        begin_ns = run->values[BEGIN][i] < begin_ns ? run->values[BEGIN][i] : begin_ns;
        end_ns = run->values[END][i] > end_ns ? run->values[END][i] : end_ns;
    }
    run->series[KINDS + kind].middle[slice] =
        (end_ns - begin_ns) / bench_clock_ns_per_tick() / (double)(run->callers * run->calls);
}

static int run_slice(struct bench_caller *caller, int kind, int64_t slice)
{
    const struct bench_run *run = caller->run;
    int64_t warm = slice < 0 ? run->calls / WARM_SHARE : 0;
    uint32_t *ticks = bench_place(caller, kind, slice);
    int status;

    if (kind == BARE && caller->index == 0)
        bench_bare_order(run->bare, BENCH_BARE_ECHO, (uint64_t)((slice < 0 ? warm : run->calls) * run->callers));
    pthread_barrier_wait(run->barrier);
    run->values[BEGIN][caller->index] = (double)bench_now_ns();
    status = kind == BARE     ? bench_each(caller, warm, ticks, bench_echo_bare, NULL)
             : kind == INLINE ? bench_each(caller, warm, ticks, bench_echo, NULL)
                              : bench_each(caller, warm, ticks, call_batch, NULL);
    run->values[END][caller->index] = (double)bench_now_ns();
    if (status != 0)
        return status;
    pthread_barrier_wait(run->barrier);
    if (slice >= 0 && caller->index == 0)
        note_slice(run, kind, slice);
    return 0;
}

static int read_counters(struct bench_caller *caller, int status)
{
    double *counts = caller->run->values[COUNTS];
    int rc;

    if (status != 0 || caller->index != 0)
        return status;
    rc = bench_counter(caller, "batch_rows", &counts[0]);
    if (rc == 0)
        rc = bench_counter(caller, "batches_run", &counts[1]);
    return rc < 0 ? bench_fail("bx_counter", rc) : 0;
}

static bool run_crowd(struct bench_run *run, const struct bench_options *options, int callers, bool with_batch)
{
    int64_t default_calls = 20000 / callers;
    int kinds = with_batch ? 3 : 2;

    *run = (struct bench_run){
        .options = options, .first = -1, .slices = options->slices,
        .calls = options->calls != 0 ? options->calls : default_calls > 500 ? default_calls : 500,
        .workers = callers + 1, .callers = callers, .with_bare = true,
        .kinds = { run_slice, run_slice, with_batch ? run_slice : NULL },
        .series_count = KINDS + kinds, .means = (with_batch ? 0U : 1U << BATCH) | 7U << KINDS,
        .setup = with_batch ? register_batch : NULL, .end = with_batch ? read_counters : NULL
    };
    return bench_run_job(run);
}

/* ---- Results --------------------------------------------------------------------------------------- */

static double per_second(const struct bench_run *run, int kind)
{
    return 1e9 / bench_middle_ns(&run->series[KINDS + kind]);
}

/* The rate of one kind over that of another. */
static double ratio(const struct bench_run *run, int kind, int over)
{
    return bench_ratio(&run->series[KINDS + over], &run->series[KINDS + kind]);
}

static double us(const struct bench_run *run, int kind, double percent)
{
    return bench_percentile_ns(&run->series[kind], percent) / 1000;
}

static void report_row(const void *context, int index)
{
    const struct bench_run *run = (const struct bench_run *)context + index;

    bench_number("callers", run->callers, 0, "processes, one call at a time each");
    bench_number("bare_per_s", per_second(run, BARE), 0, "echoes over bare rings, all callers");
    bench_number("bare_p99_us", us(run, BARE, 99), 2, "");
    bench_number("calls_per_s", per_second(run, INLINE), 0, "bx_rpc_sync of an inline handler, all callers");
    bench_number("p50_us", us(run, INLINE, 50), 2, "");
    bench_number("p99_us", us(run, INLINE, 99), 2, "");
    bench_number("ratio_bare", ratio(run, INLINE, BARE), 3, "calls over echoes");
}

int bench_fanin(struct bench_options *options)
{
    static const int counts[] = { 1, 2, 4, 10 };
    static struct bench_run runs[4];        /* measured before printing: a failure leaves no partial JSON */
    int rows = options->callers != 0 ? 1 : 4;

    for (int i = 0; i < rows; i++)
        if (!run_crowd(&runs[i], options, options->callers != 0 ? (int)options->callers : counts[i], false))
            return 1;
    bench_open(options, "64 bytes there and back, several callers of one callee");
    bench_number("slices", (double)options->slices, 0, "of each kind, in turn");
    if (options->callers != 0)
        report_row(runs, 0);
    if (options->json || options->callers == 0)
        bench_rows("rows", rows, report_row, runs);
    bench_close();
    return 0;
}

int bench_batch(struct bench_options *options)
{
    static struct bench_run run;

    if (!run_crowd(&run, options, options->callers != 0 ? (int)options->callers : 4, true))
        return 1;
    bench_open(options, "the same calls answered one by one and as batches");
    bench_number("callers", run.callers, 0, "members of the batch, one call at a time each");
    bench_counts(&run);
    bench_number("bare_per_s", per_second(&run, BARE), 0, "echoes over bare rings, all callers");
    bench_number("unbatched_calls_per_s", per_second(&run, INLINE), 0, "of an inline handler");
    bench_number("unbatched_p99_us", us(&run, INLINE, 99), 2, "");
    bench_number("batched_calls_per_s", per_second(&run, BATCH), 0, "of a batch of one row a caller");
    bench_number("batched_p99_us", us(&run, BATCH, 99), 2, "");
    bench_number("rows_per_batch", run.values[COUNTS][0] / run.values[COUNTS][1], 2,
                 "mean, by the callee's counters");
    bench_number("ratio", ratio(&run, BATCH, INLINE), 3, "batched over unbatched, median over neighbouring slices");
    bench_close();
    return 0;
}

/* SPDX-License-Identifier: MIT */
/*
 * bxbench fanin and batch: N callers of one callee, each with one call at a time.
 *
 * Rank 0 is the callee and serves; ranks 1 to N call. In a slice each caller makes the same number of calls of one
 * kind: bare frames over rings to one echo process that polls all rings in turn; calls of the inline echo; or calls
 * of a batch whose members are all callers. The kinds alternate, and all callers meet at a barrier before each slice.
 * A slice has a count and not a duration, because a batch waits for all its members: a caller that stopped by the
 * clock would block the others. The rate of a slice is its calls over the time from the first caller's first call to
 * the last caller's last.
 *
 * With more callers than cores the bare callers are no faster limit: they spin until the scheduler takes the core away,
 * one after the other, and their p99 shows it.
 */
#include "bare.h"
#include "bxbench.h"
#include "clock.h"
#include "process.h"
#include "report.h"
#include "statistics.h"
#include "worker.h"

#include <string.h>

#define BATCH_FUNCTION "batch"
#define WARM_SHARE 5        /* the slice before the first is a fifth as long and does not count */

enum kind { KIND_BARE, KIND_INLINE, KIND_BATCH, KINDS };

struct span {
    uint64_t begin_ns;
    uint64_t end_ns;
};

struct crowd {
    const struct bench_options *options;
    bool with_batch;
    int callers;
    int64_t slices;
    int64_t calls;
    struct bench_barrier *barrier;
    struct bench_bare *bare;
    struct span *spans;             /* [kind][slice][caller] */
    uint32_t *ticks[KINDS];         /* [slice][caller][call] */
    uint64_t *batch_rows;           /* the callee's counters at the end: rows, bodies */
};

struct caller {
    struct crowd *crowd;
    struct bx_job *job;
    struct bx_msg *args;
    struct bench_bare_client client;
    const char *to;
    uint64_t number;
    int index;
};

/* ---- Workers ----------------------------------------------------------------------------------- */

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
    const struct crowd *crowd = context;
    int rc = bx_register_batch(job, BATCH_FUNCTION, batch_body, NULL, NULL);

    for (int rank = 1; rc == 0 && rank <= crowd->callers; rank++)
        rc = bx_batch_add_member(job, BATCH_FUNCTION, rank);
    return rc;
}

static int one_call(struct caller *caller, enum kind kind)
{
    int rc;

    caller->number++;
    if (kind != KIND_BARE)
        return bench_call(caller->job, caller->to, kind == KIND_BATCH ? BATCH_FUNCTION : BENCH_FUNCTION,
                          caller->args, caller->number);
    rc = bench_bare_send(&caller->client, caller->number);
    if (rc == 0)
        rc = bench_bare_receive(&caller->client, caller->number);
    if (rc < 0)
        bench_fail("the bare echo", rc);
    return rc;
}

/* Slice -1 warms up. */
static int run_slice(struct caller *caller, enum kind kind, int64_t slice)
{
    struct crowd *crowd = caller->crowd;
    int64_t calls = slice < 0 ? crowd->calls / WARM_SHARE : crowd->calls;
    int64_t place = slice * crowd->callers + caller->index;
    uint32_t *ticks = slice < 0 ? NULL : crowd->ticks[kind] + place * crowd->calls;
    struct span span;

    if (kind == KIND_BARE && caller->index == 0)
        bench_bare_order(crowd->bare, BARE_ECHO, (uint64_t)(calls * crowd->callers));
    if (bench_barrier_wait(crowd->barrier, crowd->callers) < 0)
        return 1;
    span.begin_ns = bench_now_ns();
    for (int64_t i = 0; i < calls; i++) {
        uint64_t before = bench_ticks();

        if (one_call(caller, kind) < 0)
            return 1;
        if (ticks != NULL)
            ticks[i] = bench_ticks_since(before);
    }
    span.end_ns = bench_now_ns();
    if (slice >= 0)
        crowd->spans[(int64_t)kind * crowd->slices * crowd->callers + place] = span;
    return bench_barrier_wait(crowd->barrier, crowd->callers) < 0 ? 1 : 0;
}

static int run_caller(struct crowd *crowd, const struct bx_options *options, int callee_cpu)
{
    struct caller caller = { .crowd = crowd, .index = options->rank - 1 };
    const struct bench_options *flags = crowd->options;
    int others = flags->cpu_count - 1;
    int turn = caller.index % others;       /* the first core, then the third, the fourth, ... */
    int status = 0;

    if (caller.index == 0 && bench_bare_start(crowd->bare, callee_cpu) < 0)
        return 1;
    if (bench_worker_start(options, flags->cpus[turn == 0 ? 0 : turn + 1], NULL, NULL, &caller.job) != 0)
        return 1;
    bench_bare_client_init(&caller.client, crowd->bare, caller.index);
    caller.to = bx_worker_name(caller.job, 0);
    caller.args = bx_msg_create(BENCH_MESSAGE_BYTES);
    if (caller.args == NULL)
        status = bench_fail("bx_msg_create", -12);
    for (int64_t slice = -1; status == 0 && slice < crowd->slices; slice++)
        for (int kind = KIND_BARE; status == 0 && kind <= (crowd->with_batch ? KIND_BATCH : KIND_INLINE);
             kind++)
            status = run_slice(&caller, (enum kind)kind, slice);
    if (status == 0 && caller.index == 0 && bench_bare_stop(crowd->bare) < 0)
        status = 1;
    bx_msg_destroy(caller.args);
    return bench_worker_end(caller.job, status);
}

static int run_callee(struct crowd *crowd, const struct bx_options *options, int cpu)
{
    struct bx_job *job;
    int rc;

    if (bench_worker_start(options, cpu, crowd->with_batch ? register_batch : NULL, crowd, &job) != 0)
        return 1;
    rc = bx_job_serve(job);
    if (rc == 0 && ((rc = bx_counter(job, "batch_rows", &crowd->batch_rows[0])) < 0 ||
                    (rc = bx_counter(job, "batches_run", &crowd->batch_rows[1])) < 0))
        return bench_worker_end(job, bench_fail("bx_counter", rc));
    return bench_worker_end(job, rc < 0 ? bench_fail(bx_job_name(job), rc) : 0);
}

static int worker(const struct bx_options *options, void *context)
{
    struct crowd *crowd = context;
    int callee_cpu = crowd->options->cpus[1];

    return options->rank == 0 ? run_callee(crowd, options, callee_cpu)
                              : run_caller(crowd, options, callee_cpu);
}

/* ---- Results ----------------------------------------------------------------------------------- */

static bool run_crowd(struct crowd *crowd, const struct bench_options *options, int callers)
{
    int64_t default_calls = 20000 / callers;

    *crowd = (struct crowd){
        .options = options,
        .with_batch = crowd->with_batch,
        .callers = callers,
        .slices = options->slices != 0 ? options->slices : 20,
        .calls = options->calls != 0 ? options->calls : default_calls > 500 ? default_calls : 500,
    };

    size_t all = (size_t)(crowd->slices * crowd->callers);

    crowd->barrier = bench_map(sizeof *crowd->barrier);
    crowd->bare = bench_bare_create(callers);
    crowd->spans = bench_map(KINDS * all * sizeof(struct span));
    for (int kind = 0; kind < KINDS; kind++)
        crowd->ticks[kind] = kind == KIND_BATCH && !crowd->with_batch
                                 ? NULL
                                 : bench_map(all * (size_t)crowd->calls * sizeof(uint32_t));
    crowd->batch_rows = bench_map(2 * sizeof(uint64_t));
    return bench_spawn(callers + 1, NULL, worker, crowd);
}

static double slice_rate(const struct crowd *crowd, enum kind kind, int64_t slice)
{
    const struct span *spans = crowd->spans + ((int64_t)kind * crowd->slices + slice) * crowd->callers;
    uint64_t begin_ns = spans[0].begin_ns, end_ns = spans[0].end_ns;

    for (int i = 1; i < crowd->callers; i++) {
        if (spans[i].begin_ns < begin_ns)
            begin_ns = spans[i].begin_ns;
        if (spans[i].end_ns > end_ns)
            end_ns = spans[i].end_ns;
    }
    return (double)(crowd->calls * crowd->callers) * 1e9 / (double)(end_ns - begin_ns);
}

/* Medians over slices: of a kind's rate, and of its rate over another's. */
static double median_rate(const struct crowd *crowd, enum kind kind, enum kind over)
{
    double rates[BENCH_SLICES_MAX];

    for (int64_t i = 0; i < crowd->slices; i++) {
        rates[i] = slice_rate(crowd, kind, i);
        if (over != KINDS)
            rates[i] /= slice_rate(crowd, over, i);
    }
    return bench_median(rates, (size_t)crowd->slices);
}

static double tail_us(const struct crowd *crowd, enum kind kind, double percent)
{
    size_t all = (size_t)(crowd->slices * crowd->callers * crowd->calls);

    bench_sort(crowd->ticks[kind], all);
    return bench_percentile(crowd->ticks[kind], all, percent) * bench_clock_ns_per_tick() / 1000;
}

static void report_fanin(const struct crowd *crowd)
{
    bench_report_number("callers", crowd->callers, 0, "processes, one call at a time each");
    bench_report_number("bare_per_s", median_rate(crowd, KIND_BARE, KINDS), 0,
                        "echoes over bare rings, all callers");
    bench_report_number("bare_p99_us", tail_us(crowd, KIND_BARE, 99), 2, "");
    bench_report_number("calls_per_s", median_rate(crowd, KIND_INLINE, KINDS), 0,
                        "bx_rpc_sync of an inline handler, all callers");
    bench_report_number("p50_us", tail_us(crowd, KIND_INLINE, 50), 2, "");
    bench_report_number("p99_us", tail_us(crowd, KIND_INLINE, 99), 2, "");
    bench_report_number("ratio_bare", median_rate(crowd, KIND_INLINE, KIND_BARE), 3, "calls over echoes");
}

int bench_fanin(const struct bench_options *options)
{
    static const int counts[] = { 1, 2, 4, 10 };
    static struct crowd crowds[4];      /* measured before printing: a failure leaves no partial JSON */
    size_t rows = options->callers != 0 ? 1 : sizeof counts / sizeof *counts;

    for (size_t i = 0; i < rows; i++)
        if (!run_crowd(&crowds[i], options, options->callers != 0 ? (int)options->callers : counts[i]))
            return 1;
    bench_report_open(options, "64 bytes there and back, several callers of one callee");
    bench_report_number("slices", (double)crowds[0].slices, 0, "of each kind, in turn");
    if (options->callers != 0)
        report_fanin(&crowds[0]);
    if (options->json || options->callers == 0) {
        bench_report_rows_open("rows");
        for (size_t i = 0; i < rows; i++) {
            bench_report_row_open();
            report_fanin(&crowds[i]);
            bench_report_row_close();
        }
        bench_report_rows_close();
    }
    bench_report_close();
    return 0;
}

int bench_batch(const struct bench_options *options)
{
    static struct crowd crowd = { .with_batch = true };

    if (!run_crowd(&crowd, options, options->callers != 0 ? (int)options->callers : 4))
        return 1;
    bench_report_open(options, "the same calls answered one by one and as batches");
    bench_report_number("callers", crowd.callers, 0, "members of the batch, one call at a time each");
    bench_report_number("slices", (double)crowd.slices, 0, "of each kind, in turn");
    bench_report_number("calls", (double)crowd.calls, 0, "in each, of each caller");
    bench_report_number("bare_per_s", median_rate(&crowd, KIND_BARE, KINDS), 0,
                        "echoes over bare rings, all callers");
    bench_report_number("unbatched_calls_per_s", median_rate(&crowd, KIND_INLINE, KINDS), 0,
                        "of an inline handler");
    bench_report_number("unbatched_p99_us", tail_us(&crowd, KIND_INLINE, 99), 2, "");
    bench_report_number("batched_calls_per_s", median_rate(&crowd, KIND_BATCH, KINDS), 0,
                        "of a batch of one row a caller");
    bench_report_number("batched_p99_us", tail_us(&crowd, KIND_BATCH, 99), 2, "");
    bench_report_number("rows_per_batch", (double)crowd.batch_rows[0] / (double)crowd.batch_rows[1], 2,
                        "mean, by the callee's counters");
    bench_report_number("ratio", median_rate(&crowd, KIND_BATCH, KIND_INLINE), 3,
                        "batched over unbatched, median over neighbouring slices");
    bench_report_close();
    return 0;
}

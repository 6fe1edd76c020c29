/* SPDX-License-Identifier: MIT */
/*
 * bxbench rate: one caller with many calls in flight.
 *
 * A slice keeps --inflight calls in flight: it waits for the oldest and sends the next. Futures are waited for in the
 * order of their calls, and each reply is checked. With --cork it waits for a quarter of them and sends so many
 * together, by bx_rpc_many. Beside it runs a slice of the same frames over two bare rings, with as many in flight,
 * without and with a pause between two polls; the faster counts. With --ucx, five runs of ucx_perftest on the same
 * cores alternate with a fifth of the slices each: its rate is bimodal from run to run, so its median is reported.
 * UCX's active messages go one way and are not answered.
 */
#include "bare.h"
#include "bxbench.h"
#include "clock.h"
#include "process.h"
#include "report.h"
#include "statistics.h"
#include "ucx.h"
#include "worker.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define UCX_RUNS 5

struct rate {
    const struct bench_options *options;
    int64_t slices;             /* of one job */
    int64_t calls;
    int64_t inflight;
    double *bare_ticks[2];      /* a message's mean ticks in each slice: of this job's slices; [1]: with a pause */
    double *call_ticks;
    struct bench_bare *bare;
};

static int slice_bare(const struct rate *bench, struct bench_bare_client *client, enum bare_kind kind, double *ticks)
{
    static uint64_t sent, received;
    uint64_t last = sent + (uint64_t)bench->calls;
    uint64_t before = bench_ticks();
    int rc = 0;

    bench_bare_order(bench->bare, kind, (uint64_t)bench->calls);
    while (rc == 0 && received < last) {
        while (rc == 0 && sent < last && sent - received < (uint64_t)bench->inflight)
            rc = bench_bare_send(client, ++sent);
        if (rc == 0)
            rc = bench_bare_receive(client, ++received);
    }
    if (rc < 0)
        return bench_fail("the bare echo", rc);
    *ticks = (double)(bench_ticks() - before) / (double)bench->calls;
    return 0;
}

/* A slice's calls: a ring of futures, because a division by --inflight for each would be measured too. */
struct calls {
    struct bx_job *job;
    const char *to;
    struct bx_msg *const *args;
    struct bx_future *futures[BENCH_INFLIGHT_MAX];
    uint64_t inflight;
    uint64_t sent, done;
    uint64_t sent_at, done_at;          /* where in futures */
};

static uint64_t place_behind(const struct calls *calls, uint64_t place, uint64_t count)
{
    return place + count < calls->inflight ? place + count : place + count - calls->inflight;
}

/* Sends the next `count` calls, together if there are several. */
static int send_calls(struct calls *calls, uint64_t count)
{
    struct bx_future **futures = &calls->futures[calls->sent_at];
    int rc;

    for (uint64_t i = 0; i < count; i++)
        bench_fill(calls->args[i], calls->sent + i);
    rc = count == 1 ? bx_rpc_async(calls->job, calls->to, BENCH_FUNCTION, calls->args[0], NULL, futures)
                    : bx_rpc_many(calls->job, calls->to, BENCH_FUNCTION, count,
                                  (const struct bx_msg *const *)calls->args, NULL, futures);
    if (rc == 0) {
        calls->sent += count;
        calls->sent_at = place_behind(calls, calls->sent_at, count);
        return 0;
    }
    for (uint64_t i = 0; count > 1 && i < count; i++)
        bx_future_release(futures[i]);
    return bench_fail(count == 1 ? "bx_rpc_async" : "bx_rpc_many", rc);
}

static struct bx_future *take_oldest(struct calls *calls, uint64_t *number)
{
    struct bx_future *oldest = calls->futures[calls->done_at];

    *number = calls->done++;
    calls->done_at = place_behind(calls, calls->done_at, 1);
    return oldest;
}

/* Waits for the oldest call and checks its reply; releases the future in any case. */
static int finish(struct calls *calls)
{
    uint64_t number;
    struct bx_future *future = take_oldest(calls, &number);
    int rc = bx_future_wait(future, BENCH_WAIT_NS);

    if (rc < 0) {
        bench_say("call %llu: %s", (unsigned long long)number, bx_future_error_text(future));
    } else if (!bench_holds(bx_future_value(future), number)) {
        bench_say("call %llu was answered with something else", (unsigned long long)number);
        rc = -EPROTO;
    }
    bx_future_release(future);
    return rc;
}

/* The most calls that are sent together: a divisor of those in flight. */
static uint64_t at_once(const struct rate *bench)
{
    return bench->options->cork ? (uint64_t)bench->inflight / 4 : 1;
}

static int slice_calls(const struct rate *bench, struct bx_job *job, struct bx_msg *const *args, double *ticks)
{
    struct calls calls = { .job = job, .to = bx_worker_name(job, 1), .args = args,
                           .inflight = (uint64_t)bench->inflight };
    uint64_t count = (uint64_t)bench->calls, most = at_once(bench);
    uint64_t before = bench_ticks();
    int rc = 0;

    while (rc == 0 && calls.done < count) {
        while (rc == 0 && calls.sent < count && calls.sent - calls.done <= calls.inflight - most)
            rc = send_calls(&calls, most < count - calls.sent ? most : count - calls.sent);
        for (uint64_t last = calls.done + most; rc == 0 && calls.done < last && calls.done < calls.sent;)
            rc = finish(&calls);
    }
    *ticks = (double)(bench_ticks() - before) / (double)count;
    for (uint64_t number; calls.done < calls.sent;)
        bx_future_release(take_oldest(&calls, &number));
    return rc < 0 ? 1 : 0;
}

static int run_slices(const void *context, struct bx_job *job)
{
    const struct rate *bench = context;
    struct bx_msg *args[BENCH_INFLIGHT_MAX / 4];
    struct bench_bare_client client;
    double unused;
    int status = 0;

    for (uint64_t i = 0; i < at_once(bench); i++)
        if ((args[i] = bx_msg_create(BENCH_MESSAGE_BYTES)) == NULL)
            status = 1;

    bench_bare_client_init(&client, bench->bare, 0);
    if (status == 0)
        status = slice_calls(bench, job, args, &unused);    /* both sides' memory is warm afterwards */
    for (int64_t i = 0; status == 0 && i < bench->slices; i++) {
        status = slice_bare(bench, &client, BARE_ECHO, &bench->bare_ticks[0][i]);
        if (status == 0)
            status = slice_bare(bench, &client, BARE_ECHO_PAUSED, &bench->bare_ticks[1][i]);
        if (status == 0)
            status = slice_calls(bench, job, args, &bench->call_ticks[i]);
    }
    for (uint64_t i = 0; i < at_once(bench); i++)
        bx_msg_destroy(args[i]);
    return status;
}

static int worker(const struct bx_options *options, void *context)
{
    const struct rate *bench = context;

    return bench_pair_worker(options, bench->bare, bench->options->cpus, run_slices, bench);
}

/* A rate a second from a median of ticks. */
static double per_second(double *ticks, size_t count)
{
    return 1e9 / (bench_median(ticks, count) * bench_clock_ns_per_tick());
}

static void report(const struct rate *bench, size_t slices, double *ucx, size_t ucx_runs)
{
    double *ratio[2] = { calloc(2 * slices, sizeof **ratio) };

    if (ratio[0] == NULL)
        return;
    ratio[1] = ratio[0] + slices;
    for (size_t i = 0; i < 2 * slices; i++)
        ratio[i / slices][i % slices] = bench->bare_ticks[i / slices][i % slices] / bench->call_ticks[i % slices];

    bool paused = bench_median(bench->bare_ticks[1], slices) < bench_median(bench->bare_ticks[0], slices);
    double calls_per_s = per_second(bench->call_ticks, slices);

    bench_report_open(bench->options, "64 bytes there and back, many calls in flight from one caller");
    bench_report_number("inflight", (double)bench->inflight, 0, "calls under way");
    bench_report_number("sent_together", (double)at_once(bench), 0, "by one bx_rpc_many; 1: by bx_rpc_async");
    bench_report_number("slices", (double)slices, 0, "of each kind, in turn");
    bench_report_number("calls", (double)bench->calls, 0, "in each");
    bench_report_number("bare_frames_per_s", per_second(bench->bare_ticks[paused], slices), 0,
                        "the same frames over two bare rings, echoed");
    bench_report_number("bare_pause", paused, 0, "1: they are faster with a pause between two polls");
    bench_report_number("calls_per_s", calls_per_s, 0, "each future waited for");
    bench_report_number("ratio_bare", bench_median(ratio[paused], slices), 3, "calls over frames");
    if (bench->options->ucx) {
        bench_report_numbers("ucx_runs", ucx, ucx_runs, 0);

        double median = bench_median(ucx, ucx_runs);

        bench_report_number("ucx_msgs_per_s", median, 0, "ucx_perftest -t ucp_am_bw, one way, median");
        bench_report_number("ratio_ucx", calls_per_s / median, 2, "calls over UCX's messages");
    }
    bench_report_close();
    free(ratio[0]);
}

int bench_rate(const struct bench_options *options)
{
    int64_t runs = options->ucx ? UCX_RUNS : 1;
    int64_t slices = options->slices != 0 ? options->slices : 20;
    struct rate bench = {
        .options = options,
        .slices = (slices + runs - 1) / runs,
        .calls = options->calls != 0 ? options->calls : 100000,
        .inflight = options->inflight != 0 ? options->inflight : 64,
    };
    double ucx[UCX_RUNS];

    if (options->cork && bench.inflight % 4 != 0) {
        bench_say("--cork sends a quarter of the calls in flight together: --inflight must be a multiple of 4");
        return 2;
    }

    size_t all = (size_t)(bench.slices * runs);
    double *bare_ticks = bench_map(2 * all * sizeof(double)), *call_ticks = bench_map(all * sizeof(double));

    for (int64_t run = 0; run < runs; run++) {
        if (options->ucx && (ucx[run] = bench_ucx_rate(options)) <= 0)
            return 1;
        bench.bare = bench_bare_create(1);
        for (int i = 0; i < 2; i++)
            bench.bare_ticks[i] = bare_ticks + (size_t)i * all + run * bench.slices;
        bench.call_ticks = call_ticks + run * bench.slices;
        if (!bench_spawn(2, NULL, worker, &bench))
            return 1;
    }
    bench.bare_ticks[0] = bare_ticks;
    bench.bare_ticks[1] = bare_ticks + all;
    bench.call_ticks = call_ticks;
    report(&bench, all, ucx, (size_t)runs);
    return 0;
}

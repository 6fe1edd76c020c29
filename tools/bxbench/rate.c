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
#include "bxbench.h"

#include <errno.h>
#include <stdlib.h>

#define UCX_RUNS 5

enum { BARE, PAUSED, CALLS, KINDS };    /* series: mean ticks of a message in each slice */

static int slice_bare(struct bench_caller *caller, int kind, int64_t slice)
{
    const struct bench_run *run = caller->run;
    uint64_t sent = 0, received = 0, last = (uint64_t)run->calls, before = bench_ticks();
    int rc = 0;

    bench_bare_order(run->bare, kind == BARE ? BENCH_BARE_ECHO : BENCH_BARE_ECHO_PAUSED, last);
    while (rc == 0 && received < last) {
        while (rc == 0 && sent < last && sent - received < (uint64_t)run->options->inflight)
            rc = bench_bare_send(&caller->bare, ++sent);
        if (rc == 0)
            rc = bench_bare_receive(&caller->bare, ++received);
    }
    if (rc < 0)
        return bench_fail("the bare echo", rc);
    run->series[kind].middle[slice] = (double)(bench_ticks() - before) / (double)run->calls;
    return 0;
}

static struct bx_msg *rate_args[BENCH_INFLIGHT_MAX / 4];        /* of calls that are sent together */

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
    rc = count == 1 ? bx_rpc_async(calls->job, calls->to, BENCH_ECHO, calls->args[0], NULL, futures)
                    : bx_rpc_many(calls->job, calls->to, BENCH_ECHO, count,
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
static uint64_t at_once(const struct bench_run *run)
{
    return run->options->cork ? (uint64_t)run->options->inflight / 4 : 1;
}

int bench_rate_slice(struct bench_caller *caller, int kind, int64_t slice)
{
    const struct bench_run *run = caller->run;
    struct calls calls = { .job = caller->job, .to = caller->to, .args = rate_args,
                           .inflight = (uint64_t)run->options->inflight };
    uint64_t count = (uint64_t)run->calls, most = at_once(run);
    uint64_t before = bench_ticks();
    int rc = 0;

    while (rc == 0 && calls.done < count) {
        while (rc == 0 && calls.sent < count && calls.sent - calls.done <= calls.inflight - most)
            rc = send_calls(&calls, most < count - calls.sent ? most : count - calls.sent);
        for (uint64_t last = calls.done + most; rc == 0 && calls.done < last && calls.done < calls.sent;)
            rc = finish(&calls);
    }
    run->series[kind].middle[slice] = (double)(bench_ticks() - before) / (double)count;
    for (uint64_t number; calls.done < calls.sent;)
        bx_future_release(take_oldest(&calls, &number));
    return rc != 0;
}

int bench_rate_begin(struct bench_caller *caller, int kind)
{
    for (uint64_t i = 0; i < at_once(caller->run); i++)
        if ((rate_args[i] = bx_msg_create(BENCH_MESSAGE_BYTES)) == NULL)
            return bench_fail("bx_msg_create", -ENOMEM);
    return bench_rate_slice(caller, kind, caller->run->first);  /* both sides' memory is warm afterwards */
}

int bench_rate_end(struct bench_caller *caller, int status)
{
    for (uint64_t i = 0; i < at_once(caller->run); i++)
        bx_msg_destroy(rate_args[i]);
    return status;
}

static int begin(struct bench_caller *caller)
{
    return bench_rate_begin(caller, CALLS);
}

/* UCX's messages of 64 bytes a second; 0 after a line on stderr. */
static double ucx_rate(const struct bench_options *options)
{
    setenv("UCX_TLS", "shm,self", 1);
    return bench_ucx(options, &(struct bench_ucx){ "ucp_am_bw", "-n 1000000 -s 64", "NF", { "", "" }, "127.0.0.1" });
}

static void report(const struct bench_run *run, double *ucx)
{
    const struct bench_options *options = run->options;
    const struct bench_series *calls = &run->series[CALLS], *bare;
    bool paused = bench_middle_ns(&run->series[PAUSED]) < bench_middle_ns(&run->series[BARE]);
    double calls_per_s = 1e9 / bench_middle_ns(calls), median;

    bare = &run->series[paused ? PAUSED : BARE];
    bench_open(options, "64 bytes there and back, many calls in flight from one caller");
    bench_number("inflight", (double)options->inflight, 0, "calls under way");
    bench_number("sent_together", (double)at_once(run), 0, "by one bx_rpc_many; 1: by bx_rpc_async");
    bench_counts(run);
    bench_number("bare_frames_per_s", 1e9 / bench_middle_ns(bare), 0, "the same frames over two bare rings, echoed");
    bench_number("bare_pause", paused, 0, "1: they are faster with a pause between two polls");
    bench_number("calls_per_s", calls_per_s, 0, "each future waited for");
    bench_number("ratio_bare", bench_ratio(bare, calls), 3, "calls over frames");
    if (options->ucx) {
        bench_numbers("ucx_runs", ucx, UCX_RUNS, 0);
        median = bench_median(ucx, UCX_RUNS);
        bench_number("ucx_msgs_per_s", median, 0, "ucx_perftest -t ucp_am_bw, one way, median");
        bench_number("ratio_ucx", calls_per_s / median, 2, "calls over UCX's messages");
    }
    bench_close();
}

int bench_rate(struct bench_options *options)
{
    int64_t runs = options->ucx ? UCX_RUNS : 1, slices = (options->slices + runs - 1) / runs;
    struct bench_run run = {
        .options = options, .slices = slices * runs, .calls = options->calls, .workers = 2, .callers = 1,
        .with_bare = true, .kinds = { slice_bare, slice_bare, bench_rate_slice },
        .series_count = KINDS, .means = (1 << KINDS) - 1, .begin = begin, .end = bench_rate_end
    };
    double ucx[UCX_RUNS];

    if (options->cork && options->inflight % 4 != 0) {
        bench_say("--cork sends a quarter of the calls in flight together: --inflight must be a multiple of 4");
        return 2;
    }
    for (int64_t i = 0; i < runs; i++) {
        run.first = i * slices;
        run.last = run.first + slices;
        if ((options->ucx && (ucx[i] = ucx_rate(options)) <= 0) || !bench_run_job(&run))
            return 1;
    }
    report(&run, ucx);
    return 0;
}

/* SPDX-License-Identifier: MIT */
/*
 * bxbench rref: references to objects, beside plain calls.
 *
 * Worker 0 runs on the first core; worker 1, which owns the objects, and worker 2 on the second. Slices of these rounds
 * take turns:
 *
 *     call      bx_rpc_sync of an empty function
 *     create    bx_remote, and bx_rref_wait until the object is there
 *     call_on   bx_rref_sync of an empty method
 *     pass_on   a call to worker 2 with the reference as its argument: worker 2 enters it at worker 1, and drops it
 *     delete    bx_rref_release of the last reference, until the object is destroyed (counted in shared memory)
 *
 * create and delete are the halves of the same rounds.
 */
#include "bxbench.h"
#include "clock.h"
#include "process.h"
#include "report.h"
#include "statistics.h"
#include "worker.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

enum round { CALL, CREATE, CALL_ON, PASS_ON, DELETE, ROUNDS };
#define WARM 20

static const char *const keys[ROUNDS] = { "call_ns", "create_ns", "call_on_ns", "pass_on_ns", "delete_ns" };
static const char *const texts[ROUNDS] = {
    "an empty call, for comparison", "bx_remote until the object is made", "an empty method on an object",
    "a call with the reference as its argument, to a third worker", "the last reference dropped, until the destructor",
};

struct shared {
    _Atomic uint64_t destroyed;
    double median_ns[ROUNDS][BENCH_SLICES_MAX];
};
struct rref_bench {
    const struct bench_options *options;
    int64_t slices, calls;
    struct shared *shared;
    uint32_t *ticks;
};

static struct shared *shared;

static void count_destroyed(void *object)
{
    (void)object;
    atomic_fetch_add(&shared->destroyed, 1);
}

static const struct bx_type type = { .name = "nothing", .destroy = count_destroyed };

static int make(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)args;
    return bx_msg_put_object(bx_request_job(request), reply, &type, context);
}

static int empty(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)request, (void)args, (void)reply, (void)context;
    return 0;
}

static int setup(struct bx_job *job, void *context)
{
    int rc = bx_register(job, "make", BX_INLINE, make, context);

    if (rc == 0)
        rc = bx_register(job, "empty", BX_INLINE, empty, NULL);
    return rc == 0 ? bx_register_method(job, &type, "method", BX_INLINE, empty, NULL) : rc;
}

/* ---- Worker 0 -------------------------------------------------------------------------------------- */

static int create(struct bx_job *job, struct bx_rref **rref)
{
    int rc = bx_remote(job, bx_worker_name(job, 1), "make", NULL, NULL, rref);

    return rc < 0 ? rc : bx_rref_wait(*rref, BENCH_WAIT_NS);
}

static int destroy(struct bx_rref *rref)
{
    uint64_t before = atomic_load(&shared->destroyed), until_ns = bench_now_ns() + BENCH_WAIT_NS;

    bx_rref_release(rref);
    while (atomic_load(&shared->destroyed) == before)
        if (bench_now_ns() > until_ns)
            return bx_fail(-ETIMEDOUT, "an object without references was not destroyed");
    return 0;
}

/* Rounds of one object; what else a round is made of is timed by itself. */
static int run_once(struct bx_job *job, enum round round, struct bx_rref *rref, struct bx_msg *args)
{
    switch (round) {
    case CALL:
        return bx_rpc_sync(job, bx_worker_name(job, 1), "empty", NULL, NULL, NULL);
    case CALL_ON:
        return bx_rref_sync(rref, "method", NULL, NULL, NULL);
    default:
        return bx_rpc_sync(job, bx_worker_name(job, 2), "empty", args, NULL, NULL);
    }
}

static double middle_ns(const struct rref_bench *bench, uint32_t *ticks)
{
    bench_sort(ticks, (size_t)bench->calls);
    return bench_middle(ticks, (size_t)bench->calls) * bench_clock_ns_per_tick();
}

static int run_slice(const struct rref_bench *bench, struct bx_job *job, enum round round, int64_t slice)
{
    struct bx_rref *rref = NULL;
    struct bx_msg *args = bx_msg_create(0);
    int rc = args == NULL ? -ENOMEM : create(job, &rref);

    if (rc == 0)
        rc = bx_msg_put_rref(args, rref);
    for (int64_t i = -WARM; rc == 0 && i < bench->calls; i++) {
        uint64_t before = bench_ticks();

        rc = run_once(job, round, rref, args);
        if (i >= 0)
            bench->ticks[i] = bench_ticks_since(before);
    }
    bx_msg_destroy(args);
    bx_rref_release(rref);
    if (rc == 0)
        bench->shared->median_ns[round][slice] = middle_ns(bench, bench->ticks);
    return rc;
}

static int run_lives(const struct rref_bench *bench, struct bx_job *job, int64_t slice)
{
    uint32_t *deleting = bench->ticks + bench->calls;
    int rc = 0;

    for (int64_t i = -WARM; rc == 0 && i < bench->calls; i++) {
        struct bx_rref *rref = NULL;
        uint64_t before = bench_ticks(), between;

        rc = create(job, &rref);
        between = bench_ticks();
        if (rc == 0)
            rc = destroy(rref);
        if (i < 0)
            continue;
        bench->ticks[i] = (uint32_t)(between - before);
        deleting[i] = bench_ticks_since(between);
    }
    if (rc < 0)
        return rc;
    bench->shared->median_ns[CREATE][slice] = middle_ns(bench, bench->ticks);
    bench->shared->median_ns[DELETE][slice] = middle_ns(bench, deleting);
    return 0;
}

static int run_slices(const struct rref_bench *bench, struct bx_job *job)
{
    static const enum round rounds[] = { CALL, CALL_ON, PASS_ON };
    int rc = 0;

    for (int64_t slice = 0; rc == 0 && slice < bench->slices; slice++) {
        for (size_t i = 0; rc == 0 && i < sizeof rounds / sizeof *rounds; i++)
            rc = run_slice(bench, job, rounds[i], slice);
        if (rc == 0)
            rc = run_lives(bench, job, slice);
    }
    return rc < 0 ? bench_fail("a round of references", rc) : 0;
}

static int worker(const struct bx_options *options, void *context)
{
    const struct rref_bench *bench = context;
    struct bx_job *job;

    shared = bench->shared;
    if (bench_worker_start(options, bench->options->cpus[options->rank == 0 ? 0 : 1], setup, NULL, &job) != 0)
        return 1;
    return options->rank == 0 ? bench_worker_end(job, run_slices(bench, job)) : bench_worker_serve(job);
}

int bench_rref(const struct bench_options *options)
{
    struct rref_bench bench = { .options = options, .slices = options->slices > 0 ? options->slices : 9,
                                .calls = options->calls > 0 ? options->calls : 2000 };
    double call_ns, median_ns[ROUNDS];

    bench.shared = bench_map(sizeof *bench.shared);
    bench.ticks = bench_map(2 * (size_t)bench.calls * sizeof *bench.ticks);
    if (!bench_spawn(3, NULL, worker, &bench))
        return 1;
    bench_report_open(options, "references to objects, beside a plain call");
    for (int round = 0; round < ROUNDS; round++) {
        median_ns[round] = bench_median(bench.shared->median_ns[round], (size_t)bench.slices);
        bench_report_number(keys[round], median_ns[round], 0, texts[round]);
    }
    call_ns = median_ns[CALL];
    bench_report_number("ratio_call_on", median_ns[CALL_ON] / call_ns, 2, "a call on an object over a plain call");
    bench_report_number("ratio_pass_on", median_ns[PASS_ON] / call_ns, 2, "passing a reference on over a plain call");
    bench_report_close();
    return 0;
}

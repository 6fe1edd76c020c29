/* SPDX-License-Identifier: MIT */
/*
 * bxbench rref: references to objects, beside plain calls.
 *
 * Worker 0 runs on the first core; worker 1, which owns the objects, and worker 2 on the second. Slices of these rounds
 * take turns:
 *
 *     call      bx_rpc_sync of an empty function
 *     call_on   bx_rref_sync of an empty method
 *     pass_on   a call to worker 2 with the reference as its argument: worker 2 enters it at worker 1, and drops it
 *     create    bx_remote, and bx_rref_wait until the object is there
 *     delete    bx_rref_release of the last reference, until the object is destroyed (counted in shared memory)
 *
 * create and delete are the halves of the same rounds.
 */
#include "bxbench.h"

#include <errno.h>

#define WARM 20

enum { CALL, CALL_ON, PASS_ON, CREATE, DELETE, SERIES };

static bxi_a64 *destroyed;      /* shared */

static void count_destroyed(void *object)
{
    (void)object;
    bxi_add_seq_cst(destroyed, 1);
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

static int create(const struct bench_caller *caller, struct bx_rref **rref)
{
    int rc = bx_remote(caller->job, caller->to, "make", NULL, NULL, rref);

    return rc < 0 ? rc : bx_rref_wait(*rref, BENCH_WAIT_NS);
}

static int destroy(struct bx_rref *rref)
{
    uint64_t before = bxi_load_seq_cst(destroyed), until_ns = bench_now_ns() + BENCH_WAIT_NS;

    bx_rref_release(rref);
    while (bxi_load_seq_cst(destroyed) == before)
        if (bench_now_ns() > until_ns)
            return bx_fail(-ETIMEDOUT, "an object without references was not destroyed");
    return 0;
}

static int call(struct bench_caller *caller)
{
    return bx_rpc_sync(caller->job, caller->to, "empty", NULL, NULL, NULL);
}

static int call_on(struct bench_caller *caller)
{
    return bx_rref_sync(caller->own, "method", NULL, NULL, NULL);
}

static int pass_on(struct bench_caller *caller)
{
    return bx_rpc_sync(caller->job, bx_worker_name(caller->job, 2), "empty", caller->args, NULL, NULL);
}

static int slice_one(struct bench_caller *caller, int kind, int64_t slice)
{
    uint32_t *ticks = bench_place(caller, kind, slice);
    struct bx_rref *rref = NULL;
    int rc = create(caller, &rref);

    bx_msg_clear(caller->args);
    if (rc == 0)
        rc = bx_msg_put_rref(caller->args, rref);
    caller->own = rref;
    if (rc == 0)
        rc = kind == CALL      ? bench_each(caller, WARM, ticks, call, NULL)
             : kind == CALL_ON ? bench_each(caller, WARM, ticks, call_on, NULL)
                               : bench_each(caller, WARM, ticks, pass_on, NULL);
    bx_msg_clear(caller->args);
    bx_rref_release(rref);
    return rc != 0 ? bench_fail("a round of references", rc) : 0;
}

static int slice_lives(struct bench_caller *caller, int kind, int64_t slice)
{
    uint32_t *creating = bench_place(caller, kind, slice), *deleting = bench_place(caller, DELETE, slice);
    int rc = 0;

    for (int64_t i = -WARM; rc == 0 && i < caller->run->calls; i++) {
        struct bx_rref *rref = NULL;
        uint64_t before = bench_ticks(), between;

        rc = create(caller, &rref);
        between = bench_ticks();
        if (rc == 0)
            rc = destroy(rref);
        if (i < 0)
            continue;
        creating[i] = bench_short_ticks(between - before);
        deleting[i] = bench_ticks_since(between);
    }
    return rc < 0 ? bench_fail("a round of references", rc) : 0;
}

int bench_rref(struct bench_options *options)
{
    struct bench_run run = {
        .options = options, .slices = options->slices, .calls = options->calls, .workers = 3, .callers = 1,
        .kinds = { slice_one, slice_one, slice_one, slice_lives }, .series_count = SERIES, .setup = setup
    };
    double median_ns[SERIES];

    destroyed = bench_map(sizeof *destroyed);
    if (!bench_run_job(&run))
        return 1;
    for (int i = 0; i < SERIES; i++)
        median_ns[i] = bench_middle_ns(&run.series[i]);
    bench_open(options, "references to objects, beside a plain call");
    bench_number("call_ns", median_ns[CALL], 0, "an empty call, for comparison");
    bench_number("create_ns", median_ns[CREATE], 0, "bx_remote until the object is made");
    bench_number("call_on_ns", median_ns[CALL_ON], 0, "an empty method on an object");
    bench_number("pass_on_ns", median_ns[PASS_ON], 0, "a call with the reference as its argument, to a third worker");
    bench_number("delete_ns", median_ns[DELETE], 0, "the last reference dropped, until the destructor");
    bench_number("ratio_call_on", median_ns[CALL_ON] / median_ns[CALL], 2, "a call on an object over a plain call");
    bench_number("ratio_pass_on", median_ns[PASS_ON] / median_ns[CALL], 2,
                 "passing a reference on over a plain call");
    bench_close();
    return 0;
}

/* SPDX-License-Identifier: MIT */
/*
 * bxbench autograd: a distributed backward pass whose operations are empty, beside the bare calls that it needs.
 *
 * A pass is a context with one call: worker 0 sends a variable to worker 1, which sends one back, so there are two
 * sends and two receives; each side has --nodes empty nodes in a row. A round is: create the context, the call,
 * bx_context_backward, end the context.
 *
 * The bare calls of a pass are those that its frames are made of, counted by both workers' counters in the run: calls
 * with a tensor each way or one way, and empty calls. Each kind is timed by itself in slices that take turns with the
 * passes: an empty call of an inline function, and a call of a blocking one with a tensor each way (as the forward
 * call, and the gradients' calls, which send one tensor and no reply tensor). bare_us = calls without tensors x the one
 * + calls with tensors x the other.
 */
#include "bxbench.h"
#include "clock.h"
#include "process.h"
#include "report.h"
#include "statistics.h"
#include "worker.h"

#include "boxcar_dist.h"

#include <errno.h>
#include <string.h>

enum kind { PASS, PASS_SHORT, EMPTY_CALL, TENSOR_CALL, KINDS };
enum { WARM = 20, TENSOR_CALLS = 3 };       /* the forward call, and the gradients' two */

struct shared {
    double median_ns[KINDS][BENCH_SLICES_MAX];
    uint64_t calls[2];                      /* of both workers, in `passes` passes */
    uint64_t passes;
};
struct autograd_bench {
    const struct bench_options *options;
    int64_t slices, calls, nodes;
    struct shared *shared;
    uint32_t *ticks;
};

static struct bx_dist *dist;
static struct bx_var *param;

static int pass_on(void *context, const struct bx_node_grads *grads)
{
    (void)context;
    grads->inputs[0] = bx_tensor_acquire(grads->outputs[0]);
    return 0;
}

/* `count` empty nodes in a row. */
static struct bx_var *chain(struct bx_tape *tape, struct bx_var *var, int64_t count)
{
    for (int64_t i = 0; i < count && var != NULL; i++) {
        struct bx_tensor *value = bx_var_value(var);
        struct bx_var *next = NULL;

        bx_var_custom(tape, &(struct bx_custom){ .name = "empty", .inputs = &var, .input_count = 1, .values = &value,
                                                 .output_count = 1, .backward = pass_on }, &next);
        var = next;
    }
    return var;
}

static int new_param(struct bx_job *job)
{
    struct bx_tensor *tensor = NULL;
    int rc = bx_tensor_create(job, BX_F32, 0, NULL, &tensor);

    if (rc < 0)
        return rc;
    *(float *)bx_tensor_data_mut(tensor) = 1;
    rc = bx_var_create(tensor, true, &param);
    bx_tensor_release(tensor);
    return rc;
}

/* ---- Worker 1 ------------------------------------------------------------------------------------------ */

static int forward(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *unused)
{
    struct bx_context *context = NULL;
    struct bx_tape *tape = NULL;
    int64_t nodes = bx_read_i64(args);
    int rc = bx_read_context(dist, args, &context);

    (void)request, (void)unused;
    if (rc == 0)
        rc = bx_tape_create(NULL, &tape);
    if (rc == 0)
        rc = bx_msg_put_var(reply, context, chain(tape, bx_read_var(context, tape, args), nodes));
    bx_tape_destroy(tape);
    bx_context_release(context);
    return rc;
}

static int empty(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)request, (void)args, (void)reply, (void)context;
    return 0;
}

static int tensor_back(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct bx_tensor *tensor = bx_var_acquire_value(param);
    int rc = bx_read_tensor(args) != NULL ? bx_msg_put_tensor(reply, tensor) : args->error;

    (void)request, (void)context;
    bx_tensor_release(tensor);
    return rc;
}

static int count_calls(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    uint64_t calls = 0;

    (void)args, (void)context;
    bx_counter(bx_request_job(request), "calls_sent", &calls);
    return bx_msg_put_u64(reply, calls);
}

static int setup(struct bx_job *job, void *context)
{
    int rc = bx_dist_create(job, &dist);

    (void)context;
    if (rc == 0)
        rc = bx_register(job, "forward", BX_BLOCKING, forward, NULL);
    if (rc == 0)
        rc = bx_register(job, "empty", BX_INLINE, empty, NULL);
    if (rc == 0)
        rc = bx_register(job, "tensor_back", BX_BLOCKING, tensor_back, NULL);
    return rc == 0 ? bx_register(job, "count_calls", BX_INLINE, count_calls, NULL) : rc;
}

/* ---- Worker 0 ------------------------------------------------------------------------------------------ */

static int run_pass(struct bx_job *job, struct bx_tape *tape, int64_t nodes)
{
    struct bx_msg *args = bx_msg_create(64), *reply = NULL;
    struct bx_context *context = NULL;
    struct bx_reader reader;
    struct bx_var *loss;
    int rc = bx_context_create(dist, &context);

    if (rc == 0)
        rc = bx_msg_put_i64(args, nodes);
    if (rc == 0)
        rc = bx_msg_put_context(args, context);
    if (rc == 0)
        rc = bx_msg_put_var(args, context, chain(tape, param, nodes));
    if (rc == 0)
        rc = bx_rpc_sync(job, bx_worker_name(job, 1), "forward", args, NULL, &reply);
    reader = bx_msg_reader(reply);
    if (rc == 0) {
        loss = bx_read_var(context, tape, &reader);
        rc = bx_context_backward(context, &loss, NULL, 1, false, 0);
    }
    bx_context_end(context);
    bx_tape_clear(tape);
    bx_msg_destroy(reply);
    bx_msg_destroy(args);
    return rc;
}

static int run_tensor_call(struct bx_job *job)
{
    struct bx_tensor *tensor = bx_var_acquire_value(param);
    struct bx_msg *args = bx_msg_create(64), *reply = NULL;
    int rc = bx_msg_put_tensor(args, tensor);

    if (rc == 0)
        rc = bx_rpc_sync(job, bx_worker_name(job, 1), "tensor_back", args, NULL, &reply);
    bx_tensor_release(tensor);
    bx_msg_destroy(reply);
    bx_msg_destroy(args);
    return rc;
}

static int run_once(const struct autograd_bench *bench, struct bx_job *job, struct bx_tape *tape, enum kind kind)
{
    switch (kind) {
    case PASS:
        return run_pass(job, tape, bench->nodes + 1);
    case PASS_SHORT:
        return run_pass(job, tape, 1);
    case EMPTY_CALL:
        return bx_rpc_sync(job, bx_worker_name(job, 1), "empty", NULL, NULL, NULL);
    default:
        return run_tensor_call(job);
    }
}

static int calls_so_far(struct bx_job *job, uint64_t calls[2])
{
    struct bx_msg *reply = NULL;
    struct bx_reader reader;
    int rc = bx_rpc_sync(job, bx_worker_name(job, 1), "count_calls", NULL, NULL, &reply);

    reader = bx_msg_reader(reply);
    calls[1] = bx_read_u64(&reader);
    bx_msg_destroy(reply);
    return rc < 0 ? rc : bx_counter(job, "calls_sent", &calls[0]);
}

static int run_slice(const struct autograd_bench *bench, struct bx_job *job, struct bx_tape *tape, enum kind kind,
                     int64_t slice)
{
    uint64_t before[2], after[2];
    int rc = calls_so_far(job, before);

    for (int64_t i = -WARM; rc == 0 && i < bench->calls; i++) {
        uint64_t at = bench_ticks();

        rc = run_once(bench, job, tape, kind);
        if (i >= 0)
            bench->ticks[i] = bench_ticks_since(at);
    }
    if (rc == 0)
        rc = calls_so_far(job, after);
    if (rc < 0)
        return rc;
    if (kind == PASS_SHORT) {
        bench->shared->calls[0] += after[0] - before[0] - 1;        /* that of calls_so_far */
        bench->shared->calls[1] += after[1] - before[1];
        bench->shared->passes += (uint64_t)(bench->calls + WARM);
    }
    bench_sort(bench->ticks, (size_t)bench->calls);
    bench->shared->median_ns[kind][slice] = bench_middle(bench->ticks, (size_t)bench->calls) *
                                            bench_clock_ns_per_tick();
    return 0;
}

static int run_slices(const struct autograd_bench *bench, struct bx_job *job)
{
    struct bx_tape *tape = NULL;
    int rc = new_param(job);

    if (rc == 0)
        rc = bx_tape_create(&(struct bx_tape_options){ .job = job }, &tape);
    for (int64_t slice = 0; rc == 0 && slice < bench->slices; slice++)
        for (int kind = 0; rc == 0 && kind < KINDS; kind++)
            rc = run_slice(bench, job, tape, (enum kind)kind, slice);
    if (rc < 0)
        bench_fail("a backward pass", rc);
    bx_tape_destroy(tape);
    bx_var_release(param);
    return rc < 0;
}

static int worker(const struct bx_options *options, void *context)
{
    const struct autograd_bench *bench = context;
    struct bx_job *job;
    int status;

    if (bench_worker_start(options, bench->options->cpus[options->rank], setup, NULL, &job) != 0)
        return 1;
    if (options->rank != 0 && new_param(job) < 0)
        return 1;
    status = options->rank == 0 ? bench_worker_end(job, run_slices(bench, job)) : bench_worker_serve(job);
    bx_dist_destroy(dist);
    return status;
}

static double median_us(const struct autograd_bench *bench, enum kind kind)
{
    return bench_median(bench->shared->median_ns[kind], (size_t)bench->slices) / 1e3;
}

static void report(const struct autograd_bench *bench)
{
    double calls = (double)(bench->shared->calls[0] + bench->shared->calls[1]) / (double)bench->shared->passes;
    double pass = median_us(bench, PASS_SHORT), empty_us = median_us(bench, EMPTY_CALL),
           tensor_us = median_us(bench, TENSOR_CALL);
    double bare = (calls - TENSOR_CALLS) * empty_us + TENSOR_CALLS * tensor_us;

    bench_report_open(bench->options, "a backward pass across two workers with empty operations, beside its bare "
                                      "calls");
    bench_report_number("us_per_pass", pass, 2, "2 sends, 2 receives, one node on each side");
    bench_report_number("us_per_node", (median_us(bench, PASS) - pass) / (2.0 * (double)bench->nodes), 3,
                        "each further node: recorded, found, run, freed");
    bench_report_number("calls_per_pass", calls, 1, "of both workers");
    bench_report_number("empty_call_us", empty_us, 2, "an empty call of an inline function");
    bench_report_number("tensor_call_us", tensor_us, 2, "a call of a blocking function, with a tensor each way");
    bench_report_number("bare_us", bare, 2, "the calls of a pass, by themselves, one after the other");
    bench_report_number("ratio", pass / bare, 2, "a pass over its bare calls");
    bench_report_close();
}

int bench_autograd(const struct bench_options *options)
{
    struct autograd_bench bench = { .options = options, .slices = options->slices > 0 ? options->slices : 9,
                                    .calls = options->calls > 0 ? options->calls : 300,
                                    .nodes = options->nodes > 0 ? options->nodes : 1000 };

    bench.shared = bench_map(sizeof *bench.shared);
    bench.ticks = bench_map((size_t)bench.calls * sizeof *bench.ticks);
    if (!bench_spawn(2, NULL, worker, &bench))
        return 1;
    report(&bench);
    return 0;
}

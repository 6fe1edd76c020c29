/* SPDX-License-Identifier: MIT */
/*
 * The driver of all subcommands: starts the bare echo and the job, pins the workers, and runs the slices. It uses only
 * the public header of Boxcar, so the figures are those of an ordinary program.
 */
#include "bxbench.h"

#include <errno.h>
#include <string.h>

#define COUNTER "counter"
#define BARE_STOP_NS UINT64_C(10000000000)

static int echo(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    const void *data = bx_read_bytes(args, BENCH_MESSAGE_BYTES);

    (void)request;
    (void)context;
    return data != NULL ? bx_msg_put_bytes(reply, data, BENCH_MESSAGE_BYTES) : args->error;
}

static int counter(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    const char *name = NULL;
    uint64_t value = 0;
    int rc = bx_read(args, "s", &name);

    (void)context;
    if (rc == 0)
        rc = bx_counter(bx_request_job(request), name, &value);
    return rc < 0 ? rc : bx_msg_put_u64(reply, value);
}

/* ---- What callers call ----------------------------------------------------------------------------- */

void bench_fill(struct bx_msg *args, uint64_t number)
{
    uint64_t words[BENCH_MESSAGE_BYTES / 8] = { number, ~number };

    bx_msg_clear(args);
    bx_msg_put_bytes(args, words, sizeof words);    /* its error is sticky: the call returns it */
}

bool bench_holds(const struct bx_msg *reply, uint64_t number)
{
    uint64_t words[BENCH_MESSAGE_BYTES / 8];

    if (bx_msg_bytes(reply) != sizeof words)
        return false;
    memcpy(words, bx_msg_data(reply), sizeof words);
    return words[0] == number && words[1] == ~number;
}

int bench_call(struct bench_caller *caller, const char *function)
{
    uint64_t number = ++caller->number;
    struct bx_msg *reply = NULL;

    bench_fill(caller->args, number);

    int rc = bx_rpc_sync(caller->job, caller->to, function, caller->args, NULL, &reply);

    if (rc < 0) {
        bench_fail(function, rc);
        return rc;
    }
    if (!bench_holds(reply, number)) {
        bench_say("%s: %s answered something else than call %llu sent", bx_job_name(caller->job), caller->to,
                  (unsigned long long)number);
        rc = -EPROTO;
    }
    bx_msg_destroy(reply);
    return rc;
}

int bench_call_all(struct bench_caller *caller)
{
    int size = bx_job_world_size(caller->job), rank = bx_job_rank(caller->job), rc = 0;

    for (int i = 1; rc == 0 && i < size; i++) {
        caller->to = bx_worker_name(caller->job, (rank + i) % size);
        rc = bench_call(caller, BENCH_ECHO);
    }
    return rc;
}

int bench_counter(struct bench_caller *caller, const char *name, double *value)
{
    uint64_t count = 0;
    int rc = bx_call(caller->job, caller->to, COUNTER, "s>u", name, &count);

    *value = (double)count;
    return rc;
}

int bench_copied(struct bench_caller *caller, double *bytes)
{
    static const char *const names[] = { "tensor_bytes_copied", "gpu_staged_bytes", "gpu_copied_bytes" };
    int rc = 0;

    *bytes = 0;
    for (int i = 0; rc == 0 && i < 3; i++) {
        uint64_t here = 0;
        double there;

        rc = bx_counter(caller->job, names[i], &here);
        if (rc == 0)
            rc = bench_counter(caller, names[i], &there);
        if (rc == 0)
            *bytes += (double)here + there;
    }
    return rc;
}

/* ---- Workers --------------------------------------------------------------------------------------- */

static bool all_call(const struct bench_run *run)
{
    return run->callers == run->workers;
}

/* The core of a callee and the bare echo. */
static const int *callee_cpu(const struct bench_run *run)
{
    return &run->options->cpus[run->options->cpu_count > 1 ? 1 : 0];
}

/* Callers run on the first core, then the third, the fourth, ... */
static int pin(const struct bench_run *run, const struct bench_caller *caller)
{
    const struct bench_options *options = run->options;
    int others = options->cpu_count > 1 ? options->cpu_count - 1 : 1, turn = caller->index % others;
    int rc = all_call(run)        ? bench_pin(options->cpus, options->cpu_count)
             : caller->index >= 0 ? bench_pin(&options->cpus[turn == 0 ? 0 : turn + 1], 1)
                                  : bench_pin(callee_cpu(run), 1);

    return rc < 0 ? bench_fail("sched_setaffinity", rc) : 0;
}

/* A worker with a core of its own is pinned behind bx_job_create: a job that is created with one core does not spin.
 * Workers that share all cores are pinned before it, so that their jobs count these. */
static int start_worker(const struct bench_run *run, const struct bx_options *options, struct bench_caller *caller)
{
    int rc;

    if (all_call(run) && pin(run, caller) != 0)
        return 1;
    if ((rc = bx_job_create(options, &caller->job)) < 0)
        return bench_fail("bx_job_create", rc);
    if ((rc = bx_register(caller->job, BENCH_ECHO, BX_INLINE, echo, NULL)) < 0 ||
        (rc = bx_register(caller->job, COUNTER, BX_INLINE, counter, NULL)) < 0 ||
        (run->setup != NULL && (rc = run->setup(caller->job, run->context)) < 0))
        return bench_fail("register", rc);
    if (!all_call(run) && pin(run, caller) != 0)
        return 1;
    rc = bx_job_start(caller->job);
    return rc < 0 ? bench_fail("bx_job_start", rc) : 0;
}

static int run_slices(struct bench_caller *caller)
{
    const struct bench_run *run = caller->run;
    int64_t last = run->last != 0 ? run->last : run->slices;
    int status;

    caller->to = bx_worker_name(caller->job, 1);
    caller->args = bx_msg_create(BENCH_MESSAGE_BYTES);
    if (caller->args == NULL)
        return bench_fail("bx_msg_create", -ENOMEM);
    if (run->bare != NULL)
        bench_bare_client_init(&caller->bare, run->bare, caller->index);
    status = run->begin != NULL ? run->begin(caller) : 0;
    for (int64_t slice = run->first; status == 0 && slice < last; slice++)
        for (int kind = 0; status == 0 && kind < BENCH_KINDS_MAX && run->kinds[kind] != NULL; kind++)
            status = run->kinds[kind](caller, kind, slice);
    if (run->end != NULL)
        status = run->end(caller, status);
    bx_msg_destroy(caller->args);
    return status;
}

static int worker(const struct bx_options *options, void *context)
{
    const struct bench_run *run = context;
    int rank = options->rank;
    bool calls = all_call(run) || rank == 0 || (rank > 1 && run->callers > 1);
    struct bench_caller caller = { .run = run, .job_name = options->job,
                                   .index = !calls ? -1 : all_call(run) || rank == 0 ? rank : rank - 1 };
    int status = start_worker(run, options, &caller), rc;

    if (status == 0 && calls)
        status = run_slices(&caller);
    else if (status == 0 && (rc = bx_job_serve(caller.job)) < 0)
        status = bench_fail(options->name, rc);
    /* After a failure it waits for no worker: the launcher informs the others. */
    if (status == 0 && (rc = bx_job_shutdown(caller.job, 0)) < 0)
        status = bench_fail("bx_job_shutdown", rc);
    bx_job_destroy(caller.job);
    if (run->after != NULL)
        run->after();
    return status;
}

/* A worker that fails leaves the others at it until the launcher ends them. */
static pthread_barrier_t *make_barrier(int callers)
{
    pthread_barrier_t *barrier = bench_map(sizeof *barrier);
    pthread_barrierattr_t attributes;

    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(barrier, &attributes, (unsigned)callers);
    return barrier;
}

bool bench_run_job(struct bench_run *run)
{
    struct bx_spawn_options options = { .world_size = run->workers, .options = &run->common };
    int rc;

    for (int i = 0; run->values == NULL && i < run->series_count; i++)
        bench_series_make(&run->series[i], (size_t)run->slices,
                          (run->means >> i & 1) != 0 ? 0 : (size_t)(run->callers * run->calls));
    if (run->values == NULL) {
        run->values = bench_map(BENCH_VALUES_MAX * sizeof *run->values);
        run->barrier = make_barrier(run->callers);
    }
    if (run->with_bare && (run->bare = bench_bare_start(run->callers, *callee_cpu(run))) == NULL)
        return false;
    rc = run->spawn != NULL ? run->spawn(&options, worker, run) : bx_spawn(&options, worker, run, NULL);
    if (rc < 0)
        bench_fail("bx_spawn", rc);
    if (run->with_bare && !bench_bare_stop(run->bare, rc < 0 ? 0 : BARE_STOP_NS))
        return false;
    for (int i = 0; rc >= 0 && i < run->series_count; i++)
        bench_series_close(&run->series[i]);
    return rc >= 0;
}

/* SPDX-License-Identifier: MIT */
/*
 * The Boxcar side of all benches: starting a pinned worker, the echo and its caller. It uses only the public header, so
 * the figures are those of an ordinary program.
 */
#include "worker.h"

#include "bare.h"
#include "bxbench.h"
#include "process.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int echo(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply,
                void *context)
{
    const void *data = bx_read_bytes(args, BENCH_MESSAGE_BYTES);

    (void)request;
    (void)context;
    return data != NULL ? bx_msg_put_bytes(reply, data, BENCH_MESSAGE_BYTES) : args->error;
}

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

int bench_call(struct bx_job *job, const char *to, const char *function, struct bx_msg *args,
               uint64_t number)
{
    struct bx_msg *reply = NULL;

    bench_fill(args, number);

    int rc = bx_rpc_sync(job, to, function, args, NULL, &reply);

    if (rc < 0) {
        bench_fail(function, rc);
        return rc;
    }
    if (!bench_holds(reply, number)) {
        bench_say("%s: %s answered something else than call %llu sent", bx_job_name(job), to,
                  (unsigned long long)number);
        rc = -EPROTO;
    }
    bx_msg_destroy(reply);
    return rc;
}

int bench_worker_start(const struct bx_options *options, int cpu, bench_setup_fn setup, void *context,
                       struct bx_job **job)
{
    struct bx_job *made = NULL;
    int rc = bx_job_create(options, &made);

    if (rc < 0)
        return bench_fail("bx_job_create", rc);
    if ((rc = bx_register(made, BENCH_FUNCTION, BX_INLINE, echo, NULL)) < 0 ||
        (setup != NULL && (rc = setup(made, context)) < 0)) {
        bench_fail("register", rc);
        goto destroy;
    }
    if (cpu >= 0 && (rc = bench_pin(cpu)) < 0) {
        bench_say("%s: cannot run on core %d: %s", options->name, cpu, strerror(-rc));
        goto destroy;
    }
    rc = bx_job_start(made);
    if (rc < 0) {
        bench_fail("bx_job_start", rc);
        goto destroy;
    }
    *job = made;
    return 0;

destroy:
    bx_job_destroy(made);
    return 1;
}

int bench_worker_end(struct bx_job *job, int status)
{
    /* After a failure it waits for no worker: the launcher informs the others. */
    if (status == 0) {
        int rc = bx_job_shutdown(job, 0);

        if (rc < 0)
            status = bench_fail("bx_job_shutdown", rc);
    }
    bx_job_destroy(job);
    return status;
}

int bench_worker_serve(struct bx_job *job)
{
    int rc = bx_job_serve(job);

    return bench_worker_end(job, rc < 0 ? bench_fail(bx_job_name(job), rc) : 0);
}

bool bench_spawn(int world_size, const struct bx_options *common, bx_worker_fn fn, void *context)
{
    struct bx_spawn_options options = { .world_size = world_size, .options = common };
    int rc = bx_spawn(&options, fn, context, NULL);

    if (rc < 0)
        bench_fail("bx_spawn", rc);
    return rc >= 0;
}

int bench_pair_worker(const struct bx_options *options, struct bench_bare *bare, const int cpus[2],
                      bench_slices_fn slices, const void *bench)
{
    struct bx_job *job;

    if (options->rank == 1)
        return bench_worker_start(options, cpus[1], NULL, NULL, &job) != 0 ? 1
                                                                           : bench_worker_serve(job);
    if (bench_bare_start(bare, cpus[1]) < 0 ||
        bench_worker_start(options, cpus[0], NULL, NULL, &job) != 0)
        return 1;

    int status = slices(bench, job);

    if (status == 0 && bench_bare_stop(bare) < 0)
        status = 1;
    return bench_worker_end(job, status);
}

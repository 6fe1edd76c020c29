/* SPDX-License-Identifier: MIT */
/*
 * call: two workers. Worker 0 calls a function of worker 1, once with arguments that it accepts and once with
 * arguments that it refuses. The text of the error comes back to the caller.
 */
#include <boxcar.h>

#include <inttypes.h>
#include <stdio.h>

/* Runs in worker 1, on the thread that makes progress. */
static int divide(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    int64_t a, b;
    int rc = bx_read(args, "ii", &a, &b);

    (void)request, (void)context;
    if (rc < 0)
        return rc;
    if (b == 0)
        return bx_fail(BX_E_HANDLER, "%" PRId64 " cannot be divided by 0", a);
    return bx_msg_put(reply, "i", a / b);
}

static int call(struct bx_job *job, int64_t a, int64_t b)
{
    int64_t quotient;
    int rc = bx_call(job, "worker1", "divide", "ii>i", a, b, &quotient);

    if (rc == 0)
        printf("%" PRId64 " / %" PRId64 " = %" PRId64 "\n", a, b, quotient);
    else
        printf("%s: %s\n", bx_error_name(rc), bx_error_text());
    return rc;
}

/* The body of each worker process. */
static int work(const struct bx_options *options, void *context)
{
    struct bx_job *job = NULL;
    int rc = bx_job_create(options, &job);

    (void)context;
    if (rc == 0)
        rc = bx_register(job, "divide", BX_INLINE, divide, NULL);
    if (rc == 0)
        rc = bx_job_start(job);
    if (rc == 0 && bx_job_rank(job) == 0) {
        rc = call(job, 84, 2);
        call(job, 84, 0);
    }
    /* Worker 1 answers calls in here until worker 0 is done. */
    if (rc == 0)
        rc = bx_job_shutdown(job, 0);
    if (rc < 0)
        fprintf(stderr, "worker %d: %s\n", options->rank, bx_error_text());
    bx_job_destroy(job);
    return rc < 0;
}

int main(void)
{
    return bx_spawn(&(struct bx_spawn_options){ .world_size = 2 }, work, NULL, NULL) < 0;
}

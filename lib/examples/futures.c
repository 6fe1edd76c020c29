/* SPDX-License-Identifier: MIT */
/*
 * futures: four workers. Worker 0 sends a call to each of the others before it waits for any, so they compute at the
 * same time. It counts the primes below 3,000,000.
 */
#include <boxcar.h>

#include <inttypes.h>
#include <stdio.h>

#define WORLD 4
#define HELPERS (WORLD - 1)
#define SHARE 1000000

static bool is_prime(int64_t n)
{
    for (int64_t d = 2; d * d <= n; d++)
        if (n % d == 0)
            return false;
    return n > 1;
}

/* A handler that computes for long is a blocking one: it runs on a pool of threads. */
static int count_primes(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    int64_t begin = bx_read_i64(args), end = bx_read_i64(args), count = 0;

    (void)request, (void)context;
    for (int64_t n = begin; n < end; n++)
        count += is_prime(n);
    return bx_msg_put_i64(reply, count);
}

static int ask(struct bx_job *job, int helper, struct bx_future **future)
{
    struct bx_msg *args = bx_msg_create(0);

    bx_msg_put_i64(args, (int64_t)helper * SHARE);
    bx_msg_put_i64(args, (int64_t)(helper + 1) * SHARE);
    /* The message is copied into the ring: it may be destroyed while the call is in flight. */
    int rc = bx_rpc_async(job, bx_worker_name(job, helper + 1), "count_primes", args, NULL, future);

    bx_msg_destroy(args);
    return rc;
}

static int lead(struct bx_job *job)
{
    struct bx_future *parts[HELPERS] = { NULL };
    int rc = 0;

    for (int i = 0; i < HELPERS && rc == 0; i++)
        rc = ask(job, i, &parts[i]);
    if (rc == 0) {
        struct bx_future *all = bx_future_all(job, parts, HELPERS);

        rc = bx_future_wait(all, BX_FOREVER);
        bx_future_release(all);
    }
    int64_t count = 0;

    for (int i = 0; i < HELPERS; i++) {
        struct bx_reader reader = bx_msg_reader(bx_future_value(parts[i]));

        count += bx_read_i64(&reader);
        bx_future_release(parts[i]);
    }
    if (rc == 0)
        printf("%" PRId64 " primes below %d\n", count, HELPERS * SHARE);
    return rc;
}

static int work(const struct bx_options *options, void *context)
{
    struct bx_job *job = NULL;
    int rc = bx_job_create(options, &job);

    (void)context;
    if (rc == 0)
        rc = bx_register(job, "count_primes", BX_BLOCKING, count_primes, NULL);
    if (rc == 0)
        rc = bx_job_start(job);
    if (rc == 0 && bx_job_rank(job) == 0)
        rc = lead(job);
    if (rc == 0)
        rc = bx_job_shutdown(job, 0);
    if (rc < 0)
        fprintf(stderr, "worker %d: %s\n", options->rank, bx_error_text());
    bx_job_destroy(job);
    return rc < 0;
}

int main(void)
{
    return bx_spawn(&(struct bx_spawn_options){ .world_size = WORLD }, work, NULL, NULL) < 0;
}

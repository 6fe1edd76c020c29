/* SPDX-License-Identifier: MIT */
/*
 * A program that is compiled for ThreadSanitizer, with a library that is not: calls, a callback, a tensor, threads. It
 * has no race. With an argument it has one, outside of the library, which must be reported.
 */
#include <boxcar.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define CALLS 100

static int done, raced;

static int add(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)request, (void)context;
    return bx_msg_put_i64(reply, bx_read_i64(args) + 1);
}

static void note(struct bx_future *future, void *context)
{
    (void)future, (void)context;
    done++;
}

static int call(struct bx_job *job, int64_t value)
{
    struct bx_msg *args = bx_msg_create(0);
    struct bx_future *future = NULL;
    int64_t answer = 0;
    int rc = bx_msg_put_i64(args, value);

    if (rc == 0)
        rc = bx_rpc_async(job, "worker1", value % 2 == 0 ? "add" : "add_later", args, NULL, &future);
    bx_msg_destroy(args);
    if (rc == 0)
        rc = bx_future_on_done(future, note, NULL);
    if (rc == 0)
        rc = bx_future_wait(future, BX_FOREVER);
    if (rc == 0) {
        struct bx_reader reader = bx_msg_reader(bx_future_value(future));

        answer = bx_read_i64(&reader);
    }
    bx_future_release(future);
    return rc < 0 || answer == value + 1 ? rc : -1;
}

static int use(struct bx_job *job)
{
    const int64_t shape[] = { 1000 };
    struct bx_tensor *tensor = NULL;
    int rc = bx_tensor_create(job, BX_F32, 1, shape, &tensor);

    if (rc == 0)
        memset(bx_tensor_data_mut(tensor), 0, 4000);
    bx_tensor_release(tensor);
    for (int64_t i = 0; rc == 0 && i < CALLS; i++)
        rc = call(job, i);
    return rc;
}

static int worker(const struct bx_options *options, void *context)
{
    struct bx_job *job = NULL;
    int rc = bx_job_create(options, &job);

    (void)context;
    if (rc == 0)
        rc = bx_register(job, "add", BX_INLINE, add, NULL);
    if (rc == 0)
        rc = bx_register(job, "add_later", BX_BLOCKING, add, NULL);
    if (rc == 0)
        rc = bx_job_start(job);
    if (rc == 0 && options->rank == 0)
        rc = use(job);
    if (rc == 0)
        rc = bx_job_shutdown(job, 0);
    bx_job_destroy(job);
    return rc < 0 || (options->rank == 0 && done != CALLS);
}

static void *race(void *context)
{
    raced++;
    return context;
}

int main(int argc, char **argv)
{
    const struct bx_spawn_options options = { .world_size = 2 };
    pthread_t thread[2];
    int rc = bx_spawn(&options, worker, NULL, NULL);

    (void)argv;
    if (rc < 0)
        fprintf(stderr, "%s: %s\n", bx_error_name(rc), bx_error_text());
    for (int i = 0; argc > 1 && i < 2; i++)
        pthread_create(&thread[i], NULL, race, NULL);
    for (int i = 0; argc > 1 && i < 2; i++)
        pthread_join(thread[i], NULL);
    return rc < 0;
}

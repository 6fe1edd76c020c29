/* SPDX-License-Identifier: MIT */
/*
 * lib/job/shutdown.c, lib/rpc/call.c, lib/rpc/pool.c: a worker that leaves without the others, and its calls and
 * requests that are still pending.
 */
#include "tests/harness/harness.h"

#include "rpc/rpc.h"

enum { ENTERED, RELEASED };             /* gates */
enum { RUN };                           /* values */

HARNESS_HANDLER(stay)
{
    harness_post(ENTERED);
    harness_await(RELEASED, 1);
    return 0;
}

/* Its thread ends while the pool is being stopped. */
HARNESS_HANDLER(end_in_the_stop)
{
    struct bxi_pool *pool = &bx_request_job(request)->rpc->pool;
    bool stop = false;

    harness_post(ENTERED);
    while (!stop) {
        sched_yield();
        pthread_mutex_lock(&pool->lock);
        stop = pool->stop;
        pthread_mutex_unlock(&pool->lock);
    }
    pthread_exit(NULL);
}

HARNESS_HANDLER(run)
{
    harness_add(RUN, 1);
    return 0;
}

static int setup(struct bx_job *job)
{
    return HARNESS_REGISTER(job, HARNESS_BLOCKING("end_in_the_stop", end_in_the_stop), HARNESS_BLOCKING("run", run),
                            HARNESS_BLOCKING("stay", stay));
}

/* ---- Replies that arrive while the worker leaves ------------------------------------------------- */

static void *lead(void *argument)
{
    HARNESS_EQ(bx_future_wait(argument, BX_FOREVER), BX_E_SHUTDOWN);
    return NULL;
}

/* Runs while the worker leaves and has just failed its calls. The other thread reads the reply now. */
static void let_the_reply_come(struct bx_future *future, void *context)
{
    struct bx_job *job = context;

    HARNESS_EQ(bx_future_error(future), BX_E_SHUTDOWN);
    harness_post(RELEASED);
    HARNESS_WAIT_WHILE(harness_counter(job, "late_replies") + harness_counter(job, "peers_corrupt") == 0);
}

HARNESS_TEST(leave, takes_a_reply_that_arrives_meanwhile_for_a_late_one, 20, .size = 2, .setup = setup)
{
    struct bx_future *promise = bx_future_create(job), *call = NULL;
    pthread_t thread;

    harness_leaves_by_itself();
    HARNESS_EQ(bx_rpc_async(job, bx_job_name(job), "stay", NULL, NULL, &call), 0);
    HARNESS_EQ(bx_future_on_done(call, let_the_reply_come, job), 0);
    bx_future_release(call);
    harness_await(ENTERED, 1);
    HARNESS_EQ(pthread_create(&thread, NULL, lead, promise), 0);
    HARNESS_EQ(bx_job_shutdown(job, HARNESS_MS), BX_E_TIMEOUT);
    HARNESS_EQ(pthread_join(thread, NULL), 0);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
    HARNESS_EQ(harness_counter(job, "late_replies"), 1);
    bx_future_release(promise);
    bx_job_destroy(job);
}

/* ---- The queue of the pool ----------------------------------------------------------------------- */

/* A request is counted before it is in the queue, so the counter does not tell. */
static bool one_is_queued(struct bx_job *job)
{
    struct bxi_pool *pool = &job->rpc->pool;
    bool queued;

    pthread_mutex_lock(&pool->lock);
    queued = pool->queued == 1;
    pthread_mutex_unlock(&pool->lock);
    return queued;
}

HARNESS_TEST(leave, runs_the_queue_though_the_only_thread_of_the_pool_ends, 20, .size = 2, .setup = setup,
             .options = { .pool_threads = 1 })
{
    OWN(future) *first = NULL, *second = NULL;

    harness_leaves_by_itself();
    HARNESS_EQ(bx_rpc_async(job, bx_job_name(job), "end_in_the_stop", NULL, NULL, &first), 0);
    HARNESS_EQ(bx_rpc_async(job, bx_job_name(job), "run", NULL, NULL, &second), 0);
    harness_await(ENTERED, 1);
    while (!one_is_queued(job))
        HARNESS_CHECK(bx_progress(job) >= 0);
    bx_job_destroy(job);
    HARNESS_EQ(bx_future_error(second), BX_E_SHUTDOWN);
    HARNESS_EQ(harness_load(RUN), 1);
}

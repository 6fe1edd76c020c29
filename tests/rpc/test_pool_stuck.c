/* SPDX-License-Identifier: MIT */
/*
 * lib/rpc/pool.c: handlers that wait for each other in a way that the engine does not see. An option sets how many may
 * run at a time. A queue that stands still is reported in the log, in the segment, and by shmstat why.
 */
#include "tests/harness/harness.h"
#include "tests/tools/stat_run.h"

#include "rpc/rpc.h"

#define CALLS 20

enum { ENTERED, LOGGED, ALL };          /* gates */
enum { MEET };                          /* values: how many handlers meet */

/* Returns when MEET handlers have entered it. */
HARNESS_HANDLER(meet)
{
    harness_post(ENTERED);
    harness_await(ENTERED, (uint32_t)harness_load(MEET));
    return 0;
}

static void take_log(int level, const char *text, void *context)
{
    (void)context;
    if (strstr(text, "threads of the pool of worker 'worker1' have been busy for a second") == NULL)
        return;
    HARNESS_EQ(level, 1);
    HARNESS_HAS(text, "all 16 threads");
    HARNESS_HAS(text, "BX_POOL_THREADS");
    harness_post(LOGGED);
}

static int setup(struct bx_job *job)
{
    bx_set_log(take_log, NULL);
    return bx_register(job, "meet", BX_BLOCKING, meet, NULL);
}

static void start_calls(struct bx_job *job, struct bx_future **futures, int first, int end)
{
    for (int i = first; i < end; i++)
        HARNESS_EQ(bx_rpc_async(job, "worker1", "meet", NULL,
                                &(struct bx_call_options){ .timeout_ns = BX_FOREVER }, &futures[i]), 0);
}

static void meet_all(struct bx_job *job)
{
    struct bx_future *futures[CALLS];

    harness_store(MEET, CALLS);
    start_calls(job, futures, 0, CALLS);
    harness_end_all(futures, CALLS, 0);
    HARNESS_EQ(harness_gate(ENTERED), CALLS);
}

HARNESS_WORLD(pool_stuck, runs_as_many_handlers_at_a_time_as_the_option_allows, 20, .size = 2, .setup = setup,
              .body = { meet_all }, .options = { .pool_threads = CALLS });

HARNESS_WORLD(pool_stuck, runs_as_many_handlers_at_a_time_as_the_environment_allows, 20, .size = 2, .setup = setup,
              .body = { meet_all }, .env = { "BX_POOL_THREADS=20" });

static void refuse(int threads, const char *environment, const char *part)
{
    struct bx_options options = { .job = harness_job_name(), .world_size = 2, .pool_threads = threads };
    struct bx_job *job = NULL;

    if (environment != NULL)
        setenv("BX_POOL_THREADS", environment, 1);
    cr_expect_eq(bx_job_create(&options, &job), -EINVAL, "%d, %s", threads, environment);
    cr_expect_not_null(strstr(bx_error_text(), part), "%s", bx_error_text());
}

Test(pool_stuck, refuses_an_impossible_number_of_threads, .timeout = 20)
{
    refuse(-1, NULL, "pool_threads is -1");
    refuse(257, NULL, "pool_threads is 257");
    refuse(0, "0", "BX_POOL_THREADS='0'");
    refuse(0, "257", "257");
    refuse(0, "12x", "12x");
}

/* A word about the pool's queue in worker 1's segment. */
static uint64_t shown(struct bx_job *job, size_t offset)
{
    const unsigned char *now = (const unsigned char *)&bxi_tables_view(job->rpc->peers[1]->view.control)->now;

    return bxi_load_acquire((bxi_a64 *)(uintptr_t)(now + offset));
}

static void explain(struct bx_job *job, struct bx_future *queued)
{
    unsigned long long id = ((struct bxi_call *)(void *)queued)->id;
    struct stat_run run = stat_run("why 0-1-%llu %s", id, bx_job_name(job) != NULL ? harness_job_name() : "");

    HARNESS_EQ(run.status, 0);
    HARNESS_HAS(run.text, "The request waits at worker1 for a thread of the pool.");
    HARNESS_HAS(run.text, "all 16 threads of its pool are busy, 4 requests wait.");
}

HARNESS_TEST(pool_stuck, queue_that_stands_still_is_logged_and_shown, 60, .size = 2, .setup = setup)
{
    struct bx_future *futures[CALLS];

    harness_store(MEET, CALLS);
    start_calls(job, futures, 0, BXI_POOL_READY);
    harness_await(ENTERED, BXI_POOL_READY);
    HARNESS_EQ(shown(job, offsetof(struct bxi_now, pool_stuck_ns)), 0);
    start_calls(job, futures, BXI_POOL_READY, CALLS);
    harness_await(LOGGED, 1);
    /* Worker 1 renews the number each second; it may not have read all four requests at first. */
    HARNESS_WAIT_WHILE(shown(job, offsetof(struct bxi_now, pool_waiting)) < CALLS - BXI_POOL_READY);
    HARNESS_CHECK(shown(job, offsetof(struct bxi_now, pool_stuck_ns)) != 0);
    HARNESS_EQ(shown(job, offsetof(struct bxi_now, pool_busy)), BXI_POOL_READY);
    explain(job, futures[CALLS - 1]);
    HARNESS_EQ(harness_gate(LOGGED), 1);        /* logged once, not every second */

    for (int i = BXI_POOL_READY; i < CALLS; i++)        /* releases the waiting handlers */
        harness_post(ENTERED);
    harness_end_all(futures, CALLS, 0);
    HARNESS_EQ(shown(job, offsetof(struct bxi_now, pool_stuck_ns)), 0);
}

/* All queued requests are cancelled, so none waits any more. */
HARNESS_TEST(pool_stuck, queue_that_was_cancelled_no_longer_stands_still, 60, .size = 2, .setup = setup)
{
    struct bx_future *futures[CALLS];

    harness_store(MEET, CALLS);
    start_calls(job, futures, 0, CALLS);
    harness_await(LOGGED, 1);
    for (int i = BXI_POOL_READY; i < CALLS; i++)
        harness_cancel(futures[i]);
    HARNESS_WAIT_WHILE(shown(job, offsetof(struct bxi_now, pool_stuck_ns)) != 0);
    for (int i = BXI_POOL_READY; i < CALLS; i++)
        harness_post(ENTERED);
    harness_end_all(futures, BXI_POOL_READY, 0);
}

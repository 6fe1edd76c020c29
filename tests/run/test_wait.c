/* SPDX-License-Identifier: MIT */
/*
 * lib/run/wait.c: threads that wait after their sleeper was destroyed, and the rows of waiting threads.
 */
#include "tests/harness/child.h"
#include "tests/harness/harness.h"

#include "rpc/rpc.h"

enum { RELEASED };                      /* gates */
enum { TID, LOOPS };                    /* values */

HARNESS_HANDLER(stay)
{
    harness_await(RELEASED, 1);
    return 0;
}

/* ---- In a destructor of the program ------------------------------------------------------------ */

static pthread_key_t key;
static struct bx_job *waits_in;
static struct bx_future *promise;               /* never completed */

/* Runs in two rounds of destructors. The first only asks for the second: by then the sleeper's destructor has run. */
static void wait_at_the_end(void *value)
{
    static _Thread_local int rounds;

    if (rounds++ == 0) {
        pthread_setspecific(key, value);
        return;
    }
    harness_store(TID, (uint64_t)gettid());
    HARNESS_EQ(bx_rpc_sync(waits_in, "worker1", "stay", NULL, NULL, NULL), 0);
}

/* How often a thread has armed the bell. */
static uint64_t armings(const struct bx_job *job)
{
    return bxi_load_seq_cst(job->run->bell.word) >> 2;
}

/* Releases "stay" when the thread that waits for it sleeps, or has armed the bell a thousand times without sleeping. */
static void let_go_of_a_sleeper(struct bx_job *job)
{
    uint64_t before;

    while (harness_load(TID) == 0)
        sched_yield();
    before = armings(job);
    while (armings(job) - before < 1000 && ((bxi_load_seq_cst(job->run->bell.word) & 3) != BXI_WHO_LEADER ||
                                            harness_thread_state(getpid(), harness_load(TID)) != 'S'))
        sched_yield();
    harness_store(LOOPS, armings(job) - before);
    harness_post(RELEASED);
}

static void end_with_a_wait(struct bx_job *job, int index)
{
    if (index == 0) {
        let_go_of_a_sleeper(job);
        return;
    }
    HARNESS_EQ(pthread_setspecific(key, job), 0);
    HARNESS_EQ(bx_future_wait(promise, HARNESS_MS), BX_E_TIMEOUT);      /* makes a sleeper */
}

static void wait_in_a_destructor(struct bx_job *job)
{
    int before;

    waits_in = job;
    promise = bx_future_create(job);
    HARNESS_EQ(bx_future_wait(promise, HARNESS_MS), BX_E_TIMEOUT);      /* makes the library's key before ours */
    HARNESS_EQ(pthread_key_create(&key, wait_at_the_end), 0);
    before = open_descriptors();
    harness_threads(job, 2, end_with_a_wait);
    HARNESS_CHECK(harness_load(LOOPS) < 1000);
    HARNESS_EQ(open_descriptors(), before);
    bx_future_release(promise);
}

Test(wait, sleeps_in_a_destructor_that_runs_after_that_of_the_library, .timeout = 20)
{
    for (int wait = BX_WAIT_AUTO; wait <= BX_WAIT_EPOLL; wait += BX_WAIT_EPOLL - BX_WAIT_AUTO) {
        harness_run(&(struct harness_world){
            .size = 2, .handlers = { HARNESS_BLOCKING("stay", stay) }, .body = { wait_in_a_destructor },
            .options = { .no_spin = true, .wait = (enum bx_wait)wait } });
        harness_reset();
    }
}

/* ---- Rows of waiting threads -------------------------------------------------------------------- */

HARNESS_TEST(wait, leaves_no_row_behind, 20, .size = 2, .options = { .no_spin = true })
{
    OWN(future) *future = bx_future_create(job);

    for (int i = 0; i < 3; i++)
        HARNESS_EQ(bx_future_wait(future, HARNESS_MS), BX_E_TIMEOUT);
    HARNESS_CHECK(bxi_load_seq_cst(&bxi_tables(job->control)->wait[0].since_ns) != 0);
    for (int i = 0; i < BXI_WAITS_MAX; i++)
        HARNESS_EQ(bxi_load_seq_cst(&bxi_tables(job->control)->wait[i].thread), 0);
    for (int word = 0; word < BXI_WAIT_WORDS; word++)
        HARNESS_EQ(bxi_load_seq_cst(&job->observe->wait_rows[word]), 0);
}

HARNESS_TEST(wait, in_a_forked_child_has_the_childs_thread_id, 20, .size = 2)
{
    int status = -1;

    HARNESS_EQ(bxi_thread_id(), (uint64_t)gettid());

    pid_t child = fork();

    if (child == 0)
        _exit(bxi_thread_id() == (uint64_t)gettid() ? 0 : 1);
    HARNESS_EQ(waitpid(child, &status, 0), child);
    HARNESS_EQ(status, 0);
}

/* SPDX-License-Identifier: MIT */
/*
 * lib/run/progress.c: own_loop's timerfd is never set to a later time, whichever threads change it at the same time.
 * That the background thread never sleeps beyond the first deadline is the simulator's (role).
 *
 * This file replaces timerfd_settime of the C library, so that a test can stop a thread in front of it.
 */
#include "tests/harness/harness.h"

#include "rpc/rpc.h"

#include <sys/timerfd.h>

enum { READY, DONE, CALLED, ENDED, WARM, RESTS };    /* gates */

/* A thread that sets this calls it once, before its next timerfd_settime. */
static _Thread_local void (*trap)(void);

int timerfd_settime(int fd, int flags, const struct itimerspec *when, struct itimerspec *before)
{
    void (*fn)(void) = trap;

    trap = NULL;
    if (fn != NULL)
        fn();
    return (int)syscall(SYS_timerfd_settime, fd, flags, when, before);
}

static int setup(struct bx_job *job)
{
    return HARNESS_REGISTER(job, HARNESS_INLINE("ping", harness_nothing), HARNESS_ASYNC("never", harness_never));
}

HARNESS_CALLBACK(note_end)
{
    if (bx_future_error(future) == BX_E_SHUTDOWN)
        return;                     /* the call with a deadline in an hour, when its job ends */
    HARNESS_EQ(bx_future_error(future), BX_E_TIMEOUT);
    harness_post(ENDED);
}

/* Begins a call that ends by its deadline. Its callback posts ENDED. */
static void call_never(struct bx_job *job, uint64_t timeout_ns)
{
    struct bx_call_options options = { .timeout_ns = timeout_ns };
    OWN(future) *future = NULL;

    HARNESS_EQ(bx_rpc_async(job, "worker1", "never", NULL, &options, &future), 0);
    HARNESS_EQ(bx_future_on_done(future, note_end, NULL), 0);
}

/* Runs the loop until that many calls have ended. It blocks for ever if the descriptor misses a deadline. */
static void loop_until_ended(struct bx_job *job, uint32_t calls)
{
    struct pollfd readable = { .fd = bx_job_fd(job), .events = POLLIN };

    while (harness_gate(ENDED) < calls) {
        HARNESS_EQ(poll(&readable, 1, -1), 1);
        HARNESS_CHECK(bx_progress(job) >= 0);
    }
}

/* Opens both rings. No frame arrives after that: only deadlines make the descriptor readable. */
static void warm_up(struct bx_job *job)
{
    struct pollfd readable = { .fd = bx_job_fd(job), .events = POLLIN };

    HARNESS_EQ(bx_rpc_sync(job, "worker1", "ping", NULL, NULL, NULL), 0);
    harness_post(WARM);
    harness_await(RESTS, 1);
    while (readable.fd >= 0 && poll(&readable, 1, 0) > 0)
        HARNESS_CHECK(bx_progress(job) >= 0);
}

/* Worker 1: answers "ping", then reads nothing until worker 0 is done. */
static void serve_warm_up(struct bx_job *job)
{
    while (harness_gate(WARM) == 0)
        HARNESS_CHECK(bx_progress(job) >= 0);
    harness_post(RESTS);
    harness_await(DONE, 1);
}

/* ---- Two threads set the timer ---------------------------------------------------------------- */

static struct bx_job *trapped_job;

/* Lets the other thread call. Returns when it has called, or waits for the lock that this thread holds. */
static void let_the_other_call(void)
{
    harness_post(READY);
    while (harness_gate(CALLED) == 0 && bxi_load_seq_cst(&trapped_job->run->lock.word) != 2)
        sched_yield();
}

static void call_when_let(struct bx_job *job, int index)
{
    if (index == 0) {
        harness_await(READY, 1);
        call_never(job, 20 * HARNESS_MS);
        harness_post(CALLED);
    } else {
        trap = let_the_other_call;
        call_never(job, 3600000 * HARNESS_MS);
        HARNESS_CHECK(trap == NULL);
    }
}

HARNESS_TEST(loop_timer, is_not_moved_to_a_later_call, 20, .size = 2, .setup = setup, .body = { NULL, serve_warm_up },
             .options = { .own_loop = true })
{
    trapped_job = job;
    warm_up(job);
    harness_threads(job, 2, call_when_let);
    loop_until_ended(job, 1);
    harness_post(DONE);
    harness_leaves_by_itself();
    bx_job_destroy(job);            /* the call with a deadline in an hour is still in flight */
}

static void call_or_loop(struct bx_job *job, int index)
{
    if (index == 0) {
        harness_await(READY, 1);
        call_never(job, 20 * HARNESS_MS);
        harness_post(CALLED);
    } else {
        call_never(job, HARNESS_MS);
        trap = let_the_other_call;      /* runs when the timer is disarmed after this call has ended */
        loop_until_ended(job, 2);
        HARNESS_CHECK(trap == NULL);
    }
}

HARNESS_TEST(loop_timer, is_not_disarmed_after_a_new_call_has_set_it, 20, .size = 2, .setup = setup,
             .body = { NULL, serve_warm_up }, .options = { .own_loop = true })
{
    trapped_job = job;
    warm_up(job);
    harness_threads(job, 2, call_or_loop);
    harness_post(DONE);
}

/* ---- A waiting thread reads the timerfd ------------------------------------------------------- */

HARNESS_TEST(loop_timer, is_set_again_after_a_waiting_thread_has_read_it, 20, .size = 2, .setup = setup,
             .body = { NULL, serve_warm_up }, .options = { .own_loop = true, .no_spin = true })
{
    struct bx_future *promise = bx_future_create(job);

    warm_up(job);
    for (uint32_t round = 0; round < 5; round++) {
        call_never(job, 5 * HARNESS_MS);
        call_never(job, 40 * HARNESS_MS);
        /* The leader fires the first deadline and reads the timerfd. */
        HARNESS_EQ(bx_future_wait(promise, 15 * HARNESS_MS), BX_E_TIMEOUT);
        loop_until_ended(job, 2 * round + 2);
    }
    bx_future_release(promise);
    harness_post(DONE);
}

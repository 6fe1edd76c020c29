/* SPDX-License-Identifier: MIT */
/*
 * lib/run/progress.c, lib/run/wait.c, lib/run/background.c: sleeping threads are woken for events that happen
 * meanwhile. The watchdog finds a lost wake-up a second later and counts it, as "timers_late" or "rescued". No test
 * waits for the clock: the harness checks that both counters are 0.
 *
 * Deadlines here are a few hundred milliseconds: longer than a thread may be late, shorter than a sleeper that was not
 * woken would sleep.
 */
#include "tests/harness/harness.h"

#include "run/drive.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#define DEADLINE_NS (300 * HARNESS_MS)

enum { READY, TIMED_OUT, DONE };            /* gates */

/* Answers when its caller's process sleeps for certain, or soon. */
HARNESS_HANDLER(answer_slowly)
{
    usleep(3000);
    return harness_echo(request, args, reply, context);
}

static int setup(struct bx_job *job)
{
    return HARNESS_REGISTER(job, HARNESS_INLINE("echo", harness_echo), HARNESS_BLOCKING("slow", answer_slowly),
                            HARNESS_ASYNC("hold", harness_never));
}

static void note_timeout(struct bx_future *future, void *context)
{
    (void)context;
    HARNESS_EQ(bx_future_error(future), BX_E_TIMEOUT);
    harness_post(TIMED_OUT);
}

static struct bx_future *begin(struct bx_job *job, const char *function, uint64_t timeout_ns)
{
    return harness_start(job, "worker1", function, harness_msg_i64(1), timeout_ns);
}

static bool background_sleeps(struct bx_job *job)
{
    uint64_t armed = bxi_load_seq_cst(&job->control->header.armed) & 3;

    return armed == BXI_WHO_BACKGROUND || armed == BXI_WHO_LAZY;
}

/* Until a thread of this worker leads, and sleeps. */
static void await_leader(struct bx_job *job)
{
    HARNESS_WAIT_WHILE((bxi_load_seq_cst(&job->control->header.armed) & 3) != BXI_WHO_LEADER);
}

/* No thread of the program waits in the library: the background thread sleeps and is woken for each new deadline. */
static void time_out_unwatched(struct bx_job *job)
{
    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 1), 1);
    for (uint32_t i = 1; i <= 3; i++) {
        struct bx_future *future;

        HARNESS_WAIT_WHILE(!background_sleeps(job));
        future = begin(job, "hold", DEADLINE_NS);
        HARNESS_EQ(bx_future_on_done(future, note_timeout, NULL), 0);
        bx_future_release(future);
        harness_await(TIMED_OUT, i);
    }
}

Test(late, a_sleeping_background_thread_meets_deadlines, .timeout = 30)
{
    for (int kind = 0; kind < 2; kind++) {
        harness_reset();
        harness_run(&(struct harness_world){
            .size = 2, .setup = setup, .body = { time_out_unwatched },
            .options = { .no_spin = true, .wait = kind == 0 ? BX_WAIT_AUTO : BX_WAIT_EPOLL } });
    }
}

/* One thread leads and sleeps until a later deadline. The other thread's deadline passes before that. */
static void wait_or_time_out(struct bx_job *job, int index)
{
    static struct bx_future *led;
    struct bx_future *future;

    if (index == 0) {
        led = begin(job, "hold", 3600000 * HARNESS_MS);
        bx_future_acquire(led);
        harness_post(READY);
        harness_end(led, BX_E_CANCELLED);
        return;
    }
    harness_await(READY, 1);
    await_leader(job);
    future = begin(job, "hold", DEADLINE_NS);
    HARNESS_EQ(bx_future_on_done(future, note_timeout, NULL), 0);
    bx_future_release(future);
    harness_await(TIMED_OUT, 1);
    harness_cancel(led);
}

HARNESS_TEST(late, a_deadline_is_met_while_another_thread_leads, 30, .size = 2, .setup = setup,
             .options = { .no_spin = true })
{
    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 1), 1);
    harness_threads(job, 2, wait_or_time_out);
}

/* Many deadlines at about the same time: none may wait for the next wake-up. */
HARNESS_TEST(late, many_deadlines_at_once_are_met, 30, .size = 2, .setup = setup, .options = { .no_spin = true })
{
    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 1), 1);
    for (int i = 0; i < 50; i++) {
        struct bx_future *future = begin(job, "hold", DEADLINE_NS + (uint64_t)(i % 7) * HARNESS_MS);

        HARNESS_EQ(bx_future_on_done(future, note_timeout, NULL), 0);
        bx_future_release(future);
    }
    harness_await(TIMED_OUT, 50);
}

/* A leader sleeps. Another thread of its process completes the future that it waits for. */
static void wait_or_complete(struct bx_job *job, int index)
{
    static struct bx_future *future;

    if (index == 0) {
        future = bx_future_create(job);
        bx_future_acquire(future);
        harness_post(READY);
        harness_end(future, 0);
        return;
    }
    harness_await(READY, 1);
    await_leader(job);
    HARNESS_EQ(bx_future_set(future, NULL), 0);
    bx_future_release(future);
}

HARNESS_TEST(late, a_sleeping_leader_is_woken_for_a_future_that_another_thread_completes, 30, .size = 2, .setup = setup,
             .options = { .no_spin = true })
{
    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 1), 1);
    harness_threads(job, 2, wait_or_complete);
}

/* The process was stopped, or got no CPU: the leader checks the timers before the background thread can have woken it.
 * That is not a late timer. This thread plays the leader, and holds the lock meanwhile. */
HARNESS_TEST(late, a_deadline_that_could_not_be_reported_in_time_is_not_counted, 30, .size = 2, .setup = setup,
             .options = { .no_spin = true })
{
    const struct bxi_role *role;
    struct bx_future *future;
    uint64_t due_ns;

    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 1), 1);
    HARNESS_WAIT_WHILE((role = bxi_take_role(job->run)) == NULL);
    bxi_bell_arm(&job->run->bell, BXI_WHO_LEADER);
    future = begin(job, "hold", DEADLINE_NS);
    due_ns = bxi_next_timer_ns(job->run);
    bxi_lock(&job->run->lock);
    HARNESS_WAIT_WHILE(bxi_now_ns() < due_ns + DEADLINE_NS);
    bxi_unlock(&job->run->lock);
    bxi_count_late(job->run, BX_FOREVER, job->run->bell_fd[1], NULL);
    HARNESS_EQ(harness_counter(job, "timers_late"), 0);
    bxi_bell_disarm(&job->run->bell);
    bxi_leave_role(role, true);
    harness_end(future, BX_E_TIMEOUT);
}

/* One thread leads, in a call that is answered by no one. The other follows, asleep; the first completes its calls. */
static void lead_or_follow(struct bx_job *job, int index)
{
    static struct bx_future *held;

    if (index == 0) {
        held = begin(job, "hold", BX_FOREVER);
        bx_future_acquire(held);
        harness_post(READY);
        harness_end(held, BX_E_CANCELLED);
        return;
    }
    harness_await(READY, 1);
    await_leader(job);
    for (int64_t i = 0; i < 10; i++)
        HARNESS_EQ(harness_call_i64(job, "worker1", "slow", i), i);
    harness_cancel(held);
}

HARNESS_TEST(late, a_follower_is_woken_for_its_reply_while_another_thread_leads, 30, .size = 2, .setup = setup,
             .options = { .no_spin = true })
{
    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 1), 1);
    harness_threads(job, 2, lead_or_follow);
}

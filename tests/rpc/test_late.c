/* SPDX-License-Identifier: MIT */
/*
 * lib/run/progress.c, lib/run/wait.c, lib/run/background.c: deadlines of a worker in which no thread waits, or none
 * could look in time. Who sleeps finds a lost wake-up a second later. One by a thread of its own process is counted, as
 * "timers_late" or "rescued": the harness checks that both counters are 0. The simulator (role, late) has threads that
 * wait beside each other.
 *
 * Deadlines here are a few hundred milliseconds: longer than a thread may be late, shorter than a sleeper that was not
 * woken would sleep.
 */
#include "tests/harness/harness.h"
#include "tests/harness/hostile.h"

#include "run/drive.h"

#define DEADLINE_NS (300 * HARNESS_MS)

enum { TIMED_OUT, NOTED };     /* gates */

static int setup(struct bx_job *job)
{
    return HARNESS_REGISTER(job, HARNESS_INLINE("echo", harness_echo), HARNESS_ASYNC("hold", harness_never));
}

HARNESS_CALLBACK(note_timeout)
{
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

/* ---- A bell that was not rung --------------------------------------------------------------------------- */

HARNESS_HANDLER(note)
{
    harness_post(NOTED);
    return 0;
}

static int setup_note(struct bx_job *job)
{
    return HARNESS_REGISTER(job, HARNESS_INLINE("note", note));
}

/* The first frame opens the ring. Who sleeps looks at rings once a second, and so finds the second one. */
static void rings_once(struct bx_job *job)
{
    const struct bxi_frame frame = { .kind = BXI_ONEWAY, .deadline_ns = BX_FOREVER };
    const bxi_a64 *armed = job->rpc->peers[0]->bell.word;

    HARNESS_CHECK(put_frame(job, &frame, NULL, 0));
    harness_await(NOTED, 1);
    HARNESS_WAIT_WHILE((bxi_load_relaxed(armed) & 3) == BXI_AWAKE);
    HARNESS_CHECK(put_unrung(job, &frame, NULL, 0));
}

static void reads_both(struct bx_job *job)
{
    (void)job;
    harness_await(READY, 1);
    strikes_now();
    harness_await(NOTED, 2);
    harness_post(FINISHED);
}

Test(late, a_frame_without_a_bell_is_read_within_a_second, .timeout = 30)
{
    run_hostile(setup_note, rings_once, reads_both);
}

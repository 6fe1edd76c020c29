/* SPDX-License-Identifier: MIT */
/*
 * lib/run/progress.c: a deadline that no thread could report in time, a frame whose bell was not rung. Who sleeps finds
 * a lost wake-up a second later. One by a thread of its own process is counted, as "timers_late" or "rescued": the
 * harness checks that both counters are 0. Who waits, and who wakes whom, is the simulator's (role, late).
 */
#include "tests/harness/harness.h"
#include "tests/harness/hostile.h"

#include "run/drive.h"

/* Longer than a thread may be late. */
#define DEADLINE_NS (300 * HARNESS_MS)

enum gate { NOTED };

/* The process was stopped, or got no CPU: the leader checks the timers before the background thread can have woken it.
 * That is not a late timer. This thread plays the leader, and holds the lock meanwhile. */
HARNESS_TEST(late, a_deadline_that_could_not_be_reported_in_time_is_not_counted, 30, .size = 2,
             .handlers = { HARNESS_INLINE("echo", harness_echo), HARNESS_ASYNC("hold", harness_never) },
             .options = { .no_spin = true })
{
    const struct bxi_role *role;
    struct bx_future *future;
    uint64_t due_ns;

    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 1), 1);
    HARNESS_WAIT_WHILE((role = bxi_take_role(job->run)) == NULL);
    bxi_bell_arm(&job->run->bell, BXI_WHO_LEADER);
    future = harness_start(job, "worker1", "hold", NULL, DEADLINE_NS);
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

    HARNESS_CHECK(put_frame(job, &frame, "", 0));
    harness_await(NOTED, 1);
    HARNESS_WAIT_WHILE((bxi_load_relaxed(armed) & 3) == BXI_AWAKE);
    HARNESS_CHECK(put_unrung(job, &frame, "", 0));
}

static void reads_both(struct bx_job *job)
{
    (void)job;
    harness_await(READY, 1);
    strikes_now();
    harness_await(NOTED, 2);
    harness_post(FINISHED);
}

Test(unrung, a_frame_is_read_within_a_second, .timeout = 30)
{
    run_hostile(setup_note, rings_once, reads_both);
}

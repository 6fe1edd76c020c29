/* SPDX-License-Identifier: MIT */
/*
 * lib/run/progress.c: a deadline that no thread could report in time. The watchdog finds a lost wake-up a second later
 * and counts it, as "timers_late" or "rescued": the harness checks that both counters are 0. Who waits, and who wakes
 * whom, is the simulator's (role, late).
 */
#include "tests/harness/harness.h"

#include "run/drive.h"

/* Longer than a thread may be late. */
#define DEADLINE_NS (300 * HARNESS_MS)

static int setup(struct bx_job *job)
{
    return HARNESS_REGISTER(job, HARNESS_INLINE("echo", harness_echo), HARNESS_ASYNC("hold", harness_never));
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

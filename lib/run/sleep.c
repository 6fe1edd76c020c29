/* SPDX-License-Identifier: MIT */
/*
 * Sleeping: the system calls behind it, the sleeper of the background thread, and the sleep of a leader.
 *
 * The background thread is the library's own, watches up to BXI_SLEEPER_FDS descriptors, and sleeps in io_uring. A
 * leader is a thread of the program as a rule and watches its bell alone, so it sleeps in ppoll(2), which is as fast
 * for one descriptor: both sides asleep, a call takes 1.14, 1.11, 1.14 times as long as the bare ping-pong, and with a
 * ring for each leader 1.10, 1.13, 1.06. A ring in it would disturb the program: the kernel ends a ring some 10 ms
 * after it is closed, and for that interrupts the thread that used it. A write that waits at a full pipe then returns
 * what it has written, without any signal, and Python with PYTHONUNBUFFERED lost the rest.
 */
#include "drive.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LATE_NS UINT64_C(250000000)
#define LATE_MS 250
#define HELD_UP_MS 1000

/* ---- the system's ------------------------------------------------------------------------------ */

static void wait_while_1(bxi_a32 *word, uint64_t deadline_ns)
{
    struct timespec until = { .tv_sec = (time_t)(deadline_ns / 1000000000),
                              .tv_nsec = (long)(deadline_ns % 1000000000) };

    syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, 1, deadline_ns == BX_FOREVER ? NULL : &until, NULL,
            FUTEX_BITSET_MATCH_ANY);
}

/* Not a cancellation point: bxi_wait has switched that off. */
static int sleep_on(struct pollfd *fds, nfds_t count, uint64_t timeout_ns)
{
    struct timespec timeout = { .tv_sec = (time_t)(timeout_ns / 1000000000),
                                .tv_nsec = (long)(timeout_ns % 1000000000) };

    return ppoll(fds, count, timeout_ns == BX_FOREVER ? NULL : &timeout, NULL);
}

static void yield(void)
{
    sched_yield();
}

const struct bxi_system bxi_real_system = {
    .now_ns = bxi_now_ns,
    .coarse_ns = bxi_coarse_ns,
    .thread_ns = bxi_thread_ns,
    .yield = yield,
    .create = bxi_sleeper_create,
    .destroy = bxi_sleeper_destroy,
    .kind = bxi_sleeper_kind,
    .watch = bxi_sleeper_watch,
    .forget = bxi_sleeper_forget,
    .wait = bxi_sleeper_wait,
    .sleep_on = sleep_on,
    .poll = poll,
    .wait_while_1 = wait_while_1,
};

/* ---- sleeps -------------------------------------------------------------------------------------- */

static const char *name_of(enum bxi_sleeper_kind kind)
{
    return kind == BXI_SLEEPER_URING ? "io_uring" : kind == BXI_SLEEPER_EPOLL ? "epoll" : "poll(2)";
}

/* Counts a sleep that has ended, and shows it to the host. */
static void woke(struct bxi_run *run, enum bxi_sleeps who, enum bxi_sleeps_by by, bool rung, uint64_t began_ns)
{
    run->host->woke(run->context, who, by, rung, began_ns);
    bxi_add(&run->counters[BXI_C_wakeups], 1);
}

int bxi_sleep(struct bxi_run *run, struct bxi_sleeper *sleeper, uint64_t timeout_ns, uint64_t *tokens, bool *failed)
{
    const struct bxi_system *system = run->system;
    enum bxi_sleeper_kind before = system->kind(sleeper);
    uint64_t began_ns = run->host->sleeps(run->context, BXI_SLEEPS_BACKGROUND);
    int count = system->wait(sleeper, timeout_ns, tokens, BXI_SLEEPER_FDS);
    enum bxi_sleeper_kind after = system->kind(sleeper);
    bool uring = after == BXI_SLEEPER_URING;

    bxi_add(&run->counters[uring ? BXI_C_waits_uring : BXI_C_waits_epoll], 1);
    woke(run, BXI_SLEEPS_BACKGROUND, uring ? BXI_SLEEPS_BY_URING : BXI_SLEEPS_BY_EPOLL, count > 0, began_ns);
    if (after != before)
        bxi_log(NULL, 1, "a thread of worker '%s' sleeps with %s from now on: %s has failed", run->name, name_of(after),
                name_of(before));
    if (count < 0 && !*failed)
        bxi_log(NULL, 0, "a thread of worker '%s' cannot sleep until a doorbell rings (%s), and looks every 10 ms "
                   "instead", run->name, bx_strerror(count));
    *failed |= count < 0;
    return count;
}

bool bxi_sleep_as_leader(const struct bxi_role *role, uint64_t timeout_ns)
{
    struct bxi_run *run = bxi_run_of(role);
    struct pollfd fds[] = { { .fd = run->bell_fd[1], .events = POLLIN }, { .fd = run->loop_fd, .events = POLLIN } };
    uint64_t began_ns = run->host->sleeps(run->context, BXI_SLEEPS_LEADER);
    bool rung = run->system->sleep_on(fds, 2, timeout_ns) > 0;     /* it passes over a loop_fd of -1 */

    if (fds[0].revents != 0)
        bxi_bell_drain(run->bell_fd[1]);
    if (fds[1].revents != 0)
        bxi_read_loop(run);
    woke(run, BXI_SLEEPS_LEADER, BXI_SLEEPS_BY_POLL, rung, began_ns);
    return rung;
}

/* ---- late wake-ups ----------------------------------------------------------------------------- */

/* Two things are announced by ringing: a deadline that is set before the end of a sleep, and the thread that makes a
 * waiter ready rings. If the bell comes while this polls it, the thread that rings was held up: a busy machine is not
 * a lost wake-up. The background thread, which rings a leader when the deadline comes, may be held up too: of a process
 * that was stopped and goes on, both wake at the same time. */
void bxi_count_late(struct bxi_run *run, uint64_t until_ns, int bell_fd, struct bxi_waiter *waiter)
{
    struct pollfd bell = { .fd = bell_fd, .events = POLLIN };
    uint64_t next_ns = bxi_next_timer_ns(run), now_ns = run->system->now_ns();
    /* BXI_EVENT_TIMER: the holder of the role has been told, and comes to it when its handler returns. */
    bool timer = next_ns < until_ns && next_ns < now_ns && now_ns - next_ns > LATE_NS &&
                 (bxi_load_relaxed(&run->events) & BXI_EVENT_TIMER) == 0;
    bool ready = waiter != NULL && until_ns != waiter->deadline_ns && waiter->ready(waiter);

    if ((!timer && !ready) || run->system->poll(&bell, 1, timer ? HELD_UP_MS : LATE_MS) != 0)
        return;
    if (timer)
        bxi_add(&run->counters[BXI_C_timers_late], 1);
    if (ready)
        bxi_run_count(run, BXI_C_rescued);
}

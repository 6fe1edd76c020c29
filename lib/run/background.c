/* SPDX-License-Identifier: MIT */
/*
 * The background thread, which drives the worker while no thread of the program waits, watches the descriptors of
 * bxi_run_watch, and fires deadlines; and the program's own loop, which does the same through one descriptor.
 * progress.c has the protocol of the role.
 *
 * The background thread sleeps on its eventfd and the watched descriptors. It is rung for frames while the bell
 * is armed for it, and always for rings that open, states and refusals. If another thread drives when it
 * wakes, it passes on what it learnt and sleeps again. Where it ends in a handler of the program, another one takes
 * its place.
 */
#include "drive.h"

#include "base/usercall.h"
#include "shm/cancel.h"
#include "shm/guard.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define DRIVE_NS 1000000u           /* by the coarse clock, which ticks every 1 to 4 ms */

/* ---- the background thread --------------------------------------------------------------------- */

/* Drives until there is nothing to do, or for DRIVE_NS: its eventfd and the watched descriptors are only looked at in a
 * sleep, so under steady load it would never learn of a new ring or a death. */
static void drive_background(const struct bxi_role *role)
{
    struct bxi_run *run = bxi_run_of(role);
    const uint64_t began_ns = run->system->coarse_ns();
    struct bxi_spin spin = { 0 };
    bool called = false;

    for (;;) {
        if (bxi_pass(role, NULL) > 0) {
            bxi_spin_hit(role, &spin);
            if (bxi_leaving != NULL || run->system->coarse_ns() - began_ns >= DRIVE_NS) {
                bxi_leave_role(role, true);
                return;
            }
            if (!run->calls)
                continue;
            called = true;
        }
        /* A thread waits for this role: it is the one that should see the reply; or it needs it soon, and this CPU. */
        if (bxi_load_relaxed(&run->followers) == 0 && bxi_load_relaxed(&run->stop) == 0 && !called &&
            bxi_spin_on(role, &spin, NULL))
            continue;
        if (bxi_before_sleep(role, run->system->now_ns()))
            continue;
        if (bxi_leave_role(role, false))
            return;
    }
}

/* Sleeps until the bell, a watched descriptor or the next deadline. How long, if something happened; else 0. */
static uint64_t sleep_in_background(struct bxi_run *run, struct bxi_sleeper *sleeper, bool *failed)
{
    uint64_t tokens[BXI_SLEEPER_FDS];
    uint64_t until_ns, now_ns, timeout_ns = BX_FOREVER;
    int count;

    run->host->before_sleep(run->context);
    now_ns = run->system->now_ns();
    until_ns = bxi_least(bxi_until_when(run, now_ns), bxi_next_deadline_ns(run, now_ns));
    if (until_ns != BX_FOREVER)
        timeout_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    count = bxi_sleep(run, sleeper, timeout_ns, tokens, failed);
    if (count < 0)
        bxi_note(run, BXI_EVENT_SCAN);
    if (count == 0)
        bxi_count_late(run, until_ns, run->bell_fd[0], NULL);
    for (int i = 0; i < count; i++) {
        if (tokens[i] == BXI_TOKEN_BELL) {
            bxi_bell_drain(run->bell_fd[0]);
            bxi_note(run, BXI_EVENT_SCAN);
            bxi_be_loud(run);
        } else {
            run->system->forget(sleeper, tokens[i]);
            bxi_run_unwatch(run, tokens[i]);
            run->host->readable(run->context, tokens[i]);
        }
    }
    return count > 0 ? run->system->now_ns() - now_ns + 1 : 0;
}

static void announce_ready(struct bxi_run *run, uint32_t ready)
{
    /* [background.ready] release, pairs with the acquire in bxi_progress_start. */
    bxi_store_release(&run->background_ready, ready);
    syscall(SYS_futex, &run->background_ready, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* On its bell and what is watched. 0, -errno. */
static int make_background_sleeper(struct bxi_run *run, struct bxi_sleeper **sleeper)
{
    const struct bxi_system *system = run->system;
    int rc = system->create(run->sleeper_kind, sleeper);

    if (rc < 0)
        return rc;
    rc = system->watch(*sleeper, run->bell_fd[0], BXI_TOKEN_BELL);
    for (int i = 0; rc == 0 && i < run->watched_count; i++)
        if (run->watched[i].fd >= 0)
            rc = system->watch(*sleeper, run->watched[i].fd, run->watched[i].token);
    if (rc < 0)
        system->destroy(*sleeper);
    return rc;
}

static void *run_background(void *argument);

/* This thread ended in a handler of the program: another one takes its place, and joins this one when it ends. False if
 * none can be made: this one goes on. Under the lock that bxi_waits_stop takes: bxi_progress_stop joins this thread if
 * the stop is seen here, else the new one. So no background thread outlives its job. */
static bool replace_background(struct bxi_run *run)
{
    pthread_t thread;
    int rc = 0;

    bxi_lock(&run->wait_lock);
    if (bxi_load_seq_cst(&run->stop) == 0) {
        run->predecessor = pthread_self();
        run->has_predecessor = true;
        rc = bxi_thread_create(&thread, run_background, run);
        if (rc == 0)
            run->background = thread;
    }
    bxi_unlock_waits(run);
    if (rc != 0)
        bxi_leaving = NULL;
    return rc == 0;
}

static void *run_background(void *argument)
{
    struct bxi_run *run = argument;
    /* Written before this thread was made; it is the one that makes the next. */
    const bool has_predecessor = run->has_predecessor;
    const pthread_t predecessor = run->predecessor;
    struct bxi_sleeper *sleeper = NULL;
    const struct bxi_role *role;
    bool failed = false;
    uint64_t slept_ns = 1;
    int rc;

    bxi_cancel_off();               /* a handler may switch it on, and is stopped if it is cancelled */
    run->host->thread_begins(run->context);
    rc = make_background_sleeper(run, &sleeper);
    if (rc < 0) {
        announce_ready(run, 1 + (uint32_t)-rc);
        goto done;
    }
    announce_ready(run, 1);
    /* [stop] acquire, pairs with the store in bxi_waits_stop. */
    while (bxi_load_acquire(&run->stop) == 0) {
        /* A leader that sleeps knows only of the timers that were there before. */
        if (slept_ns == 0 && bxi_next_timer_ns(run) <= run->system->now_ns())
            bxi_note(run, BXI_EVENT_TIMER);
        role = bxi_take_role_or_tell(run);
        if (role != NULL) {
            if (slept_ns > 0)
                bxi_adapt_spin(role, slept_ns);
            else
                bxi_watchdog(role);
            drive_background(role);
            if (bxi_leaving != NULL && replace_background(run))
                break;
        }
        slept_ns = sleep_in_background(run, sleeper, &failed);
    }
    run->system->destroy(sleeper);

done:
    if (has_predecessor)
        pthread_join(predecessor, NULL);
    return NULL;
}

/* ---- life --------------------------------------------------------------------------------------- */

void bxi_run_init(struct bxi_run *run, const struct bxi_run_setup *setup)
{
    run->host = setup->host;
    run->system = setup->system;
    run->context = setup->context;
    run->name = setup->name;
    bxi_spin_init(run, setup->spin_ns);
    run->counters = setup->counters;
    run->fork_generation = bxi_load_relaxed(&bxi_forks);
    run->background_until_ns = BX_FOREVER;
    run->bell_fd[0] = run->bell_fd[1] = run->loop_fd = run->timer_fd = -1;
}

void bxi_run_fini(struct bxi_run *run)
{
    const int fds[] = { run->bell_fd[0], run->bell_fd[1], run->loop_fd, run->timer_fd };

    if (run->system == NULL)        /* it was never begun */
        return;
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    free(run->timers.heap);
}

int bxi_run_open_bells(struct bxi_run *run)
{
    for (int i = 0; i < 2; i++)
        if ((run->bell_fd[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
            return -errno;
    return 0;
}

void bxi_run_attach(struct bxi_run *run, bxi_a64 *armed, bxi_a64 *counters, bxi_a64 *spins)
{
    run->bell.word = armed;
    run->counters = counters;
    run->spins = spins;
}

static int start_loop(struct bxi_run *run)
{
    struct epoll_event bell = { .events = EPOLLIN, .data.u64 = BXI_TOKEN_BELL };
    struct epoll_event timer = { .events = EPOLLIN, .data.u64 = BXI_TOKEN_TIMER };

    run->loop_fd = epoll_create1(EPOLL_CLOEXEC);
    run->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (run->loop_fd < 0 || run->timer_fd < 0 ||
        epoll_ctl(run->loop_fd, EPOLL_CTL_ADD, run->bell_fd[0], &bell) < 0 ||
        epoll_ctl(run->loop_fd, EPOLL_CTL_ADD, run->timer_fd, &timer) < 0)
        return bx_fail(-errno, "the descriptor of one's own loop cannot be made: %s", strerror(errno));
    for (int i = 0; i < run->watched_count; i++) {
        struct epoll_event readable = { .events = EPOLLIN, .data.u64 = run->watched[i].token };

        if (epoll_ctl(run->loop_fd, EPOLL_CTL_ADD, run->watched[i].fd, &readable) < 0)
            return bx_fail(-errno, "the pidfd of rank %d cannot be watched: %s",
                           (int)(run->watched[i].token & BXI_RANK_MASK), strerror(errno));
    }
    bxi_bell_arm(&run->bell, BXI_WHO_BACKGROUND);
    bxi_event(run, BXI_EVENT_SCAN);
    return 0;
}

int bxi_progress_start(struct bxi_run *run, bool own_loop)
{
    int rc;

    if (own_loop)
        return start_loop(run);
    bxi_note(run, BXI_EVENT_SCAN);
    bxi_store_relaxed(&run->background_runs, 1);
    rc = bxi_thread_create(&run->background, run_background, run);
    if (rc != 0) {
        bxi_store_relaxed(&run->background_runs, 0);
        return bx_fail(-rc, "the background thread cannot be started: %s", strerror(rc));
    }
    /* [background.ready] acquire, pairs with the release in announce_ready. */
    while (bxi_load_acquire(&run->background_ready) == 0)
        syscall(SYS_futex, &run->background_ready, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
    rc = 1 - (int)bxi_load_acquire(&run->background_ready);
    return rc < 0 ? bx_fail(rc, "the background thread of worker '%s' cannot watch its doorbell and the other "
                                "workers: %s", run->name, bx_strerror(rc)) : 0;
}

void bxi_waits_stop(struct bxi_run *run)
{
    /* [stop] sequentially consistent, pairs with the loads behind the leader's and the followers' fences. */
    atomic_store(&run->stop, 1);
    bxi_bell_ring(run->bell_fd[1]);
    bxi_lock(&run->wait_lock);
    bxi_signal_waiters(run, NULL);
    bxi_unlock_waits(run);
}

void bxi_progress_stop(struct bxi_run *run)
{
    if (!bxi_load_relaxed(&run->background_runs))
        return;
    bxi_bell_ring(run->bell_fd[0]);
    pthread_join(run->background, NULL);
    bxi_store_relaxed(&run->background_runs, 0);
}

/* ---- the program's own loop -------------------------------------------------------------------- */

int bxi_run_once(struct bxi_run *run)
{
    const struct bxi_role *role;
    int total = 0, handled;

    if (run->loop_fd >= 0)
        bxi_read_loop(run);
    role = bxi_take_role_or_tell(run);
    if (role == NULL)
        return 0;
    bxi_error_enter();
    do {
        handled = bxi_pass(role, NULL);
        if (handled == 0 && bxi_before_sleep(role, run->system->now_ns()))
            handled = 1;
        total += handled;
    } while (handled > 0 && total < 1024 && bxi_leaving == NULL);
    if (handled > 0)
        bxi_before_sleep(role, 0);      /* no deadline: what others wait for */
    run->host->before_sleep(run->context);
    if (run->loop_fd >= 0)
        bxi_until_when(run, 0);
    bxi_leave_role(role, true);
    bxi_error_leave();
    return total;
}

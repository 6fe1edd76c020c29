/* SPDX-License-Identifier: MIT */
/*
 * The background thread, which drives the worker while no thread of the program waits, watches the pids
 * of the peers, and fires deadlines; and one's own loop, which does the same from the program's loop
 * through one descriptor. progress.c has the protocol of the role.
 *
 * The background thread sleeps on its eventfd and all peers' pidfds. It is rung for frames while the bell
 * is armed for it, and always for rings that open, states and refusals. If somebody else drives when it
 * wakes, it passes on what it learnt and sleeps again. Where it ends in a handler of the program, another one takes
 * its place.
 */
#include "run.h"

#include "rpc/rpc.h"

#include "shm/cancel.h"
#include "observe/trace.h"

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* ---- what the descriptors say ------------------------------------------------------------------ */

/* For a thread that tries the role next: no bell. [events] as in bxi_event. */
static void note_event(struct bx_job *job, uint32_t bits)
{
    atomic_fetch_or(&job->run->events, bits);
}

static void see_death(struct bx_job *job, uint64_t rank)
{
    /* Over a suspicion too: a worker that was cut off leaves its name behind when it dies. */
    bxi_exchange(&job->rpc->peers[rank].death_seen, BXI_PEER_DEAD);
    note_event(job, BXI_EVENT_DEATH);
}

/* own_loop: what the loop's descriptor stands for. */
void bxi_look_loop(struct bx_job *job)
{
    struct epoll_event events[BXI_SLEEPER_FDS];
    /* By syscall, which is no cancellation point. */
    int count = (int)syscall(SYS_epoll_pwait, job->run->loop_fd, events, BXI_SLEEPER_FDS, 0, NULL, 0);

    for (int i = 0; i < count; i++) {
        uint64_t token = events[i].data.u64;

        if (token == BXI_TOKEN_BELL) {
            bxi_bell_drain(job->run->bell_fd[0]);
            note_event(job, BXI_EVENT_SCAN);
        } else if (token == BXI_TOKEN_TIMER) {
            bxi_bell_drain(job->run->timer_fd);
            note_event(job, BXI_EVENT_TIMER);
        } else {
            epoll_ctl(job->run->loop_fd, EPOLL_CTL_DEL, job->rpc->peers[token].pidfd, NULL);
            see_death(job, token);
        }
    }
}

/* ---- sleepers ---------------------------------------------------------------------------------- */

static int make_kind(enum bxi_sleeper_kind kind, const struct bxi_watched *watched, int count,
                     struct bxi_sleeper **sleeper)
{
    int rc = bxi_sleeper_create(kind, sleeper);

    for (int i = 0; rc == 0 && i < count; i++) {
        rc = bxi_sleeper_watch(*sleeper, watched[i].fd, watched[i].token);
        if (rc < 0) {
            bxi_sleeper_destroy(*sleeper);
            *sleeper = NULL;
        }
    }
    return rc;
}

int bxi_make_sleeper(const struct bx_job *job, const struct bxi_watched *watched, int count,
                     struct bxi_sleeper **sleeper)
{
    int rc = make_kind(job->run->sleeper_kind, watched, count, sleeper);

    if (rc < 0)
        rc = make_kind(BXI_SLEEPER_EPOLL, watched, count, sleeper);
    if (rc < 0)
        rc = make_kind(BXI_SLEEPER_POLL, watched, count, sleeper);
    return rc;
}

static const char *name_of(enum bxi_sleeper_kind kind)
{
    return kind == BXI_SLEEPER_URING ? "io_uring" : kind == BXI_SLEEPER_EPOLL ? "epoll" : "poll(2)";
}

int bxi_sleep(struct bx_job *job, struct bxi_sleeper *sleeper, uint64_t timeout_ns, uint64_t *tokens, int most,
              bool *failed)
{
    enum bxi_sleeper_kind before = bxi_sleeper_kind(sleeper);
    int count = bxi_sleeper_wait(sleeper, timeout_ns, tokens, most);
    enum bxi_sleeper_kind after = bxi_sleeper_kind(sleeper);

    bxi_count_wait(job, after);
    if (after != before)
        bxi_log(1, "a thread of worker '%s' sleeps with %s from now on: %s has failed", job->name, name_of(after),
                name_of(before));
    if (count < 0 && !*failed)
        bxi_log(0, "a thread of worker '%s' cannot sleep until a doorbell rings (%s), and looks every 10 ms "
                   "instead", job->name, bx_strerror(count));
    *failed |= count < 0;
    return count;
}

/* ---- the background thread --------------------------------------------------------------------- */

static void drive_background(struct bx_job *job)
{
    struct bxi_spin spin = { 0 };

    for (;;) {
        if (bxi_pass(job, NULL) > 0) {
            bxi_spin_paid(job, &spin);
            if (bxi_leaving == NULL)
                continue;
            bxi_leave_role(job, true);
            return;
        }
        /* Somebody waits for this role: its thread is the one that should see the reply. */
        if (bxi_load_relaxed(&job->run->followers) == 0 && bxi_load_relaxed(&job->run->stop) == 0 &&
            bxi_spin_on(job, &spin, NULL))
            continue;
        bxi_publish_credits(job);
        if (bxi_fire_timers(job, bxi_now_ns()) || bxi_starved_look(job, true))
            continue;
        if (bxi_leave_role(job, false))
            return;
    }
}

/* Sleeps until the bell, a death or the next timer. How long, if something happened; else 0. */
static uint64_t sleep_in_background(struct bx_job *job, struct bxi_sleeper *sleeper, bool *failed)
{
    uint64_t tokens[BXI_SLEEPER_FDS];
    uint64_t until_ns, now_ns, traced_ns, timeout_ns = BX_FOREVER;
    int count;

    bxi_trace_sleeps(job);
    now_ns = bxi_now_ns();
    until_ns = bxi_until_when(job, now_ns);
    if (bxi_load_relaxed(&job->rpc->in_count) > 0)
        until_ns = bxi_least(until_ns, now_ns + BXI_WATCHDOG_NS);
    if (until_ns != BX_FOREVER)
        timeout_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    traced_ns = bxi_trace_sleep(job, BXI_SLEEPS_BACKGROUND);
    count = bxi_sleep(job, sleeper, timeout_ns, tokens, BXI_SLEEPER_FDS, failed);
    bxi_trace_woke(job, BXI_SLEEPS_BACKGROUND, bxi_trace_by_kind(bxi_sleeper_kind(sleeper)), count > 0, traced_ns);
    if (count < 0)
        note_event(job, BXI_EVENT_SCAN);
    if (count == 0)
        bxi_count_late_timer(job, until_ns, job->run->bell_fd[0]);
    for (int i = 0; i < count; i++) {
        if (tokens[i] == BXI_TOKEN_BELL) {
            bxi_bell_drain(job->run->bell_fd[0]);
            note_event(job, BXI_EVENT_SCAN);
        } else {
            bxi_sleeper_forget(sleeper, tokens[i]);
            see_death(job, tokens[i]);
        }
    }
    return count > 0 ? bxi_now_ns() - now_ns + 1 : 0;
}

static void say_ready(struct bx_job *job, uint32_t ready)
{
    /* [background.ready] release, pairs with the acquire in bxi_progress_start. */
    bxi_store_release(&job->run->background_ready, ready);
    syscall(SYS_futex, &job->run->background_ready, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* On its bell and every peer's pidfd. 0, -errno. */
static int make_background_sleeper(struct bx_job *job, struct bxi_sleeper **sleeper)
{
    struct bxi_watched watched[BXI_SLEEPER_FDS] = { { job->run->bell_fd[0], BXI_TOKEN_BELL } };
    int count = 1;

    for (int rank = 0; rank < job->world_size; rank++)
        if (rank != job->rank)
            watched[count++] = (struct bxi_watched){ job->rpc->peers[rank].pidfd, (uint64_t)rank };
    return bxi_make_sleeper(job, watched, count, sleeper);
}

static void *run_background(void *argument);

static int start_background(struct bx_job *job, pthread_t *thread)
{
    sigset_t all, before;
    int rc;

    bxi_signals_of_threads(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);    /* signals are the program's */
    rc = pthread_create(thread, NULL, run_background, job);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

/* This thread ended in a handler of the program: another one takes its place. False if none can be made: this one goes
 * on. Under the lock that bxi_waits_stop takes: either that one's stop is seen here and this thread is joined, or
 * bxi_progress_stop joins the new one. */
static bool replace_background(struct bx_job *job)
{
    pthread_t thread;
    int rc = 0;

    bxi_lock(&job->run->wait_lock);
    if (bxi_load_seq_cst(&job->run->stop) == 0 && (rc = start_background(job, &thread)) == 0) {
        job->run->background = thread;
        pthread_detach(pthread_self());
    }
    bxi_unlock(&job->run->wait_lock);
    if (rc != 0)
        bxi_leaving = NULL;
    return rc == 0;
}

static void *run_background(void *argument)
{
    struct bx_job *job = argument;
    struct bxi_sleeper *sleeper = NULL;
    bool failed = false;
    uint64_t slept_ns = 1;
    int rc;

    bxi_cancel_off();               /* a handler may switch it on, and is stopped if it is cancelled */
    bxi_trace_thread("background");
    rc = make_background_sleeper(job, &sleeper);
    if (rc < 0) {
        say_ready(job, 1 + (uint32_t)-rc);
        return NULL;
    }
    say_ready(job, 1);
    /* [stop] acquire, pairs with the store in bxi_waits_stop. */
    while (bxi_load_acquire(&job->run->stop) == 0) {
        /* A leader that sleeps knows only of the timers that were there before. */
        if (slept_ns == 0 && bxi_next_timer_ns(job) <= bxi_now_ns())
            note_event(job, BXI_EVENT_TIMER);
        if (bxi_take_role_or_tell(job)) {
            if (slept_ns > 0)
                bxi_adapt_spin(job, slept_ns);
            else
                bxi_watchdog(job);
            drive_background(job);
            if (bxi_leaving != NULL && replace_background(job))
                break;
        }
        slept_ns = sleep_in_background(job, sleeper, &failed);
    }
    bxi_sleeper_destroy(sleeper);
    return NULL;
}

static int start_loop(struct bx_job *job)
{
    struct epoll_event bell = { .events = EPOLLIN, .data.u64 = BXI_TOKEN_BELL };
    struct epoll_event timer = { .events = EPOLLIN, .data.u64 = BXI_TOKEN_TIMER };

    job->run->loop_fd = epoll_create1(EPOLL_CLOEXEC);
    job->run->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (job->run->loop_fd < 0 || job->run->timer_fd < 0 ||
        epoll_ctl(job->run->loop_fd, EPOLL_CTL_ADD, job->run->bell_fd[0], &bell) < 0 ||
        epoll_ctl(job->run->loop_fd, EPOLL_CTL_ADD, job->run->timer_fd, &timer) < 0)
        return bx_fail(-errno, "the descriptor of one's own loop cannot be made: %s", strerror(errno));
    for (int rank = 0; rank < job->world_size; rank++) {
        struct epoll_event death = { .events = EPOLLIN, .data.u64 = (uint64_t)rank };

        if (rank != job->rank && epoll_ctl(job->run->loop_fd, EPOLL_CTL_ADD, job->rpc->peers[rank].pidfd, &death) < 0)
            return bx_fail(-errno, "the pidfd of rank %d cannot be watched: %s", rank, strerror(errno));
    }
    bxi_bell_arm(&job->run->bell, BXI_WHO_BACKGROUND);
    bxi_event(job, BXI_EVENT_SCAN);
    return 0;
}

/* All but those that a fault raises: blocked, a SIGBUS in a truncated segment would end the process. */
void bxi_signals_of_threads(sigset_t *set)
{
    sigfillset(set);
    sigdelset(set, SIGBUS);
    sigdelset(set, SIGSEGV);
    sigdelset(set, SIGFPE);
    sigdelset(set, SIGILL);
}

int bxi_progress_start(struct bx_job *job)
{
    struct bxi_peer *self = &job->rpc->peers[job->rank];
    int rc;

    self->bell = (struct bxi_bell_peer){ &job->control->header.armed,
                                         { job->run->bell_fd[0], job->run->bell_fd[1] }, 0 };
    job->run->background_until_ns = BX_FOREVER;
    if (job->options.own_loop)
        return start_loop(job);
    atomic_fetch_or(&job->run->events, BXI_EVENT_SCAN);
    job->run->background_runs = true;
    rc = start_background(job, &job->run->background);
    if (rc != 0) {
        job->run->background_runs = false;
        return bx_fail(-rc, "the background thread cannot be started: %s", strerror(rc));
    }
    /* [background.ready] acquire, pairs with the release in say_ready. */
    while (bxi_load_acquire(&job->run->background_ready) == 0)
        syscall(SYS_futex, &job->run->background_ready, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
    rc = 1 - (int)bxi_load_acquire(&job->run->background_ready);
    return rc < 0 ? bx_fail(rc, "the background thread of worker '%s' cannot watch its doorbell and the other "
                                "workers: %s", job->name, bx_strerror(rc)) : 0;
}

void bxi_waits_stop(struct bx_job *job)
{
    /* [stop] sequentially consistent, pairs with the loads behind the leader's and the followers' fences. */
    atomic_store(&job->run->stop, 1);
    bxi_bell_ring(job->run->bell_fd[1]);
    bxi_lock(&job->run->wait_lock);
    for (struct bxi_waiter *waiter = job->run->waiters; waiter != NULL; waiter = waiter->next)
        bxi_signal_waiter(waiter);
    bxi_unlock(&job->run->wait_lock);
}

void bxi_progress_stop(struct bx_job *job)
{
    if (!job->run->background_runs)
        return;
    bxi_bell_ring(job->run->bell_fd[0]);
    pthread_join(job->run->background, NULL);
    job->run->background_runs = false;
}

/* ---- one's own loop ---------------------------------------------------------------------------- */

int bx_job_fd(const struct bx_job *job)
{
    int rc = bxi_job_check_any(job);

    if (rc < 0)
        return rc;
    return job->run->loop_fd >= 0 ? job->run->loop_fd
                             : bx_fail(BX_E_STATE, "bx_job_fd is for a started job with own_loop set");
}

int bx_progress(struct bx_job *job)
{
    int total = 0, handled, rc = bxi_job_check(job);

    if (rc < 0)
        return rc;
    if (job->run->loop_fd >= 0)
        bxi_look_loop(job);
    if (!bxi_take_role_or_tell(job))
        return 0;
    bxi_error_enter();
    do {
        handled = bxi_pass(job, NULL);
        if (handled == 0 && (bxi_fire_timers(job, bxi_now_ns()) || bxi_starved_look(job, true)))
            handled = 1;
        total += handled;
    } while (handled > 0 && total < 1024 && bxi_leaving == NULL);
    bxi_publish_credits(job);
    bxi_trace_sleeps(job);
    if (job->run->loop_fd >= 0)
        bxi_until_when(job, 0);
    bxi_leave_role(job, true);
    bxi_error_leave();
    return bxi_out(total);
}

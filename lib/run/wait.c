/* SPDX-License-Identifier: MIT */
/*
 * Threads that wait: they lead, driving the worker themselves, or they follow, sleeping in a futex until
 * their wish is true or the role is offered to them. progress.c has the protocol. Any thread of the
 * program and of the pool; a leader sleeps in a sleeper of its own thread, for io_uring's rings belong to
 * the thread that made them.
 */
#include "run.h"

#include "rpc/rpc.h"

#include "shm/cancel.h"
#include "observe/trace.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FOLLOW_POLLS 256            /* looks of a follower before it sleeps */
#define LATE_MS 250
#define LAST_FRAMES 64              /* a leader whose wish is true still handles so many before it leaves */

/* Where this thread sleeps as a leader, for the job it last did so in. */
static _Thread_local struct {
    struct bxi_sleeper *sleeper;
    uint64_t serial;
    bool gone;                      /* this thread ends: its key's destructor has run and may not run again */
    bool failed;                    /* a failure of it is in the log */
} bed;
static pthread_key_t bed_key;
static int bed_key_error;
static pthread_once_t bed_once = PTHREAD_ONCE_INIT;

/* ---- sleeping ---------------------------------------------------------------------------------- */

/* The thread ends. Destructors of the program may run after this one and wait: they sleep without a sleeper, for
 * one that was made now might never be destroyed (the C library goes round the destructors four times). */
static void leave_bed(void *sleeper)
{
    bxi_sleeper_destroy(sleeper);
    bed.sleeper = NULL;
    bed.gone = true;
}

static void make_bed_key(void)
{
    bed_key_error = pthread_key_create(&bed_key, leave_bed);
}

/* This thread's sleeper for the job; NULL if there is no memory for it, or it would not be destroyed when the thread
 * ends. */
static struct bxi_sleeper *make_bed(struct bx_job *job)
{
    if (bed.sleeper != NULL && bed.serial == job->serial)
        return bed.sleeper;
    pthread_once(&bed_once, make_bed_key);
    bxi_sleeper_destroy(bed.sleeper);
    bed.sleeper = NULL;
    bed.failed = false;
    if (bed.gone || bed_key_error != 0)
        return NULL;

    const struct bxi_watched watched[] = { { job->run->bell_fd[1], BXI_TOKEN_BELL },
                                           { job->run->loop_fd, BXI_TOKEN_LOOP } };
    int rc = bxi_make_sleeper(job, watched, job->run->loop_fd >= 0 ? 2 : 1, &bed.sleeper);

    if (pthread_setspecific(bed_key, bed.sleeper) != 0) {
        bxi_sleeper_destroy(bed.sleeper);
        bed.sleeper = NULL;
    }
    if (rc == 0)
        bed.serial = job->serial;
    return bed.sleeper;
}

/* There is no memory for a sleeper, or the thread ends. poll passes over a loop_fd of -1. */
static int poll_without_bed(struct bx_job *job, uint64_t timeout_ns)
{
    struct pollfd fds[] = { { .fd = job->run->bell_fd[1], .events = POLLIN },
                            { .fd = job->run->loop_fd, .events = POLLIN } };
    int count = poll(fds, 2, timeout_ns / 1000000 < 1000 ? (int)(timeout_ns / 1000000) + 1 : 1000);

    bxi_bell_drain(job->run->bell_fd[1]);
    if (job->run->loop_fd >= 0)
        bxi_look_loop(job);
    return count;
}

/* Sleeps on the leader's eventfd; true if a bell or an event ended it. */
static bool sleep_in_bed(struct bx_job *job, uint64_t timeout_ns)
{
    struct bxi_sleeper *sleeper = make_bed(job);
    uint64_t traced_ns = bxi_trace_sleep(job, BXI_SLEEPS_LEADER);
    uint64_t tokens[4];
    int count;

    if (sleeper == NULL) {
        count = poll_without_bed(job, timeout_ns);
        bxi_trace_woke(job, BXI_SLEEPS_LEADER, BXI_SLEEPS_BY_EPOLL, count > 0, traced_ns);
        bxi_count_wait(job, BXI_SLEEPER_POLL);
        return count > 0;
    }
    count = bxi_sleep(job, sleeper, timeout_ns, tokens, 4, &bed.failed);
    bxi_trace_woke(job, BXI_SLEEPS_LEADER, bxi_trace_by_kind(bxi_sleeper_kind(sleeper)), count > 0, traced_ns);
    for (int i = 0; i < count; i++) {
        if (tokens[i] == BXI_TOKEN_BELL)
            bxi_bell_drain(job->run->bell_fd[1]);
        else
            bxi_look_loop(job);
    }
    return count > 0;
}

/* After a sleep that nobody ended, with the bell still armed. A wish that is true by now has been made so by a thread
 * that rings: if the bell does not come within LATE_MS, this sleep has been ended by the watchdog alone. */
static void count_late(struct bx_job *job, struct bxi_waiter *waiter, uint64_t until_ns)
{
    struct pollfd bell = { .fd = job->run->bell_fd[1], .events = POLLIN };

    bxi_count_late_timer(job, until_ns, job->run->bell_fd[1]);
    if (until_ns != waiter->deadline_ns && waiter->ready(waiter) && poll(&bell, 1, LATE_MS) == 0)
        bxi_counter_add(job, BXI_C_rescued, 1);
}

/* One sleep of the leader, unless something turns up first. Not inlined: most waits need none. */
__attribute__((noinline)) static void sleep_as_leader(struct bx_job *job, struct bxi_waiter *waiter)
{
    BXI_UNCANCELLED;
    uint64_t now_ns, until_ns;
    bool rung;

    bxi_wait_show(job, &waiter->shown);
    bxi_bells_flush(job);
    bxi_publish_credits(job);
    bxi_trace_sleeps(job);
    now_ns = bxi_now_ns();
    if (bxi_fire_timers(job, now_ns) || bxi_starved_look(job, true))
        return;
    until_ns = bxi_least(waiter->deadline_ns, bxi_next_timer_ns(job));
    if (bxi_load_relaxed(&job->rpc->in_count) > 0)
        until_ns = bxi_least(until_ns, now_ns + BXI_WATCHDOG_NS);
    if (until_ns <= now_ns)
        return;
    bxi_bell_arm(&job->run->bell, BXI_WHO_LEADER);
    bxi_fence_seq_cst();            /* [bell.armed] the sleeper's fence, pairs with bxi_bells_flush */
    if (bxi_work_waits(job) || waiter->ready(waiter) || bxi_load_seq_cst(&job->run->stop) != 0) {
        bxi_bell_disarm(&job->run->bell);
        return;
    }
    rung = sleep_in_bed(job, until_ns == BX_FOREVER ? UINT64_MAX : until_ns - now_ns);
    if (!rung)
        count_late(job, waiter, until_ns);
    bxi_bell_disarm(&job->run->bell);
    if (rung)
        bxi_adapt_spin(job, bxi_now_ns() - now_ns);
    else
        bxi_watchdog(job);
}

/* ---- waiting ----------------------------------------------------------------------------------- */

static int lead(struct bx_job *job, struct bxi_waiter *waiter)
{
    struct bxi_spin spin = { 0 };

    while (!waiter->ready(waiter)) {
        if (bxi_pass(job, waiter) > 0) {
            bxi_spin_paid(job, &spin);
            if (bxi_leaving != NULL)
                return BX_E_HANDLER;
            continue;
        }
        if (waiter->ready(waiter) || bxi_spin_on(job, &spin, waiter))
            continue;
        if (waiter->deadline_ns <= bxi_now_ns())
            return BX_E_TIMEOUT;
        /* [stop] acquire, pairs with the store in bxi_waits_stop. */
        if (bxi_load_acquire(&job->run->stop) != 0)
            return BX_E_SHUTDOWN;
        sleep_as_leader(job, waiter);
        if (bxi_leaving != NULL)        /* in a callback of a call whose deadline came */
            return BX_E_HANDLER;
        spin = (struct bxi_spin){ 0 };
    }
    bxi_spin_paid(job, &spin);
    return 0;
}

/* The wish is true, but frames are there: some more are handled here rather than by waking a thread. */
static void stop_leading(struct bx_job *job)
{
    for (int frames = 0; frames < LAST_FRAMES;) {
        int handled;

        if (bxi_leave_role(job, false))
            return;
        handled = bxi_pass(job, NULL);
        frames += handled > 0 ? handled : 1;
    }
    bxi_leave_role(job, true);
}

static void link_waiter(struct bx_job *job, struct bxi_waiter *waiter)
{
    bxi_lock(&job->run->wait_lock);
    bxi_store_relaxed(&waiter->signal, 0);
    waiter->prev = NULL;
    waiter->next = job->run->waiters;
    if (job->run->waiters != NULL)
        job->run->waiters->prev = waiter;
    job->run->waiters = waiter;
    /* [waiting] sequentially consistent, pairs with the loads in bxi_wake and leave_role: this thread
     * looks at its wish and at the role after it. */
    bxi_add_seq_cst(&job->run->waiting, 1);
    if (!waiter->passive)
        bxi_add_seq_cst(&job->run->followers, 1);
    bxi_unlock(&job->run->wait_lock);
}

static void unlink_waiter(struct bx_job *job, struct bxi_waiter *waiter)
{
    bxi_lock(&job->run->wait_lock);
    if (waiter->prev != NULL)
        waiter->prev->next = waiter->next;
    else
        job->run->waiters = waiter->next;
    if (waiter->next != NULL)
        waiter->next->prev = waiter->prev;
    bxi_add_seq_cst(&job->run->waiting, (uint32_t)-1);
    if (!waiter->passive)
        bxi_add_seq_cst(&job->run->followers, (uint32_t)-1);
    bxi_unlock(&job->run->wait_lock);
}

static void sleep_in_futex(struct bx_job *job, struct bxi_waiter *waiter)
{
    struct timespec until = { .tv_sec = (time_t)(waiter->deadline_ns / 1000000000),
                              .tv_nsec = (long)(waiter->deadline_ns % 1000000000) };
    uint32_t awake = 0;

    bxi_wait_show(job, &waiter->shown);
    bxi_trace_sleeps(job);
    /* [waiter.signal] pairs with the exchange in bxi_signal_waiter: a signal before this is not slept over. */
    if (!bxi_cas(&waiter->signal, &awake, 1) && awake != 1)     /* 1: a futex wait that ended without cause */
        return;

    uint64_t traced_ns = bxi_trace_sleep(job, BXI_SLEEPS_FOLLOWER);

    syscall(SYS_futex, &waiter->signal, FUTEX_WAIT_BITSET_PRIVATE, 1,
            waiter->deadline_ns == BX_FOREVER ? NULL : &until, NULL, FUTEX_BITSET_MATCH_ANY);
    bxi_trace_woke(job, BXI_SLEEPS_FOLLOWER, BXI_SLEEPS_BY_FUTEX, bxi_load_relaxed(&waiter->signal) == 2, traced_ns);
}

/* Waits without the role. 0: ready. BX_E_TIMEOUT. 1: try the role. */
static int follow(struct bx_job *job, struct bxi_waiter *waiter)
{
    int rc = 1;

    bxi_bells_flush(job);
    link_waiter(job, waiter);
    for (uint32_t polls = 0;; polls++) {
        if (waiter->ready(waiter)) {
            rc = 0;
            break;
        }
        /* [role] sequentially consistent, pairs with the exchange in bxi_leave_role. */
        if (bxi_load_seq_cst(&job->run->stop) != 0 || (!waiter->passive && bxi_load_seq_cst(&job->run->role) == 0))
            break;
        if (bxi_load_relaxed(&waiter->signal) == 2) {
            /* [waiter.signal] exchange, not a store: it must not be late and overwrite the next signal
             * (tests/model/role.pml, SIGNAL_STORE). */
            bxi_exchange(&waiter->signal, 0);
            if (!waiter->passive && !waiter->ready(waiter))
                break;
            continue;
        }
        if (waiter->deadline_ns != BX_FOREVER && waiter->deadline_ns <= bxi_now_ns()) {
            rc = BX_E_TIMEOUT;
            break;
        }
        if (polls < FOLLOW_POLLS && !waiter->passive && job->run->cpus > 1)
            bxi_pause();
        else
            sleep_in_futex(job, waiter);
    }
    unlink_waiter(job, waiter);
    /* The role may have been offered to this thread, which does not need it any more. After the stop it may not take
     * it: the thread that ends the job is the one that waits for it. */
    if ((rc != 1 || bxi_load_seq_cst(&job->run->stop) != 0) && bxi_load_seq_cst(&job->run->role) == 0 &&
        bxi_load_seq_cst(&job->run->followers) != 0)
        bxi_offer_role(job);
    return rc;
}

static bool never_ready(struct bxi_waiter *waiter)
{
    (void)waiter;
    return false;
}

void bxi_role_end(struct bx_job *job)
{
    struct bxi_waiter waiter = { .ready = never_ready, .deadline_ns = BX_FOREVER };

    while (!bxi_take_role(job)) {
        link_waiter(job, &waiter);
        /* [role] sequentially consistent, pairs with the exchange in bxi_leave_role: either this sees that the role is
         * free, or the leaver sees the count of followers and signals. */
        if (bxi_load_seq_cst(&job->run->role) != 0)
            sleep_in_futex(job, &waiter);
        unlink_waiter(job, &waiter);
    }
    if (waiter.shown.row != 0)
        bxi_wait_hide(job, &waiter.shown);
}

int bxi_wait(struct bx_job *job, struct bxi_waiter *waiter)
{
    int rc = 1;

    if (waiter->ready(waiter))
        return 0;
    if (!bxi_may_wait())
        return BX_E_WOULD_DEADLOCK;
    if (!job->run->background_runs)
        waiter->passive = false;
    if (bxi_pool_block(job))
        bxi_wait_show(job, &waiter->shown);     /* the thread of a handler: whoever waits for that waits for this */
    bxi_error_enter();
    while (rc > 0) {
        /* [stop] acquire, pairs with the store in bxi_waits_stop. */
        if (bxi_load_acquire(&job->run->stop) != 0)
            rc = BX_E_SHUTDOWN;
        else if (bxi_leaving != NULL)
            rc = BX_E_HANDLER;
        else if (!waiter->passive && bxi_take_role(job)) {
            rc = lead(job, waiter);
            stop_leading(job);
        } else {
            rc = follow(job, waiter);
        }
    }
    bxi_error_leave();
    bxi_pool_unblock(job);
    if (waiter->shown.row != 0)
        bxi_wait_hide(job, &waiter->shown);
    return rc;
}

void bxi_wake(struct bx_job *job, const void *object)
{
    if (!bxi_is_driving(job) && job->run->bell.word != NULL) {
        /* A thread that leads may sleep: it looked at its wish after it had armed. */
        bxi_fence_seq_cst();
        if ((bxi_load_relaxed(job->run->bell.word) & 3) == BXI_WHO_LEADER)
            bxi_bell_ring(job->run->bell_fd[1]);
    }
    /* [waiting] sequentially consistent, pairs with the count in link_waiter. */
    if (bxi_load_seq_cst(&job->run->waiting) == 0)
        return;
    bxi_lock(&job->run->wait_lock);
    for (struct bxi_waiter *waiter = job->run->waiters; waiter != NULL; waiter = waiter->next)
        if (object == NULL || waiter->object == object)
            bxi_signal_waiter(waiter);
    bxi_unlock(&job->run->wait_lock);
}

void bxi_quiet_changed(struct bx_job *job)
{
    /* [quiet] sequentially consistent, pairs with the count in wait_quiet. */
    if (bxi_load_seq_cst(&job->rpc->quiet_waited) != 0)
        bxi_wake(job, &job->rpc->quiet_waited);
}

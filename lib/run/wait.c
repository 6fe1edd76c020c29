/* SPDX-License-Identifier: MIT */
/*
 * Threads that wait: they lead, driving the worker themselves, or they follow, sleeping in a futex until
 * they are ready or the role is offered to them. progress.c has the protocol. Any thread of the program and of the
 * pool. sleep.c has what a leader sleeps in.
 */
#include "drive.h"

#include "base/usercall.h"
#include "shm/cancel.h"

/* Of a follower's ready before it sleeps: 3 us with the pauses, less than a futex takes to wake it, so polling in vain
 * never doubles the wait. */
#define FOLLOW_POLLS 256
/* A leader that is ready still handles frames for so long before it leaves, about what it costs it to wake a thread;
 * but so many at most. */
#define LAST_NS 10000
#define LAST_FRAMES 1024

/* bxi_report_waits. */
static _Thread_local bool reports_waits;

void bxi_report_waits(bool report)
{
    reports_waits = report;
}

static bool ends_early(const struct bxi_run *run, const struct bxi_waiter *waiter)
{
    return bxi_is_interrupted(run) && !waiter->lasts;
}

/* ---- leading ----------------------------------------------------------------------------------- */

/* One sleep of the leader, unless something turns up first. Not inlined: most waits need none. */
__attribute__((noinline)) static void sleep_as_leader(const struct bxi_role *role, struct bxi_waiter *waiter)
{
    BXI_UNCANCELLED;
    struct bxi_run *run = bxi_run_of(role);
    uint64_t now_ns, until_ns;
    bool rung;

    bxi_flush(run);
    run->host->wait_lasts(run->context, waiter);
    if (bxi_before_sleep(role, run->system->now_ns()))
        return;
    run->host->before_sleep(run->context);
    now_ns = run->system->now_ns();
    until_ns = bxi_least(waiter->deadline_ns, bxi_next_timer_ns(run));
    until_ns = bxi_least(until_ns, bxi_next_deadline_ns(run, now_ns));
    if (until_ns <= now_ns)
        return;
    bxi_bell_arm(&run->bell, BXI_WHO_LEADER);
    bxi_fence_seq_cst();            /* [bell.armed] the sleeper's fence, pairs with bxi_bells_flush */
    if (bxi_work_waits(role) || waiter->ready(waiter) || bxi_load_seq_cst(&run->stop) != 0) {
        bxi_bell_disarm(&run->bell);
        return;
    }
    rung = bxi_sleep_as_leader(role, until_ns == BX_FOREVER ? UINT64_MAX : until_ns - now_ns);
    if (!rung)                      /* the bell is still armed */
        bxi_count_late(run, until_ns, run->bell_fd[1], waiter);
    bxi_bell_disarm(&run->bell);
    if (rung)
        bxi_adapt_spin(role, run->system->now_ns() - now_ns);
    else
        bxi_watchdog(role);
}

static bool wait_straight(const struct bxi_role *role, struct bxi_waiter *waiter)
{
    struct bxi_run *run = bxi_run_of(role);

    /* Another leader may have made it ready before this thread got the role. */
    if (waiter->straight == NULL || waiter->ready(waiter) || bxi_is_interrupted(run) || !bxi_spin_may_begin(run) ||
        !waiter->straight(waiter, role))
        return false;
    if (bxi_load_relaxed(&run->loud_waits) > 0)         /* relaxed: as in bxi_be_loud */
        bxi_store_relaxed(&run->loud_waits, bxi_load_relaxed(&run->loud_waits) - 1);
    bxi_count(&run->pass, 1);
    return true;
}

static int lead(const struct bxi_role *role, struct bxi_waiter *waiter)
{
    struct bxi_run *run = bxi_run_of(role);
    struct bxi_spin spin = { 0 };

    while (!waiter->ready(waiter)) {
        if (ends_early(run, waiter))
            return BX_E_INTERRUPTED;
        if (bxi_pass(role, waiter) > 0) {
            bxi_spin_hit(role, &spin);
            if (bxi_leaving != NULL)
                return BX_E_HANDLER;
            continue;
        }
        if (waiter->ready(waiter) || bxi_spin_on(role, &spin, waiter))
            continue;
        if (waiter->deadline_ns <= run->system->now_ns())
            return BX_E_TIMEOUT;
        /* [stop] acquire, pairs with the store in bxi_waits_stop. */
        if (bxi_load_acquire(&run->stop) != 0)
            return BX_E_SHUTDOWN;
        sleep_as_leader(role, waiter);
        if (bxi_leaving != NULL)        /* in a callback of a call whose deadline came */
            return BX_E_HANDLER;
        spin = (struct bxi_spin){ 0 };
    }
    bxi_spin_hit(role, &spin);
    return 0;
}

/* Gives the role up, with no work left if that takes no longer than to wake a thread for it. */
static void stop_leading(const struct bxi_role *role)
{
    struct bxi_run *run = bxi_run_of(role);
    uint64_t now_ns, until_ns = BX_FOREVER;

    for (int frames = 0; frames < LAST_FRAMES && bxi_leaving == NULL;) {
        int handled;

        if (bxi_leave_role(role, false))
            return;
        now_ns = run->system->now_ns();
        if (now_ns > until_ns)
            break;
        if (until_ns == BX_FOREVER)
            until_ns = now_ns + LAST_NS;
        handled = bxi_pass(role, NULL);
        frames += handled > 0 ? handled : 1;
    }
    bxi_leave_role(role, true);
}

/* Takes the role, waits, and gives it up. 1: another thread has it. Quietly (progress.c), unless the background thread
 * was rung lately: each request that comes during a quiet wait costs its sender a bell. And unless workers share CPUs:
 * one that waits quietly looks asleep, and the others would not yield to it. */
static int take_and_lead(struct bxi_run *run, struct bxi_waiter *waiter)
{
    bool quiet = waiter->straight != NULL && bxi_load_relaxed(&run->cpus_are_shared) == 0 &&
                 bxi_load_relaxed(&run->loud_waits) == 0;
    const struct bxi_role *role = quiet ? bxi_take_role_quietly(run, &quiet) : bxi_take_role(run);
    int rc;

    if (role == NULL)
        return 1;
    if (wait_straight(role, waiter)) {
        if (quiet)
            bxi_leave_role_quietly(role);
        else
            stop_leading(role);
        return 0;
    }
    if (quiet)
        bxi_bell_disarm(&run->bell);
    rc = lead(role, waiter);
    stop_leading(role);
    return rc;
}

/* ---- following --------------------------------------------------------------------------------- */

static void link_waiter(struct bxi_run *run, struct bxi_waiter *waiter)
{
    bxi_lock(&run->wait_lock);
    bxi_store_relaxed(&waiter->signal, 0);
    waiter->prev = NULL;
    waiter->next = run->waiters;
    if (run->waiters != NULL)
        run->waiters->prev = waiter;
    run->waiters = waiter;
    /* [waiting] sequentially consistent, pairs with the loads in bxi_wake and bxi_leave_role: this thread
     * calls its ready and loads the role after it. */
    bxi_add_seq_cst(&run->waiting, 1);
    if (!waiter->passive)
        bxi_add_seq_cst(&run->followers, 1);
    bxi_unlock_waits(run);
}

static void unlink_waiter(struct bxi_run *run, struct bxi_waiter *waiter)
{
    bxi_lock(&run->wait_lock);
    if (waiter->prev != NULL)
        waiter->prev->next = waiter->next;
    else
        run->waiters = waiter->next;
    if (waiter->next != NULL)
        waiter->next->prev = waiter->prev;
    bxi_add_seq_cst(&run->waiting, (uint32_t)-1);
    if (!waiter->passive)
        bxi_add_seq_cst(&run->followers, (uint32_t)-1);
    bxi_unlock_waits(run);
}

static void sleep_in_futex(struct bxi_run *run, struct bxi_waiter *waiter)
{
    uint32_t awake = 0;
    uint64_t began_ns;

    run->host->wait_lasts(run->context, waiter);
    run->host->before_sleep(run->context);
    /* [waiter.signal] pairs with the exchange in signal_waiter: a signal before this is not slept over. */
    if (!bxi_cas(&waiter->signal, &awake, 1) && awake != 1)     /* 1: a futex wait that ended without cause */
        return;
    began_ns = run->host->sleeps(run->context, BXI_SLEEPS_FOLLOWER);
    run->system->wait_while_1(&waiter->signal, waiter->deadline_ns);
    run->host->woke(run->context, BXI_SLEEPS_FOLLOWER, BXI_SLEEPS_BY_FUTEX, bxi_load_relaxed(&waiter->signal) == 2,
                    began_ns);
}

/* Waits without the role. 0: ready. BX_E_TIMEOUT, BX_E_INTERRUPTED. 1: try the role. */
static int follow(struct bxi_run *run, struct bxi_waiter *waiter)
{
    int rc = 1;

    bxi_flush(run);
    link_waiter(run, waiter);
    for (uint32_t polls = 0;; polls++) {
        if (waiter->ready(waiter)) {
            rc = 0;
            break;
        }
        /* [role] sequentially consistent, pairs with the exchange in bxi_leave_role. */
        if (bxi_load_seq_cst(&run->stop) != 0 || (!waiter->passive && bxi_load_seq_cst(&run->role) == 0))
            break;
        if (ends_early(run, waiter)) {
            rc = BX_E_INTERRUPTED;
            break;
        }
        if (bxi_load_relaxed(&waiter->signal) == 2) {
            /* [waiter.signal] exchange, not a store: it must not be late and overwrite the next signal
             * (tests/sim finds that). */
            bxi_exchange(&waiter->signal, 0);
            if (!waiter->passive && !waiter->ready(waiter))
                break;
            continue;
        }
        if (waiter->deadline_ns != BX_FOREVER && waiter->deadline_ns <= run->system->now_ns()) {
            rc = BX_E_TIMEOUT;
            break;
        }
        if (polls < FOLLOW_POLLS && !waiter->passive && run->cpus > 1)
            bxi_pause();
        else
            sleep_in_futex(run, waiter);
    }
    unlink_waiter(run, waiter);
    /* The role may have been offered to this thread, which does not need it any more. After the stop it may not take
     * it: the thread that ends the job is the one that waits for it. */
    if ((rc != 1 || bxi_load_seq_cst(&run->stop) != 0) && bxi_load_seq_cst(&run->role) == 0 &&
        bxi_load_seq_cst(&run->followers) != 0)
        bxi_offer_role(run);
    return rc;
}

/* ---- waiting ----------------------------------------------------------------------------------- */

const struct bxi_role *bxi_role_end(struct bxi_run *run)
{
    struct bxi_waiter waiter = { .deadline_ns = BX_FOREVER };      /* only who waits asks whether it is ready */
    const struct bxi_role *role;

    while ((role = bxi_take_role(run)) == NULL) {
        link_waiter(run, &waiter);
        /* [role] sequentially consistent, pairs with the exchange in bxi_leave_role: either this sees that the role is
         * free, or the leaver sees the count of followers and signals. */
        if (bxi_load_seq_cst(&run->role) != 0)
            sleep_in_futex(run, &waiter);
        unlink_waiter(run, &waiter);
    }
    if (waiter.shown.row != 0)
        run->host->wait_ends(run->context, &waiter);
    return role;
}

int bxi_wait(struct bxi_run *run, struct bxi_waiter *waiter)
{
    int rc = 1;

    if (waiter->ready(waiter))
        return 0;
    if (!bxi_may_wait())
        return BX_E_WOULD_DEADLOCK;
    if (!bxi_load_relaxed(&run->background_runs))       /* relaxed: behind a wrong guess comes the stop */
        waiter->passive = false;
    if (reports_waits)
        run->host->wait_begins(run->context, waiter);
    bxi_error_enter();
    while (rc > 0) {
        /* [stop] acquire, pairs with the store in bxi_waits_stop. */
        if (bxi_load_acquire(&run->stop) != 0)
            rc = BX_E_SHUTDOWN;
        else if (bxi_leaving != NULL)
            rc = BX_E_HANDLER;
        else if (waiter->passive || (rc = take_and_lead(run, waiter)) == 1)
            rc = follow(run, waiter);
    }
    bxi_error_leave();
    if (reports_waits || waiter->shown.row != 0)
        run->host->wait_ends(run->context, waiter);
    return rc;
}

const struct bxi_role *bxi_role_early(struct bxi_run *run)
{
    /* Relaxed: a thread that begins to follow right now is offered the role when this one gives it up. */
    return bxi_load_relaxed(&run->followers) == 0 ? bxi_take_role(run) : NULL;
}

void bxi_drive_on(const struct bxi_role *role, struct bxi_waiter *waiter)
{
    struct bxi_run *run = bxi_run_of(role);
    struct bxi_spin spin = { 0 };

    bxi_error_enter();
    bxi_flush(run);
    /* Relaxed: whoever begins to follow, or to stop the job, is seen in the next round. */
    while (!waiter->ready(waiter) && bxi_load_relaxed(&run->followers) == 0 && bxi_load_relaxed(&run->stop) == 0 &&
           bxi_leaving == NULL) {
        if (bxi_pass(role, waiter) > 0)
            bxi_spin_hit(role, &spin);
        else if (!bxi_spin_on(role, &spin, waiter))
            break;
    }
    stop_leading(role);
    bxi_error_leave();
}

void bxi_poke(struct bxi_run *run)
{
    const struct bxi_role *role;

    if (!bxi_may_wait() || bxi_load_relaxed(&run->stop) != 0 || run->bell.word == NULL ||
        bxi_load_relaxed(&bxi_forks) != run->fork_generation || (role = bxi_take_role(run)) == NULL)
        return;
    bxi_error_enter();
    bxi_pass(role, NULL);
    stop_leading(role);
    bxi_error_leave();
}

void bxi_wake(struct bxi_run *run, const void *object)
{
    if (!bxi_is_driving(run) && run->bell.word != NULL) {
        /* A leader may sleep: it called its ready after it had armed. */
        bxi_fence_seq_cst();
        if ((bxi_load_relaxed(run->bell.word) & 3) == BXI_WHO_LEADER)
            bxi_bell_ring(run->bell_fd[1]);
    }
    /* [waiting] sequentially consistent, pairs with the count in link_waiter. */
    if (bxi_load_seq_cst(&run->waiting) == 0)
        return;
    bxi_lock(&run->wait_lock);
    bxi_signal_waiters(run, object);
    bxi_unlock_waits(run);
}

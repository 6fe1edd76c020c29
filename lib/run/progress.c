/* SPDX-License-Identifier: MIT */
/*
 * Progress: the role of the thread that drives the worker, and what it calls of the sources.
 *
 * Driving a worker is a role that one thread holds at a time. A thread that waits takes it if it is free
 * (it "leads"); else it follows: it counts itself, tries the role once more, and sleeps in a futex until
 * what it waits for is ready or the role is offered to it. When nobody waits, the background thread sleeps with the
 * bell armed for it, and takes the role when it is rung. So a call and its reply need one thread a side.
 *
 *   take    CAS free -> held; disarm the bell; every pass calls all sources
 *   quiet   a synchronous caller polls for its reply while the bell stays armed LAZY: CAS, reply, exchange. The
 *           producer of a request sees LAZY and rings the background thread, which tries the role until it is free;
 *           so the caller needs no recheck when it leaves. If its reply does not come, or another frame does, it
 *           disarms and goes on as above
 *   sleep   arm(LEADER), fence, ask every source once more (ready), sleep on the leader's eventfd
 *   leave   arm(BACKGROUND, or LAZY while nobody is eager for replies), fence, ask once more (work: go
 *           on, or ring the background thread);
 *           exchange held -> free; if followers are counted: wake one
 *   follow  count oneself, try CAS; then sleep. (Dekker with leave: either the CAS succeeds, or the
 *           leaver sees the count.)
 *   end     bxi_job_leave follows until it has the role, and keeps it: no pass is made any more
 *
 * Opened rings, states and refusals are rare and are always announced on the background's eventfd, so
 * before a sleep only events and what the sources publish in their own memory is asked for. tests/sim/room_role.c
 * checks this protocol. A process killed at any of these points leaves its armed word as it was: peers ring an
 * eventfd that nobody reads, and learn of the death by its pidfd.
 */
#include "drive.h"

#include "shm/backoff.h"

#include <assert.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Thread_local struct bxi_run *driving;
static _Thread_local int no_wait_depth;

bool bxi_may_wait(void)
{
    return no_wait_depth == 0;
}

static void call_threads(struct bxi_run *run)
{
    run->calls = false;
    run->host->call(run->context);
}

void bxi_no_wait_enter(void)
{
    no_wait_depth++;
    if (driving != NULL && driving->calls)
        call_threads(driving);
}

void bxi_no_wait_leave(void)
{
    no_wait_depth--;
}

bool bxi_is_driving(const struct bxi_run *run)
{
    return driving == run;
}

/* ---- the sources ------------------------------------------------------------------------------- */

void bxi_run_add(struct bxi_run *run, const struct bxi_source_ops *ops, void *context)
{
    uint32_t count = bxi_load_relaxed(&run->source_count), owned = BXI_EVENT_TIMER | BXI_EVENT_INTERRUPT;

    for (uint32_t i = 0; i < count; i++)
        owned |= run->sources[i].ops->events;
    assert((ops->events & owned) == 0);
    assert(bxi_lock_is_held(&run->lock) && count < BXI_SOURCES_MAX);
    run->sources[count] = (struct bxi_source){ ops, context };
    /* [run.sources] release, pairs with the acquire in bxi_end_of_sources. */
    bxi_store_release(&run->source_count, count + 1);
}

static void hand_out(const struct bxi_role *role, uint32_t event)
{
    struct bxi_run *run = bxi_run_of(role);

    if (event == BXI_EVENT_TIMER)
        bxi_timers_due(role);
    BXI_FOR_SOURCES(run, handle)
        if (source->ops->events & event)
            source->ops->handle(source->context, role, event);
}

static void hand_out_events(const struct bxi_role *role)
{
    /* [events] takes them all; one that is set after this is handed out by the next pass. */
    uint32_t events = atomic_exchange(&bxi_run_of(role)->events, 0);

    for (; events != 0; events &= events - 1)
        hand_out(role, events & -events);
}

/* Every 256 passes: a thread that is busy never sleeps. */
static int pass_now_and_then(const struct bxi_role *role, struct bxi_waiter *waiter)
{
    struct bxi_run *run = bxi_run_of(role);
    uint64_t now_ns = run->system->coarse_ns();
    int handled = bxi_fire_timers(role, now_ns);

    BXI_FOR_SOURCES(run, now_and_then)
        source->ops->now_and_then(source->context, role, now_ns);
    if (waiter != NULL)
        run->host->wait_lasts(run->context, waiter);
    return handled;
}

int bxi_pass(const struct bxi_role *role, struct bxi_waiter *waiter)
{
    struct bxi_run *run = bxi_run_of(role);
    int handled = 0;

    bxi_count(&run->pass, 1);
    run->pass_ns = 0;
    if (run->calls)
        call_threads(run);
    if (bxi_load_relaxed(&run->events) != 0) {
        hand_out_events(role);
        handled++;
    }
    BXI_FOR_SOURCES(run, pass)
        handled += source->ops->pass(source->context, role, waiter);
    if ((bxi_load_relaxed(&run->pass) & 255) == 0)
        handled += pass_now_and_then(role, waiter);
    return handled;
}

/* Is there anything that a pass would find? Under the role, behind the arming fence. */
bool bxi_work_waits(const struct bxi_role *role)
{
    struct bxi_run *run = bxi_run_of(role);

    /* [events] sequentially consistent, pairs with the addition in bxi_event. */
    if (bxi_load_seq_cst(&run->events) != 0)
        return true;
    BXI_FOR_SOURCES(run, ready)
        if (source->ops->ready(source->context, role))
            return true;
    return false;
}

bool bxi_peek(struct bxi_run *run, int times)
{
    BXI_FOR_SOURCES(run, peek)
        if (source->ops->peek(source->context, times))
            return true;
    return false;
}

void bxi_flush(struct bxi_run *run)
{
    BXI_FOR_SOURCES(run, flush)
        source->ops->flush(source->context);
}

bool bxi_before_sleep(const struct bxi_role *role, uint64_t now_ns)
{
    struct bxi_run *run = bxi_run_of(role);
    bool work = false;

    BXI_FOR_SOURCES(run, before_sleep)
        work |= source->ops->before_sleep(source->context, role);
    return bxi_fire_timers(role, now_ns) || work;
}

uint64_t bxi_next_deadline_ns(struct bxi_run *run, uint64_t now_ns)
{
    uint64_t next_ns = BX_FOREVER;

    BXI_FOR_SOURCES(run, next_deadline_ns)
        next_ns = bxi_least(next_ns, source->ops->next_deadline_ns(source->context, now_ns));
    return next_ns;
}

void bxi_watchdog(const struct bxi_role *role)
{
    struct bxi_run *run = bxi_run_of(role);

    BXI_FOR_SOURCES(run, watchdog)
        source->ops->watchdog(source->context, role);
}

/* ---- the role ---------------------------------------------------------------------------------- */

static const struct bxi_role *take(struct bxi_run *run)
{
    uint32_t free = 0;

    /* [role] acquire, pairs with the exchange in release: what the last holder did is seen. */
    if (bxi_load_relaxed(&run->role) != 0 || !bxi_cas(&run->role, &free, 1))
        return NULL;
    run->outer = driving;
    driving = run;
    return (const struct bxi_role *)(void *)&run->role;
}

const struct bxi_role *bxi_take_role(struct bxi_run *run)
{
    const struct bxi_role *role = take(run);

    if (role != NULL)
        bxi_bell_disarm(&run->bell);
    return role;
}

const struct bxi_role *bxi_take_role_quietly(struct bxi_run *run, bool *quiet)
{
    const struct bxi_role *role = take(run);

    if (role == NULL)
        return NULL;
    *quiet = (bxi_load_relaxed(run->bell.word) & 3) == BXI_WHO_LAZY;    /* relaxed: written under the role */
    if (!*quiet)
        bxi_bell_disarm(&run->bell);
    return role;
}

void bxi_forget_role(void)
{
    driving = NULL;
}

static void signal_waiter(struct bxi_waiter *waiter)
{
    /* [waiter.signal] pairs with the exchange in sleep_in_futex. */
    if (bxi_exchange(&waiter->signal, 2) == 1)
        syscall(SYS_futex, &waiter->signal, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void bxi_signal_waiters(struct bxi_run *run, const void *object)
{
    for (struct bxi_waiter *waiter = run->waiters; waiter != NULL; waiter = waiter->next)
        if (object == NULL || waiter->object == object)
            signal_waiter(waiter);
}

void bxi_signal_all(struct bxi_run *run)
{
    /* [signal_all] acquire, pairs with the release in bxi_run_interrupt: a follower that takes the lock after this
     * thread has released it sees `interrupted`. */
    while (bxi_load_acquire(&run->signal_all) != 0 && bxi_try_lock(&run->wait_lock)) {
        /* Relaxed: a request that comes behind this store is seen behind the fence below. */
        bxi_store_relaxed(&run->signal_all, 0);
        bxi_signal_waiters(run, NULL);
        bxi_unlock(&run->wait_lock);
        bxi_fence_seq_cst();        /* [signal_all] pairs with the fence in bxi_run_interrupt: as any holder */
    }
}

void bxi_offer_role(struct bxi_run *run)
{
    bxi_lock(&run->wait_lock);
    for (struct bxi_waiter *waiter = run->waiters; waiter != NULL; waiter = waiter->next) {
        if (!waiter->passive && bxi_load_relaxed(&waiter->signal) != 2) {
            signal_waiter(waiter);
            break;
        }
    }
    bxi_unlock_waits(run);
}

/* Arms for the background thread, and fences. Replies that nobody needs yet do not wake it. */
static void arm_background(struct bxi_run *run)
{
    for (;;) {
        /* [eager] sequentially consistent, pairs with the addition in bxi_more_eager: either the second
         * load here sees it, or that thread sees the word LAZY. */
        bool lazy = bxi_load_seq_cst(&run->eager) == 0 && run->loop_fd < 0;

        bxi_bell_arm(&run->bell, lazy ? BXI_WHO_LAZY : BXI_WHO_BACKGROUND);
        bxi_fence_seq_cst();        /* [bell.armed] the sleeper's fence, pairs with bxi_bells_flush */
        if (!lazy || bxi_load_seq_cst(&run->eager) == 0)
            return;
    }
}

/* Whom it calls needs the role soon, and may get this CPU at once. */
static void release(struct bxi_run *run)
{
    bool calls = run->calls;

    run->calls = false;
    driving = run->outer;
    /* [role] sequentially consistent, pairs with the CAS in take; and with the count in follow: either that thread's
     * CAS succeeds, or its count is seen behind this. */
    atomic_exchange(&run->role, 0);
    if (calls)
        run->host->call(run->context);
}

void bxi_leave_role_quietly(const struct bxi_role *role)
{
    struct bxi_run *run = bxi_run_of(role);

    bxi_flush(run);
    release(run);
    if (bxi_load_seq_cst(&run->followers) != 0)
        bxi_offer_role(run);
}

bool bxi_leave_role(const struct bxi_role *role, bool anyway)
{
    struct bxi_run *run = bxi_run_of(role);
    bool work;

    bxi_flush(run);
    arm_background(run);
    work = bxi_work_waits(role);
    if (work && !anyway) {
        bxi_bell_disarm(&run->bell);
        return false;
    }
    release(run);
    if (work)
        bxi_bell_ring(run->bell_fd[0]);
    if (bxi_load_seq_cst(&run->followers) != 0)
        bxi_offer_role(run);
    return true;
}

/* Whose eventfd the armed word names; -1 if this worker is awake. */
static int armed_fd(struct bxi_run *run)
{
    /* [bell.armed] relaxed, behind the caller's fence. */
    uint64_t who = bxi_load_relaxed(run->bell.word) & 3;

    return who == BXI_AWAKE ? -1 : run->bell_fd[who == BXI_WHO_LEADER];
}

void bxi_less_eager(struct bxi_run *run)
{
    bxi_add_seq_cst(&run->eager, (uint32_t)-1);
}

void bxi_more_eager(struct bxi_run *run)
{
    uint32_t turns = 0;

    /* [eager] sequentially consistent, pairs with the loads in arm_background. */
    bxi_add_seq_cst(&run->eager, 1);
    if (driving == run || run->bell.word == NULL)
        return;
    bxi_fence_seq_cst();
    while ((bxi_load_relaxed(run->bell.word) & 3) == BXI_WHO_LAZY) {
        const struct bxi_role *role = bxi_take_role(run);

        if (role != NULL)
            bxi_leave_role(role, true);     /* arms anew, and asks the sources */
        else
            bxi_back_off(&turns);       /* another thread is about to leave, or has just taken it */
    }
}

const struct bxi_role *bxi_take_role_or_tell(struct bxi_run *run)
{
    const struct bxi_role *role;
    uint32_t turns = 0;

    while ((role = bxi_take_role(run)) == NULL) {
        /* [events] sequentially consistent, pairs with bxi_work_waits: the holder sees the event before it
         * sleeps or leaves, or this sees that it has armed. */
        if (bxi_load_seq_cst(&run->events) == 0)
            return NULL;
        bxi_fence_seq_cst();

        int fd = armed_fd(run);

        if (fd == run->bell_fd[1])
            bxi_bell_ring(fd);
        if (fd != run->bell_fd[0])
            return NULL;
        bxi_back_off(&turns);       /* it is leaving */
    }
    return role;
}

/* ---- events ------------------------------------------------------------------------------------ */

void bxi_note(struct bxi_run *run, uint32_t bits)
{
    /* [events] as in bxi_event. */
    atomic_fetch_or(&run->events, bits);
}

void bxi_event(struct bxi_run *run, uint32_t bits)
{
    /* [events] sequentially consistent, pairs with the load in bxi_work_waits across the arming fence. */
    atomic_fetch_or(&run->events, bits);
    if (driving == run || run->bell.word == NULL)
        return;
    bxi_fence_seq_cst();

    int fd = armed_fd(run);

    if (fd >= 0)
        bxi_bell_ring(fd);
}

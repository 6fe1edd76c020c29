/* SPDX-License-Identifier: MIT */
/*
 * Progress: who looks at the rings, and how threads wait.
 *
 * Driving a worker is a role that one thread holds at a time. A thread that waits takes it if it is free
 * (it "leads"); else it follows: it counts itself, tries the role once more, and sleeps in a futex until
 * its wish is true or the role is offered to it. When nobody waits, the background thread sleeps with the
 * bell armed for it, and takes the role when it is rung. So a call and its reply need one thread a side.
 *
 *   take    CAS free -> held; disarm the bell; every pass looks at all open rings
 *   sleep   arm(LEADER), fence, look at everything once more, sleep on the leader's eventfd
 *   leave   arm(BACKGROUND), fence, look once more (work: go on, or ring the background thread);
 *           exchange held -> free; if followers are counted: wake one
 *   follow  count oneself, try CAS; then sleep. (Dekker with leave: either the CAS succeeds, or the
 *           leaver sees the count.)
 *
 * Opened rings, states and refusals are rare and are always announced on the background's eventfd, so
 * the look before sleep is at rings, events and wishes only. tests/model/role.pml checks this protocol.
 * A process killed at any of these points leaves its armed word as it was: peers ring an eventfd that
 * nobody reads, and learn of the death by its pidfd.
 */
#include "internal.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define TOKEN_BELL 1000u
#define TOKEN_LOOP 1001u
#define TOKEN_TIMER 1002u
#define WATCHDOG_NS UINT64_C(1000000000)
#define SPIN_REFRESH_NS 4000000u
#define SPIN_LEAST_NS 1500u
#define HOT_POLLS 256               /* empty looks before the core is told that this is a spin loop */
#define LAST_FRAMES 64              /* a leader whose wish is true still handles so many before it leaves */

/* Looked at in every call: in a shared library, too, without a call of their own. */
#define HOT_TLS __attribute__((tls_model("initial-exec"))) _Thread_local
static HOT_TLS struct bx_job *driving;
static HOT_TLS int no_wait_depth;

/* Where this thread sleeps as a leader, for the job it last did so in. */
static _Thread_local struct {
    struct bxi_sleeper *sleeper;
    uint64_t serial;
} bed;
static pthread_key_t bed_key;
static pthread_once_t bed_once = PTHREAD_ONCE_INIT;

bool bxi_may_wait(void)
{
    return no_wait_depth == 0;
}

void bxi_no_wait_enter(void)
{
    no_wait_depth++;
}

void bxi_no_wait_leave(void)
{
    no_wait_depth--;
}

bool bxi_is_driving(const struct bx_job *job)
{
    return driving == job;
}

/* ---- timers ------------------------------------------------------------------------------------ */

static uint64_t next_timer_ns(struct bx_job *job)
{
    uint64_t next;

    bxi_lock(&job->lock);
    next = bxi_timers_next_ns(&job->timers);
    bxi_unlock(&job->lock);
    return next;
}

static bool fire_timers(struct bx_job *job, uint64_t now_ns)
{
    bool fired = false;

    bxi_lock(&job->lock);
    while (bxi_timers_next_ns(&job->timers) <= now_ns) {
        struct bxi_timer *timer = job->timers.heap[1];

        bxi_timer_clear(&job->timers, timer);
        timer->fire(job, timer);
        fired = true;
    }
    bxi_unlock(&job->lock);
    if (fired)
        bxi_calls_expire(job);
    return fired;
}

static void set_loop_timer(struct bx_job *job, uint64_t at_ns)
{
    struct itimerspec when = { { 0, 0 }, { 0, 0 } };

    if (at_ns != BX_FOREVER) {
        when.it_value.tv_sec = (time_t)(at_ns / 1000000000);
        when.it_value.tv_nsec = (long)(at_ns % 1000000000);
    }
    timerfd_settime(job->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

void bxi_timer_added(struct bx_job *job, uint64_t at_ns)
{
    /* [background.until] acquire, pairs with the release in until_when: the timer was set under the lock,
     * so the background thread has seen it, or this sees until when it sleeps. */
    if (at_ns >= bxi_load_acquire(&job->background_until_ns))
        return;
    if (job->loop_fd < 0) {
        bxi_bell_ring(job->bell_fd[0]);
        return;
    }
    bxi_store_release(&job->background_until_ns, at_ns);
    set_loop_timer(job, at_ns);
}

static uint64_t until_when(struct bx_job *job)
{
    uint64_t next;

    bxi_lock(&job->lock);
    next = bxi_timers_next_ns(&job->timers);
    /* [background.until] release, pairs with the acquire in bxi_timer_added. */
    bxi_store_release(&job->background_until_ns, next);
    bxi_unlock(&job->lock);
    return next;
}

/* ---- one pass (role) --------------------------------------------------------------------------- */

static bool any_bell_due(struct bx_job *job)
{
    /* Relaxed: this thread's own frames are in it; another thread flushes its own. */
    return (bxi_load_relaxed(&job->bells_due[0]) | bxi_load_relaxed(&job->bells_due[1])) != 0;
}

static void ring_what_is_due(struct bx_job *job)
{
    if (any_bell_due(job) && (bxi_load_relaxed(&job->bells_urgent) != 0 || job->spin_ns == 0 ||
                              bxi_load_relaxed(&job->pass) - bxi_load_relaxed(&job->bells_pass) >=
                                  BXI_DEFER_POLLS))
        bxi_bells_flush(job);
}

static int pass(struct bx_job *job, struct bxi_waiter *waiter)
{
    int handled = 0;

    bxi_count(&job->pass, 1);
    job->pass_ns = 0;
    if (bxi_load_relaxed(&job->events) != 0) {
        bxi_look_events(job);
        handled++;
    }
    for (int i = 0; i < (int)bxi_load_relaxed(&job->in_count); i++) {
        handled += bxi_read_ring(job, job->in_peers[i], waiter, BXI_FRAMES_A_PASS);
        if (handled > 0 && waiter != NULL && waiter->ready(waiter))
            break;
    }
    if (bxi_starved_look(job, false))
        handled++;
    ring_what_is_due(job);
    if ((bxi_load_relaxed(&job->pass) & 255) == 0 && fire_timers(job, bxi_coarse_ns()))
        handled++;
    return handled;
}

/* Is there anything that a pass would find? Under the role, behind the arming fence. */
static bool work_waits(struct bx_job *job)
{
    /* [events] sequentially consistent, pairs with the addition in bxi_event. */
    if (bxi_load_seq_cst(&job->events) != 0)
        return true;
    for (int i = 0; i < (int)bxi_load_relaxed(&job->in_count); i++)
        if (bxi_ring_ready(&job->in_peers[i]->in))
            return true;
    /* A consumer that published credit before this thread armed saw the wish, but nobody to ring. */
    return bxi_starved_look(job, false);
}

/* ---- the role ---------------------------------------------------------------------------------- */

static bool take_role(struct bx_job *job)
{
    uint32_t free = 0;

    /* [role] acquire, pairs with the exchange in leave_role: what the last holder did is seen. */
    if (bxi_load_relaxed(&job->role) != 0 || !bxi_cas(&job->role, &free, 1))
        return false;
    driving = job;
    bxi_bell_disarm(&job->bell);
    return true;
}

static void signal_waiter(struct bxi_waiter *waiter)
{
    /* [waiter.signal] pairs with the exchange in sleep_in_futex. */
    if (bxi_exchange(&waiter->signal, 2) == 1)
        syscall(SYS_futex, &waiter->signal, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void offer_role(struct bx_job *job)
{
    bxi_lock(&job->wait_lock);
    for (struct bxi_waiter *waiter = job->waiters; waiter != NULL; waiter = waiter->next) {
        if (!waiter->passive && bxi_load_relaxed(&waiter->signal) != 2) {
            signal_waiter(waiter);
            break;
        }
    }
    bxi_unlock(&job->wait_lock);
}

/* Arms for the background thread, and fences. Replies that nobody needs yet do not wake it. */
static void arm_background(struct bx_job *job)
{
    for (;;) {
        /* [eager] sequentially consistent, pairs with the addition in bxi_more_eager: either the second
         * load here sees it, or that thread sees the word LAZY. */
        bool lazy = bxi_load_seq_cst(&job->eager) == 0 && job->loop_fd < 0;

        bxi_bell_arm(&job->bell, lazy ? BXI_WHO_LAZY : BXI_WHO_BACKGROUND);
        bxi_fence_seq_cst();        /* [bell.armed] the sleeper's fence, pairs with bxi_bells_flush */
        if (!lazy || bxi_load_seq_cst(&job->eager) == 0)
            return;
    }
}

/* Leaves the role. If there is work: returns false with the role kept; with `anyway`, leaves it to the
 * background thread. */
static bool leave_role(struct bx_job *job, bool anyway)
{
    bool work;

    bxi_bells_flush(job);
    arm_background(job);
    work = work_waits(job);
    if (work && !anyway) {
        bxi_bell_disarm(&job->bell);
        return false;
    }
    driving = NULL;
    /* [role] sequentially consistent, pairs with the CAS in take_role; and with the count in follow:
     * either that thread's CAS succeeds, or its count is seen here. */
    atomic_exchange(&job->role, 0);
    if (work)
        bxi_bell_ring(job->bell_fd[0]);
    if (bxi_load_seq_cst(&job->followers) != 0)
        offer_role(job);
    return true;
}

/* Whose eventfd the armed word names; -1 if this worker is awake. */
static int armed_fd(struct bx_job *job)
{
    /* [bell.armed] relaxed, behind the caller's fence. */
    uint64_t who = bxi_load_relaxed(job->bell.word) & 3;

    return who == BXI_AWAKE ? -1 : job->bell_fd[who == BXI_WHO_LEADER];
}

void bxi_less_eager(struct bx_job *job)
{
    bxi_add_seq_cst(&job->eager, (uint32_t)-1);
}

void bxi_more_eager(struct bx_job *job)
{
    /* [eager] sequentially consistent, pairs with the loads in arm_background. */
    bxi_add_seq_cst(&job->eager, 1);
    if (driving == job || job->bell.word == NULL)
        return;
    bxi_fence_seq_cst();
    while ((bxi_load_relaxed(job->bell.word) & 3) == BXI_WHO_LAZY) {
        if (take_role(job))
            leave_role(job, true);      /* arms anew, and looks */
        else
            sched_yield();              /* somebody is about to leave, or has just come */
    }
}

void bxi_poke(struct bx_job *job)
{
    if (no_wait_depth > 0 || bxi_load_relaxed(&job->phase) == BXI_STOPPED || job->bell.word == NULL ||
        bxi_load_relaxed(&bxi_forks) != job->fork_generation || !take_role(job))
        return;
    pass(job, NULL);
    leave_role(job, true);
}

void bxi_event(struct bx_job *job, uint32_t bits)
{
    /* [events] sequentially consistent, pairs with the load in work_waits across the arming fence. */
    atomic_fetch_or(&job->events, bits);
    if (driving == job || job->bell.word == NULL)
        return;
    bxi_fence_seq_cst();

    int fd = armed_fd(job);

    if (fd >= 0)
        bxi_bell_ring(fd);
}

/* ---- spinning ---------------------------------------------------------------------------------- */

/* Spinning helps nobody when more workers are awake than there are CPUs. */
static bool may_spin(struct bx_job *job)
{
    uint64_t now_ns = bxi_coarse_ns();
    int awake = 1;

    if (job->spin_ns == 0)
        return false;
    if (now_ns - job->may_spin_at_ns < SPIN_REFRESH_NS)
        return job->may_spin;
    for (int rank = 0; rank < job->world_size; rank++) {
        const struct bxi_peer *peer = &job->peers[rank];

        /* Relaxed: a guess is enough. */
        if (rank != job->rank && bxi_load_relaxed(&peer->state) == BXI_PEER_ALIVE &&
            (bxi_load_relaxed(peer->bell.word) & 3) == BXI_AWAKE)
            awake++;
    }
    job->may_spin_at_ns = now_ns;
    job->may_spin = awake <= job->cpus;
    return job->may_spin;
}

struct spin {
    uint32_t polls;
    uint64_t began_ns;
};

/* After an empty look: look again (true), or is the budget spent? */
static bool spin_on(struct bx_job *job, struct spin *spin)
{
    if (spin->polls == 0 && (job->spin_skips > 0 || !may_spin(job))) {
        job->spin_skips -= job->spin_skips > 0;
        return false;
    }
    if (++spin->polls < HOT_POLLS)
        return true;
    bxi_pause();
    if (spin->polls % 32 != 0)
        return true;

    uint64_t now_ns = bxi_now_ns();

    if (spin->began_ns == 0)
        spin->began_ns = now_ns;
    if (now_ns - spin->began_ns < job->spin_ns)
        return true;
    /* Spins that end in sleep may be what keeps the one who is waited for from running: sleep at once the
     * next 2, 4, 8, 16 times, until one pays. */
    bxi_counter_add(job, BXI_C_spins_missed, 1);
    job->spin_misses += job->spin_misses < 4;
    job->spin_skips = 1u << job->spin_misses;
    return false;
}

/* A spin ended with work: it paid. A sleep ended after slept_ns: would a longer spin have? */
static void spin_paid(struct bx_job *job, struct spin *spin)
{
    if (spin->polls > 0) {
        bxi_counter_add(job, BXI_C_spins_hit, 1);
        job->spin_misses = 0;
    }
    if (spin->began_ns != 0 && job->spin_ns < job->options.spin_ns)
        job->spin_ns += job->spin_ns / 8;
    *spin = (struct spin){ 0 };
}

static void adapt_spin(struct bx_job *job, uint64_t slept_ns)
{
    uint64_t most = job->options.spin_ns;

    if (job->spin_ns == 0)
        return;
    if (slept_ns < most)
        job->spin_ns = job->spin_ns * 2 < most ? job->spin_ns * 2 : most;
    else if (job->spin_ns / 2 >= SPIN_LEAST_NS)
        job->spin_ns /= 2;
}

/* ---- sleeping ---------------------------------------------------------------------------------- */

static void count_wait(struct bx_job *job, enum bxi_sleeper_kind kind)
{
    enum bxi_counter waits = kind == BXI_SLEEPER_URING ? BXI_C_waits_uring : BXI_C_waits_epoll;

    bxi_add(&job->counters[waits], 1);
    bxi_add(&job->counters[BXI_C_wakeups], 1);
}

static void leave_bed(void *sleeper)
{
    bxi_sleeper_destroy(sleeper);
}

static void make_bed_key(void)
{
    pthread_key_create(&bed_key, leave_bed);
}

/* This thread's sleeper for the job; NULL if none can be made. */
static struct bxi_sleeper *make_bed(struct bx_job *job)
{
    if (bed.sleeper != NULL && bed.serial == job->serial)
        return bed.sleeper;
    pthread_once(&bed_once, make_bed_key);
    bxi_sleeper_destroy(bed.sleeper);
    bed.sleeper = NULL;
    if (bxi_sleeper_create(job->sleeper_kind, &bed.sleeper) < 0 &&
        bxi_sleeper_create(BXI_SLEEPER_EPOLL, &bed.sleeper) < 0)
        bed.sleeper = NULL;
    pthread_setspecific(bed_key, bed.sleeper);
    if (bed.sleeper == NULL)
        return NULL;
    bed.serial = job->serial;
    bxi_sleeper_watch(bed.sleeper, job->bell_fd[1], TOKEN_BELL);
    if (job->loop_fd >= 0)
        bxi_sleeper_watch(bed.sleeper, job->loop_fd, TOKEN_LOOP);
    return bed.sleeper;
}

/* For a thread that tries the role next: no bell. [events] as in bxi_event. */
static void note_event(struct bx_job *job, uint32_t bits)
{
    atomic_fetch_or(&job->events, bits);
}

static void see_death(struct bx_job *job, uint64_t rank)
{
    /* Over a suspicion too: a worker that was cut off leaves its name behind when it dies. */
    bxi_exchange(&job->peers[rank].death_seen, BXI_PEER_DEAD);
    note_event(job, BXI_EVENT_DEATH);
}

/* own_loop: what the loop's descriptor stands for. */
static void look_loop(struct bx_job *job)
{
    struct epoll_event events[BXI_SLEEPER_FDS];
    int count = epoll_wait(job->loop_fd, events, BXI_SLEEPER_FDS, 0);

    for (int i = 0; i < count; i++) {
        uint64_t token = events[i].data.u64;

        if (token == TOKEN_BELL) {
            bxi_bell_drain(job->bell_fd[0]);
            note_event(job, BXI_EVENT_SCAN);
        } else if (token == TOKEN_TIMER) {
            bxi_bell_drain(job->timer_fd);
        } else {
            epoll_ctl(job->loop_fd, EPOLL_CTL_DEL, job->peers[token].pidfd, NULL);
            see_death(job, token);
        }
    }
}

/* Sleeps on the leader's eventfd; true if a bell or an event ended it. */
static bool sleep_in_bed(struct bx_job *job, uint64_t timeout_ns)
{
    struct bxi_sleeper *sleeper = make_bed(job);
    uint64_t tokens[4];
    int count;

    if (sleeper == NULL) {          /* no descriptor left: sleep without one */
        struct pollfd bell = { .fd = job->bell_fd[1], .events = POLLIN };

        count = poll(&bell, 1, timeout_ns / 1000000 < 1000 ? (int)(timeout_ns / 1000000) + 1 : 1000);
        bxi_bell_drain(job->bell_fd[1]);
        count_wait(job, BXI_SLEEPER_EPOLL);
        return count > 0;
    }
    count = bxi_sleeper_wait(sleeper, timeout_ns, tokens, 4);
    count_wait(job, bxi_sleeper_kind(sleeper));
    for (int i = 0; i < count; i++) {
        if (tokens[i] == TOKEN_BELL)
            bxi_bell_drain(job->bell_fd[1]);
        else
            look_loop(job);
    }
    return count > 0;
}

/* Before sleeping. A producer that waits for credit hears of it. */
static void publish_credits(struct bx_job *job)
{
    bool published = false;

    for (int i = 0; i < (int)bxi_load_relaxed(&job->in_count); i++)
        published |= bxi_ring_publish(&job->in_peers[i]->in);
    if (published)
        bxi_wanted_look(job);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* One sleep of the leader, unless something turns up first. */
static void sleep_as_leader(struct bx_job *job, struct bxi_waiter *waiter)
{
    uint64_t now_ns, until_ns;
    bool rung;

    bxi_bells_flush(job);
    publish_credits(job);
    now_ns = bxi_now_ns();
    if (fire_timers(job, now_ns) || bxi_starved_look(job, true))
        return;
    until_ns = least(waiter->deadline_ns, next_timer_ns(job));
    if (bxi_load_relaxed(&job->in_count) > 0)
        until_ns = least(until_ns, now_ns + WATCHDOG_NS);
    if (until_ns <= now_ns)
        return;
    bxi_bell_arm(&job->bell, BXI_WHO_LEADER);
    bxi_fence_seq_cst();            /* [bell.armed] the sleeper's fence, pairs with bxi_bells_flush */
    if (work_waits(job) || waiter->ready(waiter) || bxi_load_seq_cst(&job->stop) != 0) {
        bxi_bell_disarm(&job->bell);
        return;
    }
    rung = sleep_in_bed(job, until_ns == BX_FOREVER ? UINT64_MAX : until_ns - now_ns);
    bxi_bell_disarm(&job->bell);
    if (rung)
        adapt_spin(job, bxi_now_ns() - now_ns);
    else
        bxi_watchdog(job);
}

/* ---- waiting ----------------------------------------------------------------------------------- */

static int lead(struct bx_job *job, struct bxi_waiter *waiter)
{
    struct spin spin = { 0 };

    while (!waiter->ready(waiter)) {
        if (pass(job, waiter) > 0) {
            spin_paid(job, &spin);
            continue;
        }
        if (spin.polls % 1024 == 1023 && waiter->deadline_ns <= bxi_coarse_ns())
            return BX_E_TIMEOUT;
        if (waiter->ready(waiter) || spin_on(job, &spin))
            continue;
        if (waiter->deadline_ns <= bxi_now_ns())
            return BX_E_TIMEOUT;
        if (bxi_load_acquire(&job->stop) != 0)
            return BX_E_SHUTDOWN;
        sleep_as_leader(job, waiter);
        spin = (struct spin){ 0 };
    }
    spin_paid(job, &spin);
    return 0;
}

/* The wish is true, but frames are there: some more are handled here rather than by waking a thread. */
static void stop_leading(struct bx_job *job)
{
    for (int frames = 0; frames < LAST_FRAMES;) {
        int handled;

        if (leave_role(job, false))
            return;
        handled = pass(job, NULL);
        frames += handled > 0 ? handled : 1;
    }
    leave_role(job, true);
}

static void link_waiter(struct bx_job *job, struct bxi_waiter *waiter)
{
    bxi_lock(&job->wait_lock);
    bxi_store_relaxed(&waiter->signal, 0);
    waiter->prev = NULL;
    waiter->next = job->waiters;
    if (job->waiters != NULL)
        job->waiters->prev = waiter;
    job->waiters = waiter;
    /* [waiting] sequentially consistent, pairs with the loads in bxi_wake and leave_role: this thread
     * looks at its wish and at the role after it. */
    bxi_add_seq_cst(&job->waiting, 1);
    if (!waiter->passive)
        bxi_add_seq_cst(&job->followers, 1);
    bxi_unlock(&job->wait_lock);
}

static void unlink_waiter(struct bx_job *job, struct bxi_waiter *waiter)
{
    bxi_lock(&job->wait_lock);
    if (waiter->prev != NULL)
        waiter->prev->next = waiter->next;
    else
        job->waiters = waiter->next;
    if (waiter->next != NULL)
        waiter->next->prev = waiter->prev;
    bxi_add_seq_cst(&job->waiting, (uint32_t)-1);
    if (!waiter->passive)
        bxi_add_seq_cst(&job->followers, (uint32_t)-1);
    bxi_unlock(&job->wait_lock);
}

static void sleep_in_futex(struct bxi_waiter *waiter)
{
    struct timespec until = { .tv_sec = (time_t)(waiter->deadline_ns / 1000000000),
                              .tv_nsec = (long)(waiter->deadline_ns % 1000000000) };
    uint32_t awake = 0;

    /* [waiter.signal] pairs with the exchange in signal_waiter: a signal before this is not slept over. */
    if (bxi_cas(&waiter->signal, &awake, 1))
        syscall(SYS_futex, &waiter->signal, FUTEX_WAIT_BITSET_PRIVATE, 1,
                waiter->deadline_ns == BX_FOREVER ? NULL : &until, NULL, FUTEX_BITSET_MATCH_ANY);
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
        /* [role] sequentially consistent, pairs with the exchange in leave_role. */
        if (bxi_load_seq_cst(&job->stop) != 0 || (!waiter->passive && bxi_load_seq_cst(&job->role) == 0))
            break;
        if (bxi_load_relaxed(&waiter->signal) == 2) {
            bxi_store_relaxed(&waiter->signal, 0);
            if (!waiter->passive && !waiter->ready(waiter))
                break;
            continue;
        }
        if (waiter->deadline_ns != BX_FOREVER && waiter->deadline_ns <= bxi_now_ns()) {
            rc = BX_E_TIMEOUT;
            break;
        }
        if (polls < HOT_POLLS && !waiter->passive && job->cpus > 1)
            bxi_pause();
        else
            sleep_in_futex(waiter);
    }
    unlink_waiter(job, waiter);
    /* The role may have been offered to this thread, which does not need it any more. */
    if (rc != 1 && bxi_load_seq_cst(&job->role) == 0 && bxi_load_seq_cst(&job->followers) != 0)
        offer_role(job);
    return rc;
}

int bxi_wait(struct bx_job *job, struct bxi_waiter *waiter)
{
    int rc = 1;

    if (waiter->ready(waiter))
        return 0;
    if (!bxi_may_wait())
        return BX_E_WOULD_DEADLOCK;
    if (!job->background_runs)
        waiter->passive = false;
    bxi_pool_block(job);
    while (rc > 0) {
        if (bxi_load_acquire(&job->stop) != 0)
            rc = BX_E_SHUTDOWN;
        else if (!waiter->passive && take_role(job)) {
            rc = lead(job, waiter);
            stop_leading(job);
        } else {
            rc = follow(job, waiter);
        }
    }
    bxi_pool_unblock(job);
    return rc;
}

void bxi_wake(struct bx_job *job, const void *object)
{
    if (driving != job && job->bell.word != NULL) {
        /* A thread that leads may sleep: it looked at its wish after it had armed. */
        bxi_fence_seq_cst();
        if ((bxi_load_relaxed(job->bell.word) & 3) == BXI_WHO_LEADER)
            bxi_bell_ring(job->bell_fd[1]);
    }
    /* [waiting] sequentially consistent, pairs with the count in link_waiter. */
    if (bxi_load_seq_cst(&job->waiting) == 0)
        return;
    bxi_lock(&job->wait_lock);
    for (struct bxi_waiter *waiter = job->waiters; waiter != NULL; waiter = waiter->next)
        if (waiter->object == object)
            signal_waiter(waiter);
    bxi_unlock(&job->wait_lock);
}

void bxi_quiet_changed(struct bx_job *job)
{
    /* [quiet] sequentially consistent, pairs with the count in wait_quiet. */
    if (bxi_load_seq_cst(&job->quiet_waited) != 0)
        bxi_wake(job, &job->quiet_waited);
}

/* ---- the background thread --------------------------------------------------------------------- */

static void drive_background(struct bx_job *job)
{
    struct spin spin = { 0 };

    for (;;) {
        if (pass(job, NULL) > 0) {
            spin_paid(job, &spin);
            continue;
        }
        /* Somebody waits for this role: its thread is the one that should see the reply. */
        if (bxi_load_relaxed(&job->followers) == 0 && bxi_load_relaxed(&job->stop) == 0 &&
            spin_on(job, &spin))
            continue;
        publish_credits(job);
        if (fire_timers(job, bxi_now_ns()) || bxi_starved_look(job, true))
            continue;
        if (leave_role(job, false))
            return;
    }
}

/* Takes the role. If somebody else holds it, makes sure that the holder sees the events. */
static bool take_role_or_tell(struct bx_job *job)
{
    while (!take_role(job)) {
        /* [events] sequentially consistent, pairs with work_waits: the holder sees the event before it
         * sleeps or leaves, or this sees that it has armed. */
        if (bxi_load_seq_cst(&job->events) == 0)
            return false;
        bxi_fence_seq_cst();

        int fd = armed_fd(job);

        if (fd == job->bell_fd[1])
            bxi_bell_ring(fd);
        if (fd != job->bell_fd[0])
            return false;
        sched_yield();      /* it is leaving */
    }
    return true;
}

/* Sleeps until the bell, a death or the next timer. How long, if something happened; else 0. */
static uint64_t sleep_in_background(struct bx_job *job, struct bxi_sleeper *sleeper)
{
    uint64_t tokens[BXI_SLEEPER_FDS];
    uint64_t until_ns = until_when(job), now_ns = bxi_now_ns();
    int count;

    if (bxi_load_relaxed(&job->in_count) > 0)
        until_ns = least(until_ns, now_ns + WATCHDOG_NS);
    if (until_ns != BX_FOREVER)
        until_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    count = bxi_sleeper_wait(sleeper, until_ns, tokens, BXI_SLEEPER_FDS);
    count_wait(job, bxi_sleeper_kind(sleeper));
    for (int i = 0; i < count; i++) {
        if (tokens[i] == TOKEN_BELL) {
            bxi_bell_drain(job->bell_fd[0]);
            note_event(job, BXI_EVENT_SCAN);
        } else {
            bxi_sleeper_forget(sleeper, tokens[i]);
            see_death(job, tokens[i]);
        }
    }
    return count > 0 ? bxi_now_ns() - now_ns + 1 : 0;
}

static void *run_background(void *argument)
{
    struct bx_job *job = argument;
    struct bxi_sleeper *sleeper = NULL;
    uint64_t slept_ns = 1;

    if (bxi_sleeper_create(job->sleeper_kind, &sleeper) < 0 &&
        bxi_sleeper_create(BXI_SLEEPER_EPOLL, &sleeper) < 0) {
        bxi_log(0, "worker '%s' has no descriptor left for its background thread", job->name);
        return NULL;
    }
    bxi_sleeper_watch(sleeper, job->bell_fd[0], TOKEN_BELL);
    for (int rank = 0; rank < job->world_size; rank++)
        if (rank != job->rank)
            bxi_sleeper_watch(sleeper, job->peers[rank].pidfd, (uint64_t)rank);
    while (bxi_load_acquire(&job->stop) == 0) {
        if (take_role_or_tell(job)) {
            if (slept_ns > 0)
                adapt_spin(job, slept_ns);
            else
                bxi_watchdog(job);
            drive_background(job);
        }
        slept_ns = sleep_in_background(job, sleeper);
    }
    bxi_sleeper_destroy(sleeper);
    return NULL;
}

static int start_loop(struct bx_job *job)
{
    struct epoll_event bell = { .events = EPOLLIN, .data.u64 = TOKEN_BELL };
    struct epoll_event timer = { .events = EPOLLIN, .data.u64 = TOKEN_TIMER };

    job->loop_fd = epoll_create1(EPOLL_CLOEXEC);
    job->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (job->loop_fd < 0 || job->timer_fd < 0 ||
        epoll_ctl(job->loop_fd, EPOLL_CTL_ADD, job->bell_fd[0], &bell) < 0 ||
        epoll_ctl(job->loop_fd, EPOLL_CTL_ADD, job->timer_fd, &timer) < 0)
        return bx_fail(-errno, "the descriptor of one's own loop cannot be made: %s", strerror(errno));
    for (int rank = 0; rank < job->world_size; rank++) {
        struct epoll_event death = { .events = EPOLLIN, .data.u64 = (uint64_t)rank };

        if (rank != job->rank && epoll_ctl(job->loop_fd, EPOLL_CTL_ADD, job->peers[rank].pidfd, &death) < 0)
            return bx_fail(-errno, "the pidfd of rank %d cannot be watched: %s", rank, strerror(errno));
    }
    bxi_bell_arm(&job->bell, BXI_WHO_BACKGROUND);
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
    struct bxi_peer *self = &job->peers[job->rank];
    sigset_t all, before;
    int rc;

    self->bell = (struct bxi_bell_peer){ &job->control->header.armed, { job->bell_fd[0], job->bell_fd[1] }, 0 };
    bxi_store_relaxed(&job->background_until_ns, BX_FOREVER);
    if (job->options.own_loop)
        return start_loop(job);
    atomic_fetch_or(&job->events, BXI_EVENT_SCAN);
    job->background_runs = true;
    bxi_signals_of_threads(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);    /* signals are the program's */
    rc = pthread_create(&job->background, NULL, run_background, job);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        job->background_runs = false;
        return bx_fail(-rc, "the background thread cannot be started: %s", strerror(rc));
    }
    return 0;
}

void bxi_waits_stop(struct bx_job *job)
{
    /* [stop] sequentially consistent, pairs with the loads behind the leader's and the followers' fences. */
    atomic_store(&job->stop, 1);
    bxi_bell_ring(job->bell_fd[1]);
    bxi_lock(&job->wait_lock);
    for (struct bxi_waiter *waiter = job->waiters; waiter != NULL; waiter = waiter->next)
        signal_waiter(waiter);
    bxi_unlock(&job->wait_lock);
}

void bxi_progress_stop(struct bx_job *job)
{
    if (!job->background_runs)
        return;
    bxi_bell_ring(job->bell_fd[0]);
    pthread_join(job->background, NULL);
    job->background_runs = false;
}

/* ---- one's own loop ---------------------------------------------------------------------------- */

int bx_job_fd(const struct bx_job *job)
{
    return job->loop_fd >= 0 ? job->loop_fd
                             : bx_fail(BX_E_STATE, "bx_job_fd is for a started job with own_loop set");
}

int bx_progress(struct bx_job *job)
{
    int total = 0, handled, rc = bxi_job_check(job);

    if (rc < 0)
        return rc;
    if (job->loop_fd >= 0)
        look_loop(job);
    if (!take_role_or_tell(job))
        return 0;
    do {
        handled = pass(job, NULL);
        if (handled == 0 && (fire_timers(job, bxi_now_ns()) || bxi_starved_look(job, true)))
            handled = 1;
        total += handled;
    } while (handled > 0 && total < 1024);
    publish_credits(job);
    if (job->loop_fd >= 0)
        set_loop_timer(job, until_when(job));
    leave_role(job, true);
    return total;
}

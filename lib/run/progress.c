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
 *   leave   arm(BACKGROUND, or LAZY while nobody is eager for replies), fence, look once more (work: go
 *           on, or ring the background thread);
 *           exchange held -> free; if followers are counted: wake one
 *   follow  count oneself, try CAS; then sleep. (Dekker with leave: either the CAS succeeds, or the
 *           leaver sees the count.)
 *   end     bxi_job_leave follows until it has the role, and keeps it: no pass is made any more
 *
 * Opened rings, states and refusals are rare and are always announced on the background's eventfd, so
 * the look before sleep is at rings, events and wishes only. tests/model/role.pml checks this protocol.
 * A process killed at any of these points leaves its armed word as it was: peers ring an eventfd that
 * nobody reads, and learn of the death by its pidfd.
 */
#include "run.h"

#include "rpc/rpc.h"

#include "observe/trace.h"

#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define SPIN_LEAST_NS 1500u
#define LATE_NS UINT64_C(250000000)
#define HELD_UP_MS 1000
#define LOOKS 32                    /* at the rings between two passes of a spin */
#define HOT_ROUNDS 8                /* of them before the core is told that this is a spin loop */

static BXI_HOT_TLS struct bx_job *driving;
static BXI_HOT_TLS int no_wait_depth;

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

uint64_t bxi_next_timer_ns(struct bx_job *job)
{
    uint64_t next;

    bxi_lock(&job->run->lock);
    next = bxi_timers_next_ns(&job->run->timers);
    bxi_unlock(&job->run->lock);
    return next;
}

/* Whoever sets a deadline rings those who sleep past it. A thread that was held up between the two is given some
 * time, so that a busy machine is not taken for a lost wake-up. So is the background thread, which rings a leader when
 * the deadline comes: of a process that was stopped and goes on, both wake at the same time. */
void bxi_count_late_timer(struct bx_job *job, uint64_t until_ns, int bell_fd)
{
    struct pollfd bell = { .fd = bell_fd, .events = POLLIN };
    uint64_t next_ns = bxi_next_timer_ns(job), now_ns = bxi_now_ns();

    /* BXI_EVENT_TIMER: the holder of the role has been told, and comes to it when its handler returns. */
    if (next_ns < until_ns && next_ns < now_ns && now_ns - next_ns > LATE_NS &&
        (bxi_load_relaxed(&job->run->events) & BXI_EVENT_TIMER) == 0 && poll(&bell, 1, HELD_UP_MS) == 0)
        bxi_add(&job->counters[BXI_C_timers_late], 1);
}

bool bxi_fire_timers(struct bx_job *job, uint64_t now_ns)
{
    bool fired = false;

    bxi_lock(&job->run->lock);
    while (bxi_timers_next_ns(&job->run->timers) <= now_ns) {
        struct bxi_timer *timer = job->run->timers.heap[1];

        bxi_timer_clear(&job->run->timers, timer);
        timer->fire(job, timer);
        fired = true;
    }
    bxi_unlock(&job->run->lock);
    if (fired)
        bxi_calls_expire(job);
    return fired;
}

/* Lock, so that timer_fd and background_until_ns change together, and never to a later time than the heap's top. */
static void set_until(struct bx_job *job, uint64_t at_ns)
{
    struct itimerspec when = { { 0, 0 }, { 0, 0 } };

    job->run->background_until_ns = at_ns;
    if (job->run->timer_fd < 0)
        return;
    if (at_ns != BX_FOREVER) {
        when.it_value.tv_sec = (time_t)(at_ns / 1000000000);
        when.it_value.tv_nsec = (long)(at_ns % 1000000000);
    }
    timerfd_settime(job->run->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

void bxi_timer_added(struct bx_job *job)
{
    uint64_t next = bxi_timers_next_ns(&job->run->timers);

    if (next >= job->run->background_until_ns)
        return;
    set_until(job, next);
    if (job->run->loop_fd < 0)
        bxi_bell_ring(job->run->bell_fd[0]);
}

uint64_t bxi_until_when(struct bx_job *job, uint64_t now_ns)
{
    uint64_t next;

    bxi_lock(&job->run->lock);
    next = bxi_timers_next_ns(&job->run->timers);
    /* [events] sequentially consistent, pairs with the exchange in bxi_look_events: the holder that takes the event
     * looks at the timers after this, and rings for the next one. */
    if (job->run->loop_fd < 0 && next <= now_ns && (bxi_load_seq_cst(&job->run->events) & BXI_EVENT_TIMER) != 0)
        next = BX_FOREVER;
    if (next != job->run->background_until_ns)
        set_until(job, next);
    bxi_unlock(&job->run->lock);
    return next;
}

void bxi_timers_look(struct bx_job *job)
{
    bxi_fire_timers(job, bxi_now_ns());
    bxi_lock(&job->run->lock);
    if (job->run->loop_fd < 0)
        bxi_timer_added(job);
    else
        set_until(job, bxi_timers_next_ns(&job->run->timers));   /* timer_fd was read, and is not set any more */
    bxi_unlock(&job->run->lock);
}

/* ---- one pass (role) --------------------------------------------------------------------------- */

static bool any_bell_due(struct bx_job *job)
{
    /* Relaxed: this thread's own frames are in it; another thread flushes its own. */
    return (bxi_load_relaxed(&job->rpc->bells_due[0]) | bxi_load_relaxed(&job->rpc->bells_due[1])) != 0;
}

static void ring_what_is_due(struct bx_job *job)
{
    if (any_bell_due(job) && (bxi_load_relaxed(&job->rpc->bells_urgent) != 0 || job->run->spin_ns == 0 ||
                              bxi_load_relaxed(&job->run->pass) - bxi_load_relaxed(&job->rpc->bells_pass) >=
                                  BXI_DEFER_PASSES))
        bxi_bells_flush(job);
}

int bxi_pass(struct bx_job *job, struct bxi_waiter *waiter)
{
    int handled = 0;

    bxi_count(&job->run->pass, 1);
    job->run->pass_ns = 0;
    if (bxi_load_relaxed(&job->run->events) != 0) {
        bxi_look_events(job);
        handled++;
    }
    for (int i = 0; i < (int)bxi_load_relaxed(&job->rpc->in_count); i++) {
        handled += bxi_read_ring(job, job->rpc->in_peers[i], waiter, BXI_FRAMES_A_PASS);
        if (handled > 0 && waiter != NULL && waiter->ready(waiter))
            break;
    }
    if (bxi_starved_look(job, false))
        handled++;
    ring_what_is_due(job);
    if ((bxi_load_relaxed(&job->run->pass) & 255) == 0) {
        uint64_t now_ns = bxi_coarse_ns();

        handled += bxi_fire_timers(job, now_ns);
        bxi_devices_look(job, now_ns);
        if (waiter != NULL)
            bxi_wait_show(job, &waiter->shown);     /* busy, it never sleeps */
    }
    bxi_trace_passed(job);
    return handled;
}

/* Is there anything that a pass would find? Under the role, behind the arming fence. */
bool bxi_work_waits(struct bx_job *job)
{
    /* [events] sequentially consistent, pairs with the addition in bxi_event. */
    if (bxi_load_seq_cst(&job->run->events) != 0)
        return true;
    for (int i = 0; i < (int)bxi_load_relaxed(&job->rpc->in_count); i++) {
        const struct bxi_peer *peer = job->rpc->in_peers[i];

        /* A frame that waits for device memory is told of by an event. */
        if (bxi_ring_ready(&peer->in) && (peer->lend->held == NULL || !bxi_device_is_pending(peer->lend->held)))
            return true;
    }
    /* A consumer that published credit before this thread armed saw the wish, but nobody to ring. A thread that leaves
     * the role without a sleep has not made the wish yet. */
    return bxi_starved_look(job, true);
}

/* ---- the role ---------------------------------------------------------------------------------- */

bool bxi_take_role(struct bx_job *job)
{
    uint32_t free = 0;

    /* [role] acquire, pairs with the exchange in bxi_leave_role: what the last holder did is seen. */
    if (bxi_load_relaxed(&job->run->role) != 0 || !bxi_cas(&job->run->role, &free, 1))
        return false;
    driving = job;
    bxi_bell_disarm(&job->run->bell);
    return true;
}

void bxi_forget_role(void)
{
    driving = NULL;
}

void bxi_signal_waiter(struct bxi_waiter *waiter)
{
    /* [waiter.signal] pairs with the exchange in sleep_in_futex. */
    if (bxi_exchange(&waiter->signal, 2) == 1)
        syscall(SYS_futex, &waiter->signal, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void bxi_offer_role(struct bx_job *job)
{
    bxi_lock(&job->run->wait_lock);
    for (struct bxi_waiter *waiter = job->run->waiters; waiter != NULL; waiter = waiter->next) {
        if (!waiter->passive && bxi_load_relaxed(&waiter->signal) != 2) {
            bxi_signal_waiter(waiter);
            break;
        }
    }
    bxi_unlock(&job->run->wait_lock);
}

/* Arms for the background thread, and fences. Replies that nobody needs yet do not wake it. */
static void arm_background(struct bx_job *job)
{
    for (;;) {
        /* [eager] sequentially consistent, pairs with the addition in bxi_more_eager: either the second
         * load here sees it, or that thread sees the word LAZY. */
        bool lazy = bxi_load_seq_cst(&job->run->eager) == 0 && job->run->loop_fd < 0;

        bxi_bell_arm(&job->run->bell, lazy ? BXI_WHO_LAZY : BXI_WHO_BACKGROUND);
        bxi_fence_seq_cst();        /* [bell.armed] the sleeper's fence, pairs with bxi_bells_flush */
        if (!lazy || bxi_load_seq_cst(&job->run->eager) == 0)
            return;
    }
}

/* Leaves the role. If there is work: returns false with the role kept; with `anyway`, leaves it to the
 * background thread. */
bool bxi_leave_role(struct bx_job *job, bool anyway)
{
    bool work;

    bxi_bells_flush(job);
    arm_background(job);
    work = bxi_work_waits(job);
    if (work && !anyway) {
        bxi_bell_disarm(&job->run->bell);
        return false;
    }
    driving = NULL;
    /* [role] sequentially consistent, pairs with the CAS in bxi_take_role; and with the count in follow:
     * either that thread's CAS succeeds, or its count is seen here. */
    atomic_exchange(&job->run->role, 0);
    if (work)
        bxi_bell_ring(job->run->bell_fd[0]);
    if (bxi_load_seq_cst(&job->run->followers) != 0)
        bxi_offer_role(job);
    return true;
}

/* Whose eventfd the armed word names; -1 if this worker is awake. */
static int armed_fd(struct bx_job *job)
{
    /* [bell.armed] relaxed, behind the caller's fence. */
    uint64_t who = bxi_load_relaxed(job->run->bell.word) & 3;

    return who == BXI_AWAKE ? -1 : job->run->bell_fd[who == BXI_WHO_LEADER];
}

void bxi_less_eager(struct bx_job *job)
{
    bxi_add_seq_cst(&job->run->eager, (uint32_t)-1);
}

void bxi_more_eager(struct bx_job *job)
{
    /* [eager] sequentially consistent, pairs with the loads in arm_background. */
    bxi_add_seq_cst(&job->run->eager, 1);
    if (driving == job || job->run->bell.word == NULL)
        return;
    bxi_fence_seq_cst();
    while ((bxi_load_relaxed(job->run->bell.word) & 3) == BXI_WHO_LAZY) {
        if (bxi_take_role(job))
            bxi_leave_role(job, true);      /* arms anew, and looks */
        else
            sched_yield();              /* somebody is about to leave, or has just come */
    }
}

void bxi_poke(struct bx_job *job)
{
    if (no_wait_depth > 0 || bxi_load_relaxed(&job->phase) == BXI_STOPPED || job->run->bell.word == NULL ||
        bxi_load_relaxed(&bxi_forks) != job->fork_generation || !bxi_take_role(job))
        return;
    bxi_error_enter();
    bxi_pass(job, NULL);
    bxi_leave_role(job, true);
    bxi_error_leave();
}

/* Takes the role. If somebody else holds it, makes sure that the holder sees the events. */
bool bxi_take_role_or_tell(struct bx_job *job)
{
    while (!bxi_take_role(job)) {
        /* [events] sequentially consistent, pairs with work_waits: the holder sees the event before it
         * sleeps or leaves, or this sees that it has armed. */
        if (bxi_load_seq_cst(&job->run->events) == 0)
            return false;
        bxi_fence_seq_cst();

        int fd = armed_fd(job);

        if (fd == job->run->bell_fd[1])
            bxi_bell_ring(fd);
        if (fd != job->run->bell_fd[0])
            return false;
        sched_yield();      /* it is leaving */
    }
    return true;
}

void bxi_event(struct bx_job *job, uint32_t bits)
{
    /* [events] sequentially consistent, pairs with the load in work_waits across the arming fence. */
    atomic_fetch_or(&job->run->events, bits);
    if (driving == job || job->run->bell.word == NULL)
        return;
    bxi_fence_seq_cst();

    int fd = armed_fd(job);

    if (fd >= 0)
        bxi_bell_ring(fd);
}

/* ---- spinning ---------------------------------------------------------------------------------- */

/* Are more workers awake, or have just been rung, than there are CPUs? Then the one that is waited for may
 * be the one that cannot run, and a spin gives its CPU away between looks. */
static bool is_crowded(struct bx_job *job)
{
    int awake = 1;

    for (int rank = 0; rank < job->world_size && job->world_size > job->run->cpus; rank++) {
        const struct bxi_peer *peer = &job->rpc->peers[rank];
        /* Relaxed: a guess is enough. */
        uint64_t word = rank != job->rank ? bxi_load_relaxed(peer->bell.word) : 0;

        awake += rank != job->rank && bxi_load_relaxed(&peer->state) == BXI_PEER_ALIVE &&
                 ((word & 3) == BXI_AWAKE || word == bxi_load_relaxed((bxi_a64 *)&peer->bell.rang_for));
    }
    return awake > job->run->cpus;
}

/* Looks at nothing but commit words, events and the wish, which costs a few nanoseconds a time. */
static void look_closely(struct bx_job *job, struct bxi_waiter *waiter, bool pause)
{
    int count = (int)bxi_load_relaxed(&job->rpc->in_count);

    for (int looks = 0; looks < LOOKS; looks++) {
        for (int i = 0; i < count; i++)
            if (bxi_ring_ready(&job->rpc->in_peers[i]->in))
                return;
        if (bxi_load_relaxed(&job->run->events) != 0 || (waiter != NULL && waiter->ready(waiter)))
            return;
        if (pause)
            bxi_pause();
    }
}

/* After an empty pass: look on for a while and pass again (true), or is the budget spent? */
bool bxi_spin_on(struct bx_job *job, struct bxi_spin *spin, struct bxi_waiter *waiter)
{
    if (spin->rounds == 0) {
        if (job->run->spin_ns == 0 || job->run->spin_skips > 0) {
            job->run->spin_skips -= job->run->spin_skips > 0;
            return false;
        }
        spin->crowded = is_crowded(job);
        bxi_store_relaxed(&bxi_tables(job->control)->now.spins, 1);     /* relaxed: for inspectors */
    }
    look_closely(job, waiter, spin->rounds >= HOT_ROUNDS);
    if (spin->crowded)
        sched_yield();
    if (++spin->rounds % HOT_ROUNDS != 0)
        return true;

    uint64_t now_ns = bxi_now_ns();

    if (spin->began_ns == 0)
        spin->began_ns = now_ns;
    if (now_ns - spin->began_ns < job->run->spin_ns)
        return true;
    /* Spins that end in sleep may be what keeps the one who is waited for from running: sleep at once the
     * next 2, 4, 8, 16 times, until one pays. */
    bxi_counter_add(job, BXI_C_spins_missed, 1);
    bxi_store_relaxed(&bxi_tables(job->control)->now.spins, 0);         /* relaxed: as above */
    job->run->spin_misses += job->run->spin_misses < 4;
    job->run->spin_skips = 1u << job->run->spin_misses;
    return false;
}

/* A spin ended with work: it paid. A sleep ended after slept_ns: would a longer spin have? */
void bxi_spin_paid(struct bx_job *job, struct bxi_spin *spin)
{
    if (spin->rounds > 0) {
        bxi_counter_add(job, BXI_C_spins_hit, 1);
        bxi_store_relaxed(&bxi_tables(job->control)->now.spins, 0);     /* relaxed: as above */
        job->run->spin_misses = 0;
    }
    if (spin->began_ns != 0 && job->run->spin_ns < job->options.spin_ns)
        job->run->spin_ns += job->run->spin_ns / 8;
    *spin = (struct bxi_spin){ 0 };
}

void bxi_adapt_spin(struct bx_job *job, uint64_t slept_ns)
{
    uint64_t most = job->options.spin_ns;

    if (job->run->spin_ns == 0)
        return;
    if (slept_ns < most)
        job->run->spin_ns = job->run->spin_ns * 2 < most ? job->run->spin_ns * 2 : most;
    else if (job->run->spin_ns / 2 >= SPIN_LEAST_NS)
        job->run->spin_ns /= 2;
}

/* ---- shared with the threads that sleep ----------------------------------------------------------- */

void bxi_count_wait(struct bx_job *job, enum bxi_sleeper_kind kind)
{
    enum bxi_counter waits = kind == BXI_SLEEPER_URING ? BXI_C_waits_uring : BXI_C_waits_epoll;

    bxi_add(&job->counters[waits], 1);
    bxi_add(&job->counters[BXI_C_wakeups], 1);
}

/* Before sleeping. A producer that waits for credit hears of it. */
void bxi_publish_credits(struct bx_job *job)
{
    bool published = false;

    for (int i = 0; i < (int)bxi_load_relaxed(&job->rpc->in_count); i++)
        published |= bxi_ring_publish(&job->rpc->in_peers[i]->in);
    if (published)
        bxi_wanted_look(job);
}

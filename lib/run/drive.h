/* SPDX-License-Identifier: MIT */
/*
 * What the files of run share, and no other room includes: the role, the functions that need it, sleeping.
 */
#ifndef BXI_DRIVE_H
#define BXI_DRIVE_H

#include "run.h"

/* ---- progress.c: the role -------------------------------------------------------------------------- */

/* A role is the address of its word. */
static inline struct bxi_run *bxi_run_of(const struct bxi_role *role)
{
    return (struct bxi_run *)(void *)((char *)(uintptr_t)role - offsetof(struct bxi_run, role));
}

const struct bxi_role *bxi_take_role(struct bxi_run *run);     /* NULL: another thread has it */
/* Takes it; if another thread holds it, makes sure that the holder sees the events. */
const struct bxi_role *bxi_take_role_or_tell(struct bxi_run *run);
/* Gives it up. If there is work: false, with the role kept; with `anyway`, leaves the work to the background thread. */
bool bxi_leave_role(const struct bxi_role *role, bool anyway);
void bxi_offer_role(struct bxi_run *run);
/* wait_lock. Those who wait for object; NULL: all. */
void bxi_signal_waiters(struct bxi_run *run, const void *object);
/* Signals all waiters if signal_all is set and wait_lock is free. */
void bxi_signal_all(struct bxi_run *run);
/* bxi_unlock for wait_lock: its holder does what bxi_run_interrupt could not do meanwhile. */
static inline void bxi_unlock_waits(struct bxi_run *run)
{
    bxi_unlock(&run->wait_lock);
    bxi_fence_seq_cst();            /* [signal_all] pairs with the fence in bxi_run_interrupt */
    if (bxi_load_relaxed(&run->signal_all) != 0)
        bxi_signal_all(run);
}

/* ---- progress.c: the sources ----------------------------------------------------------------------- */

int bxi_pass(const struct bxi_role *role, struct bxi_waiter *waiter);      /* how much was handled */
bool bxi_work_waits(const struct bxi_role *role);               /* behind the arming fence */
bool bxi_peek(struct bxi_run *run, int times);
void bxi_flush(struct bxi_run *run);
/* Also fires the deadlines that are due. True: there is work again. */
bool bxi_before_sleep(const struct bxi_role *role, uint64_t now_ns);
uint64_t bxi_next_deadline_ns(struct bxi_run *run, uint64_t now_ns);       /* of the sources, not of timers */
void bxi_watchdog(const struct bxi_role *role);

static inline const struct bxi_source *bxi_end_of_sources(struct bxi_run *run)
{
    /* [run.sources] acquire, pairs with the release in bxi_run_add: the sources are written. */
    return run->sources + bxi_load_acquire(&run->source_count);
}

/* For each source that has the function fn. */
#define BXI_FOR_SOURCES(run, fn)                                                                        \
    for (const struct bxi_source *source = (run)->sources, *end = bxi_end_of_sources(run); source < end; source++) \
        if (source->ops->fn != NULL)

/* ---- timer.c --------------------------------------------------------------------------------------- */

int bxi_heap_set(struct bxi_timers *timers, struct bxi_timer *timer, uint64_t at_ns);   /* 0, -ENOMEM */
void bxi_heap_clear(struct bxi_timers *timers, struct bxi_timer *timer);
uint64_t bxi_heap_next_ns(const struct bxi_timers *timers);     /* BX_FOREVER if it is empty */

bool bxi_fire_timers(const struct bxi_role *role, uint64_t now_ns);        /* true if any was due */
uint64_t bxi_next_timer_ns(struct bxi_run *run);
void bxi_timers_due(const struct bxi_role *role);               /* BXI_EVENT_TIMER: fires, and notes the next */
/* The same as bxi_next_timer_ns, noted for bxi_timer_set; own_loop: timer_fd is set to it. BX_FOREVER if it is due
 * at now_ns and the holder of the role has been told. */
uint64_t bxi_until_when(struct bxi_run *run, uint64_t now_ns);

/* The same, but a bell that is armed LAZY stays so, and *quiet says that: until bxi_leave_role_quietly, or until this
 * thread disarms it and goes on as if it had taken the role in the usual way. */
const struct bxi_role *bxi_take_role_quietly(struct bxi_run *run, bool *quiet);
void bxi_leave_role_quietly(const struct bxi_role *role);
/* The background thread was rung, so requests come: the next waits are not quiet, and their senders ring no bells. So
 * one bell, a system call of its sender, is paid in so many waits at most. */
#define BXI_LOUD_WAITS 1024u
static inline void bxi_be_loud(struct bxi_run *run)
{
    bxi_store_relaxed(&run->loud_waits, BXI_LOUD_WAITS);        /* relaxed: a hint; any thread writes it */
}

/* ---- spin.c ---------------------------------------------------------------------------------------- */

struct bxi_spin {
    uint32_t rounds;                    /* of peeks */
    uint64_t began_ns;
    bool yields;                        /* the CPU, between two rounds */
    bool has_yielded;
};
void bxi_spin_init(struct bxi_run *run, uint64_t spin_ns);      /* the budget at first, and at most; 0: none */
/* After an empty pass. True: it has peeked for a while, pass again; false: the budget is spent. */
bool bxi_spin_on(const struct bxi_role *role, struct bxi_spin *spin, struct bxi_waiter *waiter);
/* Another process of the job needs this CPU. */
static inline bool bxi_is_crowded(const struct bxi_run *run)
{
    return run->host->is_crowded(run->context);
}
/* The budget allows a spin, no other process needs the CPU, and the next pass is no 256th, which does more. */
static inline bool bxi_spin_may_begin(const struct bxi_run *run)
{
    return run->spin_ns > 0 && run->spin_skips == 0 && (bxi_load_relaxed((bxi_a64 *)&run->pass) + 1) % 256 != 0 &&
           !bxi_is_crowded(run);
}
void bxi_spin_paid_off(const struct bxi_role *role, struct bxi_spin *spin);
static inline void bxi_spin_hit(const struct bxi_role *role, struct bxi_spin *spin)        /* it ended with work */
{
    if (spin->rounds > 0)
        bxi_spin_paid_off(role, spin);
}
void bxi_adapt_spin(const struct bxi_role *role, uint64_t slept_ns);       /* a bell ended a sleep */

/* ---- sleep.c --------------------------------------------------------------------------------------- */

/* A wait of the background thread, counted, and shown to the host. A change of the sleeper's kind and a failure are
 * logged, the latter once (*failed). How many tokens, of BXI_SLEEPER_FDS at most; -errno. */
int bxi_sleep(struct bxi_run *run, struct bxi_sleeper *sleeper, uint64_t timeout_ns, uint64_t *tokens, bool *failed);
/* On the leader's eventfd. True if a bell or an event ended it. */
bool bxi_sleep_as_leader(const struct bxi_role *role, uint64_t timeout_ns);
/* After a sleep that nobody ended and that was to last until then: counts what the bell should have announced, unless
 * the bell is rung late. waiter: who slept as the leader; or NULL. */
void bxi_count_late(struct bxi_run *run, uint64_t until_ns, int bell_fd, struct bxi_waiter *waiter);

/* ---- watched.c ---------------------------------------------------------------------------------- */

void bxi_run_unwatch(struct bxi_run *run, uint64_t token);     /* the background thread: it was readable */
void bxi_read_loop(struct bxi_run *run);        /* own_loop: takes what its descriptor announces */

/* ---- counters -------------------------------------------------------------------------------------- */

static inline void bxi_run_count(struct bxi_run *run, enum bxi_counter counter)
{
    bxi_count(&run->counters[counter], 1);
}

#endif

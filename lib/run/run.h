/* SPDX-License-Identifier: MIT */
/*
 * run: which thread drives the worker, how threads wait, when deadlines fire. It knows nothing of RPC.
 *
 * The work is behind sources: RPC (rings, queues for full rings, bells, leases: rpc/source.c), devices, the trace. A
 * source is a table of functions and a context; it registers with bxi_run_add. One thread at a time drives, that is, it
 * holds the progress role and calls the sources. The role is a struct bxi_role; only the functions of run can make one,
 * so a function that takes one cannot be called without the role.
 *
 *     driving         pass of each source, again and again: it handles what is there
 *     spinning        peek of each source: is there anything? A few nanoseconds, nothing is handled
 *     before a sleep  flush and before_sleep of each source, then the deadlines that are due; then the bell is armed;
 *                     then, behind a fence, ready of each source: what came before the bell was armed
 *     asleep          until the bell rings, a deadline (bxi_timer_set), or the earliest next_deadline_ns of a source
 *     after a sleep   that nobody ended: watchdog of each source
 *
 * What rings rarely announce (a ring was opened, a peer died, a batch is due) is an event: one bit of a word. Any
 * thread sets it with bxi_event, and the next pass hands it to the source that owns it.
 *
 * What run needs of the job is in struct bxi_host; the clock and the system calls that sleep are in struct bxi_system,
 * and tests replace them (tests/run/test_sources.c).
 *
 * Threads. Functions that take a struct bxi_role: the thread that holds it. bxi_timer_set, bxi_timer_clear and
 * bxi_run_add: under run->lock, and they assert that. bxi_run_init, bxi_run_watch: before bxi_progress_start. All
 * others: any thread; bxi_run_interrupt also a signal handler. No lock is held while a function of a source is called.
 */
#ifndef BXI_RUN_H
#define BXI_RUN_H

#include "base/base.h"
#include "base/counters.h"

#include "shm/doorbell.h"
#include "shm/sleeper.h"

#include <poll.h>

struct bxi_run;
struct bxi_role;                /* defined nowhere: having one means having the role */

/* ---- Timers (run->lock) ---------------------------------------------------------------------------- */

struct bxi_timer {
    uint64_t at_ns;
    uint32_t heap_index;        /* 1-based; 0: not set */
    void (*fire)(void *context, struct bxi_timer *timer);   /* the host's context; with the lock held, by the role */
};
struct bxi_timers {             /* a binary heap */
    struct bxi_timer **heap;
    uint32_t count;
    uint32_t capacity;
};

/* ---- Waiting ------------------------------------------------------------------------------------- */

/* A thread's wait, for inspectors (observe/wait_show.c). */
struct bxi_wait_shown {
    uint8_t reason;             /* enum bxi_for; 0: what the job does */
    uint8_t row;                /* in the table of waits, plus 1; 0: it has none */
    int16_t to;                 /* of CALL, ROOM and LOANS: the rank that is waited for; < 0: any */
    uint64_t id;                /* of CALL */
};

/* One thread that waits. ready() stays true once it is; object is what the thread that makes it true passes to
 * bxi_wake. */
struct bxi_waiter {
    bool (*ready)(struct bxi_waiter *waiter);
    const void *object;
    uint64_t deadline_ns;
    bool passive;               /* never drives: the background thread does */
    bool lasts;                 /* bxi_run_interrupt does not end it: a wait of the job's end */
    /* Or NULL. A thread that leads and may spin calls it once, before its first pass. It polls, for a microsecond or
     * two, what makes the waiter ready, and handles it. True: the waiter is ready. False: nothing was done. */
    bool (*straight)(struct bxi_waiter *waiter, const struct bxi_role *role);
    /* Or NULL. Do other workers have to do something first? A guess. */
    bool (*needs_others)(const struct bxi_waiter *waiter);
    struct bxi_wait_shown shown;
    bxi_a32 signal;             /* 0 awake, 1 asleep in the futex, 2 signalled */
    struct bxi_waiter *next, *prev;
};

/* ---- Sources ------------------------------------------------------------------------------------- */

/* Each function may be NULL. */
struct bxi_source_ops {
    uint32_t events;            /* the bits that handle takes; a bit has one owner, which bxi_run_add asserts */
    /* One event, before the next pass. Events are handed out from the lowest bit up. */
    void (*handle)(void *context, const struct bxi_role *role, uint32_t event);
    /* Handles what is there; returns how much. It returns early when the waiter (or NULL) is ready. */
    int (*pass)(void *context, const struct bxi_role *role, struct bxi_waiter *waiter);
    /* After every 256 passes: what does not depend on work. coarse_ns is the coarse clock. */
    void (*now_and_then)(void *context, const struct bxi_role *role, uint64_t coarse_ns);
    /* While spinning: would a pass find something? Checked so many times, or until it would. Cheap; it may overlook
     * work that is announced by an event. */
    bool (*peek)(void *context, int times);
    /* Behind the arming fence: would a pass find something? It overlooks nothing that was published before the bell
     * was armed: nobody rings for that. */
    bool (*ready)(void *context, const struct bxi_role *role);
    /* Announces what this thread has sent. Any thread, before it sleeps, follows or gives up the role. */
    void (*flush)(void *context);
    /* Before the thread that drives arms the bell: publishes what others wait for. True: there is work again. */
    bool (*before_sleep)(void *context, const struct bxi_role *role);
    /* Timers have fired; without the lock. */
    void (*timers_fired)(void *context, const struct bxi_role *role);
    /* Until when a sleep that begins now may last at most; BX_FOREVER. Any thread that is about to sleep. */
    uint64_t (*next_deadline_ns)(void *context, uint64_t now_ns);
    /* A sleep has lasted until then, or until a timer was due, and nobody ended it. */
    void (*watchdog)(void *context, const struct bxi_role *role);
};
struct bxi_source {
    const struct bxi_source_ops *ops;
    void *context;
};
#define BXI_SOURCES_MAX 8
#define BXI_WATCHDOG_NS UINT64_C(1000000000)    /* for next_deadline_ns of a source that wants a watchdog */

/* The events that run itself sets. All others are their sources'. */
#define BXI_EVENT_SCAN 1u       /* the background's eventfd was rung: something was announced that no ring shows */
#define BXI_EVENT_TIMER 4u      /* run's own: a deadline is due, seen by a thread that did not get the role */
#define BXI_EVENT_INTERRUPT 256u        /* run's own: ends a spin (interrupt.c) */

/* ---- What run needs of the job, and of the system ----------------------------------------------------- */

enum bxi_sleeps { BXI_SLEEPS_BACKGROUND = 0, BXI_SLEEPS_LEADER = 1, BXI_SLEEPS_FOLLOWER = 2 };
enum bxi_sleeps_by { BXI_SLEEPS_BY_URING, BXI_SLEEPS_BY_EPOLL, BXI_SLEEPS_BY_FUTEX, BXI_SLEEPS_BY_POLL };

struct bxi_host {
    /* A descriptor of bxi_run_watch is readable; it is not watched any more by the thread that saw it. Without the
     * role, before the next pass; it may use bxi_note. */
    void (*readable)(void *context, uint64_t token);
    void (*thread_begins)(void *context);       /* the background thread, in itself */
    /* Wakes the threads that were handed work in a pass, which had set run->calls. With or without the role. */
    void (*call)(void *context);
    /* More processes of the job are awake than there are CPUs: a spin yields. */
    bool (*is_crowded)(void *context);
    /* A wait lasts: the thread is about to sleep, or has driven for 256 passes. It may set waiter->row. */
    void (*wait_lasts)(void *context, struct bxi_waiter *waiter);
    /* Begin and end of each wait of a thread of bxi_report_waits; the end also of one that has a row. */
    void (*wait_begins)(void *context, struct bxi_waiter *waiter);
    void (*wait_ends)(void *context, struct bxi_waiter *waiter);
    /* A thread is about to sleep, with no bell armed by it: for what takes long. Then the system call begins, and has
     * returned; what sleeps returned is began_ns. */
    void (*before_sleep)(void *context);
    uint64_t (*sleeps)(void *context, enum bxi_sleeps who);
    void (*woke)(void *context, enum bxi_sleeps who, enum bxi_sleeps_by by, bool rung, uint64_t began_ns);
};

/* The clocks, and the system calls that sleep or yield. The names of the real ones are in sleep.c. */
struct bxi_system {
    uint64_t (*now_ns)(void);
    uint64_t (*coarse_ns)(void);
    uint64_t (*thread_ns)(void);                /* CPU time of this thread */
    void (*yield)(void);                        /* the CPU, to another thread */
    int (*create)(enum bxi_sleeper_kind kind, struct bxi_sleeper **sleeper);
    void (*destroy)(struct bxi_sleeper *sleeper);
    enum bxi_sleeper_kind (*kind)(const struct bxi_sleeper *sleeper);
    int (*watch)(struct bxi_sleeper *sleeper, int fd, uint64_t token);
    void (*forget)(struct bxi_sleeper *sleeper, uint64_t token);
    int (*wait)(struct bxi_sleeper *sleeper, uint64_t timeout_ns, uint64_t *tokens, int most);
    int (*sleep_on)(struct pollfd *fds, nfds_t count, uint64_t timeout_ns);
    int (*poll)(struct pollfd *fds, nfds_t count, int timeout_ms);
    void (*wait_while_1)(bxi_a32 *word, uint64_t deadline_ns);      /* until it is woken, at most until the deadline */
};
extern const struct bxi_system bxi_real_system;

/* ---- The part of the job --------------------------------------------------------------------------- */

struct bxi_watched {
    int fd;
    uint64_t token;
};
#define BXI_TOKEN_BELL 100000u          /* run's own; those of bxi_run_watch are below */
#define BXI_TOKEN_TIMER 100001u

struct bxi_run {
    const struct bxi_host *host;                /* start, to loop_fd */
    const struct bxi_system *system;
    void *context;                              /* the host's, and of timers */
    const char *name;                           /* of the worker, in the log */
    uint32_t fork_generation;
    enum bxi_sleeper_kind sleeper_kind;
    int cpus;                                   /* that the workers may use together */
    bxi_a32 cpus_are_shared;                    /* there are more workers; relaxed */
    int bell_fd[2];                             /* background, leader */
    int loop_fd;                                /* own_loop: epoll; else -1 */
    int timer_fd;                               /* own_loop: the next deadline, set under the lock; else -1 */
    bxi_a32 background_runs;                    /* written by start and end; any thread that waits reads it */
    pthread_t background;                       /* wait_lock */
    bool has_predecessor;                       /* the background thread; before it makes its successor */
    pthread_t predecessor;                      /* the same; the background thread that the present one replaced */
    bxi_a32 background_ready;                   /* 1: it can sleep; 1 + errno: it found nothing to sleep with */
    bxi_a32 stop;                               /* any thread */
    bxi_a32 interrupted;                        /* any thread and signal handler; 1: waits end with BX_E_INTERRUPTED */

    _Alignas(BXI_LINE) struct bxi_lock lock;    /* what several threads share of calls and peers; see lib/README.md */
    struct bxi_timers timers;                   /* lock */
    uint64_t background_until_ns;               /* lock; until when the background thread sleeps, or timer_fd is set */

    _Alignas(BXI_LINE) bxi_a32 role;            /* 1 while some thread drives */
    bxi_a32 source_count;                       /* of sources; each is written before this counts it */
    struct bxi_bell bell;                       /* role, to pass */
    struct bxi_run *outer;                      /* what this thread drove when it took this role, in a handler there */
    bxi_a32 loud_waits;                         /* synchronous calls to go until one may wait quietly again */
    uint64_t spin_ns;                           /* the budget as adapted; 0: no spinning */
    uint64_t spin_most_ns;                      /* start */
    uint32_t spin_misses;                       /* in a row */
    uint32_t spin_skips;                        /* sleeps to go before the next try */
    uint32_t spins_to_yield;                    /* from a miss on; 0 from a find before the first yield on */
    uint32_t yield_misses, yield_skips;         /* the same of peeking for the time of a switch; spins to go */
    uint64_t yielded_ns;                        /* when a thread last gave its CPU away */
    uint64_t rests_until_ns;                    /* nothing yields, for that took long; 0: none did yet */
    uint64_t rest_yields;                       /* how many times as long */
    uint32_t turn_hits;                         /* such peeks that found something since then */
    uint64_t yields;                            /* how often it did */
    uint64_t switch_ns;                         /* what that cost, as measured now and then (spin.c) */
    bool calls;                                 /* host->call is due: behind the role, or before the next pass, or
                                                 * before code of the program in this one */
    uint64_t pass_ns;                           /* the coarse clock in this pass; 0: not read yet */
    bxi_a64 pass;                               /* counts passes */
    bxi_a64 *counters;                          /* written when the segment comes and goes, as job->counters */
    bxi_a64 *spins;                             /* for inspectors: 1 while a thread spins */
    struct bxi_source sources[BXI_SOURCES_MAX]; /* in the order of registration */

    _Alignas(BXI_LINE) bxi_a32 events;          /* any thread, all below */
    bxi_a32 eager;                              /* calls with callbacks, and other reasons to read every reply */
    struct bxi_lock wait_lock;                  /* the list of waiters */
    struct bxi_waiter *waiters;                 /* wait_lock */
    bxi_a32 waiting;                            /* in that list */
    bxi_a32 followers;                          /* of them, not passive */
    bxi_a32 signal_all;                         /* written by interrupt.c: the waiters are to be signalled */

    _Alignas(BXI_LINE) int watched_count;       /* start, both */
    struct bxi_watched watched[BXI_SLEEPER_FDS - 2];
};

/* ---- Life (start, unless it says otherwise) ---------------------------------------------------------- */

struct bxi_run_setup {
    const struct bxi_host *host;
    const struct bxi_system *system;
    void *context;
    const char *name;
    uint64_t spin_ns;                           /* 0: no spinning */
    bxi_a64 *counters;                          /* until there is a segment */
};
void bxi_run_init(struct bxi_run *run, const struct bxi_run_setup *setup);     /* of zeroed memory; no descriptors */
void bxi_run_fini(struct bxi_run *run);         /* closes the descriptors */
int bxi_run_open_bells(struct bxi_run *run);    /* 0, -errno */
/* The segment is there: the words in it. armed NULL: it is not, or no longer. */
void bxi_run_attach(struct bxi_run *run, bxi_a64 *armed, bxi_a64 *counters, bxi_a64 *spins);
/* The lock. For the life of the run; sources are called in this order. */
void bxi_run_add(struct bxi_run *run, const struct bxi_source_ops *ops, void *context);
/* host->readable gets the token, which is below BXI_TOKEN_BELL, when fd is readable. */
void bxi_run_watch(struct bxi_run *run, int fd, uint64_t token);
int bxi_progress_start(struct bxi_run *run, bool own_loop);    /* the background thread, or the loop's descriptors */
void bxi_progress_stop(struct bxi_run *run);
void bxi_waits_stop(struct bxi_run *run);       /* every wait ends with BX_E_SHUTDOWN */
/* The end: takes the role for good, so that no pass is made any more. Waits for a thread that holds it, which may be
 * in a handler. After bxi_waits_stop; the background thread and the pool have ended. */
const struct bxi_role *bxi_role_end(struct bxi_run *run);
void bxi_forget_role(void);                     /* the thread that has called bxi_role_end: nothing is left to drive */

/* ---- Waiting and waking ---------------------------------------------------------------------------- */

/* 0 when ready; BX_E_TIMEOUT, BX_E_WOULD_DEADLOCK, BX_E_SHUTDOWN, BX_E_INTERRUPTED, BX_E_HANDLER: this thread leaves
 * (without a sentence). */
int bxi_wait(struct bxi_run *run, struct bxi_waiter *waiter);
/* For a thread that is about to send what another worker answers at once: takes the role, so that this worker need not
 * be rung for it. It ends with bxi_drive_on, before this thread waits or runs what may. NULL: another thread has it, or
 * waits for it. */
const struct bxi_role *bxi_role_early(struct bxi_run *run);
/* Drives until ready, but only as long as a spin finds work and no thread waits for the role; gives the role up. */
void bxi_drive_on(const struct bxi_role *role, struct bxi_waiter *waiter);
/* From now on waits end with BX_E_INTERRUPTED, those under way too, until it is called with false. Safe in a signal
 * handler; changes errno. */
void bxi_run_interrupt(struct bxi_run *run, bool on);
static inline bool bxi_is_interrupted(const struct bxi_run *run)
{
    /* [interrupted] relaxed: what orders it is in interrupt.c. */
    return bxi_load_relaxed((bxi_a32 *)&run->interrupted) != 0;
}
/* This thread's waits are reported to the host (wait_begins, wait_ends) however short they are, not only when they
 * last: for threads of the pool. */
void bxi_report_waits(bool report);
void bxi_wake(struct bxi_run *run, const void *object);    /* those who wait for object (NULL: all) call ready again */
void bxi_event(struct bxi_run *run, uint32_t bits);        /* some thread hands them out soon */
void bxi_note(struct bxi_run *run, uint32_t bits);         /* the same, by a thread that tries the role next: no bell */
void bxi_poke(struct bxi_run *run);                        /* some passes, if nobody else drives */
/* own_loop, or beside the background thread: passes until there is nothing to do, or for long. How much. */
int bxi_run_once(struct bxi_run *run);
/* From now on somebody needs replies to be read though no thread waits for them; until bxi_less_eager. */
void bxi_more_eager(struct bxi_run *run);
void bxi_less_eager(struct bxi_run *run);
bool bxi_may_wait(void);                                    /* false in handlers and callbacks */
void bxi_no_wait_enter(void);                               /* code of the program begins */
void bxi_no_wait_leave(void);
bool bxi_is_driving(const struct bxi_run *run);             /* this thread holds the role */

/* ---- start.c: waits for a descriptor, where nobody drives ------------------------------------------- */

/* 1: fd has one of the events; 0: the deadline has passed; -errno. */
int bxi_poll(int fd, short events, uint64_t deadline_ns);
/* Start: the same; fd may be -1. BX_E_INTERRUPTED with a sentence: bx_job_interrupt. */
int bxi_poll_start(const struct bx_job *job, int fd, short events, uint64_t deadline_ns);
/* Start. BX_E_INTERRUPTED with a sentence; or 0, and the leader's eventfd is not readable. */
int bxi_start_interrupted(const struct bx_job *job);

/* ---- Deadlines ------------------------------------------------------------------------------------- */

/* The lock. Sets it, or moves it; a thread that sleeps past it is woken. 0, -ENOMEM. */
int bxi_timer_set(struct bxi_run *run, struct bxi_timer *timer, uint64_t at_ns);
void bxi_timer_clear(struct bxi_run *run, struct bxi_timer *timer);

static inline uint64_t bxi_least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

#endif

/* SPDX-License-Identifier: MIT */
/*
 * What the room run owns: who drives the worker and who sleeps. progress.c (the role) has the protocol in its head;
 * wait.c has threads that wait, background.c the background thread and one's own loop, timer.c the heap of deadlines.
 */
#ifndef BXI_RUN_H
#define BXI_RUN_H

#include "observe/observe.h"

#include "shm/doorbell.h"
#include "shm/sleeper.h"

#include <signal.h>

/* ---- Timers (lock) ------------------------------------------------------------------------------- */

struct bxi_timer {
    uint64_t at_ns;
    uint32_t heap_index;        /* 1-based; 0: not set */
    void (*fire)(struct bx_job *job, struct bxi_timer *timer);     /* with the lock held */
};
struct bxi_timers {
    struct bxi_timer **heap;
    uint32_t count;
    uint32_t capacity;
};
int bxi_timer_set(struct bxi_timers *timers, struct bxi_timer *timer, uint64_t at_ns);  /* 0, -ENOMEM */
void bxi_timer_clear(struct bxi_timers *timers, struct bxi_timer *timer);
uint64_t bxi_timers_next_ns(const struct bxi_timers *timers);      /* BX_FOREVER if none */

/* ---- Waiting ------------------------------------------------------------------------------------- */

/* One thread that waits for something. ready() is true for good once it is; object is what the one who
 * makes it true names in bxi_wake. */
struct bxi_waiter {
    bool (*ready)(struct bxi_waiter *waiter);
    const void *object;
    uint64_t deadline_ns;
    bool passive;               /* never drives: the background thread does */
    struct bxi_wait_shown shown;
    bxi_a32 signal;             /* 0 awake, 1 asleep in the futex, 2 signalled */
    struct bxi_waiter *next, *prev;
};

enum bxi_event {                /* bits of job->run->events: what a pass must look at besides the rings */
    BXI_EVENT_SCAN = 1,         /* open words, states, refusals of all peers */
    BXI_EVENT_DEATH = 2,        /* death_seen of all peers */
    BXI_EVENT_BATCH = 4,        /* members changed, or a batch is due */
    BXI_EVENT_TIMER = 8,        /* a timer is due, seen by a thread that could not get the role */
    BXI_EVENT_POOL = 16,        /* does the pool's queue move? */
};

/* ---- The part of the job --------------------------------------------------------------------------- */

struct bxi_run {
    enum bxi_sleeper_kind sleeper_kind;         /* start, to loop_fd */
    int cpus;                                   /* that the workers may use together */
    int bell_fd[2];                             /* background, leader */
    int loop_fd;                                /* own_loop: epoll; else -1 */
    int timer_fd;                               /* own_loop: the next deadline, set under the lock; else -1 */
    bool background_runs;
    pthread_t background;                       /* wait_lock */
    bxi_a32 background_ready;                   /* 1: it can sleep; 1 + errno: it found nothing to sleep with */
    bxi_a32 stop;                               /* any thread */

    _Alignas(BXI_LINE) struct bxi_lock lock;    /* what several threads share of calls and peers; see lib/README.md */
    struct bxi_timers timers;                   /* lock */
    uint64_t background_until_ns;               /* lock; until when the background thread sleeps, or timer_fd is set */

    _Alignas(BXI_LINE) bxi_a32 role;            /* 1 while some thread drives */
    struct bxi_bell bell;                       /* role, to pass */
    uint64_t spin_ns;                           /* the budget as adapted */
    uint32_t spin_misses;                       /* in a row */
    uint32_t spin_skips;                        /* sleeps to go before the next try */
    uint64_t pass_ns;                           /* the coarse clock in this pass; 0: not read yet */
    bxi_a64 pass;                               /* counts looks over the rings */

    _Alignas(BXI_LINE) bxi_a32 events;          /* any thread, all below */
    bxi_a32 eager;                              /* calls with callbacks, and others who need every reply read */
    struct bxi_lock wait_lock;                  /* the list of waiters */
    struct bxi_waiter *waiters;                 /* wait_lock */
    bxi_a32 waiting;                            /* in that list */
    bxi_a32 followers;                          /* of them, not passive */
};

#define BXI_TOKEN_BELL 1000u            /* of sleepers; below: a peer's rank */
#define BXI_TOKEN_LOOP 1001u
#define BXI_TOKEN_TIMER 1002u
#define BXI_WATCHDOG_NS UINT64_C(1000000000)

static inline uint64_t bxi_least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- progress.c: for the other files of run --------------------------------------------- */
bool bxi_take_role(struct bx_job *job);
void bxi_forget_role(void);                 /* this thread ended a job and holds its role for ever */
/* Takes it; if somebody else holds it, makes sure that the holder sees the events. */
bool bxi_take_role_or_tell(struct bx_job *job);
bool bxi_leave_role(struct bx_job *job, bool anyway);
void bxi_offer_role(struct bx_job *job);
void bxi_signal_waiter(struct bxi_waiter *waiter);

int bxi_pass(struct bx_job *job, struct bxi_waiter *waiter);       /* role; how much was handled */
bool bxi_work_waits(struct bx_job *job);                           /* role, behind the arming fence */
void bxi_publish_credits(struct bx_job *job);                      /* role, before sleeping */

bool bxi_fire_timers(struct bx_job *job, uint64_t now_ns);         /* role; true if any was due */
uint64_t bxi_next_timer_ns(struct bx_job *job);
void bxi_timers_look(struct bx_job *job);                          /* BXI_EVENT_TIMER: fires, and notes the next */
/* The same as bxi_next_timer_ns, noted for bxi_timer_added; own_loop: timer_fd is set to it. BX_FOREVER if it is due
 * at now_ns and the holder of the role has been told. */
uint64_t bxi_until_when(struct bx_job *job, uint64_t now_ns);
/* After a sleep that nobody ended and that was to last until then: counts a deadline before that which is long past,
 * unless the bell that should have ended the sleep is rung late. */
void bxi_count_late_timer(struct bx_job *job, uint64_t until_ns, int bell_fd);

struct bxi_spin {
    uint32_t rounds;                    /* of looks at the rings */
    uint64_t began_ns;
    bool crowded;
};
/* After an empty pass: look on for a while and pass again (true), or is the budget spent? Role. */
bool bxi_spin_on(struct bx_job *job, struct bxi_spin *spin, struct bxi_waiter *waiter);
void bxi_spin_paid(struct bx_job *job, struct bxi_spin *spin);     /* it ended with work */
void bxi_adapt_spin(struct bx_job *job, uint64_t slept_ns);        /* a bell ended a sleep */
void bxi_count_wait(struct bx_job *job, enum bxi_sleeper_kind kind);

/* ---- background.c ------------------------------------------------------------------------------ */
/* Makes a sleeper of the job's kind, or of the next that is available, that watches all of them. 0, -errno. */
struct bxi_watched {
    int fd;
    uint64_t token;
};
int bxi_make_sleeper(const struct bx_job *job, const struct bxi_watched *watched, int count,
                     struct bxi_sleeper **sleeper);
/* bxi_sleeper_wait, counted. A change of the sleeper's kind and a failure are logged, the latter once for each
 * sleeper (*failed). How many tokens; -errno. */
int bxi_sleep(struct bx_job *job, struct bxi_sleeper *sleeper, uint64_t timeout_ns, uint64_t *tokens, int most,
              bool *failed);
void bxi_look_loop(struct bx_job *job);                            /* own_loop: what its descriptor says */

/* ---- progress.c: for everybody ------------------------------------------------------------------- */
void bxi_signals_of_threads(sigset_t *set);     /* what the library's own threads block */
int bxi_progress_start(struct bx_job *job);     /* the background thread, or own_loop's descriptors */
void bxi_progress_stop(struct bx_job *job);
void bxi_waits_stop(struct bx_job *job);        /* every wait of this job ends with BX_E_SHUTDOWN */
/* The end of the job: takes the role for good, so that no pass is made any more. Waits for a thread that holds it,
 * which may be in a handler. After bxi_waits_stop; the background thread and the pool have ended. */
void bxi_role_end(struct bx_job *job);
/* 0 when ready; BX_E_TIMEOUT, BX_E_WOULD_DEADLOCK, BX_E_SHUTDOWN, BX_E_HANDLER: this thread leaves (without a
 * sentence). */
int bxi_wait(struct bx_job *job, struct bxi_waiter *waiter);
void bxi_wake(struct bx_job *job, const void *object);     /* those who wait for object (NULL: all) look again */
void bxi_event(struct bx_job *job, uint32_t bits);         /* somebody makes a pass soon */
void bxi_poke(struct bx_job *job);                         /* one pass, if nobody else drives */
/* From now on somebody needs replies to be read though no thread waits for them; until less_eager. */
void bxi_more_eager(struct bx_job *job);
void bxi_less_eager(struct bx_job *job);
void bxi_timer_added(struct bx_job *job);                  /* lock; the background thread may have to rise earlier */
bool bxi_may_wait(void);                                    /* false in handlers and callbacks */
void bxi_no_wait_enter(void);
void bxi_no_wait_leave(void);
bool bxi_is_driving(const struct bx_job *job);              /* this thread holds the role */

#endif

/* SPDX-License-Identifier: MIT */
/*
 * What progress.c (the role), wait.c (threads that wait) and background.c (the background thread, one's
 * own loop) share. progress.c has the protocol in its head.
 */
#ifndef BXI_PROGRESS_H
#define BXI_PROGRESS_H

#include "internal.h"

#define BXI_TOKEN_BELL 1000u            /* of sleepers; below: a peer's rank */
#define BXI_TOKEN_LOOP 1001u
#define BXI_TOKEN_TIMER 1002u
#define BXI_WATCHDOG_NS UINT64_C(1000000000)

static inline uint64_t bxi_least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- progress.c -------------------------------------------------------------------------------- */
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

#endif

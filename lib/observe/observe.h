/* SPDX-License-Identifier: MIT */
/*
 * What the room observe owns: what is kept for inspectors beside the counters, and the calls that keep it.
 */
#ifndef BXI_OBSERVE_H
#define BXI_OBSERVE_H

#include "base/base.h"

struct bxi_call;
struct bxi_frame;
struct bxi_trace;
struct bxi_waiter;

#define BXI_WAIT_WORDS ((BXI_WAITS_MAX + 63) / 64)

struct bxi_observe {
    struct bxi_trace *trace;                    /* start; trace.h; NULL: off */
    uint32_t hist_every;                        /* start; of so many calls one is measured; 0: none */
    bxi_a64 private_counters[BXI_COUNTER_COUNT];/* before there is a segment */

    _Alignas(BXI_LINE) bool hist_full;          /* lock, all below: there is no page for another histogram */
    uint32_t free_row_count;
    uint16_t free_rows[BXI_SERVING_MAX];        /* a stack of the segment's rows for requests being served */

    _Alignas(BXI_LINE) bxi_a64 wait_rows[BXI_WAIT_WORDS];   /* any thread: rows of the table of waits that are taken */
};

/* ---- hist.c -------------------------------------------------------------------------------------- */
int bxi_hist_every(const char *text, uint32_t *every);      /* what BX_HIST says, or NULL. 0, -EINVAL */
/* A call begins: the time, if it is to be measured; else 0. */
uint64_t bxi_hist_begin(const struct bx_job *job);
void bxi_hist_end(struct bx_job *job, const struct bxi_call *call, const struct bxi_frame *reply);    /* lock */
uint16_t bxi_span_pack(uint64_t ns);
uint64_t bxi_span_unpack(uint16_t span);

/* ---- wait_show.c --------------------------------------------------------------------------------- */
/* Shows inspectors what this thread waits for, if there is a row free and it has none. Hide before the wait ends. */
void bxi_wait_show(struct bx_job *job, struct bxi_waiter *waiter);
void bxi_wait_hide(struct bx_job *job, struct bxi_waiter *waiter);
uint64_t bxi_thread_id(void);                   /* as the kernel knows it: gettid, once a thread */

#endif

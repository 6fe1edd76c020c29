/* SPDX-License-Identifier: MIT */
/*
 * What the room observe owns: what is kept for inspectors beside the counters, and the calls that keep it.
 */
#ifndef BXI_OBSERVE_H
#define BXI_OBSERVE_H

#include "run/run.h"
#include "tables.h"

struct bxi_trace;

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

/* ---- Counters ------------------------------------------------------------------------------------- */

/* run->lock, or the role, or before there is another thread: one thread at a time adds to a counter. */
static inline void bxi_counter_add(struct bx_job *job, enum bxi_counter counter, uint64_t n)
{
    if (BXI_STATS & BXI_STATS_COUNTERS)
        bxi_count(&job->counters[counter], n);
}

/* ---- hist.c: how long calls take ------------------------------------------------------------------ */

int bxi_hist_every(const char *text, uint32_t *every);      /* what BX_HIST says, or NULL. 0, -EINVAL */
/* A call begins: the time, if it is to be measured; else 0. */
uint64_t bxi_hist_begin(const struct bx_job *job);
/* A measured call, when its reply has been read. */
struct bxi_measured {
    int rank;                   /* of the callee */
    uint16_t function;          /* index in the callee's table */
    const char *name;           /* of the function, BXI_NAME_BYTES */
    uint64_t sent_ns;           /* when the program called */
    uint64_t done_ns;           /* when the handler ended, as the reply says */
    uint16_t span;              /* how long the handler took, as the reply says: bxi_span_pack */
};
/* Counts it in the callee's page of that function; *pages are the callee's, by function, NULL at first. Lock. */
void bxi_hist_end(struct bx_job *job, struct bxi_hist ***pages, const struct bxi_measured *measured);
uint16_t bxi_span_pack(uint64_t ns);
uint64_t bxi_span_unpack(uint16_t span);

/* ---- wait_show.c: threads that wait --------------------------------------------------------------- */

/* Shows what this thread waits for, if a row is free and the wait has none. Hide before the wait ends. */
void bxi_wait_show(struct bx_job *job, struct bxi_wait_shown *shown);
void bxi_wait_hide(struct bx_job *job, struct bxi_wait_shown *shown);
uint64_t bxi_thread_id(void);   /* as the kernel knows it: gettid, once a thread */

#endif

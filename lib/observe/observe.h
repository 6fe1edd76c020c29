/* SPDX-License-Identifier: MIT */
/*
 * The private header of the room observe: its part of the job, and the functions that record for inspectors. trace.h
 * has those of the trace.
 */
#ifndef BXI_OBSERVE_H
#define BXI_OBSERVE_H

#include "run/run.h"
#include "tables.h"

struct bxi_trace;

/* ---- The part of the job --------------------------------------------------------------------------- */

#define BXI_WAIT_WORDS ((BXI_WAITS_MAX + 63) / 64)

struct bxi_observe {
    struct bxi_trace *trace;                    /* start; trace.h; NULL: off */
    uint32_t hist_every;                        /* start; one call in so many is measured; 0: none */
    bxi_a64 private_counters[BXI_COUNTER_COUNT];/* before there is a segment */

    _Alignas(BXI_LINE) bool hist_full;          /* lock, all below: no page is left for another histogram */
    uint32_t free_row_count;
    uint16_t free_rows[BXI_SERVING_MAX];        /* a stack: free rows of the segment's table `serving` */

    _Alignas(BXI_LINE) bxi_a64 wait_rows[BXI_WAIT_WORDS];   /* any thread: taken rows of the table `wait` */
};

/* ---- Counters ------------------------------------------------------------------------------------- */

/* One thread at a time adds to a counter: under run->lock, or with the role, or before there is another thread. */
static inline void bxi_counter_add(struct bx_job *job, enum bxi_counter counter, uint64_t n)
{
    bxi_count(&job->counters[counter], n);
}

/* ---- hist.c: how long calls take ------------------------------------------------------------------ */

/* Reads the value of BX_HIST, or NULL. bx_job_create. 0, -EINVAL. */
int bxi_hist_every(const char *text, uint32_t *every);
/* A call begins. The time if it is to be measured, else 0. rpc/call.c. */
uint64_t bxi_hist_begin(const struct bx_job *job);
/* It was not sent: the next call of this thread is measured, or not, in its place. began_ns is what bxi_hist_begin
 * returned. */
void bxi_hist_again(const struct bx_job *job, uint64_t began_ns);
/* A measured call whose reply has been read. */
struct bxi_measured {
    int rank;                   /* of the callee */
    uint16_t function;          /* index in the callee's table */
    const char *name;           /* of the function, BXI_NAME_BYTES */
    uint64_t sent_ns;           /* when the program called */
    uint64_t done_ns;           /* when the handler ended, by the reply: input */
    uint16_t span;              /* how long the handler took, by the reply: bxi_span_pack */
};
/* Counts the call in the page of its function; *pages: the callee's, by function, NULL at first. Lock. rpc/mark.h. */
void bxi_hist_end(struct bx_job *job, struct bxi_hist ***pages, const struct bxi_measured *measured);
/* A duration in 16 bits, within 1/512. rpc/answer.c packs the handler's for the reply. */
uint16_t bxi_span_pack(uint64_t ns);
uint64_t bxi_span_unpack(uint16_t span);

/* ---- wait_show.c: threads that wait --------------------------------------------------------------- */

/* Shows what this thread waits for, if a row is free and the wait has none yet. The wait must be hidden before it ends.
 * job/drive.c. */
void bxi_wait_show(struct bx_job *job, struct bxi_wait_shown *shown);
void bxi_wait_hide(struct bx_job *job, struct bxi_wait_shown *shown);
uint64_t bxi_thread_id(void);   /* the kernel's: gettid, called once a thread */

#endif

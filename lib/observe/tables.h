/* SPDX-License-Identifier: MIT */
/*
 * The counters and tables that a worker keeps in its control segment for inspectors (shmstat), byte by byte. The
 * engine writes them and never reads another worker's. shm/layout.h reserves their places and has the rule: every
 * page is written by the worker that owns it. shm/LAYOUT.md draws them.
 *
 * Invariants. (The others, by the same numbering, are in shm/layout.h.)
 *  I11 now, wait, counters, pair_counters, loans, batch, serving and the arena's words are for inspectors;
 *      nobody acts on them. What now, wait, batch and serving name there is: ranks below world_size, functions
 *      below function_count, places of enum bxi_where, reasons of enum bxi_for.
 *  I12 call[p][s], behind the lease words, is about slot s of the owner's calls to p: id is 0, or that of the
 *      call, with BXI_CALL_GIVEN_UP when its caller does not wait any more; the other words are written
 *      before it. Rows up to BXI_CALLS_FIRST are allocated with the ring, more when there are so many.
 *  I13 hist[i] is allocated, and its name and who are written, before hist_count > i, and never again; its
 *      words only grow, and the counts of its legs differ by one at most.
 */
#ifndef BXI_TABLES_H
#define BXI_TABLES_H

#include "observe/counters.h"
#include "shm/layout.h"

struct bxi_segment;

#define BXI_CALLS_MAX 1024                              /* calls in flight from one worker to another */
#define BXI_CALLS_FIRST 128                             /* rows that are allocated with the ring */
#define BXI_CALL_GIVEN_UP (UINT64_C(1) << 63)
#define BXI_SERVING_MAX 512                             /* requests of all peers whose whereabouts are shown */
#define BXI_WAITS_MAX 112                               /* threads that wait, and are shown */
#define BXI_WAIT_NOBODY 0xffffu                         /* bxi_wait_row.to: no worker in particular */
#define BXI_HIST_MAX 256                                /* functions of peers whose calls are measured */
#define BXI_HIST_BUCKETS 120

/* Where a request is that is being served: the low byte of bxi_serving.where. */
enum bxi_where {
    BXI_AT_NONE = 0,            /* the row is free */
    BXI_AT_POOL = 1,            /* waits for a thread of the pool */
    BXI_AT_THREAD = 2,          /* a thread of the pool runs its handler: its id in the bits above */
    BXI_AT_BATCH = 3,           /* waits in the batch of its function */
    BXI_AT_BODY = 4,            /* the batch's body runs */
    BXI_AT_FUTURE = 5,          /* an async handler's future is not done */
};

/* Whether a batch's body runs, and where. */
enum bxi_batch_runs {
    BXI_BATCH_RESTS = 0,
    BXI_BATCH_ON_THREAD = 1,    /* of the pool */
    BXI_BATCH_BY_ROLE = 2,      /* where progress is made: nothing is read meanwhile */
};

/* What a thread waits for: bits 32 and up of bxi_wait_row.thread. */
enum bxi_for {
    BXI_FOR_CALL = 1,           /* the end of a call: its id and its callee stand in the row */
    BXI_FOR_FUTURE = 2,         /* a future that is no call's: made by the program, or of several calls */
    BXI_FOR_ROOM = 3,           /* room for a call, or for a one-way call, to the worker `to` */
    BXI_FOR_LOANS = 4,          /* leases that the worker `to`, or anybody, has */
    BXI_FOR_JOB = 5,            /* what the job does: serving, or leaving together */
};

/* The legs of a call. */
enum bxi_leg {
    BXI_LEG_QUEUE = 0,          /* from the call to the beginning of its handler */
    BXI_LEG_HANDLER = 1,        /* to its answer: a batch's body, an async handler's future */
    BXI_LEG_REPLY = 2,          /* to when the caller has read it */
    BXI_LEG_WHOLE = 3,
    BXI_LEGS = 4,
};

/* Counters of one pair, for inspectors only. */
struct bxi_pair_counters {
    bxi_a64 frames_sent;
    bxi_a64 bytes_sent;         /* payload bytes of frames */
    bxi_a64 write_pos;          /* of ring p */
    bxi_a64 times_full;
    bxi_a64 high_water_bytes;
    bxi_a64 frames_received;
    bxi_a64 bytes_received;
    bxi_a64 read_pos;           /* in peer p's ring towards the owner */
};

/* What the owner has on loan to peer p, and holds of p; for inspectors only. */
struct bxi_loans {
    bxi_a64 leases;
    bxi_a64 bytes;
    bxi_a64 oldest_ns;          /* CLOCK_MONOTONIC, when the oldest was granted; 0 if there is none */
    bxi_a64 granted;
    bxi_a64 returned;
    bxi_a64 taken_back;
    bxi_a64 borrowed;           /* leases of p that the owner holds */
    bxi_a64 borrowed_total;
};

/* The inline or async handler that runs in this moment where progress runs, and the pool. For inspectors, all. */
struct bxi_now {
    bxi_a64 since_ns;           /* owner: CLOCK_MONOTONIC_COARSE; 0: none. Last written, first cleared */
    bxi_a64 id;
    bxi_a64 who;                /* caller's rank | function << 16 */
    bxi_a64 spins;              /* 1 while a thread spins for work */
    bxi_a64 pool_stuck_ns;      /* CLOCK_MONOTONIC: the pool's queue has not moved since; 0: it moves. Last written */
    bxi_a64 pool_busy;          /* then: threads that are busy */
    bxi_a64 pool_waiting;       /* then: what waits in the queue */
    uint8_t reserved[8];
};
struct bxi_serving {
    bxi_a64 where;              /* enum bxi_where | thread id << 8; last written, first cleared */
    bxi_a64 id;                 /* the caller's; 0 of a one-way call */
    bxi_a64 who;                /* caller's rank | function << 16 */
    bxi_a64 since_ns;           /* CLOCK_MONOTONIC_COARSE, when it came */
};
struct bxi_wait_row {           /* a thread of the owner that waits in the library */
    bxi_a64 thread;             /* its id | enum bxi_for << 32; 0: free. Last written, first cleared */
    bxi_a64 id;                 /* of the call, without BXI_CALL_GIVEN_UP; else 0 */
    bxi_a64 to;                 /* rank of the callee, or of who is waited for; BXI_WAIT_NOBODY */
    bxi_a64 since_ns;           /* CLOCK_MONOTONIC_COARSE, when the row was taken */
};
struct bxi_batch_words {        /* row i is about function i, if that is a batch */
    bxi_a64 members[2];         /* bits by rank: who is waited for */
    bxi_a64 present[2];         /* who has a row */
    bxi_a64 rows;
    bxi_a64 running;            /* enum bxi_batch_runs */
    bxi_a64 max_rows;
    bxi_a64 flush_after_ns;
};

/* A call of the owner's that has not ended. */
struct bxi_call_row {
    bxi_a64 id;
    bxi_a64 since;              /* CLOCK_MONOTONIC_COARSE << 8 | function */
    bxi_a64 end_pos;            /* of the request in the ring; UINT64_MAX while it is queued */
    bxi_a64 deadline_ns;        /* UINT64_MAX: none */
};

/* How long calls of one function of one peer took, of those that were measured. A page. */
struct bxi_hist {
    char name[BXI_NAME_BYTES];  /* of the function */
    uint64_t who;               /* the peer's rank | function << 16 */
    bxi_a64 max_ns[BXI_LEGS];
    bxi_a64 sum_ns[BXI_LEGS];
    uint8_t reserved[152];
    bxi_a64 bucket[BXI_LEGS][BXI_HIST_BUCKETS];     /* by bxi_hist_bucket */
};

/* The control pages as inspectors see them: `core` is struct bxi_control's own. */
struct bxi_tables {
    uint8_t core0[BXI_TABLES0_OFFSET];
    struct bxi_now now;                                     /* offset 256 */
    struct bxi_wait_row wait[BXI_WAITS_MAX];                /* offset 320 */
    uint8_t pad0[BXI_PAGE - BXI_TABLES0_OFFSET - sizeof(struct bxi_now) - BXI_WAITS_MAX * sizeof(struct bxi_wait_row)];
    bxi_a64 counters[512];                                  /* enum bxi_counter; one page */
    uint8_t core1[BXI_TABLES1_OFFSET - BXI_TABLES0_OFFSET - BXI_TABLES0_BYTES];
    struct bxi_pair_counters pair_counters[BXI_WORLD_MAX];
    uint8_t core2[BXI_TABLES2_OFFSET - BXI_TABLES1_OFFSET - BXI_TABLES1_BYTES];
    struct bxi_loans loans[BXI_WORLD_MAX];
    struct bxi_batch_words batch[BXI_FUNCTION_MAX];
    struct bxi_serving serving[BXI_SERVING_MAX];
};

static_assert(sizeof(struct bxi_pair_counters) == BXI_LINE, "pair counters are a line");
static_assert(sizeof(struct bxi_loans) == BXI_LINE, "loans are a line");
static_assert(sizeof(struct bxi_now) == BXI_LINE, "now is a line");
static_assert(sizeof(struct bxi_batch_words) == BXI_LINE, "a batch is a line");
static_assert(sizeof(struct bxi_wait_row) == 32, "two waits a line");
static_assert(sizeof(struct bxi_serving) == 32 && sizeof(struct bxi_call_row) == 32, "two a line");
static_assert(sizeof(struct bxi_hist) == BXI_PAGE, "a histogram is a page");
static_assert(offsetof(struct bxi_tables, now) == BXI_TABLES0_OFFSET, "now");
static_assert(offsetof(struct bxi_tables, wait) == 320, "wait");
static_assert(offsetof(struct bxi_tables, counters) == 4096, "counters");
static_assert(offsetof(struct bxi_tables, core1) == BXI_TABLES0_OFFSET + BXI_TABLES0_BYTES, "the first region");
static_assert(offsetof(struct bxi_tables, pair_counters) == BXI_TABLES1_OFFSET, "pair_counters");
static_assert(offsetof(struct bxi_tables, core2) == BXI_TABLES1_OFFSET + BXI_TABLES1_BYTES, "the second region");
static_assert(offsetof(struct bxi_tables, loans) == BXI_TABLES2_OFFSET, "loans");
static_assert(offsetof(struct bxi_tables, batch) == 49152, "batch");
static_assert(offsetof(struct bxi_tables, serving) == 57344, "serving");
static_assert(sizeof(struct bxi_tables) == BXI_CONTROL_BYTES, "the third region");
static_assert(BXI_CALLS_MAX * sizeof(struct bxi_call_row) == BXI_CALLS_BYTES, "rows of calls");
static_assert(BXI_CALLS_FIRST * sizeof(struct bxi_call_row) == BXI_CALLS_OPEN_BYTES, "the first of them");
static_assert(BXI_HIST_MAX * sizeof(struct bxi_hist) == BXI_HISTS_BYTES, "histograms");
static_assert((int)BXI_COUNTER_COUNT <= 512, "counters fit their page");

static inline struct bxi_tables *bxi_tables(struct bxi_control *control)
{
    return (struct bxi_tables *)(void *)control;
}

static inline const struct bxi_tables *bxi_tables_view(const struct bxi_control *control)
{
    return (const struct bxi_tables *)(const void *)control;
}

/* Allocates the first `count` rows of the calls to `to`. 0, -EINVAL, -ENOSPC, -errno. */
int bxi_tables_open_calls(struct bxi_segment *segment, int to, uint32_t count);
struct bxi_call_row *bxi_tables_calls(const struct bxi_segment *segment, int to);
/* Allocates the page of histogram i, all zero. 0, -EINVAL, -ENOSPC, -errno. */
int bxi_tables_open_hist(struct bxi_segment *segment, uint32_t i);
struct bxi_hist *bxi_tables_hist(const struct bxi_segment *segment, uint32_t i);

/* Where histogram i lies: between the control pages and the rings. */
static inline uint64_t bxi_hist_offset(uint32_t i)
{
    return BXI_CONTROL_BYTES + (uint64_t)i * sizeof(struct bxi_hist);
}

/* Four buckets an octave: 16 ns wide up to 64 ns, then a quarter of their octave's least; the last one has no
 * end. */
static inline uint32_t bxi_hist_bucket(uint64_t ns)
{
    uint32_t octave, bucket;

    if (ns < 64)
        return (uint32_t)(ns / 16);
    octave = 63 - (uint32_t)__builtin_clzll(ns);
    bucket = 4 + (octave - 6) * 4 + (uint32_t)(ns >> (octave - 2) & 3);
    return bucket < BXI_HIST_BUCKETS ? bucket : BXI_HIST_BUCKETS - 1;
}

/* The least that falls into a bucket. */
static inline uint64_t bxi_hist_least(uint32_t bucket)
{
    if (bucket < 4)
        return bucket * 16;
    return (UINT64_C(4) + bucket % 4) << (bucket / 4 + 3);
}

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The control segment of a worker, byte by byte. LAYOUT.md draws it; tests/shm/test_layout.c holds the two
 * against each other.
 *
 * One rule: every page is written by one process, the owner; everybody else maps it read-only. So a
 * process killed at any instruction leaves its own segment frozen and every other intact, and there is
 * nothing to repair: whatever was published counts, whatever was not does not exist.
 *
 * Invariants. (I1..I14; "peer" is a worker that maps this segment.)
 *  I1  magic, layout_version, the sizes and the identity are written before the segment's descriptor is
 *      handed to anybody, and never again.
 *  I2  state only grows: STARTING < RUNNING < LEAVING < QUIET < LEFT.
 *  I3  armed is (count << 2) | who; count grows with every arming. who != 0 only while a thread of the
 *      owner sleeps or is about to look once more before it sleeps.
 *  I4  pair[p].open goes from 0 to 1 once, after the pages of ring p are allocated; no byte of ring p is
 *      read by anybody before.
 *  I5  pair[p].refused_through only grows; it is a position in peer p's ring towards the owner: every
 *      request that ends at or before it, since the previous value, was dropped because of refused_errno.
 *  I6  credit[p] is the position up to which the owner has consumed peer p's ring:
 *      credit <= write position, and write position - credit <= ring_bytes + ring_bytes / 4: a frame that comes
 *      back says the same, and may be ahead of the word by what is owed at most.
 *  I7  In ring p the commit word at the write position is 0, and every record that the consumer has not read
 *      is whole: {sequence of its position, length}, payload behind it.
 *  I8  A record starts at a multiple of 64 and does not wrap; padding ends exactly at ring_bytes.
 *  I9  function[i] is written before function_count > i, and never again.
 *  I10 lease[p][s], behind ring p, is 0 or a generation of slot s of peer p's ledger; it takes that value
 *      once, when the owner reads none of the memory any more that peer p lent under it. No word of it is
 *      read by anybody before pair[p].open.
 *  I11 now, wait, counters, pair_counters, loans, batch, serving and the arena's words are for inspectors;
 *      nobody acts on them. What now, wait, batch and serving name there is: ranks below world_size, functions
 *      below function_count, places of enum bxi_where, reasons of enum bxi_for.
 *  I12 call[p][s], behind the lease words, is about slot s of the owner's calls to p: id is 0, or that of the
 *      call, with BXI_CALL_GIVEN_UP when its caller does not wait any more; the other words are written
 *      before it. Rows up to BXI_CALLS_FIRST are allocated with the ring, more when there are so many.
 *  I13 hist[i] is allocated, and its name and who are written, before hist_count > i, and never again; its
 *      words only grow, and the counts of its legs differ by one at most.
 *  I14 device_open goes from 0 to 1 once, after the region of device memory and, behind the rows of calls to each
 *      peer, its words for that peer's are allocated; no byte of them is read by anybody before.
 */
#ifndef BXI_LAYOUT_H
#define BXI_LAYOUT_H

#include "atomic.h"
#include "counters.h"

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define BXI_MAGIC UINT64_C(0x0000524143584f42)          /* "BOXCAR\0\0" in memory, little endian */
#define BXI_LAYOUT_VERSION 5u

#define BXI_WORLD_MAX 128
#define BXI_NAME_BYTES 32
#define BXI_LINE 64u
#define BXI_PAGE 4096u
#define BXI_FUNCTION_MAX 128
#define BXI_RING_BYTES 131072u                          /* a power of two */
#define BXI_LEASE_MAX 1024                              /* leases of one peer that are out at a time */
#define BXI_LEASE_BYTES (BXI_LEASE_MAX * 8u)
#define BXI_CALLS_MAX 1024                              /* calls in flight from one worker to another */
#define BXI_CALLS_FIRST 128                             /* rows that are allocated with the ring */
#define BXI_CALLS_BYTES (BXI_CALLS_MAX * 32u)
/* A page to stagger. */
#define BXI_RING_STRIDE (BXI_RING_BYTES + BXI_PAGE + BXI_LEASE_BYTES + BXI_CALLS_BYTES + BXI_DEVICE_PAIR_BYTES)
#define BXI_OPEN_BYTES (BXI_RING_BYTES + BXI_PAGE + BXI_LEASE_BYTES + BXI_CALLS_FIRST * 32u)
#define BXI_SERVING_MAX 512                             /* requests of all peers whose whereabouts are shown */
#define BXI_WAITS_MAX 112                               /* threads that wait, and are shown */
#define BXI_WAIT_NOBODY 0xffffu                         /* bxi_wait_row.to: no worker in particular */
#define BXI_HIST_MAX 256                                /* functions of peers whose calls are measured */
#define BXI_HIST_BUCKETS 120
#define BXI_DEVICE_BYTES 61440u                         /* what a worker shows of its device memory */
#define BXI_DEVICE_PAIR_BYTES 20480u                    /* and of each peer's that it borrows: */
#define BXI_DEVICE_POINTS 4096u                         /* behind so much, a point for each lease word */
#define BXI_CALL_GIVEN_UP (UINT64_C(1) << 63)
#define BXI_FRAME_MAX (BXI_RING_BYTES / 8)              /* payload bytes of the largest record */

enum bxi_state {
    BXI_STARTING = 1,
    BXI_RUNNING = 2,
    BXI_LEAVING = 3,    /* its program asked to leave, and it has no call of its own in flight */
    BXI_QUIET = 4,      /* it saw everybody LEAVING and has nothing left to do */
    BXI_LEFT = 5,       /* it serves nobody any more */
};

/* Who sleeps: the low two bits of the armed word. */
enum bxi_who {
    BXI_AWAKE = 0,
    BXI_WHO_BACKGROUND = 1,     /* ring the first eventfd */
    BXI_WHO_LEADER = 2,         /* ring the second */
    BXI_WHO_LAZY = 3,           /* ring the first, but not for replies */
};

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

/* Comments give: writer; readers, order [partner]. */
struct bxi_header {
    uint64_t magic;             /* owner, I1 */
    uint32_t layout_version;
    uint32_t uid;
    uint32_t pid;               /* for display: the owner lock and the pidfd tell who lives */
    uint32_t rank;
    uint32_t world_size;
    uint32_t ring_bytes;
    uint64_t instance;          /* random id of this run of the job */
    uint64_t segment_bytes;
    uint64_t started_ns;        /* CLOCK_REALTIME */
    char name[BXI_NAME_BYTES];
    char job[BXI_NAME_BYTES];
    uint8_t reserved0[8];
    bxi_a32 state;              /* owner; peers      release / acquire [state] */
    bxi_a32 function_count;     /* owner; peers      release / acquire [functions] */
    uint64_t cpu_mask[2];       /* owner, I1: CPUs it may use, bit number modulo 128 */
    uint64_t arena_bytes;       /* owner, I1: size of its arena */
    bxi_a64 arena_used;         /* owner; inspectors relaxed */
    bxi_a64 arena_committed;    /* owner; inspectors relaxed */
    bxi_a64 arena_high_water;   /* owner; inspectors relaxed */
    bxi_a32 hist_count;         /* owner; inspectors release / acquire [hist] */
    bxi_a32 device_open;        /* owner; peers      release / acquire [device.open] */
    bxi_a64 armed;              /* owner; producers  relaxed around a full fence [bell.armed] */
    uint8_t reserved2[56];
};

/* What the owner, as producer of ring p, tells peer p; and what it could not accept from p. */
struct bxi_pair {
    bxi_a64 open;               /* owner; p          release / acquire [pair.open] */
    bxi_a64 want_credit;        /* owner; p          relaxed around a full fence [ring.want] */
    bxi_a64 refused_through;    /* owner; p          release / acquire [pair.refused] */
    bxi_a64 refused_errno;      /* owner; p          before refused_through */
    bxi_a64 want_lease;         /* owner; p          relaxed around a full fence [lease.want] */
    bxi_a64 given_back;         /* owner; p          release / acquire [lease.count] */
    uint8_t reserved[16];
};

/* How far the owner has consumed peer p's ring, alone in its line: the producer polls it. */
struct bxi_credit {
    bxi_a64 position;           /* owner; p          release / acquire [ring.credit] */
    uint8_t reserved[56];
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

struct bxi_function {
    char name[BXI_NAME_BYTES];
    uint32_t kind;              /* 1 inline, 2 blocking, 3 async, 4 batch: for display */
    uint8_t reserved[28];
};

struct bxi_control {
    struct bxi_header header;                               /* offset 0 */
    struct bxi_now now;                                     /* offset 256 */
    struct bxi_wait_row wait[BXI_WAITS_MAX];                /* offset 320 */
    uint8_t pad0[BXI_PAGE - sizeof(struct bxi_header) - sizeof(struct bxi_now) -
                 BXI_WAITS_MAX * sizeof(struct bxi_wait_row)];
    bxi_a64 counters[512];                                  /* enum bxi_counter; one page */
    struct bxi_pair pair[BXI_WORLD_MAX];
    struct bxi_credit credit[BXI_WORLD_MAX];
    struct bxi_pair_counters pair_counters[BXI_WORLD_MAX];
    struct bxi_function function[BXI_FUNCTION_MAX];
    struct bxi_loans loans[BXI_WORLD_MAX];
    struct bxi_batch_words batch[BXI_FUNCTION_MAX];
    struct bxi_serving serving[BXI_SERVING_MAX];
};

#define BXI_CONTROL_BYTES sizeof(struct bxi_control)
#define BXI_DEVICE_OFFSET (BXI_CONTROL_BYTES + BXI_HIST_MAX * sizeof(struct bxi_hist))
#define BXI_RINGS_OFFSET (BXI_DEVICE_OFFSET + BXI_DEVICE_BYTES)

static_assert(sizeof(struct bxi_header) == 256, "header");
static_assert(offsetof(struct bxi_header, state) == 128, "state");
static_assert(offsetof(struct bxi_header, function_count) == 132, "function_count");
static_assert(offsetof(struct bxi_header, armed) % BXI_LINE == 0, "armed has a line of its own");
static_assert(sizeof(struct bxi_pair) == BXI_LINE, "a pair is a line");
static_assert(sizeof(struct bxi_credit) == BXI_LINE, "a credit is a line");
static_assert(sizeof(struct bxi_pair_counters) == BXI_LINE, "pair counters are a line");
static_assert(sizeof(struct bxi_function) == BXI_LINE, "a function is a line");
static_assert(offsetof(struct bxi_control, counters) == 4096, "counters");
static_assert(offsetof(struct bxi_control, pair) == 8192, "pair");
static_assert(offsetof(struct bxi_control, credit) == 16384, "credit");
static_assert(offsetof(struct bxi_control, pair_counters) == 24576, "pair_counters");
static_assert(offsetof(struct bxi_control, function) == 32768, "function");
static_assert(sizeof(struct bxi_loans) == BXI_LINE, "loans are a line");
static_assert(offsetof(struct bxi_control, loans) == 40960, "loans");
static_assert(sizeof(struct bxi_now) == BXI_LINE, "now is a line");
static_assert(sizeof(struct bxi_batch_words) == BXI_LINE, "a batch is a line");
static_assert(sizeof(struct bxi_wait_row) == 32, "two waits a line");
static_assert(offsetof(struct bxi_control, wait) == 320, "wait");
static_assert(sizeof(struct bxi_serving) == 32 && sizeof(struct bxi_call_row) == 32, "two a line");
static_assert(offsetof(struct bxi_control, batch) == 49152, "batch");
static_assert(offsetof(struct bxi_control, serving) == 57344, "serving");
static_assert(sizeof(struct bxi_control) == 73728, "control");
static_assert(sizeof(struct bxi_hist) == BXI_PAGE, "a histogram is a page");
static_assert((int)BXI_COUNTER_COUNT <= 512, "counters fit their page");

/* Where ring `to` begins. Rings are staggered by a line within the spare page of their stride, so that
 * their first lines do not all fall into one set of the cache. */
static inline uint64_t bxi_ring_offset(int to)
{
    return BXI_RINGS_OFFSET + (uint64_t)to * BXI_RING_STRIDE + ((uint64_t)to % 64) * BXI_LINE;
}

/* Where the words begin by which the owner gives leases of peer `to` back: behind the ring, and allocated
 * with it. */
static inline uint64_t bxi_lease_offset(int to)
{
    return BXI_RINGS_OFFSET + (uint64_t)to * BXI_RING_STRIDE + BXI_RING_BYTES + BXI_PAGE;
}

/* Where the rows begin of the owner's calls to peer `to`. */
static inline uint64_t bxi_calls_offset(int to)
{
    return bxi_lease_offset(to) + BXI_LEASE_BYTES;
}

static inline uint64_t bxi_segment_bytes(int world_size)
{
    return BXI_RINGS_OFFSET + (uint64_t)world_size * BXI_RING_STRIDE;
}

/* Where the owner's words about device memory of peer `to` begin. */
static inline uint64_t bxi_device_pair_offset(int to)
{
    return bxi_calls_offset(to) + BXI_CALLS_BYTES;
}

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

/* SPDX-License-Identifier: MIT */
/*
 * The counters and tables that a worker writes into its control segment for inspectors (shmstat), byte by byte.
 * shm/layout.h reserves their places; its rule holds here too: every page has one writer, the worker that owns it.
 * shm/LAYOUT.md draws the whole segment.
 *
 * Invariants, by the numbers of shm/layout.h.
 *  I11 now, wait, counters, pair_counters, loans, batch, serving and the arena's words are for inspectors; no worker
 *      acts on another's, but for a caller's guess, by batch, whether to yield its CPU. In now, wait, batch and serving
 *      ranks are below world_size, functions below function_count or BXI_FUNCTION_VALUE, places are of enum bxi_where
 *      and reasons of enum bxi_for.
 *  I12 call[p][s], behind the lease words, is about slot s of the owner's calls to p. id is 0 or the call's id, with
 *      BXI_CALL_GIVEN_UP once its caller no longer waits; the other words are written before id. The first
 *      BXI_CALLS_FIRST rows are allocated with the ring, more when there are that many calls.
 *  I13 hist[i] is allocated, and its name and who are written, before hist_count > i; name and who never change. The
 *      other words only grow, and the counts of its legs differ by one at most.
 *  I15 object[i] is allocated before object_rows > i, and object_rows only grows. id is 0 or the id of an object of the
 *      owner, and no two rows have the same one; the other words are written before id, name before state leaves
 *      BXI_OBJECT_TO_COME. state is of enum bxi_object_state; ranks in holders are below world_size, and not the
 *      owner's.
 *  I17 remote[p] is allocated, and its name and host are written, before remote_rows, which is 0 or world_size; both
 *      never change. They are empty if p is on the owner's host. transport is written before round_trip_ns, once.
 */
#ifndef BXI_TABLES_H
#define BXI_TABLES_H

#include "base/counters.h"
#include "shm/layout.h"

#define BXI_CALLS_MAX 1024                              /* calls in flight from one worker to another */
#define BXI_CALLS_FIRST 128                             /* of their rows, allocated with the ring */
#define BXI_CALL_GIVEN_UP (UINT64_C(1) << 63)           /* in bxi_call_row.id: the caller no longer waits */
#define BXI_SERVING_MAX 512                             /* requests of all peers that have a row */
#define BXI_WAITS_MAX 112                               /* waiting threads that have a row */
#define BXI_WAIT_NOBODY 0xffffu                         /* bxi_wait_row.to: no worker in particular */
#define BXI_HIST_MAX 256                                /* functions of peers whose calls are measured */
#define BXI_HIST_BUCKETS 120
#define BXI_OBJECTS_MAX 256                             /* objects of the owner that have a row */
#define BXI_SHOWN_MAX 128                               /* sets of workers have those of lower ranks */
#define BXI_SHOWN_WORDS (BXI_SHOWN_MAX / 64)
#define BXI_TYPE_BYTES 16                               /* of the name of their type; not always terminated */
#define BXI_HOST_BYTES 96                               /* of the name of a host, with the terminator */
#define BXI_TRANSPORT_BYTES 64                          /* likewise of a transport */
#define BXI_FUNCTION_VALUE BXI_FUNCTION_MAX             /* in a function's place: bx_rref_to_here, which calls none */

/* Where a request is: the low byte of bxi_serving.where. */
enum bxi_where {
    BXI_AT_NONE = 0,            /* the row is free */
    BXI_AT_POOL = 1,            /* in the queue of the pool */
    BXI_AT_THREAD = 2,          /* a thread of the pool runs its handler; the thread's id is in the bits above */
    BXI_AT_BATCH = 3,           /* in the batch of its function, which does not run yet */
    BXI_AT_BODY = 4,            /* the batch's body runs */
    BXI_AT_FUTURE = 5,          /* its async handler has returned a future that is not done */
    BXI_AT_OBJECT = 6,          /* it waits until the object is made that it is called on */
};

enum bxi_object_state {
    BXI_OBJECT_TO_COME = 1,     /* the request that makes it has not ended, or has not come */
    BXI_OBJECT_THERE = 2,
    BXI_OBJECT_FAILED = 3,      /* it could not be made, or the owner has none of that id */
};

/* Which thread runs a batch's body. */
enum bxi_batch_runs {
    BXI_BATCH_RESTS = 0,        /* none: it does not run */
    BXI_BATCH_ON_THREAD = 1,    /* a thread of the pool */
    BXI_BATCH_BY_ROLE = 2,      /* the thread with the progress role: no ring is read meanwhile */
};

/* What a thread waits for: bits 32 and up of bxi_wait_row.thread. */
enum bxi_for {
    BXI_FOR_CALL = 1,           /* the end of a call; id and callee are in the row */
    BXI_FOR_FUTURE = 2,         /* a future that is not a call's: the program's own, or one of several calls */
    BXI_FOR_ROOM = 3,           /* room for a call or one-way call to the worker `to` */
    BXI_FOR_LOANS = 4,          /* leases to come back from the worker `to`, or from any */
    BXI_FOR_JOB = 5,            /* the job: in bx_job_serve, or leaving together */
};

/* The legs of a call. */
enum bxi_leg {
    BXI_LEG_QUEUE = 0,          /* from the call until its handler begins */
    BXI_LEG_HANDLER = 1,        /* until it is answered, by the handler, the batch's body or the async future */
    BXI_LEG_REPLY = 2,          /* until the caller has read the reply */
    BXI_LEG_WHOLE = 3,          /* all three */
    BXI_LEGS = 4,
};

/* Row p: counters of the rings between the owner and peer p. */
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

/* Row p: what the owner has lent to peer p, and borrowed from p. */
struct bxi_loans {
    bxi_a64 leases;             /* on loan to p */
    bxi_a64 bytes;
    bxi_a64 oldest_ns;          /* CLOCK_MONOTONIC of the oldest grant; 0 if there is none */
    bxi_a64 granted;
    bxi_a64 returned;
    bxi_a64 taken_back;         /* because p died */
    bxi_a64 borrowed;           /* leases from p that the owner holds */
    bxi_a64 borrowed_total;
};

/* The inline or async handler that runs now, with the progress role; and the pool. */
struct bxi_now {
    bxi_a64 since_ns;           /* CLOCK_MONOTONIC_COARSE; 0: none runs. Written last, cleared first */
    bxi_a64 id;
    bxi_a64 who;                /* caller's rank | function << 16 */
    bxi_a64 spins;              /* 1 while a thread spins for work */
    bxi_a64 pool_stuck_ns;      /* CLOCK_MONOTONIC: the pool's queue has not moved since; 0: it moves. Written last */
    bxi_a64 pool_busy;          /* while it does not move: busy threads */
    bxi_a64 pool_waiting;       /* while it does not move: tasks in the queue */
    uint8_t reserved[8];
};
struct bxi_serving {            /* a request that is not answered yet */
    bxi_a64 where;              /* enum bxi_where | thread id << 8. Written last, cleared first */
    bxi_a64 id;                 /* the caller's; 0 for a one-way call */
    bxi_a64 who;                /* caller's rank | function << 16 */
    bxi_a64 since_ns;           /* CLOCK_MONOTONIC_COARSE, when it was read */
};
struct bxi_wait_row {           /* a thread of the owner that waits in the library */
    bxi_a64 thread;             /* its id | enum bxi_for << 32; 0: free. Written last, cleared first */
    bxi_a64 id;                 /* of the call it waits for, without BXI_CALL_GIVEN_UP; else 0 */
    bxi_a64 to;                 /* rank of the callee, or of the worker waited for; or BXI_WAIT_NOBODY */
    bxi_a64 since_ns;           /* CLOCK_MONOTONIC_COARSE, when the row was taken */
};
struct bxi_batch_words {        /* row i: function i, if it is a batch */
    bxi_a64 members[BXI_SHOWN_WORDS];       /* bits by rank: workers that the batch waits for */
    bxi_a64 present[BXI_SHOWN_WORDS];       /* bits by rank: workers with a row in it */
    bxi_a64 rows;
    bxi_a64 running;            /* enum bxi_batch_runs */
    bxi_a64 max_rows;
    bxi_a64 flush_after_ns;
};

/* A call of the owner's in flight. */
struct bxi_call_row {
    bxi_a64 id;
    bxi_a64 since;              /* CLOCK_MONOTONIC_COARSE << 8 | function */
    bxi_a64 end_pos;            /* of the request in the ring; UINT64_MAX while it is queued */
    bxi_a64 deadline_ns;        /* UINT64_MAX: none */
};

/* Durations of the measured calls of one function of one peer. A page. */
struct bxi_hist {
    char name[BXI_NAME_BYTES];  /* of the function */
    uint64_t who;               /* the peer's rank | function << 16 */
    bxi_a64 max_ns[BXI_LEGS];
    bxi_a64 sum_ns[BXI_LEGS];
    uint8_t reserved[152];
    bxi_a64 bucket[BXI_LEGS][BXI_HIST_BUCKETS];     /* by bxi_hist_bucket */
};

/* An object of the owner to which references exist (lib/rref). A type's name that has no room is cut. */
struct bxi_object_row {
    bxi_a64 id;                 /* of the object; 0: free. Written last, cleared first; no id is used twice */
    bxi_a64 state;              /* enum bxi_object_state */
    bxi_a64 since_ns;           /* CLOCK_MONOTONIC, when the owner first heard of it */
    bxi_a64 holders[BXI_SHOWN_WORDS];       /* bits by rank: other workers that keep it alive */
    bxi_a64 entries;            /* how often all do, in total */
    bxi_a64 name[BXI_TYPE_BYTES / 8];   /* of its type; zero while it is not known */
};

/* Row p: a worker of another host. */
struct bxi_remote_row {
    char name[BXI_NAME_BYTES];
    char host[BXI_HOST_BYTES];
    char transport[BXI_TRANSPORT_BYTES];        /* of UCX, with its device */
    bxi_a64 bytes_sent;         /* of messages to it, with their heads */
    bxi_a64 bytes_received;
    bxi_a64 round_trip_ns;      /* of messages, smoothed; 0: not known yet */
    bxi_a64 is_dead;            /* 1: its death is known here */
    bxi_a64 same_functions[BXI_FUNCTION_MAX / 64];      /* bits by number: its function has the name of the own one */
    uint8_t reserved[16];
};

/* An object's id within its job: who owns it and who made it, the generation of each, which counts the processes that
 * had the rank before, and how many the maker had made there, from 1. From the highest bit on: 0 | owner, 7 bits |
 * maker, 7 | the owner's generation, 5 | the maker's, 5 | number, 39. In a job of more than BXI_WORLD_MAX workers
 * nobody comes back, and it is 1 | owner, 10 bits | maker, 10 | 0, 4 | number, 39. */
#define BXI_RREF_ID_WIDE (UINT64_C(1) << 63)
#define BXI_RREF_COUNT_MASK ((UINT64_C(1) << 39) - 1)
static inline uint64_t bxi_rref_id(int world_size, int owner, int maker, int owner_generation, int maker_generation,
                                   uint64_t number)
{
    if (world_size > BXI_WORLD_MAX)
        return BXI_RREF_ID_WIDE | (uint64_t)owner << 53 | (uint64_t)maker << 43 | number;
    return (uint64_t)owner << 56 | (uint64_t)maker << 49 | (uint64_t)owner_generation << 44 |
           (uint64_t)maker_generation << 39 | number;
}
static inline int bxi_rref_id_owner(uint64_t id)
{
    return (int)((id & BXI_RREF_ID_WIDE) != 0 ? id >> 53 & BXI_RANK_MASK : id >> 56);
}
static inline int bxi_rref_id_maker(uint64_t id)
{
    return (int)((id & BXI_RREF_ID_WIDE) != 0 ? id >> 43 & BXI_RANK_MASK : id >> 49 & 127);
}
static inline uint8_t bxi_rref_id_owner_generation(uint64_t id)
{
    return (id & BXI_RREF_ID_WIDE) != 0 ? 0 : id >> 44 & (BXI_GENERATION_MAX - 1);
}
static inline uint8_t bxi_rref_id_maker_generation(uint64_t id)
{
    return (id & BXI_RREF_ID_WIDE) != 0 ? 0 : id >> 39 & (BXI_GENERATION_MAX - 1);
}

/* The control pages: core0, core1 and core2 are fields of struct bxi_control. */
struct bxi_tables {
    uint8_t core0[BXI_TABLES0_OFFSET];
    struct bxi_now now;                                     /* offset 384 */
    struct bxi_wait_row wait[BXI_WAITS_MAX];                /* offset 320 */
    bxi_a64 object_rows;                                    /* offset 4032: rows of `object` that were ever taken */
    bxi_a64 objects_unshown;                                /* objects that have none */
    bxi_a64 remote_rows;                                    /* rows of `remote`: 0, or as many as there are workers */
    uint8_t pad0[BXI_PAGE - BXI_TABLES0_OFFSET - sizeof(struct bxi_now) - BXI_WAITS_MAX * sizeof(struct bxi_wait_row) -
                 3 * sizeof(bxi_a64)];
    bxi_a64 counters[512];                                  /* enum bxi_counter; one page */
    uint8_t core1[BXI_TABLES1_OFFSET - BXI_TABLES0_OFFSET - BXI_TABLES0_BYTES];
    struct bxi_batch_words batch[BXI_FUNCTION_MAX];
    struct bxi_serving serving[BXI_SERVING_MAX];
    uint8_t core2[BXI_TABLES2_OFFSET - BXI_TABLES1_OFFSET - BXI_TABLES1_BYTES];
    struct bxi_pair_counters pair_counters[BXI_WORKERS_MAX];
    struct bxi_loans loans[BXI_WORKERS_MAX];
};

static_assert(sizeof(struct bxi_pair_counters) == BXI_LINE, "pair counters are a line");
static_assert(sizeof(struct bxi_loans) == BXI_LINE, "loans are a line");
static_assert(sizeof(struct bxi_now) == BXI_LINE, "now is a line");
static_assert(sizeof(struct bxi_batch_words) == BXI_LINE, "a batch is a line");
static_assert(sizeof(struct bxi_wait_row) == 32, "two waits a line");
static_assert(sizeof(struct bxi_serving) == 32 && sizeof(struct bxi_call_row) == 32, "two a line");
static_assert(sizeof(struct bxi_hist) == BXI_PAGE, "a histogram is a page");
static_assert(sizeof(struct bxi_object_row) == BXI_LINE, "an object is a line");
static_assert(sizeof(struct bxi_remote_row) == 4 * BXI_LINE, "a remote worker is four lines");
static_assert(BXI_WORKERS_MAX * sizeof(struct bxi_remote_row) == BXI_REMOTES_BYTES, "remote workers");
static_assert(offsetof(struct bxi_tables, now) == BXI_TABLES0_OFFSET, "now");
static_assert(offsetof(struct bxi_tables, wait) == 448, "wait");
static_assert(offsetof(struct bxi_tables, object_rows) == 4032, "object_rows");
static_assert(offsetof(struct bxi_tables, counters) == 4096, "counters");
static_assert(offsetof(struct bxi_tables, core1) == BXI_TABLES0_OFFSET + BXI_TABLES0_BYTES, "the first region");
static_assert(offsetof(struct bxi_tables, batch) == BXI_TABLES1_OFFSET, "batch");
static_assert(offsetof(struct bxi_tables, serving) == 24576, "serving");
static_assert(offsetof(struct bxi_tables, core2) == BXI_TABLES1_OFFSET + BXI_TABLES1_BYTES, "the second region");
static_assert(offsetof(struct bxi_tables, pair_counters) == BXI_TABLES2_OFFSET, "pair_counters");
static_assert(offsetof(struct bxi_tables, loans) == 237568, "loans");
static_assert(sizeof(struct bxi_tables) == BXI_CONTROL_BYTES, "the third region");
static_assert(BXI_CALLS_MAX * sizeof(struct bxi_call_row) == BXI_CALLS_BYTES, "rows of calls");
static_assert(BXI_CALLS_FIRST * sizeof(struct bxi_call_row) == BXI_CALLS_OPEN_BYTES, "the first of them");
static_assert(BXI_HIST_MAX * sizeof(struct bxi_hist) == BXI_HISTS_BYTES, "histograms");
static_assert(BXI_OBJECTS_MAX * sizeof(struct bxi_object_row) == BXI_OBJECTS_BYTES, "objects");
static_assert((int)BXI_COUNTER_COUNT <= 512, "counters fit their page");

static inline struct bxi_tables *bxi_tables(struct bxi_control *control)
{
    return (struct bxi_tables *)(void *)control;
}

static inline const struct bxi_tables *bxi_tables_view(const struct bxi_control *control)
{
    return (const struct bxi_tables *)(const void *)control;
}

/* Offset of histogram i: between the control pages and the rows of objects. */
static inline uint64_t bxi_hist_offset(uint32_t i)
{
    return BXI_CONTROL_BYTES + (uint64_t)i * sizeof(struct bxi_hist);
}

/* Four buckets of 16 ns up to 64 ns, then four to an octave, each a quarter of the octave's lowest value wide; the
 * last bucket has no upper bound. */
static inline uint32_t bxi_hist_bucket(uint64_t ns)
{
    uint32_t octave, bucket;

    if (ns < 64)
        return (uint32_t)(ns / 16);
    octave = 63 - (uint32_t)__builtin_clzll(ns);
    bucket = 4 + (octave - 6) * 4 + (uint32_t)(ns >> (octave - 2) & 3);
    return bucket < BXI_HIST_BUCKETS ? bucket : BXI_HIST_BUCKETS - 1;
}

/* The lowest value of a bucket. */
static inline uint64_t bxi_hist_least(uint32_t bucket)
{
    if (bucket < 4)
        return bucket * 16;
    return (UINT64_C(4) + bucket % 4) << (bucket / 4 + 3);
}

#endif

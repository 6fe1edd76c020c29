/* SPDX-License-Identifier: MIT */
/*
 * The control segment of a worker, byte by byte. LAYOUT.md draws it; tests/check/layout.sh compares the two.
 *
 * One rule: every page has one writer, the process that owns the segment; all others map it read-only. A process
 * that is killed at any instruction leaves its own segment frozen and all others intact. Nothing needs repair: what
 * was published counts, what was not published does not exist. One page may be mapped writable by others, the words of
 * the device region: by all where a GPU's driver registers no read-only mapping. Others write it only when the owner is
 * dead (gpu/README.md, G4 and G9).
 *
 * Invariants. The owner is the worker whose segment this is; a peer is a worker that maps it. I11 to I13, I15
 * and I17, about the regions that only inspectors read, are in lib/observe/tables.h.
 *  I1  magic, layout_version, the sizes and the identity are written before the segment's descriptor is passed to
 *      another process, and never again.
 *  I2  state only grows: STARTING < RUNNING < LEAVING < LEFT; or STARTING < GAVE_UP. ending only grows, is 0 before
 *      LEAVING, and its low half is never above its high half.
 *  I3  armed is (count << 2) | who. count grows with every arming. who != 0 only while a thread of the owner sleeps or
 *      is about to recheck before it sleeps.
 *  I4  pair[p].open goes from 0 to 1 once, after the pages of ring p are allocated. Nobody reads a byte of ring p
 *      before.
 *  I5  pair[p].refused_through is a position in peer p's ring towards the owner, and only grows. Each request that
 *      ends behind its previous value, and at or before the new one, was dropped because of refused_errno.
 *  I6  credit[p] is the position up to which the owner has consumed peer p's ring: credit <= write position, and
 *      write position - credit <= ring_bytes + ring_bytes / 4. The owner's frames to p carry the same position
 *      (piggybacked credit), which is ahead of credit[p] by the unpublished credit at most.
 *  I7  In ring p the commit word at the write position is 0. Every record that the consumer has not read is whole:
 *      {sequence of its position, length}, then the payload.
 *  I8  A record starts at a multiple of 64 and does not wrap; padding ends exactly at ring_bytes.
 *  I9  function[i] is written before function_count > i, and never again.
 *  I10 lease[p][s], behind ring p, is 0 or a generation of slot s of peer p's grants. The owner stores a generation
 *      once, when it no longer reads the memory that peer p lent under it. Nobody reads a lease word before
 *      pair[p].open.
 *  I14 device_open goes from 0 to 1 once, after the device region is allocated and, behind the rows of calls to each
 *      peer, the words about that peer's device memory. Nobody reads a byte of them before.
 *  I16 pair[p], credit[p] and the region behind ring p (lease words, rows, words about device memory) are about one
 *      process of rank p, and I4 to I6 and I10 hold for each of them. When it is dead, and before the next process of
 *      that rank maps the segment, the owner makes all of them 0.
 */
#ifndef BXI_LAYOUT_H
#define BXI_LAYOUT_H

#include "atomic.h"

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define BXI_MAGIC UINT64_C(0x0000524143584f42)          /* "BOXCAR\0\0" in memory, little endian */
#define BXI_LAYOUT_VERSION 14u

#define BXI_WORKERS_MAX 1024                            /* workers of a job */
#define BXI_WORLD_MAX 128                               /* of these, on one host */
#define BXI_RANK_BITS 10
#define BXI_RANK_MASK (BXI_WORKERS_MAX - 1)
#define BXI_NAME_BYTES 32
#define BXI_LINE 64u
#define BXI_PAGE 4096u
#define BXI_FUNCTION_MAX 128
#define BXI_CPU_WORDS 16                                /* as many bits as a cpu_set_t: more than a machine has CPUs */
#define BXI_QUOTAS 2                                    /* a container's limit, and one that it shares */
#define BXI_GENERATION_MAX 32                           /* processes that have one rank, one after the other */
#define BXI_RING_BYTES 131072u                          /* a power of two */
#define BXI_LEASE_MAX 1024                              /* leases of one peer that are out at the same time */
#define BXI_LEASE_BYTES (BXI_LEASE_MAX * 8u)
#define BXI_CALLS_BYTES 32768u                          /* rows of calls to one peer: lib/observe/tables.h */
#define BXI_CALLS_OPEN_BYTES 4096u                      /* of these, allocated with the ring */
/* The page is for the stagger (bxi_ring_offset). */
#define BXI_RING_STRIDE (BXI_RING_BYTES + BXI_PAGE + BXI_LEASE_BYTES + BXI_CALLS_BYTES + BXI_DEVICE_PAIR_BYTES)
#define BXI_OPEN_BYTES (BXI_RING_BYTES + BXI_PAGE + BXI_LEASE_BYTES + BXI_CALLS_OPEN_BYTES)
#define BXI_DEVICE_BYTES 45056u                         /* region that describes a worker's device memory */
#define BXI_DEVICE_PAIR_BYTES 20480u                    /* region about the device memory borrowed of one peer */
#define BXI_DEVICE_POINTS 4096u                         /* offset in it of the points, one for each lease word */
#define BXI_FRAME_MAX (BXI_RING_BYTES / 8)              /* payload bytes of the largest record */

enum bxi_state {
    BXI_STARTING = 1,
    BXI_RUNNING = 2,
    BXI_LEAVING = 3,    /* its program asked to leave, and none of its own calls is in flight */
    BXI_LEFT = 4,       /* it serves no request any more */
    BXI_GAVE_UP = 5,    /* it never ran: its join has failed */
};

/* Which thread sleeps: the low two bits of the armed word. */
enum bxi_who {
    BXI_AWAKE = 0,
    BXI_WHO_BACKGROUND = 1,     /* ring the first eventfd */
    BXI_WHO_LEADER = 2,         /* ring the second eventfd */
    BXI_WHO_LAZY = 3,           /* ring the first eventfd, but not for replies */
};

/* Comments give: writer; readers, order [tag of the partners]. */
struct bxi_header {
    uint64_t magic;             /* owner, I1 */
    uint32_t layout_version;
    uint32_t uid;
    uint32_t pid;               /* for display only: the owner lock and the pidfd decide who is alive */
    uint32_t rank;
    uint32_t world_size;
    uint32_t ring_bytes;
    uint64_t instance;          /* random id of this run of the job */
    uint64_t segment_bytes;
    uint64_t started_ns;        /* CLOCK_REALTIME */
    char name[BXI_NAME_BYTES];
    char job[BXI_NAME_BYTES];
    uint32_t generation;        /* owner, I1: how many processes have had this rank, with this one */
    uint32_t rejoin;            /* owner, I1: 1: the job lets a worker come back, and the owner has a door */
    bxi_a32 state;              /* owner; peers      release / acquire [state] */
    bxi_a32 function_count;     /* owner; peers      release / acquire [functions] */
    uint32_t quota_cgroup[BXI_QUOTAS];      /* owner, I1: inodes of the cgroups that limit its CPU time most */
    uint32_t quota_thousandths[BXI_QUOTAS]; /* owner, I1: their limits, in thousandths of a CPU; 0: none */
    uint64_t arena_bytes;       /* owner, I1: size of its arena */
    bxi_a64 arena_used;         /* owner; inspectors relaxed */
    bxi_a64 arena_committed;    /* owner; inspectors relaxed */
    bxi_a64 arena_high_water;   /* owner; inspectors relaxed */
    bxi_a32 hist_count;         /* owner; inspectors release / acquire [hist] */
    bxi_a32 device_open;        /* owner; peers      release / acquire [device.open] */
    bxi_a64 armed;              /* owner; producers  relaxed around a full fence [bell.armed] */
    bxi_a64 ending;             /* owner; peers      release / acquire [ending]: lib/rpc/ending.c */
    uint8_t reserved2[48];
    uint64_t cpu_mask[BXI_CPU_WORDS];   /* owner, I1: CPUs it may use; the bit is the number modulo 1024 */
};

/* What the owner publishes to peer p: as producer of ring p, as borrower, and about requests of p that it refused. */
struct bxi_pair {
    bxi_a64 open;               /* owner; p          release / acquire [pair.open] */
    bxi_a64 want_credit;        /* owner; p          relaxed around a full fence [ring.want] */
    bxi_a64 refused_through;    /* owner; p          release / acquire [pair.refused] */
    bxi_a64 refused_errno;      /* owner; p          before refused_through */
    bxi_a64 want_lease;         /* owner; p          relaxed around a full fence [lease.want] */
    bxi_a64 given_back;         /* owner; p          release / acquire [lease.count] */
    uint8_t reserved[16];
};

/* How far the owner has consumed peer p's ring. It has a line of its own because the producer polls it. */
struct bxi_credit {
    bxi_a64 position;           /* owner; p          release / acquire [ring.credit] */
    uint8_t reserved[56];
};

struct bxi_function {
    char name[BXI_NAME_BYTES];
    uint32_t kind;              /* 1 inline, 2 blocking, 3 async, 4 batch: for display */
    uint8_t reserved[28];
};

/* Regions for inspectors: lib/observe/tables.h lays them out. */
#define BXI_TABLES0_OFFSET 384
#define BXI_TABLES0_BYTES 7808
#define BXI_TABLES1_OFFSET 16384
#define BXI_TABLES1_BYTES 24576
#define BXI_TABLES2_OFFSET 172032
#define BXI_TABLES2_BYTES 131072
#define BXI_HISTS_BYTES 1048576                             /* behind the control pages */
#define BXI_OBJECTS_BYTES 16384                             /* behind the histograms */
#define BXI_REMOTES_BYTES 262144                            /* behind the device region */

struct bxi_control {
    struct bxi_header header;                               /* offset 0 */
    uint8_t tables0[BXI_TABLES0_BYTES];                     /* offset 384 */
    struct bxi_function function[BXI_FUNCTION_MAX];
    uint8_t tables1[BXI_TABLES1_BYTES];
    struct bxi_pair pair[BXI_WORKERS_MAX];                  /* four tables of lines by rank: the last two in tables2 */
    struct bxi_credit credit[BXI_WORKERS_MAX];
    uint8_t tables2[BXI_TABLES2_BYTES];
};

#define BXI_CONTROL_BYTES sizeof(struct bxi_control)
#define BXI_BY_RANK_OFFSET 40960u
#define BXI_BY_RANK_TABLES 4
#define BXI_BY_RANK_STRIDE (BXI_WORKERS_MAX * BXI_LINE)
#define BXI_OBJECTS_OFFSET (BXI_CONTROL_BYTES + BXI_HISTS_BYTES)
#define BXI_DEVICE_OFFSET (BXI_OBJECTS_OFFSET + BXI_OBJECTS_BYTES)
#define BXI_REMOTES_OFFSET (BXI_DEVICE_OFFSET + BXI_DEVICE_BYTES)
#define BXI_RINGS_OFFSET (BXI_REMOTES_OFFSET + BXI_REMOTES_BYTES)

static_assert(sizeof(struct bxi_header) == 384, "header");
static_assert(offsetof(struct bxi_header, state) == 128, "state");
static_assert(offsetof(struct bxi_header, function_count) == 132, "function_count");
static_assert(offsetof(struct bxi_header, armed) % BXI_LINE == 0, "armed has a line of its own");
static_assert(offsetof(struct bxi_header, cpu_mask) % BXI_LINE == 0, "armed has a line of its own");
static_assert(sizeof(struct bxi_pair) == BXI_LINE, "a pair is a line");
static_assert(sizeof(struct bxi_credit) == BXI_LINE, "a credit is a line");
static_assert(sizeof(struct bxi_function) == BXI_LINE, "a function is a line");
static_assert(offsetof(struct bxi_control, tables0) == BXI_TABLES0_OFFSET, "tables0");
static_assert(offsetof(struct bxi_control, function) == 8192, "function");
static_assert(offsetof(struct bxi_control, tables1) == BXI_TABLES1_OFFSET, "tables1");
static_assert(offsetof(struct bxi_control, pair) == BXI_BY_RANK_OFFSET, "pair");
static_assert(offsetof(struct bxi_control, credit) == BXI_BY_RANK_OFFSET + BXI_BY_RANK_STRIDE, "credit");
static_assert(offsetof(struct bxi_control, tables2) == BXI_TABLES2_OFFSET, "tables2");
static_assert(sizeof(struct bxi_control) == BXI_BY_RANK_OFFSET + BXI_BY_RANK_TABLES * BXI_BY_RANK_STRIDE, "control");
static_assert(1 << BXI_RANK_BITS == BXI_WORKERS_MAX, "a rank has that many bits");

/* Of each table by rank the pages of so many workers are allocated. */
static inline uint64_t bxi_by_rank_bytes(int world_size)
{
    return ((uint64_t)world_size * BXI_LINE + BXI_PAGE - 1) / BXI_PAGE * BXI_PAGE;
}

/* How much of the control pages is allocated. */
static inline uint64_t bxi_control_used(int world_size)
{
    return BXI_BY_RANK_OFFSET + BXI_BY_RANK_TABLES * bxi_by_rank_bytes(world_size);
}

/* Offset of ring `to`. Each ring begins a line later in its stride than the ring before, within a spare page: else
 * the first lines of all rings would fall into one set of the cache. */
static inline uint64_t bxi_ring_offset(int to)
{
    return BXI_RINGS_OFFSET + (uint64_t)to * BXI_RING_STRIDE + ((uint64_t)to % 64) * BXI_LINE;
}

/* Offset of the lease words for peer `to`, by which the owner returns leases: behind the ring, allocated with it. */
static inline uint64_t bxi_lease_offset(int to)
{
    return BXI_RINGS_OFFSET + (uint64_t)to * BXI_RING_STRIDE + BXI_RING_BYTES + BXI_PAGE;
}

/* Offset of the rows of the owner's calls to peer `to`. */
static inline uint64_t bxi_calls_offset(int to)
{
    return bxi_lease_offset(to) + BXI_LEASE_BYTES;
}

static inline uint64_t bxi_segment_bytes(int world_size)
{
    return BXI_RINGS_OFFSET + (uint64_t)world_size * BXI_RING_STRIDE;
}

/* Offset of the owner's words about device memory of peer `to`. */
static inline uint64_t bxi_device_pair_offset(int to)
{
    return bxi_calls_offset(to) + BXI_CALLS_BYTES;
}

#endif

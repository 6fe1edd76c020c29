/* SPDX-License-Identifier: MIT */
/*
 * GPU memory that other workers read in place, by CUDA IPC. What lib/ puts device tensors on; it knows
 * nothing of calls, rings or messages, and works between any two processes that share a piece of memory.
 *
 * An owner, which fills a block and lends it, and a borrower, which reads it where it lies:
 *
 *     struct bxi_gpu_block *block;                        struct bxi_gpu_map *map;
 *     struct bxi_gpu_ref ref;
 *     bxi_gpu_alloc(device, bytes, &block);               (ref comes in a message)
 *     ... work on lane's stream fills block->address ...  if (bxi_gpu_map_begin(peer, &ref, done, me) == 0)
 *     bxi_gpu_ref(block, 0, bytes, &ref);                     ... wait for done(me, 0) ...
 *     bxi_gpu_mark(lane, &ref.ready);                     bxi_gpu_map_get(peer, &ref, &map, &address);
 *     ... send ref ...                                    bxi_gpu_after(lane, peer, &ref.ready);
 *                                                         ... work on lane's stream reads address ...
 *                                                         bxi_gpu_mark(lane, &point);
 *     ... point comes back with the lease ...             bxi_gpu_map_put(map);
 *     bxi_gpu_block_until(block, peer, &point);           ... send point with the returned lease ...
 *     bxi_gpu_free(block);    reused once point has passed
 *
 * Nothing there stops the host: mark writes a word behind the work of a stream, after makes another stream
 * wait for the word, and whether a point has passed is asked only when memory is wanted.
 *
 * Threads.  Everything may be called from any thread. A helper thread of the process opens, closes and frees
 *           (milliseconds each); callbacks run on it and must not wait for anything of gpu/.
 * Errors.   0 or a count, else -errno; bxi_gpu_text() is this thread's sentence on its last failure, which says
 *           what to do. Outputs are set only on success. Where the build has no GPU code (CUDA=0) bxi_gpu_open
 *           fails with -ENOTSUP and nothing else can be called.
 * Fork.     CUDA does not survive it: a forked child gets -EPERM from every function.
 * Trust.    What another process has written is copied once and checked. A GPU mapping cannot be read-only:
 *           unlike host memory a borrowed block is kept from being written by nothing but good manners.
 *
 * README.md has the states, the invariants, and what is left after a death at each step.
 */
#ifndef BXI_GPU_H
#define BXI_GPU_H

#include "shared.h"

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BXI_GPU_ALIGN 256u              /* of every block */

struct bxi_gpu;                         /* the driver, and this process's part in it */
struct bxi_gpu_device;                  /* a device in use: its primary context and its pool of slabs */
struct bxi_gpu_lane;                    /* a stream that others can be ordered with */
struct bxi_gpu_peer;                    /* another process: its region, and what is mapped of its memory */
struct bxi_gpu_map;                     /* one of its slabs, mapped here */

/* This thread's sentence on its last failure in gpu/; "" if there was none. */
const char *bxi_gpu_text(void);

/* ---- What travels in messages ---------------------------------------------------------------- */

/* A moment in the work of one lane of the process that made it. Passed: all work put on the lane before it is
 * done, and its writes can be seen. order 0: no point, passed already. */
struct bxi_gpu_point {
    uint16_t order;                     /* enum bxi_gpu_order */
    uint16_t lane;
    uint32_t reserved;
    uint64_t value;
};

/* Part of a block, as its owner names it to others. */
struct bxi_gpu_ref {
    uint32_t slab;
    uint32_t reserved;
    uint64_t generation;
    uint64_t offset;                    /* in the slab */
    uint64_t bytes;
    struct bxi_gpu_point ready;         /* what fills it */
};
static_assert(sizeof(struct bxi_gpu_point) == 16 && sizeof(struct bxi_gpu_ref) == 48, "as they travel");

/* ---- Figures --------------------------------------------------------------------------------- */

#define BXI_GPU_COUNTERS(X)                                                                     \
    X(slabs)                /* now; one's own, wrapped memory of others too */                  \
    X(slab_bytes)                                                                               \
    X(block_bytes)          /* now; handed out, or waiting for points */                        \
    X(blocks_waiting)       /* now; freed, not yet passed */                                    \
    X(slabs_retired)                                                                            \
    X(maps)                 /* now; slabs of others open here */                                \
    X(map_hits)             /* map_begin found it mapped */                                     \
    X(opens)                                                                                    \
    X(open_failures)                                                                            \
    X(closes)                                                                                   \
    X(open_ns)              /* in the driver's calls that open them, and that close them */     \
    X(close_ns)                                                                                 \
    X(marks)                                                                                    \
    X(waits)                /* put on a stream by after */                                      \
    X(waits_saved)          /* the point had passed already */                                  \
    X(word_reads)           /* device words copied to the host to look at them */               \
    X(host_synchronises)    /* times that a thread waited for the GPU; staging's too */         \
    X(fallbacks)            /* devices whose order is not the first choice, and waits on the host */ \
    X(staged_bytes)         /* copied through pinned host memory, out and in */                 \
    X(d2d_copies)                                                                               \
    X(d2d_bytes)                                                                                \
    X(poisonings)           /* words of dead owners */                                          \
    X(points_dropped)       /* of dead borrowers */

struct bxi_gpu_counters {
#define BXI_GPU_COUNTER_FIELD(name) uint64_t name;
    BXI_GPU_COUNTERS(BXI_GPU_COUNTER_FIELD)
#undef BXI_GPU_COUNTER_FIELD
};

/* ---- The driver ------------------------------------------------------------------------------ */

struct bxi_gpu_options {
    const char *driver;                 /* path; NULL: the environment's BX_CUDA_DRIVER, else libcuda.so.1 */
    struct bxi_gpu_region *region;      /* one's own, writable; lives until bxi_gpu_close has returned */
    uint64_t slab_bytes;                /* rounded up to 2 MiB; 0: 64 MiB, larger as the pool grows */
    enum bxi_gpu_order order;           /* AUTO: the environment's BX_GPU_ORDER=host|device|events|sync, else
                                         * the probe's choice; -ENOTSUP where the one asked for does not work */
};

/* Loads the driver and lists the devices; makes no context. Once in a process. -ENODEV: no driver, one too old,
 * no device; -EPERM: forked after CUDA was started; -EBUSY: open already; -EINVAL. */
int bxi_gpu_open(const struct bxi_gpu_options *options, struct bxi_gpu **gpu);

/* Closes lanes, then what is mapped of others, then waits (2 s at most) until no live peer has anything of this
 * process's open: what is still open then is left for the end of the process, for to free it would be undefined.
 * Then peers, memory and contexts, with the books of blocks that are still handed out and of maps that are still held:
 * their handles are gone, and neither bxi_gpu_free nor bxi_gpu_map_put may be called with one afterwards (who may have
 * some keeps a note that the GPU is closed). NULL is fine; in a forked child it does nothing. */
void bxi_gpu_close(struct bxi_gpu *gpu);

struct bxi_gpu_info {
    char name[96];
    uint8_t uuid[BXI_GPU_UUID_BYTES];
    uint64_t bytes;
    bool is_mig;
};
bool bxi_gpu_is_fake(const struct bxi_gpu *gpu);                        /* the tests' driver: measure nothing */
int bxi_gpu_device_count(const struct bxi_gpu *gpu);
int bxi_gpu_device_info(const struct bxi_gpu *gpu, int ordinal, struct bxi_gpu_info *info);     /* -EINVAL */
/* The ordinal here of a device told by its UUID; -ENODEV: this process does not see it. */
int bxi_gpu_ordinal(const struct bxi_gpu *gpu, const uint8_t uuid[BXI_GPU_UUID_BYTES]);
void bxi_gpu_read(const struct bxi_gpu *gpu, struct bxi_gpu_counters *counters);

/* What time brings: freed blocks whose points have passed, slabs to close because their owner wants to free them,
 * slabs of one's own to free because nobody has them open. Cheap, does not wait for any GPU; call it now and then, also
 * while there is much else to do: what others want to free waits for it. How many things are still to come (0: nothing
 * to poll for). */
int bxi_gpu_poll(struct bxi_gpu *gpu);

/* ---- Devices and blocks ---------------------------------------------------------------------- */

/* Takes a device into use: its primary context, the probe of the orders, a first slab exported to see whether it
 * can be. Opening it again returns the same. Takes long, seconds where an order does not work, and holds up nobody but
 * who opens one too. -ENODEV: exclusive or prohibited mode, or lost; -EOPNOTSUPP: a device that exports nothing, which
 * the sentence calls MIG if it is; -ENOTSUP: the order asked for; -ENOMEM; -EINVAL; -ENOSPC: the 9th. */
int bxi_gpu_device_open(struct bxi_gpu *gpu, int ordinal, struct bxi_gpu_device **device);
int bxi_gpu_device_ordinal(const struct bxi_gpu_device *device);

struct bxi_gpu_block {
    struct bxi_gpu_device *device;
    uint64_t address;                   /* CUdeviceptr */
    uint64_t bytes;                     /* as asked for */
    uint32_t slab;
    uint64_t generation;
    uint64_t offset;                    /* in the slab */
};

/* A block of the pool, aligned to BXI_GPU_ALIGN, its contents undefined. -ENOMEM: the device has no room, after
 * blocks whose points have passed were taken back; the sentence says how much waits. -ENOSPC: no slab row.
 * Where there is no room or no row, but slabs without a block are there or being freed, waits for those: some
 * milliseconds, or until others have closed them, and polls meanwhile; a little more than a second at most. It does not
 * wait for blocks that are in use. */
int bxi_gpu_alloc(struct bxi_gpu_device *device, uint64_t bytes, struct bxi_gpu_block **block);

/* Memory that somebody else made with cuMemAlloc or cudaMalloc, as a block that can be lent. freed(context) is
 * called on the helper once the block was freed, its points have passed and nobody has the allocation open (other
 * blocks of it are freed too): only then may it be freed. -EOPNOTSUPP: managed, pooled (cudaMallocAsync) or VMM
 * memory, which this IPC cannot export; -EINVAL: no device memory, or the range leaves it, or one's own pool;
 * -ENODEV: of a device not opened here; -ESTALE: mapped from another process, so pass on that process's ref; -ENOSPC:
 * no slab row, after a wait as alloc's. freed may be NULL. */
typedef void (*bxi_gpu_freed_fn)(void *context);
struct bxi_gpu_foreign {
    uint64_t address;
    uint64_t bytes;                     /* any part of the allocation */
    bxi_gpu_freed_fn freed;
    void *context;
};
int bxi_gpu_wrap(struct bxi_gpu *gpu, const struct bxi_gpu_foreign *foreign, struct bxi_gpu_block **block);

/* Names bytes [offset, offset + bytes) of the block; ready is left empty. -EINVAL if they leave it. */
int bxi_gpu_ref(const struct bxi_gpu_block *block, uint64_t offset, uint64_t bytes, struct bxi_gpu_ref *ref);

/* The block is not to be reused before this point of peer's (NULL: one's own) has passed. A point of a peer that is
 * dead counts as passed. -EPROTO: a point that cannot be one (then call the peer corrupt); -EAGAIN: DEVICE_WORDS, and
 * the slab with the word is not mapped yet; -ENOMEM; -EIO. */
int bxi_gpu_block_until(struct bxi_gpu_block *block, struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point);

/* Gives the block back; it is reused when its points have passed. Does not wait. NULL is fine. */
void bxi_gpu_free(struct bxi_gpu_block *block);

/* Retires every slab in which nothing is handed out or waits. How many. */
int bxi_gpu_trim(struct bxi_gpu_device *device);

/* ---- Lanes and points ------------------------------------------------------------------------ */

/* A lane over a stream of its own (stream NULL), or over one of the caller's (a CUstream of the device's primary
 * context), which outlives the lane. -ENOSPC when BXI_GPU_LANES are open. Do not put waits on a stream whose other
 * work must not stop: a wait that is never met holds up all behind it. */
int bxi_gpu_lane_open(struct bxi_gpu_device *device, void *stream, struct bxi_gpu_lane **lane);
void *bxi_gpu_lane_stream(const struct bxi_gpu_lane *lane);
/* Waits for its work (counted) and closes it: the word must stand still before another lane gets it. */
void bxi_gpu_lane_close(struct bxi_gpu_lane *lane);

/* A point behind all work on the lane so far. Does not wait, except with HOST_SYNC, and with EVENTS when
 * BXI_GPU_RING points are under way. One thread at a time on a lane. */
int bxi_gpu_mark(struct bxi_gpu_lane *lane, struct bxi_gpu_point *point);

/* Whether a mark would wait now, and the same wait without the mark: for who holds a lock that others want meanwhile,
 * of whom one may be needed to end it (bxi_gpu_peer_died). Any thread, also while another marks the lane. */
bool bxi_gpu_mark_waits(struct bxi_gpu_lane *lane);
void bxi_gpu_mark_wait(struct bxi_gpu_lane *lane);

/* Work put on the lane from now on waits for this point of peer's (NULL: one's own). -EOWNERDEAD: the peer is dead
 * and the point had not passed (DEVICE_WORDS: or its word was not mapped when the peer died, so that nobody can say);
 * -EPROTO: a point that cannot be one; -EAGAIN: DEVICE_WORDS, and the slab with the word is not mapped yet (map_begin
 * of the ref maps it too). Waits itself, counted as a fallback, where the lane's device cannot see the word. */
int bxi_gpu_after(struct bxi_gpu_lane *lane, struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point);

/* 1 if the point has passed (or its peer is dead), 0 if not, or as bxi_gpu_after. Does not wait for it. */
int bxi_gpu_passed(struct bxi_gpu *gpu, struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point);

/* Waits on the host until all work on the lane is done: 0, or -EIO. Counted; not for the hot path. */
int bxi_gpu_lane_wait(struct bxi_gpu_lane *lane);

/* Between blocks of devices that reach one another; put on the lane, counted as d2d. */
int bxi_gpu_copy(struct bxi_gpu_lane *lane, uint64_t to, uint64_t from, uint64_t bytes);

/* Between device memory and any host memory, through pinned buffers of the device's: behind all work on the lane
 * so far, complete when it returns. Waits; counted as staged. */
int bxi_gpu_stage_out(struct bxi_gpu_lane *lane, void *to, uint64_t from, uint64_t bytes);
int bxi_gpu_stage_in(struct bxi_gpu_lane *lane, uint64_t to, const void *from, uint64_t bytes);

/* ---- Peers: borrowing, and being borrowed from ----------------------------------------------- */

struct bxi_gpu_peer_options {
    const char *name;                           /* for sentences */
    const struct bxi_gpu_region *region;        /* its region, mapped read-only; until bxi_gpu_close has returned */
    struct bxi_gpu_held *held;                  /* mine: what I have open of its slabs */
    const struct bxi_gpu_held *held_by_peer;    /* its: what it has open of mine */
    struct bxi_gpu_device *device;              /* where I map its memory, if that is on none in use here and this one
                                                 * reaches it: see bxi_gpu_map_device */
};

/* Both sides open each other before anything is lent. -EAGAIN: it has not opened its GPU yet; -EPROTO: the region
 * is none; -EINVAL; -ESTALE: it is this process's own, whose memory needs no mapping.
 * Registers the words' page with the driver (HOST_WORDS). */
int bxi_gpu_peer_open(struct bxi_gpu *gpu, const struct bxi_gpu_peer_options *options, struct bxi_gpu_peer **peer);

/* It is dead: releases streams that wait for its words, takes its points for passed, closes its slabs as soon as
 * they are put. words: its region's words page mapped writable, or NULL; without it HOST_WORDS waiters cannot be
 * released (-EROFS, and the rest is done). Call it before closing anything: closing waits for the device. */
int bxi_gpu_peer_died(struct bxi_gpu_peer *peer, struct bxi_gpu_word *words);

/* Whether the peer can map memory of the device: 1; 0: stage it. 0 if the peer has found out that it cannot, or if the
 * driver says so of each device that the peer uses. Of those that CUDA_VISIBLE_DEVICES hides here it says nothing, and
 * the answer is 0 until the peer knows: it sees the device, or has tried (bxi_gpu_peer_try, there). */
int bxi_gpu_peer_reaches(const struct bxi_gpu_peer *peer, const struct bxi_gpu_device *device);

/* The peer has staged something, and may have done so because nobody knows whether its memory can be mapped here: finds
 * out, on the helper, where that was not tried before, with a slab of each of its devices that are hidden here. What
 * the peer staged shows that it has opened this process as its peer; without that nothing of it must be mapped. */
void bxi_gpu_peer_try(struct bxi_gpu_peer *peer);

/* Starts to map the slab that ref names, and the one with its ready word. 1: mapped already, done is not called.
 * 0: done(context, 0 or an error) will be called, once, on the helper. -ESTALE: the slab has gone or another has
 * its place (no lease was held); -EPROTO: a ref or a row that cannot be one; -EXDEV: the device is out of reach
 * (no peer access: let the owner stage it); -EOWNERDEAD; -EIO. done's sentence is bxi_gpu_text() within it. */
typedef void (*bxi_gpu_mapped_fn)(void *context, int rc);
int bxi_gpu_map_begin(struct bxi_gpu_peer *peer, const struct bxi_gpu_ref *ref, bxi_gpu_mapped_fn done,
                      void *context);

/* The address here of what ref names, and a hold on the map: it is not closed before map_put. -EAGAIN: not mapped
 * yet; else as map_begin. */
int bxi_gpu_map_get(struct bxi_gpu_peer *peer, const struct bxi_gpu_ref *ref, struct bxi_gpu_map **map,
                    uint64_t *address);
void bxi_gpu_map_put(struct bxi_gpu_map *map);

/* The device here whose streams read the map: the one that it lies on, if that is in use here, else the peer's, else
 * any in use that reaches it. */
struct bxi_gpu_device *bxi_gpu_map_device(const struct bxi_gpu_map *map);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * GPU memory that other processes read in place, by file descriptors or by CUDA IPC. lib/ builds device tensors on it.
 * It knows nothing of calls, rings or messages, and works between any two processes that share a piece of host memory.
 *
 * An owner fills a block and lends it; a borrower reads it in place:
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
 * None of these calls blocks the host: mark writes a word behind the work of a stream, after makes another stream
 * wait for the word, and whether a point has passed is checked only when memory is needed.
 *
 * Threads.  Every function may be called from any thread. A helper thread of the process opens, closes and frees
 *           (milliseconds each). Callbacks run on it and must not wait for anything of gpu/.
 * Errors.   0 or a count, else -errno. bxi_gpu_text() is this thread's sentence on its last failure; it includes what
 *           to do. Outputs are set only on success. In a build without GPU code (CUDA=0) bxi_gpu_open fails with
 *           -ENOTSUP and nothing else can be called.
 * Graphs.   A lane's stream may be captured into a CUDA graph, but marks, waits, copies and bxi_gpu_lane_wait on it
 *           fail with -EBUSY meanwhile and leave the capture valid: a launch would repeat the number of the capture,
 *           and so move a word backwards. Calls of gpu/ disturb no capture of the program, on no thread.
 * Fork.     CUDA does not survive fork: in a forked child every function fails with -EPERM.
 * Trust.    Data written by another process is copied once and checked. Where memory is exported as descriptors, a
 *           borrower maps it for reading only, and a kernel that writes there fails with its context. Mappings of
 *           handles are writable: nothing prevents a borrower from writing to a borrowed block.
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

struct bxi_gpu;                         /* the driver, and this process's state */
struct bxi_gpu_device;                  /* a device in use: its primary context and its pool of slabs */
struct bxi_gpu_lane;                    /* a stream that others can be ordered with */
struct bxi_gpu_peer;                    /* another process: its region, and what is mapped of its memory */
struct bxi_gpu_map;                     /* one of its slabs, mapped here */

/* This thread's sentence on its last failure in gpu/; "" if there was none. */
const char *bxi_gpu_text(void);

/* ---- Contents of messages -------------------------------------------------------------------- */

/* A position in the work of one lane of the process that made it. The point has passed when all work that was put on
 * the lane before it is done and its writes are visible. order 0: no point; it counts as passed. */
struct bxi_gpu_point {
    uint16_t order;                     /* enum bxi_gpu_order */
    uint16_t lane;
    uint32_t reserved;
    uint64_t value;
};

/* Part of a block, as its owner identifies it to others. */
struct bxi_gpu_ref {
    uint32_t slab;
    uint32_t reserved;
    uint64_t generation;
    uint64_t offset;                    /* in the slab */
    uint64_t bytes;
    struct bxi_gpu_point ready;         /* behind the work that fills it */
};
static_assert(sizeof(struct bxi_gpu_point) == 16 && sizeof(struct bxi_gpu_ref) == 48, "as sent");

/* ---- Figures --------------------------------------------------------------------------------- */

#define BXI_GPU_COUNTERS(X)                                                                     \
    X(slabs)                /* now; made by this process, wrapped foreign memory included */    \
    X(slab_bytes)                                                                               \
    X(block_bytes)          /* now; handed out, or freed and waiting for points */              \
    X(blocks_waiting)       /* now; freed, with points that have not passed */                  \
    X(slabs_retired)                                                                            \
    X(maps)                 /* now; slabs of peers that are open here */                        \
    X(map_hits)             /* map_begin found it mapped */                                     \
    X(opens)                                                                                    \
    X(open_failures)                                                                            \
    X(closes)                                                                                   \
    X(open_ns)              /* in the driver's calls that open maps, and that close them */     \
    X(close_ns)                                                                                 \
    X(marks)                                                                                    \
    X(waits)                /* put on a stream by after */                                      \
    X(waits_saved)          /* after found that the point had passed */                         \
    X(host_synchronises)    /* times that a thread waited for the GPU, for staging too */       \
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
    struct bxi_gpu_region *region;      /* this process's own, writable; valid until bxi_gpu_close has returned */
    uint64_t slab_bytes;                /* rounded up to 2 MiB; 0: 64 MiB, larger as the pool grows */
    enum bxi_gpu_order order;           /* AUTO: the environment's BX_GPU_ORDER=host|events, else
                                         * the probe's choice; -ENOTSUP: the requested order does not work */
    /* Whether a living process has that slab of this one open: its struct bxi_gpu_held has the generation (acquire).
     * Any thread, under a lock of gpu/. NULL: none ever has. */
    bool (*is_held)(void *context, uint32_t slab, uint64_t generation);
    void *context;
};

/* Loads the driver and lists the devices; creates no context. BX_GPU_EXPORT=auto|fd|handle in the environment says how
 * devices export memory: as descriptors, by handles of CUDA IPC, or the first of these that works. Sets
 * CUDA_DEVICE_MAX_CONNECTIONS to 32 in the environment if it is not set, before CUDA starts: streams that wait must not
 * hold up others (README.md, Order). Open at most once at a time in a process. -ENODEV: no driver, a driver too old, or
 * no device; -EPERM: forked after CUDA was started; -EBUSY: already open; -EINVAL. */
int bxi_gpu_open(const struct bxi_gpu_options *options, struct bxi_gpu **gpu);

/* Closes lanes, then all maps, then waits (2 s at most) until no live peer has a slab of this process open. A slab that
 * is still open then stays until the process ends, because freeing it would be undefined. Then closes peers, memory and
 * contexts. -ETIMEDOUT: a lane was not idle, or the driver did not return, within 2 s (it waits for a process that is
 * stopped): then nothing is closed, as with bxi_gpu_abandon. No other error. Blocks that are still handed out and maps
 * that are still held are destroyed too: bxi_gpu_free and bxi_gpu_map_put must not be called with them afterwards, so a
 * caller that holds some must record that the GPU is closed. NULL is allowed; in a forked child it does nothing. */
int bxi_gpu_close(struct bxi_gpu *gpu);

/* In place of bxi_gpu_close, while another thread is still in a call of gpu/: leaves contexts, memory and maps to the
 * end of the process, and calls nothing back any more. Waits for a callback that runs, 2 s at most. The region, the
 * regions of peers, held and words must stay mapped: streams may still write and wait there. gpu stays valid for
 * threads that are in a call. bxi_gpu_open may be called again. */
void bxi_gpu_abandon(struct bxi_gpu *gpu);

struct bxi_gpu_info {
    char name[96];
    uint8_t uuid[BXI_GPU_UUID_BYTES];
    uint64_t bytes;
    bool is_mig;
};
bool bxi_gpu_is_fake(const struct bxi_gpu *gpu);                        /* the tests' driver: its times mean nothing */
int bxi_gpu_device_count(const struct bxi_gpu *gpu);
int bxi_gpu_device_info(const struct bxi_gpu *gpu, int ordinal, struct bxi_gpu_info *info);     /* -EINVAL */
/* The ordinal in this process of the device with that UUID; -ENODEV: this process does not see it. */
int bxi_gpu_ordinal(const struct bxi_gpu *gpu, const uint8_t uuid[BXI_GPU_UUID_BYTES]);
void bxi_gpu_read(const struct bxi_gpu *gpu, struct bxi_gpu_counters *counters);

/* Reuses freed blocks whose points have passed, closes maps of slabs that their owner wants to free, frees retired
 * slabs that nobody has open. Cheap; does not wait for any GPU. Call it regularly, under load too: peers cannot free a
 * slab before this process has closed it. Returns how many things are pending (0: no need to poll). */
int bxi_gpu_poll(struct bxi_gpu *gpu);

/* ---- Devices and blocks ---------------------------------------------------------------------- */

/* Opens a device: retains its primary context, finds out whether memory can be exported as descriptors, exports a first
 * slab to find out whether that works, probes the orders. Opening it again returns the same device. Takes long (seconds
 * where an order does not work), and blocks only other calls of this function. -ENODEV: exclusive or prohibited mode,
 * or lost; -EOPNOTSUPP: the device cannot export memory (the sentence says so if it is a MIG instance); -ENOTSUP: the
 * requested order or export does not work; -ENOMEM; -EINVAL; -ENOSPC: the 9th device. */
int bxi_gpu_device_open(struct bxi_gpu *gpu, int ordinal, struct bxi_gpu_device **device);
int bxi_gpu_device_ordinal(const struct bxi_gpu_device *device);

struct bxi_gpu_block {
    struct bxi_gpu_device *device;
    uint64_t address;                   /* CUdeviceptr */
    uint64_t bytes;                     /* as requested */
    uint32_t slab;
    uint64_t generation;
    uint64_t offset;                    /* in the slab */
};

/* Allocates a block from the pool, aligned to BXI_GPU_ALIGN, contents undefined. -ENOMEM: the device has no room, even
 * after blocks whose points have passed were reused; the sentence has how many blocks wait. -ENOSPC: no slab row.
 * If there is no room or no row, but slabs are empty or being freed, it waits for those and polls meanwhile: some
 * milliseconds, or until peers have closed them, a little more than a second at most. It does not wait for blocks that
 * are in use. */
int bxi_gpu_alloc(struct bxi_gpu_device *device, uint64_t bytes, struct bxi_gpu_block **block);

/* Makes a lendable block of memory that another library allocated with cuMemAlloc, cudaMalloc or cuMemCreate. The range
 * may touch several allocations of cuMemCreate behind one another (PyTorch's expandable segments). freed(context) is
 * called on the helper when all blocks of the allocation have been freed, their points have passed and nobody has it
 * open; the memory must not be freed before. freed may be NULL. -EOPNOTSUPP: managed or
 * pooled (cudaMallocAsync) memory, which cannot be exported; memory of cuMemCreate without
 * CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, of more than 32 allocations, or on a device that exports no descriptors;
 * -EINVAL: not device memory, or the range leaves the allocation, or it belongs
 * to this process's own pool; -ENODEV: on a device not opened here; -ESTALE: mapped from another process, so pass on
 * that process's ref; -ENOSPC: no slab row, after the same wait as in bxi_gpu_alloc. */
typedef void (*bxi_gpu_freed_fn)(void *context);
struct bxi_gpu_foreign {
    uint64_t address;
    uint64_t bytes;                     /* any part of the allocation */
    bxi_gpu_freed_fn freed;
    void *context;
};
int bxi_gpu_wrap(struct bxi_gpu *gpu, const struct bxi_gpu_foreign *foreign, struct bxi_gpu_block **block);

/* Sets ref to bytes [offset, offset + bytes) of the block, with an empty ready. -EINVAL: they leave the block. */
int bxi_gpu_ref(const struct bxi_gpu_block *block, uint64_t offset, uint64_t bytes, struct bxi_gpu_ref *ref);

/* The block will not be reused before this point of the peer (NULL: of this process) has passed. A point of a dead peer
 * counts as passed. -EPROTO: an invalid point (the peer is corrupt); -ENOMEM. */
int bxi_gpu_block_until(struct bxi_gpu_block *block, struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point);

/* Frees the block; its memory is reused when its points have passed. Does not wait. NULL is allowed. */
void bxi_gpu_free(struct bxi_gpu_block *block);

/* Retires every slab that has no block handed out or waiting. Returns how many. */
int bxi_gpu_trim(struct bxi_gpu_device *device);

/* ---- Lanes and points ------------------------------------------------------------------------ */

/* Opens a lane over a stream of its own (stream NULL), or over a stream of the caller's (a CUstream of the device's
 * primary context), which must outlive the lane. -ENOSPC: BXI_GPU_LANES are open. Do not put waits on a stream whose
 * other work must not stop: a wait that is never satisfied blocks all work behind it. */
int bxi_gpu_lane_open(struct bxi_gpu_device *device, void *stream, struct bxi_gpu_lane **lane);
void *bxi_gpu_lane_stream(const struct bxi_gpu_lane *lane);
/* Waits for its work (counted) and closes it: the word must be final before another lane uses it. Points of a lane
 * that cannot be waited for, because its work has failed or its stream is being captured, never pass: the word is
 * poisoned. */
void bxi_gpu_lane_close(struct bxi_gpu_lane *lane);

/* Makes a point behind all work on the lane so far. Does not wait. One thread at a time on a lane. */
int bxi_gpu_mark(struct bxi_gpu_lane *lane, struct bxi_gpu_point *point);

/* The lane's last point; order 0: it has made none. */
void bxi_gpu_lane_last(const struct bxi_gpu_lane *lane, struct bxi_gpu_point *point);

/* Work that is put on the lane from now on waits for this point of the peer (NULL: of this process). Blocks the calling
 * thread, counted as a fallback, for a peer's point of EVENTS and if the lane's device cannot access the word, until
 * the point has passed or the peer has ended. Waits a second at most while memory of the device is freed, unless the
 * point is of the same device of this process. -ECANCELED: bxi_gpu_abandon was called
 * meanwhile; -EOWNERDEAD: the peer is dead and the point had not passed; -EPROTO: an invalid point. */
int bxi_gpu_after(struct bxi_gpu_lane *lane, struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point);

/* 1: the point has passed (or its peer is dead); 0: it has not; -EPROTO: an invalid point. Reads a word in host memory:
 * it neither waits nor calls the driver. */
int bxi_gpu_passed(struct bxi_gpu *gpu, struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point);

/* Blocks the thread until all work on the lane is done: 0, or -EIO. Counted; not for the hot path. */
int bxi_gpu_lane_wait(struct bxi_gpu_lane *lane);

/* Copies between blocks on devices that can access each other: asynchronous, on the lane, counted as d2d. */
int bxi_gpu_copy(struct bxi_gpu_lane *lane, uint64_t to, uint64_t from, uint64_t bytes);

/* Copies between device memory and any host memory through pinned buffers of the device, behind all work on the lane so
 * far. Blocks until the copy is complete; counted as staged. */
int bxi_gpu_stage_out(struct bxi_gpu_lane *lane, void *to, uint64_t from, uint64_t bytes);
int bxi_gpu_stage_in(struct bxi_gpu_lane *lane, uint64_t to, const void *from, uint64_t bytes);

/* ---- Peers: borrowers and lenders ------------------------------------------------------------ */

struct bxi_gpu_peer_options {
    const char *name;                           /* for sentences */
    const struct bxi_gpu_region *region;        /* its region, mapped read-only; until bxi_gpu_close has returned */
    struct bxi_gpu_word *words;                 /* the page of its words, mapped writable: see bxi_gpu_wants_words; or
                                                 * NULL. Until bxi_gpu_close has returned */
    struct bxi_gpu_held *held;                  /* this process writes it: which of the peer's slabs it has open */
    int process_fd;                             /* its pidfd, or what hangs up when it ends; 0 or less: none */
    struct bxi_gpu_device *device;              /* maps the peer's memory if the memory's own device is not open here
                                                 * and this one can access it: see bxi_gpu_map_device */
};

/* Whether streams of the device can wait for words in host memory only through a writable mapping of them, because the
 * driver registers no read-only one. Such a mapping is registered, but never written: a living process writes only its
 * own words. */
bool bxi_gpu_wants_words(const struct bxi_gpu_device *device);

/* Each side opens the other before it uses its memory or its points. Registers the page of the peer's words with the
 * driver (HOST_WORDS): the read-only mapping, else words; the helper does it, so this call does not wait. The peer
 * lives until bxi_gpu_close. -EAGAIN: it has not opened its GPU yet; -EPROTO: not a valid region; -EINVAL; -ESTALE: it
 * is this process, whose memory needs no mapping. */
int bxi_gpu_peer_open(struct bxi_gpu *gpu, const struct bxi_gpu_peer_options *options, struct bxi_gpu_peer **peer);

/* The peer is dead: releases streams that wait for its words, treats its points as passed, closes maps of its slabs as
 * soon as they are put. words: the words' page of its region, mapped writable, or NULL; without it streams that wait
 * for its words cannot be released (-EROFS; everything else is done). Call it before closing anything: closing waits
 * for the device. */
int bxi_gpu_peer_died(struct bxi_gpu_peer *peer, struct bxi_gpu_word *words);

/* The first step of bxi_gpu_peer_died: releases streams that wait for the peer's words. It takes no lock and does
 * not call the driver, so a caller whose locks may be held by a thread in the driver calls it before it takes them. */
int bxi_gpu_peer_release(struct bxi_gpu_peer *peer, struct bxi_gpu_word *words);

/* Whether the peer can map memory of the device with that UUID: 1; 0: stage it. 0 if the peer has published that it
 * cannot, or if the driver denies access for each device that the peer uses. For devices that CUDA_VISIBLE_DEVICES
 * hides here the driver cannot be asked, and the answer is 0 until the peer knows: it sees the device, or has tried
 * (its bxi_gpu_peer_try). by_handle: the memory is in a slab without BXI_GPU_SLAB_FD. Then the answer is also 0 if the
 * driver fails to open handles of that device in the peer, or in this process (CUDA_ERROR_MAP_FAILED). */
int bxi_gpu_peer_reaches(const struct bxi_gpu_peer *peer, const uint8_t uuid[BXI_GPU_UUID_BYTES], bool by_handle);

/* Call this when the peer has staged something: it may have done so because it is unknown whether its memory can be
 * mapped here. Tries once, on the helper, to map a slab of each of its devices that are hidden here. */
void bxi_gpu_peer_try(struct bxi_gpu_peer *peer);

/* Tries to open a handle of each device of the peer of which this process has opened none: its slab is then mapped
 * here, as by a loan. Waits until end_ns (CLOCK_MONOTONIC) at most. Call it before the peer may lend, so that it knows
 * what to stage. Returns how many it tried: 0 also if the peer exports nothing by handles. Between set_trying(true)
 * and set_trying(false) bxi_gpu_peer_reaches, asked by_handle, is 0 of this process. */
int bxi_gpu_peer_try_handles(struct bxi_gpu_peer *peer, uint64_t end_ns);
void bxi_gpu_set_trying(struct bxi_gpu *gpu, bool is_trying);

/* Starts to map the slab of ref. 1: already mapped; done is not called.
 * 0: done(context, 0 or an error) will be called once, on the helper. Memory that is exported as descriptors is mapped
 * when its owner has sent them; an owner that is stopped does not, and done gets -ETIMEDOUT after 10 s. -ESTALE: the
 * slab is gone or its row is used by another (no lease was held); -EPROTO: an invalid ref or row; -EXDEV: no peer
 * access (the owner must stage); -EOWNERDEAD; -EIO. The sentence of an error passed to done is bxi_gpu_text() within
 * done. */
typedef void (*bxi_gpu_mapped_fn)(void *context, int rc);
int bxi_gpu_map_begin(struct bxi_gpu_peer *peer, const struct bxi_gpu_ref *ref, bxi_gpu_mapped_fn done,
                      void *context);

/* Returns the address of ref's bytes in this process and holds the map: it is not closed before bxi_gpu_map_put.
 * -EAGAIN: not mapped yet; else as bxi_gpu_map_begin. */
int bxi_gpu_map_get(struct bxi_gpu_peer *peer, const struct bxi_gpu_ref *ref, struct bxi_gpu_map **map,
                    uint64_t *address);
void bxi_gpu_map_put(struct bxi_gpu_map *map);

/* The device whose context the map is in: the memory's own device if it is open here, else the one that the peer was
 * opened with, else any open device that can access it. */
struct bxi_gpu_device *bxi_gpu_map_device(const struct bxi_gpu_map *map);

#endif

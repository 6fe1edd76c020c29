/* SPDX-License-Identifier: MIT */
/*
 * The private header of gpu/: one section per file, from the lowest to the highest. A file calls only functions of
 * sections above its own (tests/check/layers.sh holds that there is no circle). A struct is declared in the section of
 * the file that owns it. "Under the lock" means gpu->lock; README.md ("Locks") has the locks and their order.
 */
#ifndef BXI_GPU_INSIDE_H
#define BXI_GPU_INSIDE_H

#include "gpu.h"

#include "cuda_driver.h"

#include <pthread.h>
#include <time.h>

#define BXI_GPU_TEXT_BYTES 512
#define BXI_GPU_ORDINALS 64             /* devices that are listed; no box has more */
#define BXI_GPU_ROUND ((uint64_t)2 << 20)
#define BXI_GPU_CLASSES 160             /* of free chunks: four steps to the doubling */
#define BXI_GPU_BOUNCE_BYTES ((size_t)1 << 20)

/* ---- cuda_load.c: the driver, sentences, results --------------------------------------------- */

/* Sets this thread's sentence and returns code. */
int bxi_gpu_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same for a failed call of the driver: appends the driver's text for result and returns the code of result. */
int bxi_gpu_cuda_fail(const struct bxi_cuda *cu, unsigned result, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int bxi_gpu_load(struct bxi_cuda *cu, const char *path);            /* as bxi_cu_load */
bool bxi_gpu_forked(void);                                          /* sets the sentence if true */

/* ---- helper.c: one thread for calls that take milliseconds ----------------------------------- */

struct bxi_gpu_job {                    /* embedded in the object that it works on, so that queueing cannot fail */
    struct bxi_gpu_job *next;
    void (*run)(struct bxi_gpu_job *job);
};
struct bxi_gpu_helper {
    pthread_mutex_t lock;               /* guards the rest */
    pthread_cond_t change;
    pthread_t thread;
    bool stops, is_busy;
    bool is_left;                       /* it ends after the job that runs now, without those in the queue */
    struct bxi_gpu_job *first, *last;
};
int bxi_gpu_helper_start(struct bxi_gpu_helper *helper);
void bxi_gpu_helper_post(struct bxi_gpu_helper *helper, struct bxi_gpu_job *job);
/* Waits until the queue is empty and no job runs; false: at end_ns (CLOCK_MONOTONIC) that is not so. */
bool bxi_gpu_helper_drain(struct bxi_gpu_helper *helper, uint64_t end_ns);
void bxi_gpu_helper_stop(struct bxi_gpu_helper *helper);
/* Lets it end by itself: a job may be in a call of the driver that does not return. The helper stays valid for good. */
void bxi_gpu_helper_leave(struct bxi_gpu_helper *helper);
void bxi_gpu_cond_init(pthread_cond_t *cond);                       /* whose timed waits use CLOCK_MONOTONIC */

/* ---- heap.c: offsets of blocks in their slabs ------------------------------------------------ */

struct bxi_gpu_chunk {
    uint64_t offset, bytes;
    uint32_t slab;
    bool is_free;
    struct bxi_gpu_chunk *prev, *next;              /* by address, in one slab */
    struct bxi_gpu_chunk *free_prev, *free_next;    /* of one class */
};
struct bxi_gpu_heap {
    struct bxi_gpu_chunk *free[BXI_GPU_CLASSES];
};
/* A free chunk as large as the slab; NULL: no memory. */
struct bxi_gpu_chunk *bxi_gpu_heap_add(struct bxi_gpu_heap *heap, uint32_t slab, uint64_t bytes);
/* bytes is a multiple of BXI_GPU_ALIGN; NULL: no free chunk is large enough. */
struct bxi_gpu_chunk *bxi_gpu_heap_take(struct bxi_gpu_heap *heap, uint64_t bytes);
/* Returns the free chunk that results from joining it with free neighbours. */
struct bxi_gpu_chunk *bxi_gpu_heap_give(struct bxi_gpu_heap *heap, struct bxi_gpu_chunk *chunk);
/* Removes and frees a free chunk that is all of its slab. */
void bxi_gpu_heap_remove(struct bxi_gpu_heap *heap, struct bxi_gpu_chunk *chunk);
void bxi_gpu_heap_fini(struct bxi_gpu_heap *heap);      /* frees the free chunks; the slabs are gone */

/* ---- context.c: a device's context on this thread -------------------------------------------- */

/* Makes the device's context current on this thread; leave restores the one before. Until then calls of this thread do
 * not disturb a capture of the program. */
int bxi_gpu_enter(const struct bxi_gpu_device *device);
void bxi_gpu_leave(const struct bxi_gpu_device *device);
/* With the context current: -EBUSY if the stream is captured into a graph. what begins the sentence. Call it before any
 * query or wait, which would invalidate the capture. */
int bxi_gpu_refuse_capture(const struct bxi_gpu_device *device, struct CUstream_st *stream, const char *what);
/* Both, for a lane: as bxi_gpu_enter of its device, unless its stream is captured. */
int bxi_gpu_enter_lane(const struct bxi_gpu_lane *lane, const char *what);
/* With the context current: whether the stream is idle, at end_ns (CLOCK_MONOTONIC) at the latest. */
bool bxi_gpu_idle_by(const struct bxi_gpu_device *device, struct CUstream_st *stream, uint64_t end_ns);

/* ---- stage.c: copies, and the staging buffers of a device ------------------------------------ */

/* With the context current: makes the buffers, when the device is opened; destroys them. */
int bxi_gpu_stage_init(struct bxi_gpu_device *device);
void bxi_gpu_stage_fini(struct bxi_gpu_device *device);

/* ---- lane.c: lanes and marks ----------------------------------------------------------------- */

struct bxi_gpu_awaited {                /* admission.c: a point that a stream waits for */
    const struct bxi_gpu_peer *peer;    /* NULL: of this process */
    uint16_t order;                     /* enum bxi_gpu_order */
    uint16_t lane;
    uint64_t value;
};
struct bxi_gpu_awaits {                 /* admission.c: under admission's lock */
    struct bxi_gpu_awaited *list;       /* not known to have passed */
    uint32_t count, capacity;
    uint32_t putting;                   /* threads that are about to put a wait on the stream */
};
struct bxi_gpu_lane {                   /* the using thread's */
    struct bxi_gpu *gpu;
    struct bxi_gpu_device *device;
    struct CUstream_st *stream;
    bool owns_stream;
    enum bxi_gpu_order order;
    uint32_t index;
    uint64_t value;                     /* of the last mark */
    uint64_t done;                      /* EVENTS, tell's: the value of the word */
    uint64_t word_address;              /* HOST_WORDS: as the device sees it */
    struct CUevent_st *event;           /* EVENTS: recorded with each mark, for other streams of this process */
    bool is_closed;                     /* EVENTS: the word is not tell's any more */
    struct bxi_gpu_awaits awaits;
};
/* At the end: closes all lanes. False: not all are idle at end_ns; then none is closed, and the words of those that are
 * not idle are poisoned. */
bool bxi_gpu_lanes_close(struct bxi_gpu *gpu, uint64_t end_ns);

/* ---- peer.c: the other processes ------------------------------------------------------------- */

#define BXI_GPU_PARTS 32                /* allocations of cuMemCreate in a slab; a slab of the pool is one */
struct bxi_gpu_part {
    uint64_t bytes;
    unsigned long long handle;          /* 0: none; kept of foreign memory only */
    int fd;                             /* -1: none */
};
struct bxi_gpu_parts {                  /* vmm.c's */
    uint32_t count;
    struct bxi_gpu_part part[BXI_GPU_PARTS];
};
struct bxi_gpu_ask {                    /* fd_server.c's; the helper's */
    bool is_asking;
    int socket;
    uint64_t begin_ns, repeat_ns;
};

enum bxi_gpu_map_state { BXI_GPU_MAP_NONE = 0, BXI_GPU_MAP_OPENING, BXI_GPU_MAP_OPEN, BXI_GPU_MAP_CLOSING };

struct bxi_gpu_request;                 /* map.c's */
struct bxi_gpu_map {                    /* map.c's; one slab of the peer */
    struct bxi_gpu_job job;             /* first */
    struct bxi_gpu_peer *peer;
    struct bxi_gpu_device *device;      /* here, on which it is mapped */
    enum bxi_gpu_map_state state;
    uint64_t generation;
    uint64_t address, bytes;            /* the helper's while OPENING and CLOSING, as the next two */
    struct bxi_gpu_parts *parts;        /* mapped from descriptors; NULL: opened by a handle */
    struct bxi_gpu_ask ask;
    uint32_t users;
    struct bxi_gpu_request *waiting;
};
struct bxi_gpu_peer {
    struct bxi_gpu_job job;             /* first: registers the words' page */
    struct bxi_gpu_peer *next;
    struct bxi_gpu *gpu;
    struct bxi_gpu_peer_options options;
    char name[64];
    bxi_a32 is_dead;
    bxi_a32 is_registered;              /* the helper has done so, or failed; before, the next two are its own */
    void *registered;                   /* the mapping of its words' page that the driver knows; NULL: none */
    uint64_t host_words;                /* that page as options.device sees it; 0: not visible to it */
    uint32_t devices_seen;              /* reach.c: how many of its head's devices have been compared */
    uint32_t open_maps;                 /* map.c: how many are not NONE */
    struct bxi_gpu_map map[BXI_GPU_SLABS];
};
bool bxi_gpu_peer_is_dead(const struct bxi_gpu_peer *peer);
/* At the end: unregisters its words' page. */
void bxi_gpu_peer_forget_driver(struct bxi_gpu_peer *peer);

/* ---- admission.c: no free while a lane waits for another process ------------------------------ */

struct bxi_gpu_admission {              /* of a device */
    pthread_mutex_t lock;               /* guards the rest, and the awaits of the device's lanes */
    pthread_cond_t opened;
    bool is_closed;                     /* the helper frees or closes memory of the device */
    uint64_t busy_ns;                   /* the helper's: when attempts began to fail; 0: the last did not */
    uint64_t held_ns;                   /* the helper's: the last attempt that waited */
};
void bxi_gpu_admission_init(struct bxi_gpu_admission *admission);
void bxi_gpu_admission_fini(struct bxi_gpu_admission *admission);
/* Around the call that puts a wait for the point on the lane's stream; without gpu->lock. 0, or -ENOMEM. */
int bxi_gpu_admission_enter(struct bxi_gpu_lane *lane, const struct bxi_gpu_peer *peer,
                            const struct bxi_gpu_point *point);
void bxi_gpu_admission_leave(struct bxi_gpu_lane *lane);
/* Helper, without a lock: true if no lane of the device waits; then none will before bxi_gpu_admission_open. */
bool bxi_gpu_admission_close(struct bxi_gpu_device *device);
void bxi_gpu_admission_open(struct bxi_gpu_device *device);

/* ---- reach.c: which device can map memory of which; all under the lock ----------------------- */

int bxi_gpu_find(const struct bxi_gpu *gpu, const uint8_t uuid[BXI_GPU_UUID_BYTES]);  /* its ordinal here, or -1 */
/* Publishes in the head whether memory of that device can be mapped here. */
void bxi_gpu_reach_publish(struct bxi_gpu *gpu, const uint8_t uuid[BXI_GPU_UUID_BYTES], bool is_mappable);
bool bxi_gpu_reach_is_known(const struct bxi_gpu *gpu, const uint8_t uuid[BXI_GPU_UUID_BYTES]);
/* Whether handles of CUDA IPC of that device can be opened here: notes it, and publishes a failure. Whether that is
 * known, or need not be, because none of its memory can be mapped here. */
void bxi_gpu_reach_opened(struct bxi_gpu *gpu, const uint8_t uuid[BXI_GPU_UUID_BYTES], bool can_open);
bool bxi_gpu_reach_has_tried(const struct bxi_gpu *gpu, const uint8_t uuid[BXI_GPU_UUID_BYTES]);
/* Withdraws all that was published, because another device was opened; polls compare peers' devices again. */
void bxi_gpu_reach_withdraw(struct bxi_gpu *gpu);
/* Compares devices that the peer has opened since the last poll. */
void bxi_gpu_reach_poll(struct bxi_gpu_peer *peer);
/* The device here on which the peer's slabs of that device are mapped; NULL: all are out of reach. */
struct bxi_gpu_device *bxi_gpu_device_for(const struct bxi_gpu_peer *peer, const uint8_t uuid[BXI_GPU_UUID_BYTES]);
/* The same, followed by the others to try where only an open can tell. How many. */
uint32_t bxi_gpu_devices_for(const struct bxi_gpu_peer *peer, const uint8_t uuid[BXI_GPU_UUID_BYTES],
                             struct bxi_gpu_device *device[BXI_GPU_DEVICES]);
/* An open succeeded on the device: if that UUID is hidden here, its other slabs will be mapped there too. */
void bxi_gpu_reach_found(struct bxi_gpu *gpu, const uint8_t uuid[BXI_GPU_UUID_BYTES], struct bxi_gpu_device *device);

/* ---- fd_server.c: where peers get the descriptors of slabs ------------------------------------- */

struct bxi_gpu_fd_server {
    bool is_open;
    int socket, stop;
    pthread_t thread;
};
int bxi_gpu_fd_server_open(struct bxi_gpu *gpu);             /* again: 0 */
void bxi_gpu_fd_server_close(struct bxi_gpu *gpu);
/* Helper: asks the owner for the descriptors of a slab that is held. -EAGAIN: ask again later. Else it has ended. parts
 * is empty before; what it has after an error is closed. */
int bxi_gpu_fd_server_ask(const struct bxi_gpu_peer *peer, struct bxi_gpu_ask *ask, uint32_t slab, uint64_t generation,
                     struct bxi_gpu_parts *parts);
void bxi_gpu_fd_server_end(struct bxi_gpu_ask *ask);         /* ends what is asked, if it is: nobody wants the answer */

/* ---- vmm.c: memory that is exported as descriptors; without the lock, the context current ------ */

struct bxi_gpu_parts *bxi_gpu_parts_new(void);          /* NULL: no memory, with a sentence */
void bxi_gpu_parts_close(struct bxi_gpu_parts *parts);  /* the descriptors */
void bxi_gpu_parts_free(const struct bxi_gpu *gpu, struct bxi_gpu_parts *parts);    /* with all that it has; or NULL */
/* Whether the device can make, export and import memory so. Takes a millisecond or so. */
bool bxi_gpu_vmm_works(const struct bxi_gpu_device *device);
/* CUresults. make: one part, mapped here for reading and writing. map: a peer's parts, for reading. unmap: either. */
unsigned bxi_gpu_vmm_make(const struct bxi_gpu_device *device, uint64_t bytes, struct bxi_gpu_parts *parts,
                          uint64_t *address);
unsigned bxi_gpu_vmm_map(const struct bxi_gpu_device *device, struct bxi_gpu_parts *parts, uint64_t *address);
/* Helper, before something is mapped on the device: makes the allocation that settle frees where it can make none, if
 * there is room for that. fini frees it, when the device is closed. */
void bxi_gpu_vmm_init(struct bxi_gpu_device *device);
void bxi_gpu_vmm_fini(struct bxi_gpu_device *device);
/* Helper: waits for all work on the device. false: it could not. */
bool bxi_gpu_vmm_settle(struct bxi_gpu_device *device);
void bxi_gpu_vmm_unmap(const struct bxi_gpu_device *device, uint64_t address, const struct bxi_gpu_parts *parts);
/* Foreign memory: the allocations that [address, address + bytes) touches, and the first one's address. -EOPNOTSUPP:
 * they cannot be exported. Then their descriptors. */
int bxi_gpu_vmm_take(const struct bxi_gpu *gpu, uint64_t address, uint64_t bytes, struct bxi_gpu_parts *parts,
                     uint64_t *base);
int bxi_gpu_vmm_export(const struct bxi_gpu *gpu, struct bxi_gpu_parts *parts);

/* ---- map.c: slabs of peers that are mapped here ---------------------------------------------- */

int bxi_gpu_maps_poll(struct bxi_gpu_peer *peer);       /* under the lock: closes maps; how many remain to be closed */
/* At the end: all of all peers, by the helper; false: at end_ns one was open, or the helper at work. */
bool bxi_gpu_maps_close(struct bxi_gpu *gpu, uint64_t end_ns);
/* Under the lock: */
bool bxi_gpu_is_mapped(const struct bxi_gpu *gpu, uint64_t address);

/* ---- point.c: points of this process and of peers -------------------------------------------- */

/* As bxi_gpu_passed, under the lock. */
int bxi_gpu_point_passed(struct bxi_gpu *gpu, struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point);

/* ---- slab.c: slabs; all under the lock where not said otherwise ------------------------------ */

struct bxi_gpu_last {                   /* foreign: a callback for when it is free */
    struct bxi_gpu_last *next;
    bxi_gpu_freed_fn freed;
    void *context;
};
struct bxi_gpu_slab {
    struct bxi_gpu_job job;             /* first */
    struct bxi_gpu_device *device;
    uint64_t generation;                /* of this use of the row, or the last */
    enum bxi_gpu_slab_state state;
    bool is_making;                     /* EMPTY, but a thread allocates memory for it */
    bool is_freeing;                    /* the helper has it */
    bool is_foreign;
    uint64_t address, bytes;
    struct bxi_gpu_parts *parts;        /* its descriptors; NULL: exported by a handle */
    uint32_t used;                      /* blocks handed out or waiting */
    struct bxi_gpu_chunk *whole;        /* while it is all free */
    uint64_t buffer_id;                 /* foreign */
    struct bxi_gpu_last *last;          /* foreign */
};
struct bxi_gpu_slab *bxi_gpu_slab_vacant(struct bxi_gpu *gpu);          /* NULL: all rows are taken */
/* Releases the lock while the driver works: other threads may use the pool meanwhile. */
int bxi_gpu_slab_make(struct bxi_gpu_device *device, uint64_t bytes);
/* Without the lock, the device's context current. */
int bxi_gpu_slab_export(const struct bxi_gpu_device *device, uint64_t address, struct CUipcMemHandle_st *handle);
/* The row is LIVE. The slab has its parts; or they are NULL, and it has a handle. */
void bxi_gpu_slab_publish(struct bxi_gpu_slab *slab, const struct CUipcMemHandle_st *handle);
void bxi_gpu_slab_drop(struct bxi_gpu_slab *slab);                      /* one block less */
int bxi_gpu_slabs_retire_empty(struct bxi_gpu_device *device);          /* how many */
/* Whether a slab is retiring: of the device's own memory, or with NULL any. */
bool bxi_gpu_slabs_are_retiring(const struct bxi_gpu *gpu, const struct bxi_gpu_device *device);
int bxi_gpu_slabs_poll(struct bxi_gpu *gpu);                            /* how many are retiring */
/* At the end, without the lock. The first waits until no peer has a slab open, for two seconds at most. The second
 * frees the device's slabs; it returns how many peers still have open, which it leaves. */
void bxi_gpu_slabs_wait(struct bxi_gpu *gpu);
int bxi_gpu_device_slabs_free(struct bxi_gpu_device *device);

/* ---- block.c: blocks and the points that they wait for; all under the lock ------------------- */

struct bxi_gpu_until {
    struct bxi_gpu_peer *peer;          /* NULL: oneself */
    struct bxi_gpu_point point;
};
struct bxi_gpu_block_inside {
    struct bxi_gpu_block block;         /* first */
    struct bxi_gpu_chunk *chunk;        /* NULL: foreign */
    struct bxi_gpu_until *until;
    uint32_t until_count, until_capacity;
    struct bxi_gpu_block_inside *prev, *next;   /* of those that are handed out, or of those that wait */
};
/* A new block; bytes is what it counts for. */
void bxi_gpu_block_add(struct bxi_gpu *gpu, struct bxi_gpu_block_inside *block, uint64_t bytes);
int bxi_gpu_blocks_poll(struct bxi_gpu *gpu);           /* reuses blocks whose points have passed; how many wait */
void bxi_gpu_blocks_forget(struct bxi_gpu *gpu);        /* at the end */

/* ---- pool.c: allocation, and the wait for room; foreign.c allocates rows likewise ------------ */

/* Under the lock, after an allocation that returned rc: whether another attempt may succeed, because slabs are being
 * freed. Retires the device's empty slabs, which were too small. device NULL: only a row was missing. */
bool bxi_gpu_room_comes(struct bxi_gpu *gpu, struct bxi_gpu_device *device, int rc);
#define BXI_GPU_ROOM_PAUSES 5000                /* attempts: a second and a little */
void bxi_gpu_room_wait(struct bxi_gpu *gpu);    /* without the lock: polls, and pauses */

/* ---- probe.c: which order works on a device -------------------------------------------------- */

int bxi_gpu_probe(struct bxi_gpu_device *device);       /* sets device->order; without the lock, it takes long */

enum bxi_gpu_export {                   /* how slabs are exported, as BX_GPU_EXPORT requests */
    BXI_GPU_EXPORT_AUTO = 0,            /* as descriptors where that works */
    BXI_GPU_EXPORT_FD = 1,
    BXI_GPU_EXPORT_HANDLE = 2,          /* CUDA IPC */
};

/* ---- device.c: the process's GPU and its devices; nothing below calls it --------------------- */

struct bxi_gpu_device {
    struct bxi_gpu *gpu;
    int ordinal;                        /* here, and as the driver's CUdevice says */
    int handle;
    uint32_t index;                     /* in gpu->device and the region's head */
    struct CUctx_st *context;
    enum bxi_gpu_order order;
    struct CUstream_st *side;           /* free: nothing on it ever waits */
    uint64_t host_words;                /* the region's words as this device sees them; 0: EVENTS */
    bool exports_fds;                   /* vmm.c: as descriptors; else by handles of CUDA IPC */
    unsigned long long spare;           /* the helper's; vmm.c: freed to wait for the device; 0: none */
    bool registers_read_only;           /* the driver takes pages that are mapped read-only */
    struct bxi_gpu_admission admission;
    struct bxi_gpu_heap heap;           /* gpu->lock */
    bool is_growing;                    /* gpu->lock; a thread makes a slab: gpu->grown when it is done */
    pthread_mutex_t bounce_lock;        /* guards the rest: stage.c's */
    void *bounce[2];
    struct CUevent_st *bounce_event[2];
};

struct bxi_gpu_figures {                /* struct bxi_gpu_counters, counted by any thread */
#define BXI_GPU_COUNTER_ATOMIC(name) bxi_a64 name;
    BXI_GPU_COUNTERS(BXI_GPU_COUNTER_ATOMIC)
#undef BXI_GPU_COUNTER_ATOMIC
};

struct bxi_gpu_found {                  /* reach.c's */
    uint8_t uuid[BXI_GPU_UUID_BYTES];
    struct bxi_gpu_device *device;      /* here, on which its memory is mapped */
};

struct bxi_gpu {
    struct bxi_cuda cu;                 /* constant after bxi_gpu_open, as the fields down to helper */
    struct bxi_gpu_region *region;
    uint64_t slab_bytes;
    enum bxi_gpu_order wanted;
    enum bxi_gpu_export export;
    bool (*is_held)(void *context, uint32_t slab, uint64_t generation);
    void *context;
    bool is_fake;
    int ordinals;
    int handle[BXI_GPU_ORDINALS];
    struct bxi_gpu_info info[BXI_GPU_ORDINALS];
    struct bxi_gpu_figures figures;
    struct bxi_gpu_helper helper;
    pthread_mutex_t opening;
    struct bxi_gpu_fd_server fd_server; /* opening; fd_server.c's */
    bxi_a32 is_closing;
    bool words_registered;              /* opening; the region's words' page, with the driver */

    pthread_mutex_t lock;               /* guards the rest */
    bool is_left;                       /* bxi_gpu_abandon: nothing is freed or called back any more */
    uint32_t calling;                   /* callbacks that run now */
    pthread_cond_t grown;               /* a slab was made, or could not be; or a callback has ended */
    struct bxi_gpu_device *device[BXI_GPU_DEVICES];     /* written under opening too */
    uint32_t device_count;
    uint8_t can_read[BXI_GPU_ORDINALS][BXI_GPU_ORDINALS];       /* reach.c: 0: not asked yet; else 1 + the answer */
    struct bxi_gpu_found found[BXI_GPU_REFUSED];                /* reach.c: devices that are hidden here */
    uint32_t found_count;
    uint8_t opened[BXI_GPU_REFUSED][BXI_GPU_UUID_BYTES];        /* reach.c: devices of which a handle was opened */
    bxi_a32 opened_count;
    struct bxi_gpu_slab slab[BXI_GPU_SLABS];
    struct bxi_gpu_block_inside *blocks, *waiting;
    struct bxi_gpu_lane *lane[BXI_GPU_LANES];
    uint64_t lane_value[BXI_GPU_LANES]; /* of closed ones: the next goes on from there */
    struct bxi_gpu_peer *peers;
};

/* ---- For all --------------------------------------------------------------------------------- */

/* CLOCK_MONOTONIC. */
static inline uint64_t bxi_gpu_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static inline struct timespec bxi_gpu_timespec(uint64_t ns)
{
    return (struct timespec){ (time_t)(ns / UINT64_C(1000000000)), (long)(ns % UINT64_C(1000000000)) };
}

/* Under the lock, before a callback. False: those who asked may have gone, and are not called. */
static inline bool bxi_gpu_call_begin(struct bxi_gpu *gpu)
{
    gpu->calling += !gpu->is_left;
    return !gpu->is_left;
}

static inline void bxi_gpu_call_end(struct bxi_gpu *gpu)
{
    pthread_mutex_lock(&gpu->lock);
    gpu->calling--;
    pthread_cond_broadcast(&gpu->grown);
    pthread_mutex_unlock(&gpu->lock);
}

/* A figure; n may be -1 for one that counts what exists now. */
static inline void bxi_gpu_count(bxi_a64 *figure, int64_t n)
{
    /* [gpu.figure] several threads count: one read-modify-write, and nobody derives an order from it. */
    (void)bxi_add(figure, (uint64_t)n);
}

/* What it is now; a reader wants a recent value. */
static inline uint64_t bxi_gpu_figure(const bxi_a64 *figure)
{
    /* [gpu.figure] relaxed: as above. */
    return bxi_load_relaxed(figure);
}

#endif

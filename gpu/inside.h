/* SPDX-License-Identifier: MIT */
/*
 * What the files of gpu/ share. One lock, gpu->lock, covers everything that is not said to be otherwise; it is
 * never held while a callback runs, nor while the helper opens, closes or frees, nor while a stream is waited for (but
 * the side stream, on which nothing waits). A lane's own fields belong to the thread that uses the lane, but with
 * EVENTS, where the lock covers them too, since bxi_gpu_poll moves the word.
 */
#ifndef BXI_GPU_INSIDE_H
#define BXI_GPU_INSIDE_H

#include "gpu.h"

#include "cuda_api.h"

#include <pthread.h>
#include <time.h>

#define BXI_GPU_TEXT_BYTES 512
#define BXI_GPU_ORDINALS 64             /* devices that are listed; no box has more */
#define BXI_GPU_ROUND ((uint64_t)2 << 20)
#define BXI_GPU_CLASSES 160             /* of free chunks: four steps to the doubling */
#define BXI_GPU_BOUNCE_BYTES ((size_t)1 << 20)

/* ---- Sentences and results (cuda_load.c) ----------------------------------------------------- */

/* Sets this thread's sentence and returns code. */
int bxi_gpu_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same with what the driver says of result; the code is that of result. */
int bxi_gpu_cuda_fail(const struct bxi_cuda *cu, unsigned result, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int bxi_gpu_load(struct bxi_cuda *cu, const char *path);            /* dlopen, symbols, cuInit; -ENODEV, -EPERM */
void bxi_gpu_unload(struct bxi_cuda *cu);
bool bxi_gpu_library_is_fake(const struct bxi_cuda *cu);
bool bxi_gpu_forked(void);                                          /* with the sentence, if so */

/* ---- Helper (helper.c) ----------------------------------------------------------------------- */

struct bxi_gpu_job {                    /* inside what it is about, so that queueing cannot fail */
    struct bxi_gpu_job *next;
    void (*run)(struct bxi_gpu_job *job);
};
struct bxi_gpu_helper {
    pthread_mutex_t lock;               /* innermost; guards the rest */
    pthread_cond_t change;
    pthread_t thread;
    bool is_started, stops, is_busy;
    struct bxi_gpu_job *first, *last;
};
int bxi_gpu_helper_start(struct bxi_gpu_helper *helper);
void bxi_gpu_helper_post(struct bxi_gpu_helper *helper, struct bxi_gpu_job *job);
void bxi_gpu_helper_drain(struct bxi_gpu_helper *helper);           /* waits until it has nothing to do */
void bxi_gpu_helper_stop(struct bxi_gpu_helper *helper);

/* ---- Heap (heap.c): where in its slab a block lies ------------------------------------------- */

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
/* Returns what it has become, joined with its neighbours. */
struct bxi_gpu_chunk *bxi_gpu_heap_give(struct bxi_gpu_heap *heap, struct bxi_gpu_chunk *chunk);
/* A free chunk that is all of its slab leaves, and is freed. */
void bxi_gpu_heap_remove(struct bxi_gpu_heap *heap, struct bxi_gpu_chunk *chunk);
void bxi_gpu_heap_fini(struct bxi_gpu_heap *heap);      /* frees what is free; the slabs are gone */

/* ---- Slabs and blocks (slab.c, block.c) ------------------------------------------------------ */

struct bxi_gpu_slab {
    struct bxi_gpu_job job;             /* first */
    struct bxi_gpu_device *device;
    uint64_t generation;                /* of this use of the row, or the last */
    enum bxi_gpu_slab_state state;
    bool is_freeing;                    /* the helper has it */
    bool is_foreign;
    uint64_t address, bytes;
    uint32_t used;                      /* blocks handed out or waiting */
    struct bxi_gpu_chunk *whole;        /* while it is all free */
    uint64_t buffer_id;                 /* foreign */
    struct bxi_gpu_last *last;          /* foreign: who wants to know when it is free */
};
struct bxi_gpu_last {
    struct bxi_gpu_last *next;
    bxi_gpu_freed_fn freed;
    void *context;
};

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

/* All under the lock. */
int bxi_gpu_slab_make(struct bxi_gpu_device *device, uint64_t bytes);
int bxi_gpu_slab_publish(struct bxi_gpu_slab *slab);          /* exports it and makes the row LIVE */
struct bxi_gpu_slab *bxi_gpu_slab_vacant(struct bxi_gpu *gpu);                /* NULL: all rows are taken */
int bxi_gpu_slabs_poll(struct bxi_gpu *gpu);
/* After a call that found no memory on the device, or no row (device NULL: of none): whether it is worth asking again,
 * because slabs are being freed. Those of the device that are empty, and too small, are from then on. */
bool bxi_gpu_room_comes(struct bxi_gpu *gpu, const struct bxi_gpu_device *device, int rc);
#define BXI_GPU_ROOM_PAUSES 5000                /* how often it is asked again: a second and a little */
void bxi_gpu_room_wait(struct bxi_gpu *gpu);                                  /* without the lock: polls, and pauses */
void bxi_gpu_slab_drop(struct bxi_gpu_slab *slab);       /* a block less */
/* At the end, without the lock: waits until nobody has one open, for some seconds; frees those of a device, and says
 * how many are still open somewhere and therefore not freed. */
void bxi_gpu_slabs_wait(struct bxi_gpu *gpu);
int bxi_gpu_device_slabs_free(struct bxi_gpu_device *device);
int bxi_gpu_blocks_poll(struct bxi_gpu *gpu);
void bxi_gpu_blocks_forget(struct bxi_gpu *gpu);                              /* at the end */

/* ---- Devices (device.c) ---------------------------------------------------------------------- */

struct bxi_gpu_device {
    struct bxi_gpu *gpu;
    int ordinal;                        /* here, and as the driver's CUdevice says */
    int handle;
    uint32_t index;                     /* in gpu->device and the region's head */
    struct CUctx_st *context;
    enum bxi_gpu_order order;
    struct CUstream_st *side;           /* free: nothing on it ever waits */
    struct bxi_gpu_heap heap;
    uint64_t host_words;                /* HOST_WORDS: the region's words as this device sees them */
    struct bxi_gpu_block *word_block;   /* DEVICE_WORDS */
    pthread_mutex_t bounce_lock;        /* outermost; guards the rest */
    void *bounce[2];
    struct CUevent_st *bounce_event[2];
};
/* Makes the device's context current on this thread, and the one before again. */
int bxi_gpu_enter(const struct bxi_gpu_device *device);
void bxi_gpu_leave(const struct bxi_gpu_device *device);
/* Under the lock: */
/* Tells everybody whether memory of that device can be mapped here. */
void bxi_gpu_judge(struct bxi_gpu *gpu, const uint8_t uuid[BXI_GPU_UUID_BYTES], bool can);
int bxi_gpu_find(const struct bxi_gpu *gpu, const uint8_t uuid[BXI_GPU_UUID_BYTES]);  /* its ordinal here, or -1 */
bool bxi_gpu_can_read(struct bxi_gpu *gpu, int reader, int owner);    /* ordinals; as the driver says, asked once */

/* ---- Orders (order.c, probe.c) --------------------------------------------------------------- */

struct bxi_gpu_lane {
    struct bxi_gpu *gpu;
    struct bxi_gpu_device *device;
    struct CUstream_st *stream;
    bool owns_stream;
    enum bxi_gpu_order order;
    uint32_t index;
    uint64_t value;                     /* of the last mark */
    uint64_t done;                      /* EVENTS: as the word says */
    uint64_t word_address;              /* as the device sees it */
    struct CUevent_st *event[BXI_GPU_RING];
};
int bxi_gpu_probe(struct bxi_gpu_device *device);       /* sets device->order; without the lock, it takes long */
int bxi_gpu_lanes_poll(struct bxi_gpu *gpu);            /* under the lock; points under way, with EVENTS */

/* As bxi_gpu_passed, under the lock. */
int bxi_gpu_point_passed(struct bxi_gpu *gpu, struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point);
/* Copies a word of the device to the host, on the side stream. */
int bxi_gpu_read_word(const struct bxi_gpu_device *device, uint64_t address, uint64_t *value);
void bxi_gpu_stage_fini(struct bxi_gpu_device *device);

/* ---- Peers and maps (peer.c, cache.c) -------------------------------------------------------- */

enum bxi_gpu_map_state { BXI_GPU_MAP_NONE = 0, BXI_GPU_MAP_OPENING, BXI_GPU_MAP_OPEN, BXI_GPU_MAP_CLOSING };

struct bxi_gpu_wait;                    /* somebody who waits for it */
struct bxi_gpu_map {
    struct bxi_gpu_job job;             /* first */
    struct bxi_gpu_peer *peer;
    struct bxi_gpu_device *device;      /* here, on which it is mapped */
    enum bxi_gpu_map_state state;
    uint64_t generation;
    uint64_t address, bytes;
    uint32_t users;
    struct bxi_gpu_wait *waiting;
};
struct bxi_gpu_event_cache {
    uint64_t generation;                /* of the lane */
    struct CUevent_st *event;
};
struct bxi_gpu_peer {
    struct bxi_gpu_peer *next;
    struct bxi_gpu *gpu;
    struct bxi_gpu_peer_options is;
    char name[64];
    bxi_a32 is_dead;
    uint32_t devices_seen;              /* of its head, compared for peer access */
    uint32_t open_maps;                 /* not NONE */
    uint64_t come[BXI_GPU_LANES];       /* dead: how far words in its slabs had come */
    bool words_registered;
    uint64_t host_words;                /* its words' page as is.device sees it; 0: it cannot */
    struct bxi_gpu_map map[BXI_GPU_SLABS];
    struct bxi_gpu_event_cache event[BXI_GPU_LANES][BXI_GPU_RING];
};
bool bxi_gpu_peer_is_dead(const struct bxi_gpu_peer *peer);
int bxi_gpu_peers_poll(struct bxi_gpu *gpu);            /* under the lock */
int bxi_gpu_maps_look(struct bxi_gpu_peer *peer);       /* under the lock: closes what is to be closed */
/* Under the lock: the device here on which the peer's slabs of that device are mapped; NULL: all are out of reach. */
struct bxi_gpu_device *bxi_gpu_device_for(const struct bxi_gpu_peer *peer, const uint8_t uuid[BXI_GPU_UUID_BYTES]);
/* Under the lock: begins to map some slab of that device, which is hidden here. 1: one is mapped. 0: to come, or there
 * is none. */
int bxi_gpu_map_some(struct bxi_gpu_peer *peer, const uint8_t uuid[BXI_GPU_UUID_BYTES]);
void bxi_gpu_map_close(struct bxi_gpu_map *map);        /* under the lock: begins it; it is OPEN */
void bxi_gpu_peer_close_maps(struct bxi_gpu_peer *peer);        /* all; waits for the helper */
void bxi_gpu_peer_forget_driver(struct bxi_gpu_peer *peer);     /* its page and events; the last but free */
/* Under the lock: */
bool bxi_gpu_is_mapped(const struct bxi_gpu *gpu, uint64_t address);
/* Where a lane's word is, and by which device here it is read; address 0: its slab is not mapped. */
struct bxi_gpu_place {
    uint64_t address;
    const struct bxi_gpu_device *device;
};
struct bxi_gpu_place bxi_gpu_mapped(const struct bxi_gpu_peer *peer, const struct bxi_gpu_lane_row *row);

/* ---- The process's part ---------------------------------------------------------------------- */

struct bxi_gpu_figures {                /* struct bxi_gpu_counters, counted by any thread */
#define BXI_GPU_COUNTER_ATOMIC(name) bxi_a64 name;
    BXI_GPU_COUNTERS(BXI_GPU_COUNTER_ATOMIC)
#undef BXI_GPU_COUNTER_ATOMIC
};

struct bxi_gpu_found {
    uint8_t uuid[BXI_GPU_UUID_BYTES];
    struct bxi_gpu_device *device;      /* here, on which its memory is mapped */
};

struct bxi_gpu {
    struct bxi_cuda cu;                 /* from here on as opened */
    struct bxi_gpu_region *region;
    uint64_t slab_bytes;
    enum bxi_gpu_order wanted;
    bool is_fake;
    int ordinals;
    int handle[BXI_GPU_ORDINALS];
    struct bxi_gpu_info info[BXI_GPU_ORDINALS];
    struct bxi_gpu_figures figures;
    struct bxi_gpu_helper helper;
    pthread_mutex_t opening;            /* outside of the lock: devices are opened one after the other */
    bool words_registered;              /* opening; the region's words' page, with the driver */

    pthread_mutex_t lock;               /* guards the rest */
    struct bxi_gpu_device *device[BXI_GPU_DEVICES];
    uint32_t device_count;
    uint8_t can_read[BXI_GPU_ORDINALS][BXI_GPU_ORDINALS];       /* 0: not asked yet; else 1 + the answer */
    struct bxi_gpu_found found[BXI_GPU_REFUSED];                /* devices that are hidden here */
    uint32_t found_count;
    struct bxi_gpu_slab slab[BXI_GPU_SLABS];
    struct bxi_gpu_block_inside *blocks, *waiting;
    struct bxi_gpu_lane *lane[BXI_GPU_LANES];
    uint64_t lane_value[BXI_GPU_LANES]; /* of closed ones: the next goes on from there */
    uint64_t lanes_made;
    struct bxi_gpu_peer *peers;
};

/* CLOCK_MONOTONIC. */
static inline uint64_t bxi_gpu_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* A figure; n may be -1 for one that says how many there are. */
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

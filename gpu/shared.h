/* SPDX-License-Identifier: MIT */
/*
 * The part of gpu/ in shared memory: the region of each process, which its peers map read-only, and the slabs that a
 * borrower has open. Structures only, so that an inspector can read them without the rest of gpu/. README.md has the
 * writer and readers of each field, the memory order, and the invariants.
 */
#ifndef BXI_GPU_SHARED_H
#define BXI_GPU_SHARED_H

#include "shm/atomic.h"

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define BXI_GPU_UUID_BYTES 16
#define BXI_GPU_HANDLE_BYTES 64
#define BXI_GPU_DEVICES 8               /* open at a time in one worker */
#define BXI_GPU_SLABS 256               /* of one worker at a time, on all its devices */
#define BXI_GPU_LANES 32                /* of one worker at a time */
#define BXI_GPU_REFUSED 32              /* rows of head.refused, .known, .unopened */
#define BXI_GPU_FD_SERVER_BYTES 16
#define BXI_GPU_POISON (UINT64_C(1) << 62)      /* added to a word that has no writer any more */

/* How streams of two processes are ordered, best first: chosen by the probe, or requested. */
enum bxi_gpu_order {
    BXI_GPU_ORDER_AUTO = 0,             /* the first of these that works on the device */
    BXI_GPU_HOST_WORDS = 1,             /* streams write and wait for words in shared host memory */
    BXI_GPU_EVENTS = 2,                 /* the driver has the owner's host write the word; hosts of peers wait for it */
};

/* The region: one per process, in shared memory of its owner, page-aligned, initially zero. The owner writes it; its
 * GPU writes the words. Peers map it read-only; where their driver registers nothing read-only they map the words' page
 * alone writable too, and do not write it while the owner lives (G9). */
#define BXI_GPU_MAGIC UINT64_C(0x3175706772616378)
#define BXI_GPU_LAYOUT 6u

struct bxi_gpu_head {
    bxi_a64 magic;                      /* BXI_GPU_MAGIC; written last */
    uint32_t layout;
    uint32_t pid;
    uint64_t ipc_namespace;             /* inodes of /proc/self/ns: the same, or handles of CUDA IPC do not work */
    uint64_t pid_namespace;
    bxi_a32 device_count;
    bxi_a32 refused_count;
    bxi_a32 known_count;
    bxi_a32 unopened_count;
    uint8_t device[BXI_GPU_DEVICES][BXI_GPU_UUID_BYTES];
    uint8_t refused[BXI_GPU_REFUSED][BXI_GPU_UUID_BYTES];   /* devices whose memory it cannot map */
    uint8_t known[BXI_GPU_REFUSED][BXI_GPU_UUID_BYTES];     /* devices whose memory it can map, or has refused */
    uint64_t net_namespace;             /* as the two above: fd_server.c's socket needs the same */
    uint8_t fd_server[BXI_GPU_FD_SERVER_BYTES]; /* the socket's name; set before a slab has BXI_GPU_SLAB_FD */
    uint8_t unopened[BXI_GPU_REFUSED][BXI_GPU_UUID_BYTES];  /* devices whose handles of CUDA IPC it cannot open */
    bxi_a32 is_trying;                  /* 1: it is about to find that out; until it has, lend nothing by handles */
    uint32_t reserved;
};

struct bxi_gpu_word {                   /* two cache lines: neighbours are written by other streams */
    bxi_a64 value;                      /* of the lane's last point that has passed; GPU or owner writes */
    uint8_t pad[120];
};

struct bxi_gpu_lane_row {
    bxi_a32 order;                      /* enum bxi_gpu_order; 0: no lane */
    uint32_t device;                    /* index into head.device */
    uint8_t pad[56];
};

enum bxi_gpu_slab_state { BXI_GPU_SLAB_EMPTY = 0, BXI_GPU_SLAB_LIVE = 1, BXI_GPU_SLAB_RETIRING = 2 };

enum bxi_gpu_slab_flags {
    BXI_GPU_SLAB_FD = 1,                /* exported as descriptors (fd_server.c); else the handle is CUDA IPC's */
};

struct bxi_gpu_slab_row {
    bxi_a64 stamp;                      /* generation << 2 | enum bxi_gpu_slab_state */
    uint64_t bytes;
    uint8_t handle[BXI_GPU_HANDLE_BYTES];
    uint8_t uuid[BXI_GPU_UUID_BYTES];
    uint32_t flags;                     /* enum bxi_gpu_slab_flags */
    uint8_t pad[28];
};

struct bxi_gpu_region {
    struct bxi_gpu_head head;
    uint8_t head_pad[4096 - sizeof(struct bxi_gpu_head)];
    struct bxi_gpu_word word[BXI_GPU_LANES];                /* one page, which peers register with their drivers */
    struct bxi_gpu_lane_row lane[BXI_GPU_LANES];
    uint8_t lane_pad[4096 - BXI_GPU_LANES * sizeof(struct bxi_gpu_lane_row)];
    struct bxi_gpu_slab_row slab[BXI_GPU_SLABS];
};

/* The slabs of one owner that a borrower has open: per row the generation, or 0. In the borrower's shared memory, one
 * for each pair, initially zero; the owner reads it. */
struct bxi_gpu_held {
    bxi_a64 generation[BXI_GPU_SLABS];
};

static_assert(sizeof(struct bxi_gpu_word) == 128, "a word");
static_assert(sizeof(struct bxi_gpu_lane_row) == 64, "a lane is a line");
static_assert(sizeof(struct bxi_gpu_slab_row) == 128, "a slab");
static_assert(offsetof(struct bxi_gpu_region, word) == 4096, "the words' page");
static_assert(offsetof(struct bxi_gpu_region, lane) == 8192, "lanes");
static_assert(offsetof(struct bxi_gpu_region, slab) == 12288, "slabs");
static_assert(sizeof(struct bxi_gpu_region) == 45056, "region");
static_assert(sizeof(struct bxi_gpu_held) == 2048, "held");

#endif

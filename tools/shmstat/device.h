/* SPDX-License-Identifier: MIT */
/*
 * What workers show of their device memory: private copies of it, for `gpu`, `show`, `check`, `why` and the
 * exporter. gpu/shared.h has the structures, gpu/README.md who writes them.
 */
#ifndef TOOLS_STAT_DEVICE_H
#define TOOLS_STAT_DEVICE_H

#include "jobs.h"

#include "gpu/shared.h"

#define STAT_UUID_BYTES 41      /* "GPU-", 32 digits, four lines between them */

/* A slab that the worker says it has open, or is about to. */
struct stat_borrow {
    int peer;
    uint32_t slab;
    uint64_t generation;
};

struct stat_gpu {
    const char *problem;                /* NULL, or why region is all zero */
    struct bxi_gpu_region region;       /* copied after what all workers say they have open */
    size_t borrow_count;
    struct stat_borrow borrows[];       /* by peer, then slab */
};

/* Copies what the workers show that have a GPU open; their descriptors must be open. 0, -ENOMEM. */
int stat_gpus_read(struct stat_job *job);
/* NULL: that worker cannot be read, or has no GPU open, or what it shows of it is none. */
const struct stat_gpu *stat_gpu_of(const struct stat_job *job, int rank);

static inline uint64_t stat_slab_generation(const struct bxi_gpu_slab_row *row)
{
    return stat_word(&row->stamp) >> 2;
}

static inline unsigned stat_slab_state(const struct bxi_gpu_slab_row *row)
{
    return (unsigned)(stat_word(&row->stamp) & 3);
}

/* Of what is told, as much as there is room for. */
uint32_t stat_gpu_devices(const struct stat_gpu *gpu);
uint32_t stat_gpu_refused(const struct stat_gpu *gpu);
uint32_t stat_gpu_known(const struct stat_gpu *gpu);
/* The device of that slab; -1 if that is none of those shown: a device's first slab is there before. */
int stat_gpu_device_of(const struct stat_gpu *gpu, const struct bxi_gpu_slab_row *row);
uint32_t stat_gpu_lane_order(const struct stat_gpu *gpu, int lane);
/* The order of the device's lanes; 0 if none is open. */
uint32_t stat_gpu_order(const struct stat_gpu *gpu, uint32_t device);
/* Not the first choice, and not because it was asked for. */
bool stat_gpu_is_fallback(const struct stat_worker *worker, uint32_t order);
bool stat_lane_is_poisoned(const struct stat_gpu *gpu, int lane);
const char *stat_order_name(uint32_t order);        /* "host_words"; NULL for 0 */
const char *stat_slab_state_name(unsigned state);
/* The row of a borrowed slab at its owner; NULL if the row has another generation by now, or cannot be read. */
const struct bxi_gpu_slab_row *stat_gpu_row_of(const struct stat_job *job, const struct stat_borrow *borrow);
/* The ranks of the workers, alive or dead, that have the owner's slab open: how many, into ranks. */
size_t stat_gpu_openers(const struct stat_job *job, const struct stat_worker *owner, uint32_t slab, bool alive,
                        uint64_t ranks[BXI_WORLD_MAX]);
void stat_uuid_text(char text[STAT_UUID_BYTES], const uint8_t uuid[BXI_GPU_UUID_BYTES]);

#endif

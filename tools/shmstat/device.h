/* SPDX-License-Identifier: MIT */
/*
 * Device memory: private copies of what workers show of it. gpu/shared.h has the structures, gpu/README.md says who
 * writes them.
 */
#ifndef TOOLS_STAT_DEVICE_H
#define TOOLS_STAT_DEVICE_H

#include "jobs.h"
#include "row.h"

#include "gpu/shared.h"

/* A slab of a peer that the worker has open, or is about to open. */
struct stat_borrow {
    int peer;
    uint32_t slab;
    uint64_t generation;
};

struct stat_gpu {
    const char *problem;                /* NULL, or why region is all zero */
    struct bxi_gpu_region region;       /* copied after the borrows of all workers */
    size_t borrow_count;
    struct stat_borrow borrows[];       /* by peer, then slab */
};

/* Copies the device memory of all workers that have a GPU open. Their descriptors must be open. 0, -ENOMEM. */
int stat_gpus_read(struct stat_job *job);
/* NULL: that worker cannot be read, has no GPU open, or its region is not valid. */
const struct stat_gpu *stat_gpu_of(const struct stat_job *job, int rank);

static inline uint64_t stat_slab_generation(const struct bxi_gpu_slab_row *row)
{
    return stat_word(&row->stamp) >> 2;
}

static inline unsigned stat_slab_state(const struct bxi_gpu_slab_row *row)
{
    return (unsigned)(stat_word(&row->stamp) & 3);
}

/* How many devices are listed, bounded by the room for them. */
uint32_t stat_gpu_devices(const struct stat_gpu *gpu);
/* The index of that slab's device; -1 if the device is not listed: its first slab is made before it is listed. */
int stat_gpu_device_of(const struct stat_gpu *gpu, const struct bxi_gpu_slab_row *row);
/* The order of the device's lanes; 0 if none is open. */
uint32_t stat_gpu_order(const struct stat_gpu *gpu, uint32_t device);
/* True if the order is not the first choice and the user did not ask for it. */
bool stat_gpu_is_fallback(const struct stat_worker *worker, uint32_t order);
bool stat_lane_is_poisoned(const struct stat_gpu *gpu, int lane);
const char *stat_order_name(uint32_t order);        /* "host_words"; NULL for 0 */
const char *stat_slab_state_name(unsigned state);
/* The row of a borrowed slab at its owner; NULL if the row has another generation by now, or cannot be read. */
const struct bxi_gpu_slab_row *stat_gpu_row_of(const struct stat_job *job, const struct stat_borrow *borrow);
/* The ranks of the workers, alive or dead, that have the owner's slab open: how many, into ranks. */
size_t stat_gpu_openers(const struct stat_job *job, const struct stat_worker *owner, uint32_t slab, bool alive,
                        uint64_t ranks[BXI_WORKERS_MAX]);
/* "GPU-", 32 digits, four dashes between them. Valid until the next call. */
const char *stat_uuid_text(const uint8_t uuid[BXI_GPU_UUID_BYTES]);

/* gpu.c: the device memory of one worker, END if it has no GPU open; the parts that follow in its object; a device that
 * it has open. */
int stat_gpu_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row);
extern const struct stat_part stat_gpu_parts[];
int stat_device_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row);

#endif

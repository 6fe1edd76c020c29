/* SPDX-License-Identifier: MIT */
/*
 * Device memory, read from outside.
 *
 * A slab's owner does not know who has it open: each borrower writes that into its own segment, with the slab's
 * generation. So these words of all workers are read first, and the regions after them: a generation that is held is
 * then never newer than the row that is read of its slab. Both change while they are read; of a running job the
 * copies may be of two moments that lie close together.
 */
#include "device.h"

#include "state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Reading ------------------------------------------------------------------------------------ */

/* Into worker->gpu, which has room for all. */
static void read_held(struct stat_worker *worker)
{
    struct stat_gpu *gpu = worker->gpu;
    struct bxi_gpu_held held;

    for (int peer = 0; peer < (int)worker->control->header.world_size; peer++) {
        if (stat_pread(&worker->segment, &held, sizeof(held), bxi_device_pair_offset(peer)) < 0)
            return;
        for (uint32_t slab = 0; slab < BXI_GPU_SLABS; slab++) {
            uint64_t generation = stat_word(&held.generation[slab]);

            if (generation != 0)
                gpu->borrows[gpu->borrow_count++] = (struct stat_borrow){ peer, slab, generation };
        }
    }
}

static void read_region(const struct stat_worker *worker)
{
    struct stat_gpu *gpu = worker->gpu;

    if (stat_pread(&worker->segment, &gpu->region, sizeof(gpu->region), BXI_DEVICE_OFFSET) < 0)
        gpu->problem = "it cannot be read: its segment was truncated";
    else if (stat_word(&gpu->region.head.magic) != BXI_GPU_MAGIC)
        gpu->problem = "it says that it has a GPU open, and its region of device memory is none";
    else if (gpu->region.head.layout != BXI_GPU_LAYOUT)
        gpu->problem = "its region of device memory has another layout than this shmstat knows";
    if (gpu->problem != NULL)
        memset(&gpu->region, 0, sizeof(gpu->region));
}

int stat_gpus_read(struct stat_job *job)
{
    for (struct stat_worker *worker = NULL; (worker = stat_next_reader(job, worker)) != NULL;) {
        /* The region is read only if it is 1. */
        if (stat_word32(&worker->control->header.device_open) != 1)
            continue;
        /* Room for every slab of every peer: pages that are not written take no memory. */
        worker->gpu = calloc(1, sizeof(*worker->gpu) + worker->control->header.world_size * BXI_GPU_SLABS *
                                                           sizeof(worker->gpu->borrows[0]));
        if (worker->gpu == NULL)
            return -ENOMEM;
        read_held(worker);
    }
    for (struct stat_worker *worker = NULL; (worker = stat_next(job, worker)) != NULL;)
        if (worker->gpu != NULL)
            read_region(worker);
    return 0;
}

/* ---- Figures ------------------------------------------------------------------------------------ */

const struct stat_gpu *stat_gpu_of(const struct stat_job *job, int rank)
{
    const struct stat_worker *worker = stat_reader(job, (uint32_t)rank);

    return worker != NULL && worker->gpu != NULL && worker->gpu->problem == NULL ? worker->gpu : NULL;
}

uint32_t stat_gpu_devices(const struct stat_gpu *gpu)
{
    uint32_t count = stat_word32(&gpu->region.head.device_count);

    return count < BXI_GPU_DEVICES ? count : BXI_GPU_DEVICES;
}

int stat_gpu_device_of(const struct stat_gpu *gpu, const struct bxi_gpu_slab_row *row)
{
    for (uint32_t i = 0; i < stat_gpu_devices(gpu); i++)
        if (memcmp(gpu->region.head.device[i], row->uuid, BXI_GPU_UUID_BYTES) == 0)
            return (int)i;
    return -1;
}

uint32_t stat_gpu_order(const struct stat_gpu *gpu, uint32_t device)
{
    for (int i = 0; i < BXI_GPU_LANES; i++)
        if (stat_word32(&gpu->region.lane[i].order) != 0 && gpu->region.lane[i].device == device)
            return stat_word32(&gpu->region.lane[i].order);
    return 0;
}

bool stat_gpu_is_fallback(const struct stat_worker *worker, uint32_t order)
{
    return order > BXI_GPU_HOST_WORDS && stat_counter(worker, BXI_C_gpu_fallbacks) != 0;
}

bool stat_lane_is_poisoned(const struct stat_gpu *gpu, int lane)
{
    return (stat_word(&gpu->region.word[lane].value) & BXI_GPU_POISON) != 0;
}

const char *stat_order_name(uint32_t order)
{
    static const char *const names[] = { NULL, "host_words", "events" };

    return order <= BXI_GPU_EVENTS ? names[order] : "unknown";
}

const char *stat_slab_state_name(unsigned state)
{
    static const char *const names[] = { "freed", "live", "retiring", "unknown" };

    return names[state & 3];
}

const char *stat_uuid_text(const uint8_t uuid[BXI_GPU_UUID_BYTES])
{
    static char text[sizeof("GPU-") + 2 * BXI_GPU_UUID_BYTES + 4];
    int at = snprintf(text, sizeof(text), "GPU");

    for (int i = 0; i < BXI_GPU_UUID_BYTES; i++)
        at += snprintf(text + at, sizeof(text) - (size_t)at, "%s%02x",
                       i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
    return text;
}

const struct bxi_gpu_slab_row *stat_gpu_row_of(const struct stat_job *job, const struct stat_borrow *borrow)
{
    const struct stat_gpu *owner = stat_gpu_of(job, borrow->peer);
    const struct bxi_gpu_slab_row *row = owner != NULL ? &owner->region.slab[borrow->slab] : NULL;

    return row != NULL && stat_slab_generation(row) == borrow->generation ? row : NULL;
}

static bool has_open(const struct stat_worker *worker, const struct stat_borrow *borrow)
{
    for (size_t i = 0; worker->gpu != NULL && i < worker->gpu->borrow_count; i++)
        if (memcmp(&worker->gpu->borrows[i], borrow, sizeof(*borrow)) == 0)
            return true;
    return false;
}

size_t stat_gpu_openers(const struct stat_job *job, const struct stat_worker *owner, uint32_t slab, bool alive,
                        uint64_t ranks[BXI_WORKERS_MAX])
{
    struct stat_borrow borrow = { owner->rank, slab, stat_slab_generation(&owner->gpu->region.slab[slab]) };
    size_t count = 0;

    for (struct stat_worker *worker = NULL; (worker = stat_next_reader(job, worker)) != NULL;)
        if (stat_worker_alive(worker) == alive && has_open(worker, &borrow))
            ranks[count++] = (uint64_t)worker->rank;
    return count;
}

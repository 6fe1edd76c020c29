/* SPDX-License-Identifier: MIT */
/*
 * shmstat gpu: the device memory of each worker. The same is a section of show.
 */
#include "describe.h"
#include "device.h"
#include "list.h"
#include "shmstat.h"

#include <stdio.h>

/* ---- Rows --------------------------------------------------------------------------------------- */

/* Of the slabs on that device: how many, and their bytes; LIVE and RETIRING ones, or RETIRING ones only. */
static uint64_t sum_slabs(const struct stat_gpu *gpu, int device, bool is_retiring, uint64_t *bytes)
{
    uint64_t count = 0;

    *bytes = 0;
    for (int i = 0; i < BXI_GPU_SLABS; i++) {
        const struct bxi_gpu_slab_row *slab = &gpu->region.slab[i];
        unsigned state = stat_slab_state(slab);

        if ((state == BXI_GPU_SLAB_RETIRING || (state == BXI_GPU_SLAB_LIVE && !is_retiring)) &&
            stat_gpu_device_of(gpu, slab) == device) {
            count++;
            *bytes += slab->bytes;
        }
    }
    return count;
}

int stat_device_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row)
{
    const struct stat_gpu *gpu = worker->gpu;
    uint64_t bytes;

    (void)job;
    if (gpu == NULL || (uint32_t)index >= stat_gpu_devices(gpu))
        return STAT_END;

    uint32_t order = stat_gpu_order(gpu, (uint32_t)index);
    bool is_fallback = stat_gpu_is_fallback(worker, order);

    stat_put(row, "device", STAT_ID, (uint64_t)index);
    stat_put_text(row, "uuid", stat_uuid_text(gpu->region.head.device[index]));
    stat_put_text(row, "order", stat_order_name(order));
    stat_put(row, "is_fallback", STAT_FLAG, is_fallback);
    stat_put(row, ".order", STAT_COUNT, order);
    stat_put(row, ".retiring", STAT_COUNT, sum_slabs(gpu, index, true, &bytes));
    stat_put(row, ".slabs", STAT_COUNT, sum_slabs(gpu, index, false, &bytes));
    stat_put(row, ".slab_bytes", STAT_BYTES, bytes);
    return STAT_ROW;
}

static int slab_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row)
{
    const struct bxi_gpu_slab_row *slab = &worker->gpu->region.slab[index];
    uint64_t ranks[BXI_WORKERS_MAX];
    int device;

    if (index >= BXI_GPU_SLABS)
        return STAT_END;
    if (stat_slab_state(slab) == BXI_GPU_SLAB_EMPTY)
        return STAT_SKIP;
    device = stat_gpu_device_of(worker->gpu, slab);
    stat_put(row, "slab", STAT_ID, (uint64_t)index);
    stat_put(row, "generation", STAT_COUNT, stat_slab_generation(slab));
    stat_put_text(row, "state", stat_slab_state_name(stat_slab_state(slab)));
    stat_put(row, "bytes", STAT_BYTES, slab->bytes);
    stat_put_text(row, "export", (slab->flags & BXI_GPU_SLAB_FD) != 0 ? "fd" : "handle");
    stat_put_if(row, device >= 0, "device", STAT_ID, (uint64_t)device);
    stat_put_list(row, "open_in", ranks, stat_gpu_openers(job, worker, (uint32_t)index, true, ranks));
    stat_put_list(row, "was_open_in", ranks, stat_gpu_openers(job, worker, (uint32_t)index, false, ranks));
    return STAT_ROW;
}

static int lane_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row)
{
    const struct stat_gpu *gpu = worker->gpu;

    (void)job;
    if (index >= BXI_GPU_LANES)
        return STAT_END;
    if (stat_word32(&gpu->region.lane[index].order) == 0)
        return STAT_SKIP;
    stat_put(row, "lane", STAT_ID, (uint64_t)index);
    stat_put(row, "device", STAT_ID, gpu->region.lane[index].device);
    stat_put_text(row, "order", stat_order_name(stat_word32(&gpu->region.lane[index].order)));
    stat_put(row, "word", STAT_COUNT, stat_word(&gpu->region.word[index].value) & ~BXI_GPU_POISON);
    stat_put(row, "poisoned", STAT_FLAG, stat_lane_is_poisoned(gpu, index));
    return STAT_ROW;
}

static int borrow_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row)
{
    const struct stat_borrow *borrow = &worker->gpu->borrows[index];
    const struct bxi_gpu_slab_row *slab;

    if ((size_t)index >= worker->gpu->borrow_count)
        return STAT_END;
    slab = stat_gpu_row_of(job, borrow);
    stat_put(row, "peer", STAT_ID, (uint64_t)borrow->peer);
    stat_put_text(row, "peer_name", stat_peer_name(job, borrow->peer));
    stat_put(row, "slab", STAT_ID, borrow->slab);
    stat_put(row, "generation", STAT_COUNT, borrow->generation);
    stat_put_text(row, "state", slab != NULL ? stat_slab_state_name(stat_slab_state(slab)) : NULL);
    stat_put_if(row, slab != NULL, "bytes", STAT_BYTES, slab != NULL ? slab->bytes : 0);
    return STAT_ROW;
}

static void put_uuids(struct stat_row *row, const char *name, const uint8_t list[BXI_GPU_REFUSED][BXI_GPU_UUID_BYTES],
                      uint32_t count)
{
    stat_put_names(row, name);
    for (uint32_t i = 0; i < count && i < BXI_GPU_REFUSED; i++)
        stat_add_name(row, "%s", stat_uuid_text(list[i]));
}

int stat_gpu_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row)
{
    const struct stat_gpu *gpu = worker->gpu;
    const struct bxi_gpu_head *head;
    uint32_t refused;
    uint64_t poisoned = 0;

    (void)job;
    if (gpu == NULL || index > 0)
        return STAT_END;
    head = &gpu->region.head;
    refused = stat_word32(&head->refused_count);
    for (int i = 0; i < BXI_GPU_LANES; i++)
        poisoned += stat_lane_is_poisoned(gpu, i);
    stat_put_text(row, "problem", gpu->problem);
    stat_put_if(row, gpu->problem == NULL, ".poisoned", STAT_COUNT, poisoned);
    stat_put_if(row, gpu->problem == NULL, ".refusals", STAT_COUNT,
                refused < BXI_GPU_REFUSED ? refused : BXI_GPU_REFUSED);
    put_uuids(row, "known", head->known, stat_word32(&head->known_count));
    put_uuids(row, "refused", head->refused, refused);
    return STAT_ROW;
}

/* ---- Parts -------------------------------------------------------------------------------------- */

const struct stat_part stat_gpu_parts[] = {
    { .key = "devices", .shape = STAT_LIST_OF, .make = stat_device_row },
    { .key = "slabs", .shape = STAT_LIST_OF, .make = slab_row },
    { .key = "lanes", .shape = STAT_LIST_OF, .make = lane_row },
    { .key = "borrowed", .shape = STAT_LIST_OF, .make = borrow_row },
    { 0 },
};

static const struct stat_part parts[] = {
    { .key = "counters", .make = stat_gpu_counter_row },
    { .key = "gpu", .make = stat_gpu_row, .inner = stat_gpu_parts },
    { 0 },
};

static void text_job(const struct stat_job *job)
{
    stat_job_text(job);
    printf(", %d workers\n", stat_job_size(job));
    stat_workers_text(job, parts);
}

int stat_gpu(const struct stat_options *options)
{
    static const struct stat_command command = { "gpu", STAT_READ_GPUS, parts, text_job };

    return stat_run_command(&command, options);
}

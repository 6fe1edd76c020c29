/* SPDX-License-Identifier: MIT */
/*
 * stat_plant_gpu.h: runs in a test's process. All atomic accesses are relaxed: the reader is a process that is
 * started afterwards.
 */
#include "stat_plant_gpu.h"

struct bxi_gpu_region *gpu_region(int rank)
{
    return bxi_segment_at(&plant.segment[rank], BXI_DEVICE_OFFSET);
}

struct bxi_gpu_held *gpu_held(int rank, int owner)
{
    return bxi_segment_at(&plant.segment[rank], bxi_device_pair_offset(owner));
}

bxi_a64 *gpu_counter(int rank, enum bxi_counter which)
{
    return &bxi_tables(plant_control(rank))->counters[which];
}

void gpu_set_slab(int rank, uint32_t slab, uint64_t generation, unsigned state)
{
    plant_set(&gpu_region(rank)->slab[slab].stamp, generation << 2 | state);
}

void gpu_set_open(int rank, uint32_t open)
{
    bxi_store_relaxed(&plant_control(rank)->header.device_open, open);
}

/* Two devices, each with a lane. */
static void make_gpu(int rank)
{
    struct bxi_gpu_region *mine = gpu_region(rank);

    cr_assert_eq(bxi_segment_open_device(&plant.segment[rank], 2), 0);
    mine->head.layout = BXI_GPU_LAYOUT;
    plant_set(&mine->head.magic, BXI_GPU_MAGIC);
    for (int i = 0; i < 2; i++) {
        memset(mine->head.device[i], 0x11 * (i + 1), BXI_GPU_UUID_BYTES);
        mine->lane[i].device = (uint32_t)i;
        bxi_store_relaxed(&mine->lane[i].order, BXI_GPU_HOST_WORDS);
    }
    bxi_store_relaxed(&mine->head.device_count, 2);
    plant_set(&mine->word[0].value, WORD);
    gpu_set_open(rank, 1);
}

void gpu_fill_slab(int rank, uint32_t slab, int device, uint64_t bytes)
{
    struct bxi_gpu_slab_row *row = &gpu_region(rank)->slab[slab];

    row->bytes = bytes;
    memset(row->handle, (int)slab, sizeof(row->handle));
    memcpy(row->uuid, gpu_region(rank)->head.device[device], sizeof(row->uuid));
}

void gpu_plant_make(void)
{
    plant_begin();
    make_gpu(0);
    make_gpu(1);
    gpu_fill_slab(0, 0, 0, 64 * MIB);
    gpu_set_slab(0, 0, GENERATION, LIVE);
    gpu_fill_slab(0, SLAB, 1, 2 * MIB);
    gpu_set_slab(0, SLAB, 1, RETIRING);
    gpu_fill_slab(0, SLAB_EMPTY, 1, 2 * MIB);
    gpu_set_slab(0, SLAB_EMPTY, 4, EMPTY);
    plant_set(&gpu_held(1, 0)->generation[0], GENERATION);
    plant_set(&gpu_held(1, 0)->generation[SLAB], 1);
    memset(gpu_region(1)->head.known[0], 0x22, BXI_GPU_UUID_BYTES);
    bxi_store_relaxed(&gpu_region(1)->head.known_count, 1);
    memset(gpu_region(1)->head.refused[0], 0x22, BXI_GPU_UUID_BYTES);
    bxi_store_relaxed(&gpu_region(1)->head.refused_count, 1);
    plant_set(gpu_counter(1, BXI_C_gpu_slabs_opened), 5);
    plant_set(gpu_counter(1, BXI_C_gpu_slabs_closed), 3);
}

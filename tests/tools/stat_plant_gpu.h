/* SPDX-License-Identifier: MIT */
/*
 * Device memory of a planted job (stat_plant.h), for the tests of shmstat: the caller has two devices and three
 * slabs, of which the callee has two open. Each word can be set.
 */
#ifndef TESTS_STAT_PLANT_GPU_H
#define TESTS_STAT_PLANT_GPU_H

#include "stat_plant.h"

#include "gpu/shared.h"

#define MIB (UINT64_C(1) << 20)
#define LIVE BXI_GPU_SLAB_LIVE
#define RETIRING BXI_GPU_SLAB_RETIRING
#define EMPTY BXI_GPU_SLAB_EMPTY
#define SLAB 7              /* of 2 MiB on device 1, retiring, in its first generation */
#define SLAB_EMPTY 9        /* on device 1, freed in its fourth */
#define GENERATION 3        /* of slab 0, of 64 MiB on device 0, live */
#define WORD 17             /* of lane 0 */
#define UUID_1 "GPU-11111111-1111-1111-1111-111111111111"
#define UUID_2 "GPU-22222222-2222-2222-2222-222222222222"

/* Makes the plant and the GPUs of both its workers. The callee has opened 5 slabs and closed 3, and cannot map device 1
 * of the caller. */
void gpu_plant_make(void);

struct bxi_gpu_region *gpu_region(int rank);
struct bxi_gpu_held *gpu_held(int rank, int owner);
bxi_a64 *gpu_counter(int rank, enum bxi_counter which);
void gpu_set_slab(int rank, uint32_t slab, uint64_t generation, unsigned state);
void gpu_fill_slab(int rank, uint32_t slab, int device, uint64_t bytes);
/* Sets device_open of rank: 0 means that it has no GPU open. */
void gpu_set_open(int rank, uint32_t open);

#endif

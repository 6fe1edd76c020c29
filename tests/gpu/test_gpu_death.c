/* SPDX-License-Identifier: MIT */
/*
 * gpu/: killed owners and borrowers, and what the survivors do. What becomes of tensors: test_device_death.c.
 */
#include "fake_library.h"
#include "gpu_fixture.h"

TestSuite(gpu_death, .timeout = 60);

#define BYTES (256u << 10)

enum { MET, LENT, HELD, KILLED };

/* ---- The owner dies -------------------------------------------------------------------------- */

/* Lends two blocks: one is filled; the filling of the other is blocked forever by a wait for a word of its own. */
static void dying_owner(void)
{
    struct bxi_gpu_block *ready, *never;
    struct bxi_gpu_lane *stuck;

    gpu_start_pair(0);
    ready = gpu_block(BYTES);
    never = gpu_block(BYTES);
    gpu_fill(gpu_lane, ready->address, 1, BYTES);
    gpu_lend(ready, BYTES, 0);
    gpu_wait_passed(NULL, &gpu_shared->ref[0].ready);
    GPU_EQ(bxi_gpu_lane_open(gpu_device, NULL, &stuck), 0);
    GPU_EQ(bxi_gpu_after(stuck, NULL, &(struct bxi_gpu_point){ .order = BXI_GPU_HOST_WORDS,
                                                               .lane = BXI_GPU_LANES - 1, .value = 1 }), 0);
    gpu_fill(stuck, never->address, 2, BYTES);
    GPU_EQ(bxi_gpu_ref(never, 0, BYTES, &gpu_shared->ref[1]), 0);
    GPU_EQ(bxi_gpu_mark(stuck, &gpu_shared->ref[1].ready), 0);
    gpu_post(LENT);
    gpu_wait_for_the_end();
}

static void survivor_that_cannot_write(void)
{
    struct bxi_gpu_map *map;

    gpu_start_pair(1);
    gpu_await(LENT, 1);
    (void)gpu_borrow(gpu_peer[0], &gpu_shared->ref[0], &map);
    bxi_gpu_map_put(map);                       /* open, but not in use */
    gpu_post(HELD);
    gpu_await(KILLED, 1);
    GPU_EQ(bxi_gpu_peer_died(gpu_peer[0], NULL), -EROFS);
    gpu_poll_until_nothing_is_left();
    GPU_EQ(gpu_counters().maps, 0);
    GPU_EQ(gpu_try_map(gpu_peer[0], &gpu_shared->ref[0]), -EOWNERDEAD);
    gpu_end();
}

Test(gpu_death, of_an_owner_returns_an_error_if_its_words_cannot_be_poisoned)
{
    gpu_world(GPU_ANY);
    gpu_order = BXI_GPU_HOST_WORDS;
    gpu_run_killed(dying_owner, survivor_that_cannot_write, HELD, KILLED);
}

/* ---- The borrower dies ----------------------------------------------------------------------- */

/* Has the slab open, of which its owner sees what it has stored before, and work of its own that never ends. */
static void dying_borrower(void)
{
    struct bxi_gpu_map *map;

    gpu_start_pair(1);
    gpu_await(LENT, 1);
    (void)gpu_borrow(gpu_peer[0], &gpu_shared->ref[0], &map);
    GPU_EQ(bxi_gpu_after(gpu_lane, NULL, &(struct bxi_gpu_point){ .order = BXI_GPU_HOST_WORDS,
                                                                  .lane = BXI_GPU_LANES - 1, .value = 1 }), 0);
    GPU_EQ(bxi_gpu_mark(gpu_lane, &gpu_shared->point[0]), 0);
    gpu_post(HELD);
    gpu_wait_for_the_end();
}

static void bereaved_owner(void)
{
    struct bxi_gpu_block *block;

    gpu_start_pair(0);
    block = gpu_block(2 * GPU_MIB);
    GPU_EQ(bxi_gpu_ref(block, 0, BYTES, &gpu_shared->ref[0]), 0);
    gpu_post(LENT);
    gpu_await(HELD, 1);
    GPU_EQ(bxi_gpu_block_until(block, gpu_peer[1], &gpu_shared->point[0]), 0);
    bxi_gpu_free(block);
    GPU_EQ(gpu_counters().blocks_waiting, 1);
    GPU_CHECK(bxi_gpu_poll(gpu) > 0);
    gpu_post(KILLED);
    gpu_await(KILLED, 2);
    GPU_EQ(bxi_gpu_peer_died(gpu_peer[1], gpu_shared->region[1].word), 0);
    GPU_EQ(gpu_counters().blocks_waiting, 0);
    GPU_EQ(gpu_counters().points_dropped, 1);
    GPU_EQ(bxi_gpu_trim(gpu_device), 1);
    gpu_poll_until_nothing_is_left();
    GPU_EQ(gpu_counters().slabs, 0);
    gpu_end();
}

Test(gpu_death, of_a_borrower_gives_back_its_blocks_and_its_slabs)
{
    gpu_world(GPU_ANY);
    gpu_order = BXI_GPU_HOST_WORDS;
    gpu_fork(0, bereaved_owner);
    gpu_fork(1, dying_borrower);
    gpu_await(KILLED, 1);
    gpu_kill(1);
    gpu_post(KILLED);
    gpu_join(0);
    gpu_check_machine();
}

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
    uint16_t lane = BXI_GPU_LANES - 1;

    gpu_start_pair(0);
    ready = gpu_block(BYTES);
    never = gpu_block(BYTES);
    gpu_fill(gpu_lane, ready->address, 1, BYTES);
    gpu_lend(ready, BYTES, 0);
    gpu_wait_passed(NULL, &gpu_shared->ref[0].ready);
    GPU_EQ(bxi_gpu_lane_open(gpu_device, NULL, &stuck), 0);
    GPU_EQ(bxi_gpu_enter(gpu_device), 0);
    if (gpu_order == BXI_GPU_HOST_WORDS)
        GPU_EQ(bxi_gpu_after(stuck, NULL, &(struct bxi_gpu_point){ .order = (uint16_t)gpu_order, .lane = lane,
                                                                   .value = 1 }), 0);
    else
        GPU_EQ(gpu->cu.cuStreamWaitValue64_v2(stuck->stream, stuck->word_address + 8, 1, 0), CUDA_SUCCESS);
    bxi_gpu_leave(gpu_device);
    gpu_fill(stuck, never->address, 2, BYTES);
    GPU_EQ(bxi_gpu_ref(never, 0, BYTES, &gpu_shared->ref[1]), 0);
    GPU_EQ(bxi_gpu_mark(stuck, &gpu_shared->ref[1].ready), 0);
    gpu_post(LENT);
    gpu_wait_for_the_end();
}

static void owner_dies_beside(void (*other)(void), enum bxi_gpu_order wanted)
{
    gpu_world(GPU_ANY);
    gpu_order = wanted;
    gpu_run_killed(dying_owner, other, HELD, KILLED);
}

/* ---- Lanes whose stream shares a hardware queue with the side stream ---------------------------- */

#define WAITERS 8                       /* twice as many as there are queues */

static struct waiter {
    struct bxi_gpu_lane *lane;
    pthread_t thread;
    bxi_a32 has_returned;
    int rc;
} waiters[WAITERS];

static void *wait_for_never(void *context)
{
    struct waiter *waiter = context;

    waiter->rc = bxi_gpu_after(waiter->lane, gpu_peer[0], &gpu_shared->ref[1].ready);
    bxi_store_release(&waiter->has_returned, 1);
    return NULL;
}

/* One after the other, until its stream waits or its host does. How many hosts wait. */
static uint64_t begin_waits(void)
{
    uint64_t before = gpu_counters().fallbacks, hosts = 0;

    for (int i = 0; i < WAITERS; i++)
        GPU_EQ(bxi_gpu_lane_open(gpu_device, NULL, &waiters[i].lane), 0);
    for (int i = 0; i < WAITERS; i++) {
        GPU_EQ(pthread_create(&waiters[i].thread, NULL, wait_for_never, &waiters[i]), 0);
        while (bxi_load_acquire(&waiters[i].has_returned) == 0 && gpu_counters().fallbacks == before + hosts)
            sched_yield();
        hosts = gpu_counters().fallbacks - before;
    }
    return hosts;
}

static void survivor_with_many_lanes(void)
{
    struct bxi_gpu_map *map;
    struct bxi_gpu_point done;

    gpu_start_pair(1);
    gpu_await(LENT, 1);
    (void)gpu_borrow(gpu_peer[0], &gpu_shared->ref[1], &map);
    gpu_store(0, begin_waits());
    gpu_post(HELD);
    gpu_await(KILLED, 1);
    GPU_EQ(bxi_gpu_peer_died(gpu_peer[0], gpu_shared->region[0].word), 0);
    for (int i = 0; i < WAITERS; i++) {
        GPU_EQ(pthread_join(waiters[i].thread, NULL), 0);
        GPU_CHECK(waiters[i].rc == 0 || waiters[i].rc == -EOWNERDEAD);
        GPU_EQ(bxi_gpu_mark(waiters[i].lane, &done), 0);
        gpu_wait_passed(NULL, &done);           /* its stream goes on */
    }
    bxi_gpu_map_put(map);
    gpu_poll_until_nothing_is_left();
    GPU_EQ(gpu_counters().maps, 0);
    gpu_end();
}

Test(gpu_death, of_an_owner_releases_streams_also_where_they_share_queues_with_the_poison)
{
    fake_skip_under("FAKE_CUDA_QUEUES", "the driver has other queues than CUDA_DEVICE_MAX_CONNECTIONS says");
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "4", 1);
    owner_dies_beside(survivor_with_many_lanes, BXI_GPU_DEVICE_WORDS);
    if (gpu_fake())
        cr_assert(gpu_load(0) > 0 && gpu_load(0) < WAITERS, "%d hosts waited", (int)gpu_load(0));
}

static unsigned (*query)(struct CUstream_st *stream);

static unsigned query_in_vain(struct CUstream_st *stream)
{
    return stream == gpu_device->side ? CUDA_ERROR_NOT_READY : query(stream);
}

/* The side stream is held up, as behind a stream that waits: the word cannot be read, and the poison comes later. */
static void survivor_that_cannot_look(void)
{
    struct bxi_gpu_map *map;
    struct bxi_gpu_lane *waiter;
    struct bxi_gpu_point met;

    gpu_start_pair(1);
    gpu_await(LENT, 1);
    GPU_EQ(bxi_gpu_lane_open(gpu_device, NULL, &waiter), 0);
    (void)gpu_borrow(gpu_peer[0], &gpu_shared->ref[1], &map);
    GPU_EQ(bxi_gpu_after(waiter, gpu_peer[0], &gpu_shared->ref[1].ready), 0);
    GPU_EQ(bxi_gpu_mark(waiter, &met), 0);
    gpu_post(HELD);
    gpu_await(KILLED, 1);
    query = gpu->cu.cuStreamQuery;
    gpu->cu.cuStreamQuery = query_in_vain;
    GPU_EQ(bxi_gpu_peer_died(gpu_peer[0], gpu_shared->region[0].word), 0);
    gpu->cu.cuStreamQuery = query;
    gpu_wait_passed(NULL, &met);
    GPU_EQ(bxi_gpu_after(gpu_lane, gpu_peer[0], &gpu_shared->ref[1].ready), -EOWNERDEAD);
    bxi_gpu_map_put(map);
    (void)bxi_gpu_poll(gpu);
    bxi_gpu_helper_drain(&gpu->helper, bxi_gpu_now_ns() + UINT64_C(5000000000));
    GPU_EQ(gpu_counters().maps, 1);             /* the write may still come */
    gpu_end();
}

Test(gpu_death, of_an_owner_is_survived_while_its_words_cannot_be_read)
{
    fake_skip_few_queues("the poison waits in the queue of the stream that it is to release");
    owner_dies_beside(survivor_that_cannot_look, BXI_GPU_DEVICE_WORDS);
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
    owner_dies_beside(survivor_that_cannot_write, BXI_GPU_HOST_WORDS);
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

/* SPDX-License-Identifier: MIT */
/*
 * gpu/ with a driver whose calls wait for the device (FAKE_CUDA_BLOCKING): a call that blocks behind a stream, which
 * waits for another process, must not keep this process from releasing that stream when the other dies, and must not
 * keep bxi_gpu_close from ending when the other is stopped.
 */
#include "gpu_fixture.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#define BYTES (256u << 10)
#define PAUSE_US 100000                 /* enough for a thread to get into a call of the driver */

enum { MET, LENT, BLOCKED, KILLED };

static enum bxi_gpu_order order;

static void start(int rank)
{
    gpu_start_with(rank, &(struct bxi_gpu_options){ .order = order }, 0);
    gpu_meet(1 - rank);
    gpu_post(MET);
    gpu_await(MET, 2);
}

static void world(enum bxi_gpu_order wanted)
{
    gpu_world(GPU_FAKE);
    setenv("FAKE_CUDA_BLOCKING", "1", 1);
    order = wanted;
}

/* Lends a block, behind a wait that nobody ends. */
static void owes(void)
{
    struct bxi_gpu_block *block;
    struct bxi_gpu_point never = { .order = (uint16_t)order, .lane = BXI_GPU_LANES - 1, .value = 1 };

    start(0);
    block = gpu_block(BYTES);
    GPU_EQ(bxi_gpu_ref(block, 0, BYTES, &gpu_shared->ref[1]), 0);       /* is ready at once */
    if (order == BXI_GPU_HOST_WORDS) {
        GPU_EQ(bxi_gpu_after(gpu_lane, NULL, &never), 0);
    } else {
        GPU_EQ(bxi_gpu_enter(gpu_device), 0);
        GPU_EQ(gpu->cu.cuStreamWaitValue64_v2(gpu_lane->stream, gpu_lane->word_address + 8, 1, 0), CUDA_SUCCESS);
        bxi_gpu_leave(gpu_device);
    }
    gpu_fill(gpu_lane, block->address, 1, BYTES);
    GPU_EQ(bxi_gpu_ref(block, 0, BYTES, &gpu_shared->ref[0]), 0);
    GPU_EQ(bxi_gpu_mark(gpu_lane, &gpu_shared->ref[0].ready), 0);
    gpu_post(LENT);
    for (;;)
        pause();
}

/* ---- Calls that block while the owner dies --------------------------------------------------- */

static bxi_a32 is_done;

static void *allocates(void *unused)
{
    struct bxi_gpu_block *block = gpu_block(64 * GPU_MIB);

    bxi_gpu_free(block);
    bxi_store_release(&is_done, 1);
    return unused;
}

static void *opens_a_lane(void *unused)
{
    struct bxi_gpu_lane *lane;

    GPU_EQ(bxi_gpu_lane_open(gpu_device, NULL, &lane), 0);
    bxi_store_release(&is_done, 1);
    return unused;
}

static void *maps(void *unused)
{
    (void)gpu_try_map(gpu_peer[0], &gpu_shared->ref[1]);
    bxi_store_release(&is_done, 1);
    return unused;
}

static void *waits_for_a_new_peer(void *unused)
{
    struct bxi_gpu_point point = { .order = BXI_GPU_HOST_WORDS, .lane = 0, .value = 1 };

    gpu_meet(2);                        /* its words are registered by the helper */
    GPU_EQ(bxi_gpu_after(gpu_lane, gpu_peer[2], &point), 0);
    bxi_store_release(&is_done, 1);
    return unused;
}

static void *frees(void *unused)
{
    bxi_gpu_free(gpu_block(64 * GPU_MIB));
    GPU_CHECK(bxi_gpu_trim(gpu_device) > 0);
    gpu_poll_until_nothing_is_left();
    bxi_store_release(&is_done, 1);
    return unused;
}

static void *(*call)(void *unused);

/* A lane waits for the owner, a thread calls the driver, the owner is killed. */
static void survivor(void)
{
    struct bxi_gpu_lane *waiter;
    struct bxi_gpu_point met;
    struct bxi_gpu_map *map = NULL;
    pthread_t thread;

    start(1);
    gpu_await(LENT, 1);
    if (call != maps || order != BXI_GPU_HOST_WORDS)
        (void)gpu_borrow(gpu_peer[0], &gpu_shared->ref[0], &map);
    GPU_EQ(bxi_gpu_lane_open(gpu_device, NULL, &waiter), 0);
    GPU_EQ(bxi_gpu_after(waiter, gpu_peer[0], &gpu_shared->ref[0].ready), 0);
    GPU_EQ(bxi_gpu_mark(waiter, &met), 0);
    GPU_EQ(pthread_create(&thread, NULL, call, NULL), 0);
    usleep(PAUSE_US);
    GPU_EQ(bxi_load_acquire(&is_done), 0);
    gpu_post(BLOCKED);
    gpu_await(KILLED, 1);
    GPU_EQ(bxi_gpu_peer_died(gpu_peer[0], gpu_shared->region[0].word), 0);
    gpu_wait_passed(NULL, &met);
    if (map != NULL)
        bxi_gpu_map_put(map);
    GPU_EQ(pthread_join(thread, NULL), 0);
    gpu_end();
}

static void is_met(void)
{
    struct bxi_gpu_point point;

    gpu_start_with(2, &(struct bxi_gpu_options){ .order = order }, 0);
    gpu_await(KILLED, 1);
    GPU_EQ(bxi_gpu_mark(gpu_lane, &point), 0);
    GPU_EQ(bxi_gpu_lane_wait(gpu_lane), 0);
    gpu_end();
}

static void owner_dies_during(void *(*wanted)(void *unused), enum bxi_gpu_order by)
{
    world(by);
    call = wanted;
    gpu_fork(0, owes);
    gpu_fork(1, survivor);
    if (call == waits_for_a_new_peer)
        gpu_fork(2, is_met);
    gpu_await(BLOCKED, 1);
    gpu_kill(0);
    gpu_post(KILLED);
    gpu_join(1);
    if (call == waits_for_a_new_peer)
        gpu_join(2);
    gpu_check_machine();
}

Test(gpu_blocking, allocation_does_not_keep_a_death_from_being_handled, .timeout = 30)
{
    owner_dies_during(allocates, BXI_GPU_HOST_WORDS);
}

Test(gpu_blocking, allocation_does_not_keep_a_death_from_being_handled_with_device_words, .timeout = 30)
{
    owner_dies_during(allocates, BXI_GPU_DEVICE_WORDS);
}

Test(gpu_blocking, opening_of_a_lane_does_not_keep_a_death_from_being_handled, .timeout = 30)
{
    owner_dies_during(opens_a_lane, BXI_GPU_HOST_WORDS);
}

Test(gpu_blocking, mapping_of_a_slab_does_not_keep_a_death_from_being_handled, .timeout = 30)
{
    owner_dies_during(maps, BXI_GPU_HOST_WORDS);
}

Test(gpu_blocking, registration_of_a_peer_does_not_keep_a_death_from_being_handled, .timeout = 30)
{
    owner_dies_during(waits_for_a_new_peer, BXI_GPU_HOST_WORDS);
}

Test(gpu_blocking, free_of_a_slab_does_not_keep_a_death_from_being_handled, .timeout = 30)
{
    owner_dies_during(frees, BXI_GPU_HOST_WORDS);
}

/* SPDX-License-Identifier: MIT */
/*
 * gpu/: owners and borrowers that are killed, and what the others do; starts and ends by the thousand; devices that
 * do not reach one another, or that are numbered otherwise in another process.
 */
#include "gpu_fixture.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES (256u << 10)

static enum bxi_gpu_order order;

enum { MET, LENT, HELD, KILLED, BUSY, LAST };

static void start(int rank)
{
    gpu_start_with(rank, &(struct bxi_gpu_options){ .order = order }, 0);
    gpu_meet(1 - rank);
    gpu_post(MET);
    gpu_await(MET, 2);
}

_Noreturn static void wait_for_the_end(void)
{
    for (;;)
        pause();
}

/* ---- The owner dies -------------------------------------------------------------------------- */

/* Lends two blocks: one is filled, of the other the filling is held up for ever by a wait for a word of its own. */
static void dying_owner(void)
{
    struct bxi_gpu_block *ready, *never;
    struct bxi_gpu_lane *stuck;
    uint16_t lane = BXI_GPU_LANES - 1;

    start(0);
    ready = gpu_block(BYTES);
    never = gpu_block(BYTES);
    gpu_fill(gpu_lane, ready->address, 1, BYTES);
    GPU_EQ(bxi_gpu_ref(ready, 0, BYTES, &gpu_shared->ref[0]), 0);
    GPU_EQ(bxi_gpu_mark(gpu_lane, &gpu_shared->ref[0].ready), 0);
    gpu_wait_passed(NULL, &gpu_shared->ref[0].ready);
    GPU_EQ(bxi_gpu_lane_open(gpu_device, NULL, &stuck), 0);
    GPU_EQ(bxi_gpu_enter(gpu_device), 0);
    if (order == BXI_GPU_HOST_WORDS)
        GPU_EQ(bxi_gpu_after(stuck, NULL, &(struct bxi_gpu_point){ .order = (uint16_t)order, .lane = lane,
                                                                   .value = 1 }), 0);
    else
        GPU_EQ(gpu->cu.cuStreamWaitValue64_v2(stuck->stream, stuck->word_address + 8, 1, 0), CUDA_SUCCESS);
    bxi_gpu_leave(gpu_device);
    gpu_fill(stuck, never->address, 2, BYTES);
    GPU_EQ(bxi_gpu_ref(never, 0, BYTES, &gpu_shared->ref[1]), 0);
    GPU_EQ(bxi_gpu_mark(stuck, &gpu_shared->ref[1].ready), 0);
    gpu_post(LENT);
    wait_for_the_end();
}

static void survivor(void)
{
    struct bxi_gpu_map *map[2];
    struct bxi_gpu_lane *waiter;
    struct bxi_gpu_point met;
    uint64_t address, used;

    start(1);
    used = gpu_used(0);
    gpu_await(LENT, 1);
    GPU_EQ(bxi_gpu_lane_open(gpu_device, NULL, &waiter), 0);
    address = gpu_borrow(gpu_peer[0], &gpu_shared->ref[0], &map[0]);
    (void)gpu_borrow(gpu_peer[0], &gpu_shared->ref[1], &map[1]);
    GPU_EQ(bxi_gpu_after(waiter, gpu_peer[0], &gpu_shared->ref[1].ready), 0);
    GPU_EQ(bxi_gpu_mark(waiter, &met), 0);
    gpu_post(HELD);
    gpu_await(KILLED, 1);
    GPU_EQ(bxi_gpu_passed(gpu, NULL, &met), 0);
    GPU_EQ(bxi_gpu_peer_died(gpu_peer[0], gpu_shared->region[0].word), 0);
    gpu_wait_passed(NULL, &met);                /* the stream that waited for the dead goes on */
    GPU_CHECK(gpu_counters().poisonings >= 1);
    GPU_EQ(bxi_gpu_after(gpu_lane, gpu_peer[0], &gpu_shared->ref[1].ready), -EOWNERDEAD);
    GPU_SAYS("worker0 has died");
    /* What was ready is still said to be. */
    GPU_EQ(bxi_gpu_after(gpu_lane, gpu_peer[0], &gpu_shared->ref[0].ready), 0);
    GPU_CHECK(gpu_holds(gpu_lane, address, 1, BYTES));
    GPU_EQ(bxi_gpu_passed(gpu, gpu_peer[0], &gpu_shared->ref[1].ready), 1);
    bxi_gpu_map_put(map[0]);
    GPU_EQ(gpu_counters().maps, 1);
    bxi_gpu_map_put(map[1]);
    gpu_poll_until_nothing_is_left();
    GPU_EQ(gpu_counters().maps, 0);
    GPU_EQ(gpu_try_map(gpu_peer[0], &gpu_shared->ref[0]), -EOWNERDEAD);
    GPU_CHECK(gpu_used(0) < used);              /* the dead one's memory went with the last map */
    bxi_gpu_peer_close(gpu_peer[0]);
    gpu_end();
}

static void owner_dies(enum bxi_gpu_order wanted)
{
    gpu_world(GPU_ANY);
    order = wanted;
    gpu_fork(0, dying_owner);
    gpu_fork(1, survivor);
    gpu_await(HELD, 1);
    gpu_kill(0);
    gpu_post(KILLED);
    gpu_join(1);
    gpu_check_machine();
}

Test(gpu_death, of_an_owner_releases_those_who_wait_for_its_words, .timeout = 60)
{
    owner_dies(BXI_GPU_HOST_WORDS);
}

Test(gpu_death, of_an_owner_releases_those_who_wait_for_words_in_its_slab, .timeout = 60)
{
    owner_dies(BXI_GPU_DEVICE_WORDS);
}

static void survivor_that_cannot_write(void)
{
    struct bxi_gpu_map *map;

    start(1);
    gpu_await(LENT, 1);
    (void)gpu_borrow(gpu_peer[0], &gpu_shared->ref[0], &map);
    bxi_gpu_map_put(map);                       /* open, and not in use */
    gpu_post(HELD);
    gpu_await(KILLED, 1);
    GPU_EQ(bxi_gpu_peer_died(gpu_peer[0], NULL), -EROFS);
    gpu_poll_until_nothing_is_left();
    GPU_EQ(gpu_counters().maps, 0);
    GPU_EQ(gpu_try_map(gpu_peer[0], &gpu_shared->ref[0]), -EOWNERDEAD);
    gpu_end();
}

Test(gpu_death, of_an_owner_says_when_its_words_cannot_be_poisoned, .timeout = 60)
{
    gpu_world(GPU_ANY);
    order = BXI_GPU_HOST_WORDS;
    gpu_fork(0, dying_owner);
    gpu_fork(1, survivor_that_cannot_write);
    gpu_await(HELD, 1);
    gpu_kill(0);
    gpu_post(KILLED);
    gpu_join(1);
    gpu_check_machine();
}

/* Killed while it waits for the borrower to close: the borrower closes all the same. */
static void owner_dies_retiring(void)
{
    struct bxi_gpu_block *block;

    start(0);
    block = gpu_block(BYTES);
    GPU_EQ(bxi_gpu_ref(block, 0, BYTES, &gpu_shared->ref[0]), 0);
    gpu_post(LENT);
    gpu_await(HELD, 1);
    bxi_gpu_free(block);
    GPU_EQ(bxi_gpu_trim(gpu_device), 1);
    GPU_EQ(bxi_gpu_poll(gpu), 1);
    gpu_post(LENT);
    wait_for_the_end();
}

static void borrower_of_retiring(void)
{
    struct bxi_gpu_map *map;

    start(1);
    gpu_await(LENT, 1);
    (void)gpu_borrow(gpu_peer[0], &gpu_shared->ref[0], &map);
    gpu_post(HELD);
    gpu_await(KILLED, 1);
    GPU_EQ(bxi_gpu_peer_died(gpu_peer[0], gpu_shared->region[0].word), 0);
    bxi_gpu_map_put(map);
    gpu_poll_until_nothing_is_left();
    GPU_EQ(gpu_counters().maps, 0);
    gpu_end();
}

Test(gpu_death, of_an_owner_that_was_retiring_a_slab, .timeout = 60)
{
    gpu_world(GPU_ANY);
    order = BXI_GPU_HOST_SYNC;
    gpu_fork(0, owner_dies_retiring);
    gpu_fork(1, borrower_of_retiring);
    gpu_await(LENT, 2);
    gpu_kill(0);
    gpu_post(KILLED);
    gpu_join(1);
    gpu_check_machine();
}

/* ---- The borrower dies ----------------------------------------------------------------------- */

/* Holds the slab, and work of its own that never ends; or has only said that it is about to open it. */
static bool opens;

static void dying_borrower(void)
{
    struct bxi_gpu_map *map;

    start(1);
    gpu_await(LENT, 1);
    if (opens)
        (void)gpu_borrow(gpu_peer[0], &gpu_shared->ref[0], &map);
    else
        bxi_store_release(&gpu_shared->held[1][0].generation[gpu_shared->ref[0].slab],
                          gpu_shared->ref[0].generation);
    GPU_EQ(bxi_gpu_after(gpu_lane, NULL, &(struct bxi_gpu_point){ .order = BXI_GPU_HOST_WORDS,
                                                                  .lane = BXI_GPU_LANES - 1, .value = 1 }), 0);
    GPU_EQ(bxi_gpu_mark(gpu_lane, &gpu_shared->point[0]), 0);
    gpu_post(HELD);
    wait_for_the_end();
}

static void bereaved_owner(void)
{
    struct bxi_gpu_block *block;

    start(0);
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

static void borrower_dies(bool with_the_slab_open)
{
    gpu_world(GPU_ANY);
    order = BXI_GPU_HOST_WORDS;
    opens = with_the_slab_open;
    gpu_fork(0, bereaved_owner);
    gpu_fork(1, dying_borrower);
    gpu_await(KILLED, 1);
    gpu_kill(1);
    gpu_post(KILLED);
    gpu_join(0);
    gpu_check_machine();
}

Test(gpu_death, of_a_borrower_gives_back_its_blocks_and_its_slabs, .timeout = 60)
{
    borrower_dies(true);
}

Test(gpu_death, of_a_borrower_that_was_about_to_open_holds_up_nobody, .timeout = 60)
{
    borrower_dies(false);
}

/* A peer may be closed while blocks still wait for its points: it counts as dead from then on. */
static void points_outlive(void)
{
    struct bxi_gpu_block *block;

    start(0);
    block = gpu_block(BYTES);
    gpu_await(HELD, 1);
    GPU_EQ(bxi_gpu_block_until(block, gpu_peer[1], &gpu_shared->point[0]), 0);
    bxi_gpu_peer_close(gpu_peer[1]);
    bxi_gpu_free(block);
    GPU_EQ(gpu_counters().blocks_waiting, 0);
    gpu_post(LAST);
    gpu_end();
}

static void leaves_a_point(void)
{
    start(1);
    gpu_shared->point[0] = (struct bxi_gpu_point){ .order = BXI_GPU_HOST_WORDS, .value = 1000 };
    gpu_post(HELD);
    gpu_await(LAST, 1);
    gpu_end();
}

Test(gpu_death, lets_points_outlive_their_peer, .timeout = 60)
{
    gpu_world(GPU_ANY);
    order = BXI_GPU_HOST_WORDS;
    gpu_run(2, (gpu_fn[]){ points_outlive, leaves_a_point });
}

/* ---- The owner leaves ------------------------------------------------------------------------ */

/* Its borrower closes when it is asked; or reads on for as long as the owner has patience, and longer. */
static bool is_stubborn;

static void leaving_owner(void)
{
    struct bxi_gpu_block *block;

    start(0);
    block = gpu_block(BYTES);
    gpu_fill(gpu_lane, block->address, 4, BYTES);
    GPU_EQ(bxi_gpu_ref(block, 0, BYTES, &gpu_shared->ref[0]), 0);
    GPU_EQ(bxi_gpu_mark(gpu_lane, &gpu_shared->ref[0].ready), 0);
    gpu_post(LENT);
    gpu_await(HELD, 1);
    bxi_gpu_free(block);
    gpu_end();
    if (gpu_fake())
        gpu_store(0, gpu_figure("used", 0));
    gpu_post(KILLED);
    gpu_await(LAST, 1);
}

static void last_borrower(void)
{
    struct bxi_gpu_map *map;
    uint64_t address;

    start(1);
    gpu_await(LENT, 1);
    address = gpu_borrow(gpu_peer[0], &gpu_shared->ref[0], &map);
    GPU_EQ(bxi_gpu_after(gpu_lane, gpu_peer[0], &gpu_shared->ref[0].ready), 0);
    gpu_post(HELD);
    while (!is_stubborn && bxi_gpu_poll(gpu) == 0)
        sched_yield();
    if (is_stubborn)
        gpu_await(KILLED, 1);
    GPU_CHECK(gpu_holds(gpu_lane, address, 4, BYTES));
    bxi_gpu_map_put(map);
    gpu_poll_until_nothing_is_left();
    gpu_await(KILLED, 1);
    gpu_post(LAST);
    gpu_end();
}

static void owner_leaves(bool stubborn, uint64_t left_contexts, uint64_t left_slabs)
{
    gpu_world(GPU_ANY);
    order = BXI_GPU_HOST_WORDS;
    is_stubborn = stubborn;
    gpu_run(2, (gpu_fn[]){ leaving_owner, last_borrower });
    if (gpu_fake())
        cr_assert_eq(gpu_load(0), 16 * GPU_MIB * left_contexts + 2 * GPU_MIB * left_slabs);
}

Test(gpu_death, is_not_needed_to_leave_which_waits_for_those_who_read, .timeout = 60)
{
    owner_leaves(false, 1, 1);
}

Test(gpu_death, of_nobody_comes_of_leaving_while_somebody_reads_on, .timeout = 60)
{
    owner_leaves(true, 2, 2);
}

/* ---- A thousand times ------------------------------------------------------------------------ */

/* One in four ends without closing anything, a slab open and a wait under way; the others as they should. */
static void one_start(void)
{
    struct bxi_gpu_map *map;

    memset(&gpu_shared->held[1][0], 0, sizeof(gpu_shared->held[1][0]));
    gpu_start(1);
    gpu_meet(0);
    (void)gpu_borrow(gpu_peer[0], &gpu_shared->ref[0], &map);
    GPU_EQ(bxi_gpu_after(gpu_lane, gpu_peer[0], &gpu_shared->ref[0].ready), 0);
    bxi_gpu_free(gpu_block(BYTES));
    if (opens)
        _exit(0);
    bxi_gpu_map_put(map);
    gpu_end();
}

static void steady_owner(void)
{
    struct bxi_gpu_block *block;
    uint64_t used;

    gpu_start(0);
    block = gpu_block(BYTES);
    gpu_fill(gpu_lane, block->address, 3, BYTES);
    GPU_EQ(bxi_gpu_ref(block, 0, BYTES, &gpu_shared->ref[0]), 0);
    GPU_EQ(bxi_gpu_mark(gpu_lane, &gpu_shared->ref[0].ready), 0);
    GPU_EQ(bxi_gpu_lane_wait(gpu_lane), 0);
    used = gpu_used(0);
    gpu_post(LENT);
    gpu_await(LAST, 1);
    GPU_EQ(gpu_used(0), used);
    bxi_gpu_free(block);
    gpu_end();
}

Test(gpu_death, thousand_starts_and_ends_leave_the_devices_memory_as_it_was, .timeout = 300)
{
    gpu_world(GPU_ANY);
    setenv("FAKE_CUDA_DELAY_US", "0", 1);
    gpu_fork(0, steady_owner);
    gpu_await(LENT, 1);
    for (int i = 0; i < 1000; i++) {
        opens = i % 4 == 3;
        gpu_fork(1, one_start);
        gpu_join(1);
    }
    gpu_post(LAST);
    gpu_join(0);
    gpu_check_machine();
}

/* ---- Several devices ------------------------------------------------------------------------- */

static int owners_ordinal, borrowers_ordinal;
static const char *owners_devices, *borrowers_devices;

static void start_on(int rank, const char *devices, int ordinal)
{
    if (devices != NULL)
        setenv("CUDA_VISIBLE_DEVICES", devices, 1);
    gpu_start_with(rank, &(struct bxi_gpu_options){ 0 }, ordinal);
    gpu_post(MET);
    gpu_await(MET, 2);
    gpu_meet(1 - rank);
}

static void owner_on_a_device(void)
{
    struct bxi_gpu_block *block;

    start_on(0, owners_devices, owners_ordinal);
    block = gpu_block(BYTES);
    gpu_fill(gpu_lane, block->address, 9, BYTES);
    GPU_EQ(bxi_gpu_ref(block, 0, BYTES, &gpu_shared->ref[0]), 0);
    GPU_EQ(bxi_gpu_mark(gpu_lane, &gpu_shared->ref[0].ready), 0);
    gpu_post(LENT);
    gpu_await(HELD, 1);
    if (bxi_gpu_peer_reaches(gpu_peer[1], gpu_device) == 0) {
        GPU_EQ(bxi_gpu_stage_out(gpu_lane, gpu_shared->staged, block->address, BYTES), 0);
        GPU_EQ(gpu_counters().staged_bytes, BYTES);
        gpu_store(1, 1);
    }
    gpu_post(KILLED);
    gpu_await(LAST, 1);
    bxi_gpu_free(block);
    gpu_end();
}

static void borrower_on_a_device(void)
{
    struct bxi_gpu_map *map = NULL;
    struct bxi_gpu_block *block;
    uint64_t address;
    int rc;

    start_on(1, borrowers_devices, borrowers_ordinal);
    gpu_await(LENT, 1);
    rc = gpu_try_map(gpu_peer[0], &gpu_shared->ref[0]);
    gpu_store(0, (uint64_t)(int64_t)rc);
    gpu_post(HELD);
    gpu_await(KILLED, 1);
    if (rc == 0) {
        GPU_EQ(bxi_gpu_map_get(gpu_peer[0], &gpu_shared->ref[0], &map, &address), 0);
        GPU_EQ(bxi_gpu_after(gpu_lane, gpu_peer[0], &gpu_shared->ref[0].ready), 0);
        GPU_CHECK(gpu_holds(gpu_lane, address, 9, BYTES));
        bxi_gpu_map_put(map);
    } else {
        block = gpu_block(BYTES);
        GPU_EQ(bxi_gpu_stage_in(gpu_lane, block->address, gpu_shared->staged, BYTES), 0);
        GPU_EQ(gpu_counters().staged_bytes, BYTES);
        GPU_CHECK(gpu_holds(gpu_lane, block->address, 9, BYTES));
        bxi_gpu_free(block);
    }
    gpu_post(LAST);
    gpu_end();
}

static void run_devices(int owner, int borrower)
{
    owners_ordinal = owner;
    borrowers_ordinal = borrower;
    gpu_run(2, (gpu_fn[]){ owner_on_a_device, borrower_on_a_device });
}

Test(gpu_devices, are_the_same_under_other_numbers_in_another_process, .timeout = 60)
{
    gpu_world(GPU_FAKE);
    owners_devices = "1,0";
    borrowers_devices = "0,1";
    run_devices(0, 1);
    cr_assert_eq(gpu_load(0), 0);
    cr_assert_eq(memcmp(gpu_shared->region[0].head.device[0], gpu_shared->region[1].head.device[0],
                        BXI_GPU_UUID_BYTES), 0);
}

Test(gpu_devices, are_mapped_from_where_they_are_hidden, .timeout = 60)
{
    gpu_world(GPU_FAKE);
    owners_devices = "0";
    borrowers_devices = "1";
    run_devices(0, 0);
    cr_assert_eq(gpu_load(0), 0);
}

Test(gpu_devices, without_peer_access_are_staged_through_host_memory, .timeout = 60)
{
    gpu_world(GPU_FAKE);
    setenv("FAKE_CUDA_NO_PEER", "0-1", 1);
    run_devices(0, 1);
    cr_assert_eq((int64_t)gpu_load(0), -EXDEV);
    cr_assert_eq(gpu_load(1), 1);
}

Test(gpu_devices, without_peer_access_that_are_hidden_are_found_out_by_the_first_open, .timeout = 60)
{
    gpu_world(GPU_FAKE);
    setenv("FAKE_CUDA_NO_PEER", "all", 1);
    owners_devices = "0";
    borrowers_devices = "1";
    run_devices(0, 0);
    cr_assert_eq((int64_t)gpu_load(0), -EXDEV);
    cr_assert_eq(gpu_load(1), 1);
}

/* Neither sees the other's device: what is lent is staged until the borrower has tried. */
static void owner_that_is_tried(void)
{
    struct bxi_gpu_block *block;

    start_on(0, "0", 0);
    block = gpu_block(BYTES);
    GPU_EQ(bxi_gpu_ref(block, 0, BYTES, &gpu_shared->ref[0]), 0);
    GPU_EQ(bxi_gpu_peer_reaches(gpu_peer[1], gpu_device), 0);
    gpu_post(LENT);
    gpu_await(HELD, 1);
    gpu_store(0, (uint64_t)bxi_gpu_peer_reaches(gpu_peer[1], gpu_device));
    bxi_gpu_free(block);
    bxi_gpu_trim(gpu_device);
    while (bxi_gpu_poll(gpu) > 0)               /* what was only tried is let go of as well */
        ;
    GPU_EQ(gpu_counters().slab_bytes, 0);
    block = gpu_block(BYTES);
    GPU_EQ(bxi_gpu_ref(block, 0, BYTES, &gpu_shared->ref[1]), 0);
    gpu_post(KILLED);
    gpu_await(LAST, 1);
    bxi_gpu_free(block);
    gpu_end();
}

static void stay_busy(struct bxi_gpu_job *job)
{
    (void)job;
    gpu_await(BUSY, 1);
}

static void borrower_that_tries(void)
{
    struct bxi_gpu_job busy = { .run = stay_busy };
    struct bxi_gpu_device *again = NULL;
    bool reaches;

    start_on(1, "1", 0);
    gpu_await(LENT, 1);
    GPU_EQ(gpu_counters().opens, 0);
    bxi_gpu_helper_post(&gpu->helper, &busy);
    bxi_gpu_peer_try(gpu_peer[0]);
    GPU_EQ(bxi_load_acquire(&gpu_shared->held[1][0].generation[0]), gpu_shared->ref[0].generation);
    gpu_post(BUSY);
    bxi_gpu_peer_try(gpu_peer[0]);              /* while the helper is at it */
    bxi_gpu_helper_drain(&gpu->helper);
    GPU_EQ(bxi_load_acquire(&gpu_shared->region[1].head.known_count), 1);
    bxi_gpu_peer_try(gpu_peer[0]);
    reaches = gpu_shared->region[1].head.refused_count == 0;
    GPU_EQ(gpu_counters().opens, reaches);
    GPU_EQ(gpu_counters().open_failures, !reaches);
    GPU_EQ(gpu_try_map(gpu_peer[0], &gpu_shared->ref[0]), reaches ? 0 : -EXDEV);
    GPU_EQ(gpu_counters().opens, reaches);      /* it was there */
    GPU_EQ(bxi_gpu_device_open(gpu, 0, &again), 0);     /* no other device: nothing is forgotten */
    GPU_EQ(gpu_shared->region[1].head.known_count, 1);
    gpu_post(HELD);
    while (bxi_load_acquire(&gpu_shared->gate[KILLED]) == 0)
        GPU_CHECK(bxi_gpu_poll(gpu) >= 0);
    GPU_EQ(gpu_try_map(gpu_peer[0], &gpu_shared->ref[1]), reaches ? 0 : -EXDEV);
    gpu_post(LAST);
    gpu_end();
}

static void try_hidden(const char *no_peer, uint64_t reaches)
{
    gpu_world(GPU_FAKE);
    setenv("FAKE_CUDA_NO_PEER", no_peer, 1);
    gpu_run(2, (gpu_fn[]){ owner_that_is_tried, borrower_that_tries });
    cr_assert_eq(gpu_load(0), reaches);
    cr_assert_eq(gpu_shared->region[1].head.refused_count, !reaches);
}

Test(gpu_devices, that_are_hidden_are_lent_once_the_borrower_knows, .timeout = 60)
{
    try_hidden("", 1);
}

Test(gpu_devices, that_are_hidden_and_out_of_reach_are_never_lent, .timeout = 60)
{
    try_hidden("all", 0);
}

/* The owner does not see the borrower's device, and the borrower sees the owner's. */
static void owner_that_is_seen(void)
{
    start_on(0, "0", 0);
    GPU_EQ(bxi_gpu_peer_reaches(gpu_peer[1], gpu_device), 0);
    gpu_post(LENT);
    gpu_await(HELD, 1);
    GPU_EQ(bxi_gpu_peer_reaches(gpu_peer[1], gpu_device), 1);
    gpu_post(LAST);
    gpu_end();
}

static void borrower_that_sees(void)
{
    start_on(1, "0,1", 1);
    gpu_await(LENT, 1);
    GPU_EQ(bxi_gpu_poll(gpu), 0);
    bxi_gpu_peer_try(gpu_peer[0]);              /* has nothing to do */
    bxi_gpu_helper_drain(&gpu->helper);
    GPU_EQ(gpu_counters().opens, 0);
    gpu_post(HELD);
    gpu_await(LAST, 1);
    gpu_end();
}

Test(gpu_devices, that_see_the_owners_need_not_try, .timeout = 60)
{
    gpu_world(GPU_FAKE);
    gpu_run(2, (gpu_fn[]){ owner_that_is_seen, borrower_that_sees });
}

static void mig_owner(void)
{
    start_on(0, "0", 0);
    gpu_await(HELD, 1);
    GPU_EQ(bxi_gpu_peer_reaches(gpu_peer[1], gpu_device), 0);
    gpu_post(LAST);
    gpu_end();
}

static void mig_borrower(void)
{
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    gpu_start_with(1, &(struct bxi_gpu_options){ 0 }, 0);
    gpu->info[0].is_mig = true;
    gpu_post(MET);
    gpu_await(MET, 2);
    gpu_meet(0);
    for (int i = 0; i < 3; i++) {
        bxi_gpu_peer_try(gpu_peer[0]);
        bxi_gpu_helper_drain(&gpu->helper);
        GPU_EQ(bxi_gpu_poll(gpu), 0);
    }
    GPU_EQ(gpu_counters().opens + gpu_counters().open_failures, 0);
    GPU_EQ(gpu_shared->region[1].head.refused_count, 1);
    gpu_post(HELD);
    gpu_await(LAST, 1);
    gpu_end();
}

Test(gpu_devices, that_are_mig_instances_do_not_try, .timeout = 60)
{
    gpu_world(GPU_FAKE);
    gpu_run(2, (gpu_fn[]){ mig_owner, mig_borrower });
}

static void owner_that_dies_early(void)
{
    start_on(0, "0", 0);
    gpu_post(LENT);
    wait_for_the_end();
}

/* What fails because the owner is dead says nothing of its device. */
static void borrower_that_tries_late(void)
{
    struct bxi_gpu_job busy = { .run = stay_busy };

    start_on(1, "1", 0);
    gpu_await(LENT, 1);
    bxi_gpu_helper_post(&gpu->helper, &busy);
    bxi_gpu_peer_try(gpu_peer[0]);
    gpu_post(HELD);
    gpu_await(KILLED, 1);
    GPU_EQ(bxi_gpu_peer_died(gpu_peer[0], gpu_shared->region[0].word), 0);
    gpu_post(BUSY);
    bxi_gpu_helper_drain(&gpu->helper);
    GPU_EQ(gpu_counters().opens + gpu_counters().open_failures, 1);
    GPU_EQ(gpu_shared->region[1].head.known_count, gpu_counters().opens);
    gpu_poll_until_nothing_is_left();
    GPU_EQ(bxi_load_acquire(&gpu_shared->held[1][0].generation[0]), 0);
    bxi_gpu_peer_try(gpu_peer[0]);
    GPU_EQ(bxi_load_acquire(&gpu_shared->held[1][0].generation[0]), 0);
    bxi_gpu_peer_close(gpu_peer[0]);
    gpu_end();
}

Test(gpu_devices, of_an_owner_that_dies_are_not_judged_by_that, .timeout = 60)
{
    gpu_world(GPU_FAKE);
    gpu_fork(0, owner_that_dies_early);
    gpu_fork(1, borrower_that_tries_late);
    gpu_await(HELD, 1);
    gpu_kill(0);
    gpu_post(KILLED);
    gpu_join(1);
    gpu_check_machine();
}

/* The driver of either side knows that there is no way: nobody has to try. */
static void owner_that_asks(void)
{
    start_on(0, NULL, 0);
    GPU_EQ(bxi_gpu_peer_reaches(gpu_peer[1], gpu_device), 0);
    gpu_post(HELD);
    gpu_await(HELD, 2);
    GPU_EQ(bxi_gpu_peer_reaches(gpu_peer[1], gpu_device), 1);
    gpu_post(LAST);
    gpu_end();
}

static void borrower_that_does_nothing(void)
{
    struct bxi_gpu_device *second = NULL;

    start_on(1, NULL, 1);
    gpu_await(HELD, 1);
    GPU_EQ(bxi_gpu_poll(gpu), 0);               /* refuses the owner's device */
    GPU_EQ(gpu_shared->region[1].head.refused_count, 1);
    GPU_EQ(bxi_gpu_device_open(gpu, 0, &second), 0);    /* and here it is itself */
    GPU_EQ(gpu_shared->region[1].head.refused_count, 0);
    GPU_EQ(bxi_gpu_poll(gpu), 0);
    GPU_EQ(gpu_shared->region[1].head.refused_count, 0);
    gpu_post(HELD);
    gpu_await(LAST, 1);
    gpu_end();
}

Test(gpu_devices, without_peer_access_are_known_before_anything_is_sent, .timeout = 60)
{
    gpu_world(GPU_FAKE);
    setenv("FAKE_CUDA_NO_PEER", "0-1", 1);
    gpu_run(2, (gpu_fn[]){ owner_that_asks, borrower_that_does_nothing });
}

/* Of two devices here the first does not reach the owner's and the second does. */
static void borrower_with_two(void)
{
    struct bxi_gpu_device *second = NULL;
    struct bxi_gpu_lane *lane;
    struct bxi_gpu_map *map;
    uint64_t address;

    gpu_start_with(1, &(struct bxi_gpu_options){ .order = order }, 1);
    GPU_EQ(bxi_gpu_device_open(gpu, 2, &second), 0);
    GPU_EQ(bxi_gpu_lane_open(second, NULL, &lane), 0);
    gpu_post(MET);
    gpu_await(MET, 2);
    gpu_meet(0);                                /* with the first as its device */
    gpu_await(LENT, 1);
    address = gpu_borrow(gpu_peer[0], &gpu_shared->ref[0], &map);
    GPU_CHECK(bxi_gpu_map_device(map) == second);
    GPU_EQ(bxi_gpu_after(lane, gpu_peer[0], &gpu_shared->ref[0].ready), 0);
    GPU_CHECK(gpu_holds(lane, address, 9, BYTES));
    GPU_EQ(gpu_counters().fallbacks, 0);
    GPU_EQ(bxi_gpu_after(gpu_lane, gpu_peer[0], &gpu_shared->ref[0].ready), 0);    /* of the device that has no way */
    GPU_EQ(gpu_counters().fallbacks, order == BXI_GPU_DEVICE_WORDS);
    gpu_post(HELD);
    bxi_gpu_map_put(map);
    gpu_post(LAST);
    gpu_end();
}

static void owner_far_from_one(void)
{
    struct bxi_gpu_block *block;

    gpu_start_with(0, &(struct bxi_gpu_options){ .order = order }, 0);
    gpu_post(MET);
    gpu_await(MET, 2);
    gpu_meet(1);
    GPU_EQ(bxi_gpu_peer_reaches(gpu_peer[1], gpu_device), 1);
    block = gpu_block(BYTES);
    gpu_fill(gpu_lane, block->address, 9, BYTES);
    GPU_EQ(bxi_gpu_ref(block, 0, BYTES, &gpu_shared->ref[0]), 0);
    GPU_EQ(bxi_gpu_mark(gpu_lane, &gpu_shared->ref[0].ready), 0);
    gpu_post(LENT);
    gpu_await(HELD, 1);
    bxi_gpu_free(block);
    gpu_await(LAST, 1);
    gpu_end();
}

static void two_of_three(enum bxi_gpu_order wanted)
{
    gpu_world(GPU_FAKE);
    order = wanted;
    setenv("FAKE_CUDA_DEVICES", "3", 1);
    setenv("FAKE_CUDA_NO_PEER", "0-1", 1);
    gpu_run(2, (gpu_fn[]){ owner_far_from_one, borrower_with_two });
}

Test(gpu_devices, are_mapped_on_that_of_several_which_reaches, .timeout = 60)
{
    two_of_three(BXI_GPU_HOST_WORDS);
}

Test(gpu_devices, have_words_that_only_one_of_several_can_wait_for, .timeout = 60)
{
    two_of_three(BXI_GPU_DEVICE_WORDS);
}

/* Here it is so in two processes on one machine; on a real one a MIG instance sees no other. */
static void mig_instance(void)
{
    start_on(gpu_rank, NULL, gpu_rank);
    GPU_EQ(bxi_gpu_peer_reaches(gpu_peer[1 - gpu_rank], gpu_device), 1);
    gpu->info[0].is_mig = gpu->info[1].is_mig = true;
    GPU_EQ(bxi_gpu_peer_reaches(gpu_peer[1 - gpu_rank], gpu_device), 0);
    gpu_post(HELD);
    gpu_await(HELD, 2);
    gpu_end();
}

Test(gpu_devices, that_are_mig_instances_reach_no_other, .timeout = 60)
{
    gpu_world(GPU_FAKE);
    gpu_run(2, (gpu_fn[]){ mig_instance, mig_instance });
}

static void stages_much(void)
{
    static unsigned char out[3 * GPU_MIB + 12345], back[sizeof(out)];
    struct bxi_gpu_block *block;

    gpu_start(0);
    block = gpu_block(sizeof(out));
    for (size_t i = 0; i < sizeof(out); i++)
        out[i] = (unsigned char)(i * 31 + (i >> 16));
    GPU_EQ(bxi_gpu_stage_in(gpu_lane, block->address, out, sizeof(out)), 0);
    GPU_EQ(bxi_gpu_stage_out(gpu_lane, back, block->address, sizeof(out)), 0);
    GPU_EQ(memcmp(out, back, sizeof(out)), 0);
    GPU_EQ(bxi_gpu_stage_out(gpu_lane, back, block->address, 0), 0);
    GPU_EQ(gpu_counters().staged_bytes, 2 * sizeof(out));
    bxi_gpu_free(block);
    gpu_end();
}

Test(gpu_devices, stage_more_than_a_buffer_holds, .timeout = 60)
{
    gpu_world(GPU_ANY);
    gpu_run(1, (gpu_fn[]){ stages_much });
}

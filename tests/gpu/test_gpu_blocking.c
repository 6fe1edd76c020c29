/* SPDX-License-Identifier: MIT */
/*
 * gpu/ with a driver whose calls wait for the device (FAKE_CUDA_BLOCKING): a call that blocks behind a stream, which
 * waits for another process, must not keep this process from releasing that stream when the other dies, and must not
 * keep bxi_gpu_close from ending when the other is stopped.
 */
#include "fake_library.h"
#include "gpu_fixture.h"

TestSuite(gpu_blocking, .timeout = 30);

#define BYTES (256u << 10)
#define PAUSE_US 100000                 /* enough for a thread to get into a call of the driver */

enum { MET, LENT, BLOCKED, KILLED };

static void world(void)
{
    gpu_world(GPU_FAKE);
    setenv("FAKE_CUDA_BLOCKING", "1", 1);
    gpu_order = BXI_GPU_HOST_WORDS;
}
#define BLOCKING_PAIR(name, first, second) \
    GPU_PAIR(gpu_blocking, name, 30, \
             (setenv("FAKE_CUDA_BLOCKING", "1", 1), gpu_order = BXI_GPU_HOST_WORDS, GPU_FAKE), first, second)

/* Lends a block, behind a wait that nobody ends. */
static void owes(void)
{
    struct bxi_gpu_block *block;
    struct bxi_gpu_point never = { .order = BXI_GPU_HOST_WORDS, .lane = BXI_GPU_LANES - 1, .value = 1 };

    gpu_start_pair(0);
    block = gpu_block(BYTES);
    GPU_EQ(bxi_gpu_ref(block, 0, BYTES, &gpu_shared->ref[1]), 0);       /* is ready at once */
    GPU_EQ(bxi_gpu_after(gpu_lane, NULL, &never), 0);
    gpu_fill(gpu_lane, block->address, 1, BYTES);
    gpu_lend(block, BYTES, 0);
    gpu_post(LENT);
    gpu_wait_for_the_end();
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

    gpu_start_pair(1);
    gpu_await(LENT, 1);
    if (call != maps)
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

    gpu_start(2);
    gpu_await(KILLED, 1);
    GPU_EQ(bxi_gpu_mark(gpu_lane, &point), 0);
    GPU_EQ(bxi_gpu_lane_wait(gpu_lane), 0);
    gpu_end();
}

static void dies_during(void *(*wanted)(void *unused))
{
    world();
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

Test(gpu_blocking, a_death_is_handled_beside_an_allocation) { dies_during(allocates); }

Test(gpu_blocking, a_death_is_handled_beside_the_opening_of_a_lane) { dies_during(opens_a_lane); }
Test(gpu_blocking, a_death_is_handled_beside_the_mapping_of_a_slab) { dies_during(maps); }

Test(gpu_blocking, a_death_is_handled_beside_the_registration_of_a_peer)
{
    dies_during(waits_for_a_new_peer);
}

Test(gpu_blocking, a_death_is_handled_beside_the_free_of_a_slab) { dies_during(frees); }

/* A thread that is in the driver may hold any lock: here it is the test's. */
static void releases_with_the_lock_taken(void)
{
    struct bxi_gpu_point met;
    uint64_t end_ns;

    gpu_start_pair(1);
    gpu_await(LENT, 1);
    GPU_EQ(bxi_gpu_after(gpu_lane, gpu_peer[0], &gpu_shared->ref[0].ready), 0);
    GPU_EQ(bxi_gpu_mark(gpu_lane, &met), 0);
    gpu_post(BLOCKED);
    gpu_await(KILLED, 1);
    pthread_mutex_lock(&gpu->lock);
    GPU_EQ(bxi_gpu_peer_release(gpu_peer[0], gpu_shared->region[0].word), 0);
    end_ns = bxi_gpu_now_ns() + UINT64_C(10000000000);
    while (bxi_load_acquire(&gpu_shared->region[1].word[met.lane].value) < met.value)
        GPU_CHECK(bxi_gpu_now_ns() < end_ns);
    pthread_mutex_unlock(&gpu->lock);
    GPU_EQ(bxi_gpu_peer_died(gpu_peer[0], gpu_shared->region[0].word), 0);
    gpu_end();
}

Test(gpu_blocking, streams_of_a_dead_peer_are_released_without_a_lock)
{
    world();
    gpu_run_killed(owes, releases_with_the_lock_taken, BLOCKED, KILLED);
}

/* ---- A free, while a lane waits for a peer that waits for a mark ----------------------------- */

/* The peer's work waits for a mark of this process, which the driver may not take while it frees. */
static void frees_before_its_mark(void)
{
    struct bxi_gpu_point mine;
    struct bxi_gpu_block *block;
    struct bxi_gpu_lane *other;

    gpu_start_pair(0);
    block = gpu_block(64 * GPU_MIB);
    GPU_EQ(bxi_gpu_lane_open(gpu_device, NULL, &other), 0);
    gpu_await(LENT, 1);
    GPU_EQ(bxi_gpu_after(gpu_lane, gpu_peer[1], &gpu_shared->point[1]), 0);
    bxi_gpu_free(block);
    (void)bxi_gpu_trim(gpu_device);
    usleep(PAUSE_US);
    GPU_CHECK(bxi_gpu_poll(gpu) > 0);           /* it is not freed, and the helper is free for other things */
    GPU_CHECK(bxi_gpu_helper_drain(&gpu->helper, bxi_gpu_now_ns() + UINT64_C(5000000000)));
    GPU_EQ(gpu_counters().slabs_retired, 0);
    GPU_EQ(bxi_gpu_mark(other, &mine), 0);
    gpu_shared->point[0] = mine;
    gpu_post(BLOCKED);
    gpu_poll_until_nothing_is_left();
    GPU_CHECK(gpu_counters().slabs_retired > 0);
    gpu_post(KILLED);
    gpu_end();
}

static void marks_after_that(void)
{
    struct bxi_gpu_point first, awaited;

    gpu_start_pair(1);
    GPU_EQ(bxi_gpu_mark(gpu_lane, &first), 0);
    awaited = first;
    awaited.value++;
    gpu_shared->point[1] = awaited;
    gpu_post(LENT);
    gpu_await(BLOCKED, 1);
    GPU_EQ(bxi_gpu_after(gpu_lane, gpu_peer[0], &gpu_shared->point[0]), 0);
    GPU_EQ(bxi_gpu_mark(gpu_lane, &first), 0);
    GPU_EQ(first.value, awaited.value);
    gpu_await(KILLED, 1);
    gpu_end();
}

BLOCKING_PAIR(memory_is_freed_when_no_lane_waits_any_more, frees_before_its_mark, marks_after_that);

/* The same for a slab of the peer, which this process has open and is to close. */
static void lends_and_retires(void)
{
    struct bxi_gpu_block *block;
    struct bxi_gpu_point first, awaited;

    gpu_start_pair(0);
    block = gpu_block(BYTES);
    GPU_EQ(bxi_gpu_ref(block, 0, BYTES, &gpu_shared->ref[0]), 0);
    GPU_EQ(bxi_gpu_mark(gpu_lane, &first), 0);
    awaited = first;
    awaited.value++;
    gpu_shared->point[1] = awaited;
    gpu_post(LENT);
    gpu_await(BLOCKED, 1);
    bxi_gpu_free(block);
    GPU_CHECK(bxi_gpu_trim(gpu_device) > 0);
    gpu_post(BLOCKED);
    gpu_await(KILLED, 1);
    GPU_EQ(bxi_gpu_mark(gpu_lane, &first), 0);
    gpu_poll_until_nothing_is_left();
    gpu_post(KILLED);
    gpu_end();
}

static void closes_when_nothing_waits(void)
{
    struct bxi_gpu_map *map;

    gpu_start_pair(1);
    gpu_await(LENT, 1);
    (void)gpu_borrow(gpu_peer[0], &gpu_shared->ref[0], &map);
    GPU_EQ(bxi_gpu_after(gpu_lane, gpu_peer[0], &gpu_shared->point[1]), 0);
    bxi_gpu_map_put(map);
    gpu_post(BLOCKED);
    gpu_await(BLOCKED, 2);
    GPU_CHECK(bxi_gpu_poll(gpu) > 0);
    GPU_CHECK(bxi_gpu_helper_drain(&gpu->helper, bxi_gpu_now_ns() + UINT64_C(5000000000)));
    GPU_EQ(gpu_counters().closes, 0);
    gpu_post(KILLED);
    gpu_poll_until_nothing_is_left();
    GPU_EQ(gpu_counters().closes, 1);
    gpu_await(KILLED, 2);
    gpu_end();
}

BLOCKING_PAIR(maps_are_closed_when_no_lane_waits_any_more, lends_and_retires, closes_when_nothing_waits);

static void *puts_a_wait(void *unused)
{
    GPU_EQ(bxi_gpu_after(gpu_lane, gpu_peer[0], &gpu_shared->point[1]), 0);
    bxi_store_release(&is_done, 1);
    return unused;
}

/* The test closes admission in place of the helper. */
static void waits_for_admission(void)
{
    pthread_t thread;

    gpu_start_pair(1);
    gpu_await(LENT, 1);
    GPU_CHECK(bxi_gpu_admission_close(gpu_device));
    GPU_EQ(pthread_create(&thread, NULL, puts_a_wait, NULL), 0);
    usleep(PAUSE_US);
    GPU_EQ(bxi_load_acquire(&is_done), 0);
    bxi_gpu_admission_open(gpu_device);
    GPU_EQ(pthread_join(thread, NULL), 0);
    GPU_CHECK(!bxi_gpu_admission_close(gpu_device));
    is_done = 0;
    gpu_post(BLOCKED);
    GPU_EQ(bxi_gpu_lane_wait(gpu_lane), 0);
    GPU_CHECK(bxi_gpu_admission_close(gpu_device));  /* nobody opens it: a wait is not put off for ever */
    puts_a_wait(NULL);
    bxi_gpu_admission_open(gpu_device);
    gpu_end();
}

static void marks_late(void)
{
    struct bxi_gpu_point point;

    gpu_start_pair(0);
    gpu_shared->point[1] = (struct bxi_gpu_point){ .order = BXI_GPU_HOST_WORDS, .lane = (uint16_t)gpu_lane->index,
                                                   .value = 1 };
    gpu_post(LENT);
    gpu_await(BLOCKED, 1);
    GPU_EQ(bxi_gpu_mark(gpu_lane, &point), 0);
    gpu_end();
}

BLOCKING_PAIR(waits_are_put_off_while_memory_is_freed, marks_late, waits_for_admission);

/* ---- Closing beside a stopped peer ----------------------------------------------------------- */

static bool maps_too;

static void ends_beside_a_stopped_peer(void)
{
    struct bxi_gpu_lane *idle;
    struct bxi_gpu_map *map;
    uint64_t begin_ns;

    gpu_start_pair(1);
    gpu_await(LENT, 1);
    if (maps_too)
        (void)gpu_borrow(gpu_peer[0], &gpu_shared->ref[0], &map);
    GPU_EQ(bxi_gpu_lane_open(gpu_device, NULL, &idle), 0);
    GPU_EQ(bxi_gpu_after(gpu_lane, gpu_peer[0], &gpu_shared->ref[0].ready), 0);
    gpu_post(BLOCKED);
    gpu_await(KILLED, 1);               /* it is stopped */
    begin_ns = bxi_gpu_now_ns();
    GPU_EQ(bxi_gpu_close(gpu), -ETIMEDOUT);
    GPU_SAYS("stay until this process ends");
    GPU_CHECK(bxi_gpu_now_ns() - begin_ns < UINT64_C(10000000000));
    GPU_CHECK((bxi_load_acquire(&gpu_shared->region[1].word[0].value) & BXI_GPU_POISON) != 0);
    GPU_CHECK(gpu->lane[idle->index] == idle);  /* no stream is destroyed beside one that waits */
}

static void closes_beside_a_stopped_peer(gpu_fn survives)
{
    world();
    gpu_fork(0, owes);
    gpu_fork(1, survives);
    gpu_await(BLOCKED, 1);
    gpu_stop(0);
    gpu_post(KILLED);
    gpu_join(1);
    gpu_kill(0);
    gpu_check_machine();
}

Test(gpu_blocking, close_ends_beside_a_stopped_peer_and_leaves_the_context)
{
    closes_beside_a_stopped_peer(ends_beside_a_stopped_peer);
}

Test(gpu_blocking, close_ends_beside_a_stopped_peer_whose_memory_is_mapped)
{
    maps_too = true;
    closes_beside_a_stopped_peer(ends_beside_a_stopped_peer);
}

/* The helper is in the driver, with an open that does not return; no lane of gpu/ waits. */
static void ends_while_the_helper_is_in_the_driver(void)
{
    struct CUstream_st *stream;

    gpu_start_pair(1);
    gpu_await(LENT, 1);
    GPU_EQ(bxi_gpu_enter(gpu_device), 0);
    GPU_EQ(gpu->cu.cuStreamCreate(&stream, 0), CUDA_SUCCESS);
    GPU_EQ(gpu->cu.cuStreamWaitValue64_v2(stream, gpu_device->host_words + 128 * (BXI_GPU_LANES - 1), 1, 0),
           CUDA_SUCCESS);
    bxi_gpu_leave(gpu_device);
    (void)bxi_gpu_map_begin(gpu_peer[0], &gpu_shared->ref[1], NULL, NULL);
    usleep(PAUSE_US);
    gpu_post(BLOCKED);
    gpu_await(KILLED, 1);
    GPU_EQ(bxi_gpu_close(gpu), -ETIMEDOUT);
    bxi_store_release(&gpu_shared->region[1].word[BXI_GPU_LANES - 1].value, 1);
    usleep(PAUSE_US);                   /* the helper comes back, calls nobody and ends */
}

Test(gpu_blocking, close_ends_while_the_helper_is_in_the_driver)
{
    closes_beside_a_stopped_peer(ends_while_the_helper_is_in_the_driver);
}

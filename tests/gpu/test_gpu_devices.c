/* SPDX-License-Identifier: MIT */
/*
 * gpu/: several devices, of which one cannot access the others; MIG instances. What tensors do on hidden devices and on
 * those without peer access: test_device_errors.c. Staged memory: device/copies_views_through_the_host.
 */
#include "fake_library.h"
#include "gpu_fixture.h"

#include "shm/file.h"
#include "shm/guard.h"

#include <sys/mman.h>

TestSuite(gpu_devices, .timeout = 60);

#define BYTES (256u << 10)

enum { MET, LENT, HELD, KILLED, BUSY, LAST };

static void start_on(int rank, const char *devices, int ordinal)
{
    if (devices != NULL)
        setenv("CUDA_VISIBLE_DEVICES", devices, 1);
    gpu_start_on(rank, ordinal);
    gpu_post(MET);
    gpu_await(MET, 2);
    gpu_meet(1 - rank);
}

/* What opens return here; 0: what the driver does. */
static unsigned open_result;

static unsigned fail_to_open(unsigned long long *address, struct CUipcMemHandle_st handle, unsigned flags)
{
    (void)address, (void)handle, (void)flags;
    return open_result;
}

static void owner_of_a_handle(void)
{
    struct bxi_gpu_block *block;

    start_on(0, NULL, 0);
    block = gpu_block(BYTES);
    gpu_fill(gpu_lane, block->address, 9, BYTES);
    gpu_lend(block, BYTES, 0);
    gpu_post(LENT);
    gpu_await(HELD, 1);
    GPU_EQ(gpu_opens(1), 0);
    gpu_end_lending(block, LAST);
}

static void borrower_that_fails(void)
{
    start_on(1, NULL, 0);
    gpu_await(LENT, 1);
    gpu->cu.cuIpcOpenMemHandle_v2 = fail_to_open;
    GPU_EQ(gpu_try_map(gpu_peer[0], &gpu_shared->ref[0]), -EXDEV);
    gpu_post(HELD);
    gpu_post(LAST);
    gpu_end();
}

/* The device is the same, and yet the driver maps nothing. */
static void run_failing_opens(unsigned result)
{
    gpu_world(GPU_FAKE);
    open_result = result;
    setenv("BX_GPU_EXPORT", "handle", 1);
    gpu_run(2, (gpu_fn[]){ owner_of_a_handle, borrower_that_fails });
}

Test(gpu_devices, whose_memory_the_driver_fails_to_map_is_not_lent) { run_failing_opens(CUDA_ERROR_MAP_FAILED); }

Test(gpu_devices, without_peer_access_by_the_result_of_an_open_lend_nothing)
{
    run_failing_opens(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
}

Test(gpu_devices, with_too_many_peers_lend_nothing) { run_failing_opens(CUDA_ERROR_TOO_MANY_PEERS); }

static void stay_busy(struct bxi_gpu_job *job)
{
    (void)job;
    gpu_await(BUSY, 1);
}

static void mig_owner(void)
{
    start_on(0, "0", 0);
    gpu_await(HELD, 1);
    GPU_EQ(gpu_reaches(1), 0);
    gpu_post(LAST);
    gpu_end();
}

static void mig_borrower(void)
{
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    gpu_start(1);
    gpu->info[0].is_mig = true;
    gpu_post(MET);
    gpu_await(MET, 2);
    gpu_meet(0);
    for (int i = 0; i < 3; i++) {
        bxi_gpu_peer_try(gpu_peer[0]);
        bxi_gpu_helper_drain(&gpu->helper, UINT64_MAX / 2);
        GPU_EQ(bxi_gpu_poll(gpu), 0);
    }
    GPU_EQ(gpu_counters().opens + gpu_counters().open_failures, 0);
    GPU_EQ(gpu_shared->region[1].head.refused_count, 1);
    gpu_post(HELD);
    gpu_await(LAST, 1);
    gpu_end();
}

GPU_PAIR(gpu_devices, that_are_mig_instances_do_not_try, 60, GPU_FAKE, mig_owner, mig_borrower);

_Noreturn static void owner_that_dies_early(void)
{
    start_on(0, "0", 0);
    gpu_post(LENT);
    gpu_wait_for_the_end();
}

/* The helper reads regions in segments of peers, which may truncate them. */
struct reading {
    struct bxi_gpu_job job;             /* first */
    volatile const char *from;
};

static void read_one(struct bxi_gpu_job *job)
{
    (void)*((struct reading *)(void *)job)->from;
}

Test(gpu_devices, survive_a_truncated_segment_on_the_helper)
{
    struct reading reading = { .job = { .run = read_one } };
    struct bxi_gpu_helper helper = { .first = NULL };
    bxi_a32 truncated = 0;
    void *base;
    int fd = memfd_create("segment", MFD_CLOEXEC);

    cr_assert_eq(ftruncate(fd, 4096), 0);
    cr_assert_eq(bxi_file_map(fd, 4096, false, &truncated, &base), 0);
    cr_assert_eq(ftruncate(fd, 0), 0);
    cr_assert_eq(bxi_gpu_helper_start(&helper), 0);
    reading.from = base;
    bxi_gpu_helper_post(&helper, &reading.job);
    bxi_gpu_helper_stop(&helper);
    cr_expect_eq(bxi_load_relaxed(&truncated), 1);
    bxi_guard_drop(base);
    munmap(base, 4096);
    close(fd);
}

/* An open that fails because the owner is dead publishes nothing about its device. */
static void borrower_that_tries_late(void)
{
    struct bxi_gpu_job busy = { .run = stay_busy };

    start_on(1, "1", 0);
    gpu_await(LENT, 1);
    if (open_result != 0)
        gpu->cu.cuIpcOpenMemHandle_v2 = fail_to_open;
    bxi_gpu_helper_post(&gpu->helper, &busy);
    bxi_gpu_peer_try(gpu_peer[0]);
    gpu_post(HELD);
    gpu_await(KILLED, 1);
    GPU_EQ(bxi_gpu_peer_died(gpu_peer[0], gpu_shared->region[0].word), 0);
    gpu_post(BUSY);
    bxi_gpu_helper_drain(&gpu->helper, UINT64_MAX / 2);
    GPU_EQ(gpu_counters().opens + gpu_counters().open_failures, 1);
    GPU_EQ(gpu_shared->region[1].head.known_count, gpu_counters().opens);
    GPU_EQ(gpu_shared->region[1].head.refused_count, 0);
    GPU_EQ(gpu_shared->region[1].head.unopened_count, 0);
    gpu_poll_until_nothing_is_left();
    GPU_EQ(bxi_load_acquire(&gpu_shared->held[1][0].generation[0]), 0);
    bxi_gpu_peer_try(gpu_peer[0]);
    GPU_EQ(bxi_load_acquire(&gpu_shared->held[1][0].generation[0]), 0);
    gpu_end();
}

static void owner_dies_before_the_open(unsigned result)
{
    gpu_world(GPU_FAKE);
    open_result = result;
    if (result != 0)
        setenv("BX_GPU_EXPORT", "handle", 1);       /* no descriptors come from a dead owner, so nothing is opened */
    gpu_run_killed(owner_that_dies_early, borrower_that_tries_late, HELD, KILLED);
}

Test(gpu_devices, of_an_owner_that_dies_are_not_published_as_refused) { owner_dies_before_the_open(0); }

Test(gpu_devices, that_cannot_be_mapped_after_a_death_are_not_published_as_refused)
{
    owner_dies_before_the_open(CUDA_ERROR_MAP_FAILED);
}

/* The driver on either side knows that there is no peer access: no open is tried. */
static void owner_that_asks(void)
{
    start_on(0, NULL, 0);
    GPU_EQ(gpu_reaches(1), 0);
    gpu_post(HELD);
    gpu_await(HELD, 2);
    GPU_EQ(gpu_reaches(1), 1);
    gpu_post(LAST);
    gpu_end();
}

static void borrower_that_does_nothing(void)
{
    struct bxi_gpu_device *second = NULL;

    start_on(1, NULL, 1);
    gpu_await(HELD, 1);
    GPU_EQ(bxi_gpu_poll(gpu), 0);               /* publishes the owner's device as refused */
    GPU_EQ(gpu_shared->region[1].head.refused_count, 1);
    for (int i = 0; i < 2; i++)                 /* a second open returns the same */
        GPU_EQ(bxi_gpu_device_open(gpu, 0, &second), 0);
    GPU_EQ(gpu_shared->region[1].head.refused_count, 0);
    GPU_EQ(bxi_gpu_poll(gpu), 0);
    GPU_EQ(gpu_shared->region[1].head.refused_count, 0);
    gpu_post(HELD);
    gpu_await(LAST, 1);
    gpu_end();
}

GPU_PAIR(gpu_devices, without_peer_access_are_known_before_anything_is_sent, 60,
         (setenv("FAKE_CUDA_NO_PEER", "0-1", 1), GPU_FAKE), owner_that_asks, borrower_that_does_nothing);

/* Of two devices here the first cannot access the owner's and the second can. */
static void borrower_with_two(void)
{
    struct bxi_gpu_device *second = NULL;
    struct bxi_gpu_lane *lane;
    struct bxi_gpu_map *map;
    struct bxi_gpu_point next;
    uint64_t address;

    gpu_start_on(1, 1);
    GPU_EQ(bxi_gpu_device_open(gpu, 2, &second), 0);
    GPU_EQ(bxi_gpu_lane_open(second, NULL, &lane), 0);
    gpu_post(MET);
    gpu_await(MET, 2);
    gpu_meet(0);                                /* with the first as the peer's device */
    gpu_await(LENT, 1);
    address = gpu_borrow(gpu_peer[0], &gpu_shared->ref[0], &map);
    GPU_CHECK(bxi_gpu_map_device(map) == second);
    GPU_EQ(bxi_gpu_after(lane, gpu_peer[0], &gpu_shared->ref[0].ready), 0);
    GPU_CHECK(gpu_holds(lane, address, 9, BYTES));
    next = gpu_shared->ref[0].ready;
    next.value++;                               /* the owner has yet to make it */
    GPU_EQ(bxi_gpu_after(gpu_lane, gpu_peer[0], &next), 0);     /* on the device without peer access */
    gpu_post(BUSY);
    GPU_EQ(gpu_counters().fallbacks, 0);
    gpu_post(HELD);
    bxi_gpu_map_put(map);
    gpu_post(LAST);
    gpu_end();
}

static void owner_far_from_one(void)
{
    struct bxi_gpu_block *block;
    struct bxi_gpu_point next;

    start_on(0, NULL, 0);
    GPU_EQ(gpu_reaches(1), 1);
    block = gpu_block(BYTES);
    gpu_fill(gpu_lane, block->address, 9, BYTES);
    gpu_lend(block, BYTES, 0);
    gpu_post(LENT);
    gpu_await(BUSY, 1);
    GPU_EQ(bxi_gpu_mark(gpu_lane, &next), 0);
    gpu_await(HELD, 1);
    bxi_gpu_free(block);
    gpu_await(LAST, 1);
    gpu_end();
}

Test(gpu_devices, have_words_that_all_of_several_can_wait_for)
{
    gpu_world(GPU_FAKE);
    gpu_order = BXI_GPU_HOST_WORDS;
    setenv("FAKE_CUDA_DEVICES", "3", 1);
    setenv("FAKE_CUDA_NO_PEER", "0-1", 1);
    gpu_run(2, (gpu_fn[]){ owner_far_from_one, borrower_with_two });
}

/* Simulated by two processes on one machine; on a real one a MIG instance does not see another. */
static void mig_instance(void)
{
    start_on(gpu_rank, NULL, gpu_rank);
    GPU_EQ(gpu_reaches(1 - gpu_rank), 1);
    gpu->info[0].is_mig = gpu->info[1].is_mig = true;
    GPU_EQ(gpu_reaches(1 - gpu_rank), 0);
    gpu_end_together(HELD);
}

GPU_PAIR(gpu_devices, that_are_mig_instances_access_no_other, 60, GPU_FAKE, mig_instance, mig_instance);

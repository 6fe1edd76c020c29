/* SPDX-License-Identifier: MIT */
/*
 * gpu/: memory that is exported as file descriptors (vmm.c, fd_server.c): who may write it, how long it lives, how the
 * descriptors travel, foreign memory of cuMemCreate, and descriptors that are asked for and do not work.
 */
#include "gpu_fixture.h"
#include "tests/harness/harness.h"

#define BYTES (256u << 10)

enum { LENT = 1, HELD, KILLED, LAST };

TestSuite(gpu_export, .init = gpu_export_by_default, .timeout = 60);

static struct bxi_gpu_block *lend(uint64_t bytes, unsigned char value, int index)
{
    struct bxi_gpu_block *block = gpu_block(bytes);

    gpu_fill(gpu_lane, block->address, value, bytes);
    gpu_lend(block, bytes, index);
    return block;
}

static uint64_t borrow(int rank, int index, struct bxi_gpu_map **map)
{
    uint64_t address = gpu_borrow(gpu_peer[rank], &gpu_shared->ref[index], map);

    GPU_EQ(bxi_gpu_after(gpu_lane, gpu_peer[rank], &gpu_shared->ref[index].ready), 0);
    return address;
}

/* Borrows what process 0 lends, reads it and gives it back. */
static void read_lent(unsigned char value, uint64_t bytes)
{
    struct bxi_gpu_map *map;
    uint64_t address = borrow(0, 0, &map);

    GPU_CHECK(gpu_holds(gpu_lane, address, value, bytes));
    bxi_gpu_map_put(map);
    gpu_post(HELD);
}

/* ---- Who may write --------------------------------------------------------------------------- */

static void lends_one(void)
{
    struct bxi_gpu_block *block;

    gpu_start_beside(0, 1);
    block = lend(BYTES, 7, 0);
    gpu_post(LENT);
    gpu_await(HELD, 1);
    GPU_CHECK(gpu_holds(gpu_lane, block->address, 7, BYTES));
    bxi_gpu_free(block);
    gpu_end();
}

/* On a real driver the failing write would end the context, so this is the fake's; gpucheck asks the real one. */
static void writes_what_it_borrowed(void)
{
    struct bxi_gpu_map *map;
    uint64_t address;

    gpu_start_beside(1, 0);
    GPU_CHECK(gpu_device->exports_fds);
    gpu_await(LENT, 1);
    address = borrow(0, 0, &map);
    GPU_CHECK(gpu_holds(gpu_lane, address, 7, BYTES));
    GPU_EQ(bxi_gpu_enter(gpu_device), 0);
    GPU_CHECK(gpu->cu.cuMemsetD8Async(address, 8, BYTES, gpu_lane->stream) != CUDA_SUCCESS);
    GPU_CHECK(gpu->cu.cuMemcpyAsync(address, address, 8, gpu_lane->stream) != CUDA_SUCCESS);
    bxi_gpu_leave(gpu_device);
    GPU_CHECK(gpu_holds(gpu_lane, address, 7, BYTES));
    bxi_gpu_map_put(map);
    gpu_post(HELD);
    gpu_end();
}

GPU_PAIR(gpu_export, lets_a_borrower_read_and_not_write, 60, GPU_FAKE, lends_one, writes_what_it_borrowed);

/* ---- Namespaces ------------------------------------------------------------------------------ */

static void is_in_other_namespaces(void)
{
    gpu_shared->region[0].head.ipc_namespace ^= 1;
    gpu_shared->region[0].head.pid_namespace ^= 1;
}

static void lends_from_elsewhere(void)
{
    struct bxi_gpu_block *block;

    gpu_start(0);
    is_in_other_namespaces();
    block = lend(BYTES, 7, 0);
    gpu_post(LENT);
    gpu_end_lending(block, HELD);
}

static void borrows_from_elsewhere(void)
{
    setenv("FAKE_CUDA_NO_IPC", "1", 1);
    gpu_await(LENT, 1);
    gpu_start_beside(1, 0);
    read_lent(7, BYTES);
    gpu_end();
}

GPU_PAIR(gpu_export, works_where_ipc_handles_do_not, 60, GPU_FAKE, lends_from_elsewhere, borrows_from_elsewhere);

static void has_another_network(void)
{
    struct bxi_gpu_block *block;

    gpu_start(0);
    gpu_shared->region[0].head.net_namespace ^= 1;
    gpu_shared->region[0].head.fd_server[0] ^= 1;            /* so its socket is not there */
    block = lend(BYTES, 7, 0);
    gpu_post(LENT);
    gpu_end_lending(block, HELD);
}

static void finds_no_fd_server(void)
{
    int before;

    gpu_meet_lender(LENT);
    before = open_descriptors();
    GPU_EQ(gpu_try_map(gpu_peer[0], &gpu_shared->ref[0]), -EIO);
    GPU_CHECK(strstr(gpu_map_text, "another network namespace") != NULL);
    GPU_CHECK(strstr(gpu_map_text, "BX_GPU_EXPORT=handle") != NULL);
    GPU_EQ(gpu_shared->held[1][0].generation[0], 0);
    GPU_EQ(open_descriptors(), before);
    gpu_post(HELD);
    gpu_end();
}

GPU_PAIR(gpu_export, says_that_the_network_namespace_differs, 60, GPU_FAKE, has_another_network, finds_no_fd_server);

/* ---- Deaths ---------------------------------------------------------------------------------- */

static void lends_and_dies(void)
{
    gpu_start_beside(0, 1);
    (void)lend(BYTES, 5, 0);
    gpu_wait_passed(NULL, &gpu_shared->ref[0].ready);
    gpu_post(LENT);
    gpu_wait_for_the_end();
}

/* With memory of handles FAKE_CUDA_DROP_DEAD would overwrite it. */
static void reads_after_the_death(void)
{
    struct bxi_gpu_map *map;
    uint64_t address, used;

    gpu_meet_lender(LENT);
    used = gpu_used(0);
    address = borrow(0, 0, &map);
    gpu_post(HELD);
    gpu_await(KILLED, 1);
    GPU_EQ(bxi_gpu_peer_died(gpu_peer[0], gpu_shared->region[0].word), 0);
    GPU_CHECK(gpu_holds(gpu_lane, address, 5, BYTES));
    bxi_gpu_map_put(map);
    gpu_poll_until_nothing_is_left();
    gpu_compare_used(0, 0, used - 1);
    gpu_end();
}

Test(gpu_export, keeps_memory_of_a_dead_owner_while_it_is_mapped)
{
    gpu_world(GPU_FAKE);
    setenv("FAKE_CUDA_DROP_DEAD", "1", 1);
    gpu_run_killed(lends_and_dies, reads_after_the_death, HELD, KILLED);
}

/* The last work reads the map when it is put: the map is closed only behind that work. */
static void puts_while_work_reads(void)
{
    struct bxi_gpu_map *map;
    struct bxi_gpu_block *copy;
    uint64_t address;

    gpu_meet_lender(LENT);
    copy = gpu_block(BYTES);
    address = borrow(0, 0, &map);
    gpu_post(HELD);
    gpu_await(KILLED, 1);
    GPU_EQ(bxi_gpu_peer_died(gpu_peer[0], gpu_shared->region[0].word), 0);
    for (int i = 0; i < 20; i++)
        GPU_EQ(bxi_gpu_copy(gpu_lane, copy->address, address, BYTES), 0);
    bxi_gpu_map_put(map);
    gpu_poll_until_nothing_is_left();
    GPU_CHECK(gpu_holds(gpu_lane, copy->address, 5, BYTES));
    bxi_gpu_free(copy);
    gpu_end();
}

Test(gpu_export, closes_the_map_of_a_dead_owner_behind_the_work_that_reads_it)
{
    gpu_world(GPU_FAKE);
    setenv("FAKE_CUDA_DELAY_US", "20000", 1);
    gpu_run_killed(lends_and_dies, puts_while_work_reads, HELD, KILLED);
}

/* ---- An owner that does not answer ----------------------------------------------------------- */

static void lends_and_is_stopped(void)
{
    struct bxi_gpu_block *block;

    gpu_start_beside(0, 1);
    block = lend(BYTES, 5, 0);
    gpu_wait_passed(NULL, &gpu_shared->ref[0].ready);
    gpu_store(0, (uint64_t)getpid());
    gpu_post(LENT);
    gpu_end_lending(block, LAST);
}

/* With a pause, until its threads have stopped too. */
static void ran(struct bxi_gpu_job *job)
{
    (void)job;
    gpu_post(HELD);
}

/* The helper does other work while the answer has not come, and takes it when the owner runs again. */
static void asks_a_stopped_owner(void)
{
    struct bxi_gpu_job other = { .run = ran };
    pid_t owner;

    gpu_meet_lender(LENT);
    owner = gpu_stop_lender();
    gpu_map_begin(gpu_peer[0], &gpu_shared->ref[0]);
    usleep(300000);
    bxi_gpu_helper_post(&gpu->helper, &other);
    gpu_await(HELD, 1);
    GPU_CHECK(!gpu_map_has_ended());
    GPU_EQ(harness_kill(owner, SIGCONT), 0);
    GPU_EQ(gpu_map_end(), 0);
    gpu_post(LAST);
    gpu_end();
}

GPU_PAIR(gpu_export, waits_for_a_stopped_owner_without_holding_up_others, 60, GPU_FAKE, lends_and_is_stopped,
         asks_a_stopped_owner);

static void closes_while_it_asks(void)
{
    uint64_t before;
    pid_t owner;

    gpu_meet_lender(LENT);
    owner = gpu_stop_lender();
    gpu_map_begin(gpu_peer[0], &gpu_shared->ref[0]);
    usleep(100000);
    before = bxi_gpu_now_ns();
    gpu_end();
    GPU_CHECK(bxi_gpu_now_ns() - before < UINT64_C(1500000000));
    GPU_CHECK(gpu_map_has_ended() && gpu_map_end() < 0);
    GPU_EQ(harness_kill(owner, SIGCONT), 0);
    gpu_post(LAST);
}

GPU_PAIR(gpu_export, closes_at_once_while_a_stopped_owner_is_asked, 60, GPU_FAKE, lends_and_is_stopped,
         closes_while_it_asks);

/* ---- Foreign memory -------------------------------------------------------------------------- */

#define CHUNKS GPU_CHUNKS

/* Lends what begins in the first allocation and ends in the last; and some bytes of the second alone. */
static void lends_a_segment(void)
{
    struct bxi_gpu_block *block, *part;
    uint64_t base, at, bytes = 3 * GPU_MIB;
    int before;

    gpu_start_beside(0, 1);
    before = open_descriptors();
    base = gpu_segment(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    at = base + GPU_MIB + 4096;
    gpu_fill(gpu_lane, at, 9, bytes);
    GPU_EQ(bxi_gpu_wrap(gpu, &(struct bxi_gpu_foreign){ .address = at, .bytes = bytes, .freed = gpu_count_freed },
                        &block), 0);
    GPU_EQ(bxi_gpu_wrap(gpu, &(struct bxi_gpu_foreign){ .address = base + 2 * GPU_MIB + 8, .bytes = 64 }, &part), 0);
    GPU_EQ(part->slab, block->slab);                    /* the same allocations are exported once */
    gpu_lend(block, bytes, 0);
    gpu_post(LENT);
    gpu_await(HELD, 1);
    bxi_gpu_free(part);
    bxi_gpu_free(block);
    /* The helper calls back when nothing is left that a poll would count. */
    while (bxi_gpu_poll(gpu) > 0 || bxi_load_acquire(&gpu_freed) == 0)
        sched_yield();
    GPU_EQ(bxi_load_acquire(&gpu_freed), 1);
    gpu_free_segment(base);
    GPU_EQ(open_descriptors(), before);
    GPU_EQ(gpu_counters().staged_bytes + gpu_counters().d2d_bytes, 0);
    gpu_post(LAST);
    gpu_end();
}

static void borrows_a_segment(void)
{
    gpu_meet_lender(LENT);
    read_lent(9, 3 * GPU_MIB);
    while (bxi_gpu_poll(gpu) == 0 && gpu_counters().maps > 0)
        sched_yield();
    gpu_poll_until_nothing_is_left();
    gpu_await(LAST, 1);
    gpu_end();
}

GPU_PAIR(gpu_export, takes_in_memory_of_several_allocations_without_a_copy, 60, GPU_FAKE, lends_a_segment,
         borrows_a_segment);

GPU_ALONE(gpu_export, refuses_foreign_memory_of_two_devices, 60, GPU_FAKE)
{
    struct bxi_gpu_block *block;
    uint64_t base;

    gpu_start(0);
    base = gpu_segment(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1);
    GPU_EQ(bxi_gpu_wrap(gpu, &(struct bxi_gpu_foreign){ .address = base, .bytes = 5 * GPU_MIB }, &block), -EOPNOTSUPP);
    GPU_SAYS("devices 0 and 1");
    GPU_EQ(bxi_gpu_wrap(gpu, &(struct bxi_gpu_foreign){ .address = base, .bytes = 4 * GPU_MIB }, &block), 0);
    bxi_gpu_free(block);
    gpu_poll_until_nothing_is_left();
    gpu_free_segment(base);
    gpu_end();
}

GPU_ALONE(gpu_export, refuses_foreign_memory_that_was_not_made_for_it, 60, GPU_FAKE)
{
    struct bxi_gpu_block *block;
    uint64_t base;

    gpu_start(0);
    base = gpu_segment(0, 0);
    GPU_EQ(bxi_gpu_wrap(gpu, &(struct bxi_gpu_foreign){ .address = base, .bytes = 64 }, &block), -EOPNOTSUPP);
    GPU_SAYS("CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR");
    gpu_free_segment(base);
    base = gpu_segment(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    GPU_EQ(bxi_gpu_wrap(gpu, &(struct bxi_gpu_foreign){ .address = base, .bytes = 7 * GPU_MIB }, &block), -EINVAL);
    GPU_SAYS("leave");
    gpu_free_segment(base);
    gpu_end();
}

/* ---- The choice ------------------------------------------------------------------------------ */

GPU_ALONE(gpu_export, fails_where_descriptors_are_asked_for_and_do_not_work, 60,
          (setenv("FAKE_CUDA_NO_VMM", "1", 1), GPU_FAKE))
{
    struct bxi_gpu_options options = { .driver = gpu_driver_path(), .region = &gpu_shared->region[0] };

    setenv("BX_GPU_EXPORT", "parcel", 1);
    GPU_EQ(bxi_gpu_open(&options, &gpu), -EINVAL);
    GPU_SAYS("BX_GPU_EXPORT=parcel");
    setenv("BX_GPU_EXPORT", "fd", 1);
    GPU_EQ(bxi_gpu_open(&options, &gpu), 0);
    GPU_EQ(bxi_gpu_device_open(gpu, 0, &gpu_device), -ENOTSUP);
    GPU_SAYS("BX_GPU_EXPORT=fd");
    bxi_gpu_close(gpu);
}

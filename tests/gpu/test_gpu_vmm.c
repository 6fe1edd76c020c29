/* SPDX-License-Identifier: MIT */
/*
 * gpu/: memory that is exported as file descriptors (vmm.c), where the driver fails, the device is full or the work
 * does not end; and foreign memory that is held when its owner closes. The tests' driver fails where it is told to, or
 * its calls are replaced in the table of the process (gpu->cu).
 */
#include "gpu_fixture.h"
#include "tests/fake_cuda/vmm.h"
#include "tests/harness/refuse.h"

#include <dlfcn.h>

#define BYTES (2 * GPU_MIB)             /* a slab of its own, also where another has the words */
#define CHUNKS GPU_CHUNKS
#define CHUNK_BYTES (2 * GPU_MIB)
#define FAILED_CONTEXT 700u             /* CUDA_ERROR_ILLEGAL_ADDRESS */

enum { LENT = 1, HELD, KILLED, LAST };

TestSuite(gpu_vmm, .init = gpu_export_by_default, .timeout = 60);

/* Polls for two seconds at most. */
static bool closes_all_maps(void)
{
    uint64_t end_ns = bxi_gpu_now_ns() + UINT64_C(2000000000);

    while (gpu_counters().maps > 0 && bxi_gpu_now_ns() < end_ns) {
        (void)bxi_gpu_poll(gpu);
        usleep(1000);
    }
    return gpu_counters().maps == 0;
}

/* ---- A device that is full, a context that has failed ---------------------------------------- */

/* Retires its slab when the borrower has mapped it. */
static void lends_and_retires(void)
{
    struct bxi_gpu_block *block;

    gpu_start_beside(0, 1);
    block = gpu_block(BYTES);
    gpu_lend_ready(block, 5);
    gpu_post(LENT);
    gpu_await(HELD, 1);
    bxi_gpu_free(block);
    bxi_gpu_trim(gpu_device);
    gpu_post(KILLED);
    gpu_await(LAST, 1);
    gpu_poll_until_nothing_is_left();
    gpu_end();
}

/* Maps what process 0 lends, reads it and puts it; returns when the slab retires. */
static void maps_and_puts(void)
{
    struct bxi_gpu_map *map;
    uint64_t address;

    gpu_meet(0);
    gpu_await(LENT, 1);
    address = gpu_borrow(gpu_peer[0], &gpu_shared->ref[0], &map);
    GPU_CHECK(gpu_holds(gpu_lane, address, 5, BYTES));
    bxi_gpu_map_put(map);
    gpu_post(HELD);
    gpu_await(KILLED, 1);
}

/* Allocates until not a byte is left; returns how many pieces. */
static int fill_device(unsigned long long *piece, int most)
{
    int count = 0;

    GPU_EQ(bxi_gpu_enter(gpu_device), 0);
    for (size_t bytes = 64 * GPU_MIB; bytes > 0; bytes /= 2)
        while (count < most && gpu->cu.cuMemAlloc_v2(&piece[count], bytes) == CUDA_SUCCESS)
            count++;
    bxi_gpu_leave(gpu_device);
    GPU_CHECK(count < most);
    return count;
}

static void closes_on_a_full_device(void)
{
    unsigned long long piece[100];
    int count;

    gpu_start(1);
    maps_and_puts();
    count = fill_device(piece, 100);
    GPU_CHECK(closes_all_maps());
    gpu_post(LAST);
    GPU_EQ(bxi_gpu_enter(gpu_device), 0);
    while (count > 0)
        GPU_EQ(gpu->cu.cuMemFree_v2(piece[--count]), CUDA_SUCCESS);
    bxi_gpu_leave(gpu_device);
    gpu_end();
}

/* The slab of a living owner, who can free it only then. */
GPU_PAIR(gpu_vmm, closes_a_map_when_the_device_is_full, 60, (setenv("FAKE_CUDA_MEMORY_MB", "256", 1), GPU_FAKE),
         lends_and_retires, closes_on_a_full_device);

static unsigned alloc_fails(unsigned long long *address, size_t bytes)
{
    (void)address;
    (void)bytes;
    return FAILED_CONTEXT;
}

static unsigned free_fails(unsigned long long address)
{
    (void)address;
    return FAILED_CONTEXT;
}

static unsigned query_fails(struct CUstream_st *stream)
{
    (void)stream;
    return FAILED_CONTEXT;
}

static unsigned query_is_not_ready(struct CUstream_st *stream)
{
    (void)stream;
    return CUDA_ERROR_NOT_READY;
}

/* No work runs in a context that has failed; all its calls return the error. */
static void closes_with_a_failed_context(void)
{
    struct bxi_cuda cu;

    gpu_start(1);
    maps_and_puts();
    cu = gpu->cu;
    gpu->cu.cuMemAlloc_v2 = alloc_fails;
    gpu->cu.cuMemFree_v2 = free_fails;
    gpu->cu.cuStreamQuery = query_is_not_ready;     /* errors of the two alone say nothing about the work */
    GPU_CHECK(!closes_all_maps());
    gpu->cu.cuStreamQuery = query_fails;
    GPU_CHECK(closes_all_maps());
    gpu->cu.cuMemAlloc_v2 = cu.cuMemAlloc_v2;
    gpu->cu.cuMemFree_v2 = cu.cuMemFree_v2;
    gpu->cu.cuStreamQuery = cu.cuStreamQuery;
    gpu_post(LAST);
    gpu_end();
}

GPU_PAIR(gpu_vmm, closes_a_map_when_the_context_has_failed, 60, GPU_FAKE, lends_and_retires,
         closes_with_a_failed_context);

/* ---- A driver that fails half-way ------------------------------------------------------------ */

/* Each fails at its first calls; the tests' driver counts what is there. */
static const char *const borrowing[] = { "cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap",
                                         "cuMemSetAccess", NULL };
static const char *const making[] = { "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
                                      "cuMemExportToShareableHandle", NULL };
static const char *const lending[] = { "cuMemExportToShareableHandle", "cuMemRetainAllocationHandle",
                                       "cuMemGetAllocationPropertiesFromHandle", NULL };
static struct fake_vmm *vmm;

static void count_from(int mapped)
{
    vmm = dlsym(gpu->cu.library, "bx_fake_vmm");
    GPU_CHECK(vmm != NULL);
    *vmm = (struct fake_vmm){ .mapped = mapped, .reserved = mapped };
}

static void fail(const char *call, int left)
{
    vmm->left = left;
    vmm->fails = call;
}

static struct bxi_gpu_block *lend_segment(uint64_t base)
{
    struct bxi_gpu_foreign range = { .address = base, .bytes = CHUNKS * CHUNK_BYTES, .freed = gpu_count_freed };
    struct bxi_gpu_block *block;

    GPU_EQ(bxi_gpu_wrap(gpu, &range, &block), 0);
    gpu_lend_ready(block, 9);
    return block;
}

static void lends_a_segment(void)
{
    struct bxi_gpu_block *block;
    uint64_t base;

    gpu_start_beside(0, 1);
    base = gpu_segment(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    block = lend_segment(base);
    gpu_post(LENT);
    gpu_await(LAST, 1);
    bxi_gpu_free(block);
    while (bxi_gpu_poll(gpu) > 0 || bxi_load_acquire(&gpu_freed) == 0)
        sched_yield();
    gpu_free_segment(base);
    gpu_end();
}

static void maps_where_the_driver_fails(void)
{
    struct bxi_gpu_map *held;
    uint64_t address;
    int before;

    gpu_meet_lender(LENT);
    count_from(0);
    before = open_descriptors() + 1;            /* the tests' driver has one for what settling frees */
    for (const char *const *call = borrowing; *call != NULL; call++)
        for (int left = 0; left < (call == &borrowing[0] || call == &borrowing[2] ? CHUNKS : 1); left++) {
            fail(*call, left);
            GPU_EQ(gpu_try_map(gpu_peer[0], &gpu_shared->ref[0]), -EIO);
            GPU_EQ(vmm->handles, 0);
            GPU_EQ(vmm->mapped, 0);
            GPU_EQ(vmm->reserved, 0);
            GPU_EQ(open_descriptors(), before);
        }
    fail(NULL, 0);
    address = gpu_borrow(gpu_peer[0], &gpu_shared->ref[0], &held);
    GPU_EQ(vmm->handles, 0);
    GPU_EQ(vmm->mapped, CHUNKS);
    GPU_CHECK(gpu_holds(gpu_lane, address, 9, CHUNKS * CHUNK_BYTES));
    bxi_gpu_map_put(held);
    gpu_post(LAST);
    while (gpu_counters().maps > 0) {
        (void)bxi_gpu_poll(gpu);
        sched_yield();
    }
    GPU_EQ(vmm->mapped, 0);
    GPU_EQ(vmm->reserved, 0);
    GPU_EQ(open_descriptors(), before);
    gpu_end();
}

GPU_PAIR(gpu_vmm, leaves_nothing_where_a_call_of_the_driver_fails, 60, GPU_FAKE, lends_a_segment,
         maps_where_the_driver_fails);

/* Except the first slab, which was made when the device was opened. */
static void check_nothing_is_left(int fds, uint64_t used)
{
    GPU_EQ(vmm->handles, 0);
    GPU_EQ(vmm->mapped, 1);
    GPU_EQ(vmm->reserved, 1);
    GPU_EQ(open_descriptors(), fds);
    GPU_EQ(gpu_used(0), used);
}

/* The owner's side: slabs of the pool, and foreign memory. */
GPU_ALONE(gpu_vmm, leaves_nothing_where_memory_cannot_be_made_or_exported, 60, GPU_FAKE)
{
    struct bxi_gpu_foreign range = { .bytes = CHUNKS * CHUNK_BYTES };
    struct bxi_gpu_block *block;
    uint64_t used;
    int before;

    gpu_start(0);
    range.address = gpu_segment(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    count_from(1);
    before = open_descriptors();
    used = gpu_used(0);
    for (const char *const *call = making; *call != NULL; call++) {
        fail(*call, 0);
        GPU_CHECK(bxi_gpu_alloc(gpu_device, 4 * GPU_MIB, &block) < 0);
        check_nothing_is_left(before, used);
    }
    for (const char *const *call = lending; *call != NULL; call++)
        for (int left = 0; left < CHUNKS; left++) {
            fail(*call, left);
            GPU_CHECK(bxi_gpu_wrap(gpu, &range, &block) < 0);
            check_nothing_is_left(before, used);
        }
    fail(NULL, 0);
    GPU_EQ(bxi_gpu_wrap(gpu, &range, &block), 0);
    GPU_EQ(vmm->handles, CHUNKS);       /* handles of foreign memory are kept */
    bxi_gpu_free(block);
    GPU_EQ(bxi_gpu_alloc(gpu_device, 4 * GPU_MIB, &block), 0);
    bxi_gpu_free(block);
    gpu_end();
    GPU_EQ(vmm->handles, 0);
    GPU_EQ(vmm->mapped, 0);
    GPU_EQ(vmm->reserved, 0);
}

/* ---- Foreign memory that is held when its owner closes --------------------------------------- */

/* Its program would use the memory again after freed. */
static void closes_while_it_is_read(void)
{
    gpu_start_beside(0, 1);
    (void)lend_segment(gpu_segment(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    gpu_post(LENT);
    gpu_await(HELD, 1);
    gpu_end();
    GPU_EQ(bxi_load_acquire(&gpu_freed), 0);
    gpu_post(KILLED);
    gpu_await(LAST, 1);
}

static void reads_on(void)
{
    struct bxi_gpu_map *held;
    uint64_t address;

    gpu_meet_lender(LENT);
    address = gpu_borrow(gpu_peer[0], &gpu_shared->ref[0], &held);
    gpu_post(HELD);
    gpu_await(KILLED, 1);
    GPU_CHECK(gpu_holds(gpu_lane, address, 9, CHUNKS * CHUNK_BYTES));
    bxi_gpu_map_put(held);
    gpu_end();
    gpu_post(LAST);
}

GPU_PAIR(gpu_vmm, does_not_call_foreign_memory_free_that_is_held_when_its_owner_closes, 60, GPU_FAKE,
         closes_while_it_is_read, reads_on);

/* The borrower closes it meanwhile. */
static void closes_while_it_is_given_back(void)
{
    gpu_start_beside(0, 1);
    (void)lend_segment(gpu_segment(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    gpu_post(LENT);
    gpu_await(HELD, 1);
    gpu_end();
    GPU_EQ(bxi_load_acquire(&gpu_freed), 1);
    gpu_post(LAST);
}

static void gives_back_later(void)
{
    struct bxi_gpu_map *held;

    gpu_meet_lender(LENT);
    (void)gpu_borrow(gpu_peer[0], &gpu_shared->ref[0], &held);
    gpu_post(HELD);
    usleep(300000);
    bxi_gpu_map_put(held);
    GPU_CHECK(closes_all_maps());
    gpu_await(LAST, 1);
    gpu_end();
}

GPU_PAIR(gpu_vmm, calls_foreign_memory_free_that_is_given_back_while_its_owner_closes, 60, GPU_FAKE,
         closes_while_it_is_given_back, gives_back_later);

/* ---- A trial that does not end --------------------------------------------------------------- */

static struct bxi_cuda real;
static uint64_t busy_until_ns;
static int unmapped_while_busy;

static unsigned query_late(struct CUstream_st *stream)
{
    return bxi_gpu_now_ns() < busy_until_ns ? CUDA_ERROR_NOT_READY : real.cuStreamQuery(stream);
}

static unsigned unmap_and_count(unsigned long long address, size_t bytes)
{
    unmapped_while_busy += bxi_gpu_now_ns() < busy_until_ns;
    return real.cuMemUnmap(address, bytes);
}

/* The device is busy with other work for three seconds; the trial gives up after two. */
GPU_ALONE(gpu_vmm, unmaps_nothing_that_the_work_of_a_trial_may_still_use, 60, GPU_FAKE)
{
    struct bxi_gpu_options options = { .driver = gpu_driver_path(), .region = &gpu_shared->region[0],
                                       .slab_bytes = 2 * GPU_MIB };

    GPU_EQ(bxi_gpu_open(&options, &gpu), 0);
    real = gpu->cu;
    gpu->cu.cuStreamQuery = query_late;
    gpu->cu.cuMemUnmap = unmap_and_count;
    busy_until_ns = bxi_gpu_now_ns() + UINT64_C(2500000000);
    GPU_EQ(bxi_gpu_device_open(gpu, 0, &gpu_device), 0);
    GPU_CHECK(!gpu_device->exports_fds);
    GPU_EQ(unmapped_while_busy, 0);
    gpu_end();
}

/* ---- A door that cannot be opened ------------------------------------------------------------ */

GPU_ALONE(gpu_vmm, closes_no_descriptor_of_the_program_when_its_descriptor_server_cannot_be_opened, 60, GPU_FAKE)
{
    struct stat before, after;

    if (!refuse(SYS_getrandom, ENOSYS))
        _exit(0);                       /* this kernel takes no filter */
    GPU_EQ(dup2(memfd_create("standard input", 0), 0), 0);
    GPU_EQ(fstat(0, &before), 0);
    gpu_start(0);
    GPU_CHECK(!gpu_device->exports_fds);
    GPU_EQ(fstat(0, &after), 0);
    GPU_EQ(after.st_ino, before.st_ino);
    gpu_end();
}

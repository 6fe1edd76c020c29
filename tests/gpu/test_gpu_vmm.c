/* SPDX-License-Identifier: MIT */
/*
 * gpu/: memory that is exported as file descriptors (vmm.c), where the driver fails, the device is full or the work
 * does not end; and foreign memory that is held when its owner closes. Calls of the driver are replaced in the table of
 * the process (gpu->cu), so a real driver is not asked.
 */
#include "gpu_fixture.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#define BYTES (2 * GPU_MIB)             /* a slab of its own, also where another has the words */
#define CHUNKS 3
#define CHUNK_BYTES (2 * GPU_MIB)
#define FAILED_CONTEXT 700u             /* CUDA_ERROR_ILLEGAL_ADDRESS */

enum { LENT = 1, HELD, KILLED, LAST };

TestSuite(gpu_vmm, .init = gpu_export_by_default, .timeout = 60);

static void lend(struct bxi_gpu_block *block, unsigned char value)
{
    gpu_fill(gpu_lane, block->address, value, block->bytes);
    GPU_EQ(bxi_gpu_ref(block, 0, block->bytes, &gpu_shared->ref[0]), 0);
    GPU_EQ(bxi_gpu_mark(gpu_lane, &gpu_shared->ref[0].ready), 0);
    gpu_wait_passed(NULL, &gpu_shared->ref[0].ready);
    gpu_shared->ref[0].ready = (struct bxi_gpu_point){ 0 };     /* so the slab with its word is not mapped */
}

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
    lend(block, 5);
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
Test(gpu_vmm, closes_a_map_when_the_device_is_full)
{
    gpu_world(GPU_FAKE);
    setenv("FAKE_CUDA_MEMORY_MB", "256", 1);
    gpu_run(2, (gpu_fn[]){ lends_and_retires, closes_on_a_full_device });
}

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

enum step { IMPORT, RESERVE, MAP, ALLOW, EXPORT, RETAIN, DESCRIBE, STEPS };

static struct bxi_cuda real;
static enum step failing;
static int left;                        /* calls of that step that succeed */
static int imported, reserved, mapped;  /* what is there; imported: handles, made and retained ones too */

static bool fails(enum step step)
{
    return failing == step && left-- == 0;
}

static unsigned import(unsigned long long *handle, void *shared, unsigned type)
{
    unsigned result = fails(IMPORT) ? FAILED_CONTEXT
                                    : real.cuMemImportFromShareableHandle(handle, shared, type);

    imported += result == CUDA_SUCCESS;
    return result;
}

static unsigned create(unsigned long long *handle, size_t bytes, const struct CUmemAllocationProp_st *prop,
                       unsigned long long flags)
{
    unsigned result = real.cuMemCreate(handle, bytes, prop, flags);

    imported += result == CUDA_SUCCESS;
    return result;
}

static unsigned export(void *out, unsigned long long handle, unsigned type, unsigned long long flags)
{
    return fails(EXPORT) ? FAILED_CONTEXT : real.cuMemExportToShareableHandle(out, handle, type, flags);
}

static unsigned retain(unsigned long long *handle, void *address)
{
    unsigned result = fails(RETAIN) ? FAILED_CONTEXT : real.cuMemRetainAllocationHandle(handle, address);

    imported += result == CUDA_SUCCESS;
    return result;
}

static unsigned describe(struct CUmemAllocationProp_st *prop, unsigned long long handle)
{
    return fails(DESCRIBE) ? FAILED_CONTEXT : real.cuMemGetAllocationPropertiesFromHandle(prop, handle);
}

static unsigned release(unsigned long long handle)
{
    imported--;
    return real.cuMemRelease(handle);
}

static unsigned reserve(unsigned long long *address, size_t bytes, size_t alignment, unsigned long long wanted,
                        unsigned long long flags)
{
    unsigned result = fails(RESERVE) ? FAILED_CONTEXT
                                     : real.cuMemAddressReserve(address, bytes, alignment, wanted, flags);

    reserved += result == CUDA_SUCCESS;
    return result;
}

static unsigned unreserve(unsigned long long address, size_t bytes)
{
    unsigned result = real.cuMemAddressFree(address, bytes);

    reserved -= result == CUDA_SUCCESS;
    return result;
}

static unsigned map(unsigned long long address, size_t bytes, size_t offset, unsigned long long handle,
                    unsigned long long flags)
{
    unsigned result = fails(MAP) ? FAILED_CONTEXT : real.cuMemMap(address, bytes, offset, handle, flags);

    mapped += result == CUDA_SUCCESS;
    return result;
}

static unsigned unmap(unsigned long long address, size_t bytes)
{
    unsigned result = real.cuMemUnmap(address, bytes);

    mapped -= result == CUDA_SUCCESS;
    return result;
}

static unsigned allow(unsigned long long address, size_t bytes, const struct CUmemAccessDesc_st *access, size_t count)
{
    return fails(ALLOW) ? FAILED_CONTEXT : real.cuMemSetAccess(address, bytes, access, count);
}

static void replace_calls(void)
{
    real = gpu->cu;
    gpu->cu.cuMemImportFromShareableHandle = import;
    gpu->cu.cuMemCreate = create;
    gpu->cu.cuMemExportToShareableHandle = export;
    gpu->cu.cuMemRetainAllocationHandle = retain;
    gpu->cu.cuMemGetAllocationPropertiesFromHandle = describe;
    gpu->cu.cuMemRelease = release;
    gpu->cu.cuMemAddressReserve = reserve;
    gpu->cu.cuMemAddressFree = unreserve;
    gpu->cu.cuMemMap = map;
    gpu->cu.cuMemUnmap = unmap;
    gpu->cu.cuMemSetAccess = allow;
}

/* Allocations of 2 MiB behind one another, as PyTorch's expandable segments. */
static uint64_t segment(void)
{
    struct CUmemAllocationProp_st prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                           .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                           .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } };
    struct CUmemAccessDesc_st access = { prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    unsigned long long base = 0, handle = 0;

    GPU_EQ(bxi_gpu_enter(gpu_device), 0);
    GPU_EQ(gpu->cu.cuMemAddressReserve(&base, CHUNKS * CHUNK_BYTES, 0, 0, 0), CUDA_SUCCESS);
    for (uint64_t at = base; at < base + CHUNKS * CHUNK_BYTES; at += CHUNK_BYTES) {
        GPU_EQ(gpu->cu.cuMemCreate(&handle, CHUNK_BYTES, &prop, 0), CUDA_SUCCESS);
        GPU_EQ(gpu->cu.cuMemMap(at, CHUNK_BYTES, 0, handle, 0), CUDA_SUCCESS);
        GPU_EQ(gpu->cu.cuMemRelease(handle), CUDA_SUCCESS);
    }
    GPU_EQ(gpu->cu.cuMemSetAccess(base, CHUNKS * CHUNK_BYTES, &access, 1), CUDA_SUCCESS);
    bxi_gpu_leave(gpu_device);
    return base;
}

static void free_segment(uint64_t base)
{
    GPU_EQ(bxi_gpu_enter(gpu_device), 0);
    for (uint64_t at = base; at < base + CHUNKS * CHUNK_BYTES; at += CHUNK_BYTES)
        GPU_EQ(gpu->cu.cuMemUnmap(at, CHUNK_BYTES), CUDA_SUCCESS);
    GPU_EQ(gpu->cu.cuMemAddressFree(base, CHUNKS * CHUNK_BYTES), CUDA_SUCCESS);
    bxi_gpu_leave(gpu_device);
}

static bxi_a32 freed_count;

static void count_freed(void *context)
{
    (void)context;
    bxi_add(&freed_count, 1);
}

static struct bxi_gpu_block *lend_segment(uint64_t base)
{
    struct bxi_gpu_foreign range = { .address = base, .bytes = CHUNKS * CHUNK_BYTES, .freed = count_freed };
    struct bxi_gpu_block *block;

    GPU_EQ(bxi_gpu_wrap(gpu, &range, &block), 0);
    lend(block, 9);
    return block;
}

static void lends_a_segment(void)
{
    struct bxi_gpu_block *block;
    uint64_t base;

    gpu_start_beside(0, 1);
    base = segment();
    block = lend_segment(base);
    gpu_post(LENT);
    gpu_await(LAST, 1);
    bxi_gpu_free(block);
    while (bxi_gpu_poll(gpu) > 0 || bxi_load_acquire(&freed_count) == 0)
        sched_yield();
    free_segment(base);
    gpu_end();
}

/* Each step fails at its first call, its second and its third. */
static void maps_where_the_driver_fails(void)
{
    struct bxi_gpu_map *held;
    uint64_t address;
    int before;

    gpu_meet_lender(LENT);
    replace_calls();
    before = gpu_open_fds() + 1;            /* the tests' driver has one for what settling frees */
    for (int step = 0; step <= ALLOW; step++)
        for (int call = 0; call < (step == IMPORT || step == MAP ? CHUNKS : 1); call++) {
            failing = (enum step)step;
            left = call;
            GPU_EQ(gpu_try_map(gpu_peer[0], &gpu_shared->ref[0]), -EIO);
            GPU_EQ(imported, 0);
            GPU_EQ(mapped, 0);
            GPU_EQ(reserved, 0);
            GPU_EQ(gpu_open_fds(), before);
        }
    failing = STEPS;
    address = gpu_borrow(gpu_peer[0], &gpu_shared->ref[0], &held);
    GPU_EQ(imported, 0);
    GPU_EQ(mapped, CHUNKS);
    GPU_CHECK(gpu_holds(gpu_lane, address, 9, CHUNKS * CHUNK_BYTES));
    bxi_gpu_map_put(held);
    gpu_post(LAST);
    while (gpu_counters().maps > 0) {
        (void)bxi_gpu_poll(gpu);
        sched_yield();
    }
    GPU_EQ(mapped, 0);
    GPU_EQ(reserved, 0);
    gpu_end();
}

GPU_PAIR(gpu_vmm, leaves_nothing_where_a_call_of_the_driver_fails, 60, GPU_FAKE, lends_a_segment,
         maps_where_the_driver_fails);

/* Except the first slab, which was made when the device was opened. */
static void check_nothing_is_left(int fds, uint64_t used)
{
    GPU_EQ(imported, 0);
    GPU_EQ(mapped, 1);
    GPU_EQ(reserved, 1);
    GPU_EQ(gpu_open_fds(), fds);
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
    range.address = segment();
    replace_calls();
    mapped = reserved = 1;
    before = gpu_open_fds();
    used = gpu_used(0);
    for (int step = RESERVE; step <= EXPORT; step++) {
        failing = (enum step)step;
        left = 0;
        GPU_CHECK(bxi_gpu_alloc(gpu_device, 4 * GPU_MIB, &block) < 0);
        check_nothing_is_left(before, used);
    }
    for (int step = EXPORT; step < STEPS; step++)
        for (int call = 0; call < CHUNKS; call++) {
            failing = (enum step)step;
            left = call;
            GPU_CHECK(bxi_gpu_wrap(gpu, &range, &block) < 0);
            check_nothing_is_left(before, used);
        }
    failing = STEPS;
    GPU_EQ(bxi_gpu_wrap(gpu, &range, &block), 0);
    GPU_EQ(imported, CHUNKS);           /* handles of foreign memory are kept */
    bxi_gpu_free(block);
    GPU_EQ(bxi_gpu_alloc(gpu_device, 4 * GPU_MIB, &block), 0);
    bxi_gpu_free(block);
    gpu_end();
    GPU_EQ(imported, 0);
    GPU_EQ(mapped, 0);
    GPU_EQ(reserved, 0);
}

/* ---- Foreign memory that is held when its owner closes --------------------------------------- */

/* Its program would use the memory again after freed. */
static void closes_while_it_is_read(void)
{
    gpu_start_beside(0, 1);
    (void)lend_segment(segment());
    gpu_post(LENT);
    gpu_await(HELD, 1);
    gpu_end();
    GPU_EQ(bxi_load_acquire(&freed_count), 0);
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
    (void)lend_segment(segment());
    gpu_post(LENT);
    gpu_await(HELD, 1);
    gpu_end();
    GPU_EQ(bxi_load_acquire(&freed_count), 1);
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
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_getrandom, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { .len = 4, .filter = code };
    struct stat before, after;

    GPU_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
        _exit(0);                       /* this kernel takes no filter */
    GPU_EQ(dup2(memfd_create("standard input", 0), 0), 0);
    GPU_EQ(fstat(0, &before), 0);
    gpu_start(0);
    GPU_CHECK(!gpu_device->exports_fds);
    GPU_EQ(fstat(0, &after), 0);
    GPU_EQ(after.st_ino, before.st_ino);
    gpu_end();
}

/* SPDX-License-Identifier: MIT */
/*
 * gpu/: blocks and slabs of one process, the points that a block waits for, and foreign memory.
 */
#include "fake_library.h"
#include "gpu_fixture.h"

#include <malloc.h>

#define MANY 64

/* ---- The heap, without any device -------------------------------------------------------------- */

TestSuite(gpu_heap, .timeout = 120);

Test(gpu_heap, hands_out_blocks_that_do_not_overlap_and_joins_them_again)
{
    struct bxi_gpu_heap heap = { 0 };
    struct bxi_gpu_chunk *chunk[MANY] = { 0 };
    struct bxi_gpu_chunk *whole = bxi_gpu_heap_add(&heap, 7, 16 * GPU_MIB);
    uint64_t seed = 1;

    for (int turn = 0; turn < 20000; turn++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;

        struct bxi_gpu_chunk **at = &chunk[seed >> 33 & (MANY - 1)];
        uint64_t bytes = BXI_GPU_ALIGN * (1 + (seed >> 40) % 2000);

        if (*at != NULL) {
            (void)bxi_gpu_heap_give(&heap, *at);
            *at = NULL;
            continue;
        }
        *at = bxi_gpu_heap_take(&heap, bytes);
        if (*at == NULL)
            continue;
        cr_assert_eq((*at)->bytes, bytes);
        cr_assert_eq((*at)->slab, 7);
        cr_assert_leq((*at)->offset + bytes, 16 * GPU_MIB);
        for (int i = 0; i < MANY; i++)
            cr_assert(&chunk[i] == at || chunk[i] == NULL || chunk[i]->offset + chunk[i]->bytes <= (*at)->offset ||
                      (*at)->offset + bytes <= chunk[i]->offset);
    }
    for (int i = 0; i < MANY; i++)
        if (chunk[i] != NULL)
            whole = bxi_gpu_heap_give(&heap, chunk[i]);
    cr_assert_eq(whole->bytes, 16 * GPU_MIB);
    cr_assert_eq(whole->offset, 0);
    cr_assert(whole->prev == NULL && whole->next == NULL);
    bxi_gpu_heap_remove(&heap, whole);
    cr_assert_null(bxi_gpu_heap_take(&heap, BXI_GPU_ALIGN));
}

Test(gpu_heap, finds_a_chunk_that_is_just_large_enough)
{
    struct bxi_gpu_heap heap = { 0 };

    for (uint64_t units = 1; units < 300; units++) {
        struct bxi_gpu_chunk *chunk = bxi_gpu_heap_add(&heap, 0, units * BXI_GPU_ALIGN);

        cr_assert_null(bxi_gpu_heap_take(&heap, (units + 1) * BXI_GPU_ALIGN));
        cr_assert_eq(bxi_gpu_heap_take(&heap, units * BXI_GPU_ALIGN), chunk);
        cr_assert_eq(bxi_gpu_heap_give(&heap, chunk), chunk);
        bxi_gpu_heap_remove(&heap, chunk);
    }
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

static void start_without_words(int rank)
{
    gpu_order = BXI_GPU_EVENTS;
    gpu_start(rank);
}

GPU_ALONE(gpu_slab, hands_out_blocks_of_one_slab, 60, GPU_ANY)
{
    struct bxi_gpu_block *block[8];
    struct bxi_gpu_ref ref;

    start_without_words(0);
    for (int i = 0; i < 8; i++) {
        block[i] = gpu_block(100000);
        GPU_EQ(block[i]->address % BXI_GPU_ALIGN, 0);
        GPU_EQ(block[i]->slab, block[0]->slab);
        gpu_fill(gpu_lane, block[i]->address, (unsigned char)(i + 1), 100000);
    }
    for (int i = 0; i < 8; i++)
        GPU_CHECK(gpu_holds(gpu_lane, block[i]->address, (unsigned char)(i + 1), 100000));
    GPU_EQ(bxi_gpu_ref(block[3], 10, 90, &ref), 0);
    GPU_EQ(ref.offset, block[3]->offset + 10);
    GPU_EQ(bxi_gpu_ref(block[3], 10, 99991, &ref), -EINVAL);
    GPU_EQ(bxi_gpu_ref(block[3], UINT64_MAX, 2, &ref), -EINVAL);
    GPU_EQ(gpu_counters().block_bytes, 8 * (100000 + 256 - 100000 % 256));
    for (int i = 0; i < 8; i++)
        bxi_gpu_free(block[i]);
    bxi_gpu_free(NULL);
    GPU_EQ(gpu_counters().block_bytes, 0);
    GPU_EQ(gpu_counters().slabs, 1);
    gpu_end();
}

GPU_ALONE(gpu_slab, makes_a_slab_as_large_as_a_block_needs_and_gives_slabs_back, 60, GPU_ANY)
{
    struct bxi_gpu_block *small, *large;
    uint64_t used;

    start_without_words(0);
    used = gpu_used(0);
    small = gpu_block(1);
    large = gpu_block(5 * GPU_MIB + 1);
    GPU_CHECK(large->slab != small->slab);
    GPU_EQ(gpu_counters().slab_bytes, 2 * GPU_MIB + 6 * GPU_MIB);
    gpu_compare_used(0, used + 6 * GPU_MIB, used + 6 * GPU_MIB);
    bxi_gpu_free(large);
    GPU_EQ(gpu_counters().slabs_retired, 0);    /* a spare is kept */
    bxi_gpu_free(small);
    gpu_poll_until_nothing_is_left();           /* one of two retires */
    GPU_EQ(gpu_counters().slabs, 1);
    GPU_EQ(bxi_gpu_trim(gpu_device), 1);
    gpu_poll_until_nothing_is_left();
    GPU_EQ(gpu_counters().slabs, 0);
    gpu_compare_used(0, used - 2 * GPU_MIB, used - 2 * GPU_MIB);
    gpu_end();
}

GPU_ALONE(gpu_slab, returns_an_error_when_the_device_is_full, 60, GPU_FAKE)
{
    struct bxi_gpu_block *block = NULL;

    start_without_words(0);
    GPU_EQ(bxi_gpu_alloc(gpu_device, 4096 * GPU_MIB, &block), -ENOMEM);
    GPU_SAYS("no room for 4294967296 bytes");
    GPU_EQ(bxi_gpu_alloc(gpu_device, UINT64_MAX, &block), -ENOMEM);
    GPU_CHECK(block == NULL);
    bxi_gpu_free(gpu_block(1));
    gpu_end();
}

#define TURNS 40
#define LARGE (65 * GPU_MIB)

enum { LENT, READ, ENDED };

/* Never polls: its fifteen slabs fill the device; all but one are empty, and open in another process for a while. */
static void lends_and_drops(void)
{
    gpu_start_beside(0, 1);
    for (uint32_t turn = 1; turn <= TURNS; turn++) {
        struct bxi_gpu_block *block = NULL;

        GPU_EQ(bxi_gpu_alloc(gpu_device, LARGE, &block), 0);
        GPU_EQ(bxi_gpu_ref(block, 0, 1, &gpu_shared->ref[0]), 0);
        gpu_post(LENT);
        gpu_await(READ, turn);
        bxi_gpu_free(block);
    }
    gpu_end_together(ENDED);
}

static void reads_and_polls(void)
{
    gpu_start_beside(1, 0);
    for (uint32_t turn = 1; turn <= TURNS; turn++) {
        struct bxi_gpu_map *map;

        while (bxi_load_acquire(&gpu_shared->gate[LENT]) < turn) {
            (void)bxi_gpu_poll(gpu);
            sched_yield();
        }
        (void)gpu_borrow(gpu_peer[0], &gpu_shared->ref[0], &map);
        bxi_gpu_map_put(map);
        gpu_post(READ);
    }
    gpu_end_together(ENDED);
}

GPU_PAIR(gpu_slab, waits_for_slabs_that_are_being_freed_before_it_fails_for_lack_of_room, 60, GPU_FAKE, lends_and_drops,
         reads_and_polls);

GPU_ALONE(gpu_slab, retires_an_empty_slab_that_is_too_small_where_there_is_no_room, 60, GPU_FAKE)
{
    struct bxi_gpu_block *small, *large;

    start_without_words(0);
    small = gpu_block(1);
    bxi_gpu_free(gpu_block(500 * GPU_MIB));
    GPU_EQ(gpu_counters().slabs, 2);            /* the spare is kept */
    large = gpu_block(600 * GPU_MIB);
    while (gpu_counters().slabs != 2)           /* its memory is free before the counter changes */
        sched_yield();
    bxi_gpu_free(large);
    bxi_gpu_free(small);
    gpu_end();
}

static unsigned (*alloc)(unsigned long long *address, size_t bytes);

/* The spare is freed between the driver's refusal and its return; the first one, at which it is not yet retired, takes
 * 100 ms. */
static unsigned refuses_slowly(unsigned long long *address, size_t bytes)
{
    uint64_t freed = gpu_counters().slabs_retired;
    unsigned result = alloc(address, bytes);

    for (int i = 0; result != CUDA_SUCCESS && i < 100 && gpu_counters().slabs_retired == freed; i++)
        usleep(1000);
    return result;
}

GPU_ALONE(gpu_slab, sees_that_a_slab_was_freed_while_the_driver_refused, 60,
          (setenv("FAKE_CUDA_NO_VMM", "1", 1), GPU_FAKE))
{
    start_without_words(0);
    alloc = gpu->cu.cuMemAlloc_v2;
    gpu->cu.cuMemAlloc_v2 = refuses_slowly;
    bxi_gpu_free(gpu_block(500 * GPU_MIB));
    bxi_gpu_free(gpu_block(600 * GPU_MIB));
    gpu_end();
}

#define LEFT 4000

static size_t allocated_bytes(void)
{
    return mallinfo2().uordblks;
}

static void leaves_blocks(void)
{
    start_without_words(0);
    for (int i = 0; i < LEFT; i++)
        (void)gpu_block(BXI_GPU_ALIGN);
    gpu_end();
}

GPU_ALONE(gpu_slab, frees_the_records_of_blocks_that_are_left, 60, GPU_FAKE)
{
    size_t bytes;

    leaves_blocks();
    bytes = allocated_bytes();
    leaves_blocks();
    GPU_CHECK(allocated_bytes() < bytes + LEFT * sizeof(struct bxi_gpu_block_inside) / 2);
}

/* ---- Foreign memory -------------------------------------------------------------------------- */

static uint64_t driver_alloc(uint64_t bytes)
{
    unsigned long long address = 0;

    GPU_EQ(bxi_gpu_enter(gpu_device), 0);
    GPU_EQ(gpu->cu.cuMemAlloc_v2(&address, bytes), CUDA_SUCCESS);
    bxi_gpu_leave(gpu_device);
    return address;
}

static void driver_free(uint64_t address)
{
    GPU_EQ(bxi_gpu_enter(gpu_device), 0);
    GPU_EQ(gpu->cu.cuMemFree_v2(address), CUDA_SUCCESS);
    bxi_gpu_leave(gpu_device);
}

enum { WRAPPED, MAPPED, LAST };

static int wrap(uint64_t address, uint64_t bytes)
{
    struct bxi_gpu_block *block = NULL;
    int rc = bxi_gpu_wrap(gpu, &(struct bxi_gpu_foreign){ .address = address, .bytes = bytes }, &block);

    GPU_CHECK((block != NULL) == (rc == 0));
    bxi_gpu_free(block);
    return rc;
}

enum { ONCE, TWICE };

static void wraps_again(void)
{
    struct bxi_gpu_block *block[2] = { NULL };
    uint64_t memory;

    gpu_start_beside(0, 1);
    memory = driver_alloc(2 * GPU_MIB);
    for (int i = ONCE; i <= TWICE; i++) {
        GPU_EQ(bxi_gpu_wrap(gpu, &(struct bxi_gpu_foreign){ .address = memory, .bytes = 64, .freed = gpu_count_freed },
                            &block[i]), 0);
        GPU_EQ(bxi_gpu_ref(block[i], 0, 64, &gpu_shared->ref[i]), 0);
        gpu_post(WRAPPED);
        gpu_await(MAPPED, (uint32_t)i + 1);
        bxi_gpu_free(block[i]);
        for (int j = 0; j < 100; j++)
            GPU_CHECK(bxi_gpu_poll(gpu) > 0);
        GPU_CHECK(bxi_load_acquire(&gpu_freed) <= (uint32_t)i);        /* the borrower has this one open */
    }
    GPU_CHECK(gpu_shared->ref[TWICE].slab != gpu_shared->ref[ONCE].slab);
    for (int i = 0; i < 2 * BXI_GPU_SLABS; i++)         /* faster than rows become free */
        GPU_EQ(wrap(memory, 64), 0);
    gpu_post(LAST);
    gpu_await(LAST, 2);
    while (bxi_gpu_poll(gpu) > 0 || bxi_load_acquire(&gpu_freed) < 2)
        sched_yield();
    driver_free(memory);
    gpu_end();
}

static void maps_again(void)
{
    struct bxi_gpu_map *map;
    uint64_t address;

    gpu_start_beside(1, 0);
    for (int i = ONCE; i <= TWICE; i++) {
        gpu_await(WRAPPED, (uint32_t)i + 1);
        address = gpu_borrow(gpu_peer[0], &gpu_shared->ref[i], &map);   /* the second time without a poll between */
        GPU_EQ(wrap(address, 1), -ESTALE);
        bxi_gpu_map_put(map);
        gpu_post(MAPPED);
    }
    gpu_end_together(LAST);
}

GPU_PAIR(gpu_slab, lends_foreign_memory_again_while_an_earlier_map_of_it_is_open, 60,
         (fake_skip_under("FAKE_CUDA_OPEN_205", "foreign memory is lent by its handle"), GPU_ANY), wraps_again,
         maps_again);

GPU_ALONE(gpu_slab, distinguishes_a_new_allocation_from_an_old_one_at_the_same_address, 60, GPU_FAKE)
{
    struct bxi_gpu_block *before = NULL, *after = NULL;
    uint64_t memory;

    gpu_start(0);
    memory = driver_alloc(2 * GPU_MIB);
    GPU_EQ(bxi_gpu_wrap(gpu, &(struct bxi_gpu_foreign){ .address = memory, .bytes = 1 }, &before), 0);
    driver_free(memory);                        /* not allowed, but it happens */
    GPU_EQ(driver_alloc(2 * GPU_MIB), memory);
    GPU_EQ(bxi_gpu_wrap(gpu, &(struct bxi_gpu_foreign){ .address = memory, .bytes = 1 }, &after), 0);
    GPU_CHECK(after->slab != before->slab || after->generation != before->generation);
    bxi_gpu_free(before);
    bxi_gpu_free(after);
    driver_free(memory);
    gpu_end();
}

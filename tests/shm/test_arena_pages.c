/* SPDX-License-Identifier: MIT */
/*
 * shm/arena_pages.c: which pages are allocated, when they are returned, and what happens if /dev/shm is full.
 */
#include "arena_fixture.h"
#include "fallocate.h"
#include "shm/arena_pages.h"

#include <jemalloc/jemalloc.h>

/* ---- Pages: what stays warm, and what goes ----------------------------------------------------- */

static int allocations(void)
{
    return (int)bxi_load_relaxed(&fake_fallocate.allocations);
}

static int punches(void)
{
    return (int)bxi_load_relaxed(&fake_fallocate.punches);
}

/* 2 KB blocks are one class, 9 MB ones another: each comes back last in, first out. */
Test(arena, gives_out_the_block_that_was_freed_last, .init = create_small, .fini = release)
{
    void *small = alloc(2048);
    void *other = alloc(2048);
    void *large = alloc(9 * MIB);

    bxi_arena_free(arena, other);
    bxi_arena_free(arena, large);
    bxi_arena_free(arena, small);
    cr_assert_eq(alloc(9 * MIB - 1), large);
    cr_assert_eq(alloc(2000), small);
    cr_assert_eq(alloc(1900), other);
}

Test(arena, punches_fragments_but_only_above_the_high_water_mark, .init = create_large, .fini = release)
{
    /* Holes of 1 MiB between used blocks, too small for a block of 2 MiB. */
    alloc_many(0, 1, 128, MIB);
    free_many(0, 2, 64);
    cr_assert_eq(stats().committed_bytes, pages_bytes());
    uint64_t most = 0;
    for (int i = 0; i < 64; i++) {
        blocks[i * 2] = alloc(i < 32 ? 2 * MIB : 64);
        most = pages_bytes() > most ? pages_bytes() : most;
        cr_assert_geq(pages_bytes(), stats().high_water_bytes);
    }
    /* 128 are used before and after, 64 more are holes; the slack allows 48 of these. */
    cr_assert_leq(most, (128 + 48 + 4) * MIB);
    cr_assert_leq(pages_bytes(), (128 + 48 + 4) * MIB);
    cr_assert_lt(pages_bytes(), most, "nothing was punched");
    cr_assert_eq(stats().committed_bytes, pages_bytes());
    /* The blocks between the holes are still there. */
    for (int i = 1; i < 128; i += 2)
        memset(blocks[i], i, MIB);
    cr_assert_eq(stats().committed_bytes, pages_bytes());
}

/* As workers do that keep and drop tensors of 64 bytes to 512 KiB, as many of each power of two: committed bytes stay
 * within what the head of arena.c promises, and no block is written to by another one. */
Test(arena, does_not_grow_whatever_is_freed_first, .init = create_large, .fini = release)
{
    static size_t sizes[BLOCKS];
    uint64_t random = 1;

    for (int turn = 0; turn < 300000; turn++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;

        size_t i = random >> 56, least = (size_t)64 << (random >> 40) % 13;
        unsigned char *block = blocks[i];
        struct bxi_arena_stats now = stats();

        cr_assert_leq(now.committed_bytes, now.high_water_bytes / 4 * 5 + 17 * MIB, "turn %d", turn);
        cr_assert(block == NULL || (block[0] == i && block[sizes[i] - 1] == i), "turn %d", turn);
        bxi_arena_free(arena, block);
        sizes[i] = least + (random >> 20) % least;
        blocks[i] = block = alloc(sizes[i]);
        block[0] = block[sizes[i] - 1] = (unsigned char)i;
    }
    free_many(0, 1, BLOCKS);
    cr_assert_eq(stats().used_bytes, 0);
    cr_assert_eq(stats().committed_bytes, pages_bytes());
    bxi_arena_trim(arena);
    cr_assert_eq(pages_bytes(), 0);
}

Test(arena, keeps_pages_below_the_high_water_mark_when_jemalloc_decommits_them, .init = create_small,
     .fini = release)
{
    void *block = alloc(20 * MIB);

    memset(block, 0xff, 20 * MIB);
    bxi_arena_free(arena, block);
    /* Fails because the arena is too small; before that jemalloc purges all it has. */
    cr_assert_eq(bxi_arena_alloc(arena, 60 * MIB, &blocks[0]), -ENOMEM);
    cr_assert_geq(pages_bytes(), 20 * MIB);
    cr_assert_eq(stats().committed_bytes, pages_bytes());
    int calls = allocations();
    uint64_t pages = pages_bytes();
    block = alloc(20 * MIB);
    cr_assert_leq(pages_bytes(), pages + 64 * KIB);
    cr_assert_leq(allocations(), calls + 2, "the pages were allocated anew");
    cr_assert(is_all(block, 0, 20 * MIB), "the commit hook promises zeroes");
    cr_assert_eq(stats().committed_bytes, pages_bytes());
}

/* MADV_DONTNEED does not zero shared pages; a hole that jemalloc does not know of would raise SIGBUS. */
Test(arena, refuses_to_purge_an_extent_and_lets_it_be_cut_anywhere, .init = create_small, .fini = release)
{
    void *block = alloc(MIB);
    extent_hooks_t *hooks = NULL;
    unsigned index = 0;
    size_t bytes = sizeof(index);
    char what[40];

    memset(block, 6, MIB);
    cr_assert_eq(bxi_je_mallctl("arenas.lookup", &index, &bytes, &block, sizeof(block)), 0);
    snprintf(what, sizeof(what), "arena.%u.extent_hooks", index);
    bytes = sizeof(hooks);
    cr_assert_eq(bxi_je_mallctl(what, &hooks, &bytes, NULL, 0), 0);
    void *extent = (void *)((uintptr_t)block & ~(uintptr_t)(BXI_PAGE - 1));
    cr_assert(hooks->purge_lazy == NULL && hooks->purge_forced == NULL && hooks->dalloc == NULL);
    cr_assert_not(hooks->split(hooks, extent, MIB, MIB / 2, MIB / 2, true, index));
    cr_assert_not(hooks->merge(hooks, extent, MIB / 2, (char *)extent + MIB / 2, MIB / 2, true, index));
    cr_assert(is_all(block, 6, MIB));
}

Test(arena, survives_a_purge_of_all_arenas_by_a_stranger, .init = create_small, .fini = release)
{
    char purge[32];

    alloc_many(0, 1, 10, MIB);
    for (int i = 0; i < 10; i++)
        memset(blocks[i], 0x77, MIB);
    free_many(0, 2, 5);
    snprintf(purge, sizeof(purge), "arena.%u.purge", (unsigned)MALLCTL_ARENAS_ALL);
    cr_assert_eq(bxi_je_mallctl(purge, NULL, NULL, NULL, 0), 0);
    for (int i = 1; i < 10; i += 2)
        cr_assert(is_all(blocks[i], 0x77, MIB));
    cr_assert_geq(pages_bytes(), stats().high_water_bytes);
    alloc_many(0, 2, 5, MIB);
    cr_assert_eq(stats().used_bytes, 10 * MIB);
}

Test(arena, gives_back_all_that_is_unused_when_it_is_trimmed, .init = create_large, .fini = release)
{
    alloc_many(0, 1, 40, MIB);
    alloc_many(40, 1, 100, 3000);
    memset(blocks[7], 9, MIB);
    for (int i = 0; i < 140; i++)
        if (i != 7)
            bxi_arena_free(arena, blocks[i]);
    cr_assert_geq(pages_bytes(), 40 * MIB);
    cr_assert_geq(stats().high_water_bytes, 40 * MIB);
    bxi_arena_trim(arena);
    cr_assert_eq(stats().used_bytes, MIB);
    cr_assert_eq(stats().high_water_bytes, MIB);
    cr_assert_leq(pages_bytes(), MIB + 64 * KIB);
    cr_assert_eq(stats().committed_bytes, pages_bytes());
    cr_assert(is_all(blocks[7], 9, MIB));
    bxi_arena_free(arena, blocks[7]);
    bxi_arena_trim(arena);
    cr_assert_eq(pages_bytes(), 0);
    cr_assert_eq(stats().committed_bytes, 0);
    cr_assert(is_all(alloc(10 * MIB), 0, 10 * MIB));
}

Test(arena, keeps_pages_that_cannot_be_punched, .init = create_small, .fini = release)
{
    bxi_arena_free(arena, alloc(10 * MIB));
    uint64_t pages = pages_bytes();
    fake_fallocate.fail_punches_with = EOPNOTSUPP;
    bxi_arena_trim(arena);
    cr_assert_gt(punches(), 0);
    cr_assert_eq(pages_bytes(), pages);
    cr_assert_eq(stats().committed_bytes, pages);
    fake_fallocate.fail_punches_with = 0;
    bxi_arena_trim(arena);
    cr_assert_eq(pages_bytes(), 0);
    cr_assert_eq(stats().committed_bytes, 0);
}

/* ---- No more room ---------------------------------------------------------------------------- */

Test(arena, answers_enomem_when_its_own_size_is_used_up, .init = create_small, .fini = release)
{
    void *untouched = &untouched;
    int error = 0;

    int count = fill(MIB, &error);
    cr_assert_eq(error, -ENOMEM);
    cr_assert_geq(count, 55);
    cr_assert_leq(count, 64);
    cr_assert_eq(bxi_arena_alloc(arena, MIB, &untouched), -ENOMEM);
    cr_assert_eq(bxi_arena_alloc(arena, 64 * MIB + 1, &untouched), -ENOMEM);
    cr_assert_eq(bxi_arena_alloc(arena, SIZE_MAX, &untouched), -ENOMEM);
    cr_assert_eq(untouched, (void *)&untouched);
    cr_assert_leq(pages_bytes(), 64 * MIB);
    bxi_arena_free(arena, blocks[count / 2]);
    cr_assert_eq(alloc(MIB), blocks[count / 2]);
}

/* jemalloc's one extent has a size class, 80 MiB here; its part beyond the object must not be used. */
Test(arena, of_an_odd_size_ends_where_its_object_ends, .fini = release)
{
    int error = 0;

    create(66 * MIB);
    int count = fill(MIB, &error);
    cr_assert_eq(error, -ENOMEM);
    cr_assert_geq(count, 60);
    for (int i = 0; i < count; i++) {
        cr_assert_leq((unsigned char *)blocks[i] + MIB, bxi_arena_base(arena) + 66 * MIB);
        memset(blocks[i], 1, MIB);
    }
    cr_assert_leq(pages_bytes(), 66 * MIB);
    free_many(0, 1, count);
    memset(alloc(56 * MIB), 1, 56 * MIB);
}

/* Free neighbours of any sizes must merge, and split again. */
Test(arena, makes_one_large_block_of_many_small_ones_and_back, .init = create_small, .fini = release)
{
    int error = 0;

    for (int round = 0; round < 4; round++) {
        size_t bytes = round % 2 == 0 ? MIB : 300 * KIB;
        int count = fill(bytes, &error);
        for (int i = 0; i < count; i++)
            memset(blocks[i], 1, bytes);
        free_many(0, 1, count);
        void *large = alloc(48 * MIB);
        memset(large, 2, 48 * MIB);
        bxi_arena_free(arena, large);
    }
    cr_assert_eq(stats().used_bytes, 0);
}

Test(arena, tells_a_full_dev_shm_from_other_reasons, .init = create_small, .fini = release)
{
    alloc(64);
    fake_fallocate.fail_with = ENOSPC;
    cr_assert_eq(bxi_arena_alloc(arena, MIB, &blocks[0]), -ENOSPC);
    fake_fallocate.fail_with = ENOMEM;
    cr_assert_eq(bxi_arena_alloc(arena, MIB, &blocks[0]), -ENOMEM);
    fake_fallocate.fail_with = 0;
    fake_fallocate.interruptions = 3;
    cr_assert_eq(bxi_arena_alloc(arena, MIB, &blocks[0]), 0);
    cr_assert_eq(fake_fallocate.interruptions, 0);
    cr_assert_eq(stats().committed_bytes, pages_bytes());
}

/* 40 MiB are allocated in three pieces; the third fails, twice because alloc retries. */
Test(arena, takes_back_half_an_allocation_that_failed, .init = create_small, .fini = release)
{
    alloc(64);
    uint64_t pages = pages_bytes();
    fake_fallocate.fail_with = ENOSPC;
    fake_fallocate.fail_after = 2;
    cr_assert_eq(bxi_arena_alloc(arena, 40 * MIB, &blocks[0]), -ENOSPC);
    cr_assert_geq(allocations(), 3);
    cr_assert_eq(pages_bytes(), pages);
    cr_assert_eq(stats().committed_bytes, pages);
    fake_fallocate.fail_with = 0;
    blocks[0] = alloc(40 * MIB);
    memset(blocks[0], 1, 40 * MIB);
    cr_assert_eq(stats().committed_bytes, pages_bytes());
}

static int fill_dev_shm(void)
{
    int error = 0;

    if (!mount_small("size=16m,mode=1777"))
        return CHILD_SKIPS;
    if (bxi_arena_create(name, 64 * GIB, NULL, &arena) != 0)
        return 1;
    int count = fill(MIB, &error);
    if (error != -ENOSPC || count < 12 || count > 16)
        return 2;
    for (int i = 0; i < count; i++)
        memset(blocks[i], 1, MIB);          /* no SIGBUS: the pages are allocated */
    if (bxi_arena_alloc(arena, MIB, &blocks[count]) != -ENOSPC)
        return 3;
    free_many(0, 1, count);
    /* Pages kept for small blocks must make room for a large one. */
    if (bxi_arena_alloc(arena, 12 * MIB, &blocks[0]) != 0)
        return 4;
    memset(blocks[0], 2, 12 * MIB);
    bxi_arena_free(arena, blocks[0]);
    bxi_arena_trim(arena);
    if (pages_bytes() != 0)
        return 5;
    /* So must pages kept in holes that are too small for it. */
    alloc_many(0, 1, 14, MIB);
    free_many(0, 2, 7);
    if (bxi_arena_alloc(arena, 5 * MIB, &blocks[0]) != 0)
        return 6;
    memset(blocks[0], 3, 5 * MIB);
    return stats().committed_bytes == pages_bytes() ? 0 : 7;
}

Test(arena, answers_enospc_when_dev_shm_is_full_and_goes_on, .init = make_name)
{
    expect_in_child(fill_dev_shm, "a mount namespace is unavailable here");
}

/* ---- Signals ----------------------------------------------------------------------------------- */

/* A profiler's timer interrupts every call that takes longer than its period. */
Test(arena, allocates_in_pieces_where_signals_undo_larger_ones, .init = create_small, .fini = release,
     .timeout = 60)
{
    alloc(64);

    uint64_t before = pages_bytes();
    int calls = allocations();

    fake_fallocate.interrupts_above = 5 * BXI_PAGE;
    memset(alloc(5 * MIB), 1, 5 * MIB);
    cr_assert_gt(allocations(), calls + (int)(MIB / BXI_PAGE));
    cr_assert_geq(pages_bytes(), before + 5 * MIB);
    cr_assert_eq(stats().committed_bytes, pages_bytes(), "%zu and %zu", (size_t)stats().committed_bytes,
                 (size_t)pages_bytes());
}

Test(arena, gives_pages_back_however_many_signals_come, .init = create_small, .fini = release, .timeout = 60)
{
    bxi_arena_free(arena, alloc(10 * MIB));
    fake_fallocate.interruptions = 1000;
    bxi_arena_trim(arena);
    cr_assert_eq(fake_fallocate.interruptions, 0);
    cr_assert_leq(pages_bytes(), 64 * KIB);
    cr_assert_eq(stats().committed_bytes, pages_bytes());
}

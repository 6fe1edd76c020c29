/* SPDX-License-Identifier: MIT */
/*
 * shm/arena.c and shm/arena_view.c: the object, the places of blocks and of jemalloc's records, and what happens after
 * a fork, a truncation and the end of the job.
 */
#include "arena_fixture.h"

#include <jemalloc/jemalloc.h>

static struct bxi_arena_view *view;

/* ---- The object ------------------------------------------------------------------------------ */

TestSuite(arena, .timeout = 120);

Test(arena, takes_no_page_before_its_first_block, .init = create_large, .fini = release)
{
    struct stat status;

    cr_assert_eq(fstat(bxi_arena_fd(arena), &status), 0);
    cr_assert_eq((uint64_t)status.st_size, 64 * GIB);
    cr_assert_eq(status.st_mode & 07777, 0600);
    cr_assert_eq(pages_bytes(), 0);
    cr_assert_eq(bxi_arena_bytes(arena), 64 * GIB);
    cr_assert_eq(stats().size_bytes, 64 * GIB);
    cr_assert_eq(stats().committed_bytes, 0);
    alloc(1);
    cr_assert_gt(pages_bytes(), 0);
    cr_assert_leq(pages_bytes(), 64 * KIB);
}

Test(arena, has_a_size_that_is_a_multiple_of_2_mib, .init = make_name, .fini = release)
{
    cr_assert_eq(bxi_arena_create(name, 0, NULL, &arena), -EINVAL);
    cr_assert_eq(bxi_arena_create(name, UINT64_MAX, NULL, &arena), -EFBIG);
    cr_assert_not(is_in_shm(name));
    cr_assert_eq(bxi_arena_create(name, 2 * MIB + 1, NULL, &arena), 0);
    cr_assert_eq(bxi_arena_bytes(arena), 4 * MIB);
}

Test(arena, is_not_created_over_another_of_its_name, .init = create_small, .fini = release)
{
    struct bxi_arena *second = NULL;

    cr_assert_eq(bxi_arena_create(name, MIB, NULL, &second), -EEXIST);
    cr_assert_null(second);
    cr_assert(is_in_shm(name));
}

static int create_beyond_the_file_limit(void)
{
    struct rlimit limit = { .rlim_cur = 8 * MIB, .rlim_max = 8 * MIB };

    if (setrlimit(RLIMIT_FSIZE, &limit) < 0)
        return 1;
    if (bxi_arena_create(name, 16 * MIB, NULL, &arena) != -EFBIG)
        return 2;
    if (is_in_shm(name))
        return 3;
    return bxi_arena_create(name, 8 * MIB, NULL, &arena) == 0 ? 0 : 4;
}

Test(arena, larger_than_a_file_may_be_fails_and_leaves_nothing, .init = make_name, .fini = release)
{
    cr_assert_eq(in_child(create_beyond_the_file_limit), 0);
}

static int create_and_die(void)
{
    void *block;

    if (bxi_arena_create(name, 16 * MIB, NULL, &arena) != 0 || bxi_arena_alloc(arena, MIB, &block) != 0)
        return 1;
    raise(SIGKILL);
    return 2;
}

Test(arena, is_reaped_when_its_owner_was_killed_and_not_before, .init = make_name, .fini = release)
{
    cr_assert_eq(in_child(create_and_die), 256 + SIGKILL);
    cr_assert(is_in_shm(name));
    cr_assert_eq(bxi_object_reap(job, INSTANCE), 1);
    cr_assert_not(is_in_shm(name));
    create(16 * MIB);
    cr_assert_eq(bxi_object_reap(job, INSTANCE), 0);
    cr_assert(is_in_shm(name));
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

Test(arena, aligns_every_block_and_counts_what_its_size_class_takes, .init = create_large, .fini = release)
{
    uint64_t used = 0;

    for (size_t bytes = 0; bytes < 40 * MIB; bytes += bytes / 7 + 1) {
        unsigned char *block = alloc(bytes);
        size_t is = bxi_je_sallocx(block, 0);
        cr_assert_eq((uintptr_t)block % BXI_ARENA_ALIGN, 0);
        cr_assert_geq(block, bxi_arena_base(arena));
        cr_assert_leq(block + is, bxi_arena_base(arena) + bxi_arena_bytes(arena));
        cr_assert_eq(is, bxi_je_nallocx(bytes == 0 ? 1 : bytes, MALLOCX_ALIGN(BXI_ARENA_ALIGN)), "%zu", bytes);
        cr_assert_geq(is, bytes);
        if (bytes >= 256)
            cr_assert_leq(is - bytes, is / 5 + 64, "%zu", bytes);
        used += is;
        cr_assert_eq(stats().used_bytes, used);
        cr_assert_geq(stats().committed_bytes, used);
    }
    cr_assert_eq(stats().high_water_bytes, used);
    cr_assert_eq(stats().committed_bytes, pages_bytes());
}

Test(arena, keeps_the_records_of_jemalloc_out_of_the_segment, .init = create_large, .fini = release)
{
    static unsigned char page[BXI_PAGE];

    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = alloc((size_t)37 << (i % 14));
    free_many(0, 2, BLOCKS / 2);
    alloc_many(0, 2, BLOCKS / 2, 5000);
    free_many(0, 1, BLOCKS);
    cr_assert_gt(pages_bytes(), MIB);
    /* No test wrote to a block, so nothing wrote to the object. */
    for (off_t at = 0; at < (off_t)(64 * MIB); at += BXI_PAGE) {
        cr_assert_eq(pread(bxi_arena_fd(arena), page, BXI_PAGE, at), (ssize_t)BXI_PAGE);
        cr_assert(is_all(page, 0, BXI_PAGE), "page at %ld", (long)at);
    }
}

static void *alloc_and_free_small(void *barrier)
{
    void *own[64];

    for (size_t i = 0; i < 64; i++)
        own[i] = alloc(256 + i);
    for (size_t i = 0; i < 64; i++)
        bxi_arena_free(arena, own[i]);
    pthread_barrier_wait(barrier);      /* freed */
    pthread_barrier_wait(barrier);      /* checked */
    return NULL;
}

/* In a cache of a living thread they would keep their pages, or jemalloc would put its next blocks there. */
Test(arena, leaves_no_block_in_a_cache_of_a_thread, .init = create_large, .fini = release)
{
    pthread_barrier_t barrier;
    pthread_t thread;

    pthread_barrier_init(&barrier, NULL, 2);
    cr_assert_eq(pthread_create(&thread, NULL, alloc_and_free_small, &barrier), 0);
    pthread_barrier_wait(&barrier);
    alloc_many(0, 1, BLOCKS, 256);
    free_many(0, 1, BLOCKS);
    bxi_arena_trim(arena);
    cr_assert_eq(pages_bytes(), 0);
    for (int i = 0; i < BLOCKS; i++) {
        unsigned char *private = bxi_je_mallocx(256, 0);
        cr_assert(private < bxi_arena_base(arena) || private >= bxi_arena_base(arena) + bxi_arena_bytes(arena));
        blocks[i] = private;
    }
    for (int i = 0; i < BLOCKS; i++)
        bxi_je_dallocx(blocks[i], 0);
    pthread_barrier_wait(&barrier);
    pthread_join(thread, NULL);
}

Test(arena, takes_a_null_for_nothing_to_free, .init = create_small, .fini = release)
{
    bxi_arena_free(arena, NULL);
    cr_assert_eq(stats().used_bytes, 0);
}

/* ---- Forks ----------------------------------------------------------------------------------- */

static int use_in_child(void)
{
    void *block = NULL;

    if (bxi_arena_alloc(arena, 64, &block) != -EPERM || block != NULL)
        return 1;
    bxi_arena_free(arena, blocks[0]);
    bxi_arena_trim(arena);
    bxi_arena_close(arena);
    bxi_arena_release(arena);
    if (stats().used_bytes != 0)
        return 2;
    if (!is_in_shm(name) || fcntl(bxi_arena_fd(arena), F_GETFD) >= 0)
        return 3;
    return 0;
}

static int reads_again(void)
{
    return is_all(blocks[0], 6, MIB / 2) ? 0 : 1;
}

/* Has the bytes as they were, and keeps what it writes to itself and its children. */
static int write_in_child(void)
{
    if (!is_all(blocks[0], 5, MIB))
        return 1;
    memset(blocks[0], 6, MIB / 2);
    return in_child(reads_again) == 0 && is_all(blocks[0], 6, MIB / 2) ? 0 : 2;
}

Test(arena, is_left_alone_by_a_forked_child, .init = create_small, .fini = release)
{
    blocks[0] = alloc(MIB);
    memset(blocks[0], 5, MIB);
    cr_assert_eq(in_child(use_in_child), 0);
    cr_assert(is_all(blocks[0], 5, MIB));
    cr_assert_eq(stats().used_bytes, MIB);
    alloc(MIB);
}

Test(arena, is_private_to_a_forked_child, .init = create_large, .fini = release)
{
    blocks[0] = alloc(MIB);
    memset(blocks[0], 5, MIB);
    expect_in_child(write_in_child, NULL);
    cr_assert(is_all(blocks[0], 5, MIB));
}

/* A tensor that is held beyond the job's end. */
Test(arena, is_shared_with_a_child_that_is_forked_when_it_is_closed, .init = create_large, .fini = release)
{
    blocks[0] = alloc(MIB);
    memset(blocks[0], 5, MIB);
    bxi_arena_close(arena);
    expect_in_child(write_in_child, NULL);
    cr_assert(is_all(blocks[0], 6, MIB / 2));
}

static void *wanted;                    /* address that a child maps before the library's handler runs */

static void map_first(void)
{
    if (wanted != NULL)
        wanted = mmap(wanted, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
}

__attribute__((constructor(101))) static void come_first(void)
{
    pthread_atfork(NULL, NULL, map_first);
}

static int has_what_came_first(void)
{
    return wanted == bxi_arena_base(arena) && is_all(wanted, 0, MIB) ? 0 : 1;
}

Test(arena, replaces_nothing_in_a_forked_child, .init = create_small, .fini = release)
{
    memset(alloc(16 * MIB), 5, 16 * MIB);
    wanted = (void *)(uintptr_t)bxi_arena_base(arena);
    expect_in_child(has_what_came_first, NULL);
    wanted = NULL;
}

/* ---- Views and truncation -------------------------------------------------------------------- */

Test(arena, shows_a_peer_what_its_owner_writes, .init = create_large, .fini = release)
{
    unsigned char *block = alloc(1000);

    cr_assert_eq(bxi_arena_attach(&view, bxi_arena_fd(arena), bxi_arena_bytes(arena)), 0);
    cr_assert_neq((const void *)view->base, (const void *)bxi_arena_base(arena));
    cr_assert_eq(view->bytes, 64 * GIB);
    block[999] = 42;
    cr_assert_eq((view->base + (block - bxi_arena_base(arena)))[999], 42);
    cr_assert_eq(bxi_arena_view_acquire(view), view);
    bxi_arena_view_release(view);
    cr_assert_eq((view->base + (block - bxi_arena_base(arena)))[999], 42);
    size_t offset = (size_t)(block - bxi_arena_base(arena));
    release();
    cr_assert_eq(view->base[offset + 999], 42, "it outlives its owner");
    bxi_arena_view_release(view);
}

static int passed_fd;                   /* as a peer gets it: the owner's own is closed in a child */

static int write_view(void)
{
    if (bxi_arena_attach(&view, passed_fd, bxi_arena_bytes(arena)) != 0)
        return 1;
    if (*(const volatile unsigned char *)view->base != 0)
        return 2;
    *(volatile unsigned char *)(uintptr_t)view->base = 1;
    return 3;
}

Test(arena, cannot_be_written_by_a_peer, .init = create_small, .fini = release)
{
    alloc(MIB);
    passed_fd = dup(bxi_arena_fd(arena));
    cr_assert_eq(in_child(write_view), 256 + SIGSEGV);
    close(passed_fd);
}

Test(arena, survives_its_truncation_and_says_so, .init = create_large, .fini = release)
{
    volatile unsigned char *block = alloc(MIB);

    block[0] = 9;
    cr_assert_eq(bxi_arena_attach(&view, bxi_arena_fd(arena), 64 * GIB), 0);
    cr_assert_eq(ftruncate(bxi_arena_fd(arena), 0), 0);
    cr_assert_not(bxi_arena_truncated(arena));
    const volatile unsigned char *seen = view->base + (block - bxi_arena_base(arena));
    cr_assert_eq(seen[0], 0);
    cr_assert_eq(bxi_load_relaxed(&view->truncated), 1);
    block[1] = 7;
    cr_assert_eq(block[1], 7);
    cr_assert(bxi_arena_truncated(arena));
    cr_assert_eq(bxi_arena_alloc(arena, MIB, &blocks[0]), -EIO);
    bxi_arena_free(arena, (void *)(uintptr_t)block);
    bxi_arena_trim(arena);
    bxi_arena_view_release(view);
}

/* ---- The end --------------------------------------------------------------------------------- */

Test(arena, lets_blocks_live_on_when_it_is_closed, .init = create_small, .fini = release)
{
    void *kept = alloc(5 * MIB);
    void *small = alloc(100);

    bxi_arena_free(arena, alloc(MIB));
    memset(kept, 3, 5 * MIB);
    int fd = bxi_arena_fd(arena);
    cr_assert_eq(bxi_arena_acquire(arena), arena);
    bxi_arena_close(arena);
    cr_assert_not(is_in_shm(name));
    cr_assert_eq(fcntl(fd, F_GETFD), -1);
    bxi_arena_close(arena);             /* a second close does nothing */
    bxi_arena_release(arena);           /* the job's */
    cr_assert_eq(bxi_arena_alloc(arena, 100, &blocks[0]), -ESHUTDOWN);
    cr_assert(is_all(kept, 3, 5 * MIB));
    memset(kept, 4, 5 * MIB);
    bxi_arena_free(arena, small);
    bxi_arena_trim(arena);
    cr_assert(is_all(kept, 4, 5 * MIB));
    cr_assert_eq(stats().used_bytes, 5 * MIB);
    bxi_arena_free(arena, kept);
    cr_assert_eq(stats().used_bytes, 0);
}

Test(arena, leaves_nothing_behind_when_the_last_reference_goes)
{
    for (int round = 0; round < 20; round++) {
        create_large();
        alloc(MIB);                     /* never freed */
        bxi_arena_free(arena, alloc(100));
        const unsigned char *base = bxi_arena_base(arena);
        int fd = bxi_arena_fd(arena);
        bxi_arena_release(arena);
        arena = NULL;
        cr_assert_not(is_in_shm(name));
        cr_assert_eq(fcntl(fd, F_GETFD), -1);
        cr_assert_eq(msync((void *)(uintptr_t)base, BXI_PAGE, MS_ASYNC), -1);
        cr_assert_eq(errno, ENOMEM, "it is still mapped");
    }
}

Test(arena, writes_its_figures_where_it_was_told_until_it_is_closed, .fini = release)
{
    static bxi_a64 used, committed, high_water;
    const struct bxi_arena_words words = { &used, &committed, &high_water };

    make_name();
    cr_assert_eq(bxi_arena_create(name, 64 * MIB, &words, &arena), 0);
    void *block = alloc(3 * MIB);
    cr_assert_eq(bxi_load_relaxed(&used), 3 * MIB);
    cr_assert_eq(bxi_load_relaxed(&high_water), 3 * MIB);
    cr_assert_eq(bxi_load_relaxed(&committed), pages_bytes());
    bxi_arena_free(arena, block);
    cr_assert_eq(bxi_load_relaxed(&used), 0);
    cr_assert_eq(bxi_load_relaxed(&high_water), 3 * MIB);
    bxi_arena_trim(arena);
    cr_assert_eq(bxi_load_relaxed(&committed), 0);
    cr_assert_eq(bxi_load_relaxed(&high_water), 0);
    block = alloc(2 * MIB);
    bxi_arena_close(arena);
    bxi_store_relaxed(&used, 77);
    bxi_arena_free(arena, block);
    cr_assert_eq(bxi_load_relaxed(&used), 77);
}

/* ---- Threads --------------------------------------------------------------------------------- */

#define THREADS 8
#define SLOTS 32
#define ROUNDS 3000

static _Atomic(unsigned char *) handed[SLOTS];  /* from the thread that made a block to the one that frees it */

/* The first bytes hold the size; all others repeat its low byte. */
static bool is_intact(const unsigned char *block)
{
    size_t bytes;

    memcpy(&bytes, block, sizeof(bytes));
    return bytes <= MIB && is_all(block + sizeof(bytes), (unsigned char)bytes, bytes - sizeof(bytes));
}

static void *churn(void *seed)
{
    uint32_t random = (uint32_t)(uintptr_t)seed;
    intptr_t broken = 0;

    for (int round = 0; round < ROUNDS; round++) {
        random = random * 1664525u + 1013904223u;
        size_t bytes = 16 + ((size_t)(random >> 8 & 0xff) << (random >> 16) % 10);
        void *block = NULL;
        if (bxi_arena_alloc(arena, bytes, &block) != 0) {
            broken++;
            continue;
        }
        memset(block, (unsigned char)bytes, bytes);
        memcpy(block, &bytes, sizeof(bytes));
        unsigned char *other = bxi_exchange(&handed[(random >> 24) % SLOTS], block);
        if (other != NULL && !is_intact(other))
            broken++;
        bxi_arena_free(arena, other);
        if (round % 500 == 499)
            bxi_arena_trim(arena);
    }
    return (void *)broken;
}

Test(arena, serves_many_threads_that_allocate_and_free_at_once, .init = create_large, .fini = release)
{
    pthread_t threads[THREADS];

    for (uintptr_t i = 0; i < THREADS; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, churn, (void *)(i + 1)), 0);
    for (int i = 0; i < THREADS; i++) {
        void *broken = &broken;
        pthread_join(threads[i], &broken);
        cr_assert_null(broken);
    }
    for (int i = 0; i < SLOTS; i++)
        bxi_arena_free(arena, bxi_exchange(&handed[i], NULL));
    cr_assert_eq(stats().used_bytes, 0);
    cr_assert_eq(stats().committed_bytes, pages_bytes());
    bxi_arena_trim(arena);
    cr_assert_eq(pages_bytes(), 0);
}

static void *close_late(void *barrier)
{
    pthread_barrier_wait(barrier);
    bxi_arena_close(arena);
    return NULL;
}

/* The descriptor must not be used once its number may be another file's. */
Test(arena, is_closed_while_another_thread_allocates, .init = make_name)
{
    for (int round = 0; round < 20; round++) {
        pthread_barrier_t barrier;
        pthread_t closer;
        int count = 0;
        int rc = 0;

        create_large();
        pthread_barrier_init(&barrier, NULL, 2);
        cr_assert_eq(pthread_create(&closer, NULL, close_late, &barrier), 0);
        pthread_barrier_wait(&barrier);
        while (count < BLOCKS && (rc = bxi_arena_alloc(arena, 64 * KIB, &blocks[count])) == 0)
            count++;
        pthread_join(closer, NULL);
        cr_assert(count == BLOCKS || rc == -ESHUTDOWN, "%d", rc);
        free_many(0, 1, count);
        cr_assert_eq(stats().used_bytes, 0);
        bxi_arena_release(arena);
        pthread_barrier_destroy(&barrier);
    }
    arena = NULL;
}

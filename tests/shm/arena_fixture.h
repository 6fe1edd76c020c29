/* SPDX-License-Identifier: MIT */
/*
 * One arena, and helpers for test_arena.c and test_arena_pages.c.
 */
#ifndef TESTS_ARENA_FIXTURE_H
#define TESTS_ARENA_FIXTURE_H

#include "shm/arena.h"
#include "shm/segment.h"
#include "tests/harness/child.h"
#include "tests/harness/harness.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)
#define INSTANCE UINT64_C(0x0123456789abcdef)
#define BLOCKS 256

static char job[BXI_NAME_BYTES];
static char name[BXI_OBJECT_NAME_BYTES];
static struct bxi_arena *arena;
static void *blocks[BLOCKS];

static inline void make_name(void)
{
    harness_name(job, sizeof(job), "arena-");
    bxi_object_arena_name(name, geteuid(), job, INSTANCE, 0);
}

static inline void create(uint64_t bytes)
{
    make_name();
    cr_assert_eq(bxi_arena_create(name, bytes, NULL, &arena), 0);
}

static inline void create_large(void)
{
    create(64 * GIB);
}

static inline void create_small(void)
{
    create(64 * MIB);
}

static inline void release(void)
{
    if (arena != NULL)
        bxi_arena_release(arena);
    arena = NULL;
    bxi_object_reap(job, 0);
}

static inline struct bxi_arena_stats stats(void)
{
    struct bxi_arena_stats now;

    bxi_arena_read(arena, &now);
    return now;
}

static inline void *alloc(size_t bytes)
{
    void *block = NULL;
    int rc = bxi_arena_alloc(arena, bytes, &block);

    cr_assert_eq(rc, 0, "%zu bytes: %d", bytes, rc);
    return block;
}

/* blocks[first], blocks[first + step], ... */
static inline void alloc_many(int first, int step, int count, size_t bytes)
{
    for (int i = 0; i < count; i++)
        blocks[first + i * step] = alloc(bytes);
}

static inline void free_many(int first, int step, int count)
{
    for (int i = 0; i < count; i++)
        bxi_arena_free(arena, blocks[first + i * step]);
}

/* Allocates until an allocation fails. The number of blocks, and the error. */
static inline int fill(size_t bytes, int *error)
{
    int count = 0;

    while (count < BLOCKS && (*error = bxi_arena_alloc(arena, bytes, &blocks[count])) == 0)
        count++;
    return count;
}

static inline uint64_t pages_bytes(void)
{
    struct stat status;

    cr_assert_eq(fstat(bxi_arena_fd(arena), &status), 0);
    return (uint64_t)status.st_blocks * 512;
}

static inline bool is_all(const void *block, unsigned char value, size_t bytes)
{
    const unsigned char *at = block;

    return bytes == 0 || (at[0] == value && memcmp(at, at + 1, bytes - 1) == 0);
}

#endif

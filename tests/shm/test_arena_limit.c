/* SPDX-License-Identifier: MIT */
/*
 * shm/arena_pages.c and tools/jemalloc.sh: a process without memory for jemalloc's records gets an error, wherever it
 * meets jemalloc first, and a block once there is memory again; what an arena took of the process it gives back.
 */
#include "arena_fixture.h"

#include <dlfcn.h>

/* A sanitizer's shadow takes terabytes of addresses, and its allocator ends the program where it gets none. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#define STEP (256 * KIB)

TestSuite(arena_limit, .timeout = 120);

static uint64_t address_bytes(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");

    cr_assert_not_null(file);
    cr_assert_eq(fscanf(file, "%llu", &pages), 1);
    fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* The process may have so many bytes of addresses more than it has now; UINT64_MAX: any number. */
static void limit_addresses(uint64_t more)
{
    struct rlimit limit;

    cr_assert_eq(getrlimit(RLIMIT_AS, &limit), 0);
    limit.rlim_cur = more == UINT64_MAX ? limit.rlim_max : address_bytes() + more;
    cr_assert_eq(setrlimit(RLIMIT_AS, &limit), 0);
}

static int try_block(size_t bytes)
{
    void *block = NULL;
    int rc = bxi_arena_alloc(arena, bytes, &block);

    cr_assert_eq(rc == 0, block != NULL);
    bxi_arena_free(arena, block);
    return rc;
}

/* ---- One thread ---------------------------------------------------------------------------------- */

/* Each attempt comes further, on what the one before has left. */
Test(arena_limit, a_block_is_made_as_soon_as_there_is_memory_for_its_records, .init = create_small, .fini = release)
{
    int refused = 0, rc = -ENOBUFS;

    for (uint64_t more = 0; rc == -ENOBUFS; more += STEP) {
        cr_assert_lt(more, 64 * MIB);
        limit_addresses(more);
        rc = try_block(MIB);
        limit_addresses(UINT64_MAX);
        refused += rc == -ENOBUFS;
    }
    cr_expect_eq(rc, 0);
    cr_expect_geq(refused, 2);
    /* The range is one extent, as it is in a process without a limit. */
    cr_expect_eq(try_block(56 * MIB), 0);
}

static uint64_t first_limit;

static int fail_once_then_succeed(void)
{
    limit_addresses(first_limit);
    int rc = try_block(MIB);
    limit_addresses(UINT64_MAX);
    return rc != 0 && rc != -ENOBUFS ? 2 : try_block(56 * MIB) != 0 ? 3 : rc == 0;
}

/* A child has an arena of its own, or none. */
static int with_own_arena(void)
{
    if (bxi_arena_create(NULL, 64 * MIB, NULL, &arena) != 0)
        return 4;
    int status = fail_once_then_succeed();
    bxi_arena_release(arena);
    return status;
}

Test(arena_limit, an_attempt_that_failed_anywhere_spoils_nothing)
{
    int status = 0, refused = 0;

    for (first_limit = 0; status == 0; first_limit += STEP) {
        cr_assert_lt(first_limit, 64 * MIB);
        status = in_child(with_own_arena);
        refused += status == 0;
    }
    cr_expect_eq(status, 1);
    cr_expect_geq(refused, 2);
}

/* ---- A new thread, which jemalloc does not know ------------------------------------------------------ */

static int last_rc;

/* Of a class that has no block yet, for the pages there are: jemalloc has to do something. */
static void *make_block(void *bytes)
{
    last_rc = try_block((size_t)(uintptr_t)bytes);
    return NULL;
}

static void *fork_a_child(void *unused)
{
    int status = -1;
    pid_t child = fork();

    (void)unused;
    if (child == 0)
        _exit(0);
    last_rc = child > 0 && waitpid(child, &status, 0) == child ? status : -errno;
    return NULL;
}

static pthread_barrier_t started, limited;
static void *(*thread_body)(void *argument);

static void *begin_when_limited(void *argument)
{
    void *memory = malloc(1);           /* glibc's arena of this thread, while there are addresses for it */

    pthread_barrier_wait(&started);
    pthread_barrier_wait(&limited);
    thread_body(argument);
    free(memory);
    return NULL;
}

/* Runs body in a new thread of a process that gets no further address. */
static int in_limited_thread(void *(*body)(void *argument), size_t bytes)
{
    pthread_t thread;

    last_rc = 1;
    thread_body = body;
    pthread_barrier_init(&started, NULL, 2);
    pthread_barrier_init(&limited, NULL, 2);
    cr_assert_eq(pthread_create(&thread, NULL, begin_when_limited, (void *)(uintptr_t)bytes), 0);
    pthread_barrier_wait(&started);
    limit_addresses(0);
    pthread_barrier_wait(&limited);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    limit_addresses(UINT64_MAX);
    return last_rc;
}

Test(arena_limit, a_new_thread_needs_no_memory_of_its_own, .init = create_small, .fini = release)
{
    cr_assert_eq(try_block(MIB), 0);
    for (size_t bytes = 64; bytes <= 512 * KIB; bytes *= 2)
        cr_expect_eq(in_limited_thread(make_block, bytes), 0, "%zu bytes", bytes);
}

Test(arena_limit, the_first_block_of_all_in_a_new_thread_is_refused, .init = create_small, .fini = release)
{
    cr_expect_eq(in_limited_thread(make_block, MIB), -ENOBUFS);
    cr_expect_eq(in_limited_thread(make_block, MIB), -ENOBUFS);
    cr_expect_eq(try_block(MIB), 0);
}

Test(arena_limit, a_new_thread_may_fork, .init = create_small, .fini = release)
{
    cr_assert_eq(try_block(MIB), 0);
    cr_expect_eq(in_limited_thread(fork_a_child, 0), 0);
}

/* ---- Loading --------------------------------------------------------------------------------------- */

static char library[512];

static int load(void)
{
    limit_addresses(first_limit);
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    return handle != NULL;
}

/* Also where the library itself has room, and what its constructors might take has not. */
Test(arena_limit, loading_the_library_fails_or_succeeds)
{
    const char *build = getenv("BX_BUILD_DIR");
    int loaded = 0;

    snprintf(library, sizeof(library), "%s/lib/libboxcar.so", build != NULL ? build : ".");
    if (access(library, R_OK) != 0)
        cr_skip_test("there is no %s", library);
    for (first_limit = 0; loaded < 64; first_limit += STEP) {
        int status = in_child(load);

        cr_assert_leq(status, 1, "with %llu KiB", (unsigned long long)(first_limit / KIB));
        cr_assert_lt(first_limit, 256 * MIB);
        loaded += status;
    }
}

/* ---- What is left ---------------------------------------------------------------------------------- */

static void use_an_arena(void)
{
    create_large();
    cr_assert_eq(try_block(MIB), 0);
    release();
}

Test(arena_limit, an_arena_leaves_no_addresses_taken)
{
    for (int i = 0; i < 10; i++)
        use_an_arena();

    uint64_t before = address_bytes();
    for (int i = 0; i < 500; i++)
        use_an_arena();
    cr_expect_eq(address_bytes(), before);
}

#endif

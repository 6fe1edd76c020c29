/* SPDX-License-Identifier: MIT */
/*
 * The arena of a worker: blocks from jemalloc, pages from one sparse shared memory object.
 *
 * Who runs it: any thread of the owner (alloc, free, trim), the job's (create, close), whoever drops the
 * last reference; a peer's (attach, views). The hooks run in the thread that called jemalloc, which may
 * be a stranger's: one that purges all arenas of the process.
 *
 * How it works: jemalloc, by hooks of ours, takes its extents from one mapping of the object, from the
 * bottom up. An extent is born as a hole; the commit hook allocates its pages and may fail, so a full
 * /dev/shm is an error here and not a SIGBUS later. jemalloc's own records lie in private memory
 * (metadata_use_hooks is false, and the arena is refused if the segment was used for them all the same).
 * Freed extents stay with jemalloc, dirty, and do not decay: it comes back to them first. When they are
 * purged (trim, a failed allocation, or more fragments than are worth keeping) jemalloc decommits them.
 * For jemalloc that always works; we punch what is above the high-water mark of used bytes and keep the
 * rest as spare pages, because a first touch costs three to five times a warm one. A spare page that is
 * committed again is zeroed, as the hook has promised. Only trim gives the spare ones away, and an
 * allocation that finds /dev/shm full. purge_lazy and purge_forced refuse: MADV_DONTNEED does not zero
 * shared pages, and a hole made behind jemalloc's back would bring the SIGBUS again.
 *
 * In front of jemalloc stand shelves, one for each size class, with the blocks that were freed last.
 * Measured with the 161 gradients of ResNet-50 (2 KB to 9 MB, 94 MB in all), all made and then all
 * freed, warm: mallocx and dallocx without a thread cache 450 ns for a block (they split and merge extents,
 * 89 splits a round; 550 ns with decay), 135 ns where all have 2 KB; from the shelves 35 ns. A thread
 * cache of jemalloc's own would stop at 32 KB and keep memory back in every thread. What is used and what
 * is shelved never exceed the high-water mark together, so a worker whose sizes change does not keep the
 * old ones: before a new block is made, shelved ones go until it fits.
 *
 * A size class is four steps to the doubling, jemalloc's own; the class of a block is remembered by the
 * page that it begins on, since a page holds blocks of one class.
 *
 * Locks: `lock` for the shelves and figures, held for some instructions; jemalloc's own; `pages_lock` for
 * the object's pages, held over fallocate, which locks the file anyway. In this order.
 *
 * A forked child has not got the mapping, and locks may be held for ever there: it gets -EPERM from alloc,
 * and whatever else it calls does nothing.
 *
 * Killed at any instruction: the kernel drops the owner lock, whoever reaps removes the name, and peers
 * keep what they have mapped. Nothing of the books is in shared memory.
 */
#include "arena.h"

#include "guard.h"
#include "segment.h"
#include "step.h"

#include <errno.h>
#include <fcntl.h>
#include <jemalloc/jemalloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define CREATE_MIB "experimental.arenas_create_ext"
#define BYTES_ROUND ((uint64_t)2 << 20)
#define BYTES_MAX ((uint64_t)1 << 46)
#define CHUNK_PAGES 4096u               /* a signal makes fallocate begin again: 16 MiB at a time */
#define CLASSES 168u                    /* classes of up to BYTES_MAX bytes, and some */
#define BATCH 32
#define SLACK_BYTES ((uint64_t)16 << 20)

struct shelf {                          /* freed blocks of one class, last in, first out */
    void **blocks;
    uint32_t count;
    uint32_t capacity;
    size_t block_bytes;                 /* of the class, once a block of it was made */
};

struct bxi_arena {
    extent_hooks_t hooks;               /* first: a hook gets no more than its address */
    unsigned char *base;
    uint64_t bytes;
    unsigned forks;                     /* fork_count when it was made */
    bxi_a32 refs;
    bxi_a32 truncated;
    bxi_a64 high_water;                 /* written under lock */
    bxi_a64 committed;                  /* written under pages_lock */
    uint8_t *class_of_page;
    uint64_t *spare_bits;
    size_t tables_bytes;
    char shm_name[BXI_SEGMENT_NAME_BYTES];

    pthread_mutex_t lock;               /* guards all up to pages_lock, and class_of_page */
    bool is_made;                       /* jemalloc's arena, by the first alloc */
    bool is_closed;
    unsigned index;
    unsigned hand;                      /* the shelf from which a block goes next */
    uint64_t used;
    uint64_t shelved;
    uint64_t purge_at;
    struct bxi_arena_words words;
    struct shelf shelves[CLASSES];

    pthread_mutex_t pages_lock;         /* guards the rest, spare_bits, and who uses the descriptor */
    int fd;
    uint64_t bump;                      /* bytes of the object that jemalloc has had */
    uint64_t spare_pages;
};

/* A view is handed out as its first member. */
struct counted_view {
    struct bxi_arena_view view;
    unsigned forks;
};

int (*bxi_arena_fallocate)(int fd, int mode, off_t offset, off_t bytes) = fallocate;

static unsigned fork_count;             /* grows in the child, which has one thread then */
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static _Thread_local int commit_error;  /* of the commit hook, for the alloc above it */

static void count_fork(void)
{
    fork_count++;
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, count_fork);
}

static bool is_forked(const struct bxi_arena *arena)
{
    return arena->forks != fork_count;
}

/* ---- Figures --------------------------------------------------------------------------------- */

static uint64_t high_water(const struct bxi_arena *arena)
{
    /* [arena.figures] relaxed: a bound for what to keep, and any recent value does. */
    return bxi_load_relaxed(&arena->high_water);
}

static uint64_t committed(const struct bxi_arena *arena)
{
    /* [arena.figures] relaxed: as above; who needs it exactly holds pages_lock. */
    return bxi_load_relaxed(&arena->committed);
}

/* Under pages_lock. */
static void set_committed(struct bxi_arena *arena, uint64_t bytes)
{
    /* [arena.figures] relaxed: pages_lock orders the writers. */
    bxi_store_relaxed(&arena->committed, bytes);
}

/* Under lock. */
static void set_high_water(struct bxi_arena *arena, uint64_t bytes)
{
    /* [arena.figures] relaxed: lock orders the writers. */
    bxi_store_relaxed(&arena->high_water, bytes);
}

/* Under lock. The words are in the owner's segment. */
static void publish(struct bxi_arena *arena)
{
    /* [arena.words] relaxed three times: an inspector wants recent values, not an order. */
    if (arena->words.used != NULL)
        bxi_store_relaxed(arena->words.used, arena->used);
    if (arena->words.committed != NULL)
        bxi_store_relaxed(arena->words.committed, committed(arena));
    if (arena->words.high_water != NULL)
        bxi_store_relaxed(arena->words.high_water, high_water(arena));
}

/* ---- Pages ----------------------------------------------------------------------------------- */

/* Pages [first, end) are all there afterwards, or -errno. The size is kept: an object that somebody has
 * truncated must not come to life again, all zeroes. */
static int allocate_pages(struct bxi_arena *arena, uint64_t first, uint64_t end)
{
    off_t offset = (off_t)(first * BXI_PAGE);
    off_t bytes = (off_t)((end - first) * BXI_PAGE);
    int error;

    if (arena->fd < 0)
        return -ESHUTDOWN;
    do
        error = bxi_arena_fallocate(arena->fd, FALLOC_FL_KEEP_SIZE, offset, bytes) < 0 ? errno : 0;
    while (error == EINTR);
    if (error == EOPNOTSUPP)        /* no tmpfs */
        error = posix_fallocate(arena->fd, offset, bytes);
    return -error;
}

/* False where that cannot be done: then they are still there. */
static bool punch_pages(struct bxi_arena *arena, uint64_t first, uint64_t end)
{
    const int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    int rc;

    if (arena->fd < 0)
        return false;
    do
        rc = bxi_arena_fallocate(arena->fd, mode, (off_t)(first * BXI_PAGE),
                                 (off_t)((end - first) * BXI_PAGE));
    while (rc < 0 && errno == EINTR);
    return rc == 0;
}

static bool is_spare(const struct bxi_arena *arena, uint64_t page)
{
    return arena->spare_bits[page / 64] >> page % 64 & 1;
}

static void flip_spare(struct bxi_arena *arena, uint64_t first, uint64_t end)
{
    for (uint64_t page = first; page < end; page++)
        arena->spare_bits[page / 64] ^= UINT64_C(1) << page % 64;
}

/* Where the run of spare pages, or of others, ends that begins at first; a chunk at most. */
static uint64_t run_end(const struct bxi_arena *arena, uint64_t first, uint64_t end)
{
    uint64_t page = first + 1;

    if (end - first > CHUNK_PAGES)
        end = first + CHUNK_PAGES;
    if (arena->spare_pages == 0)
        return end;
    while (page < end && is_spare(arena, page) == is_spare(arena, first))
        page++;
    return page;
}

/* Takes back what commit_pages had allocated before it failed; spare ones stay so. */
static void uncommit_pages(struct bxi_arena *arena, uint64_t first, uint64_t end)
{
    uint64_t next;

    for (uint64_t page = first; page < end; page = next) {
        next = run_end(arena, page, end);
        if (!is_spare(arena, page))
            punch_pages(arena, page, next);
    }
}

/* Under pages_lock. All or nothing; the pages read as zeroes. */
static int commit_pages(struct bxi_arena *arena, uint64_t first, uint64_t end)
{
    uint64_t next;
    uint64_t added = 0;

    for (uint64_t page = first; page < end; page = next) {
        next = run_end(arena, page, end);
        if (is_spare(arena, page))
            continue;
        int rc = allocate_pages(arena, page, next);
        if (rc < 0) {
            uncommit_pages(arena, first, page);
            return rc;
        }
        added += next - page;
    }
    for (uint64_t page = first; page < end && arena->spare_pages > 0; page = next) {
        next = run_end(arena, page, end);
        if (!is_spare(arena, page))
            continue;
        memset(arena->base + page * BXI_PAGE, 0, (next - page) * BXI_PAGE);
        flip_spare(arena, page, next);
        arena->spare_pages -= next - page;
    }
    set_committed(arena, committed(arena) + added * BXI_PAGE);
    return 0;
}

/* Under pages_lock. What is above the high-water mark goes, the rest becomes spare. */
static void decommit_pages(struct bxi_arena *arena, uint64_t first, uint64_t end)
{
    uint64_t keep = high_water(arena);
    uint64_t is = committed(arena);
    uint64_t above = is > keep ? (is - keep) / BXI_PAGE : 0;

    if (above > end - first)
        above = end - first;
    if (above > 0 && punch_pages(arena, end - above, end)) {
        set_committed(arena, is - above * BXI_PAGE);
        end -= above;
    }
    flip_spare(arena, first, end);
    arena->spare_pages += end - first;
}

/* Under pages_lock. */
static void drop_spare_pages(struct bxi_arena *arena)
{
    uint64_t end = arena->bump / BXI_PAGE;
    uint64_t next;

    for (uint64_t page = 0; page < end && arena->spare_pages > 0; page = next) {
        next = run_end(arena, page, end);
        if (!is_spare(arena, page) || !punch_pages(arena, page, next))
            continue;
        flip_spare(arena, page, next);
        arena->spare_pages -= next - page;
        set_committed(arena, committed(arena) - (next - page) * BXI_PAGE);
    }
}

/* ---- Extent hooks ---------------------------------------------------------------------------- */

static void *hook_alloc(extent_hooks_t *hooks, void *wanted, size_t bytes, size_t alignment, bool *zero,
                        bool *commit, unsigned index)
{
    struct bxi_arena *arena = (struct bxi_arena *)hooks;
    void *extent = NULL;
    int rc = 0;

    (void)index;
    if (wanted != NULL || is_forked(arena))
        return NULL;
    pthread_mutex_lock(&arena->pages_lock);
    uintptr_t base = (uintptr_t)arena->base;
    uint64_t at = ((base + arena->bump + alignment - 1) & ~(uintptr_t)(alignment - 1)) - base;
    if (at > arena->bytes || bytes > arena->bytes - at)
        goto unlock;
    if (*commit)
        rc = commit_pages(arena, at / BXI_PAGE, (at + bytes) / BXI_PAGE);
    if (rc < 0) {
        commit_error = rc;
        goto unlock;
    }
    *zero = true;
    arena->bump = at + bytes;
    extent = arena->base + at;
unlock:
    pthread_mutex_unlock(&arena->pages_lock);
    return extent;
}

/* Opts out: jemalloc keeps the extent, decommitted, for later. */
static bool hook_dalloc(extent_hooks_t *hooks, void *extent, size_t bytes, bool is_committed, unsigned index)
{
    (void)hooks;
    (void)extent;
    (void)bytes;
    (void)is_committed;
    (void)index;
    return true;
}

/* Nothing to do: the mapping ends as a whole. */
static void hook_destroy(extent_hooks_t *hooks, void *extent, size_t bytes, bool is_committed, unsigned index)
{
    (void)hooks;
    (void)extent;
    (void)bytes;
    (void)is_committed;
    (void)index;
}

static bool hook_commit(extent_hooks_t *hooks, void *extent, size_t bytes, size_t offset, size_t length,
                        unsigned index)
{
    struct bxi_arena *arena = (struct bxi_arena *)hooks;

    (void)bytes;
    (void)index;
    if (is_forked(arena))
        return true;
    uint64_t first = ((uint64_t)((unsigned char *)extent - arena->base) + offset) / BXI_PAGE;
    pthread_mutex_lock(&arena->pages_lock);
    int rc = commit_pages(arena, first, first + length / BXI_PAGE);
    pthread_mutex_unlock(&arena->pages_lock);
    if (rc < 0)
        commit_error = rc;
    return rc < 0;
}

static bool hook_decommit(extent_hooks_t *hooks, void *extent, size_t bytes, size_t offset, size_t length,
                          unsigned index)
{
    struct bxi_arena *arena = (struct bxi_arena *)hooks;

    (void)bytes;
    (void)index;
    if (is_forked(arena))
        return true;
    uint64_t first = ((uint64_t)((unsigned char *)extent - arena->base) + offset) / BXI_PAGE;
    pthread_mutex_lock(&arena->pages_lock);
    decommit_pages(arena, first, first + length / BXI_PAGE);
    pthread_mutex_unlock(&arena->pages_lock);
    return false;
}

/* Refuses, lazy or forced. */
static bool hook_purge(extent_hooks_t *hooks, void *extent, size_t bytes, size_t offset, size_t length,
                       unsigned index)
{
    (void)hooks;
    (void)extent;
    (void)bytes;
    (void)offset;
    (void)length;
    (void)index;
    return true;
}

/* One mapping: extents may be cut anywhere. */
static bool hook_split(extent_hooks_t *hooks, void *extent, size_t bytes, size_t first_bytes,
                       size_t second_bytes, bool is_committed, unsigned index)
{
    (void)hooks;
    (void)extent;
    (void)bytes;
    (void)first_bytes;
    (void)second_bytes;
    (void)is_committed;
    (void)index;
    return false;
}

static bool hook_merge(extent_hooks_t *hooks, void *first, size_t first_bytes, void *second,
                       size_t second_bytes, bool is_committed, unsigned index)
{
    (void)hooks;
    (void)first;
    (void)first_bytes;
    (void)second;
    (void)second_bytes;
    (void)is_committed;
    (void)index;
    return false;
}

static const extent_hooks_t arena_hooks = {
    .alloc = hook_alloc,
    .dalloc = hook_dalloc,
    .destroy = hook_destroy,
    .commit = hook_commit,
    .decommit = hook_decommit,
    .purge_lazy = hook_purge,
    .purge_forced = hook_purge,
    .split = hook_split,
    .merge = hook_merge,
};

/* ---- jemalloc's arena ------------------------------------------------------------------------ */

/* "arena.<index>.<what>" */
static int control(const struct bxi_arena *arena, const char *what, void *value, size_t bytes)
{
    char name[48];

    snprintf(name, sizeof(name), "arena.%u.%s", arena->index, what);
    return -mallctl(name, NULL, NULL, value, bytes);
}

/* Under lock. -ENOTSUP where jemalloc puts its records into the segment. */
static int make_jemalloc_arena(struct bxi_arena *arena)
{
    struct {
        extent_hooks_t *hooks;
        bool metadata_use_hooks;
    } config = { .hooks = &arena->hooks, .metadata_use_hooks = false };
    size_t bytes = sizeof(arena->index);
    ssize_t never = -1;

    int rc = -mallctl(CREATE_MIB, &arena->index, &bytes, &config, sizeof(config));
    if (rc < 0)
        return rc == -EAGAIN ? -ENOMEM : rc;
    pthread_mutex_lock(&arena->pages_lock);
    uint64_t bump = arena->bump;
    pthread_mutex_unlock(&arena->pages_lock);
    if (bump != 0) {
        rc = -ENOTSUP;
        goto destroy;
    }
    rc = control(arena, "dirty_decay_ms", &never, sizeof(never));
    if (rc < 0)
        goto destroy;
    arena->is_made = true;
    return 0;

destroy:
    control(arena, "destroy", NULL, 0);
    return rc;
}

/* ---- Shelves --------------------------------------------------------------------------------- */

/* 64, 128, 192, 256, then four steps to each doubling. bytes > 0. */
static unsigned class_of(size_t bytes)
{
    uint64_t lines = (bytes + BXI_ARENA_ALIGN - 1) / BXI_ARENA_ALIGN;

    if (lines <= 4)
        return (unsigned)lines - 1;
    unsigned log2 = 63u - (unsigned)__builtin_clzll(lines - 1);
    return 4 * (log2 - 1) + (unsigned)((lines - 1) >> (log2 - 2) & 3);
}

static size_t bytes_of_class(unsigned class)
{
    size_t lines = class < 4 ? class + 1 : (size_t)(class % 4 + 5) << (class / 4 - 1);

    return lines * BXI_ARENA_ALIGN;
}

static bool shelve(struct shelf *shelf, void *block)
{
    if (shelf->count == shelf->capacity) {
        uint32_t capacity = shelf->capacity == 0 ? 16 : shelf->capacity * 2;
        void **blocks = realloc(shelf->blocks, capacity * sizeof(*blocks));
        if (blocks == NULL)
            return false;
        shelf->blocks = blocks;
        shelf->capacity = capacity;
    }
    shelf->blocks[shelf->count++] = block;
    return true;
}

/* Under lock. Takes blocks from the shelves, from one after the other, until no more than `keep` bytes are
 * left there or the batch is full. */
static int unshelve(struct bxi_arena *arena, uint64_t keep, void *batch[BATCH])
{
    int count = 0;

    while (arena->shelved > keep && count < BATCH) {
        struct shelf *shelf = &arena->shelves[arena->hand];
        arena->hand = (arena->hand + 1) % CLASSES;
        if (shelf->count == 0)
            continue;
        batch[count++] = shelf->blocks[--shelf->count];
        arena->shelved -= shelf->block_bytes;
    }
    return count;
}

/* Makes the shelves fit under the high-water mark beside `wanted` bytes more; empties them if all. */
static void clear_shelves(struct bxi_arena *arena, uint64_t wanted, bool all)
{
    void *batch[BATCH];
    int count;

    do {
        pthread_mutex_lock(&arena->lock);
        uint64_t taken = arena->used + wanted;
        uint64_t limit = high_water(arena);
        count = unshelve(arena, all || taken >= limit ? 0 : limit - taken, batch);
        pthread_mutex_unlock(&arena->lock);
        for (int i = 0; i < count; i++)
            dallocx(batch[i], MALLOCX_TCACHE_NONE);
    } while (count == BATCH);
}

/* Brings together what is free, so that jemalloc can merge it. */
static void reclaim(struct bxi_arena *arena)
{
    clear_shelves(arena, 0, true);
    control(arena, "purge", NULL, 0);
}

void bxi_arena_trim(struct bxi_arena *arena)
{
    if (is_forked(arena))
        return;
    pthread_mutex_lock(&arena->lock);
    bool is_made = arena->is_made;
    set_high_water(arena, arena->used);
    pthread_mutex_unlock(&arena->lock);
    if (is_made) {
        reclaim(arena);
        pthread_mutex_lock(&arena->pages_lock);
        drop_spare_pages(arena);
        pthread_mutex_unlock(&arena->pages_lock);
    }
    pthread_mutex_lock(&arena->lock);
    arena->purge_at = 0;
    publish(arena);
    pthread_mutex_unlock(&arena->lock);
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

/* Under lock. */
static int check_open(const struct bxi_arena *arena)
{
    if (arena->is_closed)
        return -ESHUTDOWN;
    return bxi_arena_truncated(arena) ? -EIO : 0;
}

/* Under lock. */
static void count_used(struct bxi_arena *arena, size_t bytes)
{
    arena->used += bytes;
    if (arena->used > high_water(arena))
        set_high_water(arena, arena->used);
    publish(arena);
}

static void *ask_jemalloc(struct bxi_arena *arena, size_t bytes)
{
    commit_error = 0;
    return mallocx(bytes, MALLOCX_ARENA(arena->index) | MALLOCX_TCACHE_NONE | MALLOCX_ALIGN(BXI_ARENA_ALIGN));
}

/* Under lock: true, once in a while, when fragments hold much more than was ever used. */
static bool is_purge_due(struct bxi_arena *arena)
{
    uint64_t is = committed(arena);
    uint64_t slack = high_water(arena) / 4 + SLACK_BYTES;

    if (is <= arena->purge_at || is <= high_water(arena) + slack)
        return false;
    arena->purge_at = is + slack;
    return true;
}

/* Enters the new block into the books. */
static void book(struct bxi_arena *arena, unsigned class, void *block)
{
    uint64_t page = (uint64_t)((unsigned char *)block - arena->base) / BXI_PAGE;
    struct shelf *shelf = &arena->shelves[class];

    pthread_mutex_lock(&arena->lock);
    if (shelf->block_bytes == 0)
        shelf->block_bytes = sallocx(block, 0);
    /* Not written where it is so already: bxi_arena_block_bytes reads it without the lock. */
    if (arena->class_of_page[page] != class)
        arena->class_of_page[page] = (uint8_t)class;
    count_used(arena, shelf->block_bytes);
    bool is_due = is_purge_due(arena);
    pthread_mutex_unlock(&arena->lock);
    if (!is_due)
        return;
    control(arena, "purge", NULL, 0);
    pthread_mutex_lock(&arena->lock);
    arena->purge_at = committed(arena) + SLACK_BYTES + high_water(arena) / 4;
    publish(arena);
    pthread_mutex_unlock(&arena->lock);
}

static int make_block(struct bxi_arena *arena, unsigned class, void **block)
{
    size_t bytes = bytes_of_class(class);

    pthread_mutex_lock(&arena->lock);
    int rc = arena->is_made ? 0 : make_jemalloc_arena(arena);
    pthread_mutex_unlock(&arena->lock);
    if (rc < 0)
        return rc;
    clear_shelves(arena, bytes, false);
    void *made = ask_jemalloc(arena, bytes);
    if (made == NULL) {
        /* Pages that others could use must go where /dev/shm is full; else warm ones stay. */
        if (commit_error == -ENOSPC)
            bxi_arena_trim(arena);
        else
            reclaim(arena);
        made = ask_jemalloc(arena, bytes);
    }
    if (made == NULL)
        return commit_error == -ENOSPC || commit_error == -ESHUTDOWN ? commit_error : -ENOMEM;
    book(arena, class, made);
    *block = made;
    return 0;
}

int bxi_arena_alloc(struct bxi_arena *arena, size_t bytes, void **block)
{
    if (is_forked(arena))
        return -EPERM;
    if (bytes > arena->bytes)
        return -ENOMEM;
    unsigned class = class_of(bytes == 0 ? 1 : bytes);
    struct shelf *shelf = &arena->shelves[class];

    pthread_mutex_lock(&arena->lock);
    int rc = check_open(arena);
    if (rc == 0 && shelf->count > 0) {
        *block = shelf->blocks[--shelf->count];
        arena->shelved -= shelf->block_bytes;
        count_used(arena, shelf->block_bytes);
        pthread_mutex_unlock(&arena->lock);
        return 0;
    }
    pthread_mutex_unlock(&arena->lock);
    return rc < 0 ? rc : make_block(arena, class, block);
}

static struct shelf *shelf_of(const struct bxi_arena *arena, const void *block)
{
    uint64_t page = (uint64_t)((const unsigned char *)block - arena->base) / BXI_PAGE;

    return (struct shelf *)&arena->shelves[arena->class_of_page[page]];
}

void bxi_arena_free(struct bxi_arena *arena, void *block)
{
    if (block == NULL || is_forked(arena))
        return;
    pthread_mutex_lock(&arena->lock);
    struct shelf *shelf = shelf_of(arena, block);
    bool is_shelved = !arena->is_closed && shelve(shelf, block);
    arena->used -= shelf->block_bytes;
    if (is_shelved)
        arena->shelved += shelf->block_bytes;
    publish(arena);
    pthread_mutex_unlock(&arena->lock);
    if (!is_shelved)
        dallocx(block, MALLOCX_TCACHE_NONE);
}

size_t bxi_arena_block_bytes(const struct bxi_arena *arena, const void *block)
{
    return shelf_of(arena, block)->block_bytes;
}

/* ---- Life ------------------------------------------------------------------------------------ */

/* Maps the object behind arena->fd. */
static int map_own(struct bxi_arena *arena)
{
    struct rlimit limit;
    int rc;

    /* ftruncate would answer with SIGXFSZ. */
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < arena->bytes)
        return -EFBIG;
    if (ftruncate(arena->fd, (off_t)arena->bytes) < 0)
        return -errno;
    BXI_STEP("arena.sized");
    void *base = mmap(NULL, arena->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, arena->fd, 0);
    if (base == MAP_FAILED)
        return -errno;
    if (madvise(base, arena->bytes, MADV_DONTFORK) < 0) {
        rc = -errno;
        goto unmap;
    }
    rc = bxi_guard_add(base, arena->bytes, true, &arena->truncated);
    if (rc < 0)
        goto unmap;
    arena->base = base;
    return 0;

unmap:
    munmap(base, arena->bytes);
    return rc;
}

/* The tables by page, all zero; untouched pages of them cost nothing. */
static int map_tables(struct bxi_arena *arena)
{
    size_t pages = arena->bytes / BXI_PAGE;

    arena->tables_bytes = pages + pages / 8;
    void *tables = mmap(NULL, arena->tables_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (tables == MAP_FAILED)
        return -errno;
    arena->spare_bits = tables;
    arena->class_of_page = (uint8_t *)tables + pages / 8;
    return 0;
}

int bxi_arena_create(const char *shm_name, uint64_t bytes, const struct bxi_arena_words *words,
                     struct bxi_arena **arena_out)
{
    size_t mib[4];
    size_t mib_count = sizeof(mib) / sizeof(mib[0]);

    if (strlen(shm_name) >= BXI_SEGMENT_NAME_BYTES)
        return -ENAMETOOLONG;
    if (bytes == 0 || bytes > BYTES_MAX)
        return bytes == 0 ? -EINVAL : -EFBIG;
    if (mallctlnametomib(CREATE_MIB, mib, &mib_count) != 0)
        return -ENOSYS;
    pthread_once(&fork_once, watch_forks);
    struct bxi_arena *arena = calloc(1, sizeof(*arena));
    if (arena == NULL)
        return -ENOMEM;
    arena->hooks = arena_hooks;
    arena->bytes = (bytes + BYTES_ROUND - 1) / BYTES_ROUND * BYTES_ROUND;
    arena->forks = fork_count;
    /* [arena.refs] relaxed: nobody else knows it yet. */
    bxi_store_relaxed(&arena->refs, 1);
    memcpy(arena->shm_name, shm_name, strlen(shm_name) + 1);
    if (words != NULL)
        arena->words = *words;

    int rc = map_tables(arena);
    if (rc < 0)
        goto free_arena;
    rc = bxi_segment_create_locked(shm_name, &arena->fd);
    if (rc < 0)
        goto unmap_tables;
    BXI_STEP("arena.locked");
    rc = map_own(arena);
    if (rc < 0)
        goto unlink;
    pthread_mutex_init(&arena->lock, NULL);
    pthread_mutex_init(&arena->pages_lock, NULL);
    *arena_out = arena;
    return 0;

unlink:
    shm_unlink(shm_name);
    close(arena->fd);
unmap_tables:
    munmap(arena->spare_bits, arena->tables_bytes);
free_arena:
    free(arena);
    return rc;
}

void bxi_arena_close(struct bxi_arena *arena)
{
    if (is_forked(arena))
        return;
    pthread_mutex_lock(&arena->lock);
    bool was_closed = arena->is_closed;
    arena->is_closed = true;
    memset(&arena->words, 0, sizeof(arena->words));
    pthread_mutex_unlock(&arena->lock);
    if (was_closed)
        return;
    clear_shelves(arena, 0, true);
    /* The name first: afterwards it could be a namesake's. */
    shm_unlink(arena->shm_name);
    pthread_mutex_lock(&arena->pages_lock);
    close(arena->fd);
    arena->fd = -1;
    pthread_mutex_unlock(&arena->pages_lock);
}

struct bxi_arena *bxi_arena_acquire(struct bxi_arena *arena)
{
    /* [arena.refs] acquire and release, pairs with the one in bxi_arena_release; to add needs less. */
    bxi_add(&arena->refs, 1);
    return arena;
}

void bxi_arena_release(struct bxi_arena *arena)
{
    if (is_forked(arena))
        return;
    /* [arena.refs] acquire and release, pairs with itself: the last one sees what the others did. */
    if (bxi_add(&arena->refs, (uint32_t)-1) != 1)
        return;
    bxi_arena_close(arena);
    if (arena->is_made)
        control(arena, "destroy", NULL, 0);
    bxi_guard_drop(arena->base);
    munmap(arena->base, arena->bytes);
    for (unsigned class = 0; class < CLASSES; class++)
        free(arena->shelves[class].blocks);
    munmap(arena->spare_bits, arena->tables_bytes);
    pthread_mutex_destroy(&arena->pages_lock);
    pthread_mutex_destroy(&arena->lock);
    free(arena);
}

int bxi_arena_fd(const struct bxi_arena *arena)
{
    return arena->fd;
}

uint64_t bxi_arena_bytes(const struct bxi_arena *arena)
{
    return arena->bytes;
}

const unsigned char *bxi_arena_base(const struct bxi_arena *arena)
{
    return arena->base;
}

bool bxi_arena_truncated(const struct bxi_arena *arena)
{
    /* [guard.truncated] relaxed: raised before the zeroes that are read instead. */
    return bxi_load_relaxed(&arena->truncated) != 0;
}

void bxi_arena_read(struct bxi_arena *arena, struct bxi_arena_stats *stats)
{
    if (is_forked(arena)) {
        memset(stats, 0, sizeof(*stats));
        return;
    }
    pthread_mutex_lock(&arena->lock);
    stats->size_bytes = arena->bytes;
    stats->used_bytes = arena->used;
    stats->committed_bytes = committed(arena);
    stats->high_water_bytes = high_water(arena);
    pthread_mutex_unlock(&arena->lock);
}

/* ---- Views ----------------------------------------------------------------------------------- */

int bxi_arena_attach(struct bxi_arena_view **view_out, int fd, uint64_t bytes)
{
    struct stat status;
    int rc;

    if (fstat(fd, &status) < 0)
        return -errno;
    if (!S_ISREG(status.st_mode) || bytes == 0 || bytes > BYTES_MAX || (uint64_t)status.st_size != bytes)
        return -EPROTO;
    pthread_once(&fork_once, watch_forks);
    struct counted_view *counted = calloc(1, sizeof(*counted));
    if (counted == NULL)
        return -ENOMEM;
    struct bxi_arena_view *view = &counted->view;
    void *base = mmap(NULL, bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED) {
        rc = -errno;
        goto free_view;
    }
    if (madvise(base, bytes, MADV_DONTFORK) < 0) {
        rc = -errno;
        goto unmap;
    }
    rc = bxi_guard_add(base, bytes, false, &view->truncated);
    if (rc < 0)
        goto unmap;
    counted->forks = fork_count;
    view->base = base;
    view->bytes = bytes;
    /* [arena.view_refs] relaxed: nobody else knows it yet. */
    bxi_store_relaxed(&view->refs, 1);
    *view_out = view;
    return 0;

unmap:
    munmap(base, bytes);
free_view:
    free(counted);
    return rc;
}

struct bxi_arena_view *bxi_arena_view_acquire(struct bxi_arena_view *view)
{
    /* [arena.view_refs] acquire and release, pairs with the one in bxi_arena_view_release. */
    bxi_add(&view->refs, 1);
    return view;
}

void bxi_arena_view_release(struct bxi_arena_view *view)
{
    struct counted_view *counted = (struct counted_view *)view;

    if (counted->forks != fork_count)
        return;
    /* [arena.view_refs] acquire and release, pairs with itself: the last one sees what the others did. */
    if (bxi_add(&view->refs, (uint32_t)-1) != 1)
        return;
    void *base = (void *)(uintptr_t)view->base;
    bxi_guard_drop(base);
    munmap(base, view->bytes);
    free(counted);
}

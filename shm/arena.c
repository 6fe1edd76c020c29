/* SPDX-License-Identifier: MIT */
/*
 * The arena of a worker: blocks from jemalloc, pages from one sparse shared memory object.
 *
 * Who runs it: any thread of the owner (alloc, free, trim), the thread that starts or ends the job (create, close), and
 * the thread that drops the last reference. Views of a peer's arena are in arena_view.c.
 *
 * How it works: blocks come from jemalloc, and jemalloc's extents from the mapping of the object (arena_pages.c). Free
 * pages stay allocated up to the high-water mark of used bytes, because the first touch of a new page costs three to
 * five times a touch of an allocated one. Trim resets the mark to what is used and returns the rest; so does an
 * allocation that finds /dev/shm full. Pages above the mark are returned now and then, when jemalloc's fragments hold
 * much more than the mark.
 *
 * In front of jemalloc each size class has a shelf with its last freed blocks. Measured with 161 blocks of the sizes
 * of ResNet-50's gradients (4 KB to 9 MB, 111 MB in all), all allocated and then all freed, warm: mallocx and dallocx
 * without a thread cache take 450 ns a block (they split and merge extents, 89 splits a round; 550 ns with decay), 135
 * ns if all blocks have 2 KB; the shelves take 25 to 40 ns. jemalloc's own thread cache would stop at 32 KB and hold
 * memory back in every thread. Used and shelved bytes together never exceed the high-water mark, so a worker whose
 * sizes change does not keep the old ones: before a new block is made, shelved blocks are freed until it fits.
 *
 * So the size of an arena settles: the mark bounds the shelved blocks, and a quarter of the mark plus 16 MiB bounds
 * jemalloc's fragments. The mark itself is the maximum of many sums of random sizes, which grows slowly for a while.
 * Measured for an hour (4 workers, 2.6 million calls, 64 bytes to 512 KiB, some 9 MiB in use in each): at the end of
 * each of 60 rounds all blocks were freed, and 0 bytes were in use; after the trim at the end 0 bytes were committed.
 * The mark went from 10 to 12 MiB, with its last step after 36 minutes, the fragments from 4 to 6 MiB. Both together:
 * 13.2 to 15.0 MiB after a minute, 15.1 to 17.8 after ten, 17.1 to 18.0 after sixty.
 *
 * The size classes are jemalloc's, four to each doubling. A page has blocks of one class only, so the class of a block
 * is stored by the page on which it begins.
 *
 * Locks, in this order: `lock` for the shelves and figures, held for a few instructions; a slot of jemalloc and its own
 * ones; pages.lock.
 *
 * A forked child has the blocks copy on write (fork.c), and locks may be held for ever in it: alloc returns -EPERM
 * there, and the other functions do nothing. A block that the parent frees may get other bytes, also in the child.
 *
 * Killed at any instruction: the kernel drops the owner lock, a reaper removes the name, if it has one yet, and peers
 * keep their mappings. None of the management data is in shared memory.
 */
#include "arena.h"

#include "arena_pages.h"
#include "file.h"
#include "fork.h"
#include "guard.h"
#include "layout.h"
#include "object.h"
#include "step.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BATCH 32
#define SLACK_BYTES ((uint64_t)16 << 20)

struct shelf {                          /* freed blocks of one class, last in, first out */
    void **blocks;
    uint32_t count;
    uint32_t capacity;
    size_t block_bytes;                 /* of the class, once a block of it was made */
};

struct bxi_arena {
    struct bxi_pages pages;
    bxi_a32 refs;
    bxi_a32 truncated;
    uint8_t *class_of_page;
    size_t tables_bytes;
    char shm_name[BXI_OBJECT_NAME_BYTES];

    pthread_mutex_t lock;               /* guards the fields below, class_of_page and writes of pages.keep */
    bool is_started;                    /* pages are started, by the first alloc */
    bool is_closed;
    unsigned hand;                      /* the shelf from which unshelve takes the next block */
    uint64_t used;
    uint64_t shelved;
    uint64_t purge_at;
    struct bxi_arena_words words;
    struct shelf shelves[BXI_CLASSES];
};

/* ---- Figures --------------------------------------------------------------------------------- */

/* The mark up to which free pages stay allocated. */
static uint64_t high_water(const struct bxi_arena *arena)
{
    /* [arena.keep] relaxed: written under the lock that is held here. */
    return bxi_load_relaxed(&arena->pages.keep);
}

/* Under lock. */
static void set_high_water(struct bxi_arena *arena, uint64_t bytes)
{
    /* [arena.keep] relaxed: lock orders the writers, and any recent value is good for the hooks. */
    bxi_store_relaxed(&arena->pages.keep, bytes);
}

/* Under lock. Writes the words in the owner's segment. */
static void publish(struct bxi_arena *arena)
{
    /* [arena.words] relaxed three times: an inspector wants recent values, not an order. */
    if (arena->words.used != NULL)
        bxi_store_relaxed(arena->words.used, arena->used);
    if (arena->words.committed != NULL)
        bxi_store_relaxed(arena->words.committed, bxi_pages_committed(&arena->pages));
    if (arena->words.high_water != NULL)
        bxi_store_relaxed(arena->words.high_water, high_water(arena));
}

/* ---- Shelves --------------------------------------------------------------------------------- */

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

/* Under lock. Takes blocks from the shelves in turn, until at most `keep` bytes are shelved or the batch is full. */
static int unshelve(struct bxi_arena *arena, uint64_t keep, void *batch[BATCH])
{
    int count = 0;

    while (arena->shelved > keep && count < BATCH) {
        struct shelf *shelf = &arena->shelves[arena->hand];
        arena->hand = (arena->hand + 1) % BXI_CLASSES;
        if (shelf->count == 0)
            continue;
        batch[count++] = shelf->blocks[--shelf->count];
        arena->shelved -= shelf->block_bytes;
    }
    return count;
}

/* Frees shelved blocks until used, shelved and `wanted` bytes are within the high-water mark; all of them if `all`. */
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
            bxi_pages_free(batch[i]);
    } while (count == BATCH);
}

/* Gives all free blocks to jemalloc, so that it can merge them. */
static void reclaim(struct bxi_arena *arena)
{
    clear_shelves(arena, 0, true);
    bxi_pages_purge(&arena->pages);
}

void bxi_arena_trim(struct bxi_arena *arena)
{
    if (bxi_pages_is_forked(&arena->pages))
        return;
    pthread_mutex_lock(&arena->lock);
    bool is_started = arena->is_started;
    set_high_water(arena, arena->used);
    pthread_mutex_unlock(&arena->lock);
    if (is_started) {
        reclaim(arena);
        bxi_pages_drop_spare(&arena->pages);
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

/* Under lock. True now and then, if much more is committed than was ever used. */
static bool is_purge_due(struct bxi_arena *arena)
{
    uint64_t held = bxi_pages_committed(&arena->pages);
    uint64_t slack = high_water(arena) / 4 + SLACK_BYTES;

    if (held <= arena->purge_at || held <= high_water(arena) + slack)
        return false;
    arena->purge_at = held + slack;
    return true;
}

/* Registers a new block. */
static void book(struct bxi_arena *arena, unsigned class, void *block)
{
    uint64_t page = (uint64_t)((unsigned char *)block - arena->pages.base) / BXI_PAGE;
    struct shelf *shelf = &arena->shelves[class];

    pthread_mutex_lock(&arena->lock);
    if (shelf->block_bytes == 0)
        shelf->block_bytes = bxi_pages_block_bytes(block);
    arena->class_of_page[page] = (uint8_t)class;
    count_used(arena, shelf->block_bytes);
    bool is_due = is_purge_due(arena);
    pthread_mutex_unlock(&arena->lock);
    if (!is_due)
        return;
    bxi_pages_purge(&arena->pages);
    pthread_mutex_lock(&arena->lock);
    arena->purge_at = bxi_pages_committed(&arena->pages) + SLACK_BYTES + high_water(arena) / 4;
    publish(arena);
    pthread_mutex_unlock(&arena->lock);
}

static int make_block(struct bxi_arena *arena, unsigned class, void **block)
{
    size_t bytes = bxi_class_bytes(class);
    int error;

    pthread_mutex_lock(&arena->lock);
    int rc = arena->is_started ? 0 : bxi_pages_start(&arena->pages);
    arena->is_started = rc == 0;
    pthread_mutex_unlock(&arena->lock);
    if (rc < 0)
        return rc;
    clear_shelves(arena, bytes, false);
    void *made = bxi_pages_ask(&arena->pages, bytes, &error);
    if (made == NULL) {
        /* /dev/shm is full: return pages that other processes could use. Else allocated pages stay. */
        if (error == -ENOSPC)
            bxi_arena_trim(arena);
        else
            reclaim(arena);
        made = bxi_pages_ask(&arena->pages, bytes, &error);
    }
    if (made == NULL)
        return error == -ENOSPC || error == -ESHUTDOWN || error == -ENOBUFS ? error : -ENOMEM;
    book(arena, class, made);
    *block = made;
    return 0;
}

int bxi_arena_alloc(struct bxi_arena *arena, size_t bytes, void **block)
{
    if (bxi_pages_is_forked(&arena->pages))
        return -EPERM;
    if (bytes > arena->pages.bytes)
        return -ENOMEM;
    unsigned class = bxi_class_of(bytes == 0 ? 1 : bytes);
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

/* Under lock. */
static struct shelf *shelf_of(struct bxi_arena *arena, const void *block)
{
    uint64_t page = (uint64_t)((const unsigned char *)block - arena->pages.base) / BXI_PAGE;

    return &arena->shelves[arena->class_of_page[page]];
}

void bxi_arena_free(struct bxi_arena *arena, void *block)
{
    if (block == NULL || bxi_pages_is_forked(&arena->pages))
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
        bxi_pages_free(block);
}

/* ---- Life ------------------------------------------------------------------------------------ */

/* Maps the object behind pages.fd. */
static int map_own(struct bxi_arena *arena)
{
    const int quiet = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    struct bxi_pages *pages = &arena->pages;

    int rc = bxi_file_resize(pages->fd, pages->bytes);
    if (rc < 0)
        return rc;
    BXI_STEP("arena.sized");
    void *base = mmap(NULL, pages->extent_bytes, PROT_NONE, quiet, -1, 0);
    if (base == MAP_FAILED)
        return -errno;
    void *object = mmap(base, pages->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
                        pages->fd, 0);
    if (object == MAP_FAILED || madvise(base, pages->extent_bytes, MADV_DONTFORK) < 0) {
        rc = -errno;
        goto unmap;
    }
    rc = bxi_guard_add(base, pages->bytes, true, &arena->truncated);
    if (rc < 0)
        goto unmap;
    pages->base = base;
    bxi_unshared_map(pages->fd, base, pages->bytes);
    return 0;

unmap:
    munmap(base, pages->extent_bytes);
    return rc;
}

/* The tables by page, all zero; their untouched pages take no memory. */
static int map_tables(struct bxi_arena *arena)
{
    size_t pages = arena->pages.bytes / BXI_PAGE;

    arena->tables_bytes = pages + pages / 8;
    void *tables = mmap(NULL, arena->tables_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (tables == MAP_FAILED)
        return -errno;
    arena->pages.spare_bits = tables;
    arena->class_of_page = (uint8_t *)tables + pages / 8;
    return 0;
}

int bxi_arena_create(const char *shm_name, uint64_t bytes, const struct bxi_arena_words *words,
                     struct bxi_arena **arena_out)
{
    assert(shm_name == NULL || strlen(shm_name) < BXI_OBJECT_NAME_BYTES);
    if (bytes == 0 || bytes > BXI_ARENA_BYTES_MAX)
        return bytes == 0 ? -EINVAL : -EFBIG;
    struct bxi_arena *arena = calloc(1, sizeof(*arena));
    if (arena == NULL)
        return -ENOMEM;
    struct bxi_pages *pages = &arena->pages;
    bxi_pages_init(pages);
    pages->bytes = bxi_arena_round(bytes);
    pages->extent_bytes = bxi_class_bytes(bxi_class_of(pages->bytes));
    /* [arena.refs] relaxed: no other thread has the arena yet. */
    bxi_store_relaxed(&arena->refs, 1);
    if (shm_name != NULL)
        memcpy(arena->shm_name, shm_name, strlen(shm_name) + 1);
    if (words != NULL)
        arena->words = *words;

    int rc = map_tables(arena);
    if (rc < 0)
        goto free_arena;
    rc = shm_name != NULL ? bxi_object_create(shm_name, &pages->fd) : bxi_object_create_unnamed(&pages->fd);
    if (rc < 0)
        goto unmap_tables;
    BXI_STEP("arena.locked");
    rc = map_own(arena);
    if (rc < 0)
        goto unlink;
    pthread_mutex_init(&arena->lock, NULL);
    *arena_out = arena;
    return 0;

unlink:
    if (shm_name != NULL)
        shm_unlink(shm_name);
    bxi_unshared_close(arena->pages.fd);
unmap_tables:
    munmap(arena->pages.spare_bits, arena->tables_bytes);
free_arena:
    free(arena);
    return rc;
}

int bxi_arena_name(struct bxi_arena *arena, const char *shm_name, const struct bxi_arena_words *words)
{
    assert(strlen(shm_name) < BXI_OBJECT_NAME_BYTES);
    int rc = bxi_object_link(arena->pages.fd, shm_name);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&arena->lock);
    memcpy(arena->shm_name, shm_name, strlen(shm_name) + 1);
    arena->words = *words;
    publish(arena);
    pthread_mutex_unlock(&arena->lock);
    return 0;
}

void bxi_arena_close(struct bxi_arena *arena)
{
    if (bxi_pages_is_forked(&arena->pages))
        return;
    pthread_mutex_lock(&arena->lock);
    bool was_closed = arena->is_closed;
    arena->is_closed = true;
    memset(&arena->words, 0, sizeof(arena->words));
    pthread_mutex_unlock(&arena->lock);
    if (was_closed)
        return;
    clear_shelves(arena, 0, true);
    /* The name first: once the lock is dropped, it could lead to another object. */
    if (arena->shm_name[0] != '\0')
        shm_unlink(arena->shm_name);
    bxi_pages_close(&arena->pages);
    /* No descriptor is left of which a child could map what is in use, so it inherits it, shared. */
    madvise(arena->pages.base, arena->pages.bytes, MADV_DOFORK);
}

struct bxi_arena *bxi_arena_acquire(struct bxi_arena *arena)
{
    /* [arena.refs] acquire and release, pairs with the one in bxi_arena_release; taking one needs less. */
    bxi_add(&arena->refs, 1);
    return arena;
}

void bxi_arena_release(struct bxi_arena *arena)
{
    if (bxi_pages_is_forked(&arena->pages))
        return;
    /* [arena.refs] acquire and release, pairs with itself: the last release sees what the others did. */
    if (bxi_add(&arena->refs, (uint32_t)-1) != 1)
        return;
    bxi_arena_close(arena);
    bxi_pages_end(&arena->pages, arena->is_started);
    bxi_guard_drop(arena->pages.base);
    munmap(arena->pages.base, arena->pages.extent_bytes);
    for (unsigned class = 0; class < BXI_CLASSES; class++)
        free(arena->shelves[class].blocks);
    munmap(arena->pages.spare_bits, arena->tables_bytes);
    pthread_mutex_destroy(&arena->lock);
    free(arena);
}

int bxi_arena_fd(const struct bxi_arena *arena)
{
    return arena->pages.fd;
}

uint64_t bxi_arena_bytes(const struct bxi_arena *arena)
{
    return arena->pages.bytes;
}

const unsigned char *bxi_arena_base(const struct bxi_arena *arena)
{
    return arena->pages.base;
}

bool bxi_arena_truncated(const struct bxi_arena *arena)
{
    /* [guard.truncated] relaxed: set before the zeroes can be read. */
    return bxi_load_relaxed(&arena->truncated) != 0;
}

void bxi_arena_read(struct bxi_arena *arena, struct bxi_arena_stats *stats)
{
    if (bxi_pages_is_forked(&arena->pages)) {
        memset(stats, 0, sizeof(*stats));
        return;
    }
    pthread_mutex_lock(&arena->lock);
    stats->size_bytes = arena->pages.bytes;
    stats->used_bytes = arena->used;
    stats->committed_bytes = bxi_pages_committed(&arena->pages);
    stats->high_water_bytes = high_water(arena);
    pthread_mutex_unlock(&arena->lock);
}

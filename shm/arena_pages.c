/* SPDX-License-Identifier: MIT */
/*
 * The pages of an arena, with jemalloc on top: bxi_pages_ask gets a block from jemalloc, whose extents come from the
 * mapping of the object by the extent hooks below. The head of arena.c has the reasons.
 *
 * Who runs it: the thread that allocates, frees or trims, with no lock of arena.c held except in bxi_pages_start; the
 * hooks also run in any thread of the process that purges all of jemalloc's arenas. `lock` is held during fallocate,
 * which locks the file anyway: so the descriptor is never used after close, when its number may be another file's.
 *
 * A thread that enters jemalloc takes one of four slots: a lock, and the data that jemalloc keeps of a thread.
 * jemalloc's own way allocates that data in a thread's first call and aborts if there is no memory (tools/jemalloc.sh).
 * With slots it is static, and every entry returns an error instead. One lock for all would do, but a thread whose
 * blocks are not on a shelf would wait while another one allocates pages. The first slot is the only one until
 * jemalloc is initialised, which it cannot do in two threads. fork takes all slots, so that the child may start a job
 * of its own.
 *
 * How it works: jemalloc would request extents piece by piece and never merge two pieces, so a small arena would soon
 * have no room for a large block. Therefore the first allocation is for nearly the whole range, while the hooks only
 * pretend to commit pages: jemalloc requests one piece. It is freed at once and leaves a single extent. The extent has
 * a size class of jemalloc's, so it may extend beyond the object; there the mapping has no memory, and no page is ever
 * committed.
 *
 * Extents are holes at first. The commit hook allocates their pages and may fail, so a full /dev/shm is an error here
 * and not a SIGBUS later. jemalloc's own records are in private memory (metadata_use_hooks is false, and
 * bxi_pages_start fails if jemalloc used the mapping for them anyway). Freed extents stay dirty in jemalloc and do not
 * decay; a purge decommits them. For jemalloc a decommit always succeeds; here it returns pages above `keep` bytes to
 * /dev/shm and keeps the others as spare pages, because the first touch of a new page costs three to five times a
 * touch of an allocated one. The commit hook zeroes a spare page, as it must. There is no hook that purges:
 * MADV_DONTNEED does not zero shared pages, and a hole that jemalloc does not know of would raise SIGBUS.
 *
 * In a forked child, which has the pages as they were, the hooks refuse.
 *
 * Killed at any instruction: allocated pages stay allocated until the name and all mappings are gone.
 */
#include "arena_pages.h"

#include "arena.h"
#include "file.h"
#include "fork.h"
#include "layout.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define SLOTS (sizeof(slots) / sizeof(slots[0]))
#define CREATE_MIB "experimental.arenas_create_ext"
#define RECORDS_BYTES ((size_t)8 << 20) /* more than jemalloc maps for records at first: 2 MiB, twice for alignment */
#define CHUNK_PAGES 4096u               /* 16 MiB: a signal makes fallocate start anew */

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static pthread_mutex_t slots[] = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER,
                                   PTHREAD_MUTEX_INITIALIZER };
static bxi_a32 is_initialised;          /* jemalloc; written with the first slot */
static _Thread_local int hook_error;    /* from the hooks to bxi_pages_ask */

/* tools/jemalloc.sh: this thread has the data of the slot from now on. */
void bxi_je_use(unsigned slot);

static void take_all(void)
{
    for (unsigned slot = 0; slot < SLOTS; slot++)
        pthread_mutex_lock(&slots[slot]);
}

static void leave_all(void)
{
    for (unsigned slot = 0; slot < SLOTS; slot++)
        pthread_mutex_unlock(&slots[slot]);
}

static void watch_forks(void)
{
    pthread_atfork(take_all, leave_all, leave_all);
}

/* A slot that is free; the first one if none is. */
static unsigned take_slot(void)
{
    for (unsigned slot = 0; slot < SLOTS; slot++)
        if (pthread_mutex_trylock(&slots[slot]) == 0)
            return slot;
    pthread_mutex_lock(&slots[0]);
    return 0;
}

/* Returns the slot to leave. A call of jemalloc follows, and fails if it cannot be initialised. */
static unsigned enter_jemalloc(void)
{
    bool retains;
    size_t bytes = sizeof(retains);

    pthread_once(&fork_once, watch_forks);
    /* [jemalloc.initialised] acquire, pairs with the release below: without it another slot sees half a jemalloc. */
    if (bxi_load_acquire(&is_initialised) != 0) {
        unsigned slot = take_slot();
        bxi_je_use(slot);
        return slot;
    }
    pthread_mutex_lock(&slots[0]);
    bxi_je_use(0);
    if (bxi_je_mallctl("opt.retain", &retains, &bytes, NULL, 0) == 0)
        /* [jemalloc.initialised] release, pairs with the acquire above. */
        bxi_store_release(&is_initialised, 1);
    return 0;
}

static void leave_jemalloc(unsigned slot)
{
    pthread_mutex_unlock(&slots[slot]);
}

bool bxi_pages_is_forked(const struct bxi_pages *pages)
{
    /* [forks] relaxed: written in a child that has one thread. */
    return bxi_load_relaxed(&bxi_forks) != pages->forks;
}

/* Under lock. */
static void set_committed(struct bxi_pages *pages, uint64_t bytes)
{
    /* [arena.committed] relaxed: lock orders the writers. */
    bxi_store_relaxed(&pages->committed, bytes);
}

/* ---- Pages ----------------------------------------------------------------------------------- */

/* Allocates pages [first, end): 0, or -errno. */
static int allocate_pages(struct bxi_pages *pages, uint64_t first, uint64_t end)
{
    return pages->fd < 0 ? -ESHUTDOWN : bxi_file_allocate(pages->fd, first * BXI_PAGE, (end - first) * BXI_PAGE);
}

/* False if that fails: then the pages are still allocated. */
static bool punch_pages(struct bxi_pages *pages, uint64_t first, uint64_t end)
{
    return pages->fd >= 0 && bxi_file_punch(pages->fd, first * BXI_PAGE, (end - first) * BXI_PAGE) == 0;
}

static bool is_spare(const struct bxi_pages *pages, uint64_t page)
{
    return pages->spare_bits[page / 64] >> page % 64 & 1;
}

static void flip_spare(struct bxi_pages *pages, uint64_t first, uint64_t end)
{
    for (uint64_t page = first; page < end; page++)
        pages->spare_bits[page / 64] ^= UINT64_C(1) << page % 64;
}

/* The end of the run of spare pages, or of others, that begins at first; at most a chunk. */
static uint64_t run_end(const struct bxi_pages *pages, uint64_t first, uint64_t end)
{
    uint64_t page = first + 1;

    if (end - first > CHUNK_PAGES)
        end = first + CHUNK_PAGES;
    if (pages->spare_pages == 0)
        return end;
    while (page < end && is_spare(pages, page) == is_spare(pages, first))
        page++;
    return page;
}

/* Undoes what commit_pages allocated before it failed; spare pages stay spare. */
static void uncommit_pages(struct bxi_pages *pages, uint64_t first, uint64_t end)
{
    uint64_t next;

    for (uint64_t page = first; page < end; page = next) {
        next = run_end(pages, page, end);
        if (!is_spare(pages, page))
            punch_pages(pages, page, next);
    }
}

/* Under lock. All or none; the pages read as zeroes. */
static int commit_pages(struct bxi_pages *pages, uint64_t first, uint64_t end)
{
    uint64_t next;
    uint64_t added = 0;

    if (pages->pretends)
        return 0;
    if (end > pages->bytes / BXI_PAGE)
        return -ENOMEM;
    for (uint64_t page = first; page < end; page = next) {
        next = run_end(pages, page, end);
        if (is_spare(pages, page))
            continue;
        int rc = allocate_pages(pages, page, next);
        if (rc < 0) {
            uncommit_pages(pages, first, page);
            return rc;
        }
        added += next - page;
    }
    for (uint64_t page = first; page < end && pages->spare_pages > 0; page = next) {
        next = run_end(pages, page, end);
        if (!is_spare(pages, page))
            continue;
        memset(pages->base + page * BXI_PAGE, 0, (next - page) * BXI_PAGE);
        flip_spare(pages, page, next);
        pages->spare_pages -= next - page;
    }
    set_committed(pages, bxi_pages_committed(pages) + added * BXI_PAGE);
    if (end > pages->top_page)
        pages->top_page = end;
    return 0;
}

/* Under lock. Returns pages above `keep` bytes to /dev/shm; the others become spare. */
static void decommit_pages(struct bxi_pages *pages, uint64_t first, uint64_t end)
{
    /* [arena.keep] relaxed: a bound on spare pages; any recent value is good. */
    uint64_t keep = bxi_load_relaxed(&pages->keep);
    uint64_t held = bxi_pages_committed(pages);
    uint64_t above = held > keep ? (held - keep) / BXI_PAGE : 0;

    if (pages->pretends)
        return;
    if (above > end - first)
        above = end - first;
    if (above > 0 && punch_pages(pages, end - above, end)) {
        set_committed(pages, held - above * BXI_PAGE);
        end -= above;
    }
    flip_spare(pages, first, end);
    pages->spare_pages += end - first;
}

void bxi_pages_drop_spare(struct bxi_pages *pages)
{
    pthread_mutex_lock(&pages->lock);
    uint64_t end = pages->top_page;
    uint64_t next;

    for (uint64_t page = 0; page < end && pages->spare_pages > 0; page = next) {
        next = run_end(pages, page, end);
        if (!is_spare(pages, page) || !punch_pages(pages, page, next))
            continue;
        flip_spare(pages, page, next);
        pages->spare_pages -= next - page;
        set_committed(pages, bxi_pages_committed(pages) - (next - page) * BXI_PAGE);
    }
    pthread_mutex_unlock(&pages->lock);
}

/* ---- Extent hooks ---------------------------------------------------------------------------- */

static void *hook_alloc(extent_hooks_t *hooks, void *wanted, size_t bytes, size_t alignment, bool *zero,
                        bool *commit, unsigned index)
{
    struct bxi_pages *pages = (struct bxi_pages *)hooks;
    void *extent = NULL;
    int rc = 0;

    (void)index;
    if (wanted != NULL || bxi_pages_is_forked(pages))
        return NULL;
    pthread_mutex_lock(&pages->lock);
    uintptr_t base = (uintptr_t)pages->base;
    uint64_t at = ((base + pages->bump + alignment - 1) & ~(uintptr_t)(alignment - 1)) - base;
    if (at > pages->extent_bytes || bytes > pages->extent_bytes - at)
        rc = -ENOMEM;
    else if (*commit)
        rc = commit_pages(pages, at / BXI_PAGE, (at + bytes) / BXI_PAGE);
    if (rc < 0) {
        /* After a refused commit jemalloc requests another extent: the first reason is the one that counts. */
        hook_error = hook_error != 0 ? hook_error : rc;
        goto unlock;
    }
    *zero = true;
    pages->bump = at + bytes;
    extent = pages->base + at;
unlock:
    pthread_mutex_unlock(&pages->lock);
    return extent;
}

/* Commits or decommits a part of an extent. False: it failed. */
static bool set_part(extent_hooks_t *hooks, const void *extent, size_t offset, size_t length, bool commits)
{
    struct bxi_pages *pages = (struct bxi_pages *)hooks;
    uint64_t first = ((uint64_t)((const unsigned char *)extent - pages->base) + offset) / BXI_PAGE;
    uint64_t end = first + length / BXI_PAGE;
    int rc = 0;

    if (bxi_pages_is_forked(pages))
        return false;
    pthread_mutex_lock(&pages->lock);
    if (commits)
        rc = commit_pages(pages, first, end);
    else
        decommit_pages(pages, first, end);
    pthread_mutex_unlock(&pages->lock);
    if (rc < 0)
        hook_error = rc;
    return rc == 0;
}

static bool hook_commit(extent_hooks_t *hooks, void *extent, size_t bytes, size_t offset, size_t length,
                        unsigned index)
{
    (void)bytes;
    (void)index;
    return !set_part(hooks, extent, offset, length, true);
}

static bool hook_decommit(extent_hooks_t *hooks, void *extent, size_t bytes, size_t offset, size_t length,
                          unsigned index)
{
    (void)bytes;
    (void)index;
    return !set_part(hooks, extent, offset, length, false);
}

/* One mapping: extents may be split anywhere. */
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

/* The hooks that are NULL: jemalloc keeps an extent that it would give back (dalloc) decommitted, for later; it never
 * purges (lazy, forced); and the whole mapping is unmapped at once (destroy). */
static const extent_hooks_t arena_hooks = {
    .alloc = hook_alloc,
    .commit = hook_commit,
    .decommit = hook_decommit,
    .split = hook_split,
    .merge = hook_merge,
};

/* ---- jemalloc's arena ------------------------------------------------------------------------ */

/* "arena.<index>.<what>" */
static int control(const struct bxi_pages *pages, const char *what, void *value, size_t bytes)
{
    char name[48];

    snprintf(name, sizeof(name), "arena.%u.%s", pages->index, what);
    unsigned slot = enter_jemalloc();
    int rc = -bxi_je_mallctl(name, NULL, NULL, value, bytes);
    leave_jemalloc(slot);
    return rc;
}

/* Could jemalloc get private memory for its records? */
static bool has_memory(void)
{
    void *memory = mmap(NULL, RECORDS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return memory != MAP_FAILED && munmap(memory, RECORDS_BYTES) == 0;
}

static void set_pretends(struct bxi_pages *pages, bool pretends)
{
    pthread_mutex_lock(&pages->lock);
    pages->pretends = pretends;
    pthread_mutex_unlock(&pages->lock);
}

void *bxi_pages_ask(struct bxi_pages *pages, size_t bytes, int *error)
{
    const int flags = MALLOCX_ARENA(pages->index) | MALLOCX_TCACHE_NONE | MALLOCX_ALIGN(BXI_ARENA_ALIGN);

    unsigned slot = enter_jemalloc();
    hook_error = 0;
    void *block = bxi_je_mallocx(bytes, flags);
    int rc = hook_error;
    leave_jemalloc(slot);
    /* A hook also refuses where jemalloc has an extent, and no memory for the record of its part. */
    if (block == NULL && (rc == 0 || (rc == -ENOMEM && !has_memory())))
        rc = -ENOBUFS;
    *error = block != NULL ? 0 : rc;
    return block;
}

static uint64_t bump_of(struct bxi_pages *pages)
{
    pthread_mutex_lock(&pages->lock);
    uint64_t bump = pages->bump;
    pthread_mutex_unlock(&pages->lock);
    return bump;
}

/* For a block of the class below extent_bytes, plus the page that jemalloc puts before large blocks, it requests
 * extent_bytes. If it does not, it requests extents piece by piece later. -ENOBUFS, also if jemalloc got the extent and
 * then no private memory to register it: it forgets the extent, and the addresses are used up. */
static int make_one_extent(struct bxi_pages *pages)
{
    int error;

    set_pretends(pages, true);
    void *block = bxi_pages_ask(pages, bxi_class_bytes(bxi_class_of(pages->extent_bytes) - 1), &error);
    if (block != NULL)
        bxi_pages_free(block);
    bxi_pages_purge(pages);
    set_pretends(pages, false);
    return block == NULL && (error == -ENOBUFS || bump_of(pages) != 0) ? -ENOBUFS : 0;
}

int bxi_pages_start(struct bxi_pages *pages)
{
    struct {
        extent_hooks_t *hooks;
        bool metadata_use_hooks;
    } config = { .hooks = &pages->hooks, .metadata_use_hooks = false };
    size_t bytes = sizeof(pages->index);
    ssize_t never = -1;

    unsigned slot = enter_jemalloc();
    int rc = -bxi_je_mallctl(CREATE_MIB, &pages->index, &bytes, &config, sizeof(config));
    leave_jemalloc(slot);
    if (rc < 0)
        return rc == -EAGAIN || rc == -ENOMEM ? -ENOBUFS : rc;
    rc = bump_of(pages) != 0 ? -ENOTSUP : control(pages, "dirty_decay_ms", &never, sizeof(never));
    if (rc == 0)
        rc = make_one_extent(pages);
    if (rc == 0)
        return 0;
    control(pages, "destroy", NULL, 0);
    pthread_mutex_lock(&pages->lock);
    pages->bump = 0;
    pthread_mutex_unlock(&pages->lock);
    return rc;
}

void bxi_pages_init(struct bxi_pages *pages)
{
    pages->hooks = arena_hooks;
    /* [forks] relaxed: as in bxi_pages_is_forked. */
    pages->forks = bxi_load_relaxed(&bxi_forks);
    pthread_mutex_init(&pages->lock, NULL);
}

void bxi_pages_free(void *block)
{
    unsigned slot = enter_jemalloc();
    bxi_je_dallocx(block, MALLOCX_TCACHE_NONE);
    leave_jemalloc(slot);
}

size_t bxi_pages_block_bytes(const void *block)
{
    unsigned slot = enter_jemalloc();
    size_t bytes = bxi_je_sallocx(block, 0);
    leave_jemalloc(slot);
    return bytes;
}

void bxi_pages_purge(struct bxi_pages *pages)
{
    control(pages, "purge", NULL, 0);
}

void bxi_pages_close(struct bxi_pages *pages)
{
    pthread_mutex_lock(&pages->lock);
    int fd = pages->fd;
    pages->fd = -1;
    pthread_mutex_unlock(&pages->lock);
    /* Unlocked: a thread that forks may wait for jemalloc's slots, and their holder for this lock. */
    bxi_unshared_close(fd);
}

void bxi_pages_end(struct bxi_pages *pages, bool is_started)
{
    if (is_started)
        control(pages, "destroy", NULL, 0);
    pthread_mutex_destroy(&pages->lock);
}

/* SPDX-License-Identifier: MIT */
/*
 * A peer's arena, mapped read-only, so a borrower cannot write it. Any thread may run this; the last release unmaps.
 * A forked child has the mapping too, which nobody can write. A release in it does nothing: the loans are its parent's,
 * and what was borrowed may get other bytes once the parent has given it back.
 *
 * The private mapping is for borrowers that write. The kernel copies a page when it is written first. The page then
 * stays this process's, whatever becomes of the file, so it is dropped (MADV_DONTNEED) before the memory is given back,
 * and no two users have a page at the same time. Pages that were only read are the file's, and stay mapped: to map them
 * again for the next user, page fault by page fault, takes as long as to add up what is in them. Blocks of 16 KiB and
 * more have their pages for themselves, so only small ones, and one that was lent twice, are refused. So is what would
 * keep more than a part of the owner's memory from it: a borrower may keep what it got for as long as it likes. A kill
 * leaves nothing: all of it is memory of this process.
 */
#include "arena.h"

#include "arena_pages.h"
#include "file.h"
#include "fork.h"
#include "guard.h"
#include "layout.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Of an entry of /proc/self/pagemap: the page is in memory or swapped out; it is a file's. */
#define ENTRY_IS_THERE (UINT64_C(3) << 62)
#define ENTRY_IS_OF_FILE (UINT64_C(1) << 61)
#define ENTRIES 512             /* read at a time: the pages of 2 MiB */
#define KEPT_SHARE 4u           /* the part of the arena, or of /dev/shm if that is smaller, that one borrower keeps */

/* What opens the file again, so that no descriptor is kept. */
static void note_file(struct bxi_arena_view *view, int fd)
{
    char link[32];
    struct stat status;

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (fstat(fd, &status) < 0 || readlink(link, view->path, sizeof view->path - 1) < 0)
        return;
    view->device = status.st_dev;
    view->inode = status.st_ino;
}

int bxi_arena_attach(struct bxi_arena_view **view_out, int fd, uint64_t bytes)
{
    void *base = NULL;

    if (bytes == 0 || bytes > BXI_ARENA_BYTES_MAX)
        return -EPROTO;
    struct bxi_arena_view *view = calloc(1, sizeof(*view));
    if (view == NULL)
        return -ENOMEM;
    int rc = bxi_file_map(fd, bytes, false, &view->truncated, &base);
    if (rc < 0) {
        free(view);
        return rc;
    }
    /* [forks] relaxed: written in a child that has one thread. */
    view->forks = bxi_load_relaxed(&bxi_forks);
    madvise(base, bytes, MADV_DOFORK);          /* file.h; if it fails, children do not have it */
    view->base = base;
    view->bytes = bytes;
    note_file(view, fd);
    pthread_mutex_init(&view->lock, NULL);
    /* [arena.view_refs] relaxed: no other thread has the view yet. */
    bxi_store_relaxed(&view->refs, 1);
    *view_out = view;
    return 0;
}

struct bxi_arena_view *bxi_arena_view_acquire(struct bxi_arena_view *view)
{
    /* [arena.view_refs] acquire and release, pairs with the one in bxi_arena_view_release. */
    bxi_add(&view->refs, 1);
    return view;
}

static bool is_forked(const struct bxi_arena_view *view)
{
    /* [forks] relaxed: as in bxi_arena_attach. */
    return bxi_load_relaxed(&bxi_forks) != view->forks;
}

void bxi_arena_view_release(struct bxi_arena_view *view)
{
    if (is_forked(view))
        return;
    /* [arena.view_refs] acquire and release, pairs with itself: the last release sees what the others did. */
    if (bxi_add(&view->refs, (uint32_t)-1) != 1)
        return;
    void *base = (void *)(uintptr_t)view->base;
    bxi_guard_drop(base);
    munmap(base, view->bytes);
    if (view->private_base != NULL) {
        bxi_guard_drop(view->private_base);
        munmap(view->private_base, view->bytes);
        if (view->pagemap >= 0)
            close(view->pagemap);
    }
    free(view->private_pages);
    free(view);
}

/* ---- The private mapping ------------------------------------------------------------------------------- */

/* The arena's file; -1: it has no name any more, or there is no descriptor left. */
static int open_file(const struct bxi_arena_view *view)
{
    struct stat status;
    int fd = open(view->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

    if (fd < 0 || (fstat(fd, &status) == 0 && status.st_dev == view->device && status.st_ino == view->inode))
        return fd;
    close(fd);
    return -1;
}

static uint64_t most_pages(const struct bxi_arena_view *view, int fd)
{
    struct statvfs place;
    uint64_t bytes = view->bytes;

    if (fstatvfs(fd, &place) == 0 && place.f_blocks != 0 && place.f_blocks < bytes / place.f_frsize)
        bytes = place.f_blocks * place.f_frsize;
    return bytes / BXI_PAGE / KEPT_SHARE;
}

/* Under the view's lock. False: there is none. */
static bool map_private(struct bxi_arena_view *view)
{
    void *base;
    int fd;

    if (view->private_base != NULL)
        return true;
    fd = open_file(view);
    if (fd < 0)
        return false;
    view->private_pages = calloc(view->bytes / BXI_PAGE / 64 + 1, sizeof *view->private_pages);
    view->private_left = most_pages(view, fd);
    base = mmap(NULL, view->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
    close(fd);
    if (view->private_pages != NULL && base != MAP_FAILED &&
        bxi_guard_add(base, view->bytes, true, &view->truncated) == 0) {
        view->private_base = base;
        view->pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
        return true;
    }
    if (base != MAP_FAILED)
        munmap(base, view->bytes);
    free(view->private_pages);
    view->private_pages = NULL;
    return false;
}

/* The pages of a range of the view: from the first, which is returned, to before *end. */
static uint64_t pages_of(const struct bxi_arena_view *view, const void *memory, size_t bytes, uint64_t *end)
{
    uint64_t offset = (uint64_t)((const unsigned char *)memory - view->base);

    *end = (offset + bytes + BXI_PAGE - 1) / BXI_PAGE;
    return offset / BXI_PAGE;
}

/* The bits of the word of *page that stand for it and the pages behind it, to before `end`. Moves *page behind them. */
static uint64_t bits_of(uint64_t *page, uint64_t end)
{
    uint64_t bits = ~UINT64_C(0) << *page % 64, next = (*page / 64 + 1) * 64;

    *page = next < end ? next : end;
    return bits & ~UINT64_C(0) >> (next - *page);
}

static bool are_free(const struct bxi_arena_view *view, uint64_t first, uint64_t end)
{
    for (uint64_t page = first; page < end;) {
        uint64_t word = view->private_pages[page / 64];

        if ((word & bits_of(&page, end)) != 0)
            return false;
    }
    return true;
}

static void mark(struct bxi_arena_view *view, uint64_t first, uint64_t end)
{
    for (uint64_t page = first; page < end;) {
        uint64_t *word = &view->private_pages[page / 64];

        *word ^= bits_of(&page, end);
    }
}

void *bxi_arena_view_private(struct bxi_arena_view *view, const void *memory, size_t bytes)
{
    uint64_t end, first = pages_of(view, memory, bytes, &end);
    bool is_free;

    if (is_forked(view))
        return NULL;
    pthread_mutex_lock(&view->lock);
    is_free = map_private(view) && end - first <= view->private_left && are_free(view, first, end);
    if (is_free) {
        mark(view, first, end);
        view->private_left -= end - first;
    }
    pthread_mutex_unlock(&view->lock);
    return is_free ? view->private_base + ((const unsigned char *)memory - view->base) : NULL;
}

bool bxi_arena_view_is_written(const struct bxi_arena_view *view, const void *memory, size_t bytes)
{
    uint64_t end, first = pages_of(view, memory, bytes, &end), entries[ENTRIES];
    uint64_t before = (uintptr_t)view->private_base / BXI_PAGE;

    if (is_forked(view))
        return true;                    /* the descriptor shows the parent's pages */
    for (uint64_t count; first < end; first += count) {
        count = end - first < ENTRIES ? end - first : ENTRIES;
        if (pread(view->pagemap, entries, count * sizeof entries[0], (off_t)((before + first) * sizeof entries[0])) !=
            (ssize_t)(count * sizeof entries[0]))
            return true;
        for (uint64_t i = 0; i < count; i++)
            if ((entries[i] & ENTRY_IS_THERE) != 0 && (entries[i] & ENTRY_IS_OF_FILE) == 0)
                return true;
    }
    return false;
}

void bxi_arena_view_forget(struct bxi_arena_view *view, const void *memory, size_t bytes)
{
    uint64_t end, first = pages_of(view, memory, bytes, &end);

    if (is_forked(view))
        return;
    if (bxi_arena_view_is_written(view, memory, bytes) &&
        madvise(view->private_base + first * BXI_PAGE, (end - first) * BXI_PAGE, MADV_DONTNEED) < 0)
        return;                     /* the program has locked them (mlock), what was written stays: nobody gets them */
    pthread_mutex_lock(&view->lock);
    mark(view, first, end);
    view->private_left += end - first;
    pthread_mutex_unlock(&view->lock);
}

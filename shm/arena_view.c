/* SPDX-License-Identifier: MIT */
/*
 * A peer's arena, mapped read-only, so a borrower cannot write it. Any thread may run this; the last release unmaps.
 * A forked child does not have the mapping and may have mapped something else there, so a release in it does nothing.
 */
#include "arena.h"

#include "arena_pages.h"
#include "fork.h"
#include "guard.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* Callers get a pointer to the first member. */
struct counted_view {
    struct bxi_arena_view view;
    unsigned forks;
};

int bxi_arena_attach(struct bxi_arena_view **view_out, int fd, uint64_t bytes)
{
    struct stat status;
    int rc;

    if (fstat(fd, &status) < 0)
        return -errno;
    if (!S_ISREG(status.st_mode) || bytes == 0 || bytes > BXI_ARENA_BYTES_MAX ||
        (uint64_t)status.st_size != bytes)
        return -EPROTO;
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
    /* [forks] relaxed: written in a child that has one thread. */
    counted->forks = bxi_load_relaxed(&bxi_forks);
    view->base = base;
    view->bytes = bytes;
    /* [arena.view_refs] relaxed: no other thread has the view yet. */
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

    /* [forks] relaxed: as in bxi_arena_attach. */
    if (bxi_load_relaxed(&bxi_forks) != counted->forks)
        return;
    /* [arena.view_refs] acquire and release, pairs with itself: the last release sees what the others did. */
    if (bxi_add(&view->refs, (uint32_t)-1) != 1)
        return;
    void *base = (void *)(uintptr_t)view->base;
    bxi_guard_drop(base);
    munmap(base, view->bytes);
    free(counted);
}

/* SPDX-License-Identifier: MIT */
/*
 * A peer's arena, mapped read-only, so a borrower cannot write it. Any thread may run this; the last release unmaps.
 * A forked child does not have the mapping and may have mapped something else there, so a release in it does nothing.
 */
#include "arena.h"

#include "arena_pages.h"
#include "file.h"
#include "fork.h"
#include "guard.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

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
    view->base = base;
    view->bytes = bytes;
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

void bxi_arena_view_release(struct bxi_arena_view *view)
{
    /* [forks] relaxed: as in bxi_arena_attach. */
    if (bxi_load_relaxed(&bxi_forks) != view->forks)
        return;
    /* [arena.view_refs] acquire and release, pairs with itself: the last release sees what the others did. */
    if (bxi_add(&view->refs, (uint32_t)-1) != 1)
        return;
    void *base = (void *)(uintptr_t)view->base;
    bxi_guard_drop(base);
    munmap(base, view->bytes);
    free(view);
}

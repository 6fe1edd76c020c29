/* SPDX-License-Identifier: MIT */
/*
 * shm/arena_view.c: which arenas may be mapped, the lifetime of a view, and that no view leaves a mapping or a guard
 * behind.
 */
#include "arena_fixture.h"

#include "shm/guard.h"

#define VIEW_BYTES (2 * MIB)
#define GUARDS 1024

TestSuite(arena_view, .fini = release, .timeout = 60);

static void create_and_fill(void)
{
    create(VIEW_BYTES);
    memset(alloc(MIB), 0x5a, MIB);
}

/* Views are read-only: the owner's own mapping is not counted. */
static int views_mapped(void)
{
    return mappings_of(name, " r--s ");
}

static int attach(struct bxi_arena_view **view, uint64_t bytes)
{
    return bxi_arena_attach(view, bxi_arena_fd(arena), bytes);
}

/* ---- What is refused --------------------------------------------------------------------------- */

Test(arena_view, of_another_size_than_its_file_is_refused, .init = create_and_fill)
{
    struct bxi_arena_view *view = NULL;

    cr_expect_eq(attach(&view, 0), -EPROTO);
    cr_expect_eq(attach(&view, VIEW_BYTES - BXI_PAGE), -EPROTO);
    cr_expect_eq(attach(&view, VIEW_BYTES + BXI_PAGE), -EPROTO);
    cr_expect_eq(attach(&view, UINT64_MAX), -EPROTO);
    cr_assert_eq(ftruncate(bxi_arena_fd(arena), (off_t)VIEW_BYTES - 1), 0);
    cr_expect_eq(attach(&view, VIEW_BYTES), -EPROTO);
    cr_expect_null(view);
    cr_expect_eq(views_mapped(), 0);
}

Test(arena_view, of_no_bytes_is_refused_though_the_file_has_none)
{
    struct bxi_arena_view *view = NULL;
    int fd = memfd_create("boxcar-test-view", MFD_CLOEXEC);

    cr_expect_eq(bxi_arena_attach(&view, fd, 0), -EPROTO);
    cr_expect_null(view);
    close(fd);
}

/* A size above the limit of arenas, and a file of that size. */
Test(arena_view, larger_than_any_arena_is_refused)
{
    struct bxi_arena_view *view = NULL;
    int fd = memfd_create("boxcar-test-view", MFD_CLOEXEC);
    uint64_t bytes = (UINT64_C(64) << 40) + BXI_PAGE;

    cr_assert_eq(ftruncate(fd, (off_t)bytes), 0);
    cr_expect_eq(bxi_arena_attach(&view, fd, bytes), -EPROTO);
    cr_expect_null(view);
    close(fd);
}

Test(arena_view, of_what_is_no_file_is_refused)
{
    struct bxi_arena_view *view = NULL;
    char path[] = "/tmp/bxtest-XXXXXX";
    struct stat status;
    int pipes[2];

    cr_assert_eq(pipe2(pipes, O_CLOEXEC), 0);
    cr_expect_eq(bxi_arena_attach(&view, pipes[0], VIEW_BYTES), -EPROTO);
    cr_assert_not_null(mkdtemp(path));
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cr_assert_eq(fstat(fd, &status), 0);
    uint64_t bytes = status.st_size > 0 ? (uint64_t)status.st_size : BXI_PAGE;
    cr_expect_eq(bxi_arena_attach(&view, fd, bytes), -EPROTO);
    cr_expect_eq(bxi_arena_attach(&view, -1, BXI_PAGE), -EBADF);
    cr_expect_null(view);
    close(fd);
    rmdir(path);
}

/* A descriptor without read access cannot be mapped. */
Test(arena_view, that_may_not_be_read_is_refused, .init = create_and_fill)
{
    struct bxi_arena_view *view = NULL;
    char path[128];

    snprintf(path, sizeof(path), "/dev/shm%s", name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    cr_expect_eq(bxi_arena_attach(&view, fd, VIEW_BYTES), -EACCES);
    cr_expect_null(view);
    close(fd);
}

/* ---- Its life ---------------------------------------------------------------------------------- */

Test(arena_view, is_mapped_until_its_last_reference_goes, .init = create_and_fill)
{
    struct bxi_arena_view *view = NULL;

    cr_assert_eq(attach(&view, VIEW_BYTES), 0);
    cr_expect_eq(view->bytes, VIEW_BYTES);
    cr_expect_eq(views_mapped(), 1);
    cr_expect_eq(bxi_arena_view_acquire(view), view);
    cr_expect_eq(bxi_arena_view_acquire(view), view);
    bxi_arena_view_release(view);
    bxi_arena_view_release(view);
    cr_expect_eq(views_mapped(), 1);
    cr_expect_eq(memchr(view->base, 0x5a, VIEW_BYTES) != NULL, true);
    bxi_arena_view_release(view);
    cr_expect_eq(views_mapped(), 0);
}

Test(arena_view, takes_no_guard_for_good, .init = create_and_fill)
{
    struct bxi_arena_view *view = NULL;

    for (int i = 0; i < GUARDS + 1; i++) {
        cr_assert_eq(attach(&view, VIEW_BYTES), 0, "attachment %d", i);
        bxi_arena_view_release(view);
    }
}

/* Without a guard a peer that truncates its arena would end this process. */
Test(arena_view, that_cannot_be_guarded_is_not_mapped, .init = create_and_fill)
{
    static bxi_a32 flag;
    static unsigned char nowhere[GUARDS];
    struct bxi_arena_view *view = NULL;
    int guards = 0;

    while (guards < GUARDS && bxi_guard_add(nowhere + guards, 1, false, &flag) == 0)
        guards++;
    cr_assert_lt(guards, GUARDS, "the arena itself has none");
    cr_expect_eq(attach(&view, VIEW_BYTES), -ENOSPC);
    cr_expect_null(view);
    cr_expect_eq(views_mapped(), 0);
    bxi_guard_drop(nowhere);
    cr_expect_eq(attach(&view, VIEW_BYTES), 0);
    bxi_arena_view_release(view);
}

/* ---- Forked children --------------------------------------------------------------------------- */

static struct bxi_arena_view *inherited;

static int child_of_a_view(void)
{
    bxi_arena_view_release(inherited);
    bxi_arena_view_release(inherited);
    if (bxi_arena_view_private(inherited, inherited->base, MIB) != NULL)
        return 1;
    return views_mapped() == 1 && memchr(inherited->base, 0x5a, VIEW_BYTES) != NULL ? 0 : 2;
}

static int writes_to_a_view(void)
{
    *(volatile unsigned char *)(uintptr_t)inherited->base = 1;
    return 0;
}

Test(arena_view, is_read_and_neither_written_nor_unmapped_in_a_forked_child, .init = create_and_fill)
{
    cr_assert_eq(attach(&inherited, VIEW_BYTES), 0);
    expect_in_child(child_of_a_view, NULL);
    cr_expect_eq(in_child(writes_to_a_view), 256 + SIGSEGV);
    cr_expect_eq(memchr(inherited->base, 0x5a, VIEW_BYTES) != NULL, true);
    bxi_arena_view_release(inherited);
}

/* ---- The private mapping ----------------------------------------------------------------------- */

static int private_mappings(void)
{
    return mappings_of(name, " rw-p ");
}

Test(arena_view, is_written_privately, .init = create_and_fill)
{
    struct bxi_arena_view *view = NULL;
    unsigned char *own = alloc(100 * KIB), *private;
    const unsigned char *lent;

    memset(own, 1, 100 * KIB);
    cr_assert_eq(attach(&view, VIEW_BYTES), 0);
    lent = view->base + (own - bxi_arena_base(arena));
    for (int round = 1; round < 4; round++) {
        private = bxi_arena_view_private(view, lent + 1, 100 * KIB - 1);
        cr_assert_not_null(private);
        cr_expect_eq(private_mappings(), 1);
        cr_expect_eq(private[0], round, "what was written in the round before is gone");
        cr_expect_eq(private[100 * KIB - 2], round);
        memset(private, 77, 100 * KIB - 1);
        cr_expect_eq(own[1], round);
        cr_expect_eq(lent[1], round);
        cr_expect_null(bxi_arena_view_private(view, lent + 100 * KIB - 1, 1), "the last page has a user");
        cr_expect_not_null(bxi_arena_view_private(view, lent + 200 * KIB, 1));
        bxi_arena_view_forget(view, lent + 200 * KIB, 1);
        bxi_arena_view_forget(view, lent + 1, 100 * KIB - 1);
        memset(own, round + 1, 100 * KIB);
    }
    bxi_arena_view_release(view);
    cr_expect_eq(private_mappings(), 0);
    cr_expect_eq(views_mapped(), 0);
}

Test(arena_view, is_a_quarter_private_at_most, .init = create_and_fill)
{
    struct bxi_arena_view *view = NULL;

    cr_assert_eq(attach(&view, VIEW_BYTES), 0);
    cr_expect_null(bxi_arena_view_private(view, view->base, MIB));
    cr_expect_not_null(bxi_arena_view_private(view, view->base, VIEW_BYTES / 4));
    cr_expect_null(bxi_arena_view_private(view, view->base + MIB, 1));
    bxi_arena_view_forget(view, view->base, VIEW_BYTES / 4);
    cr_expect_not_null(bxi_arena_view_private(view, view->base + MIB, VIEW_BYTES / 4));
    bxi_arena_view_release(view);
}

/* The kernel drops no page that is locked. */
Test(arena_view, has_pages_that_were_locked_for_nobody_else, .init = create_and_fill)
{
    struct bxi_arena_view *view = NULL;
    unsigned char *private;

    cr_assert_eq(attach(&view, VIEW_BYTES), 0);
    private = bxi_arena_view_private(view, view->base, 100 * KIB);
    memset(private, 77, 100 * KIB);
    cr_assert_eq(mlock(private, 1), 0);
    bxi_arena_view_forget(view, view->base, 100 * KIB);
    private = bxi_arena_view_private(view, view->base, 100 * KIB);
    cr_expect(private == NULL || private[0] == view->base[0]);
    bxi_arena_view_release(view);
}

static void set_last(struct bxi_arena_view *view, char c)
{
    view->path[strlen(view->path) - 1] = c;
}

/* Without the file's name, with another file of that name, or without a guard nothing is mapped; later it is. */
Test(arena_view, that_cannot_be_written_privately_says_so, .init = create_and_fill)
{
    static bxi_a32 flag;
    static unsigned char nowhere[GUARDS];
    struct bxi_arena_view *view = NULL;
    int guards = 0, fds = open_descriptors();

    cr_assert_eq(attach(&view, VIEW_BYTES), 0);
    char last = view->path[strlen(view->path) - 1];
    set_last(view, '#');
    cr_expect_null(bxi_arena_view_private(view, view->base, 1));
    set_last(view, last);
    view->inode++;
    cr_expect_null(bxi_arena_view_private(view, view->base, 1));
    view->inode--;
    while (guards < GUARDS && bxi_guard_add(nowhere + guards, 1, false, &flag) == 0)
        guards++;
    cr_expect_null(bxi_arena_view_private(view, view->base, 1));
    cr_expect_eq(private_mappings(), 0);
    cr_expect_eq(open_descriptors(), fds);
    bxi_guard_drop(nowhere);
    cr_expect_not_null(bxi_arena_view_private(view, view->base, 1));
    bxi_arena_view_release(view);
    cr_expect_eq(private_mappings(), 0);
    cr_expect_eq(open_descriptors(), fds);
}

Test(arena_view, is_read_privately_after_its_file_was_truncated, .init = create_and_fill)
{
    struct bxi_arena_view *view = NULL;
    unsigned char *private;

    cr_assert_eq(attach(&view, VIEW_BYTES), 0);
    private = bxi_arena_view_private(view, view->base, 100 * KIB);
    private[0] = 1;
    cr_assert_eq(ftruncate(bxi_arena_fd(arena), 0), 0);
    cr_expect_eq(private[0] | private[100 * KIB - 1], 0);
    private[0] = 2;
    cr_expect_eq(bxi_load_relaxed(&view->truncated), 1);
    bxi_arena_view_forget(view, view->base, 100 * KIB);
    bxi_arena_view_release(view);
}

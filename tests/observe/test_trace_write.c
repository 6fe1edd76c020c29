/* SPDX-License-Identifier: MIT */
/*
 * lib/observe/trace_file.c where the system does less than it is asked for: writes that are cut short or interrupted, a
 * lock that another process holds for a while, a file that is long or has no whole line. This file replaces pwrite and
 * flock in the whole test program.
 */
#include "trace_file_fixture.h"

static int interruptions;           /* how many more calls of pwrite fail with EINTR */
static size_t cut_to;               /* bytes that the next pwrite writes at most; 0: no limit */
static int held = -1;               /* a descriptor that holds the lock */
static int refusals_left;           /* how often flock fails before `held` is closed */

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    if (interruptions > 0) {
        interruptions--;
        errno = EINTR;
        return -1;
    }
    if (cut_to > 0 && cut_to < bytes) {
        bytes = cut_to;
        cut_to = 0;
    }
    return syscall(SYS_pwrite64, fd, data, bytes, offset);
}

int flock(int fd, int operation)
{
    int rc = (int)syscall(SYS_flock, fd, operation);

    if (rc < 0 && held >= 0 && --refusals_left <= 0) {
        int error = errno;

        close(held);
        held = -1;
        errno = error;
    }
    return rc;
}

TestSuite(trace_write, .init = choose_path, .fini = remove_file, .timeout = 60);

/* How many events the file has, with its first line; -1 if it is no JSON. */
static int events(void)
{
    struct json *root = json_load(path);
    int count = 0;

    if (root == NULL)
        return -1;
    for (const struct json *event = root->first; event != NULL; event = event->next)
        count++;
    json_free(root);
    return count;
}

Test(trace_write, that_is_cut_short_is_an_error_and_leaves_the_array_whole)
{
    struct bxi_trace_file file = begin(7);

    cr_assert_eq(append(&file, EVENT("a")), 0);
    for (size_t bytes = 1; bytes < 2 * strlen(EVENT("a")); bytes++) {
        cut_to = bytes;
        cr_assert_eq(append(&file, EVENT("a") EVENT("a")), -ENOSPC, "cut to %zu", bytes);
        cr_assert_eq(events(), 2, "cut to %zu", bytes);
    }
    cr_assert_eq(append(&file, EVENT("a")), 0);
    cr_expect_eq(events(), 3);
    close(file.fd);
}

Test(trace_write, is_repeated_after_a_signal)
{
    struct bxi_trace_file file = begin(7);

    interruptions = 5;
    cr_expect_eq(append(&file, EVENT("a")), 0);
    cr_expect_eq(interruptions, 0);
    cr_expect_eq(events(), 2);
    close(file.fd);
}

/* A worker of the previous job may still write its last events. */
Test(trace_write, of_the_first_line_waits_for_the_lock)
{
    close(begin(7).fd);
    held = open(path, O_RDWR | O_CLOEXEC);
    cr_assert_eq(flock(held, LOCK_EX), 0);
    refusals_left = 5;

    struct bxi_trace_file file = begin(7);

    cr_expect_eq(held, -1, "it began without the lock");
    cr_expect_eq(append(&file, EVENT("a")), 0);
    cr_expect_eq(events(), 2);
    close(file.fd);
}

Test(trace_write, is_refused_if_no_line_is_whole)
{
    static char junk[10000];
    struct bxi_trace_file file = begin(7);
    struct stat before, after;
    off_t end = lseek(file.fd, 0, SEEK_END);

    memset(junk, 'x', sizeof junk);
    cr_assert_eq(pwrite(file.fd, junk, sizeof junk, end - 3), (ssize_t)sizeof junk);
    cr_assert_eq(fstat(file.fd, &before), 0);
    cr_expect_eq(append(&file, EVENT("a")), -EIO);
    cr_assert_eq(fstat(file.fd, &after), 0);
    cr_expect_eq(after.st_size, before.st_size);
    close(file.fd);
}

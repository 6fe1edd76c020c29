/* SPDX-License-Identifier: MIT */
/*
 * What shm/sleeper.c passes to the kernel: timeouts, and the files that it holds. This file replaces epoll_pwait2 and
 * ppoll in the whole program: they record the timeout and then wait.
 */
#include "shm/sleeper.h"
#include "tests/harness/child.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#define MS UINT64_C(1000000)
#define YEAR_NS (UINT64_C(365) * 86400 * 1000000000)

static bool is_noted;               /* a test of this file runs: record, and return at once */
static int pwait2_errno;            /* the error of epoll_pwait2; 0: it waits */
static struct timespec asked;
static bool asked_for_ever;

/* The timeout to wait with. */
static const struct timespec *note(const struct timespec *timeout)
{
    static const struct timespec none;

    if (!is_noted)
        return timeout;
    asked_for_ever = timeout == NULL;
    asked = timeout == NULL ? none : *timeout;
    return &none;
}

int epoll_pwait2(int fd, struct epoll_event *events, int most, const struct timespec *timeout, const sigset_t *mask)
{
    timeout = note(timeout);
    errno = pwait2_errno;
    return errno != 0 ? -1 : (int)syscall(SYS_epoll_pwait2, fd, events, most, timeout, mask, 8);
}

int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
    struct timespec copy = { 0, 0 };

    timeout = note(timeout);
    if (timeout != NULL)
        copy = *timeout;            /* the system call writes what was left of it */
    return (int)syscall(SYS_ppoll, fds, count, timeout != NULL ? &copy : NULL, mask, 8);
}

static struct bxi_sleeper *sleeper;

static void create(enum bxi_sleeper_kind kind)
{
    if (kind == BXI_SLEEPER_URING && bxi_sleeper_probe_uring() < 0)
        cr_skip_test("io_uring is refused here");
    cr_assert_eq(bxi_sleeper_create(kind, &sleeper), 0);
}

static void destroy(void)
{
    bxi_sleeper_destroy(sleeper);
}

TestSuite(sleeper_time, .timeout = 20);

static void wait_for(uint64_t timeout_ns)
{
    uint64_t token;

    cr_assert_eq(bxi_sleeper_wait(sleeper, timeout_ns, &token, 1), 0);
}

static void expect_nanoseconds(void)
{
    is_noted = true;
    wait_for(3000000007);
    cr_expect_eq(asked.tv_sec, 3);
    cr_expect_eq(asked.tv_nsec, 7);
    wait_for(999999999);
    cr_expect_eq(asked.tv_sec, 0);
    cr_expect_eq(asked.tv_nsec, 999999999);
    wait_for(YEAR_NS);
    cr_expect_not(asked_for_ever);
    cr_expect_eq(asked.tv_sec, (time_t)(YEAR_NS / 1000000000));
    wait_for(YEAR_NS + 1);
    cr_expect(asked_for_ever);
    wait_for(UINT64_MAX);
    cr_expect(asked_for_ever);
}

Test(sleeper_time, is_what_was_asked_for_of_epoll, .fini = destroy)
{
    create(BXI_SLEEPER_EPOLL);
    expect_nanoseconds();
    cr_expect_eq(bxi_sleeper_kind(sleeper), BXI_SLEEPER_EPOLL);
}

/* Filters return EPERM or ENOSYS for system calls that they do not know. */
Test(sleeper_time, is_what_was_asked_for_of_poll_after_an_error_of_epoll, .fini = destroy)
{
    static const int errors[] = { ENOSYS, EPERM, EINVAL };

    for (int i = 0; i < 3; i++) {
        destroy();
        create(BXI_SLEEPER_EPOLL);
        pwait2_errno = errors[i];
        expect_nanoseconds();
        cr_expect_eq(bxi_sleeper_kind(sleeper), BXI_SLEEPER_POLL);
    }
}

Test(sleeper_time, goes_on_in_epoll_after_a_signal, .fini = destroy)
{
    create(BXI_SLEEPER_EPOLL);
    pwait2_errno = EINTR;
    wait_for(MS);
    cr_expect_eq(bxi_sleeper_kind(sleeper), BXI_SLEEPER_EPOLL);
}

/* ---- What it holds ----------------------------------------------------------------------------- */

static void expect_no_descriptor_left(enum bxi_sleeper_kind kind)
{
    int before = open_descriptors(), bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    uint64_t token;

    for (int i = 0; i < 3; i++) {
        create(kind);
        cr_assert_eq(bxi_sleeper_watch(sleeper, bell, 1), 0);
        cr_assert_eq(bxi_sleeper_wait(sleeper, 0, &token, 1), 0);
        bxi_sleeper_destroy(sleeper);
    }
    close(bell);
    cr_assert_eq(open_descriptors(), before);
}

Test(sleeper_time, leaves_no_descriptor_of_io_uring) { expect_no_descriptor_left(BXI_SLEEPER_URING); }
Test(sleeper_time, leaves_no_descriptor_of_epoll) { expect_no_descriptor_left(BXI_SLEEPER_EPOLL); }

/* A forgotten file is released without another wait: the next sleep may be far away. */
static void expect_hang_up_without_a_wait(enum bxi_sleeper_kind kind)
{
    uint64_t token;
    int ends[2];

    create(kind);
    signal(SIGPIPE, SIG_IGN);
    cr_assert_eq(pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
    cr_assert_eq(bxi_sleeper_watch(sleeper, ends[0], 1), 0);
    cr_assert_eq(bxi_sleeper_wait(sleeper, 0, &token, 1), 0);
    bxi_sleeper_forget(sleeper, 1);
    close(ends[0]);
    while (write(ends[1], "x", 1) == 1 || errno == EAGAIN)
        sched_yield();
    cr_assert_eq(errno, EPIPE);
    close(ends[1]);
    bxi_sleeper_destroy(sleeper);
}

Test(sleeper_time, holds_nothing_that_it_forgot_in_io_uring) { expect_hang_up_without_a_wait(BXI_SLEEPER_URING); }
Test(sleeper_time, holds_nothing_that_it_forgot_in_epoll) { expect_hang_up_without_a_wait(BXI_SLEEPER_EPOLL); }

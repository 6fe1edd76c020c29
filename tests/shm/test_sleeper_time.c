/* SPDX-License-Identifier: MIT */
/*
 * What shm/sleeper.c passes to the kernel: timeouts, their units, and the files that it holds. This file replaces the
 * two wait functions of epoll in the whole program: they record the timeout and then wait.
 */
#include "shm/sleeper.h"
#include "tests/harness/child.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MS UINT64_C(1000000)
#define YEAR_NS (UINT64_C(365) * 86400 * 1000000000)
#define NOTHING (-1000)

static bool is_noted;               /* a test of this file runs: record, and return at once */
static int pwait2_errno;            /* the error of epoll_pwait2; 0: it waits */
static int asked_ms = NOTHING;
static struct timespec asked;
static bool asked_for_ever;
static int pwait2_calls;

int epoll_wait(int fd, struct epoll_event *events, int most, int timeout_ms)
{
    if (is_noted) {
        asked_ms = timeout_ms;
        timeout_ms = 0;
    }
    return (int)syscall(SYS_epoll_pwait, fd, events, most, timeout_ms, NULL, 8);
}

int epoll_pwait2(int fd, struct epoll_event *events, int most, const struct timespec *timeout, const sigset_t *mask)
{
    static const struct timespec none;

    if (is_noted) {
        pwait2_calls++;
        asked_for_ever = timeout == NULL;
        asked = timeout == NULL ? none : *timeout;
        timeout = &none;
    }
    if (pwait2_errno != 0) {
        errno = pwait2_errno;
        return -1;
    }
    return (int)syscall(SYS_epoll_pwait2, fd, events, most, timeout, mask, 8);
}

static struct bxi_sleeper *sleeper;

static void create(enum bxi_sleeper_kind kind)
{
    if (kind == BXI_SLEEPER_URING && bxi_sleeper_probe_uring() < 0)
        cr_skip_test("io_uring is refused here");
    cr_assert_eq(bxi_sleeper_create(kind, &sleeper), 0);
}

static void create_epoll(void)
{
    create(BXI_SLEEPER_EPOLL);
    is_noted = true;
}

static void destroy(void)
{
    bxi_sleeper_destroy(sleeper);
}

TestSuite(sleeper_time, .timeout = 20);

/* The timeout in milliseconds, if the kernel has no epoll_pwait2. */
static int ms_for(uint64_t timeout_ns)
{
    uint64_t token;

    asked_ms = NOTHING;
    cr_assert_eq(bxi_sleeper_wait(sleeper, timeout_ns, &token, 1), 0);
    return asked_ms;
}

static void expect_milliseconds(void)
{
    cr_expect_eq(ms_for(0), 0);
    cr_expect_eq(ms_for(1), 1);
    cr_expect_eq(ms_for(MS - 1), 1);
    cr_expect_eq(ms_for(MS), 1);
    cr_expect_eq(ms_for(MS + 1), 2);
    cr_expect_eq(ms_for(250 * MS), 250);
    cr_expect_eq(ms_for(YEAR_NS), INT32_MAX, "as long as it can");
    cr_expect_eq(ms_for(YEAR_NS + 1), -1, "for ever");
    cr_expect_eq(ms_for(UINT64_MAX), -1, "for ever");
}

Test(sleeper_time, in_milliseconds_is_rounded_up_and_not_by_more, .init = create_epoll, .fini = destroy)
{
    pwait2_errno = ENOSYS;
    expect_milliseconds();
    cr_expect_eq(pwait2_calls, 1, "it is asked for once");
}

/* Filters return this for unknown system calls. */
Test(sleeper_time, is_in_milliseconds_where_a_filter_refuses_better, .init = create_epoll, .fini = destroy)
{
    pwait2_errno = EPERM;
    expect_milliseconds();
    cr_expect_eq(pwait2_calls, 1, "it is asked for once");
}

Test(sleeper_time, in_nanoseconds_is_what_was_asked_for, .init = create_epoll, .fini = destroy)
{
    cr_assert_eq(ms_for(3000000007), NOTHING);
    cr_expect_eq(asked.tv_sec, 3);
    cr_expect_eq(asked.tv_nsec, 7);
    ms_for(999999999);
    cr_expect_eq(asked.tv_sec, 0);
    cr_expect_eq(asked.tv_nsec, 999999999);
    ms_for(YEAR_NS);
    cr_expect_not(asked_for_ever);
    cr_expect_eq(asked.tv_sec, (time_t)(YEAR_NS / 1000000000));
    ms_for(YEAR_NS + 1);
    cr_expect(asked_for_ever);
}

Test(sleeper_time, goes_on_after_a_signal_and_takes_poll_after_an_error, .init = create_epoll, .fini = destroy)
{
    uint64_t token;

    pwait2_errno = EINTR;
    cr_expect_eq(bxi_sleeper_wait(sleeper, MS, &token, 1), 0);
    cr_expect_eq(bxi_sleeper_kind(sleeper), BXI_SLEEPER_EPOLL);
    pwait2_errno = EINVAL;
    cr_expect_eq(bxi_sleeper_wait(sleeper, MS, &token, 1), 0);
    cr_expect_eq(bxi_sleeper_kind(sleeper), BXI_SLEEPER_POLL);
    cr_expect_eq(asked_ms, NOTHING);
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

Test(sleeper_time, leaves_no_descriptor_of_io_uring)
{
    expect_no_descriptor_left(BXI_SLEEPER_URING);
}

Test(sleeper_time, leaves_no_descriptor_of_epoll)
{
    expect_no_descriptor_left(BXI_SLEEPER_EPOLL);
}

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

Test(sleeper_time, holds_nothing_that_it_forgot_in_io_uring)
{
    expect_hang_up_without_a_wait(BXI_SLEEPER_URING);
}

Test(sleeper_time, holds_nothing_that_it_forgot_in_epoll)
{
    expect_hang_up_without_a_wait(BXI_SLEEPER_EPOLL);
}

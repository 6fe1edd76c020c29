/* SPDX-License-Identifier: MIT */
/*
 * shm/sleeper.c: every case with io_uring, epoll and poll(2), and what happens if one of them is refused.
 */
#include "shm/sleeper.h"

#include "base/base.h"
#include "tests/harness/child.h"
#include "tests/harness/refuse.h"

#include <sys/eventfd.h>
#include <sys/time.h>

#define MS UINT64_C(1000000)
#define FOREVER UINT64_MAX

/* Defines three tests that run body(sleeper), one for each kind of sleeper. */
#define TEST_EACH(name)                                                                            \
    static void name(struct bxi_sleeper *sleeper);                                                 \
    Test(sleeper_uring, name)                                                                      \
    {                                                                                              \
        with_sleeper(BXI_SLEEPER_URING, name);                                                     \
    }                                                                                              \
    Test(sleeper_epoll, name)                                                                      \
    {                                                                                              \
        with_sleeper(BXI_SLEEPER_EPOLL, name);                                                     \
    }                                                                                              \
    Test(sleeper_poll, name)                                                                       \
    {                                                                                              \
        with_sleeper(BXI_SLEEPER_POLL, name);                                                      \
    }                                                                                              \
    static void name(struct bxi_sleeper *sleeper)

static void with_sleeper(enum bxi_sleeper_kind kind, void (*body)(struct bxi_sleeper *))
{
    struct bxi_sleeper *sleeper = NULL;

    if (kind == BXI_SLEEPER_URING && bxi_sleeper_probe_uring() < 0)
        cr_skip_test("io_uring is refused here");
    cr_assert_eq(bxi_sleeper_create(kind, &sleeper), 0);
    cr_assert_eq(bxi_sleeper_kind(sleeper), kind);
    body(sleeper);
    bxi_sleeper_destroy(sleeper);
}

static int new_bell(void)
{
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);

    cr_assert_geq(fd, 0);
    return fd;
}

static void ring(int fd)
{
    const uint64_t one = 1;

    cr_assert_eq(write(fd, &one, sizeof(one)), (ssize_t)sizeof(one));
}

static void drain(int fd)
{
    uint64_t value;

    cr_assert_eq(read(fd, &value, sizeof(value)), (ssize_t)sizeof(value));
}

/* One token, or UINT64_MAX if there is none. */
static uint64_t look(struct bxi_sleeper *sleeper)
{
    uint64_t token = 0;
    int count = bxi_sleeper_wait(sleeper, 0, &token, 1);

    cr_assert_geq(count, 0);
    return count == 1 ? token : UINT64_MAX;
}

/* ---- Waking ---------------------------------------------------------------------------------- */

TEST_EACH(gives_it_again_as_long_as_it_is_readable_and_after)
{
    int fd = new_bell();

    cr_assert_eq(bxi_sleeper_watch(sleeper, fd, 1), 0);
    for (int round = 0; round < 3; round++) {
        cr_assert_eq(look(sleeper), UINT64_MAX);
        ring(fd);
        cr_assert_eq(look(sleeper), 1);
        cr_assert_eq(look(sleeper), 1);
        drain(fd);
        /* A poll that fired before the drain may still be reported, once. */
        look(sleeper);
    }
    cr_assert_eq(look(sleeper), UINT64_MAX);
    close(fd);
}

/* The second one has the number of the first one, which is not watched. */
TEST_EACH(forgets_what_was_closed)
{
    uint64_t tokens[2 * BXI_SLEEPER_FDS];
    int first = new_bell(), second;

    cr_assert_eq(bxi_sleeper_watch(sleeper, first, 1), 0);
    cr_assert_eq(look(sleeper), UINT64_MAX);
    close(first);
    second = new_bell();
    cr_assert_eq(second, first);
    bxi_sleeper_forget(sleeper, 1);
    cr_assert_eq(bxi_sleeper_watch(sleeper, second, 2), 0);
    cr_assert_eq(look(sleeper), UINT64_MAX);
    close(second);
    bxi_sleeper_forget(sleeper, 2);
    cr_assert_eq(bxi_sleeper_wait(sleeper, 0, tokens, 2 * BXI_SLEEPER_FDS), 0);
}

TEST_EACH(sleeps_for_at_least_the_timeout)
{
    static const uint64_t timeouts[] = { 1, 300000, 3 * MS };
    uint64_t token;
    int fd = new_bell();

    cr_assert_eq(bxi_sleeper_watch(sleeper, fd, 1), 0);
    for (size_t i = 0; i < sizeof(timeouts) / sizeof(timeouts[0]); i++) {
        uint64_t start = bxi_now_ns();
        cr_assert_eq(bxi_sleeper_wait(sleeper, timeouts[i], &token, 1), 0);
        cr_assert_geq(bxi_now_ns() - start, timeouts[i]);
    }
    close(fd);
}

TEST_EACH(sleeps_without_any_descriptor_too)
{
    uint64_t token;
    uint64_t start = bxi_now_ns();

    cr_assert_eq(bxi_sleeper_wait(sleeper, 2 * MS, &token, 1), 0);
    cr_assert_geq(bxi_now_ns() - start, 2 * MS);
    cr_assert_eq(look(sleeper), UINT64_MAX);
}

TEST_EACH(takes_a_timeout_of_centuries)
{
    static const uint64_t timeouts[] = { UINT64_MAX, UINT64_MAX - 1, UINT64_MAX / 2,
                                         UINT64_C(365) * 86400 * 1000000000 };
    uint64_t token = 0;
    int fd = new_bell();

    cr_assert_eq(bxi_sleeper_watch(sleeper, fd, 1), 0);
    ring(fd);
    for (size_t i = 0; i < sizeof(timeouts) / sizeof(timeouts[0]); i++)
        cr_assert_eq(bxi_sleeper_wait(sleeper, timeouts[i], &token, 1), 1);
    close(fd);
}

static void *ring_later(void *fd)
{
    struct timespec pause = { .tv_nsec = (long)(2 * MS) };

    nanosleep(&pause, NULL);
    ring(*(int *)fd);
    return NULL;
}

TEST_EACH(is_woken_by_another_thread)
{
    pthread_t thread;
    uint64_t token = 0;
    int fd = new_bell();

    cr_assert_eq(bxi_sleeper_watch(sleeper, fd, 5), 0);
    for (int round = 0; round < 3; round++) {
        cr_assert_eq(pthread_create(&thread, NULL, ring_later, &fd), 0);
        cr_assert_eq(bxi_sleeper_wait(sleeper, FOREVER, &token, 1), 1);
        cr_assert_eq(token, 5);
        pthread_join(thread, NULL);
        drain(fd);
        cr_assert_eq(look(sleeper), UINT64_MAX);
    }
    close(fd);
}

static void on_alarm(int signal_number)
{
    (void)signal_number;
}

TEST_EACH(returns_0_when_a_signal_comes)
{
    struct sigaction action = { .sa_handler = on_alarm };
    struct itimerval timer = { { 0, 5000 }, { 0, 5000 } };
    struct itimerval off = { { 0, 0 }, { 0, 0 } };
    enum bxi_sleeper_kind kind = bxi_sleeper_kind(sleeper);
    uint64_t token;
    int fd = new_bell();

    cr_assert_eq(bxi_sleeper_watch(sleeper, fd, 1), 0);
    cr_assert_eq(sigaction(SIGALRM, &action, NULL), 0);
    cr_assert_eq(setitimer(ITIMER_REAL, &timer, NULL), 0);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(bxi_sleeper_wait(sleeper, FOREVER, &token, 1), 0);
    cr_assert_eq(setitimer(ITIMER_REAL, &off, NULL), 0);
    cr_expect_eq(bxi_sleeper_kind(sleeper), kind);      /* a signal is not a failure and does not change the kind */
    ring(fd);
    cr_assert_eq(bxi_sleeper_wait(sleeper, FOREVER, &token, 1), 1);
    close(fd);
}

static int pidfd_of_dead_child(void)
{
    pid_t child = fork();

    cr_assert_geq(child, 0);
    if (child == 0)
        _exit(0);
    return (int)syscall(SYS_pidfd_open, child, 0);
}

TEST_EACH(is_woken_by_a_death)
{
    uint64_t token = 0;
    int fd = pidfd_of_dead_child();

    cr_assert_geq(fd, 0);
    cr_assert_eq(bxi_sleeper_watch(sleeper, fd, 9), 0);
    cr_assert_eq(bxi_sleeper_wait(sleeper, FOREVER, &token, 1), 1);
    cr_assert_eq(token, 9);
    close(fd);
    while (wait(NULL) > 0)
        ;
}

/* ---- Many ------------------------------------------------------------------------------------ */

TEST_EACH(gives_no_more_tokens_than_asked_for_and_the_rest_later)
{
    unsigned seen = 0;
    int fd[3];

    for (int i = 0; i < 3; i++) {
        fd[i] = new_bell();
        cr_assert_eq(bxi_sleeper_watch(sleeper, fd[i], (uint64_t)i), 0);
        ring(fd[i]);
    }
    for (int round = 0; round < 3; round++) {
        uint64_t token = UINT64_MAX;
        cr_assert_eq(bxi_sleeper_wait(sleeper, FOREVER, &token, 1), 1);
        cr_assert_lt(token, 3);
        cr_assert_not(seen & 1u << token, "token %d came twice before all came", (int)token);
        seen |= 1u << token;
        drain(fd[token]);
    }
    for (int i = 0; i < 3; i++)
        close(fd[i]);
}

TEST_EACH(watches_as_many_as_it_says_and_no_more)
{
    static bool seen[BXI_SLEEPER_FDS];
    uint64_t tokens[BXI_SLEEPER_FDS];
    int fd[BXI_SLEEPER_FDS];
    int total = 0;
    int extra = new_bell();

    for (int i = 0; i < BXI_SLEEPER_FDS; i++) {
        fd[i] = new_bell();
        cr_assert_eq(bxi_sleeper_watch(sleeper, fd[i], (uint64_t)i), 0);
    }
    cr_assert_eq(bxi_sleeper_watch(sleeper, extra, 1000), -ENOSPC);
    for (int round = 0; round < 5; round++) {
        cr_assert_eq(look(sleeper), UINT64_MAX);
        memset(seen, 0, sizeof(seen));
        for (int i = 0; i < BXI_SLEEPER_FDS; i++)
            ring(fd[i]);
        for (total = 0; total < BXI_SLEEPER_FDS;) {
            int count = bxi_sleeper_wait(sleeper, FOREVER, tokens, BXI_SLEEPER_FDS);
            cr_assert_gt(count, 0);
            for (int i = 0; i < count; i++) {
                cr_assert_lt(tokens[i], BXI_SLEEPER_FDS);
                cr_assert_not(seen[tokens[i]]);
                seen[tokens[i]] = true;
                drain(fd[tokens[i]]);
            }
            total += count;
        }
    }
    bxi_sleeper_forget(sleeper, 77);
    cr_assert_eq(bxi_sleeper_watch(sleeper, extra, 1000), 0);
    ring(extra);
    cr_assert_eq(look(sleeper), 1000);
}

/* ---- Forgetting ------------------------------------------------------------------------------ */

TEST_EACH(forgets_a_descriptor_that_it_never_slept_on)
{
    int first = new_bell();
    int second = new_bell();

    cr_assert_eq(bxi_sleeper_watch(sleeper, first, 1), 0);
    cr_assert_eq(bxi_sleeper_watch(sleeper, second, 2), 0);
    bxi_sleeper_forget(sleeper, 1);
    ring(first);
    cr_assert_eq(look(sleeper), UINT64_MAX);
    ring(second);
    cr_assert_eq(look(sleeper), 2);
    close(first);
    close(second);
}

TEST_EACH(forgets_what_fired_but_was_not_told_yet)
{
    uint64_t token = 0;
    int fd[2] = { new_bell(), new_bell() };

    for (int i = 0; i < 2; i++)
        cr_assert_eq(bxi_sleeper_watch(sleeper, fd[i], (uint64_t)i), 0);
    cr_assert_eq(look(sleeper), UINT64_MAX);
    ring(fd[0]);
    ring(fd[1]);
    cr_assert_eq(bxi_sleeper_wait(sleeper, FOREVER, &token, 1), 1);
    drain(fd[token]);
    bxi_sleeper_forget(sleeper, 1 - token);
    /* At most a poll that fired for the first bell before it was drained. */
    cr_assert_neq(look(sleeper), 1 - token);
    cr_assert_eq(look(sleeper), UINT64_MAX);
    close(fd[0]);
    close(fd[1]);
}

TEST_EACH(does_not_mistake_a_new_descriptor_for_one_forgotten)
{
    int old = new_bell();
    int new = new_bell();

    for (int round = 0; round < 300; round++) {
        cr_assert_eq(bxi_sleeper_watch(sleeper, old, 1), 0);
        cr_assert_eq(look(sleeper), UINT64_MAX);
        ring(old);
        bxi_sleeper_forget(sleeper, 1);
        cr_assert_eq(bxi_sleeper_watch(sleeper, new, 1), 0);
        cr_assert_eq(look(sleeper), UINT64_MAX);
        bxi_sleeper_forget(sleeper, 1);
        drain(old);
    }
    close(old);
    close(new);
}

/* ---- Errors ---------------------------------------------------------------------------------- */

TEST_EACH(refuses_what_it_cannot_watch)
{
    uint64_t token;
    int fd = new_bell();

    cr_assert_eq(bxi_sleeper_watch(sleeper, fd, UINT64_MAX), -EINVAL);
    cr_assert_eq(bxi_sleeper_watch(sleeper, -1, 1), -EBADF);
    cr_assert_eq(bxi_sleeper_watch(sleeper, fd, 1), 0);
    cr_assert_eq(bxi_sleeper_watch(sleeper, fd, 1), -EEXIST);
    cr_assert_eq(bxi_sleeper_wait(sleeper, 0, &token, 0), -EINVAL);
    bxi_sleeper_forget(sleeper, 2);
    bxi_sleeper_forget(sleeper, UINT64_MAX);
    ring(fd);
    cr_assert_eq(look(sleeper), 1);
    close(fd);
}

TestSuite(sleeper, .timeout = 120);

Test(sleeper, destroys_nothing_when_there_is_nothing) { bxi_sleeper_destroy(NULL); }

/* ---- Refusals -------------------------------------------------------------------------------- */

/* A bell and a timeout on a sleeper that must use epoll. 0 or the step that failed. */
static int epoll_works(enum bxi_sleeper_kind kind)
{
    struct bxi_sleeper *sleeper = NULL;
    uint64_t token = 0;
    const uint64_t one = 1;
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);

    if (bxi_sleeper_create(kind, &sleeper) != 0)
        return 11;
    if (bxi_sleeper_kind(sleeper) != BXI_SLEEPER_EPOLL)
        return 12;
    if (bxi_sleeper_watch(sleeper, fd, 3) != 0)
        return 13;
    uint64_t start = bxi_now_ns();
    if (bxi_sleeper_wait(sleeper, MS + 1, &token, 1) != 0 || bxi_now_ns() - start < MS + 1)
        return 14;
    if (write(fd, &one, sizeof(one)) != (ssize_t)sizeof(one))
        return 15;
    if (bxi_sleeper_wait(sleeper, FOREVER, &token, 1) != 1 || token != 3)
        return 16;
    bxi_sleeper_destroy(sleeper);
    close(fd);
    return 0;
}

static int without(long call, int error)
{
    if (!refuse(call, error))
        return 1;
    return bxi_sleeper_probe_uring() == -error ? epoll_works(BXI_SLEEPER_URING) : 2;
}

/* A sleeper with io_uring that has a poll of `polling` in the kernel, and none of `idle` yet. */
static struct bxi_sleeper *slept_sleeper(int polling, int idle)
{
    struct bxi_sleeper *sleeper = NULL;
    uint64_t token = 0;

    if (bxi_sleeper_probe_uring() < 0)
        _exit(CHILD_SKIPS);
    if (bxi_sleeper_create(BXI_SLEEPER_URING, &sleeper) != 0 || bxi_sleeper_watch(sleeper, polling, 1) != 0 ||
        bxi_sleeper_wait(sleeper, 0, &token, 1) != 0 || bxi_sleeper_watch(sleeper, idle, 2) != 0)
        _exit(CHILD_SKIPS + 1);
    return sleeper;
}

/* Checks that both descriptors wake the sleeper, which has changed to `kind`. 0 or the step that failed. */
static int goes_on_as(struct bxi_sleeper *sleeper, const int fd[2], enum bxi_sleeper_kind kind)
{
    uint64_t token = 0;
    uint64_t start = bxi_now_ns();
    const uint64_t one = 1;

    if (bxi_sleeper_wait(sleeper, MS + 1, &token, 1) != 0 || bxi_now_ns() - start < MS + 1)
        return 21;
    if (bxi_sleeper_kind(sleeper) != kind)
        return 22;
    for (int i = 0; i < 2; i++) {
        uint64_t value;
        if (write(fd[i], &one, sizeof(one)) != (ssize_t)sizeof(one))
            return 23;
        if (bxi_sleeper_wait(sleeper, FOREVER, &token, 1) != 1 || token != (uint64_t)i + 1)
            return 24;
        if (read(fd[i], &value, sizeof(value)) != (ssize_t)sizeof(value))
            return 25;
        if (bxi_sleeper_wait(sleeper, 0, &token, 1) != 0)
            return 26;
    }
    bxi_sleeper_forget(sleeper, 1);
    if (write(fd[0], &one, sizeof(one)) != (ssize_t)sizeof(one) || bxi_sleeper_wait(sleeper, 0, &token, 1) != 0)
        return 27;
    bxi_sleeper_destroy(sleeper);
    return 0;
}

CHILD_TEST(sleeper, takes_epoll_where_uring_is_refused, 20, NULL)
{
    return without(SYS_io_uring_setup, EPERM);
}

/* The ring can be created, but not entered: some container runtimes' filters know only half of io_uring. */
CHILD_TEST(sleeper, takes_epoll_where_a_ring_can_be_made_but_not_entered, 20, NULL)
{
    return without(SYS_io_uring_enter, EPERM);
}

CHILD_TEST(sleeper, goes_on_with_epoll_when_its_ring_can_be_entered_no_more, 20, "io_uring is refused here")
{
    const int fd[2] = { eventfd(0, EFD_NONBLOCK), eventfd(0, EFD_NONBLOCK) };
    struct bxi_sleeper *sleeper = slept_sleeper(fd[0], fd[1]);

    return refuse(SYS_io_uring_enter, EPERM) ? goes_on_as(sleeper, fd, BXI_SLEEPER_EPOLL) : 1;
}

CHILD_TEST(sleeper, goes_on_with_poll_when_epoll_is_refused_then, 20, "io_uring is refused here")
{
    const int fd[2] = { eventfd(0, EFD_NONBLOCK), eventfd(0, EFD_NONBLOCK) };
    struct bxi_sleeper *sleeper = slept_sleeper(fd[0], fd[1]);

    if (!refuse(SYS_io_uring_enter, EACCES) || !refuse(SYS_epoll_create1, EPERM))
        return 1;
    return goes_on_as(sleeper, fd, BXI_SLEEPER_POLL);
}

CHILD_TEST(sleeper, goes_on_with_poll_when_epoll_has_no_room_for_a_watch, 20, NULL)
{
    const int fd[2] = { eventfd(0, EFD_NONBLOCK), eventfd(0, EFD_NONBLOCK) };
    struct bxi_sleeper *sleeper = NULL;

    if (bxi_sleeper_create(BXI_SLEEPER_EPOLL, &sleeper) != 0 || bxi_sleeper_watch(sleeper, fd[0], 1) != 0)
        return 2;
    if (!refuse(SYS_epoll_ctl, ENOSPC) || bxi_sleeper_watch(sleeper, fd[1], 2) != 0)
        return 3;
    return goes_on_as(sleeper, fd, BXI_SLEEPER_POLL);
}

CHILD_TEST(sleeper, lets_go_of_the_file_when_its_ring_can_be_entered_no_more, 20, "io_uring is refused here")
{
    const int other = eventfd(0, EFD_NONBLOCK);
    int ends[2];

    signal(SIGPIPE, SIG_IGN);
    if (pipe(ends) != 0)
        return 2;
    struct bxi_sleeper *sleeper = slept_sleeper(ends[0], other);
    if (!refuse(SYS_io_uring_enter, EPERM))
        return 3;
    bxi_sleeper_forget(sleeper, 1);
    if (bxi_sleeper_kind(sleeper) != BXI_SLEEPER_EPOLL)
        return 4;
    close(ends[0]);
    /* The kernel ends a ring's polls some time after the ring was closed. */
    for (int i = 0; i < 5000; i++) {
        if (write(ends[1], "x", 1) == -1 && errno == EPIPE)
            return 0;
        usleep(1000);
    }
    return 5;
}

CHILD_TEST(sleeper, fails_slowly_where_nothing_works, 20, NULL)
{
    struct bxi_sleeper *sleeper = NULL;
    int fd = eventfd(0, EFD_NONBLOCK);
    uint64_t token = 0;
    uint64_t start = bxi_now_ns();

    if (bxi_sleeper_create(BXI_SLEEPER_POLL, &sleeper) != 0 || bxi_sleeper_watch(sleeper, fd, 1) != 0)
        return 2;
    close(fd);
    if (bxi_sleeper_wait(sleeper, FOREVER, &token, 1) != -EBADF || bxi_now_ns() - start < 5 * MS)
        return 3;
    return bxi_sleeper_wait(sleeper, MS, &token, 1) == -EBADF ? 0 : 4;
}

CHILD_TEST(sleeper, takes_epoll_where_the_kernel_has_no_uring, 20, NULL)
{
    return without(SYS_io_uring_setup, ENOSYS);
}

CHILD_TEST(sleeper, takes_poll_where_no_descriptor_is_left, 20, NULL)
{
    struct rlimit limit = { 0, 0 };
    struct bxi_sleeper *sleeper = NULL;

    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        return 1;
    if (bxi_sleeper_probe_uring() >= 0)
        return 2;
    return bxi_sleeper_create(BXI_SLEEPER_URING, &sleeper) == 0 &&
           bxi_sleeper_kind(sleeper) == BXI_SLEEPER_POLL ? 0 : 3;
}

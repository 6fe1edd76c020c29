/* SPDX-License-Identifier: MIT */
/*
 * shm/doorbell.c with the system call replaced: which eventfd is rung, how often, and when none is. The
 * simulator (tests/sim/, ring and bell) checks that no wake-up is lost.
 */
#include "tests/harness/test.h"
#include "shm/doorbell.h"

#include <sys/eventfd.h>

#define BACKGROUND_FD 101
#define LEADER_FD 102

static bxi_a64 word;
static int rung_background;
static int rung_leader;
static int rung_other;
static int failures_left;
static int failure_errno;

static ssize_t fake_write(int fd, const void *data, size_t bytes)
{
    uint64_t value = 0;

    if (failures_left > 0) {
        failures_left--;
        errno = failure_errno;
        return -1;
    }
    cr_assert_eq(bytes, sizeof(value));
    memcpy(&value, data, sizeof(value));
    cr_assert_eq(value, 1);
    if (fd == BACKGROUND_FD)
        rung_background++;
    else if (fd == LEADER_FD)
        rung_leader++;
    else
        rung_other++;
    return (ssize_t)bytes;
}

static struct bxi_bell bell = { .word = &word };
static struct bxi_bell_peer peer = { .word = &word, .fd = { BACKGROUND_FD, LEADER_FD } };

static ssize_t (*real_write)(int fd, const void *data, size_t bytes);

static void replace_write(void)
{
    real_write = bxi_bell_write;
    bxi_bell_write = fake_write;
}

TestSuite(doorbell, .init = replace_write, .timeout = 120);

Test(doorbell, puts_the_count_above_who)
{
    bxi_bell_arm(&bell, BXI_WHO_BACKGROUND);
    cr_assert_eq(bxi_load_relaxed(&word), 1u << 2 | BXI_WHO_BACKGROUND);
    bxi_bell_arm(&bell, BXI_WHO_LEADER);
    cr_assert_eq(bxi_load_relaxed(&word), 2u << 2 | BXI_WHO_LEADER);
    bxi_bell_disarm(&bell);
    cr_assert_eq(bxi_load_relaxed(&word) & 3, BXI_AWAKE);
}

Test(doorbell, knows_a_new_arming_when_the_count_is_near_its_end)
{
    bell.count = (UINT64_C(1) << 32) - 1;
    bxi_bell_arm(&bell, BXI_WHO_LEADER);
    cr_assert_eq(bxi_load_relaxed(&word), UINT64_C(1) << 34 | BXI_WHO_LEADER);
    cr_assert_eq(bxi_bell_look(&peer, false), 1);
    bell.count = (UINT64_C(1) << 62) - 2;
    bxi_bell_arm(&bell, BXI_WHO_LEADER);
    cr_assert_eq(bxi_bell_look(&peer, false), 1);
    bxi_bell_arm(&bell, BXI_WHO_LEADER);
    cr_assert_eq(bxi_bell_look(&peer, false), 1);
}

Test(doorbell, does_not_wake_a_lazy_sleeper_for_replies)
{
    bxi_bell_arm(&bell, BXI_WHO_LAZY);
    cr_assert_eq(bxi_bell_look(&peer, true), 0);
    cr_assert_eq(rung_background + rung_leader + rung_other, 0);
    cr_assert_eq(bxi_bell_look(&peer, false), 1);
    cr_assert_eq(rung_background, 1);
    cr_assert_eq(rung_leader + rung_other, 0);
    cr_assert_eq(bxi_bell_look(&peer, false), 0);
}

Test(doorbell, tries_again_when_a_signal_interrupts_the_write)
{
    failures_left = 3;
    failure_errno = EINTR;
    bxi_bell_ring(BACKGROUND_FD);
    cr_assert_eq(rung_background, 1);
}

Test(doorbell, leaves_a_full_eventfd_as_it_is)
{
    failures_left = 1;
    failure_errno = EAGAIN;
    bxi_bell_ring(BACKGROUND_FD);
    cr_assert_eq(rung_background, 0);
}

Test(doorbell, fills_and_empties_a_real_eventfd)
{
    uint64_t value = 0;
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);

    bxi_bell_write = real_write;
    cr_assert_geq(fd, 0);
    bxi_bell_ring(fd);
    bxi_bell_ring(fd);
    cr_assert_eq(read(fd, &value, sizeof(value)), (ssize_t)sizeof(value));
    cr_assert_eq(value, 2);
    bxi_bell_ring(fd);
    bxi_bell_drain(fd);
    cr_assert_eq(read(fd, &value, sizeof(value)), -1);
    cr_assert_eq(errno, EAGAIN);
    bxi_bell_drain(fd);     /* an empty one does not block */
    close(fd);
}

/* SPDX-License-Identifier: MIT */
/*
 * The doorbell; doorbell.h has the protocol and what a kill leaves at each step. The sleeper's functions run with the
 * progress role, the producer's under run->lock.
 */
#include "doorbell.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

/* By syscall: write(2) is a cancellation point, and the thread that rings may hold the role or a lock. */
static ssize_t plain_write(int fd, const void *data, size_t bytes)
{
    return syscall(SYS_write, fd, data, bytes);
}

ssize_t (*bxi_bell_write)(int fd, const void *data, size_t bytes) = plain_write;

void bxi_bell_arm(struct bxi_bell *bell, enum bxi_who who)
{
    bell->count++;
    /* [bell.armed] relaxed, pairs with the load in bxi_bell_armed across the two full fences: either the producer
     * sees the word, or the sleeper's recheck sees what was published. */
    bxi_store_relaxed(bell->word, bell->count << 2 | (uint64_t)who);
}

void bxi_bell_disarm(struct bxi_bell *bell)
{
    /* [bell.armed] relaxed: a producer that still reads the old word rings once without need. */
    bxi_store_relaxed(bell->word, bell->count << 2 | BXI_AWAKE);
}

int bxi_bell_look(struct bxi_bell_peer *peer, bool replies_only)
{
    uint64_t word = bxi_bell_armed(peer, replies_only);

    if (word == 0)
        return 0;
    /* Relaxed: other threads only learn from it that this one rings. */
    bxi_store_relaxed(&peer->rang_for, word);
    bxi_bell_ring(peer->fd[(word & 3) == BXI_WHO_LEADER]);
    return 1;
}

void bxi_bell_ring(int fd)
{
    const uint64_t one = 1;

    /* EAGAIN: the eventfd's counter is at its maximum, so the eventfd is readable anyway. */
    while (bxi_bell_write(fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

void bxi_bell_drain(int fd)
{
    uint64_t count;

    syscall(SYS_read, fd, &count, sizeof count);     /* does not block, so no signal interrupts it */
}

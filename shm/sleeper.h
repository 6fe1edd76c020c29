/* SPDX-License-Identifier: MIT */
/*
 * One thread sleeps here until one of a few descriptors is readable: by io_uring, epoll, or poll(2).
 *
 * io_uring: a one-shot POLL_ADD per descriptor, which the next wait arms again after it has fired; one io_uring_enter
 * submits and waits with a timeout. It never reads the eventfd: a read left in the ring would consume the bell. The
 * ring is made with SINGLE_ISSUER and DEFER_TASKRUN where the kernel has them, so a sleeper belongs to the thread
 * that created it. epoll: level triggered. If its io_uring or epoll fails, a sleeper moves all its watches to the next
 * of io_uring, epoll, poll(2) by itself.
 */
#ifndef BXI_SLEEPER_H
#define BXI_SLEEPER_H

#include <stdint.h>

#define BXI_SLEEPER_FDS 132         /* two bells, a launcher and 128 peers */

enum bxi_sleeper_kind { BXI_SLEEPER_URING, BXI_SLEEPER_EPOLL, BXI_SLEEPER_POLL };

struct bxi_sleeper;

/* Of that kind, or of the next one that can be made: poll(2) needs nothing. 0, -ENOMEM. */
int bxi_sleeper_create(enum bxi_sleeper_kind kind, struct bxi_sleeper **sleeper);
/* Can one with io_uring be made? 0; -errno of io_uring_setup, io_uring_enter or pthread_create. */
int bxi_sleeper_probe_uring(void);
void bxi_sleeper_destroy(struct bxi_sleeper *sleeper);
enum bxi_sleeper_kind bxi_sleeper_kind(const struct bxi_sleeper *sleeper);     /* the current kind */

/* Adds a descriptor; bxi_sleeper_wait returns token (not UINT64_MAX) when it is readable. 0, -ENOSPC (there are
 * BXI_SLEEPER_FDS), -EEXIST, -EINVAL (the token), -EBADF. forget removes it; call it before you close the
 * descriptor. */
int bxi_sleeper_watch(struct bxi_sleeper *sleeper, int fd, uint64_t token);
void bxi_sleeper_forget(struct bxi_sleeper *sleeper, uint64_t token);

/* Sleeps until a descriptor is readable or timeout_ns has passed (UINT64_MAX: no timeout; 0: does not sleep).
 * Returns the number of tokens written; 0 on timeout or a signal; -errno if poll(2) fails too, after 10 ms or
 * timeout_ns, whichever is less: then nothing is known about the descriptors. */
int bxi_sleeper_wait(struct bxi_sleeper *sleeper, uint64_t timeout_ns, uint64_t *tokens, int most);

#endif

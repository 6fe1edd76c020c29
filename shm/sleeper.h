/* SPDX-License-Identifier: MIT */
/*
 * Where one thread sleeps until one of a few descriptors is readable: io_uring, epoll, or poll(2).
 *
 * io_uring: one-shot POLL_ADD per descriptor, armed again by the next wait once it has fired, and one
 * io_uring_enter that submits and waits with a timeout. Never a read of the eventfd: a read left behind
 * would eat the bell. The ring is made with SINGLE_ISSUER and DEFER_TASKRUN where the kernel has them,
 * so a sleeper belongs to the thread that created it. epoll: level triggered. A sleeper whose ring or epoll
 * stops working takes the next of io_uring, epoll, poll(2) by itself, with all that it watches.
 */
#ifndef BXI_SLEEPER_H
#define BXI_SLEEPER_H

#include <stdbool.h>
#include <stdint.h>

#define BXI_SLEEPER_FDS 132         /* two bells, a launcher and 128 peers */

enum bxi_sleeper_kind { BXI_SLEEPER_AUTO = 0, BXI_SLEEPER_URING = 1, BXI_SLEEPER_EPOLL = 2, BXI_SLEEPER_POLL = 3 };

struct bxi_sleeper;

/* 0, -ENOMEM; -errno of io_uring_setup, io_uring_enter or epoll_create1; POLL needs none of them. AUTO tries
 * io_uring, then epoll. */
int bxi_sleeper_create(enum bxi_sleeper_kind kind, struct bxi_sleeper **sleeper);
void bxi_sleeper_destroy(struct bxi_sleeper *sleeper);
enum bxi_sleeper_kind bxi_sleeper_kind(const struct bxi_sleeper *sleeper);     /* what it is now; not AUTO */

/* Adds a descriptor; token (not UINT64_MAX) comes back when it is readable. 0, -ENOSPC (there are
 * BXI_SLEEPER_FDS), -EEXIST, -EINVAL (the token), -EBADF. forget takes it out for good, to be called before
 * the descriptor is closed. */
int bxi_sleeper_watch(struct bxi_sleeper *sleeper, int fd, uint64_t token);
void bxi_sleeper_forget(struct bxi_sleeper *sleeper, uint64_t token);

/* Sleeps until something is readable or timeout_ns passed (UINT64_MAX: for ever; 0: just a look).
 * Returns how many tokens it wrote, 0 on timeout or a signal; -errno where poll(2) fails too, after
 * 10 ms or timeout_ns, whichever is less: what is readable is then not known. */
int bxi_sleeper_wait(struct bxi_sleeper *sleeper, uint64_t timeout_ns, uint64_t *tokens, int most);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * What a fork of the process means for the library: it is counted in the child, and the child does not keep the
 * descriptors that stand for the life of a worker, nor what is mapped of them, but for the memory of tensors.
 *
 *     int fd = BXI_UNSHARED(shm_open(name, O_RDWR, 0));
 *     ...
 *     bxi_unshared_close(fd);
 */
#ifndef BXI_FORK_H
#define BXI_FORK_H

#include "atomic.h"

#include <stddef.h>

extern bxi_a32 bxi_forks;               /* forks between the process that loaded the library and this one */

/* Opens a descriptor that no child keeps which this process forks. `open` is an expression that makes it, or is < 0;
 * it may read another descriptor of this kind, and must not open or close one. Its value, with its errno, but never 0:
 * that is "none" where these descriptors are kept. Any thread; not a signal handler. */
#define BXI_UNSHARED(open) (bxi_unshared_begin(), bxi_unshared_end(open))
void bxi_unshared_begin(void);
int bxi_unshared_end(int fd);

/* A child maps the file of that descriptor at the same address, copy on write, before it closes the descriptor. The
 * mapping here is MADV_DONTFORK and lives at least as long as the descriptor. */
void bxi_unshared_map(int fd, void *base, size_t bytes);

/* Closes it; nothing if it is < 0. Any thread; not a signal handler. */
void bxi_unshared_close(int fd);

#endif

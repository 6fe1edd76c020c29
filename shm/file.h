/* SPDX-License-Identifier: MIT */
/*
 * The files behind segments and arenas: their size, their pages, and their mapping. Any thread.
 */
#ifndef BXI_FILE_H
#define BXI_FILE_H

#include "atomic.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* 0, or -EFBIG: RLIMIT_FSIZE does not allow a file of that size. A thread that extends a file beyond the limit gets
 * SIGXFSZ, whose default action ends the process. */
int bxi_file_limit(uint64_t bytes);
/* ftruncate after that check. 0, -EFBIG, -errno. */
int bxi_file_resize(int fd, uint64_t bytes);
/* Allocates the pages of a range. Keeps the size: a truncated file must not grow again, filled with zeroes. 0, -ENOSPC,
 * -errno: some of them may be allocated. No point of cancellation, as the next: the caller may hold a lock. */
int bxi_file_allocate(int fd, uint64_t offset, uint64_t bytes);
/* Gives them back, so that they read as zeroes. 0, -errno. */
int bxi_file_punch(int fd, uint64_t offset, uint64_t bytes);

/* Maps a regular file of exactly that size: shared, guarded (guard.h), and not in a forked child, which must not write
 * it by mistake (arena_view.c undoes that). 0; -EPROTO: it is none, or has another size; -ENOSPC: too many guards;
 * -errno. */
int bxi_file_map(int fd, size_t bytes, bool writable, bxi_a32 *truncated, void **base);

/* Sets or releases (F_UNLCK) a lock of this open file on some bytes, 0: on all; it ends with the open file. 0; -EAGAIN:
 * another open file has it; -errno. */
int bxi_file_lock(int fd, short type, uint64_t offset, uint64_t bytes);
/* Another open file has a lock on them. True also if the kernel lacks the memory to say so: nobody who lives may be
 * taken for dead. */
bool bxi_file_is_locked(int fd, uint64_t offset, uint64_t bytes);
/* No descriptor is left, of the process or the system. */
static inline bool bxi_file_none_left(int rc)
{
    return rc == -EMFILE || rc == -ENFILE;
}
/* The name leads to that open file. */
bool bxi_file_leads_to(const char *path, int fd);

#endif

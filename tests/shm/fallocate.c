/* SPDX-License-Identifier: MIT */
/* fallocate.h. */
#include "fallocate.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

struct fake_fallocate fake_fallocate;

/* The errno with which this call fails; 0: it does not. */
static int failure(bool is_punch, off_t bytes)
{
    struct fake_fallocate *fake = &fake_fallocate;

    if (fake->interruptions > 0) {
        fake->interruptions--;
        return EINTR;
    }
    if (is_punch || fake->has_none)
        return fake->has_none ? EOPNOTSUPP : fake->fail_punches_with;
    if (fake->interrupts_above > 0 && bytes > fake->interrupts_above)
        return EINTR;
    return fake->fail_with != 0 && fake->fail_after-- <= 0 ? fake->fail_with : 0;
}

/* Replaces the C library's. */
int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    bool is_punch = (mode & FALLOC_FL_PUNCH_HOLE) != 0;
    int error = failure(is_punch, bytes);

    bxi_add(is_punch ? &fake_fallocate.punches : &fake_fallocate.allocations, 1);
    errno = error;
    return error != 0 ? -1 : (int)syscall(SYS_fallocate, fd, mode, offset, bytes);
}

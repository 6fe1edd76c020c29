/* SPDX-License-Identifier: MIT */
/* Gives children another clock, as a container with a time namespace of its own does. */
#ifndef TESTS_CLOCK_H
#define TESTS_CLOCK_H

#include "child.h"

/* CLOCK_MONOTONIC of the children that this process forks from now on is so many seconds ahead of this process's. The
 * number may be negative. False: not possible here. */
static inline bool clock_of_children(int seconds)
{
    char text[64];
    unsigned uid = (unsigned)geteuid();

    if (unshare(CLONE_NEWTIME) < 0) {       /* not privileged: it may be in a user namespace of its own */
        snprintf(text, sizeof(text), "%u %u 1", uid, uid);
        if (unshare(CLONE_NEWUSER | CLONE_NEWTIME) < 0 || !write_file("/proc/self/uid_map", text))
            return false;
    }
    snprintf(text, sizeof(text), "monotonic %d 0\n", seconds);
    return write_file("/proc/self/timens_offsets", text);
}

#endif

/* SPDX-License-Identifier: MIT */
/* Gives children another clock, as a container with a time namespace of its own does. */
#ifndef TESTS_CLOCK_H
#define TESTS_CLOCK_H

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

static inline bool clock_write(const char *path, const char *text)
{
    FILE *file = fopen(path, "we");

    return file != NULL && (fputs(text, file) >= 0) + (fclose(file) == 0) == 2;
}

/* CLOCK_MONOTONIC of the children that this process forks from now on is so many seconds ahead of this process's. The
 * number may be negative. False: not possible here. */
static inline bool clock_of_children(int seconds)
{
    char text[64];
    unsigned uid = (unsigned)geteuid();

    if (unshare(CLONE_NEWTIME) < 0) {       /* not privileged: it may be in a user namespace of its own */
        snprintf(text, sizeof(text), "%u %u 1", uid, uid);
        if (unshare(CLONE_NEWUSER | CLONE_NEWTIME) < 0 || !clock_write("/proc/self/uid_map", text))
            return false;
    }
    snprintf(text, sizeof(text), "monotonic %d 0\n", seconds);
    return clock_write("/proc/self/timens_offsets", text);
}

#endif

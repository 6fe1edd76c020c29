/* SPDX-License-Identifier: MIT */
/*
 * The front end of stress.h. Prints a line for each body, as the other test
 * programs do ("ok NAME", "not ok NAME"). Exits with 0 if all passed. An argument multiplies the work.
 */
#include "stress.h"

#include <stdio.h>
#include <stdlib.h>

#if defined(__SANITIZE_THREAD__)
#define FRAMES 60000
#define COLLISIONS 20000
#else
#define FRAMES 400000
#define COLLISIONS 50000
#endif

static int report(const char *name, int line)
{
    if (line == 0)
        printf("ok %s\n", name);
    else
        printf("not ok %s: tests/shm/stress_ring.c:%d\n", name, line);
    fflush(stdout);
    return line != 0;
}

int main(int argc, char **argv)
{
    uint64_t times = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    int failed = 0;

    failed += report("frames arrive whole and in order, no wake-up is lost",
                     bxi_stress_ring(FRAMES * times));
#if !defined(__SANITIZE_THREAD__)       /* which does not see what two processes share */
    failed += report("the same between two processes", bxi_stress_ring_processes(FRAMES * times));
#endif
    failed += report("who publishes sees who arms, or is seen",
                     bxi_stress_collision(COLLISIONS * times));
    return failed == 0 ? 0 : 1;
}

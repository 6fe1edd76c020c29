/* SPDX-License-Identifier: MIT */
/*
 * keeper.h: a process beside each test, which ends what the test leaves running.
 *
 * Criterion kills a test that runs past its limit, and nothing else. The workers of bx_spawn get SIGTERM from the
 * kernel then, but a worker that is stopped does not take it, and a child that the test forked itself gets none.
 * Each test is the leader of a process group, by BoxFort, and the keeper waits for its death. It then continues what
 * is stopped, asks the group to end by SIGTERM, which lets workers remove their names, and kills it a second later.
 *
 * The keeper is no child of the test, because some tests wait for all their children; it therefore watches the test by
 * a pidfd. It has a process group of its own, holds no other descriptor, and ends when the group is empty.
 */
#include "keeper.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DESCRIPTORS 256         /* more than are open before main */
#define LOOKS 100               /* at the group, before it is killed */
#define LOOK_NS 10000000L

static _Noreturn void keep(pid_t leader, int leader_fd)
{
    struct pollfd leader_ends = { .fd = leader_fd, .events = POLLIN };
    const struct timespec look = { .tv_nsec = LOOK_NS };
    sigset_t all;

    setpgid(0, 0);
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    for (int fd = 0; fd < DESCRIPTORS; fd++)
        if (fd != leader_fd)
            close(fd);
    while (poll(&leader_ends, 1, -1) != 1)
        ;
    kill(-leader, SIGTERM);
    kill(-leader, SIGCONT);
    for (int i = 0; i < LOOKS && kill(-leader, 0) == 0; i++)
        nanosleep(&look, NULL);
    kill(-leader, SIGKILL);
    _exit(0);
}

int keeper_start(void)
{
    pid_t leader = getpid(), between;
    int status = 0;

    if (getpgrp() != leader && setpgid(0, 0) < 0)
        return -1;
    between = fork();
    if (between == 0) {
        int leader_fd = (int)syscall(SYS_pidfd_open, leader, 0);
        pid_t keeper = leader_fd < 0 ? -1 : fork();

        if (keeper == 0)
            keep(leader, leader_fd);
        _exit(keeper > 0 ? 0 : 1);
    }
    return between > 0 && waitpid(between, &status, 0) == between && status == 0 ? 0 : -1;
}

/* BoxFort, by which Criterion starts its tests, runs this program once more with this variable. */
__attribute__((constructor)) static void begin(void)
{
    if (getenv("BXFI_MAP") == NULL)
        return;
    if (keeper_start() < 0)
        abort();
}

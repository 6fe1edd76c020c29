/* SPDX-License-Identifier: MIT */
/*
 * A process beside each test. It ends the processes that the test leaves running.
 *
 * Criterion kills a test that runs past its limit, but not its children. The workers of bx_spawn then get SIGTERM from
 * the kernel, but a stopped worker does not act on it, and a child that the test forked itself gets no signal.
 * BoxFort makes each test the leader of a process group. The keeper waits for the leader's death. It then sends the
 * group SIGTERM, which lets workers remove their names, and SIGCONT for those that are stopped. It sends SIGKILL a
 * second later.
 *
 * The keeper is not a child of the test, because some tests wait for all their children. Therefore it watches the test
 * by a pidfd. It stays in the test's group, which keeps the group's number from being given to others, and it ends when
 * it is alone there. It has no other open descriptor.
 */
#include "test.h"

#define DESCRIPTORS 256         /* more than are open before main */
#define CHECKS 100              /* checks whether it is alone, before SIGKILL */
#define CHECK_NS 10000000L      /* between two checks */

static bool is_alone_in(pid_t group)
{
    DIR *processes = opendir("/proc");
    struct dirent *entry;
    bool alone = true;

    while (processes != NULL && (entry = readdir(processes)) != NULL) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);

        alone = alone && (pid <= 0 || pid == getpid() || getpgid(pid) != group);
    }
    if (processes != NULL)
        closedir(processes);
    return alone;
}

static _Noreturn void keep(pid_t leader, int leader_fd)
{
    struct pollfd leader_ends = { .fd = leader_fd, .events = POLLIN };
    const struct timespec between = { .tv_nsec = CHECK_NS };
    sigset_t all;

    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    for (int fd = 0; fd < DESCRIPTORS; fd++)
        if (fd != leader_fd)
            close(fd);
    while (poll(&leader_ends, 1, -1) != 1)
        ;
    kill(-leader, SIGTERM);
    kill(-leader, SIGCONT);
    for (int i = 0; i < CHECKS && !is_alone_in(leader); i++)
        nanosleep(&between, NULL);
    kill(-leader, SIGKILL);
    _exit(0);
}

/* Makes this process the leader of a process group whose other members end soon after it. Returns 0, or -1. */
static int keeper_start(void)
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

/* Criterion starts each test by BoxFort, which runs this program again with this variable set. */
__attribute__((constructor)) static void begin(void)
{
    if (getenv("BXFI_MAP") == NULL)
        return;
    if (keeper_start() < 0)
        abort();
}

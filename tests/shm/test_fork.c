/* SPDX-License-Identifier: MIT */
/*
 * shm/fork.c: which descriptors a forked child keeps.
 */
#include "shm/fork.h"

#include "segment_fixture.h"

#include <sys/prctl.h>
#include <sys/socket.h>

TestSuite(fork, .timeout = 60);

static int number;                      /* of the descriptor that the child looks at */

static int is_open_here(void)
{
    return fcntl(number, F_GETFD) >= 0;
}

static int is_counted(void)
{
    return (int)bxi_load_relaxed(&bxi_forks);
}

Test(fork, is_counted_in_the_child)
{
    int before = is_counted();

    cr_expect_eq(in_child(is_counted), before + 1);
    cr_expect_eq(is_counted(), before);
}

Test(fork, closes_what_is_unshared_in_the_child_alone)
{
    int sockets[2];

    number = BXI_UNSHARED(open("/dev/null", O_RDONLY | O_CLOEXEC));
    cr_assert_geq(number, 0);
    cr_expect_eq(in_child(is_open_here), 0);
    cr_expect_eq(is_open_here(), 1);
    bxi_unshared_close(number);
    cr_expect_eq(is_open_here(), 0);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets), 0);
    number = BXI_UNSHARED(sockets[0]);
    cr_expect_eq(in_child(is_open_here), 0);
    number = sockets[1];
    cr_expect_eq(in_child(is_open_here), 1);
}

Test(fork, keeps_what_has_got_the_number_since)
{
    number = BXI_UNSHARED(open("/dev/null", O_RDONLY | O_CLOEXEC));
    bxi_unshared_close(number);
    cr_assert_eq(open("/dev/null", O_RDONLY), number);
    cr_expect_eq(in_child(is_open_here), 1, "closed by the library");
    close(number);
    cr_assert_eq(BXI_UNSHARED(open("/dev/null", O_RDONLY | O_CLOEXEC)), number);
    close(number);
    cr_assert_eq(open("/dev/zero", O_RDONLY), number);
    cr_expect_eq(in_child(is_open_here), 1, "closed by the program");
}

Test(fork, uses_another_number_than_that_of_stdin)
{
    close(STDIN_FILENO);
    number = BXI_UNSHARED(open("/dev/null", O_RDONLY | O_CLOEXEC));
    cr_expect_gt(number, 0);
    cr_expect_eq(fcntl(number, F_GETFD), FD_CLOEXEC);
    cr_expect_eq(fcntl(STDIN_FILENO, F_GETFD), -1);
    bxi_unshared_close(number);
}

Test(fork, notes_a_failure_to_open_nowhere)
{
    errno = 0;
    cr_expect_eq(BXI_UNSHARED(open("/nowhere/at/all", O_RDONLY)), -1);
    cr_expect_eq(errno, ENOENT);
    bxi_unshared_close(-1);
}

/* ---- A fork while a descriptor is opened ------------------------------------------------------ */

static bxi_a32 forks_now;

/* Registered later than the library's, so called earlier. */
static void before_fork(void)
{
    bxi_store_release(&forks_now, 1);
}

static void *fork_in_thread(void *child_has)
{
    *(int *)child_has = in_child(is_open_here);
    return NULL;
}

Test(fork, waits_until_what_is_being_opened_is_noted)
{
    pthread_t thread;
    int child_has = -1;

    cr_assert_eq(pthread_atfork(before_fork, NULL, NULL), 0);
    bxi_unshared_begin();
    number = open("/dev/null", O_RDONLY | O_CLOEXEC);
    cr_assert_eq(pthread_create(&thread, NULL, fork_in_thread, &child_has), 0);
    HARNESS_WAIT_WHILE(bxi_load_acquire(&forks_now) == 0);
    cr_assert_eq(bxi_unshared_end(number), number);
    pthread_join(thread, NULL);
    cr_expect_eq(child_has, 0);
}

/* ---- The owner lock ---------------------------------------------------------------------------- */

/* Leaves a segment as a killed worker does that has forked a helper, which lives until the pipe is closed. */
static int create_fork_and_die(void)
{
    int runs[2];
    char byte;

    if (pipe(runs) < 0 || bxi_segment_create(&segment, job, "dead", INSTANCE, 1, 2) != 0)
        return 1;
    if (fork() == 0)
        _exit(write(runs[1], "", 1) == 1 && read(number, &byte, 1) == 0 ? 0 : 1);
    if (read(runs[0], &byte, 1) == 1)       /* the helper has returned from fork, and closed what it does not keep */
        raise(SIGKILL);
    return 2;
}

Test(fork, of_a_helper_does_not_keep_the_owner_lock, .init = make_job_name, .fini = remove_names)
{
    struct bxi_object_owner owner;
    int gate[2];

    cr_assert_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    cr_assert_eq(pipe2(gate, O_CLOEXEC), 0);
    number = gate[0];
    gate[1] = BXI_UNSHARED(gate[1]);            /* else the helper would wait for itself */
    cr_assert_eq(in_child(create_fork_and_die), 256 + SIGKILL);
    cr_expect_eq(bxi_object_find_owner(job, INSTANCE, 1, &owner), -ENOENT);
    cr_expect_eq(bxi_object_reap(job, 0), 1);
    bxi_unshared_close(gate[1]);
    cr_expect_gt(wait(NULL), 0);
}

/* SPDX-License-Identifier: MIT */
/*
 * keeper.c: no process outlives a test that is killed, and no signal goes to a process of another test.
 */
#include "harness.h"
#include "keeper.h"

#include "job/job.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE_MS 20000

enum gate { STUCK = 0 };
/* 0 never returns, 1 blocks SIGTERM, 2 is stopped. */
static void get_stuck(int how)
{
    sigset_t term;

    if (how == 1) {
        sigemptyset(&term);
        sigaddset(&term, SIGTERM);
        sigprocmask(SIG_BLOCK, &term, NULL);
    }
    harness_post(STUCK);
    if (how == 2)
        raise(SIGSTOP);
    for (;;)
        pause();
}

static void worker_gets_stuck(struct bx_job *job)
{
    get_stuck(bx_job_rank(job));
}

static void children_get_stuck(void)
{
    for (int how = 0; how < 3; how++)
        if (fork() == 0)
            get_stuck(how);
    for (;;)
        pause();
}

static void workers_get_stuck(void)
{
    harness_try(&(struct harness_world){
        .size = 3, .body = { worker_gets_stuck, worker_gets_stuck, worker_gets_stuck } });
}

/* Runs body as a test and kills it. The read end of the pipe hangs up when all processes that inherited it are gone. */
static void kill_a_test(void (*body)(void))
{
    struct pollfd ended = { .events = POLLIN };
    int pipe_fds[2];
    char job[BX_NAME_MAX + 1];

    snprintf(job, sizeof(job), "%s", harness_job_name());       /* the first job of the test: all but the number */
    cr_assert_eq(pipe(pipe_fds), 0);
    pid_t test = fork();
    cr_assert_geq(test, 0);
    if (test == 0) {
        close(pipe_fds[0]);
        if (keeper_start() == 0)
            body();
        _exit(1);
    }
    close(pipe_fds[1]);
    ended.fd = pipe_fds[0];
    harness_await(STUCK, 3);
    cr_assert_eq(kill(test, SIGKILL), 0);
    cr_assert_eq(waitpid(test, NULL, 0), test);
    cr_expect_eq(poll(&ended, 1, PATIENCE_MS), 1, "something still runs %d s later", PATIENCE_MS / 1000);
    close(pipe_fds[0]);
    *strrchr(job, '-') = '\0';
    strcat(job, "-1");
    bxi_object_reap(job, 0);       /* killed workers could not remove their names */
    bxi_bootstrap_sweep(job);
}

Test(harness, ends_the_workers_of_a_test_that_is_killed, .timeout = 60)
{
    kill_a_test(workers_get_stuck);
}

Test(harness, ends_the_children_of_a_test_that_is_killed, .timeout = 60)
{
    kill_a_test(children_get_stuck);
}

/* If the group were empty, another process could get its number before the keeper sends signals to it. */
Test(harness, holds_the_number_of_the_group_of_a_test, .timeout = 60)
{
    DIR *processes = opendir("/proc");
    struct dirent *entry;
    int others = 0;

    cr_assert_not_null(processes);
    while ((entry = readdir(processes)) != NULL) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);

        others += pid > 0 && pid != getpid() && getpgid(pid) == getpgrp();
    }
    closedir(processes);
#if !defined(__SANITIZE_THREAD__)       /* tests/tsan/ ends the group itself */
    cr_expect_eq(others, 1);
#endif
}

static pid_t fork_waiting(void)
{
    pid_t pid = fork();

    cr_assert_geq(pid, 0);
    if (pid == 0)
        for (;;)
            pause();
    return pid;
}

/* A worker that has ended may have left its pid to a process of another test. */
Test(harness, signals_no_process_of_another_group, .timeout = 60)
{
    int status = 0;
    pid_t other = fork_waiting(), own = fork_waiting();

    cr_assert_eq(setpgid(other, other), 0);
    cr_expect_eq(harness_kill(other, SIGKILL), -1);
    cr_expect_eq(harness_kill(0, SIGKILL), -1);
    cr_expect_eq(harness_kill(own, SIGKILL), 0);
    cr_assert_eq(waitpid(own, &status, 0), own);
    cr_expect_eq(harness_kill(own, SIGKILL), -1);
    cr_assert_eq(kill(other, SIGTERM), 0);
    cr_assert_eq(waitpid(other, &status, 0), other);
    cr_expect_eq(WTERMSIG(status), SIGTERM);
}

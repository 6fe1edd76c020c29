/* SPDX-License-Identifier: MIT */
/*
 * crash.c: a process of a test that a signal ends says first which signal, from whom, and where it was.
 */
#include "crash.h"
#include "harness.h"

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

TestSuite(crash, .timeout = 60);

static char said[16384];

/* Runs fn in a child, which then waits for a signal. Sends it `number`, if that is not 0. Returns its wait status. */
static int end_of_child(void (*fn)(void), int number, pid_t *pid)
{
    int output[2], ready[2], status = 0;
    size_t bytes = 0;
    ssize_t got;

    cr_assert(pipe(output) == 0 && pipe(ready) == 0);
    *pid = fork();
    cr_assert_geq(*pid, 0);
    if (*pid == 0) {
        dup2(output[1], STDERR_FILENO);
        crash_report();
        fn();
        close(ready[1]);
        close(output[1]);
        for (;;)
            pause();
    }
    close(output[1]);
    close(ready[1]);
    cr_assert_eq(read(ready[0], said, 1), 0);           /* end of file: the child is ready, or has ended */
    if (number != 0)
        cr_assert_eq(kill(*pid, number), 0);
    while ((got = read(output[0], said + bytes, sizeof(said) - 1 - bytes)) > 0)
        bytes += (size_t)got;
    said[bytes] = '\0';
    cr_assert_eq(waitpid(*pid, &status, 0), *pid);
    close(output[0]);
    close(ready[0]);
    return status;
}

static void expect_said(const char *part)
{
    cr_expect_not_null(strstr(said, part), "'%s' does not say '%s'", said, part);
}

static void expect_end(int status, int number)
{
    cr_expect(WIFSIGNALED(status) && WTERMSIG(status) == number, "%s", crash_end_text(status));
}

static void do_nothing(void)
{
}

Test(crash, names_the_test_and_the_sender_of_a_signal)
{
    static const int sent[] = { SIGTERM, SIGALRM, SIGXCPU };
    char part[160], name[32] = "";
    FILE *comm = fopen("/proc/self/comm", "re");
    pid_t pid;

    cr_assert(comm != NULL && fscanf(comm, "%31s", name) == 1);
    fclose(comm);
    for (size_t i = 0; i < sizeof(sent) / sizeof(sent[0]); i++) {
        expect_end(end_of_child(do_nothing, sent[i], &pid), sent[i]);
        snprintf(part, sizeof(part), "pid %d (process group %d, parent %d) gets signal %d, si_code 0, sent by pid %d "
                 "(%s, ", (int)pid, (int)getpgrp(), (int)getpid(), sent[i], (int)getpid(), name);
        expect_said(part);
        expect_said("(+0x");        /* a frame */
    }
#ifdef CRITERION_H_
    expect_said("crash: crash::names_the_test_and_the_sender_of_a_signal: pid ");
#endif
}

static void touch_no_access(void)
{
    volatile char *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    dprintf(STDERR_FILENO, "touches 0x%llx\n", (unsigned long long)(uintptr_t)page);
    *page = 1;
}

Test(crash, says_where_memory_was_touched)
{
    char part[96], address[32] = "";
    pid_t pid;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    cr_skip_test("the sanitizer handles SIGSEGV itself");
#endif
    expect_end(end_of_child(touch_no_access, 0, &pid), SIGSEGV);
    cr_assert_eq(sscanf(said, "touches %31s", address), 1);
    snprintf(part, sizeof(part), "gets signal %d, si_code %d, fault at %s\n", SIGSEGV, SEGV_ACCERR, address);
    expect_said(part);
}

Test(crash, says_how_a_child_ended)
{
    cr_expect_str_eq(crash_end_text(SIGKILL), "signal 9 (Killed)");
    cr_expect_str_eq(crash_end_text(7 << 8), "exit status 7");
}

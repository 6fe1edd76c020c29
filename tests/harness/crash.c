/* SPDX-License-Identifier: MIT */
/*
 * crash.h: handlers in each test's process and in the processes that it forks. Criterion says only "Unexpected signal".
 *
 * A handler makes system calls and takes no lock but in backtrace_symbols_fd, which comes last: if the signal
 * interrupted the loader, an alarm ends the process. It then restores the default action, which ends the process
 * as if there had been no handler. A signal that has a handler already is left alone: sanitizers have their own.
 *
 * SIGKILL has no handler. Who waits for a process says how it ended: crash_end_text.
 */
#include "test.h"
#include "crash.h"

#include <execinfo.h>

#define FRAMES_MAX 64
#define LIMIT_S 5               /* for the backtrace */
#define STACK_BYTES 65536       /* of the handler: the thread's own may have overflowed */

static const int signals[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS, SIGTERM, SIGALRM, SIGPROF,
                               SIGVTALRM, SIGUSR1, SIGUSR2, SIGXCPU };

const char *crash_end_text(int status)
{
    static char text[64];

    if (WIFSIGNALED(status))
        snprintf(text, sizeof(text), "signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(text, sizeof(text), "exit status %d", WEXITSTATUS(status));
    return text;
}

/* ---- In the handler --------------------------------------------------------------------------- */

static void name_of(pid_t pid, char name[32])
{
    char path[32];
    ssize_t got = -1;
    int fd;

    snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        got = read(fd, name, 31);
        close(fd);
    }
    if (got > 0)
        name[got - (name[got - 1] == '\n')] = '\0';
    else
        snprintf(name, 32, "gone");
}

static const char *test_name(bool is_suite)
{
#ifdef CRITERION_H_                     /* tests/tsan/ has no such names */
    if (criterion_current_suite != NULL && criterion_current_test != NULL)
        return is_suite ? criterion_current_suite->name : criterion_current_test->name;
#endif
    (void)is_suite;
    return "?";
}

/* A line in one write: other processes write too. snprintf of such conversions takes no lock and no memory. */
static void report(int number, const siginfo_t *info)
{
    bool is_fault = info->si_code > 0 && info->si_code != SI_KERNEL;
    void *frames[FRAMES_MAX];
    char cause[96] = "", name[32], line[512];
    int bytes;

    if (is_fault) {
        snprintf(cause, sizeof(cause), ", fault at %p", info->si_addr);
    } else if (info->si_code <= 0) {
        name_of(info->si_pid, name);
        snprintf(cause, sizeof(cause), ", sent by pid %d (%s, process group %d)", (int)info->si_pid, name,
                 (int)getpgid(info->si_pid));
    }
    bytes = snprintf(line, sizeof(line), "crash: %s::%s: pid %d (process group %d, parent %d) gets signal %d, si_code "
                     "%d%s\n", test_name(true), test_name(false), (int)getpid(), (int)getpgrp(), (int)getppid(), number,
                     info->si_code, cause);
    if (write(STDERR_FILENO, line, (size_t)bytes) < 0)
        return;
    backtrace_symbols_fd(frames, backtrace(frames, FRAMES_MAX), STDERR_FILENO);
}

static void on_signal(int number, siginfo_t *info, void *context)
{
    int saved_errno = errno;

    (void)context;
    if (number != SIGALRM) {
        signal(SIGALRM, SIG_DFL);
        alarm(LIMIT_S);
    }
    report(number, info);
    signal(number, SIG_DFL);
    /* A fault comes again on return. A signal that was sent is pending until then. */
    if (info->si_code <= 0 || info->si_code == SI_KERNEL)
        raise(number);
    errno = saved_errno;
}

/* ---- Before the test -------------------------------------------------------------------------- */

/* Installs the handlers where the default action would end this process without a word. */
static void crash_report(void)
{
    static char stack[STACK_BYTES];
    struct sigaction action = { .sa_flags = SA_SIGINFO | SA_ONSTACK }, before;
    stack_t other;
    void *frame;

    action.sa_sigaction = on_signal;
    sigfillset(&action.sa_mask);
    sigdelset(&action.sa_mask, SIGALRM);
    backtrace(&frame, 1);               /* loads what it needs, which a handler may not */
    if (sigaltstack(NULL, &other) == 0 && (other.ss_flags & SS_DISABLE) != 0)
        sigaltstack(&(stack_t){ .ss_sp = stack, .ss_size = sizeof(stack) }, NULL);
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        if (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL)
            sigaction(signals[i], &action, NULL);
}

/* As in keeper.c: in the process of a test, not in Criterion's. */
__attribute__((constructor)) static void begin(void)
{
    if (getenv("BXFI_MAP") != NULL)
        crash_report();
}

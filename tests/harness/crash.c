/* SPDX-License-Identifier: MIT */
/*
 * crash.h: handlers in each test's process and in the processes that it forks. Criterion says only "Unexpected signal".
 *
 * A handler makes system calls, formats by hand and takes no lock but in backtrace_symbols_fd, which comes last: if the
 * signal interrupted the loader, an alarm ends the process. It then restores the default action, which ends the process
 * as if there had been no handler. A signal that has a handler already is left alone: sanitizers have their own.
 *
 * SIGKILL has no handler. Who waits for a process says how it ended: crash_end_text.
 */
#include "crash.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FRAMES_MAX 64
#define LIMIT_S 5               /* for the backtrace */
#define STACK_BYTES 65536       /* of the handler: the thread's own may have overflowed */

static const struct {
    int number;
    const char *name;
} signals[] = {
    { SIGSEGV, "SIGSEGV" }, { SIGBUS, "SIGBUS" },   { SIGILL, "SIGILL" },   { SIGFPE, "SIGFPE" },
    { SIGABRT, "SIGABRT" }, { SIGTRAP, "SIGTRAP" }, { SIGSYS, "SIGSYS" },   { SIGTERM, "SIGTERM" },
    { SIGALRM, "SIGALRM" }, { SIGPROF, "SIGPROF" }, { SIGVTALRM, "SIGVTALRM" }, { SIGUSR1, "SIGUSR1" },
    { SIGUSR2, "SIGUSR2" }, { SIGXCPU, "SIGXCPU" },
};

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

struct line {
    size_t bytes;
    char text[512];
};

static void put(struct line *line, const char *text)
{
    while (*text != '\0' && line->bytes < sizeof(line->text) - 1)
        line->text[line->bytes++] = *text++;
}

static void put_number(struct line *line, long long value, unsigned base)
{
    unsigned long long left = value < 0 && base == 10 ? 0 - (unsigned long long)value : (unsigned long long)value;
    char digits[24];
    size_t at = sizeof(digits) - 1;

    digits[at] = '\0';
    do {
        digits[--at] = "0123456789abcdef"[left % base];
        left /= base;
    } while (left != 0);
    put(line, value < 0 && base == 10 ? "-" : base == 16 ? "0x" : "");
    put(line, &digits[at]);
}

static void put_process_name(struct line *line, pid_t pid)
{
    struct line path = { 0 };
    char name[32];

    put(&path, "/proc/");
    put_number(&path, pid, 10);
    put(&path, "/comm");
    path.text[path.bytes] = '\0';

    int fd = open(path.text, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, name, sizeof(name) - 1);

    if (fd >= 0)
        close(fd);
    if (got <= 0) {
        put(line, "gone");
        return;
    }
    name[got - (name[got - 1] == '\n')] = '\0';
    put(line, name);
    put(line, ", process group ");
    put_number(line, getpgid(pid), 10);
}

static void put_cause(struct line *line, const siginfo_t *info)
{
    put(line, ", si_code ");
    put_number(line, info->si_code, 10);
    if (info->si_code > 0 && info->si_code != SI_KERNEL) {
        put(line, ", fault at ");
        put_number(line, (long long)(uintptr_t)info->si_addr, 16);
    } else if (info->si_pid == getpid()) {
        put(line, ", sent by itself");
    } else if (info->si_code <= 0) {
        put(line, ", sent by pid ");
        put_number(line, info->si_pid, 10);
        put(line, " (");
        put_process_name(line, info->si_pid);
        put(line, ")");
    }
}

static void put_test(struct line *line)
{
#ifdef CRITERION_H_                     /* tests/tsan/ has no such names */
    if (criterion_current_suite == NULL || criterion_current_test == NULL)
        return;
    put(line, criterion_current_suite->name);
    put(line, "::");
    put(line, criterion_current_test->name);
    put(line, ": ");
#else
    (void)line;
#endif
}

static void put_signal(struct line *line, int number)
{
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        if (signals[i].number == number)
            put(line, signals[i].name);
}

static void report(int number, const siginfo_t *info)
{
    struct line line = { 0 };
    void *frames[FRAMES_MAX];

    put(&line, "crash: ");
    put_test(&line);
    put(&line, "pid ");
    put_number(&line, getpid(), 10);
    put(&line, " (process group ");
    put_number(&line, getpgrp(), 10);
    put(&line, ", parent ");
    put_number(&line, getppid(), 10);
    put(&line, ") gets ");
    put_signal(&line, number);
    put_cause(&line, info);
    put(&line, "\n");
    if (write(STDERR_FILENO, line.text, line.bytes) < 0)
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

void crash_report(void)
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
        if (sigaction(signals[i].number, NULL, &before) == 0 && before.sa_handler == SIG_DFL)
            sigaction(signals[i].number, &action, NULL);
}

/* As in keeper.c: in the process of a test, not in Criterion's. */
__attribute__((constructor)) static void begin(void)
{
    if (getenv("BXFI_MAP") != NULL)
        crash_report();
}

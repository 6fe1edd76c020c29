/* SPDX-License-Identifier: MIT */
/*
 * Part of the library in CONFIG=cov only, whose linker sends every _exit, fork and raise here. Workers of bx_spawn and
 * the children of tests leave by _exit, which runs no exit handler, or by a signal that their handler raises again:
 * what they have executed would not be counted. gcov's own fork sets the child's counts to 0 behind the handlers of
 * pthread_atfork.
 */
#include <signal.h>
#include <unistd.h>

void __gcov_dump(void);
void __gcov_reset(void);
_Noreturn void __real__exit(int status);
_Noreturn void __wrap__exit(int status);

/* A handler that raises its signal writes counts, which takes gcov's mutex and memory. It must not come while this
 * thread has the mutex, or has malloc's, as a child has until fork returns: it would wait for ever, and every process
 * that counts for the file that it has locked. */
static sigset_t block_signals(void)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    return before;
}

static void write_counts(void)
{
    sigset_t before = block_signals();

    __gcov_dump();
    __gcov_reset();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void __wrap__exit(int status)
{
    write_counts();
    __real__exit(status);
}

pid_t __wrap___gcov_fork(void);

pid_t __wrap___gcov_fork(void)
{
    pid_t (*volatile real_fork)(void) = fork;       /* a plain call would be gcov's */
    sigset_t before = block_signals();
    pid_t pid = real_fork();

    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return pid;
}

int __real_raise(int signal_number);
int __wrap_raise(int signal_number);

/* A process writes its counts once, unless they are set to 0: bx_spawn raises a SIGCHLD, and the test, with the workers
 * of its next jobs, goes on. */
int __wrap_raise(int signal_number)
{
    write_counts();
    return __real_raise(signal_number);
}

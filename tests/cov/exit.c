/* SPDX-License-Identifier: MIT */
/*
 * Part of the library in CONFIG=cov only, whose linker sends every _exit, fork and raise here. Workers of bx_spawn and
 * the children of tests leave by _exit, which runs no exit handler, or by a signal that their handler raises again:
 * what they have executed would not be counted. gcov's own fork sets the child's counts to 0 behind the handlers of
 * pthread_atfork.
 */
#include <unistd.h>

void __gcov_dump(void);
void __gcov_reset(void);
_Noreturn void __real__exit(int status);
_Noreturn void __wrap__exit(int status);

void __wrap__exit(int status)
{
    __gcov_dump();
    __real__exit(status);
}

pid_t __wrap___gcov_fork(void);

pid_t __wrap___gcov_fork(void)
{
    pid_t (*volatile real_fork)(void) = fork;       /* a plain call would be gcov's */

    return real_fork();
}

int __real_raise(int signal_number);
int __wrap_raise(int signal_number);

/* A process writes its counts once, unless they are set to 0: bx_spawn raises a SIGCHLD, and the test, with the workers
 * of its next jobs, goes on. */
int __wrap_raise(int signal_number)
{
    __gcov_dump();
    __gcov_reset();
    return __real_raise(signal_number);
}

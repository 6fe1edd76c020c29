/* SPDX-License-Identifier: MIT */
/*
 * Part of the library in CONFIG=cov only, whose linker sends each _exit, raise and fork here. Workers of bx_spawn and
 * the children of tests leave by _exit, which runs no exit handler, or kill themselves; and gcov's own fork forgets what
 * the handlers of pthread_atfork have executed in the child. What is written twice counts twice, which is no matter here.
 */
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

void __gcov_dump(void);
_Noreturn void __real__exit(int status);
_Noreturn void __wrap__exit(int status);
int __real_raise(int number);
int __wrap_raise(int number);
pid_t __wrap___gcov_fork(void);
extern pid_t plain_fork(void) __asm__("fork");

void __wrap__exit(int status)
{
    __gcov_dump();
    __real__exit(status);
}

int __wrap_raise(int number)
{
    __gcov_dump();
    return __real_raise(number);
}

pid_t __wrap___gcov_fork(void)
{
    return plain_fork();
}

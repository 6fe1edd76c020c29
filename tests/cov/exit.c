/* SPDX-License-Identifier: MIT */
/*
 * Part of the library in CONFIG=cov only, whose linker sends every _exit here. Workers of bx_spawn and the children of
 * tests leave by _exit, which runs no exit handler: what they have executed would not be counted.
 */
#include <unistd.h>

void __gcov_dump(void);
_Noreturn void __real__exit(int status);
_Noreturn void __wrap__exit(int status);

void __wrap__exit(int status)
{
    __gcov_dump();
    __real__exit(status);
}

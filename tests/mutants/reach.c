/* SPDX-License-Identifier: MIT */
/*
 * Part of the unit tests that mutants.py builds with COVERED: what a process has executed goes into a folder of its
 * suite below $BX_REACH. A worker leaves by _exit, which writes no counts; see tests/cov/exit.c.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void __gcov_dump(void);
void __real_criterion_internal_test_setup(void);
void __wrap_criterion_internal_test_setup(void);
_Noreturn void __real__exit(int status);
_Noreturn void __wrap__exit(int status);

/* Each test calls it first. At the end of the process Criterion has freed the name. */
void __wrap_criterion_internal_test_setup(void)
{
    const char *reach = getenv("BX_REACH");
    char folder[4096];

    if (reach != NULL) {
        snprintf(folder, sizeof(folder), "%s/%s", reach, criterion_current_suite->name);
        setenv("GCOV_PREFIX", folder, 1);
    }
    __real_criterion_internal_test_setup();
}

void __wrap__exit(int status)
{
    __gcov_dump();
    __real__exit(status);
}

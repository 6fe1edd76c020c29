/* SPDX-License-Identifier: MIT */
/*
 * The runner behind criterion/criterion.h: main() of the unit tests under ThreadSanitizer, and of the GPU tests that
 * run on a bare machine (build/gpu/unit).
 *
 * Each test runs in a process of its own, this program once more with --one SUITE/TEST, which leads a process group
 * of its own; whatever is left of the group when the test has ended is killed. A process that the sanitizer has
 * something to report of ends with a status that is not 0, and so its test fails. Takes --filter PATTERN (shell
 * patterns, as @(ring|future)/\*), --fail-fast and --list, and ends with Criterion's closing line.
 */
#include "tests/tsan/criterion/criterion.h"

#include <fnmatch.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SKIPPED 77              /* exit status */
#define LIMIT_S 60.0
#define SLOWER 5                /* than without the sanitizer, or with the simulated driver, at most */
#define NAME_BYTES 256

static struct tsan_test *tests, *suites;
static bool failed;

void tsan_test_register(struct tsan_test *test)
{
    struct tsan_test **list = test->name != NULL ? &tests : &suites;

    test->next = *list;
    *list = test;
}

void tsan_test_failed(const char *place, bool fatal, const char *text, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    printf("[----] %s: %s: ", place, text);
    vprintf(format, arguments);
    puts("");
    va_end(arguments);
    failed = true;
    if (fatal) {
        fflush(NULL);
        _exit(1);
    }
}

void tsan_test_skip(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vprintf(format, arguments);
    puts("");
    va_end(arguments);
    fflush(NULL);
    _exit(SKIPPED);
}

static const struct tsan_test *suite_of(const struct tsan_test *test)
{
    static const struct tsan_test none;
    const struct tsan_test *suite = suites;

    while (suite != NULL && strcmp(suite->suite, test->suite) != 0)
        suite = suite->next;
    return suite != NULL ? suite : &none;
}

static void name_of(const struct tsan_test *test, char name[NAME_BYTES])
{
    snprintf(name, NAME_BYTES, "%s/%s", test->suite, test->name);
}

static int run_one(const char *wanted)
{
    for (const struct tsan_test *test = tests; test != NULL; test = test->next) {
        const struct tsan_test *suite = suite_of(test);
        void (*init)(void) = test->init != NULL ? test->init : suite->init;
        void (*fini)(void) = test->fini != NULL ? test->fini : suite->fini;
        char name[NAME_BYTES];

        name_of(test, name);
        if (strcmp(name, wanted) != 0)
            continue;
        if (init != NULL)
            init();
        test->run();
        if (fini != NULL)
            fini();
        fflush(NULL);
        return failed;
    }
    printf("there is no test %s\n", wanted);
    return 1;
}

/* Its wait status; -1 past the limit. */
static int wait_for(pid_t pid, double limit_s)
{
    const struct timespec look = { .tv_nsec = 2000000 };
    int status = 0;

    for (double left_s = limit_s; left_s > 0; left_s -= 0.002) {
        if (waitpid(pid, &status, WNOHANG) == pid) {
            kill(-pid, SIGKILL);
            return status;
        }
        nanosleep(&look, NULL);
    }
    kill(-pid, SIGKILL);
    waitpid(pid, &status, 0);
    return -1;
}

/* As run_one in a process; its wait status. */
static int run_apart(const struct tsan_test *test, const char *name)
{
    const struct tsan_test *suite = suite_of(test);
    double limit_s = test->timeout > 0 ? test->timeout : suite->timeout > 0 ? suite->timeout : LIMIT_S;
    pid_t runner = getpid(), pid;

    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != runner)
            _exit(127);
        execl("/proc/self/exe", "unit", "--one", name, (char *)NULL);
        _exit(127);
    }
    return pid < 0 ? -1 : wait_for(pid, limit_s * SLOWER);
}

static int run_all(const char *filter, bool fail_fast)
{
    unsigned tested = 0, passing = 0, crashing = 0;

    for (const struct tsan_test *test = tests; test != NULL && !(fail_fast && tested != passing); test = test->next) {
        char name[NAME_BYTES];
        int status;

        name_of(test, name);
        if (test->disabled || fnmatch(filter, name, FNM_EXTMATCH) != 0)
            continue;
        status = run_apart(test, name);
        if (status >= 0 && WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED) {
            printf("[SKIP] %s::%s: see above\n", test->suite, test->name);
            continue;
        }
        tested++;
        passing += status == 0;
        crashing += status < 0 || !WIFEXITED(status);
        if (status == 0)
            printf("[PASS] %s::%s\n", test->suite, test->name);
        else
            printf("[FAIL] %s::%s: %s\n", test->suite, test->name, status < 0 ? "past its time limit" : "see above");
    }
    printf("[====] Synthesis: Tested: %u | Passing: %u | Failing: %u | Crashing: %u\n", tested, passing,
           tested - passing, crashing);
    return tested != passing;
}

/* As Criterion's --list: a line a suite, and below it a line a test. */
static int list(void)
{
    for (const struct tsan_test *first = tests; first != NULL; first = first->next) {
        const struct tsan_test *test = tests;
        unsigned count = 0;

        while (test != first && strcmp(test->suite, first->suite) != 0)
            test = test->next;
        if (test != first)
            continue;                   /* its suite is listed already */
        for (; test != NULL; test = test->next)
            count += strcmp(test->suite, first->suite) == 0;
        printf("%s: %u tests\n", first->suite, count);
        for (test = first; test != NULL; test = test->next)
            if (strcmp(test->suite, first->suite) == 0)
                printf("    %s\n", test->name);
    }
    return 0;
}

int main(int argc, char **argv)
{
    const char *filter = "*";
    bool fail_fast = false;

    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--one") == 0 && i + 1 < argc)
            return run_one(argv[i + 1]);
        if (strcmp(argv[i], "--list") == 0)
            return list();
        if (strcmp(argv[i], "--filter") == 0 && i + 1 < argc)
            filter = argv[++i];
        fail_fast |= strcmp(argv[i], "--fail-fast") == 0;
    }
    return run_all(filter, fail_fast);
}

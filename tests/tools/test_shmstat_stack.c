/* SPDX-License-Identifier: MIT */
/*
 * shmstat why: the commands that show the stacks of threads, and the stacks. eu-stack is a script that the test writes
 * into a directory of its own in front of PATH; one test runs the real one, if it is installed.
 */
#include "stat_run.h"
#include "tests/harness/harness.h"

#include "tools/shmstat/stack.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum gate { HELD, LOOSE };
enum value { TID };

static char directory[] = "/tmp/bx_stack.XXXXXX";
static char script[64];

/* An eu-stack in front of PATH; NULL: PATH has none. */
static void set_program(const char *text)
{
    char path[4096];

    if (script[0] == '\0')
        cr_assert_not_null(mkdtemp(directory));
    snprintf(script, sizeof(script), "%s/eu-stack", directory);
    unlink(script);
    if (text != NULL) {
        FILE *file = fopen(script, "w");

        cr_assert_not_null(file);
        fprintf(file, "#!/bin/sh\n%s\n", text);
        fchmod(fileno(file), 0700);
        fclose(file);
    }
    snprintf(path, sizeof(path), text != NULL ? "%s:/usr/bin:/bin" : "%s", directory);
    setenv("PATH", path, 1);
}

static void remove_program(void)
{
    unlink(script);
    rmdir(directory);
}

TestSuite(shmstat_stack, .fini = remove_program, .timeout = 60);

/* ---- One stack ----------------------------------------------------------------------------------------- */

static void expect_read(const char *text, size_t count, const char *first, const char *problem)
{
    static struct stat_stack stack;

    set_program(text);
    stat_stack_read(&stack, 77, BX_FOREVER / 4);
    cr_expect_eq(stack.count, count, "%s: %zu", text, stack.count);
    cr_expect_str_eq(stack.problem, problem);
    if (count > 0)
        cr_expect_str_eq(stack.frame[0], first);
}

Test(shmstat_stack, is_what_eu_stack_prints_or_why_it_prints_none)
{
    expect_read("echo 'PID 7 - process'; echo 'TID 77:'; echo '#0  0x12 poll'; echo '#1  0x34 main'", 2,
                "#0  0x12 poll", "");
    expect_read("echo '#0  0x12 a\tb'; echo 'eu-stack: more frames' >&2; exit 1", 1, "#0  0x12 a?b", "");
    expect_read("echo 'eu-stack: tid 77: Operation not permitted' >&2; exit 2", 0, NULL,
                "the kernel forbids to trace the process. Run shmstat as root, or allow it with sysctl "
                "kernel.yama.ptrace_scope=0");
    expect_read("echo 'eu-stack: tid 77: No such process' >&2; exit 2", 0, NULL,
                "eu-stack: tid 77: No such process");
    expect_read("exit 0", 0, NULL, "eu-stack shows no frame");
    expect_read("for i in $(seq 100); do echo \"#$i frame\"; done", STAT_FRAMES_MAX, "#1 frame", "");
    expect_read("yes '#0 frame' | head -c 1000000", STAT_FRAMES_MAX, "#0 frame", "");
    expect_read("test \"$*\" = '-1 -n 32 -p 77' && echo '#0 right'", 1, "#0 right", "");
    expect_read(NULL, 0, NULL, "eu-stack is not installed. It is in Debian's package elfutils");
}

Test(shmstat_stack, that_takes_too_long_is_given_up)
{
    static struct stat_stack stack;

    set_program("exec sleep 1000");
    stat_stack_read(&stack, 77, 100 * HARNESS_MS);
    cr_expect_eq(stack.count, 0);
    cr_expect_str_eq(stack.problem, "eu-stack took longer than 0.1 s and was ended");
    set_program("echo '#0  poll'; exec sleep 1000");
    do {
        stat_stack_read(&stack, 77, 100 * HARNESS_MS);
    } while (stack.count == 0);         /* it may not have begun */
    cr_expect_str_eq(stack.frame[0], "#0  poll");
}

Test(shmstat_stack, is_shown_by_eu_stack_or_by_gdb)
{
    char command[80];

    set_program("exit 0");
    cr_expect(stat_stack_can());
    stat_stack_command(command, sizeof(command), 12, 34);
    cr_expect_str_eq(command, "eu-stack -1 -p 34");
    stat_stack_command(command, sizeof(command), 12, 0);
    cr_expect_str_eq(command, "eu-stack -p 12");
    chmod(script, 0600);
    if (geteuid() != 0)
        cr_expect(!stat_stack_can());
    set_program(NULL);
    cr_expect(!stat_stack_can());
    stat_stack_command(command, sizeof(command), 12, 34);
    cr_expect_str_eq(command, "gdb -p 34 -batch -ex bt");
    stat_stack_command(command, sizeof(command), 12, 0);
    cr_expect_str_eq(command, "gdb -p 12 -batch -ex 'thread apply all bt'");
    unsetenv("PATH");
    cr_expect(!stat_stack_can());
}

/* ---- why ------------------------------------------------------------------------------------------------ */

__attribute__((noinline)) static int stay_in_a_function_of_this_name(void)
{
    harness_post(HELD);
    harness_await(LOOSE, 1);
    return (int)harness_load(TID) == 0;         /* no tail call */
}

HARNESS_HANDLER(stay)
{
    harness_store(TID, (uint64_t)syscall(SYS_gettid));
    return stay_in_a_function_of_this_name();
}

static int setup(struct bx_job *job)
{
    int rc = bx_register(job, "stay", BX_BLOCKING, stay, NULL);

    return rc < 0 ? rc : bx_register(job, "stay_here", BX_INLINE, stay, NULL);
}

static struct bx_future *begin(struct bx_job *job, const char *function)
{
    struct bx_future *future = NULL;

    HARNESS_EQ(bx_rpc_async(job, "worker1", function, NULL, NULL, &future), 0);
    harness_await(HELD, 1);
    return future;
}

static void finish(struct bx_future *future)
{
    harness_post(LOOSE);
    HARNESS_EQ(bx_future_wait(future, BX_FOREVER), 0);
    bx_future_release(future);
}

/* Repeats `why` until it has that part. */
static struct stat_run why_with(const char *flags, const char *part)
{
    struct stat_run run = stat_run("why worker0 %s %s", harness_job_name(), flags);

    while (strstr(run.text, part) == NULL)
        run = stat_run("why worker0 %s %s", harness_job_name(), flags);
    HARNESS_EQ(run.status, 0);
    return run;
}

static void shows_the_stack(struct bx_job *job)
{
    struct bx_future *future = begin(job, "stay");
    struct stat_run run;
    char lines[200];

    snprintf(lines, sizeof(lines), "in thread %llu.\n    eu-stack -1 -p %llu\n        #0  here %llu\n",
             (unsigned long long)harness_load(TID), (unsigned long long)harness_load(TID),
             (unsigned long long)harness_load(TID));
    run = why_with("--stack", "#0  here");
    HARNESS_HAS(run.text, lines);
    run = why_with("", "    eu-stack -1 -p");
    HARNESS_CHECK(strstr(run.text, "#0") == NULL);
    finish(future);
}

Test(shmstat_stack, of_the_thread_of_a_handler_is_shown)
{
    set_program("echo \"#0  here $5\"");
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { shows_the_stack } });
}

static void shows_it_as_json(struct bx_job *job)
{
    struct bx_future *future = begin(job, "stay");

    for (int i = 0; i < 2; i++) {
        struct stat_run run = stat_run("why worker0 %s --json %s", harness_job_name(), i > 0 ? "--stack" : "");
        const struct json *thread = json_at(json_get(stat_run_job(&run), "threads"), 0);

        HARNESS_CHECK(json_number(json_get(thread, "worker")) == 1);
        HARNESS_CHECK(json_number(json_get(thread, "thread")) == (double)harness_load(TID));
        HARNESS_HAS(json_text(json_get(thread, "stack_command")), "eu-stack -1 -p ");
        HARNESS_EQ(json_get(thread, "stack")->count, i);
        if (i > 0)
            HARNESS_HAS(json_text(json_at(json_get(thread, "stack"), 0)), "#0  here");
    }
    finish(future);
}

Test(shmstat_stack, is_in_json_if_it_is_asked_for)
{
    set_program("echo \"#0  here $5\"");
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { shows_it_as_json } });
}

/* The thread with the progress role is not known by its number. The caller's thread is. */
static void waits(struct bx_job *job)
{
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "stay_here", NULL, NULL, NULL), 0);
}

static void shows_the_process(struct bx_job *job)
{
    struct stat_run run;

    (void)job;
    harness_await(HELD, 1);
    run = why_with("--stack", " -batch -ex bt\n    No stack: eu-stack is not installed.");  /* once the caller waits */
    HARNESS_HAS(run.text, "where progress is made.\n    gdb -p ");
    HARNESS_HAS(run.text, " -batch -ex 'thread apply all bt'\n");
    harness_post(LOOSE);
}

Test(shmstat_stack, of_which_only_the_process_is_known_is_a_command)
{
    set_program(NULL);
    if (access("/bin/sh", X_OK) != 0)
        cr_skip_test("no /bin/sh");
    harness_run(&(struct harness_world){ .size = 3, .setup = setup, .body = { waits, NULL, shows_the_process } });
}

/* ---- The real one ---------------------------------------------------------------------------------------- */

static void shows_the_real_stack(struct bx_job *job)
{
    struct bx_future *future = begin(job, "stay");
    struct stat_run run = stat_run("why worker0 %s --stack", harness_job_name());

    HARNESS_HAS(run.text, "        #0  ");
    HARNESS_HAS(run.text, " stay_in_a_function_of_this_name");
    finish(future);
}

Test(shmstat_stack, is_the_real_one_by_the_real_program)
{
    struct stat_stack *stack;

    if (!stat_stack_can())
        cr_skip_test("eu-stack is not installed (Debian: elfutils)");
    stack = calloc(1, sizeof(*stack));
    stat_stack_read(stack, (uint64_t)getppid(), BX_FOREVER / 4);
    if (strstr(stack->problem, "forbids") != NULL)
        cr_skip_test("the kernel forbids to trace processes");
    free(stack);
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { shows_the_real_stack } });
}

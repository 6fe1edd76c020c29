/* SPDX-License-Identifier: MIT */
/*
 * shmstat why: the commands that show the stacks of threads. eu-stack is a file that the test writes into a directory
 * of its own in front of PATH.
 */
#include "stat_run.h"
#include "tests/harness/harness.h"

#include "tools/shmstat/stack.h"

enum gate { HELD, LOOSE };
enum value { TID };

static char directory[] = "/tmp/bx_stack.XXXXXX";
static char script[64];

/* An eu-stack in front of PATH, or none in PATH. */
static void set_program(bool is_there)
{
    char path[80];

    if (script[0] == '\0')
        cr_assert_not_null(mkdtemp(directory));
    snprintf(script, sizeof(script), "%s/eu-stack", directory);
    unlink(script);
    if (is_there)
        close(open(script, O_CREAT | O_WRONLY | O_CLOEXEC, 0700));
    snprintf(path, sizeof(path), is_there ? "%s:/usr/bin:/bin" : "%s", directory);
    setenv("PATH", path, 1);
}

static void remove_program(void)
{
    unlink(script);
    rmdir(directory);
}

TestSuite(shmstat_stack, .fini = remove_program, .timeout = 60);

/* ---- The command ----------------------------------------------------------------------------------------- */

Test(shmstat_stack, is_shown_by_eu_stack_or_by_gdb)
{
    char command[80];

    set_program(true);
    stat_stack_command(command, sizeof(command), 12, 34);
    cr_expect_str_eq(command, "eu-stack -1 -p 34");
    stat_stack_command(command, sizeof(command), 12, 0);
    cr_expect_str_eq(command, "eu-stack -p 12");
    set_program(false);
    stat_stack_command(command, sizeof(command), 12, 34);
    cr_expect_str_eq(command, "gdb -p 34 -batch -ex bt");
    stat_stack_command(command, sizeof(command), 12, 0);
    cr_expect_str_eq(command, "gdb -p 12 -batch -ex 'thread apply all bt'");
    unsetenv("PATH");
    stat_stack_command(command, sizeof(command), 12, 34);
    cr_expect_str_eq(command, "gdb -p 34 -batch -ex bt");
}

/* ---- why ------------------------------------------------------------------------------------------------ */

HARNESS_HANDLER(stay)
{
    harness_store(TID, (uint64_t)syscall(SYS_gettid));
    harness_post(HELD);
    harness_await(LOOSE, 1);
    return 0;
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
static struct stat_run why_with(const char *part)
{
    struct stat_run run = stat_run("why worker0 %s", harness_job_name());

    while (strstr(run.text, part) == NULL)
        run = stat_run("why worker0 %s", harness_job_name());
    HARNESS_EQ(run.status, 0);
    return run;
}

static void shows_the_command(struct bx_job *job)
{
    struct bx_future *future = begin(job, "stay");
    const struct json *thread;
    struct stat_run run;
    char lines[200];

    snprintf(lines, sizeof(lines), "in thread %llu.\n    eu-stack -1 -p %llu\n",
             (unsigned long long)harness_load(TID), (unsigned long long)harness_load(TID));
    HARNESS_HAS(why_with(lines).text, lines);
    run = stat_run_fine("why worker0", harness_job_name());
    thread = json_at(json_get(stat_run_job(&run), "threads"), 0);
    HARNESS_CHECK(json_number(json_get(thread, "worker")) == 1);
    HARNESS_CHECK(json_number(json_get(thread, "thread")) == (double)harness_load(TID));
    HARNESS_HAS(json_text(json_get(thread, "stack_command")), "eu-stack -1 -p ");
    finish(future);
}

Test(shmstat_stack, of_the_thread_of_a_handler_has_a_command)
{
    set_program(true);
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { shows_the_command } });
}

/* The thread with the progress role is not known by its number. The caller's thread is. */
static void waits(struct bx_job *job)
{
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "stay_here", NULL, NULL, NULL), 0);
}

HARNESS_BODY(shows_the_process)
{
    struct stat_run run;

    harness_await(HELD, 1);
    run = why_with(" -batch -ex bt\n");                         /* once the caller waits */
    HARNESS_HAS(run.text, "where progress is made.\n    gdb -p ");
    HARNESS_HAS(run.text, " -batch -ex 'thread apply all bt'\n");
    harness_post(LOOSE);
}

Test(shmstat_stack, of_which_only_the_process_is_known_is_a_command)
{
    set_program(false);
    harness_run(&(struct harness_world){ .size = 3, .setup = setup, .body = { waits, NULL, shows_the_process } });
}

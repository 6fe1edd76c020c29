/* SPDX-License-Identifier: MIT */
/*
 * lib/job (job.c, options.c, questions.c): options and environment, a job's phases, several jobs at once. Forks:
 * test_forked.c.
 */
#include "tests/harness/child.h"
#include "tests/harness/harness.h"

#include "job/old.h"
#include "rpc/rpc.h"

enum { READY, DONE };                   /* gates */

static int setup(struct bx_job *job)
{
    return bx_register(job, "twice", BX_INLINE, harness_twice, NULL);
}

/* ---- Options --------------------------------------------------------------------------------- */

static void expect_refused(const struct bx_options *options, int code, const char *part)
{
    struct bx_job *job = NULL;

    cr_expect_eq(bx_job_create(options, &job), code, "%s: %s", part, bx_error_text());
    cr_expect_null(job);
    cr_expect_not_null(strstr(bx_error_text(), part), "'%s' does not say '%s'", bx_error_text(), part);
    bx_job_destroy(job);
}

static void expect_too_many_here(int world_size)
{
    struct bx_options options = { .job = "j", .world_size = world_size, .rank = world_size - 1 };
    struct bx_job *job = NULL;

    cr_assert_eq(bx_job_create(&options, &job), 0, "%s", bx_error_text());
    cr_expect_eq(bx_job_start(job), BX_E_WORLD_SIZE);
    cr_expect_not_null(strstr(bx_error_text(), "a host has at most 128 workers of a job, and "), "%s", bx_error_text());
    bx_job_destroy(job);
}

static void clear_environment(void)
{
    unsetenv("BX_JOB");
    unsetenv("BX_NAME");
    unsetenv("BX_RANK");
    unsetenv("BX_WORLD_SIZE");
    unsetenv("BX_WAIT");
}

TestSuite(job, .timeout = 120);

Test(job, of_more_workers_than_a_host_may_have_needs_more_hosts, .init = clear_environment)
{
    expect_too_many_here(129);
    expect_too_many_here(1024);
}

Test(job, refuses_options_that_are_out_of_range, .init = clear_environment)
{
    expect_refused(&(struct bx_options){ .job = "j", .world_size = 1025 }, BX_E_WORLD_SIZE, "1025");
    expect_refused(&(struct bx_options){ .job = "j", .world_size = 5000 }, BX_E_WORLD_SIZE, "5000");
    expect_refused(&(struct bx_options){ .job = "j", .world_size = -2 }, BX_E_WORLD_SIZE, "-2");
    expect_refused(&(struct bx_options){ .job = "j", .world_size = 2, .rank = 2 }, -EINVAL, "rank 2");
    expect_refused(&(struct bx_options){ .job = "j", .world_size = 2, .rank = -1 }, -EINVAL, "rank -1");
    expect_refused(&(struct bx_options){ .world_size = 2 }, -EINVAL, "job");
    expect_refused(&(struct bx_options){ .job = "a/b", .world_size = 2 }, -EINVAL, "a/b");
    expect_refused(&(struct bx_options){ .job = "j", .name = "a b", .world_size = 2 }, -EINVAL, "a b");
    expect_refused(&(struct bx_options){ .job = "j", .world_size = 2, .struct_bytes = 4096 }, BX_E_VERSION,
                   "4096");
    expect_refused(&(struct bx_options){ .job = "j", .world_size = 2, .wait = (enum bx_wait)7 }, -EINVAL,
                   "wait");
}

Test(job, refuses_an_incomplete_environment, .init = clear_environment)
{
    expect_refused(&(struct bx_options){ 0 }, -EINVAL, "BX_WORLD_SIZE");
    setenv("BX_WORLD_SIZE", "2", 1);
    expect_refused(&(struct bx_options){ 0 }, -EINVAL, "BX_RANK");
    setenv("BX_RANK", "1", 1);
    expect_refused(&(struct bx_options){ 0 }, -EINVAL, "BX_JOB");
    setenv("BX_JOB", "j", 1);
    setenv("BX_RANK", "one", 1);
    expect_refused(&(struct bx_options){ 0 }, -EINVAL, "one");
    setenv("BX_RANK", "2", 1);
    expect_refused(&(struct bx_options){ 0 }, -EINVAL, "rank 2");
    setenv("BX_RANK", "99999999999999999999", 1);
    expect_refused(&(struct bx_options){ 0 }, -EINVAL, "BX_RANK");
    setenv("BX_RANK", "0", 1);
    setenv("BX_WORLD_SIZE", "0", 1);
    expect_refused(&(struct bx_options){ 0 }, BX_E_WORLD_SIZE, "1 to 1024 workers, not 0");
    setenv("BX_WORLD_SIZE", "2", 1);
    setenv("BX_NAME", "no good", 1);
    expect_refused(&(struct bx_options){ 0 }, -EINVAL, "'no good'");
    unsetenv("BX_NAME");
    setenv("BX_WAIT", "select", 1);
    expect_refused(&(struct bx_options){ 0 }, -EINVAL, "select");
    expect_refused(NULL, -EINVAL, "select");
}

Test(job, takes_options_of_an_older_header, .init = clear_environment)
{
    struct bx_options options = { .struct_bytes = offsetof(struct bx_options, start_timeout_ns), .job = "j",
                                  .world_size = 2, .rank = 1, .wait = (enum bx_wait)99 };
    struct bx_job *job = NULL;

    cr_assert_eq(bx_job_create(&options, &job), 0, "%s", bx_error_text());
    cr_expect_eq(bx_job_rank(job), 1);
    cr_expect_str_eq(bx_job_name(job), "worker1");
    bx_job_destroy(job);
}

/* By the symbol of 0.1 a struct without a size has none of the fields since. */
Test(job, reads_rejoin_only_of_a_struct_that_has_it, .init = clear_environment)
{
    struct bx_options options = { .job = "j", .world_size = 2, .rejoin = 1 };

    for (int i = 0; i < 5; i++) {
        struct bx_job *job = NULL;

        options.struct_bytes = i == 1 ? sizeof(options) : 0;
        setenv("BX_REJOIN", i == 2 ? "1" : i == 3 ? "0" : "", 1);
        cr_assert_eq((i < 4 ? bxi_old_job_create : bx_job_create)(&options, &job), 0, "%s", bx_error_text());
        cr_expect_eq(job->options.rejoin, i == 1 || i == 2 || i == 4);
        bx_job_destroy(job);
    }
    setenv("BX_REJOIN", "yes", 1);
    expect_refused(&options, -EINVAL, "BX_REJOIN='yes' is neither 0 nor 1");
}

Test(job, takes_names_of_31_characters_that_do_not_begin_with_a_dot, .init = clear_environment)
{
    struct bx_options options = { .job = "j", .name = "a234567890123456789012345678901", .rank = 0, .world_size = 2 };
    struct bx_job *job = NULL;

    cr_assert_eq(strlen(options.name), BX_NAME_MAX);
    cr_assert_eq(bx_job_create(&options, &job), 0, "%s", bx_error_text());
    cr_expect_str_eq(bx_job_name(job), options.name);
    bx_job_destroy(job);
    options.name = "a2345678901234567890123456789012";
    expect_refused(&options, -EINVAL, options.name);
    options.name = ".hidden";
    expect_refused(&options, -EINVAL, "'.hidden'");
    options.name = NULL;
    options.job = "..";
    expect_refused(&options, -EINVAL, "'..'");
}

Test(job, takes_a_size_of_the_arena_that_is_a_number_of_bytes, .init = clear_environment)
{
    static const char *const wrong[] = { "-5", "+5", " 5", "5k", "0", "0x10", "99999999999999999999999", "many" };
    struct bx_options options = { .job = "j", .rank = 0, .world_size = 2 };
    struct bx_job *job = NULL;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        setenv("BX_ARENA_BYTES", wrong[i], 1);
        expect_refused(&options, -EINVAL, wrong[i]);
    }
    setenv("BX_ARENA_BYTES", "4194304", 1);
    cr_assert_eq(bx_job_create(&options, &job), 0, "%s", bx_error_text());
    cr_expect_eq(job->options.arena_bytes, 4194304);
    bx_job_destroy(job);
    unsetenv("BX_ARENA_BYTES");
    options.arena_bytes = UINT64_C(1) << 40;
    cr_assert_eq(bx_job_create(&options, &job), 0, "%s", bx_error_text());
    bx_job_destroy(job);
    job = NULL;
    options.arena_bytes++;
    expect_refused(&options, -EINVAL, "1099511627777");
}

Test(job, refuses_options_of_a_later_header, .init = clear_environment)
{
    struct { struct bx_options options; uint64_t more; } later = {
        .options = { .struct_bytes = sizeof(later), .job = "j", .rank = 0, .world_size = 2 },
        .more = 1,
    };

    expect_refused(&later.options, BX_E_VERSION, "older");
    later.options.struct_bytes = sizeof(struct bx_options) + 1;
    expect_refused(&later.options, BX_E_VERSION, "older");
}

/* ---- Phases ---------------------------------------------------------------------------------- */

Test(job, refuses_calls_before_its_start, .init = clear_environment)
{
    struct bx_options options = { .job = "j", .world_size = 2 };
    struct bx_job *job = NULL;
    struct bx_future *future = NULL;
    uint64_t value = 7;

    cr_assert_eq(bx_job_create(&options, &job), 0);
    cr_expect_eq(bx_rpc_sync(job, "worker1", "twice", NULL, NULL, NULL), BX_E_STATE);
    cr_expect_eq(bx_rpc_async(job, "worker1", "twice", NULL, NULL, &future), BX_E_STATE);
    cr_expect_eq(bx_rpc_oneway(job, "worker1", "twice", NULL, NULL), BX_E_STATE);
    cr_expect_eq(bx_job_serve(job), BX_E_STATE);
    cr_expect_eq(bx_job_shutdown(job, 0), BX_E_STATE);
    cr_expect_eq(bx_progress(job), BX_E_STATE);
    cr_expect_eq(bx_batch_join(job, "worker1", "twice"), BX_E_STATE);
    cr_expect_eq(bx_job_fd(job), BX_E_STATE);
    cr_expect_null(bx_worker_name(job, 0));
    cr_expect_eq(bx_counter(job, "calls_sent", &value), 0);
    cr_expect_eq(value, 0);
    bx_job_destroy(job);
    bx_job_destroy(NULL);
}

HARNESS_TEST(job, starts_once, 20, .size = 2, .setup = setup)
{
    uint64_t value = 7;

    HARNESS_EQ(bx_job_start(job), BX_E_STATE);
    HARNESS_EQ(bx_on_death(job, NULL, NULL), BX_E_STATE);
    HARNESS_EQ(bx_counter(job, "calls_made", &value), -ENOENT);
    HARNESS_HAS(bx_error_text(), "calls_made");
    HARNESS_EQ(value, 7);
    HARNESS_EQ(harness_call_i64(job, "worker1", "twice", 4), 8);
    HARNESS_EQ(harness_counter(job, "calls_sent"), 1);
}

/* ---- Separate programs ----------------------------------------------------------------------- */

static _Noreturn void run_from_environment(const char *rank, const char *name)
{
    struct bx_job *job = NULL;

    setenv("BX_JOB", harness_job_name(), 1);
    setenv("BX_RANK", rank, 1);
    setenv("BX_WORLD_SIZE", "2", 1);
    if (name != NULL)
        setenv("BX_NAME", name, 1);
    HARNESS_EQ(bx_job_create(&(struct bx_options){ 0 }, &job), 0);
    HARNESS_EQ(setup(job), 0);
    HARNESS_EQ(bx_job_start(job), 0);
    HARNESS_CHECK(strcmp(bx_worker_name(job, 0), "worker0") == 0);
    HARNESS_CHECK(strcmp(bx_worker_name(job, 1), "agent") == 0);
    for (int64_t i = 0; i < 100; i++)
        HARNESS_EQ(harness_call_i64(job, rank[0] == '0' ? "agent" : "worker0", "twice", i), 2 * i);
    harness_check_rescued(job);
    HARNESS_EQ(bx_job_shutdown(job, 0), 0);
    bx_job_destroy(job);
    _exit(0);
}

Test(job, starts_from_the_environment_in_separate_processes, .init = clear_environment, .timeout = 20)
{
    const char *name = harness_job_name();      /* before the fork: it has the pid of the first caller */
    pid_t first, second;

    cr_assert_not_null(name);
    if ((first = fork()) == 0)
        run_from_environment("1", "agent");
    if ((second = fork()) == 0)
        run_from_environment("0", NULL);
    expect_ended_well(first);
    expect_ended_well(second);
    cr_expect_eq(harness_left_behind(), 0);
}

/* ---- Two jobs at once ------------------------------------------------------------------------ */

static void call_while_the_other_job_does(struct bx_job *job)
{
    harness_post(READY);
    harness_await(READY, 2);            /* both jobs are there */
    for (int64_t i = 0; i < 500; i++)
        HARNESS_EQ(harness_call_i64(job, "worker1", "twice", i), 2 * i);
    HARNESS_EQ(harness_counter(job, "calls_sent"), 500);
    harness_post(DONE);
    harness_await(DONE, 2);
}

static _Noreturn void run_one_of_two_jobs(void)
{
    _exit(harness_try(&(struct harness_world){
              .size = 2, .setup = setup, .body = { call_while_the_other_job_does } }) == 0 ? 0 : 1);
}

Test(job, runs_beside_another_job_with_the_same_worker_names, .timeout = 20)
{
    pid_t launcher[2];

    for (int i = 0; i < 2; i++)
        if ((launcher[i] = fork()) == 0)
            run_one_of_two_jobs();
    expect_ended_well(launcher[0]);
    expect_ended_well(launcher[1]);
}

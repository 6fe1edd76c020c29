/* SPDX-License-Identifier: MIT */
/*
 * lib/job/spawn.c: how a worker of bx_spawn ends, its buffered output, and the files that it leaves.
 */
#include "starts.h"

TestSuite(spawn_end, .init = starts_set_up, .fini = place_tear_down, .timeout = 60);

static int spawn(bx_worker_fn fn, struct bx_spawn_report *report)
{
    struct bx_spawn_options options = { .job = job_name, .world_size = 2, .grace_ns = 100000000 };

    return bx_spawn(&options, fn, NULL, report);
}

/* The output is still in the buffer when the function returns, and cannot be written. */
static int print_to_a_full_device(const struct bx_options *options, void *context)
{
    (void)context;
    if (options->rank == 0)
        return 0;
    if (freopen("/dev/full", "w", stdout) == NULL)
        return 3;
    printf("what nobody will read");
    return 0;
}

Test(spawn_end, with_lost_output_is_a_failure)
{
    struct bx_spawn_report report;

    cr_expect_eq(spawn(print_to_a_full_device, &report), BX_E_WORKER_FAILED);
    cr_expect_eq(report.failed_rank, 1);
    cr_expect_eq(report.exit_status, EXIT_FAILURE);
    cr_expect_not_null(strstr(bx_error_text(), "exited with status 1"), "%s", bx_error_text());
}

/* The output is lost here too, but the function's own status must be reported. */
static int fail_at_a_full_device(const struct bx_options *options, void *context)
{
    print_to_a_full_device(options, context);
    return options->rank == 0 ? 0 : 7;
}

Test(spawn_end, keeps_the_workers_status_though_output_is_lost)
{
    struct bx_spawn_report report;

    cr_expect_eq(spawn(fail_at_a_full_device, &report), BX_E_WORKER_FAILED);
    cr_expect_eq(report.exit_status, 7);
}

/* Rank 0 has a lock file and a socket while the job starts; rank 1 never comes. */
static int be_killed_in_the_start(const struct bx_options *options, void *context)
{
    struct bx_job *job = NULL;

    (void)context;
    if (options->rank == 1) {
        start_wait_for_segment(".0");
        harness_kill((pid_t)starts[0].pid, SIGKILL);
        return 0;
    }
    starts[0].pid = getpid();
    if (bx_job_create(options, &job) == 0)
        bx_job_start(job);
    return 0;
}

Test(spawn_end, of_a_killed_rank_0_leaves_neither_its_socket_nor_its_lock)
{
    struct bx_spawn_report report;

    cr_expect_eq(spawn(be_killed_in_the_start, &report), BX_E_WORKER_FAILED);
    cr_expect_eq(report.failed_rank, 0);
    cr_expect_eq(report.term_signal, SIGKILL);
}

/* SPDX-License-Identifier: MIT */
/*
 * lib/job/job.c, bootstrap.c: when any one allocation fails, a job is not created or not started, and leaves nothing.
 */
#include "starts.h"
#include "tests/harness/memory.h"

#include <errno.h>
#include <stdlib.h>

TestSuite(job_memory, .init = starts_set_up, .fini = place_tear_down, .timeout = 60);

/* ---- Creating and starting --------------------------------------------------------------------- */

Test(job_memory, a_job_is_not_created_when_any_allocation_fails)
{
    struct bx_options options = { .job = job_name, .rank = 0, .world_size = 2, .wait = BX_WAIT_EPOLL };
    int before = open_fds(), n = 0, rc = -ENOMEM;

    while (rc < 0) {
        struct bx_job *job = NULL;

        memory_fails_in = ++n;
        rc = bx_job_create(&options, &job);
        if (rc < 0) {
            cr_expect_eq(memory_fails_in, 0);
            cr_assert_eq(rc, -ENOMEM, "allocation %d: %s", n, bx_error_text());
            cr_expect_null(job);
        }
        memory_fails_in = 0;
        bx_job_destroy(job);
        cr_expect_eq(open_fds(), before, "allocation %d", n);
    }
    cr_expect_geq(n, 6, "the job, its frame, its reply, its peers twice, and then none fails");
}

/* Its other worker does not come, so no start succeeds. */
Test(job_memory, a_start_that_fails_for_memory_leaves_nothing)
{
    struct bx_options options = { .job = job_name, .rank = 0, .world_size = 2, .start_timeout_ns = 20000000 };
    int before = open_fds(), refused = 0;
    bool failed = true;

    for (int n = 1; failed; n++) {
        struct bx_job *job = NULL;
        int rc;

        cr_assert_eq(bx_job_create(&options, &job), 0, "%s", bx_error_text());
        memory_fails_in = n;
        rc = bx_job_start(job);
        refused += rc == -ENOMEM;
        failed = memory_fails_in == 0;
        memory_fails_in = 0;
        cr_expect(rc == -ENOMEM || rc == BX_E_RANK_MISSING, "allocation %d: %d, %s", n, rc, bx_error_text());
        bx_job_destroy(job);
        cr_expect_eq(open_fds(), before, "allocation %d", n);
        cr_assert_lt(n, 100);
    }
    cr_expect_gt(refused, 0);
}

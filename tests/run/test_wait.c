/* SPDX-License-Identifier: MIT */
/*
 * lib/run/wait.c: the rows of waiting threads.
 */
#include "tests/harness/child.h"
#include "tests/harness/harness.h"

#include "rpc/rpc.h"

HARNESS_TEST(wait, leaves_no_row_behind, 20, .size = 2, .options = { .no_spin = true })
{
    OWN(future) *future = bx_future_create(job);

    for (int i = 0; i < 3; i++)
        HARNESS_EQ(bx_future_wait(future, HARNESS_MS), BX_E_TIMEOUT);
    HARNESS_CHECK(bxi_load_seq_cst(&bxi_tables(job->control)->wait[0].since_ns) != 0);
    for (int i = 0; i < BXI_WAITS_MAX; i++)
        HARNESS_EQ(bxi_load_seq_cst(&bxi_tables(job->control)->wait[i].thread), 0);
    for (int word = 0; word < BXI_WAIT_WORDS; word++)
        HARNESS_EQ(bxi_load_seq_cst(&job->observe->wait_rows[word]), 0);
}

HARNESS_TEST(wait, in_a_forked_child_has_the_childs_thread_id, 20, .size = 2)
{
    int status = -1;

    HARNESS_EQ(bxi_thread_id(), (uint64_t)gettid());

    pid_t child = fork();

    if (child == 0)
        _exit(bxi_thread_id() == (uint64_t)gettid() ? 0 : 1);
    HARNESS_EQ(waitpid(child, &status, 0), child);
    HARNESS_EQ(status, 0);
}

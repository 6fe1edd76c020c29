/* SPDX-License-Identifier: MIT */
/*
 * Which pages of a segment's tables can be allocated. tests/shm/test_layout.c holds their layout against LAYOUT.md.
 */
#include "observe/tables.h"
#include "shm/segment.h"
#include "tests/harness/harness.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static struct bxi_segment segment;

static void create_one(void)
{
    char job[BXI_NAME_BYTES];

    harness_name(job, sizeof(job), "tables-");
    cr_assert_eq(bxi_segment_create(&segment, job, "agent", UINT64_C(0x0123456789abcdef), 0, 2), 0);
}

static void destroy_it(void)
{
    bxi_segment_destroy(&segment);
}

TestSuite(tables, .init = create_one, .fini = destroy_it, .timeout = 60);

/* Bytes allocated by the last step. */
static uint64_t grown(void)
{
    static uint64_t before;
    struct stat status;

    cr_assert_eq(fstat(segment.fd, &status), 0);
    uint64_t bytes = (uint64_t)status.st_blocks * 512, by = bytes - before;
    before = bytes;
    return by;
}

Test(tables, have_rows_for_so_many_calls_to_each_peer_and_no_more)
{
    grown();
    cr_expect_eq(bxi_tables_open_calls(&segment, 1, BXI_CALLS_MAX), 0);
    cr_expect_eq(grown(), BXI_CALLS_BYTES);
    cr_expect_eq(bxi_tables_open_calls(&segment, 1, BXI_CALLS_MAX + 1), -EINVAL);
    cr_expect_eq(bxi_tables_open_calls(&segment, 2, 1), -EINVAL);
    cr_expect_eq(bxi_tables_open_calls(&segment, -1, 1), -EINVAL);
    cr_expect_eq(grown(), 0);
}

Test(tables, have_pages_for_so_many_histograms_and_no_more)
{
    grown();
    cr_expect_eq(bxi_tables_open_hist(&segment, BXI_HIST_MAX - 1), 0);
    cr_expect_eq(grown(), BXI_PAGE);
    cr_expect_eq(bxi_tables_open_hist(&segment, BXI_HIST_MAX), -EINVAL);
    cr_expect_eq(grown(), 0);
}

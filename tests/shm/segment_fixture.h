/* SPDX-License-Identifier: MIT */
/*
 * One segment of a job that is named after this process, for the tests of segments and of their names.
 */
#ifndef TESTS_SEGMENT_FIXTURE_H
#define TESTS_SEGMENT_FIXTURE_H

#include "shm/segment.h"
#include "tests/harness/child.h"
#include "tests/harness/harness.h"

#define INSTANCE UINT64_C(0x0123456789abcdef)

static char job[BXI_NAME_BYTES];
static struct bxi_segment segment;

static inline void make_job_name(void)
{
    harness_name(job, sizeof(job), "segment-");
}

/* Removes what a test left, also one that failed. */
static inline void remove_names(void)
{
    bxi_segment_destroy(&segment);
    bxi_object_reap(job, 0);
}

static inline void create_one(int rank, int world_size)
{
    make_job_name();
    cr_assert_eq(bxi_segment_create(&segment, job, "agent", INSTANCE, rank, world_size), 0);
}

static inline void create_first_of_two(void)
{
    create_one(0, 2);
}

#endif

/* SPDX-License-Identifier: MIT */
/*
 * How shm/segment.c allocates pages: by fallocate(2), which a test may make fail, or by writing if the file system has
 * no fallocate. Also which offsets may be allocated, and that mappings and descriptors are released.
 */
#include "fallocate.h"
#include "shm/segment.h"
#include "tests/harness/child.h"
#include "tests/harness/harness.h"

#define INSTANCE UINT64_C(0x0123456789abcdef)

static char job[BXI_NAME_BYTES];
static struct bxi_segment segment;
static struct bxi_segment_view view;

static void create_one(void)
{
    harness_name(job, sizeof(job), "pages-");
    cr_assert_eq(bxi_segment_create(&segment, job, "agent", INSTANCE, 0, 2), 0);
}

static void remove_names(void)
{
    bxi_segment_destroy(&segment);
    bxi_object_reap(job, 0);
}

TestSuite(segment_pages, .init = create_one, .fini = remove_names, .timeout = 60);

static struct stat status_of(int fd)
{
    struct stat status;

    cr_assert_eq(fstat(fd, &status), 0);
    return status;
}

/* ---- Allocation -------------------------------------------------------------------------------- */

Test(segment_pages, are_allocated_however_many_signals_come)
{
    blkcnt_t before = status_of(segment.fd).st_blocks;

    fake_fallocate.interruptions = 1000;
    cr_assert_eq(bxi_segment_open_ring(&segment, 1), 0);
    cr_assert_eq(fake_fallocate.interruptions, 0);
    cr_assert_geq(status_of(segment.fd).st_blocks - before, (blkcnt_t)(BXI_OPEN_BYTES / 512));
    fake_fallocate.interruptions = 1000;
    cr_assert_eq(bxi_segment_allocate(&segment, BXI_CONTROL_BYTES, BXI_PAGE), 0);
    cr_assert_eq(fake_fallocate.interruptions, 0);
}

Test(segment_pages, are_allocated_by_writing_where_the_file_system_cannot)
{
    blkcnt_t before = status_of(segment.fd).st_blocks;

    fake_fallocate.has_none = true;
    cr_assert_eq(bxi_segment_open_ring(&segment, 1), 0);
    cr_assert_gt(bxi_load_relaxed(&fake_fallocate.allocations), 0);
    cr_assert_geq(status_of(segment.fd).st_blocks - before, (blkcnt_t)(BXI_OPEN_BYTES / 512));
    cr_assert_eq((uint64_t)status_of(segment.fd).st_size, segment.bytes);
}

/* A truncated file must not grow again, filled with zeroes. */
Test(segment_pages, do_not_make_a_truncated_file_longer)
{
    cr_assert_eq(ftruncate(segment.fd, BXI_PAGE), 0);
    bxi_segment_open_ring(&segment, 1);
    bxi_segment_allocate(&segment, bxi_calls_offset(1), BXI_CALLS_BYTES);
    bxi_segment_allocate(&segment, BXI_DEVICE_OFFSET - BXI_PAGE, BXI_PAGE);
    bxi_segment_open_device(&segment, 2);
    cr_assert_eq(status_of(segment.fd).st_size, (off_t)BXI_PAGE);
}

Test(segment_pages, are_allocated_up_to_the_end_of_the_segment_and_not_beyond)
{
    cr_expect_eq(bxi_segment_allocate(&segment, segment.bytes - BXI_PAGE, BXI_PAGE), 0);
    cr_expect_eq(bxi_segment_allocate(&segment, segment.bytes - BXI_PAGE, BXI_PAGE + 1), -EINVAL);
    cr_expect_eq(bxi_segment_allocate(&segment, segment.bytes + BXI_PAGE, 0), -EINVAL);
    cr_expect_eq(bxi_segment_allocate(&segment, UINT64_MAX, BXI_PAGE), -EINVAL);
    cr_expect_eq(bxi_segment_allocate(&segment, 0, UINT64_MAX), -EINVAL);
    cr_expect_eq((uint64_t)status_of(segment.fd).st_size, segment.bytes);
}

/* ---- Mappings and descriptors ------------------------------------------------------------------ */

static int mappings(void)
{
    return mappings_of(segment.shm_name, "");
}

Test(segment_pages, of_a_peer_are_unmapped_when_it_is_detached_or_refused)
{
    int own = mappings();

    cr_assert_gt(own, 0);
    cr_assert_eq(bxi_segment_attach(&view, segment.fd, INSTANCE, 0, 2), 0);
    cr_assert_gt(mappings(), own);
    bxi_segment_detach(&view);
    cr_assert_eq(mappings(), own);
    cr_assert_eq(bxi_segment_attach(&view, segment.fd, INSTANCE + 1, 0, 2), -EPROTO);
    cr_assert_eq(mappings(), own);
    bxi_segment_destroy(&segment);
    cr_assert_eq(mappings(), 0);
}

Test(segment_pages, are_not_mapped_in_a_forked_child)
{
    cr_assert_eq(bxi_segment_attach(&view, segment.fd, INSTANCE, 0, 2), 0);
    cr_assert_eq(in_child(mappings), 0);
    bxi_segment_detach(&view);
}

static int create_and_die(void)
{
    struct bxi_segment dead;

    bxi_segment_create(&dead, job, "dead", INSTANCE, 1, 2);
    return raise(SIGKILL);
}

Test(segment_pages, cost_no_descriptor_when_they_are_reaped_or_passed_over)
{
    int before = open_descriptors();

    cr_assert_eq(in_child(create_and_die), 256 + SIGKILL);
    cr_assert_eq(bxi_object_reap(job, 0), 1);
    cr_assert_eq(open_descriptors(), before);
}

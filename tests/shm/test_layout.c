/* SPDX-License-Identifier: MIT */
/*
 * What shm/layout.h derives from its constants. tests/check/layout.sh compares it with LAYOUT.md.
 */
#include "tests/harness/test.h"
#include "observe/tables.h"
#include "shm/layout.h"

TestSuite(layout, .timeout = 120);

Test(layout, keeps_rings_and_lease_words_apart_and_inside_the_segment)
{
    for (int to = 0; to < BXI_WORKERS_MAX; to++) {
        uint64_t stride = BXI_RINGS_OFFSET + (uint64_t)to * BXI_RING_STRIDE;
        cr_assert_eq(bxi_ring_offset(to) % BXI_LINE, 0);
        cr_assert_geq(bxi_ring_offset(to), stride);
        /* No two share a page: opening one must neither allocate nor touch pages of the other. */
        cr_assert_eq(bxi_lease_offset(to) % BXI_PAGE, 0);
        cr_assert_leq(bxi_ring_offset(to) + BXI_RING_BYTES, bxi_lease_offset(to));
        cr_assert_eq(stride % BXI_PAGE, 0);
        cr_assert_eq(bxi_lease_offset(to) + BXI_LEASE_BYTES, bxi_calls_offset(to));
        cr_assert_eq(bxi_calls_offset(to) + BXI_CALLS_BYTES, bxi_device_pair_offset(to));
        cr_assert_eq(bxi_device_pair_offset(to) + BXI_DEVICE_PAIR_BYTES, stride + BXI_RING_STRIDE);
        cr_assert_eq(bxi_device_pair_offset(to) % BXI_PAGE, 0);
        cr_assert_eq(bxi_calls_offset(to) + BXI_CALLS_FIRST * sizeof(struct bxi_call_row), stride + BXI_OPEN_BYTES);
        cr_assert_eq(stride + BXI_RING_STRIDE, bxi_segment_bytes(to + 1));
    }
}

/* In a job of one host a rank has 7 bits and a generation 5, in a larger one a rank has 10. */
Test(layout, an_objects_id_keeps_its_parts)
{
    static const uint64_t numbers[] = { 1, BXI_RREF_COUNT_MASK };

    for (int wide = 0; wide < 2; wide++) {
        const int size = wide ? BXI_WORKERS_MAX : BXI_WORLD_MAX, generation = wide ? 0 : BXI_GENERATION_MAX - 1;

        for (int rank = 0; rank < size; rank++) {
            for (int i = 0; i < 2; i++) {
                uint64_t id = bxi_rref_id(size, rank, size - 1 - rank, generation, generation, numbers[i]);

                cr_assert_eq(bxi_rref_id_owner(id), rank);
                cr_assert_eq(bxi_rref_id_maker(id), size - 1 - rank);
                cr_assert_eq(bxi_rref_id_owner_generation(id), generation);
                cr_assert_eq(bxi_rref_id_maker_generation(id), generation);
                cr_assert_eq(id & BXI_RREF_COUNT_MASK, numbers[i]);
            }
        }
    }
}

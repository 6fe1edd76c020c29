/* SPDX-License-Identifier: MIT */
/*
 * The tables of the segment that are allocated when they are first needed: rows of calls, histograms, rows of objects.
 * Runs under run->lock.
 */
#include "observe/tables.h"

#include "shm/segment.h"

#include <errno.h>

int bxi_tables_open_calls(struct bxi_segment *segment, int to, uint32_t count)
{
    if (to < 0 || bxi_segment_bytes(to + 1) > segment->bytes || count > BXI_CALLS_MAX)
        return -EINVAL;
    return bxi_segment_allocate(segment, bxi_calls_offset(to), count * sizeof(struct bxi_call_row));
}

struct bxi_call_row *bxi_tables_calls(const struct bxi_segment *segment, int to)
{
    return (struct bxi_call_row *)(void *)((unsigned char *)segment->control + bxi_calls_offset(to));
}

int bxi_tables_open_hist(struct bxi_segment *segment, uint32_t i)
{
    if (i >= BXI_HIST_MAX)
        return -EINVAL;
    return bxi_segment_allocate(segment, bxi_hist_offset(i), sizeof(struct bxi_hist));
}

struct bxi_hist *bxi_tables_hist(const struct bxi_segment *segment, uint32_t i)
{
    return (struct bxi_hist *)(void *)((unsigned char *)segment->control + bxi_hist_offset(i));
}

int bxi_tables_open_objects(struct bxi_segment *segment)
{
    return bxi_segment_allocate(segment, BXI_OBJECTS_OFFSET, BXI_OBJECTS_BYTES);
}

struct bxi_object_row *bxi_tables_objects(const struct bxi_segment *segment)
{
    return (struct bxi_object_row *)(void *)((unsigned char *)segment->control + BXI_OBJECTS_OFFSET);
}

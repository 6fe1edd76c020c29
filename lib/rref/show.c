/* SPDX-License-Identifier: MIT */
/*
 * The objects of this worker to which there are references, as rows of the segment (observe/tables.h, struct
 * bxi_object_row), for shmstat. The engine itself never reads them.
 *
 * A row is taken when a reference of this worker's own enters the table of references, and given back when it is taken
 * out. Each change of its state or of an entry is one or two relaxed stores; no change looks at all ranks. The rows are
 * allocated with the first object. An object that finds none has no row, now and later: it is counted.
 *
 * All of it under run->lock. A worker that is killed leaves its rows as they were between two stores: a row without its
 * id is none, and holders and entries may differ by the change that was under way.
 */
#include "rref.h"

#include <string.h>

void bxi_rref_show_state(const struct bx_rref *rref, enum bxi_rref_state state)
{
    uint64_t words[BXI_TYPE_BYTES / 8] = { 0 };

    if (rref->object != NULL)
        memcpy(words, rref->object->type->name, strnlen(rref->object->type->name, sizeof words));
    /* Relaxed: published by the store of the state. */
    for (size_t i = 0; i < BXI_TYPE_BYTES / 8; i++)
        bxi_store_relaxed(&rref->row->name[i], words[i]);
    /* Release, for inspectors in other processes: the name is written. */
    bxi_store_release(&rref->row->state, state);
}

/* A free row; NULL: none. */
static struct bxi_object_row *take_row(struct bx_job *job)
{
    struct bxi_rrefs *rrefs = job->rrefs;
    struct bxi_object_row *rows = bxi_segment_at(&job->segment, BXI_OBJECTS_OFFSET);
    bxi_a64 *used = &bxi_tables(job->control)->object_rows;
    uint64_t count = bxi_load_relaxed(used);        /* relaxed: written under the lock only */

    if (rrefs->free_row_count > 0)
        return &rows[rrefs->free_rows[--rrefs->free_row_count]];
    if (count == BXI_OBJECTS_MAX || rrefs->rows_failed)
        return NULL;
    if (count == 0 && bxi_segment_allocate(&job->segment, BXI_OBJECTS_OFFSET, BXI_OBJECTS_BYTES) < 0) {
        rrefs->rows_failed = true;
        return NULL;
    }
    /* Release, for inspectors in other processes: the rows are allocated. */
    bxi_store_release(used, count + 1);
    return &rows[count];
}

void bxi_rref_show(struct bx_job *job, struct bx_rref *rref)
{
    if (!bxi_rref_is_ours(job, rref->id))
        return;
    rref->row = take_row(job);
    if (rref->row == NULL) {
        bxi_count(&bxi_tables(job->control)->objects_unshown, 1);
        return;
    }
    /* Relaxed: published by the store of the id. */
    bxi_store_relaxed(&rref->row->since_ns, rref->since_ns);
    bxi_store_relaxed(&rref->row->holders[0], 0);
    bxi_store_relaxed(&rref->row->holders[1], 0);
    bxi_store_relaxed(&rref->row->entries, 0);
    bxi_rref_show_state(rref, bxi_rref_state(rref));
    /* Release, for inspectors in other processes: the words above are of this object. */
    bxi_store_release(&rref->row->id, rref->id);
}

void bxi_rref_hide(struct bx_job *job, struct bx_rref *rref)
{
    const struct bxi_object_row *rows;

    if (!bxi_rref_is_ours(job, rref->id))
        return;
    if (rref->row == NULL) {
        bxi_count(&bxi_tables(job->control)->objects_unshown, (uint64_t)-1);
        return;
    }
    rows = bxi_segment_at(&job->segment, BXI_OBJECTS_OFFSET);
    bxi_store_relaxed(&rref->row->id, 0);       /* relaxed: for inspectors, which read the id before and after */
    job->rrefs->free_rows[job->rrefs->free_row_count++] = (uint16_t)(rref->row - rows);
    rref->row = NULL;
}

void bxi_rref_add_entries(const struct bx_job *job, struct bx_rref *rref, int rank, int64_t by)
{
    bool held = rref->entries[rank] != 0;

    rref->entries[rank] = (uint32_t)((int64_t)rref->entries[rank] + by);
    rref->entry_sum += (uint64_t)by;
    if (rref->row == NULL)
        return;
    /* Relaxed, all: for inspectors. Those of older generations are no worker's. */
    if (rank < job->world_size && rank < BXI_SHOWN_MAX && held != (rref->entries[rank] != 0)) {
        bxi_a64 *holders = &rref->row->holders[rank / 64];

        bxi_store_relaxed(holders, bxi_load_relaxed(holders) ^ UINT64_C(1) << rank % 64);
    }
    bxi_store_relaxed(&rref->row->entries, rref->entry_sum);
}

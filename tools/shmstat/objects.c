/* SPDX-License-Identifier: MIT */
/*
 * Objects, read from outside.
 *
 * The owner writes its rows while they are read. A row is copied three times, and counts if the first copy and the last
 * have the same id: no id is used twice, so the copy between them is of that object throughout. A type's name is
 * written before the state: it counts if the object was already made in the first copy.
 */
#include "objects.h"

#include "text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- Copies ------------------------------------------------------------------------------------- */

static int by_age(const void *one, const void *other)
{
    uint64_t a = stat_word(&((const struct bxi_object_row *)one)->since_ns);
    uint64_t b = stat_word(&((const struct bxi_object_row *)other)->since_ns);

    return a < b ? -1 : a > b;
}

static void forget_name(struct bxi_object_row *row)
{
    for (size_t i = 0; i < BXI_TYPE_BYTES / 8; i++)
        /* Relaxed: a private copy. */
        bxi_store_relaxed(&row->name[i], 0);
}

/* Keeps the rows that are whole, in worker->objects. */
static void keep_whole(struct stat_worker *worker, const struct bxi_object_row *before,
                       const struct bxi_object_row *after)
{
    uint32_t kept = 0;

    for (int i = 0; i < BXI_OBJECTS_MAX; i++) {
        struct bxi_object_row *row = &worker->objects[i];
        uint64_t id = stat_word(&row->id);

        if (id == 0 || stat_word(&before[i].id) != id || stat_word(&after[i].id) != id)
            continue;
        if (stat_word(&before[i].state) == BXI_OBJECT_TO_COME)
            forget_name(row);
        memmove(&worker->objects[kept++], row, sizeof(*row));
    }
    worker->object_count = kept;
    if (kept > 0)
        qsort(worker->objects, kept, sizeof(*worker->objects), by_age);
}

static int read_objects(struct stat_worker *worker)
{
    struct bxi_object_row *copies;

    /* The rows are allocated if one was ever taken; pread of rows that are not would read zeroes. */
    if (stat_word(&bxi_tables(worker->control)->object_rows) == 0)
        return 0;
    copies = malloc(3 * BXI_OBJECTS_BYTES);
    if (copies == NULL)
        return -ENOMEM;
    worker->objects = copies;
    for (int i = 0; i < 3; i++) {
        /* The copy that is kept is the first in memory, and the second in time. */
        struct bxi_object_row *to = copies + (i + 1) % 3 * BXI_OBJECTS_MAX;

        if (stat_pread(&worker->segment, to, BXI_OBJECTS_BYTES, BXI_OBJECTS_OFFSET) < 0)
            return 0;
    }
    keep_whole(worker, copies + BXI_OBJECTS_MAX, copies + 2 * BXI_OBJECTS_MAX);
    return 0;
}

int stat_objects_read(struct stat_job *job)
{
    for (struct stat_worker *worker = NULL; (worker = stat_next_reader(job, worker)) != NULL;)
        if (read_objects(worker) < 0)
            return -ENOMEM;
    return 0;
}

/* ---- Names -------------------------------------------------------------------------------------- */

const char *stat_object_state_name(uint64_t state)
{
    static const char *const names[] = { "unknown", "to_come", "there", "failed" };

    return names[state <= BXI_OBJECT_FAILED ? state : 0];
}

const char *stat_object_name(uint64_t id)
{
    static char name[48];

    snprintf(name, sizeof(name), "%d-%d-%llu", bxi_rref_id_owner(id), bxi_rref_id_maker(id),
             (unsigned long long)(id & BXI_RREF_COUNT_MASK));
    return name;
}

/* ---- Rows --------------------------------------------------------------------------------------- */

uint64_t stat_objects_unshown(const struct stat_worker *worker)
{
    return stat_word(&bxi_tables(worker->control)->objects_unshown);
}

size_t stat_object_holders(const struct bxi_object_row *object, uint64_t ranks[BXI_WORKERS_MAX])
{
    size_t count = 0;

    for (int rank = 0; rank < BXI_WORKERS_MAX; rank++)
        if (stat_bit(object->holders, rank))
            ranks[count++] = (uint64_t)rank;
    return count;
}

int stat_held_row(const struct stat_job *job, const struct stat_worker *worker, int peer, struct stat_row *row)
{
    uint64_t held = 0;

    (void)job;
    if (worker->control == NULL || peer >= (int)worker->control->header.world_size)
        return STAT_END;
    for (uint32_t i = 0; i < worker->object_count; i++)
        held += stat_bit(worker->objects[i].holders, peer);
    if (held == 0)
        return STAT_SKIP;
    stat_put(row, "held", STAT_COUNT, held);
    return STAT_ROW;
}

int stat_objects_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row)
{
    uint64_t states[BXI_OBJECT_FAILED + 1] = { 0 }, held = 0, entries = 0, ranks[BXI_WORKERS_MAX], count;

    (void)job;
    if (index > 0 || worker->control == NULL)
        return STAT_END;
    count = worker->object_count + stat_objects_unshown(worker);
    for (uint32_t i = 0; i < worker->object_count; i++) {
        const struct bxi_object_row *object = &worker->objects[i];
        uint64_t state = stat_word(&object->state);

        states[state <= BXI_OBJECT_FAILED ? state : 0]++;
        held += stat_object_holders(object, ranks) > 0;
        entries += stat_word(&object->entries);
    }
    stat_put(row, "count", STAT_COUNT, count);
    stat_put(row, "held", STAT_COUNT, held);
    stat_put(row, "entries", STAT_COUNT, entries);
    stat_put(row, "to_come", STAT_COUNT, states[BXI_OBJECT_TO_COME]);
    stat_put(row, "failed", STAT_COUNT, states[BXI_OBJECT_FAILED]);
    stat_put(row, "unshown", STAT_COUNT, stat_objects_unshown(worker));
    stat_put_real(row, "oldest_seconds", STAT_SECONDS,
                  worker->object_count > 0 ? stat_since(stat_word(&worker->objects[0].since_ns), CLOCK_MONOTONIC) : -1);
    return STAT_ROW;
}

/* SPDX-License-Identifier: MIT */
/*
 * shmstat rrefs: the objects to which there are references: whose, of which type, since when, and which workers hold
 * them.
 */
#include "describe.h"
#include "list.h"
#include "objects.h"
#include "shmstat.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* Columns of names: what is longer is cut, and marked. */
#define OWNER_NAME 16

static const struct stat_column columns[] = {
    { "OBJECT", "object", -14 }, { "OWNER", ".owner", -OWNER_NAME }, { "TYPE", ".type", -BXI_TYPE_BYTES },
    { "STATE", ".state", -7 },   { "AGE", "age_seconds", 11 },       { "HOLDERS", "holders", 7 },
};

/* The list of those that hold the object, and its texts. */
static void put_holders(struct stat_row *row, const struct stat_job *job, const struct bxi_object_row *object)
{
    uint64_t ranks[BXI_WORKERS_MAX], entries = stat_word(&object->entries);
    size_t count = stat_object_holders(object, ranks);

    stat_put_list(row, "holders", ranks, count);
    stat_put(row, "entries", STAT_COUNT, entries);
    stat_put_names(row, "holder_names");
    for (size_t i = 0; i < count; i++)
        stat_add_name(row, "%s", stat_rank_name(job, (int)ranks[i]));
    stat_put_names(row, ".holders");
    for (size_t i = 0; i < count; i++) {
        const struct stat_worker *holder = job->workers[ranks[i]];

        stat_add_name(row, "%s%s", stat_rank_name(job, (int)ranks[i]),
                      holder == NULL || !stat_worker_alive(holder) ? " (dead)" : "");
    }
}

/* By index: an object, the oldest first. */
static int object_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row)
{
    const struct bxi_object_row *object;
    uint64_t id, words[BXI_TYPE_BYTES / 8];
    char type[BXI_TYPE_BYTES + 1];
    const char *state;

    if (index >= (int)worker->object_count)
        return STAT_END;
    object = &worker->objects[index];
    id = stat_word(&object->id);
    state = stat_object_state_name(stat_word(&object->state));
    for (size_t i = 0; i < BXI_TYPE_BYTES / 8; i++)
        words[i] = stat_word(&object->name[i]);
    stat_printable(type, sizeof(type), (const char *)words, sizeof(words));
    stat_put_text(row, "object", stat_object_name(id));
    stat_put(row, "owner", STAT_COUNT, (uint64_t)worker->rank);
    stat_put_text(row, "owner_name", worker->name);
    stat_put(row, "maker", STAT_COUNT, (uint64_t)bxi_rref_id_maker(id));
    stat_put_text(row, "maker_name", stat_peer_name(job, bxi_rref_id_maker(id)));
    stat_put(row, "number", STAT_COUNT, id & BXI_RREF_COUNT_MASK);
    stat_put_text(row, "type", type);
    stat_put_text(row, "state", state);
    stat_put_real(row, "age_seconds", STAT_SECONDS, stat_since(stat_word(&object->since_ns), CLOCK_MONOTONIC));
    put_holders(row, job, object);
    stat_put_text(row, ".owner", stat_cut_text(worker->name, OWNER_NAME));
    stat_put_text(row, ".type", type[0] != '\0' ? type : "?");
    stat_put_text(row, ".state", strcmp(state, "to_come") == 0 ? "to come" : state);
    return STAT_ROW;
}

static const struct stat_part parts[] = {
    { .key = "rrefs", .make = stat_objects_row },
    { .key = "objects", .shape = STAT_LIST_OF, .make = object_row },
    { 0 },
};

static void text_job(const struct stat_job *job)
{
    struct stat_table table = {
        .columns = columns, .count = sizeof(columns) / sizeof(columns[0]),
        .label = "held by", .names = ".holders",
    };
    uint64_t count = 0;

    for (struct stat_worker *worker = NULL; (worker = stat_next_reader(job, worker)) != NULL;)
        count += worker->object_count + stat_objects_unshown(worker);
    stat_job_text(job);
    printf(", %llu object%s\n", (unsigned long long)count, count == 1 ? "" : "s");
    for (struct stat_worker *worker = NULL; (worker = stat_next_reader(job, worker)) != NULL;)
        stat_table_rows(&table, object_row, job, worker);
    for (struct stat_worker *worker = NULL; (worker = stat_next_reader(job, worker)) != NULL;)
        if (stat_objects_unshown(worker) > 0)
            printf("%s has %llu more, for which its segment has no row\n", worker->name,
                   (unsigned long long)stat_objects_unshown(worker));
    stat_problems_text(job);
}

int stat_rrefs(const struct stat_options *options)
{
    static const struct stat_command command = { "rrefs", STAT_READ_OBJECTS, parts, text_job };

    return stat_run_command(&command, options);
}

/* SPDX-License-Identifier: MIT */
/*
 * shmstat rrefs: the objects to which there are references: whose, of which type, since when, and which workers hold
 * them.
 */
#include "describe.h"
#include "json.h"
#include "list.h"
#include "objects.h"
#include "shmstat.h"

#include <stdio.h>
#include <string.h>

/* Columns of names: what is longer is cut, and marked. */
#define OWNER_NAME 16

static const struct stat_column columns[] = {
    { "OBJECT", "object", -14 }, { "OWNER", ".owner", -OWNER_NAME }, { "TYPE", ".type", -BXI_TYPE_BYTES },
    { "STATE", ".state", -7 },   { "AGE", "age_seconds", 11 },       { "HOLDERS", "holders", 7 },
};

#define COLUMNS (sizeof(columns) / sizeof(columns[0]))

static int make_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row)
{
    const struct stat_field *type;

    stat_row_begin(row);
    if (stat_object_row(job, worker, index, row) == STAT_END)
        return STAT_END;
    type = stat_row_field(row, "type");
    stat_put_text(row, ".owner", stat_cut_text(worker->name, OWNER_NAME));
    stat_put_text(row, ".type", type->presence == STAT_PRESENT ? type->at : "?");
    stat_put_text(row, ".state", strcmp(stat_row_field(row, "state")->at, "to_come") == 0
                                     ? "to come" : stat_row_field(row, "state")->at);
    return STAT_ROW;
}

static const char *holder_name(const struct stat_job *job, uint64_t rank)
{
    static char unnamed[16];
    const char *name = stat_peer_name(job, (int)rank);

    snprintf(unnamed, sizeof(unnamed), "rank %d", (int)rank);
    return name[0] != '\0' ? name : unnamed;
}

static bool is_dead(const struct stat_job *job, uint64_t rank)
{
    return job->workers[rank] == NULL || !stat_worker_alive(job->workers[rank]);
}

/* ---- JSON --------------------------------------------------------------------------------------- */

static void json_worker(const struct stat_job *job, const struct stat_worker *worker)
{
    uint64_t ranks[BXI_WORLD_MAX];
    struct stat_row row;

    stat_json_worker(worker);
    if (worker->control == NULL)
        return;
    stat_object_json("rrefs", stat_objects_row, job, worker);
    stat_json_open("objects", '[');
    for (int i = 0; make_row(job, worker, i, &row) == STAT_ROW; i++) {
        size_t count = stat_object_holders(&worker->objects[i], ranks);

        stat_json_open(NULL, '{');
        stat_row_json(&row);
        stat_json_open("holder_names", '[');
        for (size_t k = 0; k < count; k++)
            stat_json_text(NULL, holder_name(job, ranks[k]));
        stat_json_close(']');
        stat_json_close('}');
    }
    stat_json_close(']');
}

/* ---- Text --------------------------------------------------------------------------------------- */

static void text_holders(const struct stat_job *job, const struct bxi_object_row *object)
{
    uint64_t ranks[BXI_WORLD_MAX], entries = stat_word(&object->entries);
    size_t count = stat_object_holders(object, ranks);
    struct stat_flow flow;

    if (count == 0)
        return;
    stat_flow_begin(&flow, "held by");
    for (size_t i = 0; i < count; i++)
        stat_flow_add(&flow, "%s%s%s", holder_name(job, ranks[i]), is_dead(job, ranks[i]) ? " (dead)" : "",
                      i + 1 < count ? "," : "");
    /* Of one holder the sum is its own count. */
    if (entries > count)
        stat_flow_add(&flow, "(%llu times)", (unsigned long long)entries);
    stat_flow_end(&flow);
}

static void text_worker(const struct stat_job *job, const struct stat_worker *worker)
{
    struct stat_row row;

    for (int i = 0; make_row(job, worker, i, &row) == STAT_ROW; i++) {
        stat_table_row(columns, COLUMNS, &row);
        text_holders(job, &worker->objects[i]);
    }
}

/* What the table cannot list: objects without a row, workers that cannot be read. */
static void text_rest(const struct stat_worker *worker)
{
    struct stat_row row;

    if (worker->control == NULL) {
        stat_worker_row(worker, &row);
        stat_put_format(&row, ".label", "worker %d", worker->rank);
        stat_row_line("{.label}", "{problem...}", &row);
    } else if (stat_objects_unshown(worker) > 0) {
        printf("%s has %llu more, for which its segment has no row\n", worker->name,
               (unsigned long long)stat_objects_unshown(worker));
    }
}

static void text_job(const struct stat_job *job)
{
    uint64_t count = 0, shown = 0;

    for (uint32_t rank = 0; rank < BXI_WORLD_MAX; rank++) {
        const struct stat_worker *worker = stat_reader(job, rank);

        shown += worker != NULL ? worker->object_count : 0;
        count += worker != NULL ? worker->object_count + stat_objects_unshown(worker) : 0;
    }
    stat_job_text(job);
    printf(", %llu object%s\n", (unsigned long long)count, count == 1 ? "" : "s");
    if (shown > 0)
        stat_table_titles(columns, COLUMNS);
    for (uint32_t rank = 0; rank < BXI_WORLD_MAX; rank++)
        if (stat_reader(job, rank) != NULL)
            text_worker(job, job->workers[rank]);
    for (int rank = 0; rank < BXI_WORLD_MAX; rank++)
        if (job->workers[rank] != NULL)
            text_rest(job->workers[rank]);
}

int stat_rrefs(const struct stat_options *options)
{
    struct stat_jobs jobs;
    int status = stat_list_begin(&jobs, options, "rrefs");

    if (status != STAT_FINE)
        return status;
    for (size_t i = 0; i < jobs.count && status == STAT_FINE; i++) {
        struct stat_job *job = &jobs.list[i];

        if (stat_job_read(job, true) < 0 || stat_objects_read(job) < 0)
            status = stat_no_memory(job);
        stat_job_close(job);
        if (status == STAT_FINE && options->json)
            stat_job_json(job, json_worker);
        else if (status == STAT_FINE)
            text_job(job);
    }
    if (status == STAT_FINE && !stat_jobs_readable(&jobs))
        status = STAT_NOTHING;
    stat_list_end(&jobs, options);
    return status;
}

/* SPDX-License-Identifier: MIT */
/*
 * shmstat ls: the jobs of this user on this host.
 */
#include "describe.h"
#include "json.h"
#include "list.h"
#include "shmstat.h"

#include <stdio.h>

static const struct stat_column columns[] = {
    { "JOB", "job", -31 },  { "STATE", "state", -8 },      { "WORKERS", ".workers", 7 },
    { "UP", "age_seconds", 11 }, { "MEMORY", "shm_bytes", 10 },
};

#define COLUMNS (sizeof(columns) / sizeof(columns[0]))

static void json_worker(const struct stat_job *job, const struct stat_worker *worker)
{
    (void)job;
    stat_json_worker(worker);
}

static void print_pids(const struct stat_job *job)
{
    struct stat_flow flow;
    struct stat_row row;

    stat_flow_begin(&flow, "pids");
    for (int rank = 0; rank < BXI_WORLD_MAX; rank++) {
        const struct stat_worker *worker = job->workers[rank];

        if (worker == NULL || worker->pid == 0)
            continue;
        char generation[32] = "";
        if (stat_generation(worker) > 1)
            snprintf(generation, sizeof(generation), "(gen %u)", stat_generation(worker));
        stat_flow_add(&flow, "%u%s%s", worker->pid, generation, stat_worker_alive(worker) ? "" : "(dead)");
    }
    stat_flow_end(&flow);
    for (int rank = 0; rank < BXI_WORLD_MAX; rank++) {
        if (job->workers[rank] == NULL || job->workers[rank]->found == STAT_READABLE)
            continue;
        stat_worker_row(job->workers[rank], &row);
        stat_row_line("problem", "worker {rank} -|{problem...}", &row);
    }
}

static void print_job(const struct stat_job *job)
{
    struct stat_flow flow;
    struct stat_row row;
    char missing[1024];

    stat_job_row(job, &row);
    stat_table_row(columns, COLUMNS, &row);
    printf("  instance  %016llx, segments %s, arenas %s\n", (unsigned long long)job->instance,
           stat_bytes_text(stat_row_field(&row, "segment_bytes")->count),
           stat_bytes_text(stat_row_field(&row, "arena_bytes")->count));
    print_pids(job);
    if (stat_job_missing_text(job, missing, sizeof(missing))) {
        stat_flow_begin(&flow, "waits");
        stat_flow_words(&flow, missing);
        stat_flow_end(&flow);
    }
}

int stat_ls(const struct stat_options *options)
{
    struct stat_jobs jobs;
    int status = stat_list_begin(&jobs, options, "ls");

    if (status != STAT_FINE)
        return status;
    if (jobs.count > 0 && !options->json)
        stat_table_titles(columns, COLUMNS);
    for (size_t i = 0; i < jobs.count; i++) {
        if (stat_job_read(&jobs.list[i], false) < 0)
            stat_no_memory(&jobs.list[i]);
        else if (options->json)
            stat_job_json(&jobs.list[i], json_worker);
        else
            print_job(&jobs.list[i]);
    }
    stat_list_end(&jobs, options);
    return STAT_FINE;
}

/* SPDX-License-Identifier: MIT */
/*
 * shmstat ls: the jobs of this user on this host.
 */
#include "describe.h"
#include "list.h"
#include "remote.h"
#include "shmstat.h"

#include <stdio.h>

static const struct stat_column columns[] = {
    { "JOB", "job", -31 },  { "STATE", "state", -8 },      { "WORKERS", ".workers", 7 },
    { "UP", "age_seconds", 11 }, { "MEMORY", "shm_bytes", 10 },
};

static void text_job(const struct stat_job *job)
{
    struct stat_flow flow;
    char missing[1024];

    stat_flow_begin(&flow, "instance");
    stat_flow_add(&flow, "%016llx", (unsigned long long)job->instance);
    stat_flow_end(&flow);
    stat_flow_begin(&flow, "pids");
    for (struct stat_worker *worker = NULL; (worker = stat_next(job, worker)) != NULL;) {
        char generation[24] = "";

        if (stat_generation(worker) > 1)
            snprintf(generation, sizeof(generation), "(gen %u)", stat_generation(worker));
        if (worker->pid != 0)
            stat_flow_add(&flow, "%u%s%s", worker->pid, generation, stat_worker_alive(worker) ? "" : "(dead)");
    }
    stat_flow_end(&flow);
    stat_elsewhere_text(job);
    stat_problems_text(job);
    stat_flow_begin(&flow, "waits");
    if (stat_job_missing_text(job, missing, sizeof(missing)))
        stat_flow_words(&flow, missing);
    stat_flow_end(&flow);
}

static int print_job(struct stat_job *job, const struct stat_options *options)
{
    static struct stat_table table = { .columns = columns, .count = sizeof(columns) / sizeof(columns[0]) };

    if (options->json) {
        stat_job_json(job, &(struct stat_part){ 0 });
        return STAT_FINE;
    }
    stat_table_rows(&table, stat_job_row, job, NULL);
    text_job(job);
    return STAT_FINE;
}

int stat_ls(const struct stat_options *options)
{
    return stat_print_jobs(options, "ls", 0, print_job);
}

/* SPDX-License-Identifier: MIT */
/*
 * shmstat ls: the jobs of this user on this host.
 */
#include "describe.h"
#include "list.h"
#include "shmstat.h"

static const struct stat_column columns[] = {
    { "JOB", "job", -31 },  { "STATE", "state", -8 },      { "WORKERS", ".workers", 7 },
    { "UP", "age_seconds", 11 }, { "MEMORY", "shm_bytes", 10 },
};

/* A process, and which of its rank it is. */
static int pid_row(const struct stat_job *job, const struct stat_worker *none, int rank, struct stat_row *row)
{
    const struct stat_worker *worker = rank < BXI_WORLD_MAX ? job->workers[rank] : NULL;

    (void)none;
    if (worker == NULL || worker->pid == 0)
        return rank < BXI_WORLD_MAX ? STAT_SKIP : STAT_END;
    stat_put(row, "pid", STAT_COUNT, worker->pid);
    stat_put_text(row, "dead", stat_worker_alive(worker) ? "" : "(dead)");
    if (stat_generation(worker) > 1)
        stat_put_format(row, "generation", "(gen %u)", stat_generation(worker));
    else
        stat_put_text(row, "generation", "");
    return STAT_ROW;
}

static const struct stat_part parts[] = {
    { .make = stat_job_row, .label = "instance",
      .pattern = "{instance}, segments {segment_bytes}, arenas {arena_bytes}" },
    { .shape = STAT_JOINED, .make = pid_row, .label = "pids", .pattern = "{pid}{generation}{dead}" },
    { .make = stat_problem_row, .label = "problem", .pattern = "worker {rank} -|{problem...}" },
    { .make = stat_job_row, .label = "waits", .pattern = "{.missing...}" },
    { 0 },
};

static int print_job(struct stat_job *job, const struct stat_options *options)
{
    static struct stat_table table = { .columns = columns, .count = sizeof(columns) / sizeof(columns[0]) };

    if (options->json) {
        stat_job_json(job, &(struct stat_part){ 0 });
        return STAT_FINE;
    }
    stat_table_rows(&table, stat_job_row, job, NULL);
    stat_parts_text(parts, job, NULL);
    return STAT_FINE;
}

int stat_ls(const struct stat_options *options)
{
    return stat_print_jobs(options, "ls", 0, print_job);
}

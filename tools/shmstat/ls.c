/* SPDX-License-Identifier: MIT */
/*
 * shmstat ls: the jobs of this user on this host.
 */
#include "describe.h"
#include "json.h"
#include "list.h"
#include "shmstat.h"
#include "state.h"
#include "text.h"

#include <stdio.h>
#include <time.h>

static void json_job(const struct stat_job *job)
{
    stat_json_open(NULL, '{');
    stat_json_job(job);
    stat_json_open("workers", '[');
    for (int rank = 0; rank < BXI_WORLD_MAX; rank++) {
        if (job->workers[rank] == NULL)
            continue;
        stat_json_open(NULL, '{');
        stat_json_worker(job->workers[rank]);
        stat_json_close('}');
    }
    stat_json_close(']');
    stat_json_close('}');
}

static void print_pids(const struct stat_job *job)
{
    struct stat_flow flow;

    stat_flow_begin(&flow, "pids");
    for (int rank = 0; rank < BXI_WORLD_MAX; rank++)
        if (job->workers[rank] != NULL && job->workers[rank]->pid != 0)
            stat_flow_add(&flow, stat_worker_alive(job->workers[rank]) ? "%u" : "%u(dead)", job->workers[rank]->pid);
    stat_flow_end(&flow);
    for (int rank = 0; rank < BXI_WORLD_MAX; rank++) {
        if (job->workers[rank] == NULL || job->workers[rank]->found == STAT_READABLE)
            continue;
        stat_flow_begin(&flow, "problem");
        stat_flow_add(&flow, "worker %d -", rank);
        stat_flow_words(&flow, job->workers[rank]->problem);
        stat_flow_end(&flow);
    }
}

static void print_job(const struct stat_job *job)
{
    uint64_t started_ns = stat_job_started_ns(job), segments = 0, arenas = 0;
    char workers[24], missing[1024];
    struct stat_flow flow;
    int alive = 0;

    for (int rank = 0; rank < BXI_WORLD_MAX; rank++) {
        const struct stat_worker *worker = job->workers[rank];

        if (worker == NULL)
            continue;
        alive += stat_worker_alive(worker);
        segments += worker->segment.held;
        arenas += worker->arena.held;
    }
    snprintf(workers, sizeof(workers), "%d/%d", alive, stat_job_size(job));
    printf("%-31s %-8s %7s %11s %10s\n", job->name, stat_job_state(job), workers,
           started_ns != 0 ? stat_span_text(stat_since(started_ns, CLOCK_REALTIME)) : "-",
           stat_bytes_text(segments + arenas));
    printf("  instance  %016llx, segments %s, arenas %s\n", (unsigned long long)job->instance,
           stat_bytes_text(segments), stat_bytes_text(arenas));
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
        printf("%-31s %-8s %7s %11s %10s\n", "JOB", "STATE", "WORKERS", "UP", "MEMORY");
    for (size_t i = 0; i < jobs.count; i++) {
        if (stat_job_read(&jobs.list[i], false) < 0)
            stat_no_memory(&jobs.list[i]);
        else if (options->json)
            json_job(&jobs.list[i]);
        else
            print_job(&jobs.list[i]);
    }
    stat_list_end(&jobs, options);
    return STAT_FINE;
}

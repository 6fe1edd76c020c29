/* SPDX-License-Identifier: MIT */
/*
 * shmstat gpu: the device memory of each worker. The same is a section of show.
 */
#include "describe.h"
#include "json.h"
#include "list.h"
#include "section_gpu.h"
#include "shmstat.h"

#include <stdio.h>

static void json_worker(const struct stat_job *job, const struct stat_worker *worker)
{
    stat_json_worker(worker);
    if (worker->control == NULL)
        return;
    stat_object_json("counters", stat_gpu_counter_row, job, worker);
    stat_gpu_json(job, worker);
}

static void text_worker(const struct stat_job *job, const struct stat_worker *worker)
{
    struct stat_flow flow;

    printf("\n");
    stat_worker_text(worker);
    if (worker->control != NULL && worker->gpu == NULL) {
        stat_flow_begin(&flow, "gpu");
        stat_flow_add(&flow, "none is open");
        stat_flow_end(&flow);
    }
    stat_gpu_text(job, worker);
}

static int show_job(struct stat_job *job, bool json)
{
    if (stat_job_read(job, true) < 0 || stat_gpus_read(job) < 0)
        return stat_no_memory(job);
    stat_job_close(job);
    if (json) {
        stat_job_json(job, json_worker);
        return STAT_FINE;
    }
    stat_job_text(job);
    printf(", %d workers\n", stat_job_size(job));
    for (int rank = 0; rank < BXI_WORLD_MAX; rank++)
        if (job->workers[rank] != NULL)
            text_worker(job, job->workers[rank]);
    return STAT_FINE;
}

int stat_gpu(const struct stat_options *options)
{
    struct stat_jobs jobs;
    int status = stat_list_begin(&jobs, options, "gpu");

    if (status != STAT_FINE)
        return status;
    for (size_t i = 0; i < jobs.count && status == STAT_FINE; i++) {
        if (i > 0 && !options->json)
            printf("\n");
        status = show_job(&jobs.list[i], options->json);
    }
    if (status == STAT_FINE && !stat_jobs_readable(&jobs))
        status = STAT_NOTHING;
    stat_list_end(&jobs, options);
    return status;
}

/* SPDX-License-Identifier: MIT */
/*
 * What several commands print of a job and of a worker: as text, and as JSON.
 */
#include "describe.h"

#include "json.h"
#include "text.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

void stat_worker_text(const struct stat_worker *worker)
{
    const char *activity = stat_activity(worker);
    struct stat_flow flow;

    printf("worker %d", worker->rank);
    if (worker->name[0] != '\0')
        printf(" %s", worker->name);
    if (worker->pid != 0)
        printf(", pid %u", worker->pid);
    printf(": %s%s%s", worker->state != 0 ? stat_state_name(worker->state) : "", worker->state != 0 ? ", " : "",
           activity);
    if (worker->control != NULL && strcmp(activity, "asleep") == 0)
        printf(" (%s)", stat_who_name(stat_word(&worker->control->header.armed)));
    printf("\n");
    if (worker->control != NULL)
        return;
    stat_flow_begin(&flow, "problem");
    stat_flow_words(&flow, worker->problem);
    stat_flow_end(&flow);
}

static void json_memory(const struct stat_job *job)
{
    uint64_t segments = 0, arenas = 0;

    for (int rank = 0; rank < BXI_WORLD_MAX; rank++) {
        if (job->workers[rank] == NULL)
            continue;
        segments += job->workers[rank]->segment.held;
        arenas += job->workers[rank]->arena.held;
    }
    stat_json_u64("segment_bytes", segments);
    stat_json_u64("arena_bytes", arenas);
    stat_json_u64("shm_bytes", segments + arenas);
}

void stat_json_job(const struct stat_job *job)
{
    uint64_t started_ns = stat_job_started_ns(job);
    uint64_t missing[BXI_WORLD_MAX];
    size_t missing_count = stat_job_missing(job, missing);
    char instance[24];
    int found = 0, alive = 0;

    for (int rank = 0; rank < BXI_WORLD_MAX; rank++) {
        found += job->workers[rank] != NULL;
        alive += job->workers[rank] != NULL && stat_worker_alive(job->workers[rank]);
    }
    snprintf(instance, sizeof(instance), "%016llx", (unsigned long long)job->instance);
    stat_json_text("job", job->name);
    stat_json_text("instance", instance);
    stat_json_bool("alive", stat_job_alive(job));
    stat_json_text("state", stat_job_state(job));
    stat_json_u64("world_size", (uint64_t)stat_job_size(job));
    stat_json_u64("workers_found", (uint64_t)found);
    stat_json_u64("workers_alive", (uint64_t)alive);
    stat_json_u64s("missing_ranks", missing, missing_count);
    if (started_ns != 0) {
        stat_json_u64("started_ns", started_ns);
        stat_json_seconds("age_seconds", stat_since(started_ns, CLOCK_REALTIME));
    } else {
        stat_json_null("started_ns");
        stat_json_null("age_seconds");
    }
    json_memory(job);
}

void stat_json_worker(const struct stat_worker *worker)
{
    stat_json_u64("rank", (uint64_t)worker->rank);
    stat_json_text("name", worker->name);
    if (worker->pid != 0)
        stat_json_u64("pid", worker->pid);
    else
        stat_json_null("pid");
    stat_json_bool("alive", stat_worker_alive(worker));
    stat_json_text("state", worker->state != 0 ? stat_state_name(worker->state) : NULL);
    stat_json_text("activity", stat_activity(worker));
    stat_json_text("problem", worker->problem);
}

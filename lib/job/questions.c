/* SPDX-License-Identifier: MIT */
/*
 * What a program may ask of its job: who it is, who is alive, the figures of its arena, its counters; and the hook for
 * deaths. Runs on the program's threads; none of these functions waits.
 */
#include "job.h"

#include "base/options.h"

#include <errno.h>

int bx_job_rank(const struct bx_job *job)
{
    int rc = bxi_job_check_any(job);

    return rc < 0 ? rc : job->rank;
}

int bx_job_world_size(const struct bx_job *job)
{
    int rc = bxi_job_check_any(job);

    return rc < 0 ? rc : job->world_size;
}

const char *bx_job_name(const struct bx_job *job)
{
    return bxi_job_check_any(job) < 0 ? NULL : job->name;
}

bool bx_worker_is_alive(const struct bx_job *job, int rank)
{
    return bxi_job_check_any(job) == 0 && rank >= 0 && rank < job->world_size &&
           bxi_load_relaxed(&job->rpc->peers[rank]->state) == BXI_PEER_ALIVE;
}

const char *bx_worker_host(const struct bx_job *job, int rank)
{
    if (bxi_job_check_any(job) < 0)
        return NULL;
    if (rank < 0 || rank >= job->world_size) {
        bx_fail(-EINVAL, "rank %d is not one of 0..%d", rank, job->world_size - 1);
        return NULL;
    }
    return job->net == NULL ? "" : job->net->places[rank].host;
}

int bx_worker_generation(const struct bx_job *job, int rank)
{
    int rc = bxi_job_check_any(job);

    if (rc < 0)
        return rc;
    if (rank < 0 || rank >= job->world_size)
        return bx_fail(-EINVAL, "rank %d is not one of 0..%d", rank, job->world_size - 1);
    return bxi_load_relaxed(&job->phase) == BXI_CREATED ? 0 : bxi_join_generation(job, rank);
}

static int set_hook(struct bx_job *job, struct bxi_worker_hook *hook, const struct bxi_worker_hook *given,
                    const char *what)
{
    if (bxi_load_relaxed(&job->phase) != BXI_CREATED)
        return bx_fail(BX_E_STATE, "the hook for %s is set before bx_job_start", what);
    *hook = *given;
    return 0;
}

int bx_on_join(struct bx_job *job, bx_join_fn fn, void *context)
{
    int rc = bxi_job_check_any(job);

    return rc < 0 ? rc : set_hook(job, &job->rpc->on_join, &(struct bxi_worker_hook){ fn, context },
                                  "workers that come back");
}

int bx_on_death(struct bx_job *job, bx_death_fn fn, void *context)
{
    int rc = bxi_job_check_any(job);

    return rc < 0 ? rc : set_hook(job, &job->rpc->on_death, &(struct bxi_worker_hook){ fn, context }, "deaths");
}

int bx_job_arena(struct bx_job *job, struct bx_arena_info *info)
{
    struct bxi_arena_stats stats;
    struct bx_arena_info filled = { 0 };
    int rc = bxi_job_check(job);

    if (rc < 0)
        return rc;
    if (info == NULL)
        return bxi_null(__func__, "the place for the figures");
    bxi_grants_reclaim(job);
    bxi_arena_read(job->lend->arena, &stats);
    filled.size_bytes = stats.size_bytes;
    filled.used_bytes = stats.used_bytes;
    filled.committed_bytes = stats.committed_bytes;
    filled.high_water_bytes = stats.high_water_bytes;
    bxi_figures_copy(info, &filled, sizeof filled);
    return 0;
}

int bx_arena_trim(struct bx_job *job)
{
    int rc = bxi_job_check(job);

    if (rc < 0)
        return rc;
    bxi_grants_reclaim(job);
    bxi_arena_trim(job->lend->arena);
    return 0;
}

int bx_counter(const struct bx_job *job, const char *name, uint64_t *value)
{
    static const char *const names[] = {
#define BXI_COUNTER_NAME(name, domain, text) #name,
        BXI_COUNTERS(BXI_COUNTER_NAME)
#undef BXI_COUNTER_NAME
    };
    int rc = bxi_job_check_any(job);

    if (rc < 0)
        return rc;
    if (name == NULL || value == NULL)
        return bxi_null(__func__, name == NULL ? "the counter's name" : "the place for its value");

    for (int i = 0; i < BXI_COUNTER_COUNT; i++) {
        if (strcmp(names[i], name) == 0) {
            /* Relaxed: any recent value will do. */
            *value = bxi_load_relaxed(&job->counters[i]);
            return 0;
        }
    }
    return bx_fail(-ENOENT, "there is no counter '%s'", bxi_brief(name).text);
}

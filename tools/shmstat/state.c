/* SPDX-License-Identifier: MIT */
/*
 * What follows from the private copies of jobs.c: who lives, in which state, and how full a ring is.
 */
#include "state.h"

#include "remote.h"

#include <stdio.h>

#define HEADER(worker) ((worker)->control->header)

/* ---- Who lives, and in which state -------------------------------------------------------------- */

struct stat_worker *stat_next(const struct stat_job *job, const struct stat_worker *worker)
{
    for (int rank = worker != NULL ? worker->rank + 1 : 0; rank < BXI_WORKERS_MAX; rank++)
        if (job->workers[rank] != NULL)
            return job->workers[rank];
    return NULL;
}

struct stat_worker *stat_next_reader(const struct stat_job *job, const struct stat_worker *worker)
{
    struct stat_worker *next = stat_next(job, worker);

    while (next != NULL && next->control == NULL)
        next = stat_next(job, next);
    return next;
}

const struct stat_worker *stat_reader(const struct stat_job *job, uint32_t rank)
{
    const struct stat_worker *worker = rank < BXI_WORKERS_MAX ? job->workers[rank] : NULL;

    return worker != NULL && worker->control != NULL ? worker : NULL;
}

bool stat_worker_alive(const struct stat_worker *worker)
{
    return worker->segment.exists ? worker->segment.alive : worker->arena.alive;
}

uint32_t stat_generation(const struct stat_worker *worker)
{
    if (worker->control == NULL)
        return 0;
    return HEADER(worker).generation != 0 ? HEADER(worker).generation : 1;
}

bool stat_is_joining(const struct stat_worker *worker)
{
    return worker->state == BXI_STARTING && stat_generation(worker) > 1;
}

bool stat_is_stopped(const struct stat_worker *worker)
{
    return worker->process == 'T' || worker->process == 't';
}

bool stat_job_alive(const struct stat_job *job)
{
    for (struct stat_worker *worker = NULL; (worker = stat_next(job, worker)) != NULL;)
        if (worker->segment.alive || worker->arena.alive)
            return true;
    return false;
}

const char *stat_state_name(uint32_t state)
{
    static const char *const names[] = { "unknown", "starting", "running", "leaving", "left", "gave up" };

    return names[state <= BXI_GAVE_UP ? state : 0];
}

const char *stat_job_state(const struct stat_job *job)
{
    uint32_t least = 0;

    if (!stat_job_alive(job))
        return "dead";
    for (struct stat_worker *worker = NULL; (worker = stat_next(job, worker)) != NULL;) {
        if (!stat_worker_alive(worker) || stat_is_joining(worker))
            continue;
        uint32_t state = worker->found == STAT_BLANK ? BXI_STARTING : worker->state;
        if (state >= BXI_STARTING && state <= BXI_LEFT && (least == 0 || state < least))
            least = state;
    }
    return stat_state_name(least);
}

int stat_job_size(const struct stat_job *job)
{
    const struct stat_worker *reader = stat_next_reader(job, NULL);
    int found = 0;

    if (reader != NULL)
        return (int)HEADER(reader).world_size;
    for (struct stat_worker *worker = NULL; (worker = stat_next(job, worker)) != NULL;)
        found++;
    return found;
}

size_t stat_job_missing(const struct stat_job *job, uint64_t missing[BXI_WORKERS_MAX])
{
    bool is_starting = false;
    size_t count = 0;

    for (struct stat_worker *worker = NULL; (worker = stat_next_reader(job, worker)) != NULL;)
        is_starting |= stat_worker_alive(worker) && worker->state == BXI_STARTING && !stat_is_joining(worker);
    for (int rank = 0; is_starting && rank < stat_job_size(job); rank++)
        if (job->workers[rank] == NULL && stat_remote(job, rank) == NULL)
            missing[count++] = (uint64_t)rank;
    return count;
}

bool stat_job_missing_text(const struct stat_job *job, char *text, size_t bytes)
{
    uint64_t missing[BXI_WORKERS_MAX];
    size_t count = stat_job_missing(job, missing);
    size_t used = (size_t)snprintf(text, bytes, "rank%s", count == 1 ? "" : "s");

    for (size_t i = 0; i < count && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s %d", i > 0 ? "," : "", (int)missing[i]);
    if (used < bytes)
        snprintf(text + used, bytes - used, " %s not come", count == 1 ? "has" : "have");
    return count > 0;
}

uint64_t stat_job_started_ns(const struct stat_job *job)
{
    uint64_t first = 0;

    for (struct stat_worker *worker = NULL; (worker = stat_next_reader(job, worker)) != NULL;)
        if (first == 0 || HEADER(worker).started_ns < first)
            first = HEADER(worker).started_ns;
    return first;
}

const char *stat_who_name(uint64_t armed)
{
    static const char *const names[] = { "nobody", "background", "leader", "lazy" };

    return names[armed & 3];
}

const char *stat_activity(const struct stat_worker *worker)
{
    if (!stat_worker_alive(worker))
        return "dead";
    if (stat_is_stopped(worker))
        return "stopped";
    if (worker->control == NULL)
        return "unknown";
    if ((stat_word(&HEADER(worker).armed) & 3) != BXI_AWAKE)
        return "asleep";
    return stat_word(&bxi_tables(worker->control)->now.spins) != 0 ? "spinning" : "awake";
}

/* Counts the different threads that the rows of served requests name. The body of a batch that is not blocking runs
 * with the progress role and is counted too; the result is bounded by the number of pool threads ever started. */
int stat_pool_busy(const struct stat_worker *worker)
{
    uint64_t threads = stat_counter(worker, BXI_C_pool_threads);
    uint64_t seen[BXI_SERVING_MAX] = { 0 };
    int busy = 0;

    for (int i = 0; i < BXI_SERVING_MAX; i++) {
        uint64_t where = stat_word(&bxi_tables(worker->control)->serving[i].where);
        int at = 0;

        if ((where & 0xff) != BXI_AT_THREAD && (where & 0xff) != BXI_AT_BODY)
            continue;
        while (at < busy && seen[at] != where >> 8)
            at++;
        if (at == busy)
            seen[busy++] = where >> 8;
    }
    return (uint64_t)busy < threads ? busy : (int)threads;
}

const char *stat_kind_name(uint32_t kind)
{
    static const char *const names[] = { "unknown", "inline", "blocking", "async", "batch" };

    return names[kind < 5 ? kind : 0];
}

const char *stat_peer_name(const struct stat_job *job, int rank)
{
    const struct stat_worker *worker = stat_reader(job, (uint32_t)rank);

    if (worker != NULL)
        return worker->name;
    return stat_remote(job, rank) != NULL ? stat_remote(job, rank)->name : "";
}

const char *stat_rank_name(const struct stat_job *job, int rank)
{
    static char ranks[4][16];
    static unsigned at;
    const char *name = stat_peer_name(job, rank);

    if (name[0] != '\0')
        return name;
    snprintf(ranks[at % 4], sizeof(ranks[0]), "rank %d", rank);
    return ranks[at++ % 4];
}

bool stat_ring_fill(const struct stat_job *job, const struct stat_worker *worker, int to, uint64_t *fill)
{
    const struct stat_worker *peer = stat_reader(job, (uint32_t)to);

    if (peer == NULL || worker->control == NULL)
        return false;

    uint64_t bytes = stat_word(&bxi_tables(worker->control)->pair_counters[to].write_pos) -
                     stat_word(&peer->credit[worker->rank].position);

    /* Negative if the peer read on between the two copies: the ring is empty then. More than the ring, by a quarter
     * of it at most: the producer also learns the credit from frames on their way back, earlier than from the word. */
    if (bytes > INT64_MAX)
        bytes = 0;
    *fill = bytes < BXI_RING_BYTES ? bytes : BXI_RING_BYTES;
    return true;
}

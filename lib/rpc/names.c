/* SPDX-License-Identifier: MIT */
/*
 * From names to workers and functions. Workers' names are fixed once the job has started, so finding one takes no
 * lock. A peer's functions are copied from the table in its segment when a call first names one, checked, and kept; a
 * call carries the index.
 */
#include "rpc.h"

#include "shm/own.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static uint32_t hash_of(const char *name)
{
    uint32_t hash = 2166136261u;

    for (; *name != '\0'; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    return hash ^ hash >> 15;
}

/* At most half of them are taken, so a free one is always found. */
static void put_in_bucket(uint16_t *bucket, uint32_t buckets, const char *name, int index)
{
    uint32_t at = hash_of(name) % buckets;

    while (bucket[at] != BXI_NO_INDEX)
        at = (at + 1) % buckets;
    bucket[at] = (uint16_t)index;
}

void bxi_names_clear(struct bx_job *job)
{
    memset(job->rpc->name_bucket, 0xff, sizeof job->rpc->name_bucket);
}

void bxi_names_build(struct bx_job *job)
{
    bxi_names_clear(job);
    for (int rank = 0; rank < job->world_size; rank++)
        if (job->rpc->peers[rank]->name[0] != '\0')      /* of a rank that nobody knows any more */
            put_in_bucket(job->rpc->name_bucket, 2 * BXI_WORKERS_MAX, job->rpc->peers[rank]->name, rank);
}

/* NULL: text is no rank of the job. */
static struct bxi_peer *of_rank(const struct bx_job *job, const char *text)
{
    int rank = 0;

    do {
        if (*text < '0' || *text > '9' || rank >= BX_WORKERS_MAX)
            return NULL;
        rank = rank * 10 + *text++ - '0';
    } while (*text != '\0');
    return rank < job->world_size ? job->rpc->peers[rank] : NULL;
}

struct bxi_peer *bxi_peer_find(struct bx_job *job, const char *name)
{
    /* Relaxed: a guess, which the comparison checks. */
    struct bxi_peer *last = job->rpc->peers[bxi_load_relaxed(&job->rpc->last_called)];

    if (strcmp(last->name, name) == 0)
        return last;
    if (name[0] == '#')
        return of_rank(job, name + 1);
    for (uint32_t at = hash_of(name);; at++) {
        uint16_t rank = job->rpc->name_bucket[at % (2 * BXI_WORKERS_MAX)];

        if (rank == BXI_NO_INDEX)
            return NULL;
        if (strcmp(job->rpc->peers[rank]->name, name) == 0) {
            bxi_store_relaxed(&job->rpc->last_called, rank);
            return job->rpc->peers[rank];
        }
    }
}

BXI_COLD int bxi_no_worker(const struct bx_job *job, const char *name)
{
    if (name[0] == '#')
        return bx_fail(BX_E_NO_WORKER, "the job '%s' has no worker of rank %s: its ranks are 0 to %d", job->job_name,
                       bxi_brief(name + 1).text, job->world_size - 1);
    return bx_fail(BX_E_NO_WORKER, "the job '%s' has no worker '%s'", job->job_name, bxi_brief(name).text);
}

#define OTHER_BYTES 16

/* "#0" to "#1023", and some more. */
const char *bx_rank(int rank)
{
#define TEN(d) "#" d "0", "#" d "1", "#" d "2", "#" d "3", "#" d "4", "#" d "5", "#" d "6", "#" d "7", "#" d "8", \
               "#" d "9"
#define HUNDRED(d) TEN(d "0"), TEN(d "1"), TEN(d "2"), TEN(d "3"), TEN(d "4"), TEN(d "5"), TEN(d "6"), TEN(d "7"), \
                   TEN(d "8"), TEN(d "9")
    static const char names[][6] = { TEN(""), TEN("1"), TEN("2"), TEN("3"), TEN("4"), TEN("5"), TEN("6"), TEN("7"),
                                     TEN("8"), TEN("9"), HUNDRED("1"), HUNDRED("2"), HUNDRED("3"), HUNDRED("4"),
                                     HUNDRED("5"), HUNDRED("6"), HUNDRED("7"), HUNDRED("8"), HUNDRED("9"),
                                     TEN("100"), TEN("101"), TEN("102") };
#undef HUNDRED
#undef TEN
    _Static_assert(sizeof names / sizeof names[0] >= BX_WORKERS_MAX, "a name of each rank");
    char *other;                        /* no worker's, for the sentence */

    if (rank >= 0 && rank < (int)(sizeof names / sizeof names[0]))
        return names[rank];
    other = bxi_own_make(BXI_OWN_RANK, OTHER_BYTES);
    if (other == NULL)
        return "#";
    snprintf(other, OTHER_BYTES, "#%d", rank);
    return other;
}

int bx_worker_rank(const struct bx_job *job, const char *name)
{
    struct bxi_peer *peer;
    int rc = bxi_job_check_any(job);

    if (rc < 0)
        return rc;
    if (name == NULL)
        return bxi_null(__func__, "the worker's name");
    /* Before the start the bootstrap may be writing the names. A peer without one is not found by "". */
    if (bxi_load_relaxed(&job->phase) == BXI_CREATED)
        return bx_fail(BX_E_STATE, "worker '%s' has not started; call bx_job_start first", job->name);
    peer = name[0] != '\0' ? bxi_peer_find((struct bx_job *)job, name) : NULL;
    return peer != NULL ? peer->rank : bxi_no_worker(job, name);
}

const char *bx_worker_name(const struct bx_job *job, int rank)
{
    if (bxi_job_check_any(job) < 0 || rank < 0 || rank >= job->world_size || job->rpc->peers[rank]->name[0] == '\0')
        return NULL;
    return job->rpc->peers[rank]->name;
}

/* ---- functions --------------------------------------------------------------------------------- */

/* Copies the functions that the peer has registered since the last time. Each word of the peer's is input. */
BXI_COLD static int refresh(struct bx_job *job, struct bxi_peer *peer)
{
    struct bxi_function_cache *cache = peer->functions;
    const struct bxi_control *control = peer->rank == job->rank ? job->control : peer->view.control;
    /* [functions] acquire, pairs with the release in add_handler: names are read after the count. */
    uint32_t count = bxi_load_acquire((bxi_a32 *)&control->header.function_count);

    if (count > BXI_FUNCTION_MAX)
        return bx_fail(BX_E_CORRUPT, "worker '%s' (rank %d) claims %u functions", peer->name, peer->rank,
                       count);
    for (; cache->count < count; cache->count++) {
        memcpy(cache->name[cache->count], control->function[cache->count].name, BXI_NAME_BYTES);
        cache->name[cache->count][BXI_NAME_BYTES - 1] = '\0';
        put_in_bucket(cache->bucket, 2 * BXI_FUNCTION_MAX, cache->name[cache->count], (int)cache->count);
    }
    return 0;
}

static int search(struct bxi_function_cache *cache, const char *name)
{
    if (cache->count > 0 && strcmp(cache->name[cache->last], name) == 0)
        return cache->last;
    for (uint32_t at = hash_of(name);; at++) {
        uint16_t index = cache->bucket[at % (2 * BXI_FUNCTION_MAX)];

        if (index == BXI_NO_INDEX)
            return -1;
        if (strcmp(cache->name[index], name) == 0)
            return cache->last = (uint8_t)index;
    }
}

BXI_COLD static int no_function(const struct bxi_peer *peer, const char *name)
{
    const struct bxi_function_cache *cache = peer->functions;
    char list[256] = "none";
    size_t used = 0;

    for (uint32_t i = 0; i < cache->count && used < sizeof list - BXI_NAME_BYTES - 6; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "",
                                 cache->name[i]);
    return bx_fail(BX_E_NO_FUNCTION, "worker '%s' has no function '%s'; it has: %s", peer->name,
                   bxi_brief(name).text, list);
}

void bxi_functions_clear(struct bxi_function_cache *cache)
{
    cache->count = 0;
    cache->last = 0;
    memset(cache->bucket, 0xff, sizeof cache->bucket);
}

int bxi_function_find(struct bx_job *job, struct bxi_peer *peer, const char *name)
{
    if (peer->functions == NULL) {
        peer->functions = calloc(1, sizeof *peer->functions);
        if (peer->functions == NULL)
            return bx_fail(-ENOMEM, "no memory for the functions of worker '%s'", peer->name);
        bxi_functions_clear(peer->functions);
    }

    int index = search(peer->functions, name);

    if (index >= 0)
        return index;

    int rc = refresh(job, peer);

    if (rc < 0)
        return rc;
    index = search(peer->functions, name);
    return index >= 0 ? index : no_function(peer, name);
}

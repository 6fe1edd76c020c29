/* SPDX-License-Identifier: MIT */
/*
 * The calls in flight of a job, from both sides.
 *
 * A caller keeps a row for each call behind its ring to the callee. The callee keeps a row for each request that it
 * serves, and the line `now` for the handler that runs with its progress role. The two sides are copied one after the
 * other: a call that moves meanwhile may be shown at its old place, or as answered. A call that does not move is shown
 * at its place.
 */
#include "flight.h"

#include "remote.h"
#include "state.h"
#include "text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- Names ---------------------------------------------------------------------------------------- */

const char *stat_where_name(enum stat_where where)
{
    static const char *const names[] = {
        [STAT_QUEUED] = "queued",  [STAT_IN_RING] = "in_ring", [STAT_INLINE] = "inline",
        [STAT_POOL] = "pool",      [STAT_THREAD] = "thread",   [STAT_BATCH] = "batch",
        [STAT_BODY] = "body",      [STAT_FUTURE] = "future",   [STAT_OBJECT] = "object",
        [STAT_ANSWERED] = "answered", [STAT_REMOTE] = "remote",
        [STAT_UNKNOWN] = "unknown",
    };

    return names[where];
}

const char *stat_call_name(const struct stat_call *call)
{
    static char name[64];

    snprintf(name, sizeof(name), "%d-%d-%llu", call->from, call->to, (unsigned long long)call->id);
    return name;
}

const char *stat_function_name(const struct stat_job *job, int rank, uint32_t function)
{
    static char name[BXI_NAME_BYTES];
    const struct stat_worker *worker = stat_reader(job, (uint32_t)rank);

    if (function == BXI_FUNCTION_VALUE)
        return "bx_rref_to_here";
    if (worker == NULL)
        worker = stat_remote_like(job, rank, function);
    if (worker == NULL || function >= BXI_FUNCTION_MAX)
        return "?";
    stat_printable(name, sizeof(name), worker->control->function[function].name, BXI_NAME_BYTES);
    return name[0] != '\0' ? name : "?";
}

size_t stat_batch_missing(const struct stat_job *job, int rank, uint32_t function, uint64_t missing[BXI_WORKERS_MAX])
{
    const struct stat_worker *worker = stat_reader(job, (uint32_t)rank);
    const struct bxi_batch_words *words;
    size_t count = 0;

    if (worker == NULL || function >= BXI_FUNCTION_MAX || worker->control->function[function].kind != 4)
        return 0;
    words = &bxi_tables(worker->control)->batch[function];
    for (int member = 0; member < BXI_WORKERS_MAX; member++)
        if (stat_bit(words->members, member) && !stat_bit(words->present, member))
            missing[count++] = (uint64_t)member;
    return count;
}

/* ---- Where a call is -------------------------------------------------------------------------------- */

/* True if the callee serves the call; sets where and thread. */
static bool find_served(const struct stat_worker *callee, struct stat_call *call)
{
    static const enum stat_where wheres[] = {
        [BXI_AT_POOL] = STAT_POOL, [BXI_AT_THREAD] = STAT_THREAD, [BXI_AT_BATCH] = STAT_BATCH,
        [BXI_AT_BODY] = STAT_BODY, [BXI_AT_FUTURE] = STAT_FUTURE,
        [BXI_AT_OBJECT] = STAT_OBJECT,
    };

    for (int i = 0; i < BXI_SERVING_MAX; i++) {
        const struct bxi_serving *row = &bxi_tables(callee->control)->serving[i];
        uint64_t where = stat_word(&row->where);

        if ((where & 0xff) < BXI_AT_POOL || (where & 0xff) > BXI_AT_OBJECT || stat_word(&row->id) != call->id ||
            (stat_word(&row->who) & 0xffff) != (uint64_t)call->from)
            continue;
        call->where = wheres[where & 0xff];
        call->thread = where >> 8;
        return true;
    }
    return false;
}

static void find_call(const struct stat_job *job, struct stat_call *call, uint64_t end_pos)
{
    const struct stat_worker *callee = stat_reader(job, (uint32_t)call->to);
    const struct bxi_now *now;

    call->where = end_pos == UINT64_MAX ? STAT_QUEUED : stat_remote(job, call->to) != NULL ? STAT_REMOTE : STAT_UNKNOWN;
    if (call->where == STAT_QUEUED || callee == NULL || find_served(callee, call))
        return;
    now = &bxi_tables(callee->control)->now;
    if (stat_word(&now->since_ns) != 0 && stat_word(&now->id) == call->id &&
        (stat_word(&now->who) & 0xffff) == (uint64_t)call->from)
        call->where = STAT_INLINE;
    else        /* the read position was copied after the rows above */
        call->where = stat_word(&callee->received[call->from].read_pos) < end_pos ? STAT_IN_RING : STAT_ANSWERED;
}

/* ---- All calls -------------------------------------------------------------------------------------- */

static int add_call(struct stat_job *job, const struct stat_call *call)
{
    size_t count = job->call_count;

    if ((count & (count - 1)) == 0) {           /* full: it doubles */
        struct stat_call *list = realloc(job->calls, (count == 0 ? 1 : 2 * count) * sizeof(*list));

        if (list == NULL)
            return -ENOMEM;
        job->calls = list;
    }
    job->calls[job->call_count++] = *call;
    return 0;
}

/* The rows of the calls of one worker to another. */
static int read_pair(struct stat_job *job, const struct stat_worker *worker, int to, uint64_t now_ns)
{
    struct bxi_call_row rows[BXI_CALLS_MAX];

    /* Rows that are not allocated read as zero, and stay so: pread allocates nothing. */
    if (stat_pread(&worker->segment, rows, sizeof(rows), bxi_calls_offset(to)) < 0)
        return 0;
    for (int slot = 0; slot < BXI_CALLS_MAX; slot++) {
        uint64_t id = stat_word(&rows[slot].id), since_ns = stat_word(&rows[slot].since) >> 8;
        uint64_t deadline_ns = stat_word(&rows[slot].deadline_ns);
        struct stat_call call = {
            .from = worker->rank,
            .to = to,
            .id = id & ~BXI_CALL_GIVEN_UP,
            .function = (uint32_t)(stat_word(&rows[slot].since) & 0xff),
            .age_s = now_ns > since_ns ? 1e-9 * (double)(now_ns - since_ns) : 0,
            .has_deadline = deadline_ns != UINT64_MAX,
            .given_up = (id & BXI_CALL_GIVEN_UP) != 0,
        };

        if (id == 0 || (id & 0xffff) != (uint64_t)slot)
            continue;
        call.left_s = 1e-9 * ((double)deadline_ns - (double)now_ns);
        find_call(job, &call, stat_word(&rows[slot].end_pos));
        if (add_call(job, &call) < 0)
            return -ENOMEM;
    }
    return 0;
}

static int by_age(const void *a, const void *b)
{
    double left = ((const struct stat_call *)a)->age_s, right = ((const struct stat_call *)b)->age_s;

    return left > right ? -1 : left < right;
}

/* Copied while they change: the difference may be any number, but not 0 while calls stay in flight. */
static bool is_busy(const struct stat_worker *worker)
{
    uint64_t ended = stat_counter(worker, BXI_C_calls_completed) + stat_counter(worker, BXI_C_calls_timed_out) +
                     stat_counter(worker, BXI_C_calls_cancelled) + stat_counter(worker, BXI_C_calls_peer_dead);

    return stat_worker_alive(worker) && stat_counter(worker, BXI_C_calls_sent) != ended;
}

int stat_calls_read(struct stat_job *job, enum stat_callers callers, uint64_t now_ns)
{
    for (struct stat_worker *worker = NULL; (worker = stat_next_reader(job, worker)) != NULL;) {
        bool is_wanted = callers == STAT_ALL_CALLERS || is_busy(worker);

        for (int to = 0; is_wanted && to < (int)worker->control->header.world_size; to++)
            if (stat_word(&worker->control->pair[to].open) != 0 && read_pair(job, worker, to, now_ns) < 0)
                return -ENOMEM;
    }
    if (job->call_count > 0)
        qsort(job->calls, job->call_count, sizeof(*job->calls), by_age);
    return 0;
}

/* SPDX-License-Identifier: MIT */
/*
 * shmstat calls: the calls in flight, and where each is now; and how long calls took (stat_hist.c).
 *
 * A caller keeps a row for each call behind its ring to the callee; the callee keeps rows of the requests
 * that it serves, and a line about what runs where it makes progress. The two sides are copied one after the
 * other, so a call that moves meanwhile may be shown where it was, or as answered; one that is stuck is
 * shown where it is.
 */
#include "calls.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Columns of names: what is longer is cut, and marked. */
#define WAY_NAMES 21            /* both of them */
#define FUNCTION_NAME 16

/* ---- Names ---------------------------------------------------------------------------------------- */

const char *stat_where_name(enum stat_where where)
{
    static const char *const names[] = {
        [STAT_QUEUED] = "queued",  [STAT_IN_RING] = "in_ring", [STAT_INLINE] = "inline",
        [STAT_POOL] = "pool",      [STAT_THREAD] = "thread",   [STAT_BATCH] = "batch",
        [STAT_BODY] = "body",      [STAT_FUTURE] = "future",   [STAT_ANSWERED] = "answered",
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

    if (worker == NULL || function >= BXI_FUNCTION_MAX)
        return "?";
    stat_printable(name, sizeof(name), worker->control->function[function].name, BXI_NAME_BYTES);
    return name[0] != '\0' ? name : "?";
}

bool stat_batch_missing(const struct stat_job *job, int rank, uint32_t function, uint64_t missing[2])
{
    const struct stat_worker *worker = stat_reader(job, (uint32_t)rank);
    const struct bxi_batch_words *words;

    if (worker == NULL || function >= BXI_FUNCTION_MAX || worker->control->function[function].kind != 4)
        return false;
    words = &bxi_tables(worker->control)->batch[function];
    for (int i = 0; i < 2; i++)
        missing[i] = stat_word(&words->members[i]) & ~stat_word(&words->present[i]);
    return true;
}

/* ---- Where a call is -------------------------------------------------------------------------------- */

/* Among the requests that the callee serves. */
static bool find_served(const struct stat_worker *callee, struct stat_call *call)
{
    static const enum stat_where wheres[] = {
        [BXI_AT_POOL] = STAT_POOL, [BXI_AT_THREAD] = STAT_THREAD, [BXI_AT_BATCH] = STAT_BATCH,
        [BXI_AT_BODY] = STAT_BODY, [BXI_AT_FUTURE] = STAT_FUTURE,
    };

    for (int i = 0; i < BXI_SERVING_MAX; i++) {
        const struct bxi_serving *row = &bxi_tables(callee->control)->serving[i];
        uint64_t where = stat_word(&row->where);

        if ((where & 0xff) < BXI_AT_POOL || (where & 0xff) > BXI_AT_FUTURE || stat_word(&row->id) != call->id ||
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

    if (end_pos == UINT64_MAX) {
        call->where = STAT_QUEUED;
        return;
    }
    call->where = STAT_UNKNOWN;
    if (callee == NULL)
        return;
    if (find_served(callee, call))
        return;
    now = &bxi_tables(callee->control)->now;
    if (stat_word(&now->since_ns) != 0 && stat_word(&now->id) == call->id &&
        (stat_word(&now->who) & 0xffff) == (uint64_t)call->from) {
        call->where = STAT_INLINE;
        return;
    }
    /* What it has read by now was copied after the rows above. */
    call->where = stat_word(&callee->received[call->from].read_pos) < end_pos ? STAT_IN_RING : STAT_ANSWERED;
}

/* ---- All calls -------------------------------------------------------------------------------------- */

static int add_call(struct stat_calls *calls, const struct stat_call *call, size_t *capacity)
{
    if (calls->count == *capacity) {
        size_t larger = *capacity == 0 ? 64 : *capacity * 2;
        struct stat_call *list = realloc(calls->list, larger * sizeof(*list));

        if (list == NULL)
            return -ENOMEM;
        calls->list = list;
        *capacity = larger;
    }
    calls->list[calls->count++] = *call;
    return 0;
}

/* The rows of the calls of one worker to another. */
static int collect_pair(const struct stat_job *job, const struct stat_worker *worker, int to,
                        struct stat_calls *calls, size_t *capacity)
{
    struct bxi_call_row rows[BXI_CALLS_MAX];
    uint64_t now_ns = stat_now_ns(CLOCK_MONOTONIC);

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
        if (add_call(calls, &call, capacity) < 0)
            return -ENOMEM;
    }
    return 0;
}

static int by_age(const void *a, const void *b)
{
    double left = ((const struct stat_call *)a)->age_s, right = ((const struct stat_call *)b)->age_s;

    return left > right ? -1 : left < right;
}

int stat_calls_collect(const struct stat_job *job, struct stat_calls *calls)
{
    size_t capacity = 0;

    *calls = (struct stat_calls){ 0 };
    for (uint32_t rank = 0; rank < BXI_WORLD_MAX; rank++) {
        const struct stat_worker *worker = stat_reader(job, rank);

        for (int to = 0; worker != NULL && to < (int)worker->control->header.world_size; to++) {
            if (stat_word(&worker->control->pair[to].open) == 0)
                continue;
            if (collect_pair(job, worker, to, calls, &capacity) < 0) {
                stat_calls_free(calls);
                return -ENOMEM;
            }
        }
    }
    if (calls->count > 0)
        qsort(calls->list, calls->count, sizeof(*calls->list), by_age);
    return 0;
}

void stat_calls_free(struct stat_calls *calls)
{
    free(calls->list);
    *calls = (struct stat_calls){ 0 };
}

/* ---- Printing --------------------------------------------------------------------------------------- */

static void json_missing(const struct stat_job *job, const struct stat_call *call)
{
    uint64_t missing[2];

    if (call->where != STAT_BATCH || !stat_batch_missing(job, call->to, call->function, missing))
        return;
    stat_json_open("waits_for", '[');
    for (int rank = 0; rank < BXI_WORLD_MAX; rank++)
        if (missing[rank / 64] >> rank % 64 & 1)
            stat_json_u64(NULL, (uint64_t)rank);
    stat_json_close(']');
}

static void json_call(const struct stat_job *job, const struct stat_call *call)
{
    stat_json_open(NULL, '{');
    stat_json_text("call", stat_call_name(call));
    stat_json_u64("id", call->id);
    stat_json_u64("caller", (uint64_t)call->from);
    stat_json_text("caller_name", stat_peer_name(job, call->from));
    stat_json_u64("callee", (uint64_t)call->to);
    stat_json_text("callee_name", stat_peer_name(job, call->to));
    stat_json_text("function", stat_function_name(job, call->to, call->function));
    stat_json_seconds("age_seconds", call->age_s);
    if (call->has_deadline)
        stat_json_seconds("left_seconds", call->left_s > 0 ? call->left_s : 0);
    else
        stat_json_null("left_seconds");
    stat_json_bool("given_up", call->given_up);
    stat_json_text("where", stat_where_name(call->where));
    if (call->thread != 0)
        stat_json_u64("thread", call->thread);
    else
        stat_json_null("thread");
    json_missing(job, call);
    stat_json_close('}');
}

static void print_missing(const struct stat_job *job, const struct stat_call *call)
{
    uint64_t missing[2];
    struct stat_flow flow;

    if (call->where != STAT_BATCH || !stat_batch_missing(job, call->to, call->function, missing) ||
        (missing[0] | missing[1]) == 0)
        return;
    stat_flow_begin(&flow, "waits for");
    for (int rank = 0; rank < BXI_WORLD_MAX; rank++)
        if (missing[rank / 64] >> rank % 64 & 1)
            stat_flow_add(&flow, "%s", stat_peer_name(job, rank));
    stat_flow_end(&flow);
}

static void print_call(const struct stat_job *job, const struct stat_call *call)
{
    const char *from = stat_peer_name(job, call->from), *to = stat_peer_name(job, call->to);
    /* A short name leaves its room to the other. */
    size_t half = WAY_NAMES / 2, from_most = WAY_NAMES - (strlen(to) < half ? strlen(to) : half);
    size_t to_most = WAY_NAMES - (strlen(from) < from_most ? strlen(from) : from_most);
    char way[WAY_NAMES + 4], where[40];

    snprintf(way, sizeof(way), "%s > %s", stat_cut_text(from, from_most), stat_cut_text(to, to_most));
    if (call->thread != 0)
        snprintf(where, sizeof(where), "%s %llu", stat_where_name(call->where), (unsigned long long)call->thread);
    else
        snprintf(where, sizeof(where), "%s%s", stat_where_name(call->where), call->given_up ? ", given up" : "");
    printf("%-14s %-*s %-*s %8s  %s\n", stat_call_name(call), WAY_NAMES + 3, way, FUNCTION_NAME,
           stat_cut_text(stat_function_name(job, call->to, call->function), FUNCTION_NAME),
           stat_span_text(call->age_s), where);
    print_missing(job, call);
}

static int no_memory(const struct stat_job *job)
{
    fprintf(stderr, "shmstat: no memory for job '%s'\n", job->name);
    return STAT_NOTHING;
}

static int show_job(struct stat_job *job, bool json)
{
    struct stat_calls calls;
    int rc;

    if (stat_job_read(job, true) < 0 || stat_hists_read(job) < 0 || stat_calls_collect(job, &calls) < 0)
        return no_memory(job);
    if (json) {
        stat_json_open(NULL, '{');
        stat_json_job(job);
        stat_json_open("calls", '[');
    } else {
        printf("job %s.%016llx: %s, %zu call%s in flight\n", job->name, (unsigned long long)job->instance,
               stat_job_state(job), calls.count, calls.count == 1 ? "" : "s");
        if (calls.count > 0)
            printf("%-14s %-*s %-*s %8s  %s\n", "CALL", WAY_NAMES + 3, "FROM > TO", FUNCTION_NAME, "FUNCTION", "AGE",
                   "WHERE");
    }
    for (size_t i = 0; i < calls.count; i++) {
        if (json)
            json_call(job, &calls.list[i]);
        else
            print_call(job, &calls.list[i]);
    }
    if (json) {
        stat_json_close(']');
        rc = stat_hists_json(job);
        stat_json_close('}');
    } else {
        rc = stat_hists_text(job);
    }
    stat_calls_free(&calls);
    stat_job_close(job);
    return rc < 0 ? no_memory(job) : STAT_FINE;
}

int stat_calls(const struct stat_options *options)
{
    struct stat_jobs jobs;
    int status = stat_list_begin(&jobs, options, "calls");

    if (status != STAT_FINE)
        return status;
    for (size_t i = 0; i < jobs.count && status == STAT_FINE; i++)
        status = show_job(&jobs.list[i], options->json);
    if (status == STAT_FINE && !stat_jobs_readable(&jobs))
        status = STAT_NOTHING;
    stat_list_end(&jobs, options);
    return status;
}

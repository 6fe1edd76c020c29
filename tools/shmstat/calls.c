/* SPDX-License-Identifier: MIT */
/*
 * shmstat calls: the calls in flight, and where each is now; then how long calls took.
 */
#include "describe.h"
#include "flight.h"
#include "hist.h"
#include "json.h"
#include "list.h"
#include "shmstat.h"
#include "state.h"
#include "text.h"

#include <stdio.h>
#include <string.h>

/* Columns of names: what is longer is cut, and marked. */
#define WAY_NAMES 21            /* both of them */
#define FUNCTION_NAME 16

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

static int show_job(struct stat_job *job, bool json)
{
    struct stat_calls calls;
    int rc;

    if (stat_job_read(job, true) < 0 || stat_hists_read(job) < 0 || stat_calls_collect(job, &calls) < 0)
        return stat_no_memory(job);
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
    return rc < 0 ? stat_no_memory(job) : STAT_FINE;
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

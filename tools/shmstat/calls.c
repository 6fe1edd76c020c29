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
#include "text.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* Columns of names: what is longer is cut, and marked. */
#define WAY_NAMES 21            /* both of them */
#define FUNCTION_NAME 16

static const struct stat_column columns[] = {
    { "CALL", "call", -14 },    { "FROM > TO", ".way", -(WAY_NAMES + 3) }, { "FUNCTION", ".function", -FUNCTION_NAME },
    { "AGE", "age_seconds", 8 }, { "", NULL, 0 },                          { "WHERE", ".where", 0 },
};

#define COLUMNS (sizeof(columns) / sizeof(columns[0]))

static void make_row(const struct stat_job *job, const struct stat_call *call, struct stat_row *row)
{
    const char *from = stat_peer_name(job, call->from), *to = stat_peer_name(job, call->to);
    const char *function = stat_function_name(job, call->to, call->function), *where = stat_where_name(call->where);
    /* A short name leaves its room to the longer one. */
    size_t half = WAY_NAMES / 2, from_most = WAY_NAMES - (strlen(to) < half ? strlen(to) : half);
    size_t to_most = WAY_NAMES - (strlen(from) < from_most ? strlen(from) : from_most);

    stat_row_begin(row);
    stat_put_text(row, "call", stat_call_name(call));
    stat_put(row, "id", STAT_COUNT, call->id);
    stat_put(row, "caller", STAT_COUNT, (uint64_t)call->from);
    stat_put_text(row, "caller_name", from);
    stat_put(row, "callee", STAT_COUNT, (uint64_t)call->to);
    stat_put_text(row, "callee_name", to);
    stat_put_text(row, "function", function);
    stat_put_real(row, "age_seconds", STAT_SECONDS, call->age_s);
    stat_put_real(row, "left_seconds", STAT_SECONDS, !call->has_deadline ? -1 : call->left_s > 0 ? call->left_s : 0);
    stat_put(row, "given_up", STAT_FLAG, call->given_up);
    stat_put_text(row, "where", where);
    stat_put_if(row, call->thread != 0, "thread", STAT_COUNT, call->thread);
    stat_put_format(row, ".way", "%s > %s", stat_cut_text(from, from_most), stat_cut_text(to, to_most));
    stat_put_text(row, ".function", stat_cut_text(function, FUNCTION_NAME));
    if (call->thread != 0)
        stat_put_format(row, ".where", "%s %llu", where, (unsigned long long)call->thread);
    else
        stat_put_format(row, ".where", "%s%s", where, call->given_up ? ", given up" : "");
}

/* The ranks whose rows the call's batch waits for: how many, into ranks; -1 if the call waits in no batch. */
static int missing_ranks(const struct stat_job *job, const struct stat_call *call, int ranks[BXI_WORLD_MAX])
{
    uint64_t missing[2];
    int count = 0;

    if (call->where != STAT_BATCH || !stat_batch_missing(job, call->to, call->function, missing))
        return -1;
    for (int rank = 0; rank < BXI_WORLD_MAX; rank++)
        if (missing[rank / 64] >> rank % 64 & 1)
            ranks[count++] = rank;
    return count;
}

static void json_call(const struct stat_job *job, const struct stat_call *call)
{
    int ranks[BXI_WORLD_MAX], count = missing_ranks(job, call, ranks);
    struct stat_row row;

    make_row(job, call, &row);
    stat_json_open(NULL, '{');
    stat_row_json(&row);
    if (count >= 0) {
        stat_json_open("waits_for", '[');
        for (int i = 0; i < count; i++)
            stat_json_u64(NULL, (uint64_t)ranks[i]);
        stat_json_close(']');
    }
    stat_json_close('}');
}

static void print_call(const struct stat_job *job, const struct stat_call *call)
{
    int ranks[BXI_WORLD_MAX], count = missing_ranks(job, call, ranks);
    struct stat_flow flow;
    struct stat_row row;

    make_row(job, call, &row);
    stat_table_row(columns, COLUMNS, &row);
    if (count <= 0)
        return;
    stat_flow_begin(&flow, "waits for");
    for (int i = 0; i < count; i++)
        stat_flow_add(&flow, "%s", stat_peer_name(job, ranks[i]));
    stat_flow_end(&flow);
}

static int show_job(struct stat_job *job, bool json)
{
    struct stat_calls calls;
    int rc;

    if (stat_job_read(job, true) < 0 || stat_hists_read(job) < 0 ||
        stat_calls_collect(job, stat_now_ns(CLOCK_MONOTONIC), &calls) < 0)
        return stat_no_memory(job);
    if (json) {
        stat_json_open(NULL, '{');
        stat_json_job(job);
        stat_json_open("calls", '[');
    } else {
        stat_job_text(job);
        printf(", %zu call%s in flight\n", calls.count, calls.count == 1 ? "" : "s");
        if (calls.count > 0)
            stat_table_titles(columns, COLUMNS);
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

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

/* Columns of names: what is longer is cut, and marked. */
#define WAY_NAMES 21            /* both of them */
#define FUNCTION_NAME 16

static const struct stat_column columns[] = {
    { "CALL", "call", -14 },    { "FROM > TO", ".way", -(WAY_NAMES + 3) }, { "FUNCTION", ".function", -FUNCTION_NAME },
    { "AGE", "age_seconds", 8 }, { "", NULL, 0 },                          { "WHERE", ".where", 0 },
};

/* The workers whose rows the call's batch waits for. */
static void put_missing(struct stat_row *row, const struct stat_job *job, const struct stat_call *call)
{
    uint64_t ranks[BXI_WORKERS_MAX];
    size_t count = 0;

    if (call->where == STAT_BATCH) {
        count = stat_batch_missing(job, call->to, call->function, ranks);
        stat_put_list(row, "waits_for", ranks, count);
    }
    stat_put_names(row, ".missing");
    for (size_t i = 0; i < count; i++)
        stat_add_name(row, "%s", stat_peer_name(job, (int)ranks[i]));
}

static int call_row(const struct stat_job *job, const struct stat_worker *none, int index, struct stat_row *row)
{
    (void)none;
    if ((size_t)index >= job->call_count)
        return STAT_END;

    const struct stat_call *call = &job->calls[index];
    const char *from = stat_peer_name(job, call->from), *to = stat_peer_name(job, call->to);
    const char *function = stat_function_name(job, call->to, call->function), *where = stat_where_name(call->where);
    /* A short name leaves its room to the longer one. */
    size_t half = WAY_NAMES / 2, from_most = WAY_NAMES - (strlen(to) < half ? strlen(to) : half);
    size_t to_most = WAY_NAMES - (strlen(from) < from_most ? strlen(from) : from_most);

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
    put_missing(row, job, call);
    return STAT_ROW;
}

static const struct stat_part parts[] = {
    { .key = "calls", .shape = STAT_LIST_OF, .make = call_row },
    { 0 },
};

static int print_job(struct stat_job *job, const struct stat_options *options)
{
    struct stat_table table = {
        .columns = columns, .count = sizeof(columns) / sizeof(columns[0]),
        .label = "waits for", .names = ".missing",
    };
    int rc;

    if (options->json) {
        stat_json_open(NULL, '{');
        stat_first_json(stat_job_row, job, NULL);
        stat_parts_json(parts, job, NULL);
        rc = stat_hists_print(job, true);
        stat_json_close('}');
    } else {
        stat_job_text(job);
        printf(", %zu call%s in flight\n", job->call_count, job->call_count == 1 ? "" : "s");
        stat_table_rows(&table, call_row, job, NULL);
        rc = stat_hists_print(job, false);
    }
    return rc == 0 && stat_next_reader(job, NULL) != NULL ? STAT_FINE : STAT_NOTHING;
}

int stat_calls(const struct stat_options *options)
{
    return stat_print_jobs(options, "calls", STAT_READ_HISTS | STAT_READ_CALLS, print_job);
}

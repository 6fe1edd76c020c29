/* SPDX-License-Identifier: MIT */
/*
 * shmstat show: everything that the workers of a job show of themselves. The rows are described in describe.c and
 * section_gpu.c; here is what they look like, as text and as JSON.
 */
#include "describe.h"
#include "hist.h"
#include "json.h"
#include "list.h"
#include "objects.h"
#include "prometheus.h"
#include "ring.h"
#include "section_gpu.h"
#include "shmstat.h"

#include <stdio.h>
#include <string.h>

/* ---- Text --------------------------------------------------------------------------------------- */

static const struct {
    const char *label, *pattern;
} counter_lines[] = {
    { "waits", "io_uring {waits_uring}, epoll {waits_epoll};|wake-ups {wakeups}, rescued {rescued};|"
               "spins hit {spins_hit}, missed {spins_missed}" },
    { "doorbells", "rung {doorbells_rung}, saved {doorbells_saved}, unneeded {bells_unneeded}" },
    { "calls", "sent {calls_sent}, completed {calls_completed}, one-way {oneways_sent};|timed out {calls_timed_out}, "
               "cancelled {calls_cancelled}, peer dead {calls_peer_dead}, late replies {late_replies}" },
    { "handlers", "inline {requests_inline}, async {requests_async}, blocking {requests_blocking}, "
                  "batch {requests_batched};|refused {requests_refused}, expired {requests_expired}, "
                  "dropped {requests_dropped};|batches {batches_run} of {batch_rows} rows;|"
                  "pool threads {pool_threads}, busy {.busy}" },
};

static void text_counters(const struct stat_job *job, const struct stat_worker *worker)
{
    struct stat_row row;

    stat_row_begin(&row);
    stat_counter_row(job, worker, 0, &row);
    stat_put(&row, ".busy", STAT_COUNT, (uint64_t)stat_pool_busy(worker));
    for (size_t i = 0; i < sizeof(counter_lines) / sizeof(counter_lines[0]); i++)
        stat_row_line(counter_lines[i].label, counter_lines[i].pattern, &row);
}

static void text_functions(const struct stat_job *job, const struct stat_worker *worker)
{
    struct stat_row row;
    struct stat_flow flow;
    int index = 0;

    stat_flow_begin(&flow, "functions");
    for (stat_row_begin(&row); stat_function_row(job, worker, index, &row) == STAT_ROW; index++) {
        stat_flow_row(&flow, "{name} ({kind}){.comma}", &row);
        stat_row_begin(&row);
    }
    if (index == 0)
        stat_flow_add(&flow, "none");
    stat_flow_end(&flow);
}

static void text_rings(const struct stat_job *job, const struct stat_worker *worker)
{
    static const struct stat_column columns[] = {
        { "  rings", ".to", -20 },   { "FILL", "fill_bytes", 9 }, { "HIGH", "high_water_bytes", 9 },
        { "FRAMES", "frames", 10 },  { "BYTES", "bytes", 10 },    { "FULL", "times_full", 7 },
        { "UNREAD", "oldest_unread_seconds", 8 },
    };
    const size_t count = sizeof(columns) / sizeof(columns[0]);
    struct stat_row row;
    int rings = 0;

    for (int to = 0, made = STAT_SKIP; made != STAT_END; to++) {
        stat_row_begin(&row);
        made = stat_ring_row(job, worker, to, &row);
        if (made == STAT_ROW && rings++ == 0)
            stat_table_titles(columns, count);
        if (made == STAT_ROW)
            stat_table_row(columns, count, &row);
    }
    if (rings == 0)
        printf("  rings     none is open\n");
    else
        printf("    each holds %s\n", stat_bytes_text(BXI_RING_BYTES));
}

/* Only of a worker that has objects. */
static int objects_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row)
{
    int made = stat_objects_row(job, worker, index, row);

    return made == STAT_ROW && strcmp(stat_row_number(row, "count"), "0") == 0 ? STAT_SKIP : made;
}

static void print_worker(const struct stat_job *job, const struct stat_worker *worker)
{
    printf("\n");
    stat_worker_text(worker);
    if (worker->control == NULL)
        return;
    text_counters(job, worker);
    text_functions(job, worker);
    text_rings(job, worker);
    stat_rows_text("arena", "{bytes},|used {used_bytes},|committed {committed_bytes},|high water {high_water_bytes};|"
                   "tensors sent {.tensors_sent},|copied first {.tensors_copied}", stat_arena_row, job, worker);
    stat_rows_text("loans", "{peer} {.name}:|on loan {leases}|of {bytes},|the oldest for {oldest_seconds},|"
                   "granted {granted},|returned {returned},|taken back {taken_back};|borrowed {borrowed}|"
                   "of {borrowed_total} ever", stat_loan_row, job, worker);
    stat_rows_text("objects", "{count},|held by others {held},|to come {to_come},|failed {failed};|"
                   "the oldest for {oldest_seconds}", objects_row, job, worker);
    stat_gpu_text(job, worker);
}

static void print_job(const struct stat_job *job)
{
    char missing[1024];
    struct stat_row row;

    stat_job_row(job, &row);
    stat_job_text(job);
    printf(", %d workers", stat_job_size(job));
    if (stat_job_started_ns(job) != 0)
        printf(", %s", stat_span_text(stat_row_field(&row, "age_seconds")->real));
    printf("\n");
    if (stat_job_missing_text(job, missing, sizeof(missing)))
        printf("it is starting: %s\n", missing);
    for (int rank = 0; rank < BXI_WORLD_MAX; rank++)
        if (job->workers[rank] != NULL)
            print_worker(job, job->workers[rank]);
}

/* ---- JSON --------------------------------------------------------------------------------------- */

static int pool_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row)
{
    (void)job;
    stat_put(row, "threads", STAT_COUNT, stat_word(&bxi_tables(worker->control)->counters[BXI_C_pool_threads]));
    stat_put(row, "busy", STAT_COUNT, (uint64_t)stat_pool_busy(worker));
    return index == 0 ? STAT_ROW : STAT_END;
}

/* The keys of the worker itself. */
static void json_head(const struct stat_worker *worker)
{
    struct stat_row row;

    stat_worker_row(worker, &row);
    stat_put(&row, "readable", STAT_FLAG, worker->control != NULL);
    stat_put_if(&row, worker->layout_version != 0, "layout_version", STAT_COUNT, worker->layout_version);
    if (worker->control != NULL) {
        const bxi_a64 *counters = bxi_tables(worker->control)->counters;
        uint64_t armed = stat_word(&worker->control->header.armed);

        stat_put_text(&row, "armed", stat_who_name(armed));
        stat_put(&row, "armings", STAT_COUNT, armed >> 2);
        stat_put_text(&row, "waits_by", stat_word(&counters[BXI_C_waits_uring]) != 0   ? "io_uring"
                                        : stat_word(&counters[BXI_C_waits_epoll]) != 0 ? "epoll" : NULL);
    }
    stat_row_json(&row);
}

static void json_worker(const struct stat_job *job, const struct stat_worker *worker)
{
    json_head(worker);
    if (worker->control == NULL)
        return;
    stat_object_json("counters", stat_counter_row, job, worker);
    stat_object_json("pool", pool_row, job, worker);
    stat_rows_json("functions", stat_function_row, job, worker);
    stat_rows_json("rings", stat_ring_row, job, worker);
    stat_object_json("arena", stat_arena_row, job, worker);
    stat_rows_json("loans", stat_loan_row, job, worker);
    stat_object_json("rrefs", stat_objects_row, job, worker);
    stat_gpu_json(job, worker);
}

/* ---- All of it ---------------------------------------------------------------------------------- */

static int read_job(struct stat_job *job, const struct stat_options *options)
{
    int rc = stat_job_read(job, true);

    if (rc == 0) {
        stat_unread_read(job);
        rc = stat_gpus_read(job);
    }
    if (rc == 0)
        rc = stat_objects_read(job);
    if (rc == 0 && options->prometheus)
        rc = stat_hists_read(job);
    stat_job_close(job);
    return rc;
}

static void print_jobs(const struct stat_jobs *jobs, bool json)
{
    for (size_t i = 0; i < jobs->count; i++) {
        if (i > 0 && !json)
            printf("\n");
        if (json)
            stat_job_json(&jobs->list[i], json_worker);
        else
            print_job(&jobs->list[i]);
    }
}

int stat_show(const struct stat_options *options)
{
    struct stat_jobs jobs;
    int status = stat_find(&jobs, options);

    if (status != STAT_FINE)
        return status;
    for (size_t i = 0; i < jobs.count && status == STAT_FINE; i++)
        if (read_job(&jobs.list[i], options) < 0)
            status = stat_no_memory(&jobs.list[i]);
    if (status == STAT_FINE) {
        if (options->prometheus) {
            stat_prometheus(&jobs);
        } else {
            stat_list_open(&jobs, options, "show");
            print_jobs(&jobs, options->json);
            stat_list_close(options);
        }
        status = stat_jobs_readable(&jobs) ? STAT_FINE : STAT_NOTHING;
    }
    stat_jobs_free(&jobs);
    return status;
}

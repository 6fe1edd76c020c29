/* SPDX-License-Identifier: MIT */
/*
 * shmstat show: everything that the workers of a job show of themselves. The rows are described in describe.c,
 * objects.c and section_gpu.c; here is what they look like, as text and as JSON.
 */
#include "describe.h"
#include "device.h"
#include "list.h"
#include "objects.h"
#include "shmstat.h"

#include <stdio.h>

static int pool_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row)
{
    (void)job;
    stat_put(row, "threads", STAT_COUNT, stat_counter(worker, BXI_C_pool_threads));
    stat_put(row, "busy", STAT_COUNT, (uint64_t)stat_pool_busy(worker));
    return index == 0 ? STAT_ROW : STAT_END;
}

/* Text has a line of objects only of a worker that has some. */
static int objects_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row)
{
    int made = stat_objects_row(job, worker, index, row);

    return made == STAT_ROW && stat_row_field(row, "count")->count == 0 ? STAT_SKIP : made;
}

/* The table of rings stands between the first parts and the others. */
static void text_rings(const struct stat_job *job, const struct stat_worker *worker)
{
    static const struct stat_column columns[] = {
        { "  rings", ".to", -20 },   { "FILL", "fill_bytes", 9 }, { "HIGH", "high_water_bytes", 9 },
        { "FRAMES", "frames", 10 },  { "BYTES", "bytes", 10 },    { "FULL", "times_full", 7 },
        { "UNREAD", "oldest_unread_seconds", 8 },
    };
    struct stat_table table = { .columns = columns, .count = sizeof(columns) / sizeof(columns[0]) };

    stat_table_rows(&table, stat_ring_row, job, worker);
    if (table.rows == 0)
        printf("  rings     none is open\n");
    else
        printf("    each holds %s\n", stat_bytes_text(BXI_RING_BYTES));
}

static const struct stat_part parts[] = {
    { .key = "counters", .make = stat_counter_row, .label = "waits",
      .pattern = "io_uring {waits_uring}, epoll {waits_epoll};|wake-ups {wakeups}, rescued {rescued};|"
                 "spins hit {spins_hit}, missed {spins_missed}" },
    { .make = stat_counter_row, .label = "doorbells",
      .pattern = "rung {doorbells_rung}, saved {doorbells_saved}, unneeded {bells_unneeded}" },
    { .make = stat_counter_row, .label = "calls",
      .pattern = "sent {calls_sent}, completed {calls_completed}, one-way {oneways_sent};|timed out {calls_timed_out}, "
                 "cancelled {calls_cancelled}, peer dead {calls_peer_dead}, late replies {late_replies}" },
    { .make = stat_counter_row, .label = "handlers",
      .pattern = "inline {requests_inline}, async {requests_async}, blocking {requests_blocking}, "
                 "batch {requests_batched};|refused {requests_refused}, expired {requests_expired}, "
                 "dropped {requests_dropped};|batches {batches_run} of {batch_rows} rows;|"
                 "pool threads {pool_threads}, busy {.busy}" },
    { .key = "pool", .make = pool_row },
    { .key = "functions", .shape = STAT_JOINED, .make = stat_function_row, .label = "functions",
      .pattern = "{name} ({kind}){.comma}" },
    { .key = "rings", .shape = STAT_LIST_OF, .make = stat_ring_row, .text = text_rings },
    { .key = "arena", .make = stat_arena_row, .label = "arena",
      .pattern = "{bytes},|used {used_bytes},|committed {committed_bytes},|high water {high_water_bytes};|"
                 "tensors sent {.tensors_sent},|copied first {.tensors_copied}" },
    { .key = "loans", .shape = STAT_LIST_OF, .make = stat_loan_row, .label = "loans",
      .pattern = "{peer} {.name}:|on loan {leases}|of {bytes},|the oldest for {oldest_seconds},|granted {granted},|"
                 "returned {returned},|taken back {taken_back};|borrowed {borrowed}|of {borrowed_total} ever" },
    { .key = "rrefs", .make = stat_objects_row },
    { .make = objects_row, .label = "objects",
      .pattern = "{count},|held by others {held},|to come {to_come},|failed {failed};|"
                 "the oldest for {oldest_seconds}" },
    { .key = "gpu", .make = stat_gpu_row, .inner = stat_gpu_parts },
    { 0 },
};

static void text_job(const struct stat_job *job)
{
    struct stat_row row;

    stat_row_begin(&row);
    stat_job_row(job, NULL, 0, &row);
    stat_job_text(job);
    printf(", %d workers", stat_job_size(job));
    if (stat_job_started_ns(job) != 0)
        printf(", %s", stat_span_text(stat_row_field(&row, "age_seconds")->real));
    printf("\n");
    if (stat_row_field(&row, ".missing")->presence == STAT_PRESENT)
        printf("it is starting: %s\n", (const char *)stat_row_field(&row, ".missing")->at);
    stat_workers_text(job, parts);
}

static int print_job(struct stat_job *job, const struct stat_options *options)
{
    static bool is_next;

    if (options->json) {
        stat_job_json(job, parts);
    } else {
        printf("%s", is_next ? "\n" : "");
        text_job(job);
        is_next = true;
    }
    return stat_next_reader(job, NULL) != NULL ? STAT_FINE : STAT_NOTHING;
}

int stat_show(const struct stat_options *options)
{
    if (options->prometheus)
        return stat_prometheus(options);
    return stat_print_jobs(options, "show", STAT_READ_UNREAD | STAT_READ_GPUS | STAT_READ_OBJECTS, print_job);
}

/* SPDX-License-Identifier: MIT */
/*
 * shmstat show: everything that the workers of a job show of themselves. The rows are described in describe.c,
 * objects.c and gpu.c; here is their order.
 */
#include "describe.h"
#include "device.h"
#include "list.h"
#include "objects.h"
#include "remote.h"
#include "shmstat.h"

#include <stdio.h>
#include <time.h>

static const struct stat_column ring_columns[] = {
    { "  rings", ".to", -20 },   { "FILL", "fill_bytes", 9 }, { "HIGH", "high_water_bytes", 9 },
    { "FRAMES", "frames", 10 },  { "BYTES", "bytes", 10 },    { "FULL", "times_full", 7 },
    { "UNREAD", "oldest_unread_seconds", 8 },
};

static const struct stat_column remote_columns[] = {
    { "  remotes", ".peer", -18 },   { "HOST", ".host", -14 },  { "TRANSPORT", ".transport", -12 },
    { "SENT", "bytes_sent", 9 }, { "RECEIVED", "bytes_received", 9 }, { "ROUND", "round_trip_seconds", 8 },
};

static const struct stat_part parts[] = {
    { .key = "counters", .make = stat_counter_row },
    { .key = "pool", .make = stat_pool_row },
    { .key = "functions", .shape = STAT_JOINED, .make = stat_function_row },
    { .key = "rings", .shape = STAT_LIST_OF, .make = stat_ring_row, .columns = ring_columns,
      .column_count = sizeof(ring_columns) / sizeof(ring_columns[0]) },
    { .key = "remotes", .shape = STAT_LIST_OF, .make = stat_remote_row, .columns = remote_columns,
      .column_count = sizeof(remote_columns) / sizeof(remote_columns[0]) },
    { .key = "arena", .make = stat_arena_row },
    { .key = "loans", .shape = STAT_LIST_OF, .make = stat_loan_row },
    { .key = "rrefs", .make = stat_objects_row },
    { .key = "gpu", .make = stat_gpu_row, .inner = stat_gpu_parts },
    { 0 },
};

static void text_job(const struct stat_job *job)
{
    char missing[1024];

    stat_job_text(job);
    printf(", %d workers", stat_job_size(job));
    if (stat_job_started_ns(job) != 0)
        printf(", %s", stat_time_text(stat_since(stat_job_started_ns(job), CLOCK_REALTIME)));
    printf("\n");
    if (stat_job_missing_text(job, missing, sizeof(missing)))
        printf("it is starting: %s\n", missing);
    stat_elsewhere_text(job);
    stat_workers_text(job, parts);
}

int stat_show(const struct stat_options *options)
{
    static const struct stat_command command = {
        "show", STAT_READ_UNREAD | STAT_READ_GPUS | STAT_READ_OBJECTS, parts, text_job,
    };

    return options->prometheus ? stat_prometheus(options) : stat_run_command(&command, options);
}

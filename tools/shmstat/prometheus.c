/* SPDX-License-Identifier: MIT */
/*
 * shmstat show --prometheus: the text exposition format, for a collector that reads files or runs commands.
 *
 * In this format all samples of a metric stand together, so the outer loop is over metrics. A value that can fall is a
 * gauge; a counter's name ends in _total.
 */
#include "describe.h"
#include "device.h"
#include "hist.h"
#include "list.h"
#include "objects.h"
#include "remote.h"
#include "shmstat.h"

#include <stdio.h>
#include <string.h>

struct metric {
    const char *name;           /* of a counter it ends in _total */
    stat_row_fn make;
    const char *value;          /* in that row */
    const char *unless_zero;    /* NULL, or a value of the row without which there is no sample */
    const char *help;
};

/* Names are printable: only these two characters need escaping. */
static void put_label(const char *key, const char *text)
{
    printf("%s=\"", key);
    for (; *text != '\0'; text++)
        printf(*text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
    putchar('"');
}

/* Without the closing bracket. */
static void put_labels(const char *metric, const struct stat_job *job, const struct stat_worker *worker, int peer)
{
    printf("boxcar_%s{", metric);
    put_label("job", job->name);
    putchar(',');
    put_label("worker", worker->name);
    printf(",rank=\"%d\"", worker->rank);
    if (peer >= 0)
        printf(",peer=\"%d\"", peer);
    if (job->twin)
        printf(",run=\"%016llx\"", (unsigned long long)job->instance);
}

static void put_head(const char *metric, const char *type, const char *help)
{
    printf("# HELP boxcar_%s %s\n# TYPE boxcar_%s %s\n", metric, help, metric, type);
}

/* ---- Rows --------------------------------------------------------------------------------------- */

/* Values about a peer that exist without a ring to it. */
static int peer_row(const struct stat_job *job, const struct stat_worker *worker, int peer, struct stat_row *row)
{
    const struct stat_gpu *gpu = stat_gpu_of(job, worker->rank);
    uint64_t slabs = 0;

    if (worker->control == NULL || peer >= (int)worker->control->header.world_size)
        return STAT_END;
    for (size_t i = 0; gpu != NULL && i < gpu->borrow_count; i++)
        slabs += gpu->borrows[i].peer == peer;
    stat_put(row, "received", STAT_COUNT, stat_word(&bxi_tables(worker->control)->pair_counters[peer].frames_received));
    stat_put(row, "slabs", STAT_COUNT, slabs);
    return STAT_ROW;
}

/* ---- Metrics ------------------------------------------------------------------------------------ */

static const struct metric metrics[] = {
    { "worker_up", stat_worker_row, "alive", NULL, "1 while the worker lives (its owner lock is held)" },
    { "worker_state", stat_worker_row, ".state", NULL, "1 starting, 2 running, 3 leaving, 4 left, 5 gave up" },
    { "worker_generation", stat_worker_row, "generation", NULL, "1 for the first process of the rank, 2 for the next" },
    { "worker_asleep", stat_worker_row, ".asleep", NULL, "1 while its doorbell is armed" },
    { "worker_spinning", stat_worker_row, ".spinning", NULL, "1 while a thread of it spins for work" },
    { "worker_stopped", stat_worker_row, ".stopped", NULL, "1 while its process is stopped by a signal" },
    { "worker_start_time_seconds", stat_worker_row, ".started", NULL, "when its segment was made, since the epoch" },
    { "pool_threads_busy", stat_pool_row, "busy", NULL, "threads of the pool that run a handler" },
    { "segment_shm_bytes", stat_worker_row, ".segment", NULL, "pages of /dev/shm that its segment takes" },
    { "arena_shm_bytes", stat_worker_row, ".arena", NULL, "pages of /dev/shm that its arena takes" },
    { "arena_size_bytes", stat_arena_row, "bytes", NULL, "most that its arena may take" },
    { "arena_used_bytes", stat_arena_row, "used_bytes", NULL, "bytes of blocks handed out" },
    { "arena_committed_bytes", stat_arena_row, "committed_bytes", NULL, "bytes of pages that the arena holds" },
    { "arena_high_water_bytes", stat_arena_row, "high_water_bytes", NULL,
      "most that was used since the start or the last trim" },
    { "objects", stat_objects_row, "count", NULL, "objects of the worker to which there are references" },
    { "objects_held", stat_objects_row, "held", NULL, "of these, held by other workers; of those that are shown" },
    { "objects_to_come", stat_objects_row, "to_come", NULL, "of these, not made yet" },
    { "objects_unshown", stat_objects_row, "unshown", NULL, "of these, those for which the segment has no row" },
    { "objects_oldest_seconds", stat_objects_row, "oldest_seconds", NULL, "age of the oldest of them that is shown" },
    { "gpu_refused_devices", stat_gpu_row, ".refusals", NULL,
      "devices whose memory the worker found that it cannot map" },
    { "gpu_lanes_poisoned", stat_gpu_row, ".poisoned", NULL,
      "words of its streams that survivors of its death have ended" },

    { "ring_fill_bytes", stat_ring_row, "fill_bytes", NULL, "bytes of the ring to peer that it has not given free" },
    { "ring_high_water_bytes", stat_ring_row, "high_water_bytes", NULL, "most that the ring to peer ever held" },
    { "ring_oldest_unread_seconds", stat_ring_row, "oldest_unread_seconds", NULL,
      "age of the oldest frame that peer has not read" },
    { "ring_frames_total", stat_ring_row, "frames", NULL, "frames written to the ring to peer" },
    { "ring_bytes_total", stat_ring_row, "bytes", NULL, "payload bytes of those frames" },
    { "ring_full_total", stat_ring_row, "times_full", NULL, "times that the ring to peer had no room" },
    { "ring_frames_received_total", peer_row, "received", "received", "frames read from the ring of peer" },
    { "lent_leases", stat_loan_row, "leases", "granted", "leases that peer holds of the worker" },
    { "lent_bytes", stat_loan_row, "bytes", "granted", "bytes on loan to peer" },
    { "lent_oldest_seconds", stat_loan_row, "oldest_seconds", "granted", "age of the oldest lease that peer holds" },
    { "lent_granted_total", stat_loan_row, "granted", "granted", "leases granted to peer" },
    { "lent_returned_total", stat_loan_row, "returned", "granted", "leases that peer gave back" },
    { "lent_taken_back_total", stat_loan_row, "taken_back", "granted", "leases taken back because peer died" },
    { "borrowed_leases", stat_loan_row, "borrowed", "borrowed_total", "leases of peer that the worker holds" },
    { "borrowed_total", stat_loan_row, "borrowed_total", "borrowed_total", "leases of peer that the worker ever held" },
    { "objects_held_by_peer", stat_held_row, "held", NULL, "objects of the worker that peer holds" },
    { "remote_bytes_sent_total", stat_remote_row, "bytes_sent", NULL, "bytes of messages to peer on another host" },
    { "remote_bytes_received_total", stat_remote_row, "bytes_received", NULL, "bytes of messages from there" },
    { "remote_round_trip_seconds", stat_remote_row, "round_trip_seconds", "round_trip_seconds",
      "time of a message to peer on another host and back" },
    { "gpu_slabs_borrowed", peer_row, "slabs", "slabs", "slabs of peer's device memory that the worker has open" },

    { "gpu_order_is_fallback", stat_device_row, "is_fallback", ".order",
      "1 if streams are not ordered by the first choice, and that was not asked for" },
    { "gpu_slabs", stat_device_row, ".slabs", NULL, "slabs of the device that the worker has made and not freed" },
    { "gpu_slabs_retiring", stat_device_row, ".retiring", NULL, "of these, kept only because others have them open" },
    { "gpu_slab_bytes", stat_device_row, ".slab_bytes", NULL, "bytes of all these slabs" },
};

/* ---- All of it ---------------------------------------------------------------------------------- */

/* The labels of a device; also its order, for the metric that is about the order. */
static void put_device(const struct metric *metric, const struct stat_row *row)
{
    printf(",uuid=\"%s\"", (const char *)stat_row_field(row, "uuid")->at);
    if (metric->unless_zero != NULL)
        printf(",order=\"%s\"", (const char *)stat_row_field(row, "order")->at);
}

static void put_metric(const struct metric *metric, const struct stat_job *job, const struct stat_worker *worker)
{
    bool is_pair = metric->make == stat_ring_row || metric->make == peer_row || metric->make == stat_loan_row ||
                   metric->make == stat_held_row || metric->make == stat_remote_row;
    struct stat_row row;

    for (int i = 0, made = STAT_SKIP; made != STAT_END; i++) {
        stat_row_begin(&row);
        made = metric->make(job, worker, i, &row);
        if (made != STAT_ROW || stat_row_number(&row, metric->value) == NULL ||
            (metric->unless_zero != NULL && strcmp(stat_row_number(&row, metric->unless_zero), "0") == 0))
            continue;
        put_labels(metric->name, job, worker, is_pair ? i : -1);
        if (metric->make == stat_device_row)
            put_device(metric, &row);
        printf("} %s\n", stat_row_number(&row, metric->value));
    }
}

static void put_samples(const struct stat_jobs *jobs, const struct metric *metric)
{
    size_t length = strlen(metric->name);
    bool is_counter = length > 6 && strcmp(metric->name + length - 6, "_total") == 0;

    put_head(metric->name, is_counter ? "counter" : "gauge", metric->help);
    for (size_t i = 0; i < jobs->count; i++)
        for (struct stat_worker *worker = NULL; (worker = stat_next(&jobs->list[i], worker)) != NULL;)
            put_metric(metric, &jobs->list[i], worker);
}

/* Two of them are levels and not counters. */
static void put_counter(const struct stat_jobs *jobs, const char *counter, const char *help)
{
    bool is_level = strcmp(counter, "gpu_bytes") == 0 || strcmp(counter, "gpu_bytes_used") == 0;
    char name[64];

    snprintf(name, sizeof(name), "%s%s", counter, is_level ? "" : "_total");
    put_samples(jobs, &(struct metric){ name, stat_counter_row, counter, NULL, help });
}

/* ---- Histograms --------------------------------------------------------------------------------- */

struct series {
    const struct stat_job *job;
    const struct stat_worker *worker;
    const struct bxi_hist *hist;
    int peer;
    int leg;
};

static void put_series(const struct series *series, const char *suffix)
{
    char metric[32], name[BXI_NAME_BYTES];

    snprintf(metric, sizeof(metric), "call_seconds%s", suffix);
    stat_hist_name(series->hist, name);
    put_labels(metric, series->job, series->worker, series->peer);
    putchar(',');
    put_label("function", name);
    printf(",leg=\"%s\"", stat_leg_name(series->leg));
}

/* One bound for each octave, which is four buckets. */
static void put_leg(const struct series *series)
{
    uint64_t samples = 0;

    for (uint32_t i = 0; i < BXI_HIST_BUCKETS; i++) {
        samples += stat_word(&series->hist->bucket[series->leg][i]);
        if (i % 4 != 3)
            continue;
        put_series(series, "_bucket");
        if (i + 1 < BXI_HIST_BUCKETS)
            printf(",le=\"%.10g\"} %llu\n", 1e-9 * (double)bxi_hist_least(i + 1), (unsigned long long)samples);
        else
            printf(",le=\"+Inf\"} %llu\n", (unsigned long long)samples);
    }
    put_series(series, "_sum");
    printf("} %.17g\n", 1e-9 * (double)stat_word(&series->hist->sum_ns[series->leg]));
    put_series(series, "_count");
    printf("} %llu\n", (unsigned long long)samples);
}

static void put_hists(const struct stat_job *job)
{
    for (struct stat_worker *worker = NULL; (worker = stat_next_reader(job, worker)) != NULL;) {
        for (uint32_t i = 0; i < worker->hist_count; i++) {
            struct series series = { .job = job, .worker = worker, .hist = &worker->hists[i] };

            for (series.leg = 0; series.leg < BXI_LEGS; series.leg++)
                if (stat_hist_callee(worker, series.hist, &series.peer))
                    put_leg(&series);
        }
    }
}

static void put_all(const struct stat_jobs *jobs)
{
    for (size_t i = 0; i < sizeof(metrics) / sizeof(metrics[0]); i++)
        put_samples(jobs, &metrics[i]);
    put_head("call_seconds", "histogram", "calls that the worker measured, of each function of peer, and their legs");
    for (size_t i = 0; i < jobs->count; i++)
        put_hists(&jobs->list[i]);
#define PUT_COUNTER(name, domain, text) put_counter(jobs, #name, text);
    BXI_COUNTERS(PUT_COUNTER)
#undef PUT_COUNTER
}

int stat_prometheus(const struct stat_options *options)
{
    struct stat_jobs jobs;
    int status = stat_find(&jobs, options);
    bool is_any = jobs.count == 0;

    for (size_t i = 0; i < jobs.count && status == STAT_FINE; i++) {
        status = stat_read(&jobs.list[i], STAT_READ_UNREAD | STAT_READ_GPUS | STAT_READ_OBJECTS | STAT_READ_HISTS);
        stat_job_close(&jobs.list[i]);
        is_any |= stat_next_reader(&jobs.list[i], NULL) != NULL;
    }
    if (status == STAT_FINE)
        put_all(&jobs);
    stat_jobs_free(&jobs);
    return status == STAT_FINE && !is_any ? STAT_NOTHING : status;
}

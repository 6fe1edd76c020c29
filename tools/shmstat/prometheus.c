/* SPDX-License-Identifier: MIT */
/*
 * shmstat show --prometheus: the text exposition format, for a collector that reads files or runs commands.
 *
 * The format wants all samples of a metric together, so the loops go over metrics first. What can shrink
 * is a gauge; counters end in _total.
 */
#include "prometheus.h"

#include "device.h"
#include "hist.h"
#include "state.h"
#include "text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

struct metric {
    const char *name;
    const char *type;
    const char *help;
    /* The sample; false if there is none. peer is -1 for metrics of a worker. */
    bool (*value)(const struct stat_job *job, const struct stat_worker *worker, int peer, double *value);
};

/* Names come from the files' names and through stat_printable: only these two would need escaping. */
static void put_label(const char *key, const char *text)
{
    printf("%s=\"", key);
    for (; *text != '\0'; text++)
        printf(*text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
    putchar('"');
}

/* Up to the bracket that ends them. */
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

static void put_sample(const char *metric, const struct stat_job *job, const struct stat_worker *worker, int peer)
{
    put_labels(metric, job, worker, peer);
    printf("} ");
}

static void put_head(const char *metric, const char *type, const char *help)
{
    printf("# HELP boxcar_%s %s\n# TYPE boxcar_%s %s\n", metric, help, metric, type);
}

/* ---- Values of workers -------------------------------------------------------------------------- */

static bool up(const struct stat_job *job, const struct stat_worker *worker, int peer, double *value)
{
    (void)job;
    (void)peer;
    *value = stat_worker_alive(worker);
    return true;
}

static bool state(const struct stat_job *job, const struct stat_worker *worker, int peer, double *value)
{
    (void)job;
    (void)peer;
    *value = worker->state;
    return worker->state != 0;
}

static bool asleep(const struct stat_job *job, const struct stat_worker *worker, int peer, double *value)
{
    (void)job;
    (void)peer;
    *value = strcmp(stat_activity(worker), "asleep") == 0;
    return worker->control != NULL;
}

static bool stopped(const struct stat_job *job, const struct stat_worker *worker, int peer, double *value)
{
    (void)job;
    (void)peer;
    *value = strcmp(stat_activity(worker), "stopped") == 0;
    return true;
}

static bool spinning(const struct stat_job *job, const struct stat_worker *worker, int peer, double *value)
{
    (void)job;
    (void)peer;
    *value = strcmp(stat_activity(worker), "spinning") == 0;
    return worker->control != NULL;
}

static bool started(const struct stat_job *job, const struct stat_worker *worker, int peer, double *value)
{
    (void)job;
    (void)peer;
    if (worker->control != NULL)
        *value = (double)worker->control->header.started_ns / 1e9;
    return worker->control != NULL;
}

static bool segment_shm(const struct stat_job *job, const struct stat_worker *worker, int peer, double *value)
{
    (void)job;
    (void)peer;
    *value = (double)worker->segment.held;
    return true;
}

static bool arena_shm(const struct stat_job *job, const struct stat_worker *worker, int peer, double *value)
{
    (void)job;
    (void)peer;
    *value = (double)worker->arena.held;
    return true;
}

#define OF_HEADER(function, expression)                                                                    \
    static bool function(const struct stat_job *job, const struct stat_worker *worker, int peer, double *value) \
    {                                                                                                      \
        (void)job;                                                                                         \
        (void)peer;                                                                                        \
        if (worker->control != NULL)                                                                       \
            *value = (double)(expression);                                                                 \
        return worker->control != NULL;                                                                    \
    }

OF_HEADER(pool_busy, stat_pool_busy(worker))
OF_HEADER(arena_size, worker->control->header.arena_bytes)
OF_HEADER(arena_used, stat_word(&worker->control->header.arena_used))
OF_HEADER(arena_committed, stat_word(&worker->control->header.arena_committed))
OF_HEADER(arena_high_water, stat_word(&worker->control->header.arena_high_water))

/* What is shown only of a worker that has a GPU open. */
static bool refused(const struct stat_job *job, const struct stat_worker *worker, int peer, double *value)
{
    const struct stat_gpu *gpu = stat_gpu_of(job, worker->rank);

    (void)peer;
    *value = gpu != NULL ? stat_gpu_refused(gpu) : 0;
    return gpu != NULL;
}

static bool poisoned(const struct stat_job *job, const struct stat_worker *worker, int peer, double *value)
{
    const struct stat_gpu *gpu = stat_gpu_of(job, worker->rank);

    (void)peer;
    *value = 0;
    for (int i = 0; gpu != NULL && i < BXI_GPU_LANES; i++)
        *value += stat_lane_is_poisoned(gpu, i);
    return gpu != NULL;
}

static const struct metric of_workers[] = {
    { "worker_up", "gauge", "1 while the worker lives (its owner lock is held)", up },
    { "worker_state", "gauge", "1 starting, 2 running, 3 leaving, 4 quiet, 5 left", state },
    { "worker_asleep", "gauge", "1 while its doorbell is armed", asleep },
    { "worker_spinning", "gauge", "1 while a thread of it spins for work", spinning },
    { "worker_stopped", "gauge", "1 while its process is stopped by a signal", stopped },
    { "worker_start_time_seconds", "gauge", "when its segment was made, since the epoch", started },
    { "pool_threads_busy", "gauge", "threads of the pool that run a handler", pool_busy },
    { "segment_shm_bytes", "gauge", "pages of /dev/shm that its segment takes", segment_shm },
    { "arena_shm_bytes", "gauge", "pages of /dev/shm that its arena takes", arena_shm },
    { "arena_size_bytes", "gauge", "most that its arena may take", arena_size },
    { "arena_used_bytes", "gauge", "bytes of blocks handed out", arena_used },
    { "arena_committed_bytes", "gauge", "bytes of pages that the arena holds", arena_committed },
    { "arena_high_water_bytes", "gauge", "most that was used since the start or the last trim", arena_high_water },
    { "gpu_refused_devices", "gauge", "devices whose memory the worker found that it cannot map", refused },
    { "gpu_lanes_poisoned", "gauge", "words of its streams that survivors of its death have ended", poisoned },
};

/* ---- Values of pairs ---------------------------------------------------------------------------- */

static bool fill(const struct stat_job *job, const struct stat_worker *worker, int peer, double *value)
{
    uint64_t bytes;

    if (stat_word(&worker->control->pair[peer].open) == 0 || !stat_ring_fill(job, worker, peer, &bytes))
        return false;
    *value = (double)bytes;
    return true;
}

static bool unread(const struct stat_job *job, const struct stat_worker *worker, int peer, double *value)
{
    double seconds = worker->unread_s[peer];

    (void)job;
    *value = seconds > 0 ? seconds : 0;
    return !isnan(seconds);
}

static bool oldest(const struct stat_job *job, const struct stat_worker *worker, int peer, double *value)
{
    uint64_t since_ns = stat_word(&bxi_tables(worker->control)->loans[peer].oldest_ns);

    (void)job;
    *value = since_ns != 0 ? stat_since(since_ns, CLOCK_MONOTONIC) : 0;
    return stat_word(&bxi_tables(worker->control)->loans[peer].granted) != 0;
}

static bool slabs_open(const struct stat_job *job, const struct stat_worker *worker, int peer, double *value)
{
    const struct stat_gpu *gpu = stat_gpu_of(job, worker->rank);

    *value = 0;
    for (size_t i = 0; gpu != NULL && i < gpu->borrow_count; i++)
        *value += gpu->borrows[i].peer == peer;
    return *value > 0;
}

/* What is shown only of a ring that is open, or of a peer with whom something was lent. */
#define OF_PAIR(function, shown, word)                                                                     \
    static bool function(const struct stat_job *job, const struct stat_worker *worker, int peer, double *value) \
    {                                                                                                      \
        const struct bxi_tables *tables = bxi_tables(worker->control);                                     \
                                                                                                           \
        (void)job;                                                                                         \
        *value = (double)stat_word(&tables->word);                                                         \
        return stat_word(&(shown)) != 0;                                                                   \
    }

OF_PAIR(frames, worker->control->pair[peer].open, pair_counters[peer].frames_sent)
OF_PAIR(bytes, worker->control->pair[peer].open, pair_counters[peer].bytes_sent)
OF_PAIR(full, worker->control->pair[peer].open, pair_counters[peer].times_full)
OF_PAIR(ring_high_water, worker->control->pair[peer].open, pair_counters[peer].high_water_bytes)
OF_PAIR(received, tables->pair_counters[peer].frames_received, pair_counters[peer].frames_received)
OF_PAIR(leases, tables->loans[peer].granted, loans[peer].leases)
OF_PAIR(lent, tables->loans[peer].granted, loans[peer].bytes)
OF_PAIR(granted, tables->loans[peer].granted, loans[peer].granted)
OF_PAIR(returned, tables->loans[peer].granted, loans[peer].returned)
OF_PAIR(taken_back, tables->loans[peer].granted, loans[peer].taken_back)
OF_PAIR(borrowed, tables->loans[peer].borrowed_total, loans[peer].borrowed)
OF_PAIR(borrowed_total, tables->loans[peer].borrowed_total, loans[peer].borrowed_total)

static const struct metric of_pairs[] = {
    { "ring_fill_bytes", "gauge", "bytes of the ring to peer that it has not given free", fill },
    { "ring_high_water_bytes", "gauge", "most that the ring to peer ever held", ring_high_water },
    { "ring_oldest_unread_seconds", "gauge", "age of the oldest frame that peer has not read", unread },
    { "ring_frames_total", "counter", "frames written to the ring to peer", frames },
    { "ring_bytes_total", "counter", "payload bytes of those frames", bytes },
    { "ring_full_total", "counter", "times that the ring to peer had no room", full },
    { "ring_frames_received_total", "counter", "frames read from the ring of peer", received },
    { "lent_leases", "gauge", "leases that peer holds of the worker", leases },
    { "lent_bytes", "gauge", "bytes on loan to peer", lent },
    { "lent_oldest_seconds", "gauge", "age of the oldest lease that peer holds", oldest },
    { "lent_granted_total", "counter", "leases granted to peer", granted },
    { "lent_returned_total", "counter", "leases that peer gave back", returned },
    { "lent_taken_back_total", "counter", "leases taken back because peer died", taken_back },
    { "borrowed_leases", "gauge", "leases of peer that the worker holds", borrowed },
    { "borrowed_total", "counter", "leases of peer that the worker ever held", borrowed_total },
    { "gpu_slabs_borrowed", "gauge", "slabs of peer's device memory that the worker has open", slabs_open },
};

/* ---- All of it ---------------------------------------------------------------------------------- */

typedef void (*visit_fn)(const struct stat_job *job, const struct stat_worker *worker, const void *context);

static void each_worker(const struct stat_jobs *jobs, visit_fn visit, const void *context)
{
    for (size_t i = 0; i < jobs->count; i++)
        for (int rank = 0; rank < BXI_WORLD_MAX; rank++)
            if (jobs->list[i].workers[rank] != NULL)
                visit(&jobs->list[i], jobs->list[i].workers[rank], context);
}

static void put_of_worker(const struct stat_job *job, const struct stat_worker *worker, const void *context)
{
    const struct metric *metric = context;
    double value = 0;

    if (!metric->value(job, worker, -1, &value))
        return;
    put_sample(metric->name, job, worker, -1);
    printf("%.17g\n", value);
}

static void put_of_pairs(const struct stat_job *job, const struct stat_worker *worker, const void *context)
{
    const struct metric *metric = context;

    for (int peer = 0; worker->control != NULL && peer < (int)worker->control->header.world_size; peer++) {
        double value = 0;

        if (!metric->value(job, worker, peer, &value))
            continue;
        put_sample(metric->name, job, worker, peer);
        printf("%.17g\n", value);
    }
}

struct counter {
    const char *name;
    enum bxi_counter index;
};

static void put_counter(const struct stat_job *job, const struct stat_worker *worker, const void *context)
{
    const struct counter *counter = context;

    if (worker->control == NULL)
        return;
    put_sample(counter->name, job, worker, -1);
    printf("%llu\n", (unsigned long long)stat_word(&bxi_tables(worker->control)->counters[counter->index]));
}

/* Two of them say how much there is now. */
static void put_counters(const struct stat_jobs *jobs, const char *name, enum bxi_counter index, const char *help)
{
    bool is_gauge = index == BXI_C_gpu_bytes || index == BXI_C_gpu_bytes_used;
    char metric[64];

    snprintf(metric, sizeof(metric), "%s%s", name, is_gauge ? "" : "_total");
    put_head(metric, is_gauge ? "gauge" : "counter", help);
    each_worker(jobs, put_counter, &(struct counter){ metric, index });
}

/* ---- Devices ------------------------------------------------------------------------------------ */

static bool is_fallback(const struct stat_worker *worker, uint32_t device, double *value)
{
    *value = stat_gpu_is_fallback(worker, stat_gpu_order(worker->gpu, device));
    return stat_gpu_order(worker->gpu, device) != 0;
}

/* Of that device's slabs, those that are live or all, their number or their bytes. */
static double sum_slabs(const struct stat_worker *worker, uint32_t device, bool retiring, bool bytes)
{
    double sum = 0;

    for (int i = 0; i < BXI_GPU_SLABS; i++) {
        const struct bxi_gpu_slab_row *row = &worker->gpu->region.slab[i];
        unsigned state = stat_slab_state(row);

        if ((state == BXI_GPU_SLAB_RETIRING || (state == BXI_GPU_SLAB_LIVE && !retiring)) &&
            stat_gpu_device_of(worker->gpu, row) == (int)device)
            sum += bytes ? (double)row->bytes : 1;
    }
    return sum;
}

static bool slabs(const struct stat_worker *worker, uint32_t device, double *value)
{
    *value = sum_slabs(worker, device, false, false);
    return true;
}

static bool slabs_retiring(const struct stat_worker *worker, uint32_t device, double *value)
{
    *value = sum_slabs(worker, device, true, false);
    return true;
}

static bool slab_bytes(const struct stat_worker *worker, uint32_t device, double *value)
{
    *value = sum_slabs(worker, device, false, true);
    return true;
}

struct device_metric {
    const char *name;
    const char *help;
    bool (*value)(const struct stat_worker *worker, uint32_t device, double *value);
};

static const struct device_metric of_devices[] = {
    { "gpu_order_is_fallback", "1 if streams are not ordered by the first choice, and that was not asked for",
      is_fallback },
    { "gpu_slabs", "slabs of the device that the worker has made and not freed", slabs },
    { "gpu_slabs_retiring", "of these, kept only because others have them open", slabs_retiring },
    { "gpu_slab_bytes", "bytes of all these slabs", slab_bytes },
};

static void put_of_devices(const struct stat_job *job, const struct stat_worker *worker, const void *context)
{
    const struct device_metric *metric = context;
    const struct stat_gpu *gpu = stat_gpu_of(job, worker->rank);
    char uuid[STAT_UUID_BYTES];

    for (uint32_t i = 0; gpu != NULL && i < stat_gpu_devices(gpu); i++) {
        double value = 0;

        if (!metric->value(worker, i, &value))
            continue;
        stat_uuid_text(uuid, gpu->region.head.device[i]);
        put_labels(metric->name, job, worker, -1);
        printf(",uuid=\"%s\"", uuid);
        if (metric->value == is_fallback)
            printf(",order=\"%s\"", stat_order_name(stat_gpu_order(gpu, i)));
        printf("} %.17g\n", value);
    }
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

/* A bound for each octave: four buckets in one. */
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

static void put_hists(const struct stat_job *job, const struct stat_worker *worker, const void *context)
{
    (void)context;
    for (uint32_t i = 0; worker->control != NULL && i < worker->hist_count; i++) {
        struct series series = { .job = job, .worker = worker, .hist = &worker->hists[i] };

        for (series.leg = 0; series.leg < BXI_LEGS; series.leg++)
            if (stat_hist_callee(worker, series.hist, &series.peer))
                put_leg(&series);
    }
}

void stat_prometheus(const struct stat_jobs *jobs)
{
    for (size_t i = 0; i < sizeof(of_workers) / sizeof(of_workers[0]); i++) {
        put_head(of_workers[i].name, of_workers[i].type, of_workers[i].help);
        each_worker(jobs, put_of_worker, &of_workers[i]);
    }
    for (size_t i = 0; i < sizeof(of_pairs) / sizeof(of_pairs[0]); i++) {
        put_head(of_pairs[i].name, of_pairs[i].type, of_pairs[i].help);
        each_worker(jobs, put_of_pairs, &of_pairs[i]);
    }
    for (size_t i = 0; i < sizeof(of_devices) / sizeof(of_devices[0]); i++) {
        put_head(of_devices[i].name, "gauge", of_devices[i].help);
        each_worker(jobs, put_of_devices, &of_devices[i]);
    }
    put_head("call_seconds", "histogram", "calls that the worker measured, of each function of peer, and their legs");
    each_worker(jobs, put_hists, NULL);
#define PUT_COUNTER(name, domain, text) put_counters(jobs, #name, BXI_C_##name, text);
    BXI_COUNTERS(PUT_COUNTER)
#undef PUT_COUNTER
}

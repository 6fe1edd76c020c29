/* SPDX-License-Identifier: MIT */
/*
 * shmstat show --prometheus: the text exposition format, for a collector that reads files or runs commands.
 *
 * The format wants all samples of a metric together, so the loops go over metrics first. What can shrink
 * is a gauge; counters end in _total.
 */
#include "stat.h"

#include <math.h>
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
    uint64_t since_ns = stat_word(&worker->control->loans[peer].oldest_ns);

    (void)job;
    *value = since_ns != 0 ? stat_since(since_ns, CLOCK_MONOTONIC) : 0;
    return stat_word(&worker->control->loans[peer].granted) != 0;
}

/* What is shown only of a ring that is open, or of a peer with whom something was lent. */
#define OF_PAIR(function, shown, word)                                                                     \
    static bool function(const struct stat_job *job, const struct stat_worker *worker, int peer, double *value) \
    {                                                                                                      \
        const struct bxi_control *control = worker->control;                                               \
                                                                                                           \
        (void)job;                                                                                         \
        *value = (double)stat_word(&control->word);                                                        \
        return stat_word(&control->shown) != 0;                                                            \
    }

OF_PAIR(frames, pair[peer].open, pair_counters[peer].frames_sent)
OF_PAIR(bytes, pair[peer].open, pair_counters[peer].bytes_sent)
OF_PAIR(full, pair[peer].open, pair_counters[peer].times_full)
OF_PAIR(ring_high_water, pair[peer].open, pair_counters[peer].high_water_bytes)
OF_PAIR(received, pair_counters[peer].frames_received, pair_counters[peer].frames_received)
OF_PAIR(leases, loans[peer].granted, loans[peer].leases)
OF_PAIR(lent, loans[peer].granted, loans[peer].bytes)
OF_PAIR(granted, loans[peer].granted, loans[peer].granted)
OF_PAIR(returned, loans[peer].granted, loans[peer].returned)
OF_PAIR(taken_back, loans[peer].granted, loans[peer].taken_back)
OF_PAIR(borrowed, loans[peer].borrowed_total, loans[peer].borrowed)
OF_PAIR(borrowed_total, loans[peer].borrowed_total, loans[peer].borrowed_total)

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
    printf("%llu\n", (unsigned long long)stat_word(&worker->control->counters[counter->index]));
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
    put_head("call_seconds", "histogram", "calls that the worker measured, of each function of peer, and their legs");
    each_worker(jobs, put_hists, NULL);
#define PUT_COUNTER(name, domain, text)                                 \
    put_head(#name "_total", "counter", text);                          \
    each_worker(jobs, put_counter, &(struct counter){ #name "_total", BXI_C_##name });
    BXI_COUNTERS(PUT_COUNTER)
#undef PUT_COUNTER
}

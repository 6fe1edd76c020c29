/* SPDX-License-Identifier: MIT */
/*
 * shmstat show: everything that the workers of a job tell about themselves.
 *
 * What is shown of a worker is a list of sections, each of which prints itself as text and as JSON; a new
 * one is a row of `sections`. Everything comes from the private copies of jobs.c.
 */
#include "describe.h"
#include "hist.h"
#include "json.h"
#include "list.h"
#include "prometheus.h"
#include "ring.h"
#include "section_gpu.h"
#include "shmstat.h"
#include "text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

struct section {
    void (*text)(const struct stat_job *job, const struct stat_worker *worker);
    void (*json)(const struct stat_job *job, const struct stat_worker *worker);
};

static const struct bxi_header *header_of(const struct stat_worker *worker)
{
    return &worker->control->header;
}

static unsigned long long counter(const struct stat_worker *worker, enum bxi_counter which)
{
    return stat_word(&bxi_tables(worker->control)->counters[which]);
}

/* ---- Counters ----------------------------------------------------------------------------------- */

#define COUNT(name) counter(worker, BXI_C_##name)

static void text_counters(const struct stat_job *job, const struct stat_worker *worker)
{
    struct stat_flow flow;

    (void)job;
    stat_flow_begin(&flow, "waits");
    stat_flow_add(&flow, "io_uring %llu, epoll %llu;", COUNT(waits_uring), COUNT(waits_epoll));
    stat_flow_add(&flow, "wake-ups %llu, rescued %llu;", COUNT(wakeups), COUNT(rescued));
    stat_flow_add(&flow, "spins hit %llu, missed %llu", COUNT(spins_hit), COUNT(spins_missed));
    stat_flow_end(&flow);
    stat_flow_begin(&flow, "doorbells");
    stat_flow_add(&flow, "rung %llu, saved %llu, unneeded %llu", COUNT(doorbells_rung), COUNT(doorbells_saved),
                  COUNT(bells_unneeded));
    stat_flow_end(&flow);
    stat_flow_begin(&flow, "calls");
    stat_flow_add(&flow, "sent %llu, completed %llu, one-way %llu;", COUNT(calls_sent), COUNT(calls_completed),
                  COUNT(oneways_sent));
    stat_flow_add(&flow, "timed out %llu, cancelled %llu, peer dead %llu, late replies %llu", COUNT(calls_timed_out),
                  COUNT(calls_cancelled), COUNT(calls_peer_dead), COUNT(late_replies));
    stat_flow_end(&flow);
    stat_flow_begin(&flow, "handlers");
    stat_flow_add(&flow, "inline %llu, async %llu, blocking %llu, batch %llu;", COUNT(requests_inline),
                  COUNT(requests_async), COUNT(requests_blocking), COUNT(requests_batched));
    stat_flow_add(&flow, "refused %llu, expired %llu, dropped %llu;", COUNT(requests_refused),
                  COUNT(requests_expired), COUNT(requests_dropped));
    stat_flow_add(&flow, "batches %llu of %llu rows;", COUNT(batches_run), COUNT(batch_rows));
    stat_flow_add(&flow, "pool threads %llu, busy %d", COUNT(pool_threads), stat_pool_busy(worker));
    stat_flow_end(&flow);
}

static void json_counters(const struct stat_job *job, const struct stat_worker *worker)
{
    (void)job;
    stat_json_text("armed", stat_who_name(stat_word(&header_of(worker)->armed)));
    stat_json_u64("armings", stat_word(&header_of(worker)->armed) >> 2);
    stat_json_text("waits_by", COUNT(waits_uring) != 0 ? "io_uring" : COUNT(waits_epoll) != 0 ? "epoll" : NULL);
    stat_json_open("counters", '{');
#define JSON_COUNTER(name, domain, text) stat_json_u64(#name, COUNT(name));
    BXI_COUNTERS(JSON_COUNTER)
#undef JSON_COUNTER
    stat_json_close('}');
    stat_json_open("pool", '{');
    stat_json_u64("threads", COUNT(pool_threads));
    stat_json_u64("busy", (uint64_t)stat_pool_busy(worker));
    stat_json_close('}');
}

/* ---- Functions ---------------------------------------------------------------------------------- */

static uint32_t function_count(const struct stat_worker *worker)
{
    /* Relaxed: a private copy. */
    uint32_t count = bxi_load_relaxed((bxi_a32 *)&header_of(worker)->function_count);

    return count < BXI_FUNCTION_MAX ? count : BXI_FUNCTION_MAX;
}

static void text_functions(const struct stat_job *job, const struct stat_worker *worker)
{
    struct stat_flow flow;
    char name[BXI_NAME_BYTES];

    (void)job;
    stat_flow_begin(&flow, "functions");
    if (function_count(worker) == 0)
        stat_flow_add(&flow, "none");
    for (uint32_t i = 0; i < function_count(worker); i++) {
        const struct bxi_function *function = &worker->control->function[i];

        stat_printable(name, sizeof(name), function->name, BXI_NAME_BYTES);
        stat_flow_add(&flow, "%s (%s)%s", name, stat_kind_name(function->kind),
                      i + 1 < function_count(worker) ? "," : "");
    }
    stat_flow_end(&flow);
}

static void json_functions(const struct stat_job *job, const struct stat_worker *worker)
{
    char name[BXI_NAME_BYTES];

    (void)job;
    stat_json_open("functions", '[');
    for (uint32_t i = 0; i < function_count(worker); i++) {
        const struct bxi_function *function = &worker->control->function[i];

        stat_printable(name, sizeof(name), function->name, BXI_NAME_BYTES);
        stat_json_open(NULL, '{');
        stat_json_text("name", name);
        stat_json_text("kind", stat_kind_name(function->kind));
        stat_json_close('}');
    }
    stat_json_close(']');
}

/* ---- Rings -------------------------------------------------------------------------------------- */

static bool is_open(const struct stat_worker *worker, int to)
{
    return stat_word(&worker->control->pair[to].open) != 0;
}

/* "-" where nothing lies unread, "?" where it is not known. */
static const char *unread_text(const struct stat_worker *worker, int to)
{
    double seconds = worker->unread_s[to];

    return isnan(seconds) ? "?" : seconds < 0 ? "-" : stat_time_text(seconds);
}

static void text_rings(const struct stat_job *job, const struct stat_worker *worker)
{
    int rings = 0;

    for (int to = 0; to < (int)header_of(worker)->world_size; to++) {
        const struct bxi_pair_counters *counters = &bxi_tables(worker->control)->pair_counters[to];
        uint64_t fill;
        char label[64];

        if (!is_open(worker, to))
            continue;
        if (rings++ == 0)
            printf("  %-18s %9s %9s %10s %10s %7s %8s\n", "rings", "FILL", "HIGH", "FRAMES", "BYTES", "FULL",
                   "UNREAD");
        snprintf(label, sizeof(label), "to %d %s", to, to == worker->rank ? "(itself)" : stat_peer_name(job, to));
        printf("    %-16s %9s %9s %10llu %10s %7llu %8s\n", stat_cut_text(label, 16),
               stat_ring_fill(job, worker, to, &fill) ? stat_bytes_text(fill) : "?",
               stat_bytes_text(stat_word(&counters->high_water_bytes)),
               (unsigned long long)stat_word(&counters->frames_sent),
               stat_bytes_text(stat_word(&counters->bytes_sent)),
               (unsigned long long)stat_word(&counters->times_full), unread_text(worker, to));
    }
    if (rings == 0)
        printf("  rings     none is open\n");
    else
        printf("    each holds %s\n", stat_bytes_text(BXI_RING_BYTES));
}

static void json_ring(const struct stat_job *job, const struct stat_worker *worker, int to)
{
    const struct bxi_pair_counters *counters = &bxi_tables(worker->control)->pair_counters[to];
    const struct stat_worker *peer = stat_reader(job, (uint32_t)to);
    uint64_t fill, write_pos = stat_word(&counters->write_pos);

    stat_json_open(NULL, '{');
    stat_json_u64("from", (uint64_t)worker->rank);
    stat_json_text("from_name", worker->name);
    stat_json_u64("to", (uint64_t)to);
    stat_json_text("to_name", stat_peer_name(job, to));
    stat_json_u64("capacity_bytes", BXI_RING_BYTES);
    stat_json_u64("frames", stat_word(&counters->frames_sent));
    stat_json_u64("bytes", stat_word(&counters->bytes_sent));
    stat_json_u64("times_full", stat_word(&counters->times_full));
    stat_json_u64("high_water_bytes", stat_word(&counters->high_water_bytes));
    stat_json_u64("write_pos", write_pos);
    stat_json_bool("wants_credit", stat_word(&worker->control->pair[to].want_credit) != 0);
    if (stat_ring_fill(job, worker, to, &fill)) {
        uint64_t unread = write_pos - stat_word(&peer->received[worker->rank].read_pos);

        stat_json_u64("credit", stat_word(&peer->credit[worker->rank].position));
        stat_json_u64("fill_bytes", fill);
        stat_json_u64("unread_bytes", unread <= INT64_MAX ? unread : 0);
        stat_json_u64("frames_received", stat_word(&peer->received[worker->rank].frames_received));
        stat_json_u64("bytes_received", stat_word(&peer->received[worker->rank].bytes_received));
    } else {
        stat_json_null("credit");
        stat_json_null("fill_bytes");
        stat_json_null("unread_bytes");
        stat_json_null("frames_received");
        stat_json_null("bytes_received");
    }
    if (worker->unread_s[to] >= 0)
        stat_json_seconds("oldest_unread_seconds", worker->unread_s[to]);
    else
        stat_json_null("oldest_unread_seconds");
    stat_json_close('}');
}

static void json_rings(const struct stat_job *job, const struct stat_worker *worker)
{
    stat_json_open("rings", '[');
    for (int to = 0; to < (int)header_of(worker)->world_size; to++)
        if (is_open(worker, to))
            json_ring(job, worker, to);
    stat_json_close(']');
}

/* ---- Arena and loans ---------------------------------------------------------------------------- */

static void text_arena(const struct stat_job *job, const struct stat_worker *worker)
{
    const struct bxi_header *header = header_of(worker);
    struct stat_flow flow;

    (void)job;
    stat_flow_begin(&flow, "arena");
    stat_flow_add(&flow, "%s,", stat_bytes_text(header->arena_bytes));
    stat_flow_add(&flow, "used %s,", stat_bytes_text(stat_word(&header->arena_used)));
    stat_flow_add(&flow, "committed %s,", stat_bytes_text(stat_word(&header->arena_committed)));
    stat_flow_add(&flow, "high water %s;", stat_bytes_text(stat_word(&header->arena_high_water)));
    stat_flow_add(&flow, "tensors sent %llu,", COUNT(tensors_sent));
    stat_flow_add(&flow, "copied first %llu", COUNT(tensors_copied));
    stat_flow_end(&flow);
}

static void json_arena(const struct stat_job *job, const struct stat_worker *worker)
{
    const struct bxi_header *header = header_of(worker);

    (void)job;
    stat_json_open("arena", '{');
    stat_json_u64("bytes", header->arena_bytes);
    stat_json_u64("used_bytes", stat_word(&header->arena_used));
    stat_json_u64("committed_bytes", stat_word(&header->arena_committed));
    stat_json_u64("high_water_bytes", stat_word(&header->arena_high_water));
    stat_json_u64("shm_bytes", worker->arena.held);
    stat_json_close('}');
}

/* The row of a peer with whom nothing was ever lent or borrowed is left out. */
static bool has_loans(const struct stat_worker *worker, int peer)
{
    const struct bxi_loans *loans = &bxi_tables(worker->control)->loans[peer];

    return stat_word(&loans->granted) != 0 || stat_word(&loans->leases) != 0 ||
           stat_word(&loans->borrowed_total) != 0 || stat_word(&loans->borrowed) != 0;
}

static void text_loans(const struct stat_job *job, const struct stat_worker *worker)
{
    for (int peer = 0; peer < (int)header_of(worker)->world_size; peer++) {
        const struct bxi_loans *loans = &bxi_tables(worker->control)->loans[peer];
        uint64_t oldest_ns = stat_word(&loans->oldest_ns);
        struct stat_flow flow;

        if (!has_loans(worker, peer))
            continue;
        stat_flow_begin(&flow, "loans");
        stat_flow_add(&flow, "%d %s:", peer, peer == worker->rank ? "(itself)" : stat_peer_name(job, peer));
        stat_flow_add(&flow, "on loan %llu", (unsigned long long)stat_word(&loans->leases));
        stat_flow_add(&flow, "of %s,", stat_bytes_text(stat_word(&loans->bytes)));
        if (oldest_ns != 0)
            stat_flow_add(&flow, "the oldest for %s,", stat_span_text(stat_since(oldest_ns, CLOCK_MONOTONIC)));
        stat_flow_add(&flow, "granted %llu,", (unsigned long long)stat_word(&loans->granted));
        stat_flow_add(&flow, "returned %llu,", (unsigned long long)stat_word(&loans->returned));
        stat_flow_add(&flow, "taken back %llu;", (unsigned long long)stat_word(&loans->taken_back));
        stat_flow_add(&flow, "borrowed %llu", (unsigned long long)stat_word(&loans->borrowed));
        stat_flow_add(&flow, "of %llu ever", (unsigned long long)stat_word(&loans->borrowed_total));
        stat_flow_end(&flow);
    }
}

static void json_loans(const struct stat_job *job, const struct stat_worker *worker)
{
    stat_json_open("loans", '[');
    for (int peer = 0; peer < (int)header_of(worker)->world_size; peer++) {
        const struct bxi_loans *loans = &bxi_tables(worker->control)->loans[peer];
        uint64_t oldest_ns = stat_word(&loans->oldest_ns);

        if (!has_loans(worker, peer))
            continue;
        stat_json_open(NULL, '{');
        stat_json_u64("peer", (uint64_t)peer);
        stat_json_text("peer_name", stat_peer_name(job, peer));
        stat_json_u64("leases", stat_word(&loans->leases));
        stat_json_u64("bytes", stat_word(&loans->bytes));
        if (oldest_ns != 0)
            stat_json_seconds("oldest_seconds", stat_since(oldest_ns, CLOCK_MONOTONIC));
        else
            stat_json_null("oldest_seconds");
        stat_json_u64("granted", stat_word(&loans->granted));
        stat_json_u64("returned", stat_word(&loans->returned));
        stat_json_u64("taken_back", stat_word(&loans->taken_back));
        stat_json_u64("borrowed", stat_word(&loans->borrowed));
        stat_json_u64("borrowed_total", stat_word(&loans->borrowed_total));
        stat_json_close('}');
    }
    stat_json_close(']');
}

/* ---- All of it ---------------------------------------------------------------------------------- */

static const struct section sections[] = {
    { text_counters, json_counters },
    { text_functions, json_functions },
    { text_rings, json_rings },
    { text_arena, json_arena },
    { text_loans, json_loans },
    { stat_gpu_text, stat_gpu_json },
};

#define SECTIONS (sizeof(sections) / sizeof(sections[0]))

static void print_worker(const struct stat_job *job, const struct stat_worker *worker)
{
    printf("\n");
    stat_worker_text(worker);
    for (size_t i = 0; i < SECTIONS && worker->control != NULL; i++)
        sections[i].text(job, worker);
}

static void print_job(const struct stat_job *job)
{
    uint64_t started_ns = stat_job_started_ns(job);
    char missing[1024];

    printf("job %s.%016llx: %s, %d workers", job->name, (unsigned long long)job->instance, stat_job_state(job),
           stat_job_size(job));
    if (started_ns != 0)
        printf(", %s", stat_span_text(stat_since(started_ns, CLOCK_REALTIME)));
    printf("\n");
    if (stat_job_missing_text(job, missing, sizeof(missing)))
        printf("it is starting: %s\n", missing);
    for (int rank = 0; rank < BXI_WORLD_MAX; rank++)
        if (job->workers[rank] != NULL)
            print_worker(job, job->workers[rank]);
}

static void json_job(const struct stat_job *job)
{
    stat_json_open(NULL, '{');
    stat_json_job(job);
    stat_json_open("workers", '[');
    for (int rank = 0; rank < BXI_WORLD_MAX; rank++) {
        const struct stat_worker *worker = job->workers[rank];

        if (worker == NULL)
            continue;
        stat_json_open(NULL, '{');
        stat_json_worker(worker);
        stat_json_bool("readable", worker->control != NULL);
        if (worker->layout_version != 0)
            stat_json_u64("layout_version", worker->layout_version);
        else
            stat_json_null("layout_version");
        for (size_t i = 0; i < SECTIONS && worker->control != NULL; i++)
            sections[i].json(job, worker);
        stat_json_close('}');
    }
    stat_json_close(']');
    stat_json_close('}');
}

static void print_jobs(const struct stat_jobs *jobs)
{
    if (jobs->count == 0)
        printf("no jobs of this user\n");
    for (size_t i = 0; i < jobs->count; i++) {
        if (i > 0)
            printf("\n");
        print_job(&jobs->list[i]);
    }
}

static int read_job(struct stat_job *job, const struct stat_options *options)
{
    int rc = stat_job_read(job, true);

    if (rc == 0) {
        stat_unread_read(job);
        rc = stat_gpus_read(job);
    }
    if (rc == 0 && options->prometheus)
        rc = stat_hists_read(job);
    stat_job_close(job);
    return rc;
}

int stat_show(const struct stat_options *options)
{
    struct stat_jobs jobs;
    int status = stat_find(&jobs, options);

    if (status != STAT_FINE)
        return status;
    for (size_t i = 0; i < jobs.count; i++) {
        if (read_job(&jobs.list[i], options) < 0) {
            stat_no_memory(&jobs.list[i]);
            stat_jobs_free(&jobs);
            return STAT_NOTHING;
        }
    }
    if (options->prometheus) {
        stat_prometheus(&jobs);
    } else if (options->json) {
        stat_json_begin("show");
        stat_json_open("jobs", '[');
        for (size_t i = 0; i < jobs.count; i++)
            json_job(&jobs.list[i]);
        stat_json_close(']');
        stat_json_end();
    } else {
        print_jobs(&jobs);
    }
    status = stat_jobs_readable(&jobs) ? STAT_FINE : STAT_NOTHING;
    stat_jobs_free(&jobs);
    return status;
}

/* SPDX-License-Identifier: MIT */
#include "describe.h"

#include "json.h"
#include "remote.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- Jobs and workers --------------------------------------------------------------------------- */

int stat_job_row(const struct stat_job *job, const struct stat_worker *none, int index, struct stat_row *row)
{
    uint64_t started_ns = stat_job_started_ns(job), segments = 0, arenas = 0, missing[BXI_WORKERS_MAX];
    uint64_t found = 0, alive = 0, size = (uint64_t)stat_job_size(job);

    (void)none;
    if (index > 0)
        return STAT_END;
    for (struct stat_worker *worker = NULL; (worker = stat_next(job, worker)) != NULL; found++) {
        alive += stat_worker_alive(worker);
        segments += worker->segment.held;
        arenas += worker->arena.held;
    }
    stat_put_text(row, "job", job->name);
    stat_put_format(row, "instance", "%016llx", (unsigned long long)job->instance);
    stat_put(row, "alive", STAT_FLAG, stat_job_alive(job));
    stat_put_text(row, "state", stat_job_state(job));
    stat_put(row, "world_size", STAT_COUNT, size);
    stat_put(row, "workers_found", STAT_COUNT, found);
    stat_put(row, "workers_alive", STAT_COUNT, alive);
    stat_put(row, "workers_elsewhere", STAT_COUNT, (uint64_t)stat_remote_count(job));
    stat_put_list(row, "missing_ranks", missing, stat_job_missing(job, missing));
    stat_put_if(row, started_ns != 0, "started_ns", STAT_COUNT, started_ns);
    stat_put_real(row, "age_seconds", STAT_SECONDS, started_ns != 0 ? stat_since(started_ns, CLOCK_REALTIME) : -1);
    stat_put(row, "segment_bytes", STAT_BYTES, segments);
    stat_put(row, "arena_bytes", STAT_BYTES, arenas);
    stat_put(row, "shm_bytes", STAT_BYTES, segments + arenas);
    stat_put_format(row, ".workers", "%u/%u", (unsigned)alive, (unsigned)size);
    return STAT_ROW;
}

int stat_worker_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row)
{
    const char *activity = stat_activity(worker);

    (void)job;
    if (index > 0)
        return STAT_END;
    stat_put(row, "rank", STAT_COUNT, (uint64_t)worker->rank);
    stat_put_text(row, "name", worker->name);
    stat_put_if(row, worker->pid != 0, "pid", STAT_COUNT, worker->pid);
    stat_put_if(row, stat_generation(worker) != 0, "generation", STAT_COUNT, stat_generation(worker));
    stat_put(row, "alive", STAT_FLAG, stat_worker_alive(worker));
    stat_put_text(row, "state", worker->state != 0 ? stat_state_name(worker->state) : NULL);
    stat_put_text(row, "activity", activity);
    stat_put_text(row, "problem", worker->problem);
    stat_put(row, "readable", STAT_FLAG, worker->control != NULL);
    stat_put_if(row, worker->layout_version != 0, "layout_version", STAT_COUNT, worker->layout_version);
    stat_put_if(row, worker->state != 0, ".state", STAT_COUNT, worker->state);
    stat_put_if(row, worker->control != NULL, ".asleep", STAT_FLAG, strcmp(activity, "asleep") == 0);
    stat_put_if(row, worker->control != NULL, ".spinning", STAT_FLAG, strcmp(activity, "spinning") == 0);
    stat_put(row, ".stopped", STAT_FLAG, strcmp(activity, "stopped") == 0);
    stat_put_real(row, ".started", STAT_SECONDS,
                  worker->control != NULL ? (double)worker->control->header.started_ns / 1e9 : NAN);
    stat_put(row, ".segment", STAT_BYTES, worker->segment.held);
    stat_put(row, ".arena", STAT_BYTES, worker->arena.held);
    if (worker->control == NULL)
        return STAT_ROW;
    stat_put_text(row, "armed", stat_who_name(stat_word(&worker->control->header.armed)));
    stat_put(row, "armings", STAT_COUNT, stat_word(&worker->control->header.armed) >> 2);
    stat_put_text(row, "waits_by", stat_counter(worker, BXI_C_waits_uring) != 0   ? "io_uring"
                                   : stat_counter(worker, BXI_C_waits_epoll) != 0 ? "epoll" : NULL);
    return STAT_ROW;
}

int stat_problem_row(const struct stat_job *job, const struct stat_worker *none, int rank, struct stat_row *row)
{
    const struct stat_worker *worker = rank < BXI_WORKERS_MAX ? job->workers[rank] : NULL;

    (void)none;
    if (worker == NULL || worker->control != NULL)
        return rank < BXI_WORKERS_MAX ? STAT_SKIP : STAT_END;
    stat_put(row, "rank", STAT_COUNT, (uint64_t)rank);
    stat_put_text(row, "problem", worker->problem);
    return STAT_ROW;
}

void stat_job_json(const struct stat_job *job, const struct stat_part *parts)
{
    stat_json_open(NULL, '{');
    stat_first_json(stat_job_row, job, NULL);
    stat_json_open("workers", '[');
    for (struct stat_worker *worker = NULL; (worker = stat_next(job, worker)) != NULL;) {
        stat_json_open(NULL, '{');
        stat_first_json(stat_worker_row, job, worker);
        if (worker->control != NULL)
            stat_parts_json(parts, job, worker);
        stat_json_close('}');
    }
    stat_json_close(']');
    stat_json_close('}');
}

void stat_job_text(const struct stat_job *job)
{
    printf("job %s.%016llx: %s", job->name, (unsigned long long)job->instance, stat_job_state(job));
}

/* The first line of a worker. */
static void text_worker(const struct stat_worker *worker)
{
    const char *activity = stat_activity(worker);

    printf("\nworker %d", worker->rank);
    if (worker->name[0] != '\0')
        printf(" %s", worker->name);
    if (worker->pid != 0)
        printf(", pid %u", worker->pid);
    if (stat_generation(worker) > 1)
        printf(", gen %u", stat_generation(worker));
    printf(": %s%s%s", worker->state != 0 ? stat_state_name(worker->state) : "", worker->state != 0 ? ", " : "",
           activity);
    if (worker->control != NULL && strcmp(activity, "asleep") == 0)
        printf(" (%s)", stat_who_name(stat_word(&worker->control->header.armed)));
    printf("\n");
}

void stat_problem_text(const struct stat_worker *worker)
{
    struct stat_flow flow;

    stat_flow_begin(&flow, "problem");
    stat_flow_add(&flow, "worker %d -", worker->rank);
    stat_flow_words(&flow, worker->problem);
    stat_flow_end(&flow);
}

void stat_workers_text(const struct stat_job *job, const struct stat_part *parts)
{
    for (struct stat_worker *worker = NULL; (worker = stat_next(job, worker)) != NULL;) {
        text_worker(worker);
        if (worker->control != NULL)
            stat_parts_text(parts, job, worker);
        else
            stat_problem_text(worker);
    }
}

void stat_problems_text(const struct stat_job *job)
{
    for (struct stat_worker *worker = NULL; (worker = stat_next(job, worker)) != NULL;)
        if (worker->control == NULL)
            stat_problem_text(worker);
}

/* ---- Parts of a worker -------------------------------------------------------------------------- */

static int counter_row(const struct stat_worker *worker, int index, const char *prefix, struct stat_row *row)
{
    if (index > 0 || worker->control == NULL)
        return STAT_END;
#define PUT(name, domain, text)                                                                 \
    if (strncmp(#name, prefix, strlen(prefix)) == 0)                                            \
        stat_put(row, #name, strstr(#name, "bytes") != NULL ? STAT_BYTES : STAT_COUNT,          \
                 stat_counter(worker, BXI_C_##name));
    BXI_COUNTERS(PUT)
#undef PUT
    return STAT_ROW;
}

int stat_counter_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row)
{
    (void)job;
    return counter_row(worker, index, "", row);
}

int stat_gpu_counter_row(const struct stat_job *job, const struct stat_worker *worker, int index,
                         struct stat_row *row)
{
    (void)job;
    return counter_row(worker, index, "gpu_", row);
}

int stat_pool_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row)
{
    (void)job;
    if (index > 0 || worker->control == NULL)
        return STAT_END;
    stat_put(row, "threads", STAT_COUNT, stat_counter(worker, BXI_C_pool_threads));
    stat_put(row, "busy", STAT_COUNT, (uint64_t)stat_pool_busy(worker));
    return STAT_ROW;
}

int stat_arena_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row)
{
    const struct bxi_header *header = worker->control != NULL ? &worker->control->header : NULL;

    (void)job;
    if (index > 0 || header == NULL)
        return STAT_END;
    stat_put(row, "bytes", STAT_BYTES, header->arena_bytes);
    stat_put(row, "used_bytes", STAT_BYTES, stat_word(&header->arena_used));
    stat_put(row, "committed_bytes", STAT_BYTES, stat_word(&header->arena_committed));
    stat_put(row, "high_water_bytes", STAT_BYTES, stat_word(&header->arena_high_water));
    stat_put(row, "shm_bytes", STAT_BYTES, worker->arena.held);
    return STAT_ROW;
}

int stat_function_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row)
{
    const struct bxi_function *function = &worker->control->function[index];
    uint32_t count = stat_word32(&worker->control->header.function_count);
    char name[BXI_NAME_BYTES];

    (void)job;
    if (count > BXI_FUNCTION_MAX)
        count = BXI_FUNCTION_MAX;
    if ((uint32_t)index >= count)
        return STAT_END;
    stat_printable(name, sizeof(name), function->name, BXI_NAME_BYTES);
    stat_put_text(row, "name", name);
    stat_put_text(row, "kind", stat_kind_name(function->kind));
    return STAT_ROW;
}

/* True if there is no such peer. */
static bool is_end(const struct stat_worker *worker, int peer)
{
    return worker->control == NULL || peer >= (int)worker->control->header.world_size;
}

int stat_ring_row(const struct stat_job *job, const struct stat_worker *worker, int to, struct stat_row *row)
{
    const struct stat_worker *peer = stat_reader(job, (uint32_t)to);
    const struct bxi_pair_counters *sent, *received;
    uint64_t fill = 0, unread, credit;
    bool is_known;
    char label[64];

    if (is_end(worker, to))
        return STAT_END;
    if (stat_word(&worker->control->pair[to].open) == 0)
        return STAT_SKIP;
    sent = &bxi_tables(worker->control)->pair_counters[to];
    is_known = stat_ring_fill(job, worker, to, &fill);
    received = is_known ? &peer->received[worker->rank] : sent;
    credit = is_known ? stat_word(&peer->credit[worker->rank].position) : 0;
    unread = stat_word(&sent->write_pos) - stat_word(&received->read_pos);
    stat_put(row, "from", STAT_COUNT, (uint64_t)worker->rank);
    stat_put_text(row, "from_name", worker->name);
    stat_put(row, "to", STAT_COUNT, (uint64_t)to);
    stat_put_text(row, "to_name", stat_peer_name(job, to));
    stat_put(row, "capacity_bytes", STAT_BYTES, BXI_RING_BYTES);
    stat_put(row, "frames", STAT_COUNT, stat_word(&sent->frames_sent));
    stat_put(row, "bytes", STAT_BYTES, stat_word(&sent->bytes_sent));
    stat_put(row, "times_full", STAT_COUNT, stat_word(&sent->times_full));
    stat_put(row, "high_water_bytes", STAT_BYTES, stat_word(&sent->high_water_bytes));
    stat_put(row, "write_pos", STAT_COUNT, stat_word(&sent->write_pos));
    stat_put(row, "wants_credit", STAT_FLAG, stat_word(&worker->control->pair[to].want_credit) != 0);
    stat_put_if(row, is_known, "credit", STAT_COUNT, credit);
    stat_put_if(row, is_known, "fill_bytes", STAT_BYTES, fill);
    stat_put_if(row, is_known, "unread_bytes", STAT_BYTES, unread <= INT64_MAX ? unread : 0);
    stat_put_if(row, is_known, "frames_received", STAT_COUNT, stat_word(&received->frames_received));
    stat_put_if(row, is_known, "bytes_received", STAT_BYTES, stat_word(&received->bytes_received));
    stat_put_real(row, "oldest_unread_seconds", STAT_SECONDS, worker->unread_s[to]);
    snprintf(label, sizeof(label), "to %d %s", to, to == worker->rank ? "(itself)" : stat_peer_name(job, to));
    stat_put_format(row, ".to", "    %s", stat_cut_text(label, 16));
    return STAT_ROW;
}

int stat_loan_row(const struct stat_job *job, const struct stat_worker *worker, int peer, struct stat_row *row)
{
    const struct bxi_loans *loans;
    uint64_t oldest_ns;

    if (is_end(worker, peer))
        return STAT_END;
    loans = &bxi_tables(worker->control)->loans[peer];
    oldest_ns = stat_word(&loans->oldest_ns);
    if (stat_word(&loans->granted) == 0 && stat_word(&loans->leases) == 0 && stat_word(&loans->borrowed_total) == 0 &&
        stat_word(&loans->borrowed) == 0)
        return STAT_SKIP;
    stat_put(row, "peer", STAT_ID, (uint64_t)peer);
    stat_put_text(row, "peer_name", stat_peer_name(job, peer));
    stat_put(row, "leases", STAT_COUNT, stat_word(&loans->leases));
    stat_put(row, "bytes", STAT_BYTES, stat_word(&loans->bytes));
    stat_put_real(row, "oldest_seconds", STAT_SECONDS,
                  oldest_ns != 0 ? stat_since(oldest_ns, CLOCK_MONOTONIC) : -1);
    stat_put(row, "granted", STAT_COUNT, stat_word(&loans->granted));
    stat_put(row, "returned", STAT_COUNT, stat_word(&loans->returned));
    stat_put(row, "taken_back", STAT_COUNT, stat_word(&loans->taken_back));
    stat_put(row, "borrowed", STAT_COUNT, stat_word(&loans->borrowed));
    stat_put(row, "borrowed_total", STAT_COUNT, stat_word(&loans->borrowed_total));
    return STAT_ROW;
}

/* SPDX-License-Identifier: MIT */
/*
 * shmstat top: samples of the jobs, and rows with rates made of two of them.
 *
 * A sample is the copies of jobs.c of all workers, and their calls in flight (flight.c). Each sample opens the segments
 * by their names: a rank whose process has been replaced is shown as its new process, without rates until there are
 * two samples of it.
 */
#include "ring.h"
#include "state.h"
#include "text.h"
#include "top.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEARLY_FULL 90.0

/* ---- Samples ------------------------------------------------------------------------------------- */

double top_span(const struct top_model *model)
{
    return model->before.at_ns != 0 ? 1e-9 * (double)(model->now.at_ns - model->before.at_ns) : 0;
}

int top_sample(struct top_model *model, enum top_view view, uint64_t now_ns)
{
    int rc;

    stat_jobs_free(&model->before.jobs);
    model->before = model->now;
    model->now = (struct top_sample){ .at_ns = now_ns };
    rc = stat_jobs_find(&model->now.jobs, model->select);
    for (size_t i = 0; i < model->now.jobs.count && rc == 0; i++) {
        struct stat_job *job = &model->now.jobs.list[i];

        rc = stat_job_read(job);
        if (rc == 0)
            rc = stat_calls_read(job, STAT_BUSY_CALLERS, now_ns);
        if (rc == 0 && view == TOP_RINGS)
            stat_unread_read(job);
        stat_job_close(job);
    }
    return rc;
}

/* The worker in the sample before; NULL: there is none, or the rank has another process now, which counts from 0. */
static const struct stat_worker *worker_before(const struct top_model *model, const struct stat_job *job,
                                               const struct stat_worker *worker)
{
    for (size_t i = 0; i < model->before.jobs.count; i++) {
        const struct stat_job *then = &model->before.jobs.list[i];
        const struct stat_worker *was = stat_reader(then, (uint32_t)worker->rank);

        if (then->instance == job->instance && strcmp(then->name, job->name) == 0)
            return was != NULL && was->pid == worker->pid && stat_generation(was) == stat_generation(worker) ? was
                                                                                                             : NULL;
    }
    return NULL;
}

/* ---- Figures ------------------------------------------------------------------------------------- */

static double counter(const struct stat_worker *worker, enum bxi_counter which)
{
    return (double)stat_counter(worker, which);
}

/* Adds the counts of a pair to those that rates are taken of. */
static void add_pair(const struct stat_worker *worker, int peer, double *count)
{
    const struct bxi_pair_counters *pair = &bxi_tables(worker->control)->pair_counters[peer];

    count[TOP_FRAMES_OUT_S] += (double)stat_word(&pair->frames_sent);
    count[TOP_BYTES_OUT_S] += (double)stat_word(&pair->bytes_sent);
    count[TOP_FRAMES_IN_S] += (double)stat_word(&pair->frames_received);
    count[TOP_BYTES_IN_S] += (double)stat_word(&pair->bytes_received);
    count[TOP_FULL_S] += (double)stat_word(&pair->times_full);
}

static void add_worker(const struct stat_worker *worker, double *count)
{
    for (int peer = 0; peer < (int)worker->control->header.world_size; peer++)
        add_pair(worker, peer, count);
    count[TOP_CALLS_S] = counter(worker, BXI_C_calls_sent) + counter(worker, BXI_C_oneways_sent);
    count[TOP_REQUESTS_S] = counter(worker, BXI_C_requests_inline) + counter(worker, BXI_C_requests_async) +
                            counter(worker, BXI_C_requests_blocking) + counter(worker, BXI_C_requests_batched);
    count[TOP_TENSOR_BYTES_S] = counter(worker, BXI_C_tensor_bytes_sent);
    count[TOP_FAILED_S] = counter(worker, BXI_C_calls_timed_out) + counter(worker, BXI_C_calls_peer_dead) +
                          counter(worker, BXI_C_requests_refused) + counter(worker, BXI_C_requests_expired);
    count[TOP_WAKEUPS_S] = counter(worker, BXI_C_wakeups);
    count[TOP_BELLS_S] = counter(worker, BXI_C_doorbells_rung);
    count[TOP_SAVED_S] = counter(worker, BXI_C_doorbells_saved) + counter(worker, BXI_C_bells_unneeded);
}

/* The rates of the worker or, unless to is < 0, of its ring. */
static void set_rates(const struct top_model *model, const struct stat_worker *worker, int to, struct top_row *row)
{
    const struct stat_worker *copies[2] = { worker_before(model, row->job, worker), worker };
    double counts[2][TOP_RATES] = { { 0 } };

    if (copies[0] == NULL)
        return;
    for (int i = 0; i < 2; i++) {
        if (to >= 0)
            add_pair(copies[i], to, counts[i]);
        else
            add_worker(copies[i], counts[i]);
    }
    for (int i = 0; i < TOP_RATES; i++)
        row->number[i] = counts[1][i] > counts[0][i] ? (counts[1][i] - counts[0][i]) / top_span(model) : 0;
}

static double percent(uint64_t bytes)
{
    return 100.0 * (double)bytes / BXI_RING_BYTES;
}

static void set_levels(const struct stat_job *job, const struct stat_worker *worker, double *number)
{
    uint64_t most = 0, fill;

    number[TOP_LOAN] = 0;
    number[TOP_SERVED] = stat_word(&bxi_tables(worker->control)->now.since_ns) != 0;
    for (int i = 0; i < BXI_SERVING_MAX; i++)
        number[TOP_SERVED] += (stat_word(&bxi_tables(worker->control)->serving[i].where) & 0xff) != BXI_AT_NONE;
    for (int peer = 0; peer < (int)worker->control->header.world_size; peer++) {
        number[TOP_LOAN] += (double)stat_word(&bxi_tables(worker->control)->loans[peer].bytes);
        if (peer != worker->rank && stat_word(&worker->control->pair[peer].open) != 0 &&
            stat_ring_fill(job, worker, peer, &fill) && fill > most)
            most = fill;
    }
    number[TOP_FILL] = percent(most);
    number[TOP_POOL] = stat_pool_busy(worker);
    number[TOP_ARENA] = (double)stat_word(&worker->control->header.arena_used);
}

/* ---- Stuck workers ------------------------------------------------------------------------------- */

/* When the longest-running handler's request came, and who sent it; thread 0: it runs with the progress role. 0 if no
 * handler runs. */
static uint64_t oldest_handler(const struct stat_worker *worker, uint64_t *who, uint64_t *thread)
{
    uint64_t oldest_ns = stat_word(&bxi_tables(worker->control)->now.since_ns);

    *who = stat_word(&bxi_tables(worker->control)->now.who);
    *thread = 0;
    for (int i = 0; i < BXI_SERVING_MAX; i++) {
        const struct bxi_serving *row = &bxi_tables(worker->control)->serving[i];
        uint64_t where = stat_word(&row->where), since_ns = stat_word(&row->since_ns);

        if (((where & 0xff) != BXI_AT_THREAD && (where & 0xff) != BXI_AT_BODY) ||
            (oldest_ns != 0 && since_ns >= oldest_ns))
            continue;
        oldest_ns = since_ns;
        *who = stat_word(&row->who);
        *thread = where >> 8;
    }
    return oldest_ns;
}

/* Seconds from that time to the sample; 0 if it is not known. */
static double age_of(const struct top_model *model, uint64_t since_ns)
{
    return since_ns != 0 && model->now.at_ns > since_ns ? 1e-9 * (double)(model->now.at_ns - since_ns) : 0;
}

/* Nearest to the reason first: a stopped process; a handler that does not end; a call that does not end. */
static void set_stuck(const struct top_model *model, const struct stat_worker *worker, const struct stat_call *oldest,
                      struct top_row *row)
{
    uint64_t who, thread;
    double age_s = age_of(model, oldest_handler(worker, &who, &thread));
    char place[48] = "where it makes progress";

    if (thread != 0)
        snprintf(place, sizeof(place), "in thread %llu", (unsigned long long)thread);
    if (stat_is_stopped(worker)) {
        row->cause = 3;
        snprintf(row->why, sizeof(row->why), "%s (pid %u) is stopped: it goes on with SIGCONT", worker->name,
                 worker->pid);
    } else if (age_s >= model->stuck_s) {
        row->cause = 2;
        snprintf(row->why, sizeof(row->why), "%s has run '%s' for %s for %s, %s", worker->name,
                 stat_function_name(row->job, worker->rank, (uint32_t)(who >> 16)),
                 stat_rank_name(row->job, (int)(who & 0xffff)), stat_time_text(age_s), place);
    } else if (oldest != NULL && oldest->age_s >= model->stuck_s) {
        row->cause = 1;
        snprintf(row->why, sizeof(row->why), "%s has waited for '%s' of %s for %s (call %s)", worker->name,
                 stat_function_name(row->job, oldest->to, oldest->function), stat_rank_name(row->job, oldest->to),
                 stat_time_text(oldest->age_s), stat_call_name(oldest));
    }
}

/* ---- Rows ---------------------------------------------------------------------------------------- */

static bool is_busy(const struct top_row *row)
{
    return row->number[TOP_CALLS_S] > 0 || row->number[TOP_REQUESTS_S] > 0 || row->number[TOP_FRAMES_IN_S] > 0 ||
           row->number[TOP_FRAMES_OUT_S] > 0 || row->number[TOP_FLIGHT] > 0 || row->number[TOP_SERVED] > 0;
}

/* The worker's oldest call in flight; how many it has, into *count. */
static const struct stat_call *oldest_call(const struct stat_job *job, const struct stat_worker *worker, double *count)
{
    const struct stat_call *oldest = NULL;

    *count = 0;
    for (size_t i = 0; i < job->call_count; i++) {
        const struct stat_call *call = &job->calls[i];

        if (call->from != worker->rank || call->given_up)
            continue;
        ++*count;
        oldest = oldest == NULL ? call : oldest;
    }
    return oldest;
}

/* What the rows of all views begin with. */
static void begin_row(struct top_row *row, const struct stat_job *job, int from, int to)
{
    *row = (struct top_row){ .job = job, .health = TOP_IDLE };
    for (int i = 0; i < TOP_NUMBERS; i++)
        row->number[i] = NAN;
    for (int i = 0; i < TOP_TEXTS; i++)
        row->text[i] = "";
    row->text[TOP_JOB] = job->name;
    row->text[TOP_NAME] = job->workers[from]->name;
    row->text[TOP_FUNCTION] = row->function;
    row->text[TOP_CALL] = row->call;
    row->text[TOP_WHY] = row->why;
    row->number[TOP_RANK] = from;
    if (to >= 0) {
        row->number[TOP_PEER] = to;
        row->text[TOP_PEER_NAME] = stat_peer_name(job, to);
    }
}

static void fill_worker(const struct top_model *model, const struct stat_worker *worker, struct top_row *row)
{
    const struct stat_call *oldest;

    if (worker->pid != 0)
        row->number[TOP_PID] = worker->pid;
    if (stat_generation(worker) != 0)
        row->number[TOP_GENERATION] = stat_generation(worker);
    row->text[TOP_DOING] = stat_activity(worker);
    row->text[TOP_STATE] = stat_state_name(worker->state);
    if (!stat_worker_alive(worker)) {
        row->health = TOP_DEAD;
        return;
    }
    if (worker->control == NULL) {
        row->text[TOP_WHY] = worker->problem;
        return;
    }
    set_rates(model, worker, -1, row);
    set_levels(row->job, worker, row->number);
    oldest = oldest_call(row->job, worker, &row->number[TOP_FLIGHT]);
    if (oldest != NULL)
        row->number[TOP_AGE] = oldest->age_s;
    set_stuck(model, worker, oldest, row);
    row->health = row->cause > 0 ? TOP_STUCK : row->number[TOP_FILL] >= NEARLY_FULL ? TOP_WARN
                  : is_busy(row) ? TOP_BUSY : TOP_IDLE;
    if (row->cause == 1 || row->cause == 2)
        row->text[TOP_DOING] = "stuck";
}

static void fill_ring(const struct top_model *model, const struct stat_worker *worker, int to, struct top_row *row)
{
    const struct stat_worker *peer = stat_reader(row->job, (uint32_t)to);
    uint64_t fill, unread;

    row->number[TOP_HIGH] = percent(stat_word(&bxi_tables(worker->control)->pair_counters[to].high_water_bytes));
    set_rates(model, worker, to, row);
    if (peer != NULL && stat_ring_fill(row->job, worker, to, &fill)) {
        unread = stat_word(&bxi_tables(worker->control)->pair_counters[to].write_pos) -
                 stat_word(&peer->received[worker->rank].read_pos);
        row->number[TOP_FILL] = percent(fill);
        row->number[TOP_UNREAD] = unread <= INT64_MAX ? (double)unread : 0;
        row->number[TOP_AGE] = worker->unread_s[to] > 0 ? worker->unread_s[to] : NAN;
        row->text[TOP_DOING] = stat_activity(peer);
    }
    if (!stat_worker_alive(worker))
        row->health = TOP_DEAD;
    else if (row->number[TOP_AGE] >= model->stuck_s || (row->number[TOP_UNREAD] > 0 && stat_is_stopped(peer)))
        row->health = TOP_STUCK;
    else if (row->number[TOP_FILL] >= NEARLY_FULL)
        row->health = TOP_WARN;
    else if (row->number[TOP_FRAMES_OUT_S] > 0 || row->number[TOP_UNREAD] > 0)
        row->health = TOP_BUSY;
}

static void fill_call(const struct top_model *model, const struct stat_call *call, struct top_row *row)
{
    row->number[TOP_AGE] = call->age_s;
    if (call->has_deadline)
        row->number[TOP_LEFT] = call->left_s > 0 ? call->left_s : 0;
    row->text[TOP_DOING] = stat_where_name(call->where);
    snprintf(row->call, sizeof(row->call), "%s", stat_call_name(call));
    snprintf(row->function, sizeof(row->function), "%s", stat_function_name(row->job, call->to, call->function));
    row->health = call->given_up ? TOP_WARN : call->age_s >= model->stuck_s ? TOP_STUCK : TOP_BUSY;
}

static void add_rings(struct top_model *model, const struct stat_job *job)
{
    for (struct stat_worker *worker = NULL; (worker = stat_next_reader(job, worker)) != NULL;) {
        for (int to = 0; to < (int)worker->control->header.world_size; to++) {
            struct top_row *row = &model->rows[model->count];

            if (to == worker->rank || stat_word(&worker->control->pair[to].open) == 0)
                continue;
            begin_row(row, job, worker->rank, to);
            fill_ring(model, worker, to, row);
            model->count++;
        }
    }
}

static void add_calls(struct top_model *model, const struct stat_job *job)
{
    for (size_t i = 0; i < job->call_count; i++) {
        struct top_row *row = &model->rows[model->count++];

        begin_row(row, job, job->calls[i].from, job->calls[i].to);
        fill_call(model, &job->calls[i], row);
    }
}

/* ---- Workers, and their sums --------------------------------------------------------------------- */

static double age_in(const struct top_row *row)
{
    return isnan(row->number[TOP_AGE]) ? 0 : row->number[TOP_AGE];
}

/* The reason is the worker nearest to it; of several, the one that waits longest. */
static void count_worker(struct top_totals *totals, const struct top_row *row)
{
    const struct top_row *reason = totals->reason;

    totals->workers++;
    totals->alive += row->health != TOP_DEAD;
    totals->stuck += row->cause > 0;
    totals->stopped += strcmp(row->text[TOP_DOING], "stopped") == 0;
    for (int i = 0; i < TOP_NUMBERS; i++)
        if (!isnan(row->number[i]))
            totals->number[i] += row->number[i];
    if (row->cause > 0 && (reason == NULL || row->cause > reason->cause ||
                           (row->cause == reason->cause && age_in(row) > age_in(reason))))
        totals->reason = row;
}

static void add_workers(struct top_model *model, const struct stat_job *job)
{
    for (struct stat_worker *worker = NULL; (worker = stat_next(job, worker)) != NULL;) {
        struct top_row *row = &model->workers[model->totals.workers];

        begin_row(row, job, worker->rank, -1);
        fill_worker(model, worker, row);
        count_worker(&model->totals, row);
    }
}

/* ---- The model ----------------------------------------------------------------------------------- */

static void free_rows(struct top_model *model)
{
    if (model->rows != model->workers)
        free(model->rows);
    free(model->workers);
    free(model->shown);
    model->rows = model->workers = NULL;
    model->shown = NULL;
    model->count = 0;
}

/* As many as there can be. */
static size_t ring_count(const struct stat_job *job)
{
    size_t count = 0;

    for (struct stat_worker *worker = NULL; (worker = stat_next_reader(job, worker)) != NULL;)
        count += worker->control->header.world_size;
    return count;
}

int top_rows(struct top_model *model, enum top_view view)
{
    const struct stat_jobs *jobs = &model->now.jobs;
    size_t most = 1;

    free_rows(model);
    model->totals = (struct top_totals){ 0 };
    model->workers = model->rows = calloc(jobs->count * BXI_WORKERS_MAX + 1, sizeof(*model->rows));
    if (model->workers == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < jobs->count; i++) {
        add_workers(model, &jobs->list[i]);
        most += view == TOP_RINGS ? ring_count(&jobs->list[i]) : jobs->list[i].call_count;
    }
    model->count = view == TOP_WORKERS ? (size_t)model->totals.workers : 0;
    if (view != TOP_WORKERS)
        model->rows = calloc(most, sizeof(*model->rows));
    for (size_t i = 0; i < jobs->count && view != TOP_WORKERS && model->rows != NULL; i++) {
        if (view == TOP_RINGS)
            add_rings(model, &jobs->list[i]);
        else
            add_calls(model, &jobs->list[i]);
    }
    model->shown = malloc((model->count + 1) * sizeof(struct top_row *));
    return model->rows != NULL && model->shown != NULL ? 0 : -ENOMEM;
}

void top_free(struct top_model *model)
{
    stat_jobs_free(&model->before.jobs);
    stat_jobs_free(&model->now.jobs);
    free_rows(model);
}

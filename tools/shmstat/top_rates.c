/* SPDX-License-Identifier: MIT */
/*
 * shmstat top: samples of the jobs, and rows with rates made of two of them.
 *
 * A sample is the copies of jobs.c of all workers, and their calls in flight (flight.c).
 *
 * Each sample opens the segments by their names: a rank whose process has been replaced is shown as its new process,
 * without rates until there are two samples of it.
 *
 * A worker that has been removed from /dev/shm is moved from the sample before into the new one, with its locks
 * marked as free. It is shown as it was last seen until the user quits. A job that has been removed is shown until a
 * job of the same name appears or, while there are other jobs, for GONE_S.
 */
#include "top_rates.h"

#include "ring.h"
#include "state.h"
#include "text.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GONE_S 60.0             /* how long a removed job is shown while there are others */
#define SPAN_MIN_NS 90000000u   /* rates over less say little */
#define NEARLY_FULL 90.0

/* ---- Samples ------------------------------------------------------------------------------------- */

static void free_sample(struct top_sample *sample)
{
    stat_jobs_free(&sample->jobs);
    *sample = (struct top_sample){ 0 };
}

static int read_jobs(struct top_sample *sample, enum top_view view)
{
    int rc = 0;

    for (size_t i = 0; i < sample->jobs.count && rc == 0; i++) {
        struct stat_job *job = &sample->jobs.list[i];

        rc = stat_job_read(job);
        if (rc == 0)
            rc = stat_calls_read(job, view == TOP_CALLS && stat_job_alive(job) ? STAT_ALL_CALLERS : STAT_BUSY_CALLERS,
                                 sample->at_ns);
        if (rc == 0 && view == TOP_RINGS)
            stat_unread_read(job);
        stat_job_close(job);
    }
    return rc;
}

static const struct stat_job *same_job(const struct top_sample *sample, const struct stat_job *job)
{
    for (size_t i = 0; i < sample->jobs.count; i++)
        if (sample->jobs.list[i].instance == job->instance && strcmp(sample->jobs.list[i].name, job->name) == 0)
            return &sample->jobs.list[i];
    return NULL;
}

/* ---- Removed workers and jobs -------------------------------------------------------------------- */

static bool is_gone(const struct stat_worker *worker)
{
    return !worker->segment.exists;
}

static void set_gone(struct stat_worker *worker)
{
    worker->segment.exists = worker->segment.alive = worker->arena.alive = false;
    worker->process = 0;
}

static void keep_workers(struct stat_job *from, struct stat_job *to)
{
    for (int rank = 0; rank < BXI_WORLD_MAX; rank++) {
        struct stat_worker *worker = from->workers[rank];

        /* The segment may be removed first, and the arena a moment later. */
        if (worker == NULL || worker->control == NULL ||
            (to->workers[rank] != NULL && to->workers[rank]->found != STAT_ABSENT))
            continue;
        if (to->workers[rank] != NULL)
            free(to->workers[rank]->control);
        free(to->workers[rank]);
        to->workers[rank] = worker;
        from->workers[rank] = NULL;
        set_gone(worker);
    }
}

/* True if a removed job is not shown any more. */
static bool is_over(const struct top_sample *now, const struct stat_job *job)
{
    for (size_t i = 0; i < now->jobs.count; i++)
        if (strcmp(now->jobs.list[i].name, job->name) == 0)
            return true;
    return now->jobs.count > 0 && job->gone_ns != 0 && 1e-9 * (double)(now->at_ns - job->gone_ns) > GONE_S;
}

static struct stat_job *keep_job(struct top_sample *now, const struct stat_job *job)
{
    struct stat_job *list = realloc(now->jobs.list, (now->jobs.count + 1) * sizeof(*list));

    if (list == NULL)
        return NULL;
    now->jobs.list = list;
    list += now->jobs.count++;
    *list = (struct stat_job){ .instance = job->instance, .twin = job->twin,
                               .gone_ns = job->gone_ns != 0 ? job->gone_ns : now->at_ns };
    memcpy(list->name, job->name, BXI_NAME_BYTES);
    return list;
}

static int keep_gone(struct top_sample *last, struct top_sample *now)
{
    for (size_t i = 0; i < last->jobs.count; i++) {
        struct stat_job *job = &last->jobs.list[i];
        struct stat_job *same = (struct stat_job *)same_job(now, job);

        if (same == NULL && is_over(now, job))
            continue;
        if (same == NULL && (same = keep_job(now, job)) == NULL)
            return -ENOMEM;
        keep_workers(job, same);
    }
    return 0;
}

/* ---- Figures of a worker ------------------------------------------------------------------------- */

static double rate(uint64_t before, uint64_t now, double span_s)
{
    return now >= before ? (double)(now - before) / span_s : 0;
}

/* The rate of one word, from two copies of it. */
#define RATE(member)                                                                                       \
    rate(stat_word(&bxi_tables(then->control)->member), stat_word(&bxi_tables(worker->control)->member), span_s)
#define COUNTED(name) RATE(counters[BXI_C_##name])

static void set_rates(const struct stat_worker *then, const struct stat_worker *worker, double span_s, double *number)
{
    for (int i = TOP_CALLS_S; i <= TOP_FAILED_S; i++)
        number[i] = 0;
    number[TOP_FULL_S] = 0;
    for (int peer = 0; peer < (int)worker->control->header.world_size; peer++) {
        number[TOP_FRAMES_OUT_S] += RATE(pair_counters[peer].frames_sent);
        number[TOP_BYTES_OUT_S] += RATE(pair_counters[peer].bytes_sent);
        number[TOP_FRAMES_IN_S] += RATE(pair_counters[peer].frames_received);
        number[TOP_BYTES_IN_S] += RATE(pair_counters[peer].bytes_received);
        number[TOP_FULL_S] += RATE(pair_counters[peer].times_full);
    }
    number[TOP_CALLS_S] = COUNTED(calls_sent) + COUNTED(oneways_sent);
    number[TOP_REQUESTS_S] = COUNTED(requests_inline) + COUNTED(requests_async) + COUNTED(requests_blocking) +
                             COUNTED(requests_batched);
    number[TOP_TENSOR_BYTES_S] = COUNTED(tensor_bytes_sent);
    number[TOP_FAILED_S] = COUNTED(calls_timed_out) + COUNTED(calls_peer_dead) + COUNTED(requests_refused) +
                           COUNTED(requests_expired);
    number[TOP_WAKEUPS_S] = COUNTED(wakeups);
    number[TOP_BELLS_S] = COUNTED(doorbells_rung);
    number[TOP_SAVED_S] = COUNTED(doorbells_saved) + COUNTED(bells_unneeded);
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

static const char *peer_text(const struct stat_job *job, int rank)
{
    const char *name = stat_peer_name(job, rank);

    return name[0] != '\0' ? name : "a worker that is gone";
}

/* Nearest to the reason first: a stopped process; a handler that does not end; a call that does not end. */
static void set_stuck(const struct top_model *model, const struct stat_worker *worker, const struct stat_call *oldest,
                      struct top_row *row)
{
    uint64_t who, thread;
    double age_s = age_of(model, oldest_handler(worker, &who, &thread));
    char place[48] = "where it makes progress";

    if (strcmp(row->doing, "stopped") == 0) {
        row->cause = 3;
        snprintf(row->why, sizeof(row->why), "%s (pid %u) is stopped: it goes on with SIGCONT", row->name, worker->pid);
    } else if (age_s >= model->stuck_s) {
        row->cause = 2;
        if (thread != 0)
            snprintf(place, sizeof(place), "in thread %llu", (unsigned long long)thread);
        snprintf(row->why, sizeof(row->why), "%s has run '%s' for %s for %s, %s", row->name,
                 stat_function_name(row->job, worker->rank, (uint32_t)(who >> 16)),
                 peer_text(row->job, (int)(who & 0xffff)), stat_span_text(age_s), place);
    } else if (oldest != NULL && oldest->age_s >= model->stuck_s) {
        row->cause = 1;
        snprintf(row->why, sizeof(row->why), "%s has waited for '%s' of %s for %s (call %s)", row->name,
                 stat_function_name(row->job, oldest->to, oldest->function), peer_text(row->job, oldest->to),
                 stat_span_text(oldest->age_s), stat_call_name(oldest));
    }
}

/* ---- Rows ---------------------------------------------------------------------------------------- */

static struct top_row *add_row(struct top_model *model, const struct stat_job *job)
{
    if (model->count == model->capacity) {
        size_t larger = model->capacity == 0 ? 64 : model->capacity * 2;
        struct top_row *rows = realloc(model->rows, larger * sizeof(*rows));

        if (rows == NULL)
            return NULL;
        model->rows = rows;

        struct top_row **shown = realloc(model->shown, larger * sizeof(struct top_row *));

        if (shown == NULL)
            return NULL;
        model->shown = shown;
        model->capacity = larger;
    }

    struct top_row *row = &model->rows[model->count++];

    *row = (struct top_row){ .job = job, .health = TOP_IDLE, .doing = "", .state = "" };
    for (int i = 0; i < TOP_NUMBERS; i++)
        row->number[i] = NAN;
    return row;
}

/* NULL: there is none, or the rank has another process now, whose counts begin at 0. */
static const struct stat_worker *worker_before(const struct top_model *model, const struct stat_job *job,
                                               const struct stat_worker *worker)
{
    const struct stat_job *job_then = same_job(&model->before, job);
    const struct stat_worker *then = job_then != NULL ? stat_reader(job_then, (uint32_t)worker->rank) : NULL;

    return then != NULL && then->pid == worker->pid && stat_generation(then) == stat_generation(worker) ? then : NULL;
}

static const char *doing_of(const struct stat_worker *worker)
{
    return worker->control != NULL && is_gone(worker) ? "gone" : stat_activity(worker);
}

static bool is_busy(const struct top_row *row)
{
    return row->number[TOP_CALLS_S] > 0 || row->number[TOP_REQUESTS_S] > 0 || row->number[TOP_FRAMES_IN_S] > 0 ||
           row->number[TOP_FRAMES_OUT_S] > 0 || row->number[TOP_FLIGHT] > 0 || row->number[TOP_SERVED] > 0;
}

/* The worker's calls in flight: how many, and the oldest. */
static double count_calls(const struct stat_job *job, const struct stat_worker *worker,
                          const struct stat_call **oldest)
{
    double count = 0;

    *oldest = NULL;
    for (size_t i = 0; i < job->call_count; i++) {
        const struct stat_call *call = &job->calls[i];

        if (call->from != worker->rank || call->given_up)
            continue;
        count++;
        if (*oldest == NULL)
            *oldest = call;
    }
    return count;
}

static void fill_worker(const struct top_model *model, const struct stat_worker *worker, struct top_row *row)
{
    const struct stat_worker *then = worker_before(model, row->job, worker);
    const struct stat_call *oldest;

    row->number[TOP_RANK] = worker->rank;
    if (worker->pid != 0)
        row->number[TOP_PID] = worker->pid;
    if (stat_generation(worker) != 0)
        row->number[TOP_GENERATION] = stat_generation(worker);
    row->doing = doing_of(worker);
    row->state = stat_state_name(worker->state);
    memcpy(row->name, worker->name, BXI_NAME_BYTES);
    if (!stat_worker_alive(worker)) {
        row->health = is_gone(worker) ? TOP_GONE : TOP_DEAD;
        return;
    }
    if (worker->control == NULL) {
        snprintf(row->why, sizeof(row->why), "%s", worker->problem);
        return;
    }
    if (then != NULL)
        set_rates(then, worker, top_span(model), row->number);
    set_levels(row->job, worker, row->number);
    row->number[TOP_FLIGHT] = count_calls(row->job, worker, &oldest);
    if (oldest != NULL)
        row->number[TOP_AGE] = oldest->age_s;
    set_stuck(model, worker, oldest, row);
    row->health = row->cause > 0 ? TOP_STUCK : row->number[TOP_FILL] >= NEARLY_FULL ? TOP_WARN
                  : is_busy(row) ? TOP_BUSY : TOP_IDLE;
    if (row->cause == 1 || row->cause == 2)
        row->doing = "stuck";
}

static void fill_ring(const struct top_model *model, const struct stat_worker *worker, int to, struct top_row *row)
{
    const struct stat_worker *then = worker_before(model, row->job, worker);
    const struct stat_worker *peer = stat_reader(row->job, (uint32_t)to);
    double span_s = top_span(model);
    uint64_t fill;

    row->number[TOP_RANK] = worker->rank;
    row->number[TOP_PEER] = to;
    memcpy(row->name, worker->name, BXI_NAME_BYTES);
    row->number[TOP_HIGH] = percent(stat_word(&bxi_tables(worker->control)->pair_counters[to].high_water_bytes));
    if (then != NULL) {
        row->number[TOP_FRAMES_OUT_S] = RATE(pair_counters[to].frames_sent);
        row->number[TOP_BYTES_OUT_S] = RATE(pair_counters[to].bytes_sent);
        row->number[TOP_FULL_S] = RATE(pair_counters[to].times_full);
    }
    if (peer != NULL) {
        uint64_t unread = stat_word(&bxi_tables(worker->control)->pair_counters[to].write_pos) -
                          stat_word(&peer->received[worker->rank].read_pos);

        memcpy(row->peer, peer->name, BXI_NAME_BYTES);
        row->number[TOP_UNREAD] = unread <= INT64_MAX ? (double)unread : 0;
        row->number[TOP_AGE] = worker->unread_s[to] >= 0 ? worker->unread_s[to] : NAN;
        row->doing = doing_of(peer);
        if (stat_ring_fill(row->job, worker, to, &fill))
            row->number[TOP_FILL] = percent(fill);
    }
    if (!stat_worker_alive(worker))
        row->health = is_gone(worker) ? TOP_GONE : TOP_DEAD;
    else if (row->number[TOP_AGE] >= model->stuck_s ||
             (row->number[TOP_UNREAD] > 0 && strcmp(row->doing, "stopped") == 0))
        row->health = TOP_STUCK;
    else if (row->number[TOP_FILL] >= NEARLY_FULL)
        row->health = TOP_WARN;
    else if (row->number[TOP_FRAMES_OUT_S] > 0 || row->number[TOP_UNREAD] > 0)
        row->health = TOP_BUSY;
}

static void fill_call(const struct top_model *model, const struct stat_call *call, struct top_row *row)
{
    row->number[TOP_RANK] = call->from;
    row->number[TOP_PEER] = call->to;
    row->number[TOP_AGE] = call->age_s;
    if (call->has_deadline)
        row->number[TOP_LEFT] = call->left_s > 0 ? call->left_s : 0;
    row->doing = stat_where_name(call->where);
    snprintf(row->call, sizeof(row->call), "%s", stat_call_name(call));
    snprintf(row->name, sizeof(row->name), "%s", stat_peer_name(row->job, call->from));
    snprintf(row->peer, sizeof(row->peer), "%s", stat_peer_name(row->job, call->to));
    snprintf(row->function, sizeof(row->function), "%s", stat_function_name(row->job, call->to, call->function));
    if (!stat_worker_alive(row->job->workers[call->from]))
        row->health = TOP_DEAD;
    else
        row->health = call->given_up ? TOP_WARN : call->age_s >= model->stuck_s ? TOP_STUCK : TOP_BUSY;
}

static int add_rings(struct top_model *model, const struct stat_job *job, const struct stat_worker *worker)
{
    for (int to = 0; to < (int)worker->control->header.world_size; to++) {
        struct top_row *row;

        if (to == worker->rank || stat_word(&worker->control->pair[to].open) == 0)
            continue;
        if ((row = add_row(model, job)) == NULL)
            return -ENOMEM;
        fill_ring(model, worker, to, row);
    }
    return 0;
}

/* ---- Totals -------------------------------------------------------------------------------------- */

static void count_worker(struct top_totals *totals, const struct top_row *row)
{
    totals->workers++;
    totals->alive += row->health != TOP_GONE && row->health != TOP_DEAD;
    totals->dead += row->health == TOP_DEAD;
    totals->gone += row->health == TOP_GONE;
    totals->stuck += row->cause > 0;
    totals->stopped += strcmp(row->doing, "stopped") == 0;
    totals->asleep += strcmp(row->doing, "asleep") == 0;
    totals->spinning += strcmp(row->doing, "spinning") == 0;
    for (int i = 0; i < TOP_NUMBERS; i++)
        if (!isnan(row->number[i]))
            totals->number[i] += row->number[i];
}

/* Keeps the worker nearest to the reason; of several, the one that waits longest. */
static void find_reason(struct top_totals *totals, const struct top_row *row, int *cause, double *age_s)
{
    double row_age_s = isnan(row->number[TOP_AGE]) ? 0 : row->number[TOP_AGE];

    if (row->cause == 0 || row->cause < *cause || (row->cause == *cause && row_age_s <= *age_s))
        return;
    *cause = row->cause;
    *age_s = row_age_s;
    memcpy(totals->why, row->why, sizeof(totals->why));
}

/* The totals need the rows of workers in every view; make_rows drops the rows if the view is another one. */
static int add_workers(struct top_model *model)
{
    double age_s = 0;
    int cause = 0;

    for (size_t i = 0; i < model->now.jobs.count; i++) {
        const struct stat_job *job = &model->now.jobs.list[i];

        for (struct stat_worker *worker = NULL; (worker = stat_next(job, worker)) != NULL;) {
            struct top_row *row = add_row(model, job);

            if (row == NULL)
                return -ENOMEM;
            fill_worker(model, worker, row);
            count_worker(&model->totals, row);
            find_reason(&model->totals, row, &cause, &age_s);
        }
    }
    return 0;
}

static int make_rows(struct top_model *model)
{
    model->count = 0;
    model->totals = (struct top_totals){ .jobs = model->now.jobs.count };
    if (add_workers(model) < 0)
        return -ENOMEM;
    if (model->view == TOP_WORKERS)
        return 0;
    model->count = 0;
    for (size_t i = 0; i < model->now.jobs.count; i++) {
        const struct stat_job *job = &model->now.jobs.list[i];

        for (struct stat_worker *worker = NULL; (worker = stat_next_reader(job, worker)) != NULL;)
            if (model->view == TOP_RINGS && add_rings(model, job, worker) < 0)
                return -ENOMEM;
        for (size_t c = 0; model->view == TOP_CALLS && c < job->call_count; c++) {
            struct top_row *row = add_row(model, job);

            if (row == NULL)
                return -ENOMEM;
            fill_call(model, &job->calls[c], row);
        }
    }
    return 0;
}

/* ---- The model ----------------------------------------------------------------------------------- */

double top_span(const struct top_model *model)
{
    return model->before.at_ns != 0 && model->now.at_ns > model->before.at_ns
               ? 1e-9 * (double)(model->now.at_ns - model->before.at_ns) : 0;
}

int top_sample(struct top_model *model, enum top_view view, uint64_t now_ns)
{
    struct top_sample fresh = { .at_ns = now_ns };
    int rc = stat_jobs_find(&fresh.jobs, model->select);

    if (rc < 0)
        return rc;
    if (read_jobs(&fresh, view) < 0 || keep_gone(&model->now, &fresh) < 0) {
        free_sample(&fresh);
        return -ENOMEM;
    }
    /* A change of view samples at once: then the sample before stays the base of the rates. */
    if (model->now.at_ns != 0 && now_ns - model->now.at_ns >= SPAN_MIN_NS) {
        free_sample(&model->before);
        model->before = model->now;
    } else {
        free_sample(&model->now);
    }
    model->now = fresh;
    model->view = view;
    return make_rows(model);
}

void top_free(struct top_model *model)
{
    free_sample(&model->before);
    free_sample(&model->now);
    free(model->rows);
    free(model->shown);
    model->rows = NULL;
    model->shown = NULL;
    model->count = model->capacity = 0;
}

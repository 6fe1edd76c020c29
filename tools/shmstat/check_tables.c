/* SPDX-License-Identifier: MIT */
/*
 * shmstat check: the tables that only inspectors read: requests that a worker serves, its threads that wait (I11), the
 * histograms of its calls (I13), and its objects (I15).
 *
 * Rows of now, wait, serving and batch change while they are read, but each single word is valid at any time. So each
 * word is checked alone, and not against the other words of its row. A bound that may grow meanwhile, such as the
 * number of functions, is read after the word.
 *
 * A histogram only grows. So if the first copy of one leg has more samples than the second copy of another leg, that
 * was true at one moment. A difference of one is legal: the owner was killed, or copied, between the two legs.
 *
 * Of objects, those rows are checked that did not change their id while they were read (objects.h).
 */
#include "check.h"
#include "hist.h"
#include "objects.h"
#include "state.h"

#include <stdlib.h>
#include <string.h>

typedef unsigned long long ull;

/* As it is now: not less than in the copy. */
static uint32_t function_count(const struct stat_worker *worker)
{
    uint32_t count = 0;

    stat_pread(&worker->segment, &count, sizeof(count), offsetof(struct bxi_header, function_count));
    return count;
}

/* ---- now, serving, wait, batch ------------------------------------------------------------------------ */

static void check_who(const struct stat_worker *worker, const char *table, uint64_t who,
                      struct stat_findings *findings)
{
    uint64_t rank = who & 0xffff, function = who >> 16;

    if (rank >= worker->control->header.world_size)
        stat_violate(findings, AT(11, worker, -1), "%s has a request of rank %llu, which the job does not have", table,
                     (ull)rank);
    else if (function != BXI_FUNCTION_VALUE && function >= function_count(worker))
        stat_violate(findings, AT(11, worker, (int)rank), "%s has a request for function %llu of %u", table,
                     (ull)function, function_count(worker));
}

static void check_served(const struct stat_worker *worker, struct stat_findings *findings)
{
    const struct bxi_now *now = &bxi_tables(worker->control)->now;
    size_t count = findings->count;

    if (stat_word(&now->since_ns) != 0)
        check_who(worker, "now", stat_word(&now->who), findings);
    for (int i = 0; i < BXI_SERVING_MAX && findings->count == count; i++) {
        const struct bxi_serving *row = &bxi_tables(worker->control)->serving[i];
        uint64_t where = stat_word(&row->where) & 0xff;

        if (where > BXI_AT_OBJECT)
            stat_violate(findings, AT(11, worker, -1), "row %d of serving has a request at %llu, which is nowhere", i,
                         (ull)where);
        else if (where != BXI_AT_NONE)
            check_who(worker, "serving", stat_word(&row->who), findings);
    }
}

static bool is_beyond(const bxi_a64 *bits, uint32_t world_size)
{
    for (uint32_t rank = world_size; rank < BXI_WORLD_MAX; rank++)
        if (stat_word(&bits[rank / 64]) >> rank % 64 & 1)
            return true;
    return false;
}

static void check_batches(const struct stat_worker *worker, struct stat_findings *findings)
{
    for (int i = 0; i < BXI_FUNCTION_MAX; i++) {
        const struct bxi_batch_words *words = &bxi_tables(worker->control)->batch[i];

        if (is_beyond(words->members, worker->control->header.world_size) ||
            is_beyond(words->present, worker->control->header.world_size)) {
            stat_violate(findings, AT(11, worker, -1), "batch %d waits for, or has, a rank that the job does not have",
                         i);
            return;
        }
        if (stat_word(&words->running) > BXI_BATCH_BY_ROLE) {
            stat_violate(findings, AT(11, worker, -1), "running of batch %d is %llu, which is no place", i,
                         (ull)stat_word(&words->running));
            return;
        }
    }
}

static void check_waits(const struct stat_worker *worker, struct stat_findings *findings)
{
    for (int i = 0; i < BXI_WAITS_MAX; i++) {
        const struct bxi_wait_row *row = &bxi_tables(worker->control)->wait[i];
        uint64_t thread = stat_word(&row->thread), reason = thread >> 32, to = stat_word(&row->to);

        if (thread == 0)
            continue;
        if (reason < BXI_FOR_CALL || reason > BXI_FOR_JOB || (uint32_t)thread == 0) {
            stat_violate(findings, AT(11, worker, -1), "row %d of wait has thread %u, which waits for %llu: nothing", i,
                         (uint32_t)thread, (ull)reason);
            return;
        }
        if (to != BXI_WAIT_NOBODY && to >= worker->control->header.world_size) {
            stat_violate(findings, AT(11, worker, -1), "row %d of wait waits for rank %llu, which the job lacks", i,
                         (ull)to);
            return;
        }
    }
}

void stat_check_served(const struct stat_worker *worker, struct stat_findings *findings)
{
    check_served(worker, findings);
    check_waits(worker, findings);
    check_batches(worker, findings);
}

/* ---- Histograms --------------------------------------------------------------------------------- */

struct hist_check {
    const struct stat_worker *worker;
    uint32_t index;
    const struct bxi_hist *before, *after;
    struct stat_findings *findings;
};

/* The name in the table of the peer's functions, which is written before anybody can call it. */
static void check_callee(const struct stat_job *job, const struct hist_check *check)
{
    const struct bxi_hist *hist = check->before;
    uint64_t rank = hist->who & 0xffff, function = hist->who >> 16;
    struct bxi_function row;

    if (hist->name[0] == '\0' || memchr(hist->name, 0, BXI_NAME_BYTES) == NULL)
        stat_violate(check->findings, AT(13, check->worker, -1), "histogram %u is of a function without name",
                     check->index);
    else if (rank >= check->worker->control->header.world_size || function >= BXI_FUNCTION_MAX)
        stat_violate(check->findings, AT(13, check->worker, -1), "histogram %u is of function %llu of rank %llu",
                     check->index, (ull)function, (ull)rank);
    else if (stat_reader(job, (uint32_t)rank) != NULL &&
             stat_pread(&job->workers[rank]->segment, &row, sizeof(row),
                        offsetof(struct bxi_control, function) + function * sizeof(row)) == 0 &&
             (function >= function_count(job->workers[rank]) || strncmp(row.name, hist->name, BXI_NAME_BYTES) != 0))
        stat_violate(check->findings, AT(13, check->worker, (int)rank),
                     "histogram %u is of function %llu, which has another name there", check->index, (ull)function);
}

static void check_growth(const struct hist_check *check)
{
    const struct bxi_hist *was = check->before, *is = check->after;
    bool shrinks = false;

    if (memcmp(was->name, is->name, sizeof(was->name)) != 0 || was->who != is->who) {
        stat_violate(check->findings, AT(13, check->worker, -1), "histogram %u changes its function", check->index);
        return;
    }
    for (int leg = 0; leg < BXI_LEGS; leg++) {
        shrinks |= stat_word(&is->max_ns[leg]) < stat_word(&was->max_ns[leg]) ||
                   stat_word(&is->sum_ns[leg]) < stat_word(&was->sum_ns[leg]);
        for (int i = 0; i < BXI_HIST_BUCKETS; i++)
            shrinks |= stat_word(&is->bucket[leg][i]) < stat_word(&was->bucket[leg][i]);
    }
    if (shrinks)
        stat_violate(check->findings, AT(13, check->worker, -1), "a word of histogram %u goes back", check->index);
}

static void check_longest(const struct hist_check *check, int leg)
{
    uint64_t was_ns = stat_word(&check->before->max_ns[leg]), is_ns = stat_word(&check->after->max_ns[leg]);
    uint64_t longer = 0;

    for (uint32_t i = bxi_hist_bucket(is_ns) + 1; i < BXI_HIST_BUCKETS; i++)
        longer += stat_word(&check->before->bucket[leg][i]);
    if (longer > 1 || (was_ns != 0 && stat_word(&check->after->bucket[leg][bxi_hist_bucket(was_ns)]) == 0))
        stat_violate(check->findings, AT(13, check->worker, -1),
                     "histogram %u: the longest of '%s' is %llu ns, and that is not in its buckets", check->index,
                     stat_leg_name(leg), (ull)is_ns);
}

/* The owner counts the legs of a call one after the other. */
static void check_legs(const struct hist_check *check)
{
    uint64_t was = stat_hist_samples(check->before, BXI_LEG_WHOLE);
    uint64_t is = stat_hist_samples(check->after, BXI_LEG_WHOLE);

    for (int leg = 0; leg < BXI_LEG_WHOLE; leg++) {
        if (was > stat_hist_samples(check->after, leg) + 1 || stat_hist_samples(check->before, leg) > is + 1) {
            stat_violate(check->findings, AT(13, check->worker, -1),
                         "histogram %u has %llu samples of '%s', and %llu of whole calls", check->index,
                         (ull)stat_hist_samples(check->after, leg), stat_leg_name(leg), (ull)is);
            return;
        }
    }
}

static void check_hist(const struct stat_job *job, const struct hist_check *check)
{
    size_t count = check->findings->count;

    check_callee(job, check);
    if (check->findings->count == count)
        check_growth(check);
    if (check->findings->count == count)
        check_legs(check);
    for (int leg = 0; leg < BXI_LEGS && check->findings->count == count; leg++)
        check_longest(check, leg);
}

void stat_check_hists(const struct stat_job *job, const struct stat_worker *worker, struct stat_findings *findings)
{
    /* Relaxed: a private copy. The pages are read after it. */
    uint32_t count = bxi_load_relaxed(&worker->control->header.hist_count), now = 0;
    uint64_t bytes = count * sizeof(struct bxi_hist);
    struct bxi_hist *before, *after;

    if (count > BXI_HIST_MAX) {
        stat_violate(findings, AT(13, worker, -1), "hist_count is %u, and there is room for %d", count, BXI_HIST_MAX);
        return;
    }
    if (stat_pread(&worker->segment, &now, sizeof(now), offsetof(struct bxi_header, hist_count)) == 0 && now < count)
        stat_violate(findings, AT(13, worker, -1), "hist_count went from %u back to %u", count, now);
    before = count > 0 ? malloc(2 * bytes) : NULL;
    if (before == NULL)
        return;
    after = before + count;
    if (stat_pread(&worker->segment, before, bytes, bxi_hist_offset(0)) == 0 &&
        stat_pread(&worker->segment, after, bytes, bxi_hist_offset(0)) == 0)
        for (uint32_t i = 0; i < count; i++)
            check_hist(job, &(struct hist_check){ .worker = worker, .index = i, .before = &before[i],
                                                  .after = &after[i], .findings = findings });
    free(before);
}

/* ---- Objects ------------------------------------------------------------------------------------ */

static void check_object(const struct stat_worker *worker, uint32_t index, struct stat_findings *findings)
{
    const struct bxi_object_row *row = &worker->objects[index];
    uint32_t world_size = worker->control->header.world_size;
    uint64_t id = stat_word(&row->id), state = stat_word(&row->state);

    if (bxi_rref_id_owner(id) != worker->rank || bxi_rref_id_maker(id) >= (int)world_size ||
        (id & BXI_RREF_COUNT_MASK) == 0)
        stat_violate(findings, AT(15, worker, -1), "a row of objects has id %s, which is none of its own",
                     stat_object_name(id));
    else if (state < BXI_OBJECT_TO_COME || state > BXI_OBJECT_FAILED)
        stat_violate(findings, AT(15, worker, -1), "object %s is in state %llu, which is none", stat_object_name(id),
                     (ull)state);
    else if (is_beyond(row->holders, world_size))
        stat_violate(findings, AT(15, worker, -1), "object %s is held by a rank that the job does not have",
                     stat_object_name(id));
    else if (stat_word(&row->holders[worker->rank / 64]) >> worker->rank % 64 & 1)
        stat_violate(findings, AT(15, worker, -1), "object %s is held by its owner itself", stat_object_name(id));
    for (uint32_t i = 0; i < index; i++)
        if (stat_word(&worker->objects[i].id) == id) {
            stat_violate(findings, AT(15, worker, -1), "object %s has two rows", stat_object_name(id));
            return;
        }
}

void stat_check_objects(const struct stat_worker *worker, struct stat_findings *findings)
{
    uint64_t rows = stat_word(&bxi_tables(worker->control)->object_rows), now;
    size_t count = findings->count;

    if (rows > BXI_OBJECTS_MAX)
        stat_violate(findings, AT(15, worker, -1), "object_rows is %llu, and there is room for %d", (ull)rows,
                     BXI_OBJECTS_MAX);
    else if (stat_pread(&worker->segment, &now, sizeof(now), offsetof(struct bxi_tables, object_rows)) == 0 &&
             now < rows)
        stat_violate(findings, AT(15, worker, -1), "object_rows went from %llu back to %llu", (ull)rows, (ull)now);
    for (uint32_t i = 0; i < worker->object_count && findings->count == count; i++)
        check_object(worker, i, findings);
}

/* SPDX-License-Identifier: MIT */
/*
 * shmstat check: the tables that only inspectors read: requests that a worker serves, its threads that wait (I11), the
 * histograms of its calls (I13), its objects (I15), and its rows of remote workers (I17).
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

#include <string.h>

typedef unsigned long long ull;

/* As it is now: not less than in the copy. */
static uint32_t function_count(const struct stat_worker *worker)
{
    uint32_t count = 0;

    stat_pread(&worker->segment, &count, sizeof(count), offsetof(struct bxi_header, function_count));
    return count;
}

static uint32_t world_of(const struct stat_check *check)
{
    return check->worker->control->header.world_size;
}

/* ---- now, serving, wait, batch ------------------------------------------------------------------------ */

static bool check_who(const struct stat_check *check, const char *table, uint64_t who)
{
    uint64_t rank = who & 0xffff, function = who >> 16;
    uint32_t count = function_count(check->worker);

    return stat_expect(check, rank < world_of(check), "I11", -1,
                       "%s has a request of rank %llu, which the job does not have", table, (ull)rank) &&
           stat_expect(check, function == BXI_FUNCTION_VALUE || function < count, "I11", (int)rank,
                       "%s has a request for function %llu of %u", table, (ull)function, count);
}

static void check_requests(const struct stat_check *check)
{
    const struct bxi_now *now = &bxi_tables(check->worker->control)->now;
    bool is_right = stat_word(&now->since_ns) == 0 || check_who(check, "now", stat_word(&now->who));

    for (int i = 0; i < BXI_SERVING_MAX && is_right; i++) {
        const struct bxi_serving *row = &bxi_tables(check->worker->control)->serving[i];
        uint64_t where = stat_word(&row->where) & 0xff;

        is_right = stat_expect(check, where <= BXI_AT_OBJECT, "I11", -1,
                               "row %d of serving has a request at %llu, which is nowhere", i, (ull)where) &&
                   (where == BXI_AT_NONE || check_who(check, "serving", stat_word(&row->who)));
    }
}

static bool is_beyond(const bxi_a64 *bits, uint32_t world_size)
{
    for (int rank = (int)world_size; rank < BXI_WORKERS_MAX; rank++)
        if (stat_bit(bits, rank))
            return true;
    return false;
}

static void check_batches(const struct stat_check *check)
{
    bool is_right = true;

    for (int i = 0; i < BXI_FUNCTION_MAX && is_right; i++) {
        const struct bxi_batch_words *words = &bxi_tables(check->worker->control)->batch[i];

        is_right = stat_expect(check, !is_beyond(words->members, world_of(check)) &&
                                          !is_beyond(words->present, world_of(check)), "I11", -1,
                               "batch %d waits for, or has, a rank that the job does not have", i) &&
                   stat_expect(check, stat_word(&words->running) <= BXI_BATCH_BY_ROLE, "I11", -1,
                               "running of batch %d is %llu, which is no place", i, (ull)stat_word(&words->running));
    }
}

static void check_waits(const struct stat_check *check)
{
    bool is_right = true;

    for (int i = 0; i < BXI_WAITS_MAX && is_right; i++) {
        const struct bxi_wait_row *row = &bxi_tables(check->worker->control)->wait[i];
        uint64_t thread = stat_word(&row->thread), reason = thread >> 32, to = stat_word(&row->to);

        is_right = thread == 0 ||
                   (stat_expect(check, reason >= BXI_FOR_CALL && reason <= BXI_FOR_JOB && (uint32_t)thread != 0, "I11",
                                -1, "row %d of wait has thread %u, which waits for %llu: nothing", i,
                                (uint32_t)thread, (ull)reason) &&
                    stat_expect(check, to == BXI_WAIT_NOBODY || to < world_of(check), "I11", -1,
                                "row %d of wait waits for rank %llu, which the job lacks", i, (ull)to));
    }
}

void stat_check_served(const struct stat_check *check)
{
    check_requests(check);
    check_waits(check);
    check_batches(check);
}

/* ---- Histograms --------------------------------------------------------------------------------- */

/* The name in the table of the peer's functions, which is written before anybody can call it. */
static bool check_callee(const struct stat_check *check, uint32_t index, const struct bxi_hist *hist)
{
    uint64_t rank = hist->who & 0xffff, function = hist->who >> 16;
    const struct stat_worker *peer = stat_reader(check->job, (uint32_t)rank);
    struct bxi_function row;

    if (!stat_expect(check, hist->name[0] != '\0' && memchr(hist->name, 0, BXI_NAME_BYTES) != NULL, "I13", -1,
                     "histogram %u is of a function without name", index) ||
        !stat_expect(check, rank < world_of(check) && function < BXI_FUNCTION_MAX, "I13", -1,
                     "histogram %u is of function %llu of rank %llu", index, (ull)function, (ull)rank))
        return false;
    return peer == NULL ||
           stat_pread(&peer->segment, &row, sizeof(row),
                      offsetof(struct bxi_control, function) + function * sizeof(row)) < 0 ||
           stat_expect(check, function < function_count(peer) && strncmp(row.name, hist->name, BXI_NAME_BYTES) == 0,
                       "I13", (int)rank, "histogram %u is of function %llu, which has another name there", index,
                       (ull)function);
}

static bool check_growth(const struct stat_check *check, uint32_t index, const struct bxi_hist *was,
                         const struct bxi_hist *is)
{
    bool shrinks = false;

    for (int leg = 0; leg < BXI_LEGS; leg++) {
        shrinks |= stat_word(&is->max_ns[leg]) < stat_word(&was->max_ns[leg]) ||
                   stat_word(&is->sum_ns[leg]) < stat_word(&was->sum_ns[leg]);
        for (int i = 0; i < BXI_HIST_BUCKETS; i++)
            shrinks |= stat_word(&is->bucket[leg][i]) < stat_word(&was->bucket[leg][i]);
    }
    return stat_expect(check, memcmp(was->name, is->name, sizeof(was->name)) == 0 && was->who == is->who, "I13", -1,
                       "histogram %u changes its function", index) &&
           stat_expect(check, !shrinks, "I13", -1, "a word of histogram %u goes back", index);
}

/* The owner counts the legs of a call one after the other. */
static bool check_leg(const struct stat_check *check, uint32_t index, const struct bxi_hist copies[2], int leg)
{
    uint64_t was = stat_hist_samples(&copies[0], BXI_LEG_WHOLE), is = stat_hist_samples(&copies[1], BXI_LEG_WHOLE);
    uint64_t was_ns = stat_word(&copies[0].max_ns[leg]), is_ns = stat_word(&copies[1].max_ns[leg]), longer = 0;

    for (uint32_t i = bxi_hist_bucket(is_ns) + 1; i < BXI_HIST_BUCKETS; i++)
        longer += stat_word(&copies[0].bucket[leg][i]);
    return stat_expect(check, was <= stat_hist_samples(&copies[1], leg) + 1 &&
                                  stat_hist_samples(&copies[0], leg) <= is + 1, "I13", -1,
                       "histogram %u has %llu samples of '%s', and %llu of whole calls", index,
                       (ull)stat_hist_samples(&copies[1], leg), stat_leg_name(leg), (ull)is) &&
           stat_expect(check, longer <= 1 && (was_ns == 0 ||
                                              stat_word(&copies[1].bucket[leg][bxi_hist_bucket(was_ns)]) != 0),
                       "I13", -1, "histogram %u: the longest of '%s' is %llu ns, and that is not in its buckets",
                       index, stat_leg_name(leg), (ull)is_ns);
}

void stat_check_hists(const struct stat_check *check)
{
    /* The pages are read after it. */
    uint32_t count = stat_word32(&check->worker->control->header.hist_count);
    struct bxi_hist copies[2];

    if (!stat_expect(check, count <= BXI_HIST_MAX, "I13", -1, "hist_count is %u, and there is room for %d", count,
                     BXI_HIST_MAX))
        return;
    for (uint32_t i = 0; i < count; i++) {
        bool is_right;

        if (stat_pread(&check->worker->segment, &copies[0], sizeof(copies[0]), bxi_hist_offset(i)) < 0 ||
            stat_pread(&check->worker->segment, &copies[1], sizeof(copies[1]), bxi_hist_offset(i)) < 0)
            return;
        is_right = check_callee(check, i, &copies[0]) && check_growth(check, i, &copies[0], &copies[1]);
        for (int leg = 0; leg < BXI_LEGS && is_right; leg++)
            is_right = check_leg(check, i, copies, leg);
    }
}

/* ---- Objects ------------------------------------------------------------------------------------ */

static bool check_object(const struct stat_check *check, uint32_t index)
{
    const struct stat_worker *worker = check->worker;
    const struct bxi_object_row *row = &worker->objects[index];
    uint64_t id = stat_word(&row->id), state = stat_word(&row->state);
    bool is_single = true;

    for (uint32_t i = 0; i < index; i++)
        is_single &= stat_word(&worker->objects[i].id) != id;
    return stat_expect(check, bxi_rref_id_owner(id) == worker->rank && bxi_rref_id_maker(id) < (int)world_of(check) &&
                                  (id & BXI_RREF_COUNT_MASK) != 0, "I15", -1,
                       "a row of objects has id %s, which is none of its own", stat_object_name(id)) &&
           stat_expect(check, state >= BXI_OBJECT_TO_COME && state <= BXI_OBJECT_FAILED, "I15", -1,
                       "object %s is in state %llu, which is none", stat_object_name(id), (ull)state) &&
           stat_expect(check, !is_beyond(row->holders, world_of(check)), "I15", -1,
                       "object %s is held by a rank that the job does not have", stat_object_name(id)) &&
           stat_expect(check, !stat_bit(row->holders, worker->rank), "I15", -1,
                       "object %s is held by its owner itself", stat_object_name(id)) &&
           stat_expect(check, is_single, "I15", -1, "object %s has two rows", stat_object_name(id));
}

void stat_check_objects(const struct stat_check *check)
{
    uint64_t rows = stat_word(&bxi_tables(check->worker->control)->object_rows);
    bool is_right = stat_expect(check, rows <= BXI_OBJECTS_MAX, "I15", -1,
                                "object_rows is %llu, and there is room for %d", (ull)rows, BXI_OBJECTS_MAX);

    for (uint32_t i = 0; i < check->worker->object_count && is_right; i++)
        is_right = check_object(check, i);
}

/* ---- Remote workers ----------------------------------------------------------------------------- */

static bool check_remote(const struct stat_check *check, int peer, const struct bxi_remote_row *row)
{
    return stat_expect(check, memchr(row->name, 0, sizeof(row->name)) != NULL &&
                                  memchr(row->host, 0, sizeof(row->host)) != NULL &&
                                  memchr(row->transport, 0, sizeof(row->transport)) != NULL, "I17", peer,
                       "a text of the row of a remote worker does not end") &&
           stat_expect(check, (row->name[0] == '\0') == (row->host[0] == '\0'), "I17", peer,
                       "the row of a remote worker has a name or a host, and not both") &&
           stat_expect(check, row->name[0] == '\0' || check->job->workers[peer] == NULL, "I17", peer,
                       "a worker that is on this host has the row of a remote one") &&
           stat_expect(check, stat_word(&row->is_dead) <= 1, "I17", peer, "is_dead of a remote worker is %llu",
                       (ull)stat_word(&row->is_dead));
}

void stat_check_remotes(const struct stat_check *check)
{
    uint64_t rows = stat_word(&bxi_tables(check->worker->control)->remote_rows);
    bool is_right = stat_expect(check, rows == 0 || rows == world_of(check), "I17", -1,
                                "remote_rows is %llu, of %u workers", (ull)rows, world_of(check));

    for (uint32_t i = 0; i < rows && is_right; i++) {
        struct bxi_remote_row row;

        if (stat_pread(&check->worker->segment, &row, sizeof(row), BXI_REMOTES_OFFSET + i * sizeof(row)) < 0)
            return;
        is_right = check_remote(check, (int)i, &row);
    }
}

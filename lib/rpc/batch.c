/* SPDX-License-Identifier: MIT */
/*
 * Batches: calls of one function, gathered in a list, answered by one run of a body.
 *
 * Rows arrive under the progress role. A batch is ready when it has max_rows, when every living member has a row in
 * the list, when the last member goes, or when the oldest row has waited flush_after_ns. It takes the first row of
 * each worker, in the order of their ranks; the other rows stay for the next batch. The body runs without a lock, in
 * the thread that holds the role or on the pool; while `running` is set no second body of the same function starts.
 * Replies are sent after the body has returned, so a body that fails fails every row.
 *
 * Any thread changes the members, but only a pass checks whether that made a batch ready.
 */
#include "base/options.h"
#include "mark.h"

#include <errno.h>
#include <stdlib.h>

struct bx_batch {
    struct bxi_batcher *batcher;
    struct bxi_waiting *rows[BXI_WORKERS_MAX];
    size_t count;
};

/* Words of a set of workers that a rank of the job may be in. */
static int rank_words(const struct bx_job *job)
{
    return (job->world_size + 63) / 64;
}

static void put_bit(uint64_t *bits, int rank, bool value)
{
    uint64_t bit = UINT64_C(1) << (rank % 64);

    bits[rank / 64] = value ? bits[rank / 64] | bit : bits[rank / 64] & ~bit;
}

/* ---- the list (lock) --------------------------------------------------------------------------- */

/* It has so many rows as it may have at most; of workers with several rows one counts. */
static bool is_full(const struct bx_job *job, const struct bxi_batcher *batcher)
{
    size_t workers = 0;

    if (batcher->max_rows == 0 || batcher->waiting < batcher->max_rows)
        return false;
    for (int i = 0; i < rank_words(job); i++)
        workers += (size_t)__builtin_popcountll(batcher->present[i]);
    return workers >= batcher->max_rows;
}

static bool has_members(const struct bx_job *job, const struct bxi_batcher *batcher)
{
    uint64_t members = 0;

    for (int i = 0; i < rank_words(job); i++)
        members |= batcher->members[i];
    return members != 0;
}

static bool is_ready(const struct bx_job *job, const struct bxi_batcher *batcher)
{
    uint64_t missing = 0;

    if (batcher->running || batcher->head == NULL)
        return false;
    if (batcher->due || is_full(job, batcher))
        return true;
    for (int i = 0; i < rank_words(job); i++)
        missing |= batcher->members[i] & ~batcher->present[i];
    return has_members(job, batcher) ? missing == 0 : batcher->max_rows == 0 && batcher->flush_after_ns == 0;
}

static void set_flush_timer(struct bx_job *job, struct bxi_batcher *batcher)
{
    bxi_timer_clear(job->run, &batcher->timer);
    batcher->due = false;
    if (batcher->head == NULL || batcher->flush_after_ns == 0)
        return;

    const uint64_t came_ns = batcher->head->came_ns;

    if (batcher->flush_after_ns < BX_FOREVER - came_ns &&
        bxi_timer_set(job->run, &batcher->timer, came_ns + batcher->flush_after_ns) < 0)
        batcher->due = true;        /* no memory for the timer: the batch runs early, for it could not run later */
}

static void flush_due(void *context, struct bxi_timer *timer)
{
    struct bx_job *job = context;
    struct bxi_batcher *batcher =
        (struct bxi_batcher *)(void *)((char *)timer - offsetof(struct bxi_batcher, timer));

    batcher->due = true;
    bxi_event(job->run, BXI_EVENT_BATCH);
}

void bxi_batch_show(struct bx_job *job, const struct bxi_batcher *batcher)
{
    struct bxi_batch_words *words;

    if (job->control == NULL)
        return;                     /* members may be added before the start */
    words = &bxi_tables(job->control)->batch[batcher->handler - job->rpc->handlers];
    /* Relaxed, all: for inspectors, to which recent values are enough. */
    for (int i = 0; i < BXI_SHOWN_WORDS; i++) {
        bxi_store_relaxed(&words->members[i], batcher->members[i]);
        bxi_store_relaxed(&words->present[i], batcher->present[i]);
    }
    bxi_store_relaxed(&words->rows, batcher->waiting);
    bxi_store_relaxed(&words->running, !batcher->running   ? BXI_BATCH_RESTS
                                       : batcher->blocking ? BXI_BATCH_ON_THREAD
                                                           : BXI_BATCH_BY_ROLE);
    bxi_store_relaxed(&words->max_rows, batcher->max_rows);
    bxi_store_relaxed(&words->flush_after_ns, batcher->flush_after_ns);
}

static void append(struct bxi_batcher *batcher, struct bxi_waiting *row)
{
    row->state = BXI_WAITS_FOR_BATCH;
    row->next_row = NULL;
    if (batcher->tail != NULL)
        batcher->tail->next_row = row;
    else
        batcher->head = row;
    batcher->tail = row;
    batcher->waiting++;
    put_bit(batcher->present, row->request.peer->rank, true);
}

/* The rows, as a list; the batcher has none then. */
static struct bxi_waiting *take_all(struct bxi_batcher *batcher)
{
    struct bxi_waiting *rows = batcher->head;

    batcher->head = batcher->tail = NULL;
    batcher->waiting = 0;
    memset(batcher->present, 0, sizeof batcher->present);
    return rows;
}

/* The rows of a batch in the order of their workers' ranks. */
static void order_rows(const struct bx_job *job, struct bx_batch *batch, struct bxi_waiting *const *by_rank,
                       const uint64_t *ranks)
{
    for (int i = 0; i < rank_words(job); i++)
        for (uint64_t bits = ranks[i]; bits != 0; bits &= bits - 1)
            batch->rows[batch->count++] = by_rank[i * 64 + __builtin_ctzll(bits)];
}

/* Takes the rows of one batch out of the list; those whose deadline passed go to *expired. */
static void take_rows(struct bx_job *job, struct bxi_batcher *batcher, struct bx_batch *batch,
                      struct bxi_waiting **expired)
{
    struct bxi_waiting *by_rank[BXI_WORKERS_MAX], *row = take_all(batcher);
    uint64_t ranks[BXI_WORKERS_MAX / 64] = { 0 }, now_ns = bxi_now_ns();
    size_t count = 0;

    batch->batcher = batcher;
    batch->count = 0;
    *expired = NULL;
    while (row != NULL) {
        struct bxi_waiting *next = row->next_row;
        int rank = row->request.peer->rank;

        row->state = BXI_WAITS_NO_MORE;
        if (row->request.deadline_ns <= now_ns) {
            row->next_row = *expired;
            *expired = row;
        } else if ((ranks[rank / 64] >> rank % 64 & 1) == 0 &&
                   (batcher->max_rows == 0 || count < batcher->max_rows)) {
            put_bit(ranks, rank, true);
            by_rank[rank] = row;
            count++;
        } else {
            append(batcher, row);
        }
        row = next;
    }
    order_rows(job, batch, by_rank, ranks);
    set_flush_timer(job, batcher);
    bxi_batch_show(job, batcher);
}

/* ---- rows -------------------------------------------------------------------------------------- */

static void finish_expired(struct bx_job *job, struct bxi_waiting *expired)
{
    while (expired != NULL) {
        struct bxi_waiting *row = expired;

        expired = row->next_row;
        bxi_lock(&job->run->lock);
        bxi_counter_add(job, BXI_C_requests_expired, 1);
        bxi_unlock(&job->run->lock);
        bxi_waiting_answer(row, BX_E_TIMEOUT, "the deadline passed before the batch ran", NULL);
    }
}

static void run_body(struct bx_job *job, struct bx_batch *batch)
{
    for (size_t i = 0; i < batch->count; i++) {
        bxi_serving_at(&batch->rows[i]->request, BXI_AT_BODY);
        bxi_request_begins(&batch->rows[i]->request);
    }
    bxi_clear_error();

    uint64_t traced_ns = bxi_trace_batch_begins(job, batch->batcher, batch->count);
    int code = bxi_call_user_with(batch, batch->batcher->handler->context, NULL, NULL,
                                  (bxi_user_fn)batch->batcher->fn);
    char *text = code < 0 ? strdup(bx_error_text()) : NULL;

    bxi_trace_batch_ends(job, batch->batcher, traced_ns, batch->count, code);
    for (size_t i = 0; i < batch->count; i++)
        bxi_trace_row(&batch->rows[i]->request, traced_ns);
    for (size_t i = 0; i < batch->count; i++) {
        struct bxi_waiting *row = batch->rows[i];
        int row_code = row->code < 0 ? row->code : bx_msg_error(row->reply);

        if (code < 0)
            bxi_waiting_answer(row, code, text, row->reply);
        else
            bxi_waiting_answer(row, row_code, row->text, row->reply);
    }
    free(text);
}

/* Runs one batch that is marked as running. True if the next is ready; it is then marked too. */
static bool run_one(struct bx_job *job, struct bxi_batcher *batcher)
{
    struct bx_batch batch;
    struct bxi_waiting *expired;
    bool again;

    bxi_lock(&job->run->lock);
    take_rows(job, batcher, &batch, &expired);
    if (batch.count > 0) {
        bxi_counter_add(job, BXI_C_batches_run, 1);
        bxi_counter_add(job, BXI_C_batch_rows, batch.count);
    }
    bxi_unlock(&job->run->lock);

    finish_expired(job, expired);
    if (batch.count > 0)
        run_body(job, &batch);

    bxi_lock(&job->run->lock);
    batcher->running = false;
    again = batcher->running = is_ready(job, batcher);
    bxi_batch_show(job, batcher);
    bxi_unlock(&job->run->lock);
    return again;
}

static void run_all(struct bx_job *job, struct bxi_batcher *batcher)
{
    while (run_one(job, batcher))
        ;
}

static struct bxi_batcher *batcher_of(struct bxi_task *task)
{
    return (struct bxi_batcher *)(void *)((char *)task - offsetof(struct bxi_batcher, task));
}

static void run_task(struct bx_job *job, struct bxi_task *task)
{
    run_all(job, batcher_of(task));
}

/* There is no thread for the body: the rows of one batch fail with code. */
static void refuse_task(struct bx_job *job, struct bxi_task *task, int code)
{
    struct bxi_batcher *batcher = batcher_of(task);
    char why[BXI_POOL_WHY_BYTES];
    struct bx_batch batch;
    struct bxi_waiting *expired;
    bool again;

    bxi_lock(&job->run->lock);
    take_rows(job, batcher, &batch, &expired);
    batcher->running = false;
    again = is_ready(job, batcher);
    bxi_batch_show(job, batcher);
    bxi_unlock(&job->run->lock);
    finish_expired(job, expired);
    for (size_t i = 0; i < batch.count; i++)
        bxi_waiting_answer(batch.rows[i], code, bxi_pool_why(code, why), NULL);
    if (again)                      /* rows that came meanwhile: perhaps no other comes that would start them */
        bxi_event(job->run, BXI_EVENT_BATCH);
}

/* The batch was found ready and marked as running, under the lock. Role. */
static void start(struct bx_job *job, struct bxi_batcher *batcher)
{
    if (!batcher->blocking) {
        bxi_bells_flush(job);       /* the body may take long */
        bxi_no_wait_enter();
        run_all(job, batcher);
        bxi_no_wait_leave();
        job->run->pass_ns = 0;      /* the clock of this pass is too old now */
        return;
    }

    int rc = bxi_pool_submit(job, &batcher->task);

    if (rc < 0)
        refuse_task(job, &batcher->task, rc);
}

int bxi_batch_add(struct bxi_waiting *row)
{
    struct bx_job *job = row->request.job;
    struct bxi_batcher *batcher = row->request.handler->batcher;
    bool ready = false;
    int rc;

    row->came_ns = batcher->flush_after_ns > 0 ? bxi_now_ns() : 0;

    bxi_lock(&job->run->lock);
    rc = bxi_waiting_begin(row, BXI_WAITS_FOR_BATCH);
    if (rc == 0) {
        append(batcher, row);
        if (batcher->head == row)
            set_flush_timer(job, batcher);
        ready = is_ready(job, batcher);
        batcher->running |= ready;
        bxi_batch_show(job, batcher);
    }
    bxi_unlock(&job->run->lock);
    if (ready)
        start(job, batcher);
    return rc;
}

void bxi_batches_look(struct bx_job *job)
{
    struct bxi_batcher *batcher;
    bool ready;

    bxi_lock(&job->run->lock);
    batcher = job->rpc->batchers;
    bxi_unlock(&job->run->lock);
    for (; batcher != NULL; batcher = batcher->next) {
        bxi_lock(&job->run->lock);
        ready = is_ready(job, batcher);
        batcher->running |= ready;
        bxi_unlock(&job->run->lock);
        if (ready)
            start(job, batcher);
    }
}

void bxi_batch_take(struct bx_job *job, struct bxi_waiting *taken)
{
    struct bxi_batcher *batcher = taken->request.handler->batcher;
    struct bxi_waiting *row = take_all(batcher);

    while (row != NULL) {
        struct bxi_waiting *next = row->next_row;

        if (row != taken)
            append(batcher, row);
        row = next;
    }
    taken->state = BXI_WAITS_NO_MORE;
    set_flush_timer(job, batcher);
    bxi_batch_show(job, batcher);
}

/* ---- what a caller sees of a batch ---------------------------------------------------------------- */

/* Of the words of 64 ranks. mine: the caller's bit, or 0. */
static bool lacks_rows(const struct bxi_batch_words *words, int i, uint64_t mine)
{
    uint64_t members = bxi_load_relaxed(&words->members[i]), present = bxi_load_relaxed(&words->present[i]);

    return (members & ~(present | mine)) != 0;
}

bool bxi_call_needs_others(const struct bxi_waiter *waiter)
{
    const struct bxi_call *call = waiter->object;
    const struct bx_job *job = call->future.job;
    uint64_t bit = job->rank < BXI_SHOWN_MAX ? UINT64_C(1) << job->rank % 64 : 0;
    const struct bxi_batch_words *words;
    bool lacks = false;

    /* A worker has no view of itself. */
    if (bxi_load_relaxed(&job->run->cpus_are_shared) == 0 || call->peer->view.control == NULL ||
        call->function >= BXI_FUNCTION_MAX)
        return false;
    words = &bxi_tables_view(call->peer->view.control)->batch[call->function];
    /* Relaxed, all: a guess. */
    if (bit != 0 && (bxi_load_relaxed(&words->present[job->rank / 64]) & bit) != 0)
        return true;
    for (int i = 0; i < BXI_SHOWN_WORDS; i++)
        lacks |= lacks_rows(words, i, i == job->rank / 64 ? bit : 0);
    /* Its row has not come yet; but while a body runs, it may be in that. */
    return lacks && bxi_load_relaxed(&words->running) == BXI_BATCH_RESTS;
}

/* ---- registration ------------------------------------------------------------------------------ */

static int register_batch(struct bx_job *job, const char *name, bx_batch_fn fn, struct bxi_handler handler,
                          const struct bx_batch_options *options)
{
    struct bx_batch_options given = { 0 };
    struct bxi_batcher *batcher;
    int rc;

    if (fn == NULL)
        return bx_fail(-EINVAL, "there is no body to register as '%s'", bxi_brief(name).text);
    if ((rc = bxi_options_copy(&given, sizeof given, options, "bx_batch_options")) < 0)
        return rc;
    batcher = calloc(1, sizeof *batcher);
    if (batcher == NULL)
        return bx_fail(-ENOMEM, "no memory for a batch");
    batcher->fn = fn;
    batcher->max_rows = given.max_rows;
    batcher->flush_after_ns = given.flush_after_ns;
    batcher->blocking = given.blocking;
    batcher->timer.fire = flush_due;
    batcher->task.run = run_task;
    batcher->task.refuse = refuse_task;

    handler.kind = BXI_F_BATCH;
    handler.batcher = batcher;
    rc = bxi_register(job, name, &handler);
    if (rc < 0)
        free(batcher);
    return rc;
}

int bx_register_batch(struct bx_job *job, const char *name, bx_batch_fn fn, void *context,
                      const struct bx_batch_options *options)
{
    return register_batch(job, name, fn, (struct bxi_handler){ .context = context }, options);
}

int bx_register_method_batch(struct bx_job *job, const struct bx_type *type, const char *name, bx_batch_fn fn,
                             void *context, const struct bx_batch_options *options)
{
    int rc = bxi_check_type(type, name);

    return rc < 0 ? rc : register_batch(job, name, fn, (struct bxi_handler){ .context = context, .type = type },
                                        options);
}

void bxi_batchers_destroy(struct bx_job *job)
{
    while (job->rpc->batchers != NULL) {
        struct bxi_batcher *batcher = job->rpc->batchers;

        job->rpc->batchers = batcher->next;
        while (batcher->head != NULL) {
            struct bxi_waiting *row = batcher->head;

            batcher->head = row->next_row;
            bxi_waiting_destroy(row);
        }
        free(batcher);
    }
}

/* ---- members ----------------------------------------------------------------------------------- */

/* Lock. Rows that waited for members are due when the last one goes. */
static void put_member(struct bx_job *job, struct bxi_batcher *batcher, int rank, bool joins)
{
    const bool had = has_members(job, batcher);

    put_bit(batcher->members, rank, joins);
    if (had && !has_members(job, batcher) && batcher->head != NULL)
        batcher->due = true;
    bxi_batch_show(job, batcher);
}

/* A worker that is gone cannot join: its state is set under the lock before bxi_batches_leave. */
int bxi_batch_member(struct bx_job *job, struct bxi_batcher *batcher, int rank, bool joins)
{
    const struct bxi_peer *peer = job->rpc->peers[rank];
    int rc = 0;

    bxi_lock(&job->run->lock);
    /* Relaxed: written under the lock. Before the start it is not set. */
    if (joins && bxi_load_relaxed(&peer->state) > BXI_PEER_ALIVE)
        rc = BX_E_PEER_DEAD;
    else
        put_member(job, batcher, rank, joins);
    bxi_unlock(&job->run->lock);
    bxi_event(job->run, BXI_EVENT_BATCH);
    return rc;
}

void bxi_batches_leave(struct bx_job *job, int rank)
{
    bxi_lock(&job->run->lock);
    for (struct bxi_batcher *batcher = job->rpc->batchers; batcher != NULL; batcher = batcher->next)
        put_member(job, batcher, rank, false);
    bxi_unlock(&job->run->lock);
    bxi_event(job->run, BXI_EVENT_BATCH);
}

static int set_member(struct bx_job *job, const char *function, int rank, bool joins)
{
    struct bxi_batcher *batcher;
    int rc = bxi_job_check_any(job);

    if (rc == 0 && bxi_load_relaxed(&job->phase) != BXI_CREATED)
        rc = bxi_job_check(job);
    if (rc < 0)
        return rc;
    if (function == NULL)
        return bxi_null("bx_batch_add_member or bx_batch_remove_member", "the function's name");
    if (rank < 0 || rank >= job->world_size)
        return bx_fail(-EINVAL, "rank %d is not one of 0..%d", rank, job->world_size - 1);
    bxi_lock(&job->run->lock);
    batcher = job->rpc->batchers;
    while (batcher != NULL && strcmp(batcher->handler->name, function) != 0)
        batcher = batcher->next;
    bxi_unlock(&job->run->lock);
    if (batcher == NULL)
        return bx_fail(-ENOENT, "worker '%s' has no batch '%s'", job->name, bxi_brief(function).text);
    if (bxi_batch_member(job, batcher, rank, joins) < 0)
        return bx_fail(BX_E_PEER_DEAD, "rank %d is dead and cannot be a member of '%s'", rank, function);
    return 0;
}

int bx_batch_add_member(struct bx_job *job, const char *function, int rank)
{
    return set_member(job, function, rank, true);
}

int bx_batch_remove_member(struct bx_job *job, const char *function, int rank)
{
    return set_member(job, function, rank, false);
}

/* ---- what a body may ask ----------------------------------------------------------------------- */

size_t bx_batch_rows(const struct bx_batch *batch)
{
    return batch != NULL ? batch->count : 0;
}

int bx_batch_caller(const struct bx_batch *batch, size_t row)
{
    if (batch == NULL)
        return bxi_null(__func__, "the batch");
    return row < batch->count ? batch->rows[row]->request.peer->rank
                              : bx_fail(-EINVAL, "the batch has %zu rows, not %zu", batch->count, row + 1);
}

struct bx_reader bx_batch_args(const struct bx_batch *batch, size_t row)
{
    return bx_msg_reader(batch != NULL && row < batch->count ? batch->rows[row]->args : NULL);
}

void *bx_batch_object(const struct bx_batch *batch, size_t row)
{
    return batch != NULL && row < batch->count ? bx_request_object(&batch->rows[row]->request) : NULL;
}

struct bx_msg *bx_batch_reply(struct bx_batch *batch, size_t row)
{
    if (batch == NULL || row >= batch->count)
        return NULL;
    if (batch->rows[row]->reply == NULL && (batch->rows[row]->reply = bx_msg_create(0)) == NULL)
        batch->rows[row]->code = -ENOMEM;       /* sticky, as a message's error: the body may not look at it */
    return batch->rows[row]->reply;
}

int bx_batch_reply_i64(struct bx_batch *batch, size_t row, int64_t value)
{
    struct bx_msg *reply = bx_batch_reply(batch, row);

    if (batch == NULL)
        return bxi_null(__func__, "the batch");
    if (reply == NULL)
        return row >= batch->count ? bx_fail(-EINVAL, "the batch has %zu rows, not %zu", batch->count, row + 1)
                                   : bx_fail(-ENOMEM, "no memory for a reply");
    return bx_msg_put_i64(reply, value);
}

int bx_batch_fail_row(struct bx_batch *batch, size_t row, int code, const char *text)
{
    if (batch == NULL)
        return bxi_null(__func__, "the batch");
    if (row >= batch->count || code >= 0)
        return bx_fail(-EINVAL, "row %zu of %zu cannot fail with %d", row, batch->count, code);
    free(batch->rows[row]->text);
    batch->rows[row]->code = code;
    batch->rows[row]->text = text != NULL ? strdup(text) : NULL;
    return 0;
}

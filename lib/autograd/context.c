/* SPDX-License-Identifier: MIT */
/*
 * Contexts: making and finding them, joining, and their end. dist.h has the words and the locks.
 *
 * A worker forgets a context when its maker says that it has ended, which is the answer to the join, or is gone. If the
 * join could not be sent, or the maker had no memory or no ring to take it, the maker does not know that the context
 * has failed here. Then it stays in the table, failed, until the end of the dist: read from the next message it would
 * be a new one, without the sends and gradients of the former, and a pass would end well.
 */
#include "dist.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- the table (dist->lock) ------------------------------------------------------------------------------- */

static struct bx_context **chain_of(struct bx_dist *dist, uint64_t id)
{
    return &dist->chains[(id ^ id >> 48) % BXI_CHAINS];
}

static struct bx_context *find_locked(struct bx_dist *dist, uint64_t id)
{
    struct bx_context *context = *chain_of(dist, id);

    while (context != NULL && context->id != id)
        context = context->next;
    return bx_context_acquire(context);
}

struct bx_context *bxi_context_find(struct bx_dist *dist, uint64_t id)
{
    struct bx_context *context;

    pthread_mutex_lock(&dist->lock);
    context = find_locked(dist, id);
    pthread_mutex_unlock(&dist->lock);
    return context;
}

void bxi_context_take_out(struct bx_context *context)
{
    struct bx_context **link;
    bool found;

    pthread_mutex_lock(&context->dist->lock);
    link = chain_of(context->dist, context->id);
    while (*link != NULL && *link != context)
        link = &(*link)->next;
    found = *link != NULL;
    if (found)
        *link = context->next;
    pthread_mutex_unlock(&context->dist->lock);
    if (found)
        bx_context_release(context);
}

/* Two references: the table's and the caller's. */
static struct bx_context *create_locked(struct bx_dist *dist, uint64_t id)
{
    struct bx_context *context = calloc(1, sizeof *context);

    if (context == NULL || bx_grads_create(dist->job, &context->grads) < 0) {
        free(context);
        return NULL;
    }
    atomic_init(&context->refs, 2);
    context->dist = dist;
    context->id = id;
    pthread_mutex_init(&context->lock, NULL);
    pthread_mutex_init(&context->running, NULL);
    context->next = *chain_of(dist, id);
    *chain_of(dist, id) = context;
    return context;
}

/* ---- references ---------------------------------------------------------------------------------------------- */

struct bx_context *bx_context_acquire(struct bx_context *context)
{
    if (context != NULL)
        bxi_add(&context->refs, 1);
    return context;
}

void bx_context_release(struct bx_context *context)
{
    if (context == NULL || bxi_add_seq_cst(&context->refs, (uint32_t)-1) != 1)
        return;
    bxi_dist_pass_drop(context);
    bx_grads_destroy(context->grads);
    pthread_mutex_destroy(&context->lock);
    pthread_mutex_destroy(&context->running);
    free(context->text);
    free(context->sends);
    free(context->joins);
    free(context->calls);
    free(context);
}

int bxi_room(void *array, size_t count, size_t *capacity, size_t bytes)
{
    size_t more = *capacity == 0 ? 8 : *capacity * 2;
    void *moved;

    if (count < *capacity)
        return 0;
    moved = realloc(*(void **)array, more * bytes);
    if (moved == NULL)
        return bx_fail(-ENOMEM, "no memory for a context of distributed autograd");
    *(void **)array = moved;
    *capacity = more;
    return 0;
}

uint64_t bx_context_id(const struct bx_context *context)
{
    return context != NULL ? context->id : 0;
}

int bxi_context_rank(const struct bx_context *context)
{
    return (int)(context->id >> 48);
}

static bool is_maker(const struct bx_context *context)
{
    return bxi_context_rank(context) == bx_job_rank(context->dist->job);
}

int bxi_context_check(struct bx_context *context)
{
    int code;

    pthread_mutex_lock(&context->lock);
    code = context->ended ? context->code : 0;
    if (code < 0)
        bx_fail(code, "%s", context->text != NULL ? context->text : bx_strerror(code));
    pthread_mutex_unlock(&context->lock);
    return code;
}

int bx_context_error(struct bx_context *context)
{
    return context != NULL ? bxi_context_check(context) : bx_fail(-EINVAL, "bx_context_error needs a context");
}

struct bx_grads *bx_context_grads(struct bx_context *context)
{
    return context != NULL ? context->grads : NULL;
}

/* ---- the end ---------------------------------------------------------------------------------------------------- */

/* What the end of a context leaves to be done without its lock. */
struct rest {
    struct bx_var **sends;
    struct bx_future **joins, **calls, *done;
    size_t send_count, join_count, call_count;
};

/* context->lock. */
static void take_all(struct bx_context *context, struct rest *rest)
{
    *rest = (struct rest){ context->sends, context->joins, context->calls, bxi_dist_part_done(context, context->code),
                           context->send_count, context->join_count, context->call_count };
    context->sends = NULL;
    context->joins = context->calls = NULL;
    context->send_count = context->send_capacity = 0;
    context->join_count = context->join_capacity = context->call_count = context->call_capacity = 0;
}

static void finish_futures(struct rest *rest, int code, const char *text)
{
    for (size_t i = 0; i < rest->join_count; i++) {
        if (code < 0)
            bx_future_fail(rest->joins[i], code, text);
        else
            bx_future_set(rest->joins[i], NULL);
        bx_future_release(rest->joins[i]);
    }
    if (rest->done != NULL)
        bx_future_fail(rest->done, code < 0 ? code : BX_E_CANCELLED, text);
    bx_future_release(rest->done);
    for (size_t i = 0; i < rest->call_count; i++) {
        bx_future_cancel(rest->calls[i]);
        bx_future_release(rest->calls[i]);
    }
}

void bxi_context_finish(struct bx_context *context, int code, const char *text)
{
    struct rest rest;
    bool first;

    bx_context_acquire(context);
    pthread_mutex_lock(&context->lock);
    first = !context->ended;
    if (first) {
        context->ended = true;
        context->code = code < 0 ? code : BX_E_CANCELLED;
        context->text = strdup(text != NULL && text[0] != '\0' ? text
                               : code < 0 ? bx_strerror(code) : "the context has ended");
        take_all(context, &rest);
    }
    pthread_mutex_unlock(&context->lock);
    if (first) {
        finish_futures(&rest, code, text);
        bxi_dist_pass_drop(context);
        for (size_t i = 0; i < rest.send_count; i++)
            bx_var_release(rest.sends[i]);
        free(rest.sends);
        free(rest.joins);
        free(rest.calls);
        if (is_maker(context))
            bxi_context_take_out(context);
    }
    bx_context_release(context);
}

void bx_context_end(struct bx_context *context)
{
    if (context == NULL)
        return;
    if (is_maker(context))
        bxi_context_finish(context, 0, NULL);
    bx_context_release(context);
}

/* ---- making, joining ------------------------------------------------------------------------------------------- */

int bx_context_create(struct bx_dist *dist, struct bx_context **out)
{
    struct bx_context *context;
    int rank;

    if (dist == NULL || out == NULL)
        return bx_fail(-EINVAL, "bx_context_create needs a bx_dist, and a place for the context");
    if (bx_worker_name(dist->job, 0) == NULL)
        return bx_fail(BX_E_STATE, "a context needs a job that has started");
    pthread_mutex_lock(&dist->lock);
    /* A worker that has come back counts from a number that the ones before it did not reach. Of 64 of them, the first
     * one's contexts ended when it died. */
    rank = bx_job_rank(dist->job);
    context = create_locked(dist, (uint64_t)rank << 48 |
                                      (uint64_t)((bx_worker_generation(dist->job, rank) - 1) % 64) << 42 |
                                      (dist->made + 1));
    if (context != NULL)
        dist->made++;
    pthread_mutex_unlock(&dist->lock);
    if (context == NULL)
        return bx_fail(-ENOMEM, "no memory for a context of distributed autograd");
    *out = context;
    return 0;
}

static void needed_done(struct bx_future *future, void *argument)
{
    struct bx_context *context = argument;
    int code = bx_future_error(future);

    if (code < 0)
        bxi_context_finish(context, code, bx_future_error_text(future));
    bx_context_release(context);
}

int bxi_context_needs(struct bx_context *context, struct bx_future *future)
{
    int rc = bx_future_on_done(future, needed_done, bx_context_acquire(context));

    if (rc < 0)
        bx_context_release(context);
    return rc;
}

int bxi_join_answer(const struct bx_request *request, struct bx_reader *args, struct bx_future **reply, void *argument)
{
    struct bx_dist *dist = argument;
    struct bx_context *context = bxi_context_find(dist, bx_read_u64(args));
    struct bx_future *future;
    int rc = 0;

    if (context == NULL)
        return bx_fail(BX_E_CANCELLED, "the context has ended");
    future = bx_future_create(bx_request_job(request));
    pthread_mutex_lock(&context->lock);
    if (future == NULL)
        rc = bx_error_code();
    else if (context->ended)
        rc = bx_fail(BX_E_CANCELLED, "the context has ended");
    else
        rc = bxi_room(&context->joins, context->join_count, &context->join_capacity, sizeof(struct bx_future *));
    if (rc == 0)
        context->joins[context->join_count++] = bx_future_acquire(future);
    pthread_mutex_unlock(&context->lock);
    if (rc == 0)
        rc = bxi_context_needs(context, future);    /* fails if the worker that joined is gone */
    if (rc < 0)
        bx_future_release(future);
    else
        *reply = future;
    if (rc == -ENOMEM)          /* the worker's part of a pass ends, and others may wait for what it was to send */
        bxi_context_finish(context, rc, bx_error_text());
    bx_context_release(context);
    return rc;
}

/* The maker's word, or none. */
static void joined_ended(struct bx_future *future, void *argument)
{
    struct bx_context *context = argument;
    int code = bx_future_error(future);

    bxi_context_finish(context, code, bx_future_error_text(future));
    if (code != -ENOMEM && code != BX_E_REFUSED)        /* the request for the join was not read */
        bxi_context_take_out(context);
    bx_context_release(context);
}

static int join(struct bx_context *context)
{
    /* It outlives the request of a handler that runs this. */
    const struct bx_call_options options = { .timeout_ns = BX_FOREVER, .flags = BX_CALL_DETACHED };
    struct bx_job *job = context->dist->job;
    struct bx_msg *args = bx_msg_create(8);
    struct bx_future *future = NULL;
    int rc;

    if (args == NULL)
        return bx_fail(-ENOMEM, "no memory for a message");
    bx_msg_put_u64(args, context->id);
    rc = bx_rpc_async(job, bx_worker_name(job, bxi_context_rank(context)), "autograd.join", args, &options, &future);
    bx_msg_destroy(args);
    if (rc < 0)
        return rc;
    rc = bx_future_on_done(future, joined_ended, bx_context_acquire(context));
    if (rc < 0) {
        bx_future_cancel(future);
        bx_context_release(context);
    }
    bx_future_release(future);
    return rc;
}

int bx_msg_put_context(struct bx_msg *msg, struct bx_context *context)
{
    int rc = context == NULL ? bx_fail(-EINVAL, "bx_msg_put_context needs a context") : bxi_context_check(context);

    return rc < 0 ? bx_msg_fail(msg, rc) : bx_msg_put_u64(msg, context->id);
}

int bx_read_context(struct bx_dist *dist, struct bx_reader *reader, struct bx_context **out)
{
    struct bx_context *context;
    bool is_new = false;
    uint64_t id;
    int rc;

    if (dist == NULL || reader == NULL || out == NULL)
        return bx_fail(-EINVAL, "bx_read_context needs a bx_dist, a reader, and a place for the context");
    id = bx_read_u64(reader);
    if (reader->error < 0)
        return reader->error;
    if (bx_worker_name(dist->job, (int)(id >> 48)) == NULL)
        return bx_fail(-EINVAL, "the message holds no context where one was read");
    pthread_mutex_lock(&dist->lock);
    context = find_locked(dist, id);
    if (context == NULL && (int)(id >> 48) != bx_job_rank(dist->job)) {
        context = create_locked(dist, id);
        is_new = true;
    }
    pthread_mutex_unlock(&dist->lock);
    if (context == NULL)
        return is_new ? bx_fail(-ENOMEM, "no memory for a context of distributed autograd")
                      : bx_fail(BX_E_CANCELLED, "the context has ended");
    rc = is_new ? join(context) : bxi_context_check(context);
    if (rc < 0) {
        if (is_new)
            bxi_context_finish(context, rc, bx_error_text());
        bx_context_release(context);
        return rc;
    }
    *out = context;
    return 0;
}

/* ---- calls tied to a context ------------------------------------------------------------------------------- */

static void call_done(struct bx_future *call, void *argument)
{
    struct bx_context *context = argument;
    bool found = false;

    pthread_mutex_lock(&context->lock);
    for (size_t i = 0; i < context->call_count && !found; i++) {
        if (context->calls[i] != call)
            continue;
        context->calls[i] = context->calls[--context->call_count];
        found = true;
    }
    pthread_mutex_unlock(&context->lock);
    if (found)
        bx_future_release(call);
    bx_context_release(context);
}

int bx_context_call(struct bx_context *context, struct bx_future *call)
{
    bool ended;
    int rc = 0;

    if (context == NULL || call == NULL)
        return bx_fail(-EINVAL, "bx_context_call needs a context and a call");
    pthread_mutex_lock(&context->lock);
    ended = context->ended;
    if (!ended)
        rc = bxi_room(&context->calls, context->call_count, &context->call_capacity, sizeof(struct bx_future *));
    if (!ended && rc == 0)
        context->calls[context->call_count++] = bx_future_acquire(call);
    pthread_mutex_unlock(&context->lock);
    if (ended)
        rc = bxi_context_check(context);
    if (rc < 0) {
        bx_future_cancel(call);
        return rc;
    }
    rc = bx_future_on_done(call, call_done, bx_context_acquire(context));
    if (rc < 0)
        bx_context_release(context);
    return rc;
}

/* SPDX-License-Identifier: MIT */
/*
 * The backward pass of a context. dist.h describes the two phases.
 *
 * Nodes are claimed, and run, under context->running. discover, which runs with the progress role, takes that lock too:
 * while a pass is discovered none of its nodes run, and nothing is sent with the lock, so it is held for walks only. A
 * pass that fails here answers autograd.run with its error; the maker then
 * ends the context everywhere.
 */
#include "dist.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- beginning a pass ------------------------------------------------------------------------------------------ */

/* running. The pass of that number, which may begin with it; NULL after a sentence. */
static struct bxi_dist_pass *pass_of(struct bx_context *context, uint64_t number, bool retain)
{
    struct bxi_dist_pass *pass = context->pass;

    if (pass != NULL && pass->number == number)
        return pass;
    if (pass != NULL && !bxi_dist_is_done(pass)) {
        bx_fail(BX_E_STATE, "another backward pass of the context runs");
        return NULL;
    }
    pass = calloc(1, sizeof *pass);
    if (pass == NULL) {
        bx_fail(-ENOMEM, "no memory for a backward pass");
        return NULL;
    }
    bxi_pass_begin(&pass->pass, context->grads, retain);
    pass->number = number;
    pass->unsettled = 1;
    if (bxi_context_rank(context) != bx_job_rank(context->dist->job))
        pass->began_ns = bx_trace_begin(context->dist->job);
    pass->pass.none = bxi_receive_none;
    pass->unseen = &pass->pass.found;
    bxi_dist_set_pass(context, pass);
    return pass;
}

/* ---- finding out who takes part --------------------------------------------------------------------------------- */

/*
 * This worker's part of a search, from the first discover that comes until all that it told have answered. Only the one
 * who sent that first discover waits for this: a later one, which comes while the part is open, is answered when it has
 * been walked (Dijkstra and Scholten). So however often a pass crosses between two workers, few calls are in flight.
 */
struct search {
    bxi_a32 refs;
    struct bx_context *context;             /* one reference */
    struct bx_future *reply;                /* to the first */
    uint64_t open;                          /* context->lock, all below: walks and answers that have not come */
    uint64_t ranks[BXI_RANK_WORDS];         /* who takes part */
    int code;
    char *text;
};

static void put_rank(uint64_t *ranks, int rank)
{
    ranks[rank / 64] |= UINT64_C(1) << rank % 64;
}

/* A walk begins. *first: its sender waits for the whole part. NULL after a sentence. */
static struct search *enter_search(struct bx_context *context, bool *first)
{
    struct bx_job *job = context->dist->job;
    struct search *search, *made = calloc(1, sizeof *made);
    struct bx_future *reply = bx_future_create(job);

    if (made == NULL || reply == NULL) {
        if (made == NULL)
            bx_fail(-ENOMEM, "no memory for a backward pass");
        free(made);
        bx_future_release(reply);
        return NULL;
    }
    pthread_mutex_lock(&context->lock);
    *first = context->search == NULL;
    if (*first) {
        atomic_init(&made->refs, 0);
        made->context = bx_context_acquire(context);
        made->reply = reply;
        put_rank(made->ranks, bx_job_rank(job));
        context->search = made;
    }
    search = context->search;
    search->open++;
    bxi_add(&search->refs, 1);
    pthread_mutex_unlock(&context->lock);
    if (!*first) {
        free(made);
        bx_future_release(reply);
    }
    return search;
}

static void search_failed(struct search *search, int code, const char *text)
{
    pthread_mutex_lock(&search->context->lock);
    if (search->code == 0) {
        search->code = code;
        search->text = strdup(text);
    }
    pthread_mutex_unlock(&search->context->lock);
}

static void release_search(struct search *search)
{
    if (bxi_add_seq_cst(&search->refs, (uint32_t)-1) != 1)
        return;
    bx_future_error(search->reply);         /* read: the caller's code is the same, or an earlier one */
    bx_future_release(search->reply);
    bx_context_release(search->context);
    free(search->text);
    free(search);
}

/* A walk, or an answer, is done: the last one answers the first. Drops a reference. */
static void close_search(struct search *search)
{
    struct bx_context *context = search->context;
    struct bx_msg *value = NULL;
    bool last;

    pthread_mutex_lock(&context->lock);
    last = --search->open == 0;
    if (last && context->search == search)
        context->search = NULL;
    pthread_mutex_unlock(&context->lock);
    if (last && search->code == 0 && (value = bx_msg_create(sizeof search->ranks)) == NULL)
        search->code = -ENOMEM;
    if (last && search->code < 0) {
        bx_future_fail(search->reply, search->code, search->text);
    } else if (last) {
        bx_msg_put_bytes(value, search->ranks, sizeof search->ranks);
        bx_future_set(search->reply, value);
    }
    release_search(search);
}

static void search_answered(struct bx_future *future, void *argument)
{
    struct search *search = argument;
    struct bx_reader reader = bx_msg_reader(bx_future_value(future));
    const void *ranks = NULL;
    uint64_t words[BXI_RANK_WORDS];

    if (bx_future_error(future) < 0)
        search_failed(search, bx_future_error(future), bx_future_error_text(future));
    else if ((ranks = bx_read_bytes(&reader, sizeof words)) == NULL)
        search_failed(search, reader.error, "a worker's answer to a backward pass is too short");
    if (ranks != NULL) {
        memcpy(words, ranks, sizeof words);
        pthread_mutex_lock(&search->context->lock);
        for (int i = 0; i < BXI_RANK_WORDS; i++)
            search->ranks[i] |= words[i];
        pthread_mutex_unlock(&search->context->lock);
    }
    close_search(search);
}

struct wave {                               /* what a discover message tells */
    uint64_t number;
    bool retain;
    uint64_t timeout_ns;
};

/* The receives that were found, by the worker from which they came: its generation, and the numbers of its sends. */
struct found {
    struct bx_msg *sends[BX_WORKERS_MAX];
    int generation[BX_WORKERS_MAX];
};

static int tell(struct bx_context *context, const struct wave *wave, struct search *search, int rank,
                const struct found *found)
{
    const struct bx_msg *sends = found->sends[rank];
    const struct bx_call_options options = { .timeout_ns = wave->timeout_ns };
    struct bx_job *job = context->dist->job;
    struct bx_msg *args = bx_msg_create(64 + bx_msg_bytes(sends));
    struct bx_future *future = NULL;
    int rc;

    if (args == NULL)
        return bx_fail(-ENOMEM, "no memory for a message");
    bx_msg_put_u64(args, context->id);
    bx_msg_put_u64(args, wave->number);
    bx_msg_put_u64(args, wave->timeout_ns);
    bx_msg_put_i32(args, wave->retain);
    bx_msg_put_i32(args, found->generation[rank]);
    bx_msg_put_i32(args, (int32_t)(bx_msg_bytes(sends) / 4));
    bx_msg_put_bytes(args, bx_msg_data(sends), bx_msg_bytes(sends));
    rc = bx_rpc_async(job, bx_worker_name(job, rank), "autograd.discover", args, &options, &future);
    bx_msg_destroy(args);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&context->lock);
    search->open++;
    bxi_add(&search->refs, 1);
    pthread_mutex_unlock(&context->lock);
    rc = bx_future_on_done(future, search_answered, search);
    if (rc < 0) {
        bx_future_cancel(future);
        close_search(search);
    }
    bx_future_release(future);
    return rc;
}

static void drop_found(const struct bx_job *job, struct found *found)
{
    for (int rank = 0; rank < bx_job_world_size(job); rank++)
        bx_msg_destroy(found->sends[rank]);
}

static int sender_died(const struct bx_context *context, int rank)
{
    return bx_fail(BX_E_PEER_DEAD, "the pass came to a variable of worker '%s', which has died and come back",
                   bx_worker_name(context->dist->job, rank));
}

/* running. Collects the receives that were found since the last call. */
static int collect(struct bx_context *context, struct found *found)
{
    struct bxi_dist_pass *pass = context->pass;
    int rc = 0;

    for (; rc == 0 && *pass->unseen != NULL; pass->unseen = &(*pass->unseen)->found_next) {
        const struct bxi_receive *receive = (*pass->unseen)->extra;
        struct bx_msg **sends;

        pass->elements += (*pass->unseen)->elements;
        if ((*pass->unseen)->op != &bxi_receive_op)
            continue;
        if (receive->context != context)
            return bx_fail(-EINVAL, "the pass came to a variable that was received in another context");
        sends = &found->sends[receive->rank];
        if (*sends != NULL && found->generation[receive->rank] != receive->generation)
            return sender_died(context, receive->rank);
        if (*sends == NULL && (*sends = bx_msg_create(256)) == NULL)
            return bx_fail(-ENOMEM, "no memory for a message");
        found->generation[receive->rank] = receive->generation;
        rc = bx_msg_put_i32(*sends, (int32_t)receive->send);
    }
    return rc;
}

/* Without `running`: the answer to a message may come, and need it, before the next one is sent. */
static int tell_all(struct bx_context *context, const struct wave *wave, struct search *search,
                    const struct found *found)
{
    int rc = 0;

    for (int rank = 0; rc == 0 && rank < bx_job_world_size(context->dist->job); rank++)
        if (found->sends[rank] != NULL)
            rc = tell(context, wave, search, rank, found);
    return rc;
}

/* running. */
static int discover_sends(struct bx_context *context, const struct wave *wave, struct bx_reader *args,
                          struct found *found)
{
    struct bxi_dist_pass *pass = pass_of(context, wave->number, wave->retain);
    const int rank = bx_job_rank(context->dist->job);
    int32_t generation = bx_read_i32(args), count = bx_read_i32(args);
    int rc = pass == NULL ? bx_error_code() : 0;

    if (rc == 0 && generation != bx_worker_generation(context->dist->job, rank))
        rc = sender_died(context, rank);
    for (int32_t i = 0; rc == 0 && i < count; i++) {
        struct bx_var *var = bxi_send_of(context, (uint32_t)bx_read_i32(args));

        rc = var == NULL ? BX_E_CANCELLED : bxi_pass_discover(&pass->pass, var);
        pass->awaited++;
        bx_var_release(var);
    }
    if (rc == 0)
        rc = args->error;
    return rc == 0 ? collect(context, found) : rc;
}

/* An answer at once: this worker takes part. */
static int answer_now(struct bx_job *job, struct bx_future **reply)
{
    uint64_t ranks[BXI_RANK_WORDS] = { 0 };
    struct bx_msg *value = bx_msg_create(sizeof ranks);
    struct bx_future *future = bx_future_create(job);

    if (value == NULL || future == NULL) {
        int rc = future == NULL ? bx_error_code() : bx_fail(-ENOMEM, "no memory for a backward pass");

        bx_msg_destroy(value);
        bx_future_release(future);
        return rc;
    }
    put_rank(ranks, bx_job_rank(job));
    bx_msg_put_bytes(value, ranks, sizeof ranks);
    bx_future_set(future, value);
    *reply = future;
    return 0;
}

static int walk_and_tell(struct bx_context *context, const struct wave *wave, struct bx_reader *args,
                         struct search *search)
{
    const uint64_t began_ns = bx_trace_begin(context->dist->job);
    struct found found = { { NULL }, { 0 } };
    int rc;

    pthread_mutex_lock(&context->running);      /* held for walks only while a pass is discovered */
    rc = discover_sends(context, wave, args, &found);
    bxi_dist_unlock_running(context);
    if (rc == 0)
        rc = tell_all(context, wave, search, &found);
    bxi_dist_trace(context, &bxi_slice_discover, wave->number, began_ns, rc);
    drop_found(context->dist->job, &found);
    return rc;
}

int bxi_dist_discover(const struct bx_request *request, struct bx_reader *args, struct bx_future **reply,
                      void *argument)
{
    struct bx_dist *dist = argument;
    struct bx_context *context = bxi_context_find(dist, bx_read_u64(args));
    struct wave wave = { .number = bx_read_u64(args) };
    struct search *search;
    bool first = false;
    int rc;

    wave.timeout_ns = bx_read_u64(args);
    wave.retain = bx_read_i32(args) != 0;
    if (context == NULL)
        return bx_fail(BX_E_CANCELLED, "a backward pass came to a context that has ended here");
    search = enter_search(context, &first);
    rc = search == NULL ? bx_error_code() : walk_and_tell(context, &wave, args, search);
    if (search != NULL && first) {
        *reply = bx_future_acquire(search->reply);
        if (rc < 0)
            search_failed(search, rc, bx_error_text());
        rc = 0;
    } else if (rc == 0) {
        rc = answer_now(bx_request_job(request), reply);
    }
    if (search != NULL)
        close_search(search);
    bx_context_release(context);
    return rc;
}

/* ---- running: the answer to the maker ------------------------------------------------------------------- */

int bxi_dist_run(const struct bx_request *request, struct bx_reader *args, struct bx_future **reply, void *argument)
{
    struct bx_dist *dist = argument;
    struct bx_context *context = bxi_context_find(dist, bx_read_u64(args));
    struct bx_future *future = context != NULL ? bx_future_create(bx_request_job(request)) : NULL;
    uint64_t number = bx_read_u64(args);
    struct bxi_dist_pass *pass;
    int rc = context == NULL ? bx_fail(BX_E_CANCELLED, "a backward pass came to a context that has ended here")
             : future == NULL ? bx_error_code()
                              : 0;

    if (rc < 0) {
        bx_context_release(context);
        return rc;
    }
    pthread_mutex_lock(&context->lock);
    pass = context->pass;
    if (context->ended || pass == NULL || pass->number != number)
        rc = bx_fail(BX_E_CANCELLED, "a backward pass that has ended here was to be run");
    else if (!bxi_dist_is_done(pass))
        pass->done = bx_future_acquire(future);
    else if (pass->code < 0)
        rc = bx_fail(pass->code, "%s", pass->text != NULL ? pass->text : bx_strerror(pass->code));
    else
        rc = 1;
    pthread_mutex_unlock(&context->lock);
    if (rc == 1)
        bx_future_set(future, NULL);
    if (rc < 0)
        bx_future_release(future);
    else
        *reply = future;
    bx_context_release(context);
    return rc < 0 ? rc : 0;
}

/* ---- the maker --------------------------------------------------------------------------------------------- */

/* Asks each of the set to run its part. Each is a call with a deadline, tied to the context: if a part fails, so does
 * the context, and the other calls are cancelled. */
static int run_parts(struct bx_context *context, const struct wave *wave, const uint64_t *ranks,
                     struct bx_future *parts[BX_WORKERS_MAX])
{
    const struct bx_call_options options = { .timeout_ns = wave->timeout_ns };
    struct bx_job *job = context->dist->job;
    struct bx_msg *args = bx_msg_create(16);
    int rc = args == NULL ? bx_fail(-ENOMEM, "no memory for a message") : 0;

    bx_msg_put_u64(args, context->id);
    bx_msg_put_u64(args, wave->number);
    for (int rank = 0; rc == 0 && rank < bx_job_world_size(job); rank++) {
        if ((ranks[rank / 64] >> rank % 64 & 1) == 0)
            continue;
        rc = bx_rpc_async(job, bx_worker_name(job, rank), "autograd.run", args, &options, &parts[rank]);
        if (rc == 0)
            rc = bx_context_call(context, parts[rank]);
        if (rc == 0)
            rc = bxi_context_needs(context, parts[rank]);
    }
    bx_msg_destroy(args);
    return rc;
}

/* running. The roots' part of the search. If it fails, nobody else knows of it. */
static int discover_roots(struct bx_context *context, const struct wave *wave, struct bx_var *const *roots,
                          size_t count, struct found *found)
{
    struct bxi_dist_pass *pass = pass_of(context, wave->number, wave->retain);
    int rc = pass == NULL ? bx_error_code() : 0;

    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = bxi_pass_discover(&pass->pass, roots[i]);
    if (rc == 0)
        rc = collect(context, found);
    if (rc < 0 && pass != NULL) {
        bxi_dist_finish_part(context, pass->number, rc, bx_error_text());
        bxi_pass_end(&pass->pass);
    }
    return rc;
}

/* Its calls have deadlines. */
static int wait_for_search(struct bx_future *reply, uint64_t ranks[BXI_RANK_WORDS])
{
    struct bx_reader reader;
    const void *words;
    int rc = bx_future_wait(reply, BX_FOREVER);

    if (rc < 0)
        return rc;
    reader = bx_msg_reader(bx_future_value(reply));
    words = bx_read_bytes(&reader, BXI_RANK_WORDS * sizeof ranks[0]);
    memcpy(ranks, words, BXI_RANK_WORDS * sizeof ranks[0]);
    return 0;
}

/* running. */
static int give_roots(struct bx_context *context, struct bx_var *const *roots, struct bx_tensor *const *root_grads,
                      size_t count)
{
    struct bxi_dist_pass *pass = context->pass;
    int rc = pass == NULL ? BX_E_CANCELLED : 0;         /* the context has ended */

    for (size_t i = 0; rc == 0 && i < count; i++) {
        struct bxi_slot slot = bxi_root_grad(&pass->pass, roots[i], root_grads != NULL ? root_grads[i] : NULL);

        rc = slot.grad == NULL ? bx_error_code() : bxi_pass_give(&pass->pass, roots[i], slot);
    }
    return rc == 0 ? bxi_dist_run_ready(context, false) : rc;
}

static int run_all(struct bx_context *context, const struct wave *wave, struct bx_var *const *roots,
                   struct bx_tensor *const *root_grads, size_t count, const uint64_t *ranks)
{
    struct bx_future *parts[BX_WORKERS_MAX] = { NULL };
    int rc;

    pthread_mutex_lock(&context->running);
    rc = run_parts(context, wave, ranks, parts);
    if (rc == 0)
        rc = give_roots(context, roots, root_grads, count);
    bxi_dist_unlock_running(context);
    if (rc == 0)
        bxi_dist_run_queue(context, false);     /* what came while the roots' part ran */
    for (int rank = 0; rank < bx_job_world_size(context->dist->job); rank++) {
        if (rc == 0 && parts[rank] != NULL)
            rc = bx_future_wait(parts[rank], BX_FOREVER);
        bx_future_release(parts[rank]);
    }
    return rc;
}

static int check_call(struct bx_context *context, struct bx_var *const *roots, struct bx_tensor *const *root_grads,
                      size_t count)
{
    int rc;

    if (context == NULL)
        return bx_fail(-EINVAL, "a backward pass across workers needs a context");
    if ((rc = bxi_context_check(context)) < 0)
        return rc;
    if (bxi_context_rank(context) != bx_job_rank(context->dist->job))
        return bx_fail(-EINVAL, "the worker that made a context runs its backward pass: that is worker '%s'",
                       bx_worker_name(context->dist->job, bxi_context_rank(context)));
    return bxi_check_roots(roots, root_grads, count);
}

/* Who takes part. *alone: it failed before any other worker knew of the pass. */
static int find_ranks(struct bx_context *context, struct wave *wave, struct bx_var *const *roots, size_t count,
                      uint64_t ranks[BXI_RANK_WORDS], bool *alone)
{
    const uint64_t began_ns = bx_trace_begin(context->dist->job);
    struct found found = { { NULL }, { 0 } };
    struct bx_future *reply = NULL;
    struct search *search;
    bool first = false;
    int rc = 0;

    *alone = true;
    pthread_mutex_lock(&context->running);
    if (context->pass != NULL && !bxi_dist_is_done(context->pass))
        rc = bx_fail(BX_E_STATE, "another backward pass of the context runs");
    search = rc == 0 ? enter_search(context, &first) : NULL;
    if (search == NULL || !first) {
        rc = rc < 0           ? rc
             : search == NULL ? bx_error_code()
                              : bx_fail(BX_E_STATE, "another backward pass of the context runs");
    } else {
        wave->number = ++context->passes;
        rc = discover_roots(context, wave, roots, count, &found);
    }
    bxi_dist_unlock_running(context);
    if (rc == 0) {
        *alone = false;
        reply = bx_future_acquire(search->reply);
        rc = tell_all(context, wave, search, &found);
    }
    drop_found(context->dist->job, &found);
    if (search != NULL)
        close_search(search);
    if (rc == 0)
        rc = wait_for_search(reply, ranks);
    bxi_dist_trace(context, &bxi_slice_search, wave->number, began_ns, rc);
    bx_future_release(reply);
    return rc;
}

int bx_context_backward(struct bx_context *context, struct bx_var *const *roots, struct bx_tensor *const *root_grads,
                        size_t count, bool retain, uint64_t timeout_ns)
{
    struct wave wave = { .retain = retain, .timeout_ns = timeout_ns };
    uint64_t ranks[BXI_RANK_WORDS] = { 0 }, began_ns;
    int rc = check_call(context, roots, root_grads, count);
    bool alone = true;

    if (rc < 0)
        return rc;
    began_ns = bx_trace_begin(context->dist->job);
    rc = find_ranks(context, &wave, roots, count, ranks, &alone);
    if (rc == 0)
        rc = run_all(context, &wave, roots, root_grads, count, ranks);
    if (rc < 0 && !alone) {
        bxi_context_finish(context, rc, bx_error_text());
        rc = bxi_context_check(context);    /* the cause, if it had ended before, because a worker died for example */
    }
    bxi_dist_trace(context, &bxi_slice_done, wave.number, bx_trace_begin(context->dist->job), 0);
    bxi_dist_trace(context, &bxi_slice_backward, wave.number, began_ns, rc);
    return rc;
}

/* SPDX-License-Identifier: MIT */
/*
 * Futures that depend on others: all, any and chain. Any thread; no lock is held while callbacks run.
 *
 * A gather has one callback on each future, and one reference to its own future (the child) until that is done. Once
 * the child is done, or its last reference is gone and it has no callback, the callbacks are removed from the futures
 * that are still pending. So a program that again and again waits for any of one slow future and a quick one leaves no
 * callbacks at the slow one.
 *
 * A chain has one hook. Its callback is first on the future that was given, and runs fn. Then it is on the future that
 * fn returned (the inner one), and completes the child. Once the child is done before that, the callback is removed
 * from the first future, or the inner one is cancelled. A child that was released goes on, as that of a `then`.
 *
 *   1. hook[i].future is not NULL from before its callback is added until that begins to run or is about to be
 *      removed. While it is not NULL, under the lock, the future's memory is there: a future is freed after its
 *      callbacks have run.
 *   2. The thread that sets child to NULL, under the lock, has its reference.
 *   3. The references of a gather: one of the child until it is freed, one of each callback until it has run or was
 *      removed, and one of each thread that works on it.
 *   4. hook[i].kept is set once, to a future that is done: of all, under the lock, before the child is done; of a
 *      chain by the thread that has claimed the child. A future that is done waits for none: there is no cycle.
 */
#include "future.h"

#include <errno.h>
#include <stdlib.h>

enum kind { OF_ALL, OF_ANY, OF_CHAIN };

struct hook {
    struct bxi_callback callback;
    struct bx_future *future;       /* lock; not a reference */
    struct bx_future *kept;         /* a reference, or NULL. Of all: the same, once it is done; of a chain: the future
                                     * whose value the child has */
};

struct bxi_gather {
    bxi_a32 refs;
    struct bxi_lock lock;
    enum kind kind;
    bool is_linked;                 /* of a chain: written before hook[0].future is the inner future */
    int64_t index;                  /* of any: written before the child is done; -1: it ended in another way */
    struct bx_future *child;        /* lock */
    size_t left;                    /* lock; of all: that are not done */
    int code;                       /* lock; of all: the first failure */
    char *text;
    void *context;                  /* of a chain, with free_context: the thread that runs or removes its callback */
    bx_free_fn free_context;        /* NULL once it has been called */
    size_t count;
    struct bxi_gather *next;        /* in a thread's list of those that end, or are freed */
    struct hook hook[];
};

static void free_context(struct bxi_gather *gather)
{
    bx_free_fn fn = gather->free_context;

    if (fn == NULL)                 /* of all and any, which several threads may end: they only read it */
        return;
    gather->free_context = NULL;
    fn(gather->context);
}

static void destroy(struct bxi_gather *gather)
{
    for (size_t i = 0; i < gather->count; i++) {
        bxi_future_release(gather->hook[i].kept);
        bxi_waiting_release(gather->hook[i].callback.made_for);
    }
    free_context(gather);           /* of a chain that ended before it had a callback */
    free(gather->text);
    free(gather);
}

/* Gathers that this thread has yet to handle. */
struct turn {
    struct bxi_gather *list;        /* the last one first */
    bool runs;
};

/* Handles the gather, and those that come meanwhile. No recursion: gathers of gathers may be nested to any depth. */
static void take_turn(struct turn *turn, struct bxi_gather *gather, void (*handle)(struct bxi_gather *gather))
{
    gather->next = turn->list;
    turn->list = gather;
    if (turn->runs)
        return;
    turn->runs = true;
    while (turn->list != NULL) {
        gather = turn->list;
        turn->list = gather->next;
        handle(gather);
    }
    turn->runs = false;
}

/* What is kept may be the last reference to the future of another gather. */
void bxi_gather_release(struct bxi_gather *gather)
{
    static _Thread_local struct turn turn;

    if (bxi_add(&gather->refs, (uint32_t)-1) == 1)
        take_turn(&turn, gather, destroy);
}

/* ---- the end ----------------------------------------------------------------------------------- */

/* The child, if the caller is to complete it or to release it; else NULL. hook: its callback runs; or NULL. */
static struct bx_future *take_child(struct bxi_gather *gather, struct hook *hook)
{
    struct bx_future *child;

    bxi_lock(&gather->lock);
    if (hook != NULL)
        hook->future = NULL;
    child = gather->child;
    gather->child = NULL;
    bxi_unlock(&gather->lock);
    return child;
}

/* The future that has the hook's callback, with a reference; NULL if the callback runs, or is about to. */
static struct bx_future *take_hook(struct bxi_gather *gather, struct hook *hook)
{
    struct bx_future *future;

    bxi_lock(&gather->lock);
    future = hook->future;
    if (future != NULL && bxi_future_try_acquire(future))
        hook->future = NULL;
    else
        future = NULL;
    bxi_unlock(&gather->lock);
    return future;
}

static void unhook(struct bxi_gather *gather, struct hook *hook, struct bx_future *future)
{
    if (bxi_callback_remove(future, &hook->callback)) {
        free_context(gather);
        bxi_gather_release(gather);
    }
}

static void end_one(struct bxi_gather *gather)
{
    for (size_t i = 0; i < gather->count; i++) {
        struct bx_future *future = take_hook(gather, &gather->hook[i]);

        if (future != NULL && gather->is_linked)
            bxi_future_cancel(future);      /* its callback runs, and finds no child to complete */
        else if (future != NULL)
            unhook(gather, &gather->hook[i], future);
        bxi_future_release(future);
    }
    bxi_gather_release(gather);
}

/* Removing a callback may release the last reference to a future that is itself of a gather, which then ends too, and
 * so may a cancel. */
static void end_all(struct bxi_gather *gather)
{
    static _Thread_local struct turn turn;

    bxi_add(&gather->refs, 1);
    take_turn(&turn, gather, end_one);
}

void bxi_gather_end(struct bxi_gather *gather)
{
    struct bx_future *child = take_child(gather, NULL);

    end_all(gather);
    bxi_future_release(child);
}

bool bxi_gather_released(struct bxi_gather *gather, struct bx_future *future)
{
    bool given_up = false, is_done;

    if (gather->kind == OF_CHAIN)
        return false;
    bxi_add(&gather->refs, 1);      /* the future may be freed once the lock is released */
    bxi_lock(&gather->lock);
    is_done = gather->child == NULL;
    if (!is_done)
        /* Two: this one and the gather's, so no thread is left that could add a callback. */
        given_up = bxi_add(&future->refs, (uint32_t)-1) == 2 && bxi_load_acquire(&future->callbacks) == NULL;
    if (given_up)
        gather->child = NULL;       /* its reference, the last one, is released by the caller */
    bxi_unlock(&gather->lock);
    bxi_gather_release(gather);
    return !is_done && !given_up;
}

bool bxi_gather_lends_value(const struct bxi_gather *gather)
{
    return gather->kind == OF_CHAIN && gather->hook[0].kept != NULL;
}

/* ---- all and any: the callbacks ----------------------------------------------------------------- */

/* Without an error, and without memory for the value: that is one. */
static int code_with(int code, const struct bx_msg *value)
{
    return code == 0 && value == NULL ? -ENOMEM : code;
}

static void run_all(struct bx_future *future, struct bxi_callback *callback)
{
    struct bxi_gather *gather = callback->context;
    struct hook *hook = &gather->hook[callback->index];
    struct bx_future *child;
    bool last;

    bxi_lock(&gather->lock);
    if (future->code < 0 && gather->code == 0) {
        gather->code = future->code;
        gather->text = strdup(bx_future_error_text(future));
    }
    if (gather->child != NULL)
        hook->kept = bx_future_acquire(future);
    hook->future = NULL;
    last = --gather->left == 0;
    bxi_unlock(&gather->lock);
    child = last ? take_child(gather, NULL) : NULL;
    if (child != NULL) {
        struct bx_msg *value = gather->code == 0 ? bx_msg_create(0) : NULL;

        bxi_future_complete(child, code_with(gather->code, value), gather->text, value);
        gather->text = NULL;
    }
    bxi_future_release(child);
    bxi_gather_release(gather);
}

static void run_any(struct bx_future *future, struct bxi_callback *callback)
{
    struct bxi_gather *gather = callback->context;
    struct bx_future *child = take_child(gather, &gather->hook[callback->index]);
    struct bx_msg *value = NULL;

    if (child != NULL && bxi_future_claim(child)) {
        gather->index = (int64_t)callback->index;
        if (future->code == 0 && (value = bx_msg_create(0)) != NULL)
            bx_msg_put_i64(value, (int64_t)callback->index);
        bxi_future_finish(child, code_with(future->code, value), bxi_future_text(future), value);
    }
    bxi_future_release(child);
    bxi_gather_release(gather);
}

/* ---- hooks ------------------------------------------------------------------------------------- */

/* False if the gather has ended: then no hook is set. */
static bool set_hook(struct bxi_gather *gather, size_t index, struct bx_future *future)
{
    bool lives;

    bxi_lock(&gather->lock);
    lives = gather->child != NULL;
    gather->hook[index].future = lives ? future : NULL;
    bxi_unlock(&gather->lock);
    return lives;
}

static bool has_ended(struct bxi_gather *gather)
{
    bool ended;

    bxi_lock(&gather->lock);
    ended = gather->child == NULL;
    bxi_unlock(&gather->lock);
    return ended;
}

/* ---- chain: the callbacks ---------------------------------------------------------------------- */

/* Runs fn. 0 and *inner, one reference; or a code and its sentence. */
static int call_fn(struct bxi_gather *gather, struct bx_future *first, struct bx_future **inner)
{
    bx_chain_fn fn = gather->hook[0].callback.chain;
    bool is_child;
    int code;

    bxi_clear_error();
    code = bxi_callback_call(&gather->hook[0].callback, first, inner, gather->context, (bxi_user_fn)fn);
    if (code < 0)
        return code;
    if (*inner == NULL)
        return bx_fail(BX_E_HANDLER, "the function of a chain returned no future");
    bxi_lock(&gather->lock);
    is_child = *inner == gather->child;
    bxi_unlock(&gather->lock);
    return is_child ? bx_fail(-EDEADLK, "the function of a chain returned the future that waits for it") : 0;
}

/* The future whose value it is: a chain of chains keeps the last one only. */
static struct bx_future *owner_of_value(struct bx_future *future)
{
    const struct bxi_gather *gather = future->is_call ? NULL : bxi_made_of(future)->gather;

    return gather != NULL && bxi_gather_lends_value(gather) ? gather->hook[0].kept : future;
}

/* The inner future is done, and with it the child. */
static void run_inner(struct bx_future *inner, struct bxi_callback *callback)
{
    struct bxi_gather *gather = callback->context;
    struct bx_future *child = take_child(gather, &gather->hook[0]);

    if (child != NULL && bxi_future_claim(child)) {
        if (inner->code == 0)
            gather->hook[0].kept = bx_future_acquire(owner_of_value(inner));
        bxi_future_finish(child, inner->code, bxi_future_text(inner), inner->value);
    }
    bxi_future_release(child);
    bxi_gather_release(gather);
}

/* The callback goes to the inner future. If the child is done already, nobody needs that. */
static void follow(struct bxi_gather *gather, struct bx_future *inner)
{
    gather->is_linked = true;
    gather->hook[0].callback.run = run_inner;
    if (set_hook(gather, 0, inner)) {
        bxi_callback_add(inner, &gather->hook[0].callback);
    } else {
        bxi_future_cancel(inner);
        bxi_gather_release(gather);
    }
}

/* The child gets no inner future: it fails with code, or is done already. */
static void end_early(struct bxi_gather *gather, int code, char *text)
{
    struct bx_future *child = take_child(gather, &gather->hook[0]);

    if (child != NULL)
        bxi_future_complete(child, code, text, NULL);
    else
        free(text);
    bxi_future_release(child);
    bxi_gather_release(gather);
}

/* The first future is done: runs fn, unless it failed, or the child is done already. */
static void run_first(struct bx_future *first, struct bxi_callback *callback)
{
    struct bxi_gather *gather = callback->context;
    struct bx_future *inner = NULL;
    char *text = NULL;
    int code = first->code;

    set_hook(gather, 0, NULL);
    if (code < 0) {
        text = bxi_future_text(first);
    } else if (!has_ended(gather)) {
        code = call_fn(gather, first, &inner);
        text = code < 0 && bx_error_text()[0] != '\0' ? strdup(bx_error_text()) : NULL;
    }
    free_context(gather);
    if (code == 0 && inner != NULL)
        follow(gather, inner);
    else
        end_early(gather, code, text);
    bxi_future_release(inner);
}

/* ---- making ------------------------------------------------------------------------------------ */

/* The child may be done before all callbacks are added. Its end may have missed one that was being added: recheck. */
static void add_callbacks(struct bxi_gather *gather, struct bx_future *const *futures)
{
    size_t added = 0;

    while (added < gather->count && set_hook(gather, added, futures[added])) {
        bxi_callback_add(futures[added], &gather->hook[added].callback);
        added++;
    }
    if (!has_ended(gather))
        return;
    for (size_t i = 0; i < added; i++) {
        set_hook(gather, i, NULL);
        unhook(gather, &gather->hook[i], futures[i]);
    }
    for (size_t i = added; i < gather->count; i++)
        bxi_gather_release(gather);
}

/* True if none of them is NULL. */
static bool has_all(struct bx_future *const *futures, size_t count, const char *function)
{
    bool has = futures != NULL || count == 0;

    for (size_t i = 0; has && i < count; i++)
        has = futures[i] != NULL;
    if (!has)
        bxi_null(function, "one of the futures");
    return has;
}

static struct bxi_gather *create(struct bx_future *child, size_t count, enum kind kind)
{
    static void (*const run[])(struct bx_future *future, struct bxi_callback *callback) = {
        [OF_ALL] = run_all, [OF_ANY] = run_any, [OF_CHAIN] = run_first };
    struct bxi_gather *gather = NULL;

    if (count < UINT32_MAX / 2)
        gather = calloc(1, sizeof *gather + count * sizeof gather->hook[0]);
    if (gather == NULL)
        return NULL;
    bxi_store_relaxed(&gather->refs, (uint32_t)count + 2);     /* relaxed: no other thread knows it yet */
    gather->kind = kind;
    gather->index = -1;
    gather->child = bx_future_acquire(child);
    gather->left = gather->count = count;
    for (size_t i = 0; i < count; i++)
        gather->hook[i].callback = (struct bxi_callback){ .run = run[kind], .context = gather, .index = i };
    bxi_made_of(child)->gather = gather;
    return gather;
}

/* NULL, with a sentence; or *child is a pending future and has a gather, of which the caller has a reference too. */
static struct bxi_gather *create_with_child(struct bx_job *job, size_t count, enum kind kind, struct bx_future **child)
{
    struct bxi_gather *gather;

    *child = bx_future_create(job);
    if (*child == NULL)
        return NULL;
    gather = create(*child, count, kind);
    if (gather == NULL) {
        bx_fail(-ENOMEM, "no memory for the callbacks of %zu futures", count);
        bxi_future_release(*child);
    }
    return gather;
}

static struct bx_future *gather_of(struct bx_job *job, struct bx_future *const *futures, size_t count, enum kind kind)
{
    struct bx_future *child;
    struct bxi_gather *gather = create_with_child(job, count, kind, &child);

    if (gather == NULL)
        return NULL;
    add_callbacks(gather, futures);
    bxi_gather_release(gather);
    bxi_out(0);
    return child;
}

struct bx_future *bx_future_all(struct bx_job *job, struct bx_future *const *futures, size_t count)
{
    struct bx_future *child;
    struct bx_msg *value;

    if (!has_all(futures, count, __func__))
        return NULL;
    if (count > 0)
        return gather_of(job, futures, count, OF_ALL);
    child = bx_future_create(job);
    if (child != NULL) {
        value = bx_msg_create(0);
        bxi_future_complete(child, code_with(0, value), NULL, value);
    }
    return child;
}

struct bx_future *bx_future_any(struct bx_job *job, struct bx_future *const *futures, size_t count)
{
    return count > 0 && has_all(futures, count, __func__) ? gather_of(job, futures, count, OF_ANY) : NULL;
}

struct bx_future *bx_future_chain(struct bx_future *future, bx_chain_fn fn, void *context, bx_free_fn free_fn)
{
    struct bxi_gather *gather;
    struct bx_future *child;

    if (bxi_future_check_callback(future, fn != NULL, __func__) < 0)
        return NULL;
    gather = create_with_child(future->job, 1, OF_CHAIN, &child);
    if (gather == NULL)
        return NULL;
    gather->hook[0].callback.chain = fn;
    gather->hook[0].callback.made_for = bxi_waiting_acquire(bxi_nested_in());
    gather->context = context;
    gather->free_context = free_fn;
    add_callbacks(gather, &future);
    bxi_gather_release(gather);
    bxi_out(0);
    return child;
}

/* ---- what became of the parts ------------------------------------------------------------------- */

/* NULL unless the future is done and of that kind. */
static struct bxi_gather *gather_of_kind(const struct bx_future *future, enum kind kind)
{
    struct bxi_gather *gather;

    if (future == NULL || future->is_call || !bxi_future_is_done(future))
        return NULL;
    gather = bxi_made_of((struct bx_future *)(uintptr_t)future)->gather;
    return gather != NULL && gather->kind == kind ? gather : NULL;
}

int64_t bx_future_index(const struct bx_future *any)
{
    const struct bxi_gather *gather = gather_of_kind(any, OF_ANY);

    return gather != NULL ? gather->index : -1;
}

/* The i-th future if it is done; it lives as long as `all`. */
static const struct bx_future *part_of(const struct bx_future *all, size_t i)
{
    struct bxi_gather *gather = gather_of_kind(all, OF_ALL);
    const struct bx_future *part;

    if (gather == NULL || i >= gather->count)
        return NULL;
    bxi_lock(&gather->lock);
    part = gather->hook[i].kept;
    bxi_unlock(&gather->lock);
    return part;
}

const struct bx_msg *bx_future_all_value(const struct bx_future *all, size_t i)
{
    return bx_future_value(part_of(all, i));
}

int bx_future_all_error(const struct bx_future *all, size_t i)
{
    const struct bx_future *part = part_of(all, i);

    if (all == NULL)
        return bxi_null(__func__, "the future");
    return part != NULL ? part->code : 0;
}

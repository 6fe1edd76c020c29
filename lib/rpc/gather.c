/* SPDX-License-Identifier: MIT */
/*
 * All and any of several futures. Any thread; no lock is held while callbacks run.
 *
 * A gather has one callback on each future, and one reference to its own future (the child) until that is done. Once
 * the child is done, or its last reference is gone and it has no callback, the callbacks are removed from the futures
 * that are still pending. So a program that again and again waits for any of one slow future and a quick one leaves no
 * callbacks at the slow one.
 *
 *   1. hook[i].future is not NULL from before its callback is added until that begins to run or is about to be
 *      removed. While it is not NULL, under the lock, the future's memory is there: a future is freed after its
 *      callbacks have run.
 *   2. The thread that sets child to NULL, under the lock, has its reference.
 *   3. The references of a gather: one of the child until it is freed, one of each callback until it has run or was
 *      removed, and one of each thread that works on it.
 */
#include "future.h"

#include <errno.h>
#include <stdlib.h>

struct hook {
    struct bxi_callback callback;
    struct bx_future *future;       /* lock; not a reference */
};

struct bxi_gather {
    bxi_a32 refs;
    struct bxi_lock lock;
    struct bx_future *child;        /* lock */
    size_t left;                    /* lock; of all: that are not done */
    int code;                       /* lock; of all: the first failure */
    char *text;
    size_t count;
    struct bxi_gather *next;        /* in a thread's list of those that end */
    struct hook hook[];
};

void bxi_gather_release(struct bxi_gather *gather)
{
    if (bxi_add(&gather->refs, (uint32_t)-1) != 1)
        return;
    free(gather->text);
    free(gather);
}

/* ---- the end ----------------------------------------------------------------------------------- */

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
    if (bxi_callback_remove(future, &hook->callback))
        bxi_gather_release(gather);
}

/* Removing a callback may release the last reference to a future that is itself of a gather, which then ends too. No
 * recursion: gathers of gathers may be nested to any depth. */
static void end_all(struct bxi_gather *gather)
{
    static _Thread_local struct bxi_gather *list;
    static _Thread_local bool runs;

    bxi_add(&gather->refs, 1);
    gather->next = list;
    list = gather;
    if (runs)
        return;
    runs = true;
    while (list != NULL) {
        gather = list;
        list = gather->next;
        for (size_t i = 0; i < gather->count; i++) {
            struct bx_future *future = take_hook(gather, &gather->hook[i]);

            if (future != NULL)
                unhook(gather, &gather->hook[i], future);
            bxi_future_release(future);
        }
        bxi_gather_release(gather);
    }
    runs = false;
}

void bxi_gather_end(struct bxi_gather *gather)
{
    struct bx_future *child;

    bxi_lock(&gather->lock);
    child = gather->child;
    gather->child = NULL;
    bxi_unlock(&gather->lock);
    end_all(gather);
    bxi_future_release(child);
}

bool bxi_gather_released(struct bxi_gather *gather, struct bx_future *future)
{
    bool given_up = false, is_done;

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

/* ---- the callbacks ----------------------------------------------------------------------------- */

/* The callback of this hook runs. Lock. The child if the caller is to complete it now, else NULL. */
static struct bx_future *begin_run(struct bxi_gather *gather, size_t index, bool last)
{
    struct bx_future *child = last ? gather->child : NULL;

    gather->hook[index].future = NULL;
    if (last)
        gather->child = NULL;
    return child;
}

static void run_all(struct bx_future *future, struct bxi_callback *callback)
{
    struct bxi_gather *gather = callback->context;
    struct bx_future *child;
    char *text = NULL;
    int code;

    bxi_lock(&gather->lock);
    if (future->code < 0 && gather->code == 0) {
        gather->code = future->code;
        gather->text = strdup(bx_future_error_text(future));
    }
    child = begin_run(gather, callback->index, --gather->left == 0);
    code = gather->code;
    if (child != NULL) {
        text = gather->text;
        gather->text = NULL;
    }
    bxi_unlock(&gather->lock);
    if (child != NULL)
        bxi_future_complete(child, code, text, code == 0 ? bx_msg_create(0) : NULL);
    bxi_future_release(child);
    bxi_gather_release(gather);
}

static void run_any(struct bx_future *future, struct bxi_callback *callback)
{
    struct bxi_gather *gather = callback->context;
    struct bx_msg *value = NULL;
    struct bx_future *child;

    bxi_lock(&gather->lock);
    child = begin_run(gather, callback->index, true);
    bxi_unlock(&gather->lock);
    if (child != NULL && future->code == 0 && (value = bx_msg_create(0)) != NULL)
        bx_msg_put_i64(value, (int64_t)callback->index);
    if (child != NULL)
        bxi_future_complete(child, future->code,
                            future->code < 0 ? strdup(bx_future_error_text(future)) : NULL, value);
    bxi_future_release(child);
    bxi_gather_release(gather);
}

/* ---- making ------------------------------------------------------------------------------------ */

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

static struct bxi_gather *create(struct bx_future *child, size_t count,
                                 void (*run)(struct bx_future *future, struct bxi_callback *callback))
{
    struct bxi_gather *gather = NULL;

    if (count < UINT32_MAX / 2 && count < (SIZE_MAX - sizeof *gather) / sizeof gather->hook[0])
        gather = calloc(1, sizeof *gather + count * sizeof gather->hook[0]);
    if (gather == NULL)
        return NULL;
    bxi_store_relaxed(&gather->refs, (uint32_t)count + 2);     /* relaxed: no other thread knows it yet */
    gather->child = bx_future_acquire(child);
    gather->left = gather->count = count;
    for (size_t i = 0; i < count; i++)
        gather->hook[i].callback = (struct bxi_callback){ .run = run, .context = gather, .index = i };
    bxi_made_of(child)->gather = gather;
    return gather;
}

static struct bx_future *gather_of(struct bx_job *job, struct bx_future *const *futures, size_t count,
                                   void (*run)(struct bx_future *future, struct bxi_callback *callback))
{
    struct bx_future *child = bx_future_create(job);
    struct bxi_gather *gather = child != NULL ? create(child, count, run) : NULL;

    if (gather == NULL) {
        if (child != NULL)
            bx_fail(-ENOMEM, "no memory for the callbacks of %zu futures", count);
        bxi_future_release(child);
        return NULL;
    }
    add_callbacks(gather, futures);
    bxi_gather_release(gather);
    bxi_out(0);
    return child;
}

struct bx_future *bx_future_all(struct bx_job *job, struct bx_future *const *futures, size_t count)
{
    struct bx_future *child;

    if (!has_all(futures, count, __func__))
        return NULL;
    if (count > 0)
        return gather_of(job, futures, count, run_all);
    child = bx_future_create(job);
    if (child != NULL)
        bxi_future_complete(child, 0, NULL, bx_msg_create(0));
    return child;
}

struct bx_future *bx_future_any(struct bx_job *job, struct bx_future *const *futures, size_t count)
{
    return count > 0 && has_all(futures, count, __func__) ? gather_of(job, futures, count, run_any) : NULL;
}

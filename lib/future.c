/* SPDX-License-Identifier: MIT */
/*
 * Futures: set once or failed once, from any thread.
 *
 * The callbacks of one that is not done are a lock-free stack; completing exchanges the stack for
 * BXI_DONE, so a callback is either in the stack that the completer took, or its adder sees BXI_DONE and
 * runs it itself. Whoever completes puts the future in a queue of its own thread and runs the queue only
 * if it is not already doing so: a completion inside a callback does not nest, and a chain of a million
 * `then` needs no stack. No lock is held while callbacks run.
 *
 * A call's future lies in its slot (call.c). Every other one is in a list of its job until it is done, so that
 * bx_job_destroy fails it: nobody else would, and it would name a job that is gone.
 */
#include "internal.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>

typedef void (*callback_fn)(struct bx_future *future, struct bxi_callback *callback);

struct bxi_callback {
    struct bxi_callback *next;
    callback_fn run;            /* frees the callback */
    bx_done_fn done;
    bx_then_fn then;
    void *context;
    struct bx_future *owner;    /* while it waits in a thread's queue; one reference */
    struct bx_future *child;    /* one reference */
    bool sees_errors;
    size_t index;
};

struct bxi_made {               /* a future that is no call: of bx_future_create, then, all and any */
    struct bx_future future;    /* first */
    bool listed;                /* future_lock, these three */
    struct bxi_made *next, *prev;
};

static _Thread_local struct bxi_callback *queue_head, *queue_tail;
static _Thread_local bool queue_runs;

void bxi_future_init(struct bx_future *future, struct bx_job *job)
{
    *future = (struct bx_future){ .refs = 1, .job = job };
}

/* False if the job ends: nobody would fail it. */
static bool enlist(struct bx_job *job, struct bxi_made *made)
{
    bool may;

    bxi_lock(&job->future_lock);
    may = !job->futures_end;
    if (may) {
        made->listed = true;
        made->next = job->futures;
        if (made->next != NULL)
            made->next->prev = made;
        job->futures = made;
    }
    bxi_unlock(&job->future_lock);
    return may;
}

/* By the one who completes it, before anybody can see that it is done. */
static void delist(struct bx_job *job, struct bxi_made *made)
{
    bxi_lock(&job->future_lock);
    if (made->listed) {
        made->listed = false;
        if (made->prev != NULL)
            made->prev->next = made->next;
        else
            job->futures = made->next;
        if (made->next != NULL)
            made->next->prev = made->prev;
    }
    bxi_unlock(&job->future_lock);
}

struct bx_future *bx_future_create(struct bx_job *job)
{
    struct bxi_made *made = calloc(1, sizeof *made);

    if (made == NULL) {
        bx_fail(-ENOMEM, "no memory for a future");
        return NULL;
    }
    bxi_future_init(&made->future, job);
    if (job != NULL && !enlist(job, made)) {
        bx_fail(BX_E_SHUTDOWN, "worker '%s' has shut down: it makes no more futures", job->name);
        free(made);
        return NULL;
    }
    return &made->future;
}

void bxi_futures_end(struct bx_job *job)
{
    for (;;) {
        struct bx_future *future = NULL;
        bool any;

        bxi_lock(&job->future_lock);
        job->futures_end = true;
        any = job->futures != NULL;
        /* Without a reference left, its last holder is about to take it from the list. */
        if (any && bxi_future_try_acquire(&job->futures->future))
            future = &job->futures->future;
        bxi_unlock(&job->future_lock);
        if (!any)
            return;
        if (future == NULL || !bxi_future_complete(future, BX_E_SHUTDOWN,
                                                   bxi_text("worker '%s' has left the job", job->name), NULL))
            sched_yield();          /* another thread completes it */
        bx_future_release(future);
    }
}

struct bx_future *bx_future_acquire(struct bx_future *future)
{
    if (future != NULL)
        bxi_add(&future->refs, 1);
    return future;
}

bool bxi_future_try_acquire(struct bx_future *future)
{
    uint32_t refs = bxi_load_relaxed(&future->refs);

    while (refs != 0)
        if (bxi_cas(&future->refs, &refs, refs + 1))
            return true;
    return false;
}

void bxi_future_fini(struct bx_future *future)
{
    bx_msg_destroy(future->value);
    free(future->text);
}

void bx_future_release(struct bx_future *future)
{
    if (future == NULL || bxi_add(&future->refs, (uint32_t)-1) != 1)
        return;
    if (!bxi_future_is_done(future)) {
        /* Nobody can complete it any more: whoever hangs on it learns so. It lives until they did. */
        bxi_store_relaxed(&future->refs, 1);
        bxi_future_complete(future, BX_E_ABANDONED, NULL, NULL);
        bx_future_release(future);
        return;
    }
    bxi_future_fini(future);
    free(future);
}

/* ---- completion -------------------------------------------------------------------------------- */

static struct bxi_callback *in_order(struct bxi_callback *stack)
{
    struct bxi_callback *list = NULL;

    while (stack != NULL) {
        struct bxi_callback *next = stack->next;

        stack->next = list;
        list = stack;
        stack = next;
    }
    return list;
}

static void run_queue(void)
{
    queue_runs = true;
    bxi_no_wait_enter();
    while (queue_head != NULL) {
        struct bxi_callback *callback = queue_head;
        struct bx_future *future = callback->owner;

        queue_head = callback->next;
        callback->run(future, callback);
        bx_future_release(future);
    }
    bxi_no_wait_leave();
    queue_runs = false;
}

/* The future is done: runs these callbacks now, or after those that are under way. */
static void run_callbacks(struct bx_future *future, struct bxi_callback *list)
{
    while (list != NULL) {
        struct bxi_callback *callback = list;

        list = callback->next;
        callback->next = NULL;
        callback->owner = bx_future_acquire(future);
        if (queue_head == NULL)
            queue_head = callback;
        else
            queue_tail->next = callback;
        queue_tail = callback;
    }
    if (!queue_runs)
        run_queue();
}

bool bxi_future_complete(struct bx_future *future, int code, char *text, struct bx_msg *value)
{
    /* [future.claim] one completer wins; the others' results are dropped. */
    if (bxi_exchange(&future->claimed, 1) != 0) {
        bx_msg_destroy(value);
        free(text);
        return false;
    }

    struct bx_job *job = future->job;

    if (!future->is_call && job != NULL)
        delist(job, (struct bxi_made *)(void *)future);
    future->code = code;
    future->text = text;
    future->value = value;

    /* [future.done] sequentially consistent exchange, pairs with the load in bxi_future_is_done: the
     * result is visible to whoever sees BXI_DONE. A synchronous caller's future lies on its stack and is
     * gone from here on, unless it had callbacks, whose references keep it. */
    struct bxi_callback *stack = atomic_exchange(&future->callbacks, BXI_DONE);

    if (stack != NULL) {
        if (future->is_call)
            bxi_less_eager(job);
        run_callbacks(future, in_order(stack));
    }
    if (job != NULL)
        bxi_wake(job, future);
    return true;
}

int bx_future_set(struct bx_future *future, struct bx_msg *value)
{
    int error = bx_msg_error(value);

    if (future == NULL) {
        bx_msg_destroy(value);
        return bxi_null(__func__, "the future");
    }
    if (error < 0) {
        bx_msg_destroy(value);
        value = NULL;
    }
    if (!bxi_future_complete(future, error, NULL, value))
        return bx_fail(-EALREADY, "the future is done already");
    return 0;
}

int bx_future_fail(struct bx_future *future, int code, const char *text)
{
    if (future == NULL)
        return bxi_null(__func__, "the future");
    if (code >= 0)
        return bx_fail(-EINVAL, "a future fails with a negative code, not %d", code);
    if (!bxi_future_complete(future, code, text != NULL ? strdup(text) : NULL, NULL))
        return bx_fail(-EALREADY, "the future is done already");
    return 0;
}

int bx_future_cancel(struct bx_future *future)
{
    if (future == NULL)
        return bxi_null(__func__, "the future");
    if (bxi_future_is_done(future))
        return bx_fail(-EALREADY, "the future is done already");
    if (future->is_call)
        return bxi_call_cancel((struct bxi_call *)(void *)future);
    return bx_future_fail(future, BX_E_CANCELLED, NULL);
}

/* ---- what it became ---------------------------------------------------------------------------- */

bool bx_future_done(const struct bx_future *future)
{
    if (future == NULL)
        return false;
    if (bxi_future_is_done(future))
        return true;
    /* Who asks again and again must see it happen, though nobody waits. */
    if (future->job != NULL)
        bxi_poke(future->job);
    return bxi_future_is_done(future);
}

int bx_future_error(const struct bx_future *future)
{
    if (future == NULL)
        return bxi_null(__func__, "the future");
    return bxi_future_is_done(future) ? future->code : 0;
}

const char *bx_future_error_text(const struct bx_future *future)
{
    if (future == NULL || bx_future_error(future) == 0)
        return "";
    return future->text != NULL ? future->text : bx_strerror(future->code);
}

const struct bx_msg *bx_future_value(const struct bx_future *future)
{
    return future != NULL && bxi_future_is_done(future) ? future->value : NULL;
}

static bool future_ready(struct bxi_waiter *waiter)
{
    return bxi_future_is_done(waiter->object);
}

int bx_future_wait(struct bx_future *future, uint64_t timeout_ns)
{
    if (future == NULL)
        return bxi_null(__func__, "the future");
    if (!bxi_future_is_done(future)) {
        struct bxi_waiter waiter = {
            .ready = future_ready,
            .object = future,
            .deadline_ns = bxi_deadline_ns(timeout_ns),
        };
        int rc = bxi_job_check(future->job);

        if (rc == 0)
            rc = bxi_wait(future->job, &waiter);
        if (rc == BX_E_TIMEOUT)
            return bx_fail(rc, "the future was not done within %.3f s", (double)timeout_ns / 1e9);
        if (rc == BX_E_WOULD_DEADLOCK)
            return bx_fail(rc, "a handler that is not blocking, a batch body or a callback waited for a "
                               "future; register it as BX_BLOCKING, or use bx_future_then");
        if (rc < 0)
            return rc;
    }
    return future->code < 0 ? bx_fail(future->code, "%s", bx_future_error_text(future)) : 0;
}

/* ---- callbacks --------------------------------------------------------------------------------- */

/* Adds a callback, or runs it at once. The first one on a call means that its reply is to be read as soon
 * as it comes, though no thread waits for it. */
static void add_callback(struct bx_future *future, struct bxi_callback *callback)
{
    struct bxi_callback *head = bxi_load_acquire(&future->callbacks);
    struct bx_job *job = future->job;
    bool first = future->is_call && head == NULL;

    if (first)
        bxi_more_eager(job);
    do {
        if (head == BXI_DONE) {
            callback->next = NULL;
            run_callbacks(future, callback);
            break;
        }
        callback->next = head;
        /* [future.done] release on success, pairs with the exchange in bxi_future_complete: the
         * completer reads the callback's fields. */
    } while (!bxi_cas(&future->callbacks, &head, callback));
    if (first && head != NULL)
        bxi_less_eager(job);        /* somebody else's was the first, or it is done */
}

static void run_done(struct bx_future *future, struct bxi_callback *callback)
{
    callback->done(future, callback->context);
    free(callback);
}

int bx_future_on_done(struct bx_future *future, bx_done_fn fn, void *context)
{
    struct bxi_callback *callback;

    if (future == NULL || fn == NULL)
        return bxi_null(__func__, future == NULL ? "the future" : "the function");
    callback = calloc(1, sizeof *callback);
    if (callback == NULL)
        return bx_fail(-ENOMEM, "no memory for a callback");
    callback->run = run_done;
    callback->done = fn;
    callback->context = context;
    add_callback(future, callback);
    return 0;
}

static void run_then(struct bx_future *future, struct bxi_callback *callback)
{
    struct bx_future *child = callback->child;

    if (future->code < 0 && !callback->sees_errors) {
        bxi_future_complete(child, future->code, future->text != NULL ? strdup(future->text) : NULL, NULL);
    } else {
        struct bx_msg *out = bx_msg_create(0);

        bxi_clear_error();          /* else a code without a sentence would get an older one's */

        int rc = out == NULL ? -ENOMEM : callback->then(future, out, callback->context);
        const char *text = bx_error_text();

        if (rc >= 0)
            rc = bx_msg_error(out);
        if (rc < 0) {
            bx_msg_destroy(out);
            out = NULL;
        }
        bxi_future_complete(child, rc < 0 ? rc : 0, rc < 0 && text[0] != '\0' ? strdup(text) : NULL, out);
    }
    bx_future_release(child);
    free(callback);
}

static struct bx_future *add_then(struct bx_future *future, bx_then_fn fn, void *context, bool sees_errors)
{
    struct bxi_callback *callback;
    struct bx_future *child;

    if (future == NULL || fn == NULL) {
        bxi_null("bx_future_then", future == NULL ? "the future" : "the function");
        return NULL;
    }
    callback = calloc(1, sizeof *callback);
    child = bx_future_create(future->job);
    if (callback == NULL || child == NULL) {
        free(callback);
        bx_future_release(child);
        return NULL;
    }
    callback->run = run_then;
    callback->then = fn;
    callback->context = context;
    callback->sees_errors = sees_errors;
    callback->child = bx_future_acquire(child);
    add_callback(future, callback);
    return child;
}

struct bx_future *bx_future_then(struct bx_future *future, bx_then_fn fn, void *context)
{
    return add_then(future, fn, context, false);
}

struct bx_future *bx_future_then_any(struct bx_future *future, bx_then_fn fn, void *context)
{
    return add_then(future, fn, context, true);
}

/* ---- all and any ------------------------------------------------------------------------------- */

struct gather {                     /* of one bx_future_all */
    bxi_a32 left;
    bxi_a32 failed;
    int code;
    char *text;
};

static void run_all(struct bx_future *future, struct bxi_callback *callback)
{
    struct gather *gather = callback->context;

    /* [gather.failed] the first failure writes code and text; the count below publishes them. */
    if (future->code < 0 && bxi_exchange(&gather->failed, 1) == 0) {
        gather->code = future->code;
        gather->text = strdup(bx_future_error_text(future));
    }
    /* [gather.left] acquire and release: the last one reads what the first failure wrote. */
    if (bxi_add(&gather->left, (uint32_t)-1) == 1) {
        int code = gather->code;
        struct bx_msg *value = code == 0 ? bx_msg_create(0) : NULL;

        bxi_future_complete(callback->child, code, gather->text, value);
        free(gather);
    }
    bx_future_release(callback->child);
    free(callback);
}

static void run_any(struct bx_future *future, struct bxi_callback *callback)
{
    struct bx_msg *value = NULL;

    if (future->code == 0 && (value = bx_msg_create(0)) != NULL)
        bx_msg_put_i64(value, (int64_t)callback->index);
    bxi_future_complete(callback->child, future->code,
                        future->code < 0 ? strdup(bx_future_error_text(future)) : NULL, value);
    bx_future_release(callback->child);
    free(callback);
}

/* One callback with one reference to child for each future; none is added before all are there. */
static int join(struct bx_future *const *futures, size_t count, struct bx_future *child, callback_fn run,
                struct gather *gather)
{
    struct bxi_callback *list = NULL;

    for (size_t i = count; i-- > 0;) {
        struct bxi_callback *callback = calloc(1, sizeof *callback);

        if (callback == NULL)
            goto no_memory;
        *callback = (struct bxi_callback){ .next = list, .run = run, .context = gather, .child = child,
                                           .index = i };
        list = callback;
    }
    bxi_add(&child->refs, (uint32_t)count);
    for (size_t i = 0; i < count; i++) {
        struct bxi_callback *next = list->next;

        add_callback(futures[i], list);
        list = next;
    }
    return 0;

no_memory:
    while (list != NULL) {
        struct bxi_callback *next = list->next;

        free(list);
        list = next;
    }
    return -ENOMEM;
}

/* Are they all there? */
static bool has_all(struct bx_future *const *futures, size_t count, const char *function)
{
    bool has = futures != NULL || count == 0;

    for (size_t i = 0; has && i < count; i++)
        has = futures[i] != NULL;
    if (!has)
        bxi_null(function, "one of the futures");
    return has;
}

struct bx_future *bx_future_all(struct bx_job *job, struct bx_future *const *futures, size_t count)
{
    struct bx_future *child = has_all(futures, count, __func__) ? bx_future_create(job) : NULL;
    struct gather *gather = child != NULL ? calloc(1, sizeof *gather) : NULL;

    if (gather == NULL)
        goto no_memory;
    if (count == 0) {
        free(gather);
        bxi_future_complete(child, 0, NULL, bx_msg_create(0));
        return child;
    }
    bxi_store_relaxed(&gather->left, (uint32_t)count);
    if (join(futures, count, child, run_all, gather) < 0)
        goto no_memory;
    return child;

no_memory:
    free(gather);
    bx_future_release(child);
    return NULL;
}

struct bx_future *bx_future_any(struct bx_job *job, struct bx_future *const *futures, size_t count)
{
    struct bx_future *child = count > 0 && has_all(futures, count, __func__) ? bx_future_create(job) : NULL;

    if (child != NULL && join(futures, count, child, run_any, NULL) < 0) {
        bx_future_release(child);
        return NULL;
    }
    return child;
}

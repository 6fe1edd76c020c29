/* SPDX-License-Identifier: MIT */
/*
 * Futures: set once or failed once, from any thread.
 *
 * The callbacks of a future that is not done are a lock-free stack. Completing exchanges the stack for BXI_DONE, so a
 * callback is either in the stack that the completer took, or its adder sees BXI_DONE and runs it. The completer
 * appends the callbacks to a queue of its thread, and runs the queue unless it is already doing so: a completion inside
 * a callback does not nest, and a chain of a million `then` needs no stack. No lock is held while callbacks run.
 *
 * A call's future is completed by the thread that took the call out of its slot (call_end.c), and by no other: the
 * program cannot set it. All references to it are the program's; each of its callbacks has one while it waits. The
 * engine needs none: whoever releases the last one before the reply leaves BXI_UNWANTED for the completer, who frees
 * it. Every other one is in a list of its job until it is done, so that bx_job_destroy can fail it;
 * otherwise it would name a job that is gone.
 *
 * An error that nobody was told of is logged when the future's memory is freed: the last reference was released, and no
 * callback ran, no wait returned it, no question answered with it.
 */
#include "future.h"

#include "shm/backoff.h"

#include <errno.h>
#include <stdlib.h>

static _Thread_local struct bxi_callback *queue_head, *queue_tail;
static _Thread_local bool queue_runs;

/* A pending future touches its job, which a forked child must not. One that is done may have outlived it. */
static int may_touch(const struct bx_future *future)
{
    return future->job == NULL || bxi_future_is_done(future) ? 0 : bxi_job_check_any(future->job);
}

int bxi_future_check(const struct bx_future *future, const char *function)
{
    return future != NULL ? may_touch(future) : bxi_null(function, "the future");
}

/* False if the job ends: the future would never be failed. */
static bool enlist(struct bx_job *job, struct bxi_made *made)
{
    bool may;

    bxi_lock(&job->rpc->future_lock);
    may = !job->rpc->futures_end;
    if (may) {
        made->next = job->rpc->futures;
        if (made->next != NULL)
            made->next->prev = made;
        job->rpc->futures = made;
    }
    bxi_unlock(&job->rpc->future_lock);
    return may;
}

/* By the completer, before any thread can see that it is done. */
static void delist(struct bx_job *job, struct bxi_made *made)
{
    bxi_lock(&job->rpc->future_lock);
    if (made->prev != NULL)
        made->prev->next = made->next;
    else
        job->rpc->futures = made->next;
    if (made->next != NULL)
        made->next->prev = made->prev;
    bxi_unlock(&job->rpc->future_lock);
}

struct bx_future *bx_future_create(struct bx_job *job)
{
    struct bxi_made *made;

    if (job != NULL && bxi_job_check_any(job) < 0)
        return NULL;
    made = malloc(sizeof *made);
    if (made == NULL) {
        bx_fail(-ENOMEM, "no memory for a future");
        return NULL;
    }
    *made = (struct bxi_made){ .future = { .refs = 1, .job = job } };
    if (job != NULL && !enlist(job, made)) {
        bx_fail(BX_E_SHUTDOWN, "worker '%s' has shut down: it makes no more futures", job->name);
        free(made);
        return NULL;
    }
    return &made->future;
}

void bxi_futures_end(struct bx_job *job)
{
    for (uint32_t turns = 0;;) {
        struct bx_future *future = NULL;
        bool any;

        bxi_lock(&job->rpc->future_lock);
        job->rpc->futures_end = true;
        any = job->rpc->futures != NULL;
        /* No reference is left: the thread that released the last one is about to take it from the list. */
        if (any && bxi_future_try_acquire(&job->rpc->futures->future))
            future = &job->rpc->futures->future;
        bxi_unlock(&job->rpc->future_lock);
        if (!any)
            return;
        if (future == NULL || !bxi_future_complete(future, BX_E_SHUTDOWN,
                                                   bxi_text("worker '%s' has left the job", job->name), NULL))
            bxi_back_off(&turns);   /* another thread completes it */
        bxi_future_release(future);
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
    if (!future->is_call || future->value != bxi_call_small((struct bxi_call *)(void *)future))
        bx_msg_destroy(future->value);
    if (future->text != NULL)       /* else a call is saved */
        free(future->text);
}

static void note_heard(const struct bx_future *future)
{
    /* Relaxed: the thread that drops the last reference has acquired the releases of the others. */
    bxi_store_relaxed(&((struct bx_future *)(uintptr_t)future)->heard, 1);
}

/* Its job may be gone. The program knows of what it cancelled or abandoned itself, and that it leaves. */
static void log_unheard(const struct bx_future *future)
{
    const int code = future->code;

    /* Relaxed: as in note_heard. */
    if (bxi_load_relaxed(&((struct bx_future *)(uintptr_t)future)->heard) == 0 && code != BX_E_CANCELLED &&
        code != BX_E_ABANDONED && code != BX_E_SHUTDOWN)
        bxi_log(NULL, 1, "a future was released unread, and it has failed: %s",
                future->text != NULL ? future->text : bx_strerror(code));
}

static void destroy(struct bx_future *future)
{
    if (__builtin_expect(future->code < 0, 0))
        log_unheard(future);
    bxi_future_fini(future);
    if (future->is_call)
        bxi_call_free((struct bxi_call *)(void *)future);
    else
        free(future);
}

/* True if it was the last. A call's future is in no list, so nobody can take a reference to it who has none: with one
 * left, it needs no locked instruction. */
static bool drop_reference(struct bx_future *future)
{
    /* [future.refs] acquire, pairs with the addition below: what other threads did with the future is done. */
    if (future->is_call && bxi_load_acquire(&future->refs) == 1)
        return true;
    /* [future.refs] release, pairs with the load above, and acquire, with the other threads' releases. */
    return bxi_add(&future->refs, (uint32_t)-1) == 1;
}

void bxi_future_release(struct bx_future *future)
{
    struct bxi_gather *gather;

    if (future == NULL)
        return;
    gather = future->is_call ? NULL : bxi_made_of(future)->gather;
    if (gather != NULL && (may_touch(future) < 0 || bxi_gather_released(gather, future)))
        return;
    if (!drop_reference(future))
        return;
    if (future->is_call) {
        struct bxi_callback *none = NULL;

        /* [future.done] pairs with the exchange in set_done: one of the two threads sees the other, and destroys it.
         * Its job is not read: it may be freed as soon as the call is done. A forked child marks its own copy, which
         * nobody completes. */
        if (bxi_future_is_done(future) || !bxi_cas(&future->callbacks, &none, BXI_UNWANTED))
            destroy(future);
        return;
    }
    if (may_touch(future) < 0)
        return;                     /* callbacks and memory are the parent's */
    if (!bxi_future_is_done(future)) {
        /* The last reference is gone: complete with BX_E_ABANDONED, keep one until the callbacks have run. */
        bxi_store_relaxed(&future->refs, 1);
        bxi_future_complete(future, BX_E_ABANDONED, NULL, NULL);
        bxi_future_release(future);
        return;
    }
    if (gather != NULL && bxi_gather_lends_value(gather))
        future->value = NULL;
    destroy(future);
    if (gather != NULL)
        bxi_gather_release(gather);
}

void bx_future_release(struct bx_future *future)
{
    bxi_future_release(future);
    bxi_out(0);
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
    bxi_error_enter();
    while (queue_head != NULL) {
        struct bxi_callback *callback = queue_head;
        struct bx_future *future = callback->owner;

        queue_head = callback->next;
        callback->run(future, callback);
        bxi_future_release(future);
    }
    bxi_error_leave();
    bxi_no_wait_leave();
    queue_runs = false;
}

/* The future is done: runs these callbacks now, or, in a callback, after those that are queued. */
static void run_callbacks(struct bx_future *future, struct bxi_callback *list)
{
    if (future->code < 0)
        note_heard(future);
    while (list != NULL) {
        struct bxi_callback *callback = list;

        list = callback->next;
        callback->next = NULL;
        if (!future->is_call)           /* else it has had one since it was added */
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

static void set_result(struct bx_future *future, int code, char *text, struct bx_msg *value)
{
    future->code = code;
    future->text = text;
    future->value = value;
}

/* [future.done] sequentially consistent exchange, pairs with the load in bxi_future_is_done: the result is visible to
 * a thread that sees BXI_DONE. Returns the callbacks. */
static struct bxi_callback *set_done(struct bx_future *future)
{
    return atomic_exchange(&future->callbacks, BXI_DONE);
}

void bxi_future_complete_call(struct bx_future *future, int code, char *text, struct bx_msg *value)
{
    struct bx_job *job = future->job;
    struct bxi_callback *stack;

    set_result(future, code, text, value);
    stack = set_done(future);       /* without callbacks it may be gone from here on */
    if (stack == BXI_UNWANTED) {
        destroy(future);
        return;
    }
    if (stack != NULL) {
        bxi_less_eager(job->run);
        run_callbacks(future, in_order(stack));
    }
}

void bxi_future_complete_own(struct bx_future *future, int code, char *text, struct bx_msg *value)
{
    set_result(future, code, text, value);
    bxi_store_relaxed(&future->callbacks, BXI_DONE);    /* relaxed: only this thread reads it */
}

bool bxi_future_claim(struct bx_future *future)
{
    /* [future.claim] one completer wins; the others' results are dropped. */
    return bxi_exchange(&bxi_made_of(future)->claimed, 1) == 0;
}

void bxi_future_finish(struct bx_future *future, int code, char *text, struct bx_msg *value)
{
    struct bx_job *job = future->job;
    struct bxi_made *made = bxi_made_of(future);
    struct bxi_gather *gather = made->gather;
    struct bxi_callback *stack;

    if (job != NULL)
        delist(job, made);
    set_result(future, code, text, value);
    stack = set_done(future);
    if (stack != NULL)
        run_callbacks(future, in_order(stack));
    /* A callback may have released the last reference. That of a gather is there: its gather has one. */
    if (gather != NULL)
        bxi_gather_end(gather);
    if (job != NULL)
        bxi_wake(job->run, future);
}

bool bxi_future_complete(struct bx_future *future, int code, char *text, struct bx_msg *value)
{
    if (!bxi_future_claim(future)) {
        bx_msg_destroy(value);
        free(text);
        return false;
    }
    bxi_future_finish(future, code, text, value);
    return true;
}

char *bxi_future_text(const struct bx_future *future)
{
    return future->text != NULL ? strdup(future->text) : NULL;
}

/* For a public function: 0; -EINVAL with a sentence for a call's future. */
static int check_completable(const struct bx_future *future, const char *function)
{
    int rc = bxi_future_check(future, function);

    if (rc < 0 || !future->is_call)
        return rc;
    return bx_fail(-EINVAL, "%s: the future of a call is done when its reply comes; bx_future_cancel ends it before, "
                            "and one of bx_future_then can have another value", function);
}

int bx_future_set(struct bx_future *future, struct bx_msg *value)
{
    int error = bx_msg_error(value), rc = check_completable(future, __func__);

    if (rc < 0) {
        bx_msg_destroy(value);
        return rc;
    }
    if (error < 0) {
        bx_msg_destroy(value);
        value = NULL;
    }
    if (!bxi_future_complete(future, error, NULL, value))
        return bx_fail(-EALREADY, "the future is done already");
    return bxi_out(0);
}

int bx_future_fail(struct bx_future *future, int code, const char *text)
{
    int rc = check_completable(future, __func__);

    if (rc < 0)
        return rc;
    if (code >= 0)
        return bx_fail(-EINVAL, "a future fails with a negative code, not %d", code);
    if (!bxi_future_complete(future, code, text != NULL ? strdup(text) : NULL, NULL))
        return bx_fail(-EALREADY, "the future is done already");
    return bxi_out(0);
}

/* ---- what it became ---------------------------------------------------------------------------- */

bool bx_future_is_done(const struct bx_future *future)
{
    if (future == NULL)
        return false;
    if (bxi_future_is_done(future))
        return true;
    /* A program that polls must make progress, though no thread waits. */
    if (future->job != NULL)
        bxi_poke(future->job->run);
    bxi_out(0);
    return bxi_future_is_done(future);
}

int bx_future_error(const struct bx_future *future)
{
    if (future == NULL)
        return bxi_null(__func__, "the future");
    if (!bxi_future_is_done(future) || future->code >= 0)
        return 0;
    note_heard(future);
    return future->code;
}

const char *bx_future_error_text(const struct bx_future *future)
{
    if (future == NULL || bx_future_error(future) == 0)
        return "";
    return future->text != NULL ? future->text : bx_strerror(future->code);
}

const struct bx_msg *bx_future_value(const struct bx_future *future)
{
    if (future == NULL || !bxi_future_is_done(future))
        return NULL;
    if (future->code < 0)
        note_heard(future);
    return future->value;
}

/* What a wait for it shows. */
static struct bxi_wait_shown shown(const struct bx_future *future)
{
    const struct bxi_call *call = (const struct bxi_call *)(const void *)future;

    if (!future->is_call)
        return (struct bxi_wait_shown){ .reason = BXI_FOR_FUTURE };
    return (struct bxi_wait_shown){ .reason = BXI_FOR_CALL, .to = (int16_t)call->peer->rank, .id = call->id };
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
            .needs_others = future->is_call ? bxi_call_needs_others : NULL,
            .shown = shown(future),
        };
        int rc = bxi_job_check(future->job);

        if (rc == 0)
            rc = bxi_out(bxi_wait(future->job->run, &waiter));
        if (rc == BX_E_TIMEOUT)
            return bx_fail(rc, "the future was not done within %.3f s", (double)timeout_ns / 1e9);
        if (rc == BX_E_WOULD_DEADLOCK)
            return bx_fail(rc, "a handler that is not blocking, a batch body or a callback waited for a "
                               "future; register it as BX_BLOCKING, or use bx_future_then");
        if (rc == BX_E_INTERRUPTED)
            return bx_fail(rc, "bx_job_interrupt ended a wait for a future, which is not done");
        if (rc < 0)
            return rc;
    }
    return future->code < 0 ? bx_fail(future->code, "%s", bx_future_error_text(future)) : 0;
}

/* ---- callbacks --------------------------------------------------------------------------------- */

/* A callback that is put on the empty stack of a call makes this worker eager: the reply is read as soon as it comes,
 * though no thread waits for it. The stack may get empty between the load and the exchange (bxi_callback_remove). */
void bxi_callback_add(struct bx_future *future, struct bxi_callback *callback)
{
    struct bxi_callback *head = bxi_load_acquire(&future->callbacks);
    struct bx_job *job = future->job;
    bool is_eager = false;

    if (future->is_call)
        callback->owner = bx_future_acquire(future);
    do {
        if (head == BXI_DONE) {
            callback->next = NULL;
            run_callbacks(future, callback);
            break;
        }
        if (future->is_call && head == NULL && !is_eager) {
            bxi_more_eager(job->run);           /* before another thread can end the call */
            is_eager = true;
        }
        callback->next = head;
        /* [future.done] release on success, pairs with the exchange in set_done: the
         * completer reads the callback's fields. */
    } while (!bxi_cas(&future->callbacks, &head, callback));
    if (is_eager && head != NULL)
        bxi_less_eager(job->run);               /* another thread's is below it, or it is done */
}

/* Takes the callback out of a stack, and puts the others before those of `older`. */
static struct bxi_callback *sift(struct bxi_callback *stack, const struct bxi_callback *callback,
                                 struct bxi_callback *older, bool *found)
{
    struct bxi_callback *kept = NULL, **end = &kept;

    for (; stack != NULL; stack = stack->next) {
        if (stack == callback) {
            *found = true;
            continue;
        }
        *end = stack;
        end = &stack->next;
    }
    *end = older;
    return kept;
}

/*
 * One thread at a time takes the stack, sifts it and puts it back. A thread that adds meanwhile adds to an empty stack.
 * A thread that completes meanwhile takes some of the callbacks or none, and this one runs the others.
 * The stack of a call counts once in job->run->eager while it is not empty: for a stack that was taken and not put
 * back, eager becomes one less.
 */
bool bxi_callback_remove(struct bx_future *future, struct bxi_callback *callback)
{
    static struct bxi_lock sifting;
    struct bxi_callback *kept = NULL;
    uint32_t taken = 0;
    bool found = false;

    bxi_lock(&sifting);
    for (;;) {
        /* [future.done] acquire, pairs with the CAS in bxi_callback_add: what is taken is read. */
        struct bxi_callback *head = bxi_load_acquire(&future->callbacks);

        if (head == BXI_DONE || (head == NULL && kept == NULL))
            break;
        /* [future.done] acquire and release: what is taken was added by the CAS in bxi_callback_add, and what is
         * put back pairs with the exchange in set_done. */
        if (!bxi_cas(&future->callbacks, &head, head == NULL ? kept : NULL))
            continue;
        if (head == NULL) {
            kept = NULL;
            taken--;
            break;
        }
        kept = sift(head, callback, kept, &found);
        taken++;
    }
    bxi_unlock(&sifting);
    for (; future->is_call && taken > 0; taken--)
        bxi_less_eager(future->job->run);
    if (kept != NULL)
        run_callbacks(future, in_order(kept));
    if (found)
        note_heard(future);                 /* by the gather, which needs it no more */
    if (found && future->is_call)
        bxi_future_release(future);         /* the callback's; the caller has another */
    return found;
}

int bxi_callback_call(const struct bxi_callback *callback, struct bx_future *future, void *b, void *c, bxi_user_fn fn)
{
    struct bxi_nesting before = bxi_nested_enter(callback->made_for);
    int rc = bxi_call_user_with(future, b, c, NULL, fn);

    bxi_nested_leave(before);
    return rc;
}

static void free_callback(struct bxi_callback *callback)
{
    bxi_waiting_release(callback->made_for);
    free(callback);
}

static void run_done(struct bx_future *future, struct bxi_callback *callback)
{
    bxi_callback_call(callback, future, callback->context, NULL, (bxi_user_fn)callback->done);
    free_callback(callback);
}

int bxi_future_on_done(struct bx_future *future, bx_done_fn fn, void *context)
{
    struct bxi_callback *callback;
    int rc = bxi_future_check_callback(future, fn != NULL, "bx_future_on_done");

    if (rc < 0)
        return rc;
    callback = malloc(sizeof *callback);
    if (callback == NULL)
        return bx_fail(-ENOMEM, "no memory for a callback");
    *callback = (struct bxi_callback){ .run = run_done, .done = fn, .context = context,
                                       .made_for = bxi_waiting_acquire(bxi_nested_in()) };
    bxi_callback_add(future, callback);
    return 0;
}

int bx_future_on_done(struct bx_future *future, bx_done_fn fn, void *context)
{
    return bxi_out(bxi_future_on_done(future, fn, context));
}

static void run_then(struct bx_future *future, struct bxi_callback *callback)
{
    struct bx_future *child = callback->child;
    struct bx_msg *out = NULL;
    char *text = NULL;
    int rc = future->code;

    if (rc < 0 && !callback->sees_errors) {
        text = bxi_future_text(future);
    } else {
        out = bx_msg_create(0);
        bxi_clear_error();          /* else a code without a sentence would get an older sentence */
        rc = out == NULL ? -ENOMEM
                         : bxi_callback_call(callback, future, out, callback->context, (bxi_user_fn)callback->then);
        if (rc >= 0)
            rc = bx_msg_error(out);
        if (rc < 0) {
            bx_msg_destroy(out);
            out = NULL;
            text = bx_error_text()[0] != '\0' ? strdup(bx_error_text()) : NULL;
        }
    }
    if (callback->free_context != NULL)
        callback->free_context(callback->context);
    bxi_future_complete(child, rc < 0 ? rc : 0, text, out);
    bxi_future_release(child);
    free_callback(callback);
}

int bxi_future_check_callback(const struct bx_future *future, bool has_fn, const char *function)
{
    if (future == NULL || !has_fn)
        return bxi_null(function, future == NULL ? "the future" : "the function");
    return may_touch(future);
}

static struct bx_future *add_then(struct bx_future *future, const struct bxi_callback *like)
{
    struct bxi_callback *callback;
    struct bx_future *child;

    if (bxi_future_check_callback(future, like->then != NULL, "bx_future_then") < 0)
        return NULL;
    callback = malloc(sizeof *callback);
    child = bx_future_create(future->job);
    if (callback == NULL || child == NULL) {
        if (child != NULL)
            bx_fail(-ENOMEM, "no memory for the callback of a future");
        free(callback);
        bxi_future_release(child);
        return NULL;
    }
    *callback = *like;
    callback->run = run_then;
    callback->child = bx_future_acquire(child);
    callback->made_for = bxi_waiting_acquire(bxi_nested_in());
    bxi_callback_add(future, callback);
    bxi_out(0);
    return child;
}

struct bx_future *bx_future_then(struct bx_future *future, bx_then_fn fn, void *context, bx_free_fn free_context)
{
    return add_then(future, &(struct bxi_callback){ .then = fn, .context = context, .free_context = free_context });
}

struct bx_future *bx_future_then_any(struct bx_future *future, bx_then_fn fn, void *context, bx_free_fn free_context)
{
    return add_then(future, &(struct bxi_callback){ .then = fn, .context = context, .free_context = free_context,
                                                    .sees_errors = true });
}

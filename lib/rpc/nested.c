/* SPDX-License-Identifier: MIT */
/*
 * Calls that a handler makes for the request that it answers, and the hook of a blocking handler.
 *
 * A thread that runs a blocking or async handler notes the request in bxi_nesting, and a callback that is added there
 * notes it too. A call that this thread makes gets the request's deadline if that is earlier (call.c), and its id is
 * kept at the request. When the caller gives the request up (cancel.c), the calls that are still open are taken out of
 * their slots and fail, and their callees are sent cancels, which end what those have called in turn.
 *
 * A call that ends does not touch the list: an id with its peer names a slot and its generation, so a call that has
 * ended is recognised, and removed when the list is full. So a call costs nothing more when it ends, and a call outside
 * of handlers costs the read of bxi_nesting.
 *
 * request->gave_up is 0 at first. The first of the answer and the caller's giving up decides: BXI_ANSWERED, or a code.
 * Once it is not 0 no call is added. Callbacks may run when the request has been answered and its object is gone; so
 * they have references to its memory.
 *
 * The hook is set by the handler, runs once, by the role, and is removed by the handler or when that has returned.
 * While hook.runs names a thread, another thread that removes it backs off: the hook must not wait, so that is short.
 */
#include "nested.h"

#include "shm/backoff.h"

#include <errno.h>
#include <stdlib.h>

#define FEW 4                       /* calls for which a request has room at first */

_Thread_local struct bxi_nesting bxi_nesting;

/* ---- references ------------------------------------------------------------------------------------- */

struct bxi_waiting *bxi_waiting_acquire(struct bxi_waiting *waiting)
{
    if (waiting != NULL)
        bxi_add(&waiting->refs, 1);
    return waiting;
}

void bxi_waiting_release(struct bxi_waiting *waiting)
{
    if (waiting == NULL)
        return;
    /* [waiting.refs] acquire, pairs with the addition below: what other threads did with it is done. With one left, no
     * other thread can take another. */
    if (bxi_load_acquire(&waiting->refs) != 1)
        /* [waiting.refs] release, pairs with the load above, and acquire, with the other threads' releases. */
        if (bxi_add(&waiting->refs, (uint32_t)-1) != 1)
            return;
    if (waiting->calls != NULL)
        free(waiting->calls);
    free(waiting);
}

/* ---- why it is over --------------------------------------------------------------------------------- */

/* 0: it is not; BXI_ANSWERED; or the code with which its caller gave up. */
static int over(struct bxi_waiting *waiting)
{
    /* Relaxed: changed by a compare-and-swap, and nothing is read after it. */
    return (int)bxi_load_relaxed(&waiting->gave_up);
}

bool bxi_nested_is_over(struct bxi_waiting *waiting)
{
    return over(waiting) < 0;
}

bool bxi_nested_is_cancelled(struct bxi_waiting *waiting)
{
    int gave_up = over(waiting);

    return gave_up == BX_E_CANCELLED || gave_up == BX_E_TIMEOUT;
}

/* With what a call for it fails. */
static int code_of(int gave_up)
{
    return gave_up == BX_E_TIMEOUT ? BX_E_TIMEOUT : BX_E_CANCELLED;
}

/* The end of a sentence that names the caller. */
static const char *what_of(int gave_up)
{
    switch (gave_up) {
    case BX_E_TIMEOUT:
        return "whose deadline has passed";
    case BX_E_PEER_DEAD:
        return "which died";
    case BX_E_SHUTDOWN:
        return "which has left the job";
    case BX_E_CORRUPT:
        return "which was cut off";
    default:
        return "which cancelled it";
    }
}

/* ---- its calls (lock) ------------------------------------------------------------------------------- */

struct bxi_nested_call {
    struct bxi_peer *peer;
    uint64_t id;
};

/* NULL: it has ended. */
static struct bxi_call *open_call(const struct bxi_nested_call *nested)
{
    uint16_t index = (uint16_t)(nested->id & 0xffff);
    const struct bxi_slot *slot = &nested->peer->slots[index];      /* slots are never removed */

    return slot->state == BXI_SLOT_LIVE && slot->generation == nested->id >> 16 ? slot->call : NULL;
}

static void remove_ended(struct bxi_waiting *waiting)
{
    uint32_t left = 0;

    for (uint32_t i = 0; i < waiting->call_count; i++)
        if (open_call(&waiting->calls[i]) != NULL)
            waiting->calls[left++] = waiting->calls[i];
    waiting->call_count = left;
}

int bxi_nested_reserve(struct bxi_waiting *waiting)
{
    const struct bx_request *request = &waiting->request;
    uint32_t capacity = waiting->call_capacity;
    struct bxi_nested_call *more;
    int gave_up = over(waiting);

    if (gave_up < 0)
        return bx_fail(code_of(gave_up), "no call is made any more for the call of '%s' by worker '%s', %s",
                       request->handler->name, request->peer->name, what_of(gave_up));
    if (gave_up == BXI_ANSWERED || waiting->call_count < capacity)
        return 0;
    remove_ended(waiting);
    if (waiting->call_count < capacity / 2)
        return 0;
    capacity = capacity == 0 ? FEW : capacity * 2;
    more = realloc(waiting->calls, capacity * sizeof *more);
    if (more == NULL)
        return bx_fail(-ENOMEM, "no memory for a call that is made for another");
    waiting->calls = more;
    waiting->call_capacity = capacity;
    return 0;
}

void bxi_nested_add(struct bxi_waiting *waiting, const struct bxi_call *call)
{
    if (over(waiting) == 0)
        waiting->calls[waiting->call_count++] = (struct bxi_nested_call){ call->peer, call->id };
}

/* ---- the end ---------------------------------------------------------------------------------------- */

bool bxi_nested_give_up(struct bxi_waiting *waiting, int code)
{
    uint32_t open = 0;

    /* [waiting.gave_up] claim: the first reason counts. */
    if (waiting->request.oneway || !bxi_cas(&waiting->gave_up, &open, (uint32_t)code))
        return false;
    bxi_waiting_acquire(waiting);
    return true;
}

/* Its open calls as a list, taken out of their slots. */
static struct bxi_call *take_calls(struct bx_job *job, struct bxi_waiting *waiting, int code)
{
    struct bxi_call *list = NULL, **end = &list;

    bxi_lock(&job->run->lock);
    for (uint32_t i = 0; i < waiting->call_count; i++) {
        struct bxi_call *call = open_call(&waiting->calls[i]);

        if (call == NULL)
            continue;
        *end = bxi_call_drop(job, call->peer, call->slot, code);
        (*end)->next = NULL;
        end = &(*end)->next;
    }
    waiting->call_count = 0;
    bxi_unlock(&job->run->lock);
    return list;
}

static void end_calls(struct bx_job *job, struct bxi_waiting *waiting)
{
    const struct bx_request *request = &waiting->request;
    int gave_up = over(waiting);
    struct bxi_call *list = take_calls(job, waiting, code_of(gave_up));

    while (list != NULL) {
        struct bxi_call *call = list;
        char *text = bxi_text("the call to worker '%s' was cancelled: it was made for a call of '%s' by worker '%s', "
                              "%s", call->peer->name, request->handler->name, request->peer->name, what_of(gave_up));

        list = call->next;
        bxi_call_complete(call, code_of(gave_up), text, NULL);
    }
}

/* ---- the hook --------------------------------------------------------------------------------------- */

static void run_hook(const struct bxi_hook *hook)
{
    bxi_no_wait_enter();
    bxi_error_enter();
    bxi_call_user_with(hook->context, NULL, NULL, NULL, (bxi_user_fn)hook->fn);
    bxi_error_leave();
    bxi_no_wait_leave();
}

/* Lock. True if there is one: it is this thread's to run. */
static bool take_hook(struct bx_job *job, struct bxi_hook *hook)
{
    if (hook->fn == NULL || hook->runs != NULL)
        return false;
    bxi_timer_clear(job->run, &hook->timer);
    hook->runs = bxi_this_thread();
    return true;
}

/* The request may be gone when this returns. */
static void run_taken(struct bx_job *job, struct bxi_hook *hook)
{
    run_hook(hook);
    bxi_lock(&job->run->lock);
    hook->runs = NULL;
    bxi_unlock(&job->run->lock);
}

void bxi_nested_end(struct bxi_waiting *waiting)
{
    struct bx_job *job = waiting->request.job;
    bool hooked;

    end_calls(job, waiting);
    /* Relaxed: a thread that counted itself later has seen, under the lock, that the request is over. */
    if (bxi_load_relaxed(&waiting->room_waits) != 0)
        bxi_wake(job->run, NULL);
    bxi_lock(&job->run->lock);
    hooked = take_hook(job, &waiting->hook);
    bxi_unlock(&job->run->lock);
    if (hooked)
        run_taken(job, &waiting->hook);
    bxi_waiting_release(waiting);
}

/* The request's deadline; with the lock held. */
static void hook_due(void *context, struct bxi_timer *timer)
{
    struct bxi_hook *hook = (struct bxi_hook *)(void *)((char *)timer - offsetof(struct bxi_hook, timer));
    struct bxi_waiting *waiting = (struct bxi_waiting *)(void *)((char *)hook - offsetof(struct bxi_waiting, hook));
    struct bx_job *job = context;

    if (!bxi_nested_give_up(waiting, BX_E_TIMEOUT))
        return;
    waiting->next_row = job->rpc->hooks_due;
    job->rpc->hooks_due = waiting;
}

void bxi_hooks_run(struct bx_job *job)
{
    struct bxi_waiting *list;

    bxi_lock(&job->run->lock);
    list = job->rpc->hooks_due;
    job->rpc->hooks_due = NULL;
    bxi_unlock(&job->run->lock);
    while (list != NULL) {
        struct bxi_waiting *waiting = list;

        list = waiting->next_row;
        bxi_nested_end(waiting);
    }
}

void bxi_hook_end(struct bxi_waiting *waiting)
{
    struct bx_job *job = waiting->request.job;
    struct bxi_hook *hook = &waiting->hook;
    uint32_t turns = 0;

    bxi_lock(&job->run->lock);
    while (hook->runs != NULL && hook->runs != bxi_this_thread()) {
        bxi_unlock(&job->run->lock);
        bxi_back_off(&turns);
        bxi_lock(&job->run->lock);
    }
    if (hook->runs == NULL) {
        hook->fn = NULL;
        bxi_timer_clear(job->run, &hook->timer);
    }
    bxi_unlock(&job->run->lock);
}

/* ---- what a handler may ask ------------------------------------------------------------------------- */

bool bx_request_is_cancelled(const struct bx_request *request)
{
    if (request == NULL || request->oneway)
        return false;
    /* Relaxed: a later call sees it. */
    if (bxi_load_relaxed(&request->peer->state) != BXI_PEER_ALIVE)
        return true;
    if (request->counted && bxi_nested_is_over((struct bxi_waiting *)(void *)(uintptr_t)request))
        return true;
    return request->deadline_ns != BX_FOREVER && request->deadline_ns <= bxi_now_ns();
}

/* 1: it was set; 0: the request is over; -ENOMEM. */
static int set_hook(struct bxi_waiting *waiting, const struct bxi_hook *hook)
{
    const struct bx_request *request = &waiting->request;
    struct bx_job *job = request->job;
    int rc = 1;

    bxi_lock(&job->run->lock);
    if (bx_request_is_cancelled(request))
        rc = 0;
    else if (!request->oneway && request->deadline_ns != BX_FOREVER)
        rc = bxi_timer_set(job->run, &waiting->hook.timer, request->deadline_ns) < 0 ? -ENOMEM : 1;
    if (rc == 1) {
        waiting->hook.fn = hook->fn;
        waiting->hook.context = hook->context;
    }
    bxi_unlock(&job->run->lock);
    return rc;
}

int bx_request_on_cancel(const struct bx_request *request, bx_cancel_fn fn, void *context)
{
    struct bxi_waiting *waiting = (struct bxi_waiting *)(void *)(uintptr_t)request;
    const struct bxi_hook hook = { .fn = fn, .context = context };
    int rc;

    if (request == NULL)
        return bxi_null(__func__, "the request");
    if (request->handler->kind != BXI_F_BLOCKING)
        return bx_fail(-EINVAL, "'%s' is no blocking handler and has no hook; the future of an async one has "
                                "bx_future_on_done", request->handler->name);
    waiting->hook.timer.fire = hook_due;
    waiting->hook.used = true;
    bxi_hook_end(waiting);
    if (fn == NULL)
        return 0;
    rc = set_hook(waiting, &hook);
    if (rc < 0)
        return bx_fail(rc, "no memory for the deadline of a hook");
    if (rc == 0)
        run_hook(&hook);
    return bxi_out(0);
}

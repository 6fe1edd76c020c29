/* SPDX-License-Identifier: MIT */
/*
 * A caller gave up a call, or is gone. Role, and bx_job_destroy.
 *
 * A cancel finds the request by its id and takes it out of the pool's queue or its batcher's list; it is answered,
 * for the caller's slot waits for the answer. A request whose handler runs goes on, but the calls that the handler has
 * made for it end, and its hook runs (nested.c). The object that it was to make has failed: calls that wait for it are
 * answered. A future that an async handler returned fails, so that the handler's program learns of it; the future's
 * callback answers. If an async handler still runs, on the pool, the future fails as soon as it is returned. When a
 * caller is gone, such futures and calls fail, and what waits for an object ends, for that may never come. What it has
 * in the queue or in a batch is run, and its answers are dropped.
 */
#include "nested.h"

/* Lock. The future with a reference; NULL if its last reference is gone: then its callback is about to run. */
static struct bx_future *take_future(struct bxi_waiting *waiting)
{
    waiting->state = BXI_WAITS_NO_MORE;
    /* The request is in the table, so the callback has not freed it, and the future's memory is there. */
    return bxi_future_try_acquire(waiting->future) ? waiting->future : NULL;
}

void bxi_waiting_fail_future(struct bx_future *future, const struct bxi_peer *peer, int code)
{
    char *text = bxi_text("its caller, worker '%s': %s", peer->name, bx_strerror(code));

    if (future->is_call)            /* the handler returned the future of a call of its own */
        bxi_call_abort(future, code, text);
    else
        bxi_future_complete(future, code, text, NULL);
}

/* The same; drops the reference of take_future. */
static void fail_taken(struct bx_future *future, const struct bxi_peer *peer, int code)
{
    bxi_waiting_fail_future(future, peer, code);
    bxi_no_wait_enter();
    bxi_future_release(future);
    bxi_no_wait_leave();
}

/* Lock. Takes the request out of what it waits in. True: the caller owns it now. */
static bool take(struct bx_job *job, struct bxi_waiting *waiting, struct bx_future **future)
{
    switch (waiting->state) {
    case BXI_WAITS_FOR_THREAD:
        return bxi_pool_take(job, &waiting->task);
    case BXI_WAITS_FOR_BATCH:
        bxi_batch_take(job, waiting);
        return true;
    case BXI_WAITS_FOR_OBJECT:
        bxi_object_take(job, waiting);
        return true;
    case BXI_WAITS_FOR_FUTURE:
        *future = take_future(waiting);
        return false;
    default:                        /* BXI_WAITS_NO_MORE */
        return false;
    }
}

void bxi_waiting_cancel(struct bx_job *job, struct bxi_peer *peer, uint64_t id, int code)
{
    const struct bx_rref *makes = NULL;
    struct bx_future *future = NULL;
    struct bxi_waiting *waiting;
    bool taken, given_up;

    bxi_lock(&job->run->lock);
    waiting = bxi_waiting_find(peer, id);
    taken = waiting != NULL && take(job, waiting, &future);
    if (taken && code == BX_E_TIMEOUT)
        bxi_counter_add(job, BXI_C_requests_expired, 1);
    if (waiting != NULL && !taken)
        makes = bxi_object_given_up(job, waiting, code);
    given_up = waiting != NULL && !taken && bxi_nested_give_up(waiting, code);
    bxi_unlock(&job->run->lock);
    if (makes != NULL)
        bxi_wake(job->run, makes);
    if (taken)
        bxi_waiting_answer(waiting, code, NULL, NULL);
    if (future != NULL)
        fail_taken(future, peer, BX_E_CANCELLED);
    if (given_up)
        bxi_nested_end(waiting);
}

/* Lock. It waits for a future or an object; or for a thread, or has one, and its caller is not known to be gone. */
static bool is_to_end(struct bxi_waiting *waiting)
{
    if (waiting->state == BXI_WAITS_FOR_FUTURE || waiting->state == BXI_WAITS_FOR_OBJECT)
        return true;
    return waiting->state == BXI_WAITS_FOR_THREAD && !waiting->request.oneway && !bxi_nested_is_over(waiting);
}

/* Lock. The next such request from chain *at on; NULL if there is none. */
static struct bxi_waiting *next_to_end(struct bxi_peer *peer, int *at)
{
    for (; *at <= BXI_WAITING_CHAINS; (*at)++)
        for (struct bxi_waiting *waiting = peer->waiting[*at]; waiting != NULL; waiting = waiting->chain_next)
            if (is_to_end(waiting))
                return waiting;
    return NULL;
}

void bxi_waiting_peer_gone(struct bx_job *job, struct bxi_peer *peer, int code)
{
    int at = 0;

    for (;;) {
        struct bx_future *future = NULL;
        struct bxi_waiting *waiting;
        bool taken, given_up;

        bxi_lock(&job->run->lock);
        waiting = next_to_end(peer, &at);
        taken = waiting != NULL && waiting->state != BXI_WAITS_FOR_THREAD && take(job, waiting, &future);
        given_up = waiting != NULL && !taken && bxi_nested_give_up(waiting, code);
        bxi_unlock(&job->run->lock);
        if (waiting == NULL)
            return;
        if (taken)
            bxi_waiting_answer(waiting, code, waiting->makes_id != 0 ? BXI_RREF_NO_MAKER : NULL, NULL);
        if (future != NULL)
            fail_taken(future, peer, code);
        if (given_up)
            bxi_nested_end(waiting);
    }
}

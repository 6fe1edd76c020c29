/* SPDX-License-Identifier: MIT */
/*
 * A request whose handler is not inline: one object, a struct bxi_waiting, from when its frame was read until it is
 * answered. It is found by its caller and its id, whatever it waits for.
 *
 * States (under the lock). A request is created and begun by the role, in the state that its handler's kind says:
 *
 *     WAITS_FOR_THREAD   its task is the pool's. While task.queued (pool.lock) the queue has it; then a thread of the
 *                        pool owns the object, runs the handler and answers (handler.c). If that handler is async, the
 *                        thread makes it WAITS_FOR_FUTURE instead.
 *     WAITS_FOR_BATCH    it is in its batcher's list. The thread that takes it from there owns it (batch.c).
 *     WAITS_FOR_FUTURE   the callback of the handler's future owns it and answers, by the thread that completes the
 *                        future (handler.c). No other thread frees it.
 *     WAITS_FOR_OBJECT   it is in the list of a reference whose object is to come, or in rpc->unparked. The thread that
 *                        takes it from there, the role or a cancel, owns it (object.c).
 *     WAITS_NO_MORE      of a row: a batch runs it. Of an async handler: a cancel has failed its future, or is about
 *                        to, and the future's callback answers as before.
 *
 * A cancel (cancel.c) that takes the object out of the pool's queue or a batcher's list owns it. The owner alone
 * answers, with bxi_waiting_answer, which takes the object from the table and frees it. A handler or a body that leaves
 * by pthread_exit has failed with BX_E_HANDLER (usercall.c): its thread answers, and ends later. bx_job_destroy frees
 * the rows that no batch has run.
 *
 * The table is the peer's: 64 chains by the low bits of the id, which are the caller's slot. A caller has 16 slots and
 * doubles them when all are taken, up to 1024, so a chain has one request or a few, and at most 16; a cancel reads one
 * chain. An array by slot would be 8 KiB for each peer, and could not hold two requests with one id, which a broken
 * peer may send; its 1024 requests at most may also be in one chain. One-way calls have no id: they are in a chain of
 * their own, which no cancel reads. Inline requests are in no chain. The table is changed in the sections of the lock
 * that count requests, so it adds no locking.
 */
#include "nested.h"

#include <errno.h>
#include <stdlib.h>

static struct bxi_waiting **chain_of(struct bxi_peer *peer, uint64_t id)
{
    return &peer->waiting[id & (BXI_WAITING_CHAINS - 1)];
}

static void link_into(struct bxi_waiting **chain, struct bxi_waiting *waiting)
{
    waiting->chain_next = *chain;
    waiting->chain_link = chain;
    if (waiting->chain_next != NULL)
        waiting->chain_next->chain_link = &waiting->chain_next;
    *chain = waiting;
}

static void unlink_it(struct bxi_waiting *waiting)
{
    *waiting->chain_link = waiting->chain_next;
    if (waiting->chain_next != NULL)
        waiting->chain_next->chain_link = waiting->chain_link;
}

struct bxi_waiting *bxi_waiting_create(const struct bx_request *request)
{
    /* Not calloc, which in glibc does not take the blocks that this thread has freed. */
    struct bxi_waiting *waiting = malloc(sizeof *waiting);

    if (waiting == NULL)
        return NULL;
    waiting->request = *request;
    memset((unsigned char *)waiting + sizeof waiting->request, 0, sizeof *waiting - sizeof waiting->request);
    if (request->in != NULL && request->in->makes != NULL)
        waiting->makes_id = request->in->makes->id;
    bxi_store_relaxed(&waiting->refs, 1);       /* relaxed: no other thread knows it yet */
    return waiting;
}

int bxi_waiting_begin(struct bxi_waiting *waiting, enum bxi_waiting_state state)
{
    struct bx_request *request = &waiting->request;
    struct bxi_peer *peer = request->peer;

    if (!request->oneway && peer->serving >= BXI_CALLS_MAX)
        return BX_E_CORRUPT;
    if (request->oneway && peer->serving_oneways >= BXI_CALLS_MAX) {
        bxi_counter_add(request->job, BXI_C_requests_dropped, 1);
        return -ENOBUFS;
    }
    request->counted = true;
    bxi_serving_show(request, state);
    peer->serving += !request->oneway;              /* the 1024 bound these */
    peer->serving_oneways += request->oneway;
    request->job->rpc->serving++;
    waiting->state = state;
    link_into(request->oneway ? &peer->waiting[BXI_WAITING_CHAINS] : chain_of(peer, request->id), waiting);
    return 0;
}

void bxi_waiting_end(struct bxi_waiting *waiting)
{
    struct bx_request *request = &waiting->request;

    bxi_serving_hide(request);
    request->peer->serving -= !request->oneway;
    request->peer->serving_oneways -= request->oneway;
    request->job->rpc->serving--;
    unlink_it(waiting);
}

int bxi_waiting_for_future(struct bxi_waiting *waiting)
{
    const struct bxi_peer *peer = waiting->request.peer;
    /* Relaxed: under the lock. */
    bool gone = bxi_load_relaxed(&peer->state) != BXI_PEER_ALIVE, cancelled = bxi_nested_is_cancelled(waiting);

    waiting->state = cancelled || gone ? BXI_WAITS_NO_MORE : BXI_WAITS_FOR_FUTURE;
    bxi_serving_at(&waiting->request, BXI_AT_FUTURE);
    return cancelled ? BX_E_CANCELLED : gone ? peer->close_code : 0;
}

struct bxi_waiting *bxi_waiting_find(struct bxi_peer *peer, uint64_t id)
{
    struct bxi_waiting *waiting = *chain_of(peer, id);

    while (waiting != NULL && waiting->request.id != id)
        waiting = waiting->chain_next;
    return waiting;
}

void bxi_waiting_destroy(struct bxi_waiting *waiting)
{
    bxi_loan_release(waiting->request.loan);
    bxi_rref_in_release(waiting->request.in);
    bx_msg_destroy(waiting->args);
    bx_msg_destroy(waiting->reply);
    free(waiting->text);
    /* Relaxed: a callback that reads 0 makes its call for a request that was open a moment ago. */
    if (bxi_load_relaxed(&waiting->gave_up) == 0)
        bxi_store_relaxed(&waiting->gave_up, BXI_ANSWERED);
    bxi_waiting_release(waiting);
}

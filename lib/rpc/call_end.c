/* SPDX-License-Identifier: MIT */
/*
 * How calls end: at their deadline, by a cancel, or with their peer. reply.c has the way of a reply to its call.
 *
 * The thread that takes a call out of its slot, under the lock, completes it, without the lock; no other touches it
 * from then on. A call that ends before its reply leaves a zombie in its slot (call.c).
 */
#include "mark.h"

#include <errno.h>
#include <stdlib.h>

static _Thread_local char this_thread;

const char *bxi_this_thread(void)
{
    return &this_thread;
}

void bxi_calls_completed(struct bx_job *job, struct bxi_call *const *calls, int count)
{
    /* [waiting] sequentially consistent, as in bxi_wake; a leader that sleeps is none if this thread drives. */
    if (!bxi_is_driving(job->run) || bxi_load_seq_cst(&job->run->waiting) != 0)
        for (int i = 0; i < count; i++)
            bxi_wake(job->run, calls[i]);
    bxi_quiet_changed(job);
}

void bxi_call_complete(struct bxi_call *call, int code, char *text, struct bx_msg *value)
{
    struct bx_job *job = call->future.job;

    bxi_trace_done(call, code);
    if (call->caller == &this_thread)
        bxi_future_complete_own(&call->future, code, text, value);
    else
        bxi_future_complete_call(&call->future, code, text, value);
    bxi_calls_completed(job, &call, 1);
}

/* ---- texts -------------------------------------------------------------------------------------- */

static int refused_errno(const struct bx_job *job, const struct bxi_peer *peer)
{
    const bxi_a64 *word = &peer->view.control->pair[job->rank].refused_errno;

    /* Relaxed: refused_through was acquired before (look_refused). */
    return (int)(uint32_t)bxi_load_relaxed((bxi_a64 *)word);
}

const char *bxi_why_cut_off(const struct bxi_peer *peer)
{
    return peer->is_remote ? "was cut off: what it sent could not be taken"
                           : "was cut off: its shared memory holds nonsense or was truncated";
}

char *bxi_peer_text(const struct bx_job *job, const struct bxi_peer *peer, int code)
{
    switch (code) {
    case BX_E_PEER_DEAD:
        return bxi_text("worker '%s' (rank %d, pid %u)%s died", peer->name, peer->rank, peer->pid, peer->on_host);
    case BX_E_SHUTDOWN:
        return bxi_text("worker '%s' (rank %d) has left the job", peer->name, peer->rank);
    case BX_E_CORRUPT:
        return bxi_text("worker '%s' (rank %d)%s %s", peer->name, peer->rank, peer->on_host, bxi_why_cut_off(peer));
    default:                        /* BX_E_REFUSED */
        return bxi_text("worker '%s' (rank %d) could not open its ring for the reply: %s", peer->name,
                        peer->rank, bx_strerror(refused_errno(job, peer)));
    }
}

/* ---- deadlines and cancels ---------------------------------------------------------------------- */

/* Tells the callee that no thread waits for this call any more. An error is ignored: the reply is dropped anyway. */
static void send_cancel(struct bx_job *job, struct bxi_peer *peer, uint16_t slot, int code)
{
    struct bxi_frame head = { .kind = BXI_CANCEL, .code = code, .id = peer->slots[slot].generation << 16 | slot,
                              .sent_ns = bxi_coarse_ns() };
    struct bxi_out out = { .head = &head, .slot = -1, .may_queue = true };

    bxi_peer_send(job, peer, &out);
}

struct bxi_call *bxi_call_drop(struct bx_job *job, struct bxi_peer *peer, uint16_t index, int code)
{
    struct bxi_call *call = bxi_call_take(job, peer, index, true);

    send_cancel(job, peer, index, code);
    bxi_counter_add(job, code == BX_E_TIMEOUT ? BXI_C_calls_timed_out : BXI_C_calls_cancelled, 1);
    return call;
}

/* The earliest deadline of a peer's calls may have passed. A call that ends does not move the timer, so the timer may
 * be early: reading all slots once then is cheaper than moving a timer with every call. */
void bxi_calls_due(void *context, struct bxi_timer *timer)
{
    struct bx_job *job = context;
    struct bxi_peer *peer = (struct bxi_peer *)(void *)((char *)timer - offsetof(struct bxi_peer, timer));
    uint64_t now_ns = bxi_now_ns(), next_ns = BX_FOREVER;

    for (uint32_t i = 0; i < peer->slot_count; i++) {
        struct bxi_slot *slot = &peer->slots[i];

        if (slot->state != BXI_SLOT_LIVE)
            continue;
        if (slot->deadline_ns <= now_ns) {
            struct bxi_call *call = bxi_call_drop(job, peer, (uint16_t)i, BX_E_TIMEOUT);

            call->next = job->rpc->expired;
            job->rpc->expired = call;
        } else if (slot->deadline_ns < next_ns) {
            next_ns = slot->deadline_ns;
        }
    }
    if (next_ns != BX_FOREVER)
        bxi_timer_set(job->run, timer, next_ns);    /* there was room for it a moment ago */
}

static void complete_list(struct bx_job *job, struct bxi_call *list, int code)
{
    while (list != NULL) {
        struct bxi_call *call = list;
        char *text;

        list = call->next;
        if (code == BX_E_TIMEOUT)
            text = bxi_text("worker '%s' did not answer '%s' within %.3f s%s", call->peer->name,
                            bxi_call_function(call), (double)call->timeout_ns / 1e9, bxi_call_whose_time(call));
        else
            text = bxi_peer_text(job, call->peer, code);
        bxi_call_complete(call, code, text, NULL);
    }
}

void bxi_calls_expire(struct bx_job *job)
{
    struct bxi_call *list;

    bxi_lock(&job->run->lock);
    list = job->rpc->expired;
    job->rpc->expired = NULL;
    bxi_unlock(&job->run->lock);
    complete_list(job, list, BX_E_TIMEOUT);
}

bool bxi_call_give_up(struct bx_job *job, struct bxi_call *call, int code)
{
    bool mine;

    bxi_lock(&job->run->lock);
    mine = bxi_call_is_open(call);
    if (mine)
        bxi_call_drop(job, call->peer, call->slot, code);
    bxi_unlock(&job->run->lock);
    if (mine)
        bxi_trace_done(call, code);
    bxi_bells_flush(job);
    return mine;
}

bool bxi_call_abort(struct bx_future *future, int code, char *text)
{
    struct bxi_call *call = (struct bxi_call *)(void *)future;
    struct bx_job *job = call->future.job;
    bool mine;

    bxi_lock(&job->run->lock);
    mine = bxi_call_is_open(call);
    if (mine)
        bxi_call_drop(job, call->peer, call->slot, BX_E_CANCELLED);
    bxi_unlock(&job->run->lock);
    if (!mine) {
        free(text);
        return false;
    }
    if (!bxi_is_driving(job->run))
        bxi_bells_flush(job);
    bxi_call_complete(call, code, text, NULL);
    return true;
}

bool bxi_future_cancel(struct bx_future *future)
{
    const struct bxi_call *call = (const struct bxi_call *)(const void *)future;

    if (!future->is_call)
        return bxi_future_complete(future, BX_E_CANCELLED, NULL, NULL);
    return bxi_call_abort(future, BX_E_CANCELLED, bxi_text("the call to worker '%s' was cancelled", call->peer->name));
}

int bx_future_cancel(struct bx_future *future)
{
    int rc = bxi_future_check(future, __func__);

    if (rc < 0)
        return rc;
    if (bxi_future_is_done(future) || !bxi_future_cancel(future))
        return bx_fail(-EALREADY, "the future is done already");
    return bxi_out(0);
}

/* ---- the end of a peer -------------------------------------------------------------------------- */

void bxi_calls_fail(struct bx_job *job, struct bxi_peer *peer, int code, uint64_t through_pos)
{
    struct bxi_call *list = NULL;
    struct bxi_call **end = &list;
    bool replies_come;

    bxi_lock(&job->run->lock);
    /* This worker leaves, and the peer may still answer: a reply to a free slot would count as corrupt. */
    replies_come = through_pos == BX_FOREVER && bxi_load_relaxed(&peer->state) == BXI_PEER_ALIVE;
    for (uint32_t i = 0; i < peer->slot_count; i++) {
        struct bxi_slot *slot = &peer->slots[i];

        if (slot->state == BXI_SLOT_FREE || (through_pos != BX_FOREVER && slot->end_pos > through_pos))
            continue;
        if (slot->state == BXI_SLOT_ZOMBIE) {
            if (!replies_come)
                bxi_slot_free(peer, (uint16_t)i);
            continue;
        }
        *end = bxi_call_take(job, peer, (uint16_t)i, replies_come);
        (*end)->next = NULL;
        end = &(*end)->next;
        if (code == BX_E_PEER_DEAD)
            bxi_counter_add(job, BXI_C_calls_peer_dead, 1);
    }
    bxi_unlock(&job->run->lock);
    complete_list(job, list, code);
    bxi_wake(job->run, peer);
}

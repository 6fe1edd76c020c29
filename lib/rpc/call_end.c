/* SPDX-License-Identifier: MIT */
/*
 * How calls end: by their reply, at their deadline, by a cancel, or with their peer.
 *
 * The thread that takes a call out of its slot, under the lock, completes it, without the lock; no other touches it
 * from then on. A call that ends before its reply leaves a zombie in its slot (call.c).
 */
#include "mark.h"

#include <errno.h>
#include <stdlib.h>

static BXI_HOT_TLS char this_thread;

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

char *bxi_peer_text(const struct bx_job *job, const struct bxi_peer *peer, int code)
{
    switch (code) {
    case BX_E_PEER_DEAD:
        return bxi_text("worker '%s' (rank %d, pid %u) died", peer->name, peer->rank, peer->pid);
    case BX_E_SHUTDOWN:
        return bxi_text("worker '%s' (rank %d) has left the job", peer->name, peer->rank);
    case BX_E_CORRUPT:
        return bxi_text("worker '%s' (rank %d) was cut off: its shared memory holds nonsense or was "
                        "truncated", peer->name, peer->rank);
    case BX_E_REFUSED:
        return bxi_text("worker '%s' (rank %d) could not open its ring for the reply: %s", peer->name,
                        peer->rank, bx_strerror(refused_errno(job, peer)));
    default:
        return bxi_text("worker '%s' (rank %d): %s", peer->name, peer->rank, bx_strerror(code));
    }
}

/* ---- replies (role) ----------------------------------------------------------------------------- */

/* True if the slot of this id waits for a reply: checked before anything else in the reply is used. */
static bool is_awaited(struct bx_job *job, struct bxi_peer *peer, uint64_t id)
{
    uint16_t index = (uint16_t)(id & 0xffff);
    bool is;

    bxi_lock(&job->run->lock);
    is = index < peer->slot_count && peer->slots[index].state != BXI_SLOT_FREE &&
         peer->slots[index].generation == id >> 16;
    bxi_unlock(&job->run->lock);
    return is;
}

/* The body of a reply, and what came with it. */
struct brought {
    const void *body;
    size_t bytes;
    struct bxi_loan *loan;
    struct bxi_rref_in *in;
    uint32_t kind_count;        /* records of the kinds of the values, which lie behind the bytes */
    int code;
};

static void drop_brought(struct brought *brought)
{
    bxi_loan_release(brought->loan);
    bxi_rref_in_release(brought->in);
}

/* Takes the kinds of the values off their end. 0, BX_E_CORRUPT. */
static int take_kinds(struct brought *brought)
{
    struct bxi_loan *loan = brought->loan;

    return loan != NULL ? bxi_kinds_take(loan->data, &loan->bytes, &brought->kind_count)
                        : bxi_kinds_take(brought->body, &brought->bytes, &brought->kind_count);
}

/* Opens loan, references and kinds. 0, with brought->code; or BX_E_CORRUPT, and nothing is left open. */
static int open_brought(struct bx_job *job, struct bxi_peer *peer, const struct bxi_frame *head,
                        struct brought *brought)
{
    int rc = 0;

    if ((head->flags & (BXI_FLAG_LEASE | BXI_FLAG_RREFS | BXI_FLAG_KINDS)) == 0)
        return 0;
    if (brought->code != 0 || !is_awaited(job, peer, head->id))
        return BX_E_CORRUPT;
    memcpy(job->rpc->frame, brought->body, brought->bytes);     /* parsed in private memory only */
    brought->body = job->rpc->frame;
    if (head->flags & BXI_FLAG_RREFS)
        brought->code = bxi_rref_open(job, peer->rank, brought->body, &brought->bytes, &brought->in);
    if (brought->in != NULL && (brought->in->makes != NULL || brought->in->target != NULL))
        brought->code = BX_E_CORRUPT;               /* they are of requests */
    if (brought->code != BX_E_CORRUPT && (head->flags & BXI_FLAG_LEASE))   /* opened, it is returned in any case */
        rc = bxi_loan_open(job, peer->lend, job->rpc->frame, brought->bytes, &brought->loan);
    if (rc == 0 && brought->loan != NULL)
        rc = bxi_device_loan_error(brought->loan);
    if (rc == 0 && brought->code != BX_E_CORRUPT && (head->flags & BXI_FLAG_KINDS))
        rc = take_kinds(brought);
    if (brought->code == 0 || rc == BX_E_CORRUPT) {
        brought->code = rc;
    } else {
        bxi_loan_release(brought->loan);
        brought->loan = NULL;
    }
    if (brought->code != BX_E_CORRUPT)
        return 0;
    drop_brought(brought);
    return BX_E_CORRUPT;
}

static struct bx_msg *value_of(const struct brought *brought)
{
    const struct bxi_loan *loan = brought->loan;
    const unsigned char *data = loan != NULL ? loan->data : brought->body;
    size_t bytes = loan != NULL ? loan->bytes : brought->bytes;
    struct bx_msg *value = loan != NULL ? bxi_msg_of_loan(brought->loan) : bxi_msg_copy(data, bytes);

    if (value != NULL && bxi_msg_take_rrefs(value, brought->in) == 0 &&
        bxi_kinds_copy(value, data + bytes, brought->kind_count) == 0)
        return value;
    bx_msg_destroy(value);
    return NULL;
}

int bxi_reply_arrived(struct bx_job *job, struct bxi_peer *peer, const struct bxi_frame *head,
                      const void *body, size_t body_bytes)
{
    struct brought brought = { .body = body, .bytes = body_bytes, .code = head->code };
    uint16_t index = (uint16_t)(head->id & 0xffff);
    struct bxi_call *call = NULL;
    struct bx_msg *value = NULL;
    char *text = NULL;
    bool was_full;

    bxi_trace_reply_begins(job);
    if (open_brought(job, peer, head, &brought) < 0)
        return BX_E_CORRUPT;
    bxi_lock(&job->run->lock);
    if (index >= peer->slot_count || peer->slots[index].state == BXI_SLOT_FREE ||
        peer->slots[index].generation != head->id >> 16 || brought.code > 0 ||
        bxi_peer_consumed(job, peer, head->consumed) < 0) {
        bxi_unlock(&job->run->lock);
        drop_brought(&brought);
        return BX_E_CORRUPT;
    }
    was_full = peer->in_flight == BXI_CALLS_MAX;
    if (peer->slots[index].state == BXI_SLOT_LIVE) {
        call = bxi_call_take(job, peer, index, false);
        bxi_counter_add(job, BXI_C_calls_completed, 1);
        if (call->sent_ns != 0 && (head->flags & BXI_FLAG_TIMED))
            bxi_mark_measured(call, head);
    } else {
        bxi_slot_free(peer, index);
        bxi_counter_add(job, BXI_C_late_replies, 1);
    }
    bxi_peer_note_stream(peer);
    bxi_unlock(&job->run->lock);

    if (was_full)
        bxi_wake(job->run, peer);
    bxi_trace_reply_of(job, call);
    if (call == NULL) {
        drop_brought(&brought);
        bxi_trace_reply_ends(job, peer, head);
        return 0;
    }
    if (head->code < 0)
        text = strndup(body_bytes > 0 ? body : "", body_bytes < BXI_TEXT_BYTES ? body_bytes : BXI_TEXT_BYTES);
    else if (brought.code < 0)
        text = strdup(brought.loan != NULL || brought.code == BX_E_PEER_DEAD ? bx_error_text()
                                                                             : bx_strerror(brought.code));
    else if (call->wants_value && (value = value_of(&brought)) == NULL)
        brought.code = -ENOMEM;
    drop_brought(&brought);
    if (bxi_truncated(peer)) {
        bx_msg_destroy(value);
        free(text);
        value = NULL;
        brought.code = BX_E_CORRUPT;
        text = bxi_peer_text(job, peer, brought.code);
    }
    bxi_call_complete(call, brought.code, text, value);
    bxi_trace_reply_ends(job, peer, head);
    return 0;
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
    if (bxi_future_is_done(future))
        return bx_fail(-EALREADY, "the future is done already");
    if (!bxi_future_cancel(future))
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

/* SPDX-License-Identifier: MIT */
/*
 * A reply's way, in stages: its record is read (watch.c), its call is taken out of the slot, the call's future gets the
 * value. Role.
 *
 * Most replies are nothing but a few bytes. Those that lie in the ring one behind the other, or in one packed frame,
 * are taken out of their slots under one lock, each with its value in memory that its call has already: that of an
 * async call lies behind it, that of a synchronous one was made while its caller waited. A reply that has more (an
 * error, a loan, references, kinds, a long value, times; a call that is traced) is opened and copied by itself.
 */
#include "mark.h"
#include "packed.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define REPLIES_MAX 16              /* under one lock, for which other threads wait */
#define POLLS 256                   /* 3 us with the pauses; then a pass looks at all else */

/* ---- replies of a few bytes ----------------------------------------------------------------------------- */

struct bxi_call *bxi_reply_value(struct bxi_peer *peer, uint64_t id, const void *body, size_t body_bytes)
{
    uint16_t index = (uint16_t)(id & 0xffff);
    const struct bxi_slot *slot;
    struct bxi_call *call;

    if (index >= peer->slot_count || body_bytes > BXI_SMALL_BYTES)
        return NULL;
    slot = &peer->slots[index];
    if (slot->state != BXI_SLOT_LIVE || slot->generation != id >> 16)
        return NULL;
    call = slot->call;
    if (call->caller == NULL)
        call->value = bxi_msg_init(bxi_call_small(call), BXI_SMALL_BYTES);
    if (call->value == NULL)
        return call->wants_value ? NULL : call;
    call->value->bytes = body_bytes;
    bxi_copy_small(call->value->data, body, body_bytes);
    return call;
}

void bxi_replies_complete(struct bx_job *job, struct bxi_call *const *calls, int count)
{
    for (int i = 0; i < count; i++) {
        struct bxi_call *call = calls[i];
        struct bx_msg *value = call->wants_value ? call->value : NULL;

        bxi_trace_done(call, 0);
        if (call->caller == bxi_this_thread())
            bxi_future_complete_own(&call->future, 0, NULL, value);
        else
            bxi_future_complete_call(&call->future, 0, NULL, value);
    }
    bxi_calls_completed(job, calls, count);
}

/* Replies that are read under one lock. */
struct replies {
    struct bxi_call *calls[REPLIES_MAX];
    int count;
    uint64_t bytes;                 /* of their frames */
    uint64_t consumed;              /* as the last one said */
    bool published;                 /* as bxi_ring_advance */
};

/* Takes the call of the next frame, with its value, out of its slot. False: that is no plain reply. Lock. */
BXI_FLAT static bool next_call(struct bx_job *job, struct bxi_peer *peer, struct replies *replies)
{
    const void *payload;
    uint32_t payload_bytes;
    struct bxi_frame head;
    struct bxi_call *call;

    if (bxi_ring_peek(&peer->in, &payload, &payload_bytes) != 1 || payload_bytes < sizeof head)
        return false;
    memcpy(&head, payload, sizeof head);
    if (head.kind != BXI_REPLY || head.flags != 0 || head.code != 0 || head.consumed % BXI_LINE != 0 ||
        peer->out.write_pos - head.consumed > INT64_MAX || peer->in_flight == BXI_CALLS_MAX)
        return false;
    call = bxi_reply_value(peer, head.id, (const unsigned char *)payload + sizeof head, payload_bytes - sizeof head);
    if (call == NULL || bxi_truncated(peer))
        return false;
    replies->calls[replies->count++] = bxi_call_take(job, peer, call->slot, false);
    replies->bytes += payload_bytes;
    replies->consumed = head.consumed;
    replies->published |= bxi_ring_advance(&peer->in, payload_bytes);
    return true;
}

/* What holds for all of them. Lock. */
BXI_FLAT static void note_replies(struct bx_job *job, struct bxi_peer *peer, const struct replies *replies)
{
    bxi_frames_note(job, peer, (uint64_t)replies->count, replies->bytes);
    bxi_counter_add(job, BXI_C_calls_completed, (uint64_t)replies->count);
    bxi_peer_consumed(job, peer, replies->consumed);        /* next_call has found it possible */
    bxi_peer_note_stream(peer);
}

int bxi_replies_read(const struct bxi_role *role, struct bx_job *job, struct bxi_peer *peer, int most)
{
    struct replies replies;

    (void)role;
    if (peer->lend->held != NULL || bxi_trace_is_on(job))
        return 0;
    replies.count = 0;              /* the calls are not set: they are many */
    replies.bytes = replies.consumed = 0;
    replies.published = false;
    bxi_lock(&job->run->lock);
    /* Callbacks run behind the last: a call that they find not done can still be cancelled, and counts as open.
     * Relaxed: one that is added meanwhile runs all the same. */
    while (replies.count < most && replies.count < REPLIES_MAX && next_call(job, peer, &replies))
        if (bxi_load_relaxed(&replies.calls[replies.count - 1]->future.callbacks) != NULL)
            break;
    if (replies.count > 0)
        note_replies(job, peer, &replies);
    bxi_unlock(&job->run->lock);
    if (replies.published)
        bxi_wanted_look(job);
    bxi_replies_complete(job, replies.calls, replies.count);
    return replies.count;
}

/* ---- a synchronous caller ------------------------------------------------------------------------------- */

/* True once a frame lies in the ring of the call's peer; false: nothing came, something else did, or a batch lacks rows
 * of other workers. */
static bool comes(struct bx_job *job, const struct bxi_peer *peer, const struct bxi_waiter *waiter)
{
    for (int i = 1; i <= POLLS; i++) {
        if (bxi_ring_ready(&peer->in))
            return true;
        bxi_pause();                    /* as in peek (source.c) */
        if (i % 16 != 0)
            continue;
        /* Relaxed: a pass acquires them. */
        if (bxi_load_relaxed(&job->run->events) != 0 || bxi_call_needs_others(waiter))
            return false;
        for (int k = 0; k < (int)bxi_load_relaxed(&job->rpc->in_count); k++)
            if (bxi_ring_ready(&job->rpc->in_peers[k]->in))
                return job->rpc->in_peers[k] == peer;
    }
    return false;
}

bool bxi_reply_poll(struct bxi_waiter *waiter, const struct bxi_role *role)
{
    struct bxi_call *call = (struct bxi_call *)(void *)(uintptr_t)waiter->object;
    struct bxi_peer *peer = call->peer;
    struct bx_job *job = call->future.job;
    bool done;

    /* Relaxed: this thread's own frames are in it. */
    if (bxi_load_relaxed(&job->rpc->bells_urgent) != 0 || !peer->in_open || peer->lend->held != NULL ||
        bxi_trace_is_on(job) || (call->wants_value && (call->value = bx_msg_create(BXI_SMALL_BYTES)) == NULL))
        return false;
    if (comes(job, peer, waiter))
        bxi_replies_read(role, job, peer, 1);
    done = waiter->ready(waiter);
    if (!done || call->future.value != call->value)     /* it has an error, or a longer value */
        bx_msg_destroy(call->value);
    call->value = NULL;
    return done;
}

/* ---- any other reply -------------------------------------------------------------------------------------- */

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


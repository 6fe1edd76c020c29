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

/* The open call of a reply that is nothing but these bytes, which has got them as its value; NULL: it needs more. */
static struct bxi_call *give_value(struct bxi_peer *peer, uint64_t id, const void *body, size_t body_bytes)
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

struct bxi_call *bxi_reply_take(struct bx_job *job, struct bxi_peer *peer, uint64_t id, const void *body,
                                size_t body_bytes)
{
    struct bxi_call *call = give_value(peer, id, body, body_bytes);

    /* With all slots taken, threads may wait for one: bxi_reply_arrived wakes them. */
    if (call == NULL || peer->in_flight == BXI_CALLS_MAX || bxi_truncated(peer))
        return NULL;
    return bxi_call_take(job, peer, call->slot, false);
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
        peer->out.write_pos - head.consumed > INT64_MAX)
        return false;
    call = bxi_reply_take(job, peer, head.id, (const unsigned char *)payload + sizeof head,
                          payload_bytes - sizeof head);
    if (call == NULL)
        return false;
    replies->calls[replies->count++] = call;
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
    /* Callbacks run behind the last: a call that they find not done can still be cancelled, and counts as open. */
    while (replies.count < most && replies.count < REPLIES_MAX && next_call(job, peer, &replies))
        if (bxi_call_has_callbacks(replies.calls[replies.count - 1]))
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

/* True if the slot of this id waits for a reply. Lock. */
static bool is_awaited(const struct bxi_peer *peer, uint64_t id)
{
    uint16_t index = (uint16_t)(id & 0xffff);

    return index < peer->slot_count && peer->slots[index].state != BXI_SLOT_FREE &&
           peer->slots[index].generation == id >> 16;
}

/* Opens what the reply brought beside bytes. 0, with brought->code; or BX_E_CORRUPT, and nothing is left open. */
BXI_COLD static int open_more(struct bx_job *job, struct bxi_peer *peer, const struct bxi_frame *head,
                              const void *body, struct bxi_brought *brought)
{
    bool awaited;

    bxi_lock(&job->run->lock);
    awaited = is_awaited(peer, head->id);       /* before anything else in the reply is used */
    bxi_unlock(&job->run->lock);
    if (head->code != 0 || !awaited)
        return BX_E_CORRUPT;
    memcpy(job->rpc->frame, body, brought->bytes);              /* parsed in private memory only */
    if (bxi_brought_open(job, peer, head->flags, brought) < 0)
        return BX_E_CORRUPT;
    if (brought->in == NULL || (brought->in->makes == NULL && brought->in->target == NULL))
        return 0;
    bxi_brought_drop(brought);                                  /* they are of requests */
    return BX_E_CORRUPT;
}

/* Takes the reply's call out of its slot; *call is NULL if nobody waits for it any more. 0, BX_E_CORRUPT. */
static int take_call(struct bx_job *job, struct bxi_peer *peer, const struct bxi_frame *head, struct bxi_call **call)
{
    uint16_t index = (uint16_t)(head->id & 0xffff);
    bool was_full;

    bxi_lock(&job->run->lock);
    if (!is_awaited(peer, head->id) || head->code > 0 || bxi_peer_consumed(job, peer, head->consumed) < 0) {
        bxi_unlock(&job->run->lock);
        return BX_E_CORRUPT;
    }
    was_full = peer->in_flight == BXI_CALLS_MAX;
    if (peer->slots[index].state == BXI_SLOT_LIVE) {
        *call = bxi_call_take(job, peer, index, false);
        bxi_counter_add(job, BXI_C_calls_completed, 1);
        if ((*call)->sent_ns != 0 && (head->flags & BXI_FLAG_TIMED))
            bxi_mark_measured(*call, head);
    } else {
        *call = NULL;
        bxi_slot_free(peer, index);
        bxi_counter_add(job, BXI_C_late_replies, 1);
    }
    bxi_peer_note_stream(peer);
    bxi_unlock(&job->run->lock);
    if (was_full)
        bxi_wake(job->run, peer);
    return 0;
}

/* Ends the call with what the reply brought: the body is a sentence if its head has an error. */
static void end_call(struct bxi_call *call, const struct bxi_frame *head, const void *body, struct bxi_brought *brought)
{
    struct bxi_peer *peer = call->peer;
    struct bx_msg *value = NULL;
    char *text = NULL;

    if (head->code < 0)
        text = strndup(brought->bytes > 0 ? body : "",
                       brought->bytes < BXI_TEXT_BYTES ? brought->bytes : BXI_TEXT_BYTES);
    else if (brought->code < 0)
        text = strdup(brought->text);
    else if (call->wants_value && (value = bxi_brought_message(body, brought)) == NULL)
        brought->code = -ENOMEM;
    bxi_brought_drop(brought);
    if (bxi_truncated(peer)) {
        bx_msg_destroy(value);
        free(text);
        value = NULL;
        brought->code = BX_E_CORRUPT;
        text = bxi_peer_text(call->future.job, peer, brought->code);
    }
    bxi_call_complete(call, brought->code, text, value);
}

int bxi_reply_arrived(struct bx_job *job, struct bxi_peer *peer, const struct bxi_frame *head,
                      const void *body, size_t body_bytes)
{
    struct bxi_brought brought = { .bytes = body_bytes, .code = head->code };
    uint64_t read_ns = bxi_trace_now(job);
    uint16_t function = BXI_MARK_NO_FUNCTION;
    struct bxi_call *call;

    if (head->flags & BXI_FLAGS_MORE) {
        if (open_more(job, peer, head, body, &brought) < 0)
            return BX_E_CORRUPT;
        body = job->rpc->frame;
    }
    if (take_call(job, peer, head, &call) < 0) {
        bxi_brought_drop(&brought);
        return BX_E_CORRUPT;
    }
    if (call != NULL) {
        function = call->function;
        end_call(call, head, body, &brought);
    } else {
        bxi_brought_drop(&brought);
    }
    bxi_trace_reply(job, peer, head, read_ns, function);
    return 0;
}

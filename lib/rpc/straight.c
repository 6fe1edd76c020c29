/* SPDX-License-Identifier: MIT */
/*
 * The straight way of plain frames: calls with nothing but bytes, requests that are nothing but bytes to an inline
 * handler, and replies that are nothing but bytes. Most frames are plain, and an empty call consists of little else
 * than their way. Role, but for calls.
 *
 * A frame is plain by what is checked here; those of calls that are measured (observe/hist.c) are not, and with
 * BX_CHECKED no request is, because its answer carries the kinds of its values. One that is not
 * goes the general way (call.c, dispatch.c, handler.c, answer.c, call_end.c), which has the same effects in more
 * steps; so does
 * the answer of a handler that failed, or that lends.
 * Everything is checked before anything is changed: what returns false has done nothing that the general way would not
 * do again.
 *
 *     call        goes into its callee's ring under the one lock that is taken
 *     request     runs its handler, and its answer goes into the ring under the one lock that is taken
 *     replies     to async calls: what lies in the ring is taken out of its slots under one lock, then completed
 *     reply       to a synchronous call: its caller polls the ring, in place of passes and spins
 */
#include "mark.h"
#include "straight.h"

#include <string.h>

/* ---- calls ------------------------------------------------------------------------------------------- */

int bxi_straight_function(struct bx_job *job, struct bxi_peer *peer, const char *function)
{
    int index;

    /* Relaxed, all: truncated is set by the handler of SIGBUS; the others are written under the lock. */
    if (bxi_load_relaxed(&job->phase) != BXI_STARTED || bxi_load_relaxed(&job->segment.truncated) != 0 ||
        bxi_load_relaxed(&peer->state) != BXI_PEER_ALIVE || !bxi_load_relaxed(&peer->out_open))
        return -1;
    index = bxi_function_find(job, peer, function);
    return bxi_load_relaxed(&peer->view.truncated) == 0 ? index : -1;
}

bool bxi_straight_send(struct bx_job *job, struct bxi_peer *peer, struct bxi_out *out, struct bxi_call *call)
{
    struct bxi_frame *head = out->head;

    if (peer->free_slot == peer->slot_count)
        return false;
    /* Nobody waits for an async call's deadline but the peer's timer. */
    if (call->caller == NULL && !bxi_deadline_is_watched(peer, head->deadline_ns))
        return false;
    if (call->sent_ns != 0)
        head->flags |= BXI_FLAG_TIMED;
    bxi_slot_occupy(job, peer, call, head);
    out->slot = call->slot;
    if (!bxi_peer_send_plain(job, peer, out)) {
        bxi_slot_free(peer, call->slot);
        return false;
    }
    bxi_call_sent(job, call, head);
    return true;
}

BXI_FLAT uint64_t bxi_straight_call(struct bxi_call *call, struct bxi_peer *peer, const char *function,
                                    const struct bx_msg *args)
{
    struct bx_job *job = call->future.job;
    uint64_t timeout_ns = job->options.call_timeout_ns;
    struct bxi_frame head = { .kind = BXI_REQUEST };
    struct bxi_out out = { .head = &head, .body = bx_msg_data(args), .body_bytes = bx_msg_bytes(args), .lease = -1 };
    int index;
    bool sent, again = false;

    head.deadline_ns = timeout_ns == BX_FOREVER ? BX_FOREVER : bxi_deadline_ns(timeout_ns);
    call->timeout_ns = timeout_ns;
    call->sent_ns = bxi_hist_begin(job);
    bxi_lock(&job->run->lock);
    index = bxi_straight_function(job, peer, function);
    head.function = (uint16_t)index;
    sent = index >= 0 && bxi_straight_send(job, peer, &out, call);
    if (sent && call->caller == NULL && !bxi_is_driving(job->run))      /* as in submit_once (call.c) */
        again = bxi_bell_first_look(job, peer);
    bxi_unlock(&job->run->lock);
    if (again)
        bxi_bell_second_look(job, peer);
    if (!sent)
        bxi_hist_again(job, call->sent_ns);
    return sent ? head.deadline_ns : 0;
}

/* ---- requests ---------------------------------------------------------------------------------------- */

/* NULL: it is not plain. */
static const struct bxi_handler *handler_of(struct bx_job *job, struct bxi_peer *peer, const struct bxi_frame *head)
{
    const struct bxi_handler *handler;

    if (head->kind != BXI_REQUEST || head->flags != 0 || peer->draining || peer->lend->held != NULL ||
        bxi_trace_is_on(job) || bxi_checked)
        return NULL;
    /* [peer.out_open] acquire, as in bxi_way_back. [handlers] acquire, as in bxi_handle_request. */
    if (!bxi_load_acquire(&peer->out_open) || head->function >= bxi_load_acquire(&job->rpc->handler_count))
        return NULL;
    if (job->run->pass_ns == 0)
        job->run->pass_ns = bxi_coarse_ns();
    if (head->deadline_ns < job->run->pass_ns)
        return NULL;
    handler = &job->rpc->handlers[head->function];
    return handler->kind == BXI_F_INLINE && handler->type == NULL ? handler : NULL;
}

/* Sends the reply; false: nothing was done. */
static bool answer_plain(const struct bx_request *request, const struct bx_msg *reply)
{
    struct bx_job *job = request->job;
    struct bxi_frame head = { .kind = BXI_REPLY, .id = request->id, .sent_ns = job->run->pass_ns };
    struct bxi_out out = { .head = &head, .body = reply->data, .body_bytes = reply->bytes, .slot = -1, .lease = -1 };
    bool sent;

    if (reply->tensor_count + reply->rref_count > 0 || reply->bytes > BXI_BODY_MAX || reply->capacity > BXI_FRAME_MAX)
        return false;
    if (bxi_packed_add(request, reply))
        return true;
    bxi_lock(&job->run->lock);
    sent = bxi_peer_consumed(job, request->peer, request->consumed) == 0 &&
           bxi_peer_send_plain(job, request->peer, &out);
    if (sent)
        bxi_counter_add(job, BXI_C_replies_sent, 1);
    bxi_peer_note_stream(request->peer);
    bxi_unlock(&job->run->lock);
    return sent;
}

/* The body is in job->rpc->frame. What run_inline (handler.c) does, less what no plain request needs; with that one in
 * its place a call took 7 ns more, of 290: the mean of seven interleaved runs, six of them slower. */
static inline void run_plain(struct bx_request *request, size_t body_bytes)
{
    struct bx_job *job = request->job;
    struct bx_reader args = { .data = job->rpc->frame, .bytes = body_bytes };
    struct bx_msg *reply = job->rpc->reply;
    int code;

    reply->bytes = 0;               /* it holds no tensors and references: see bxi_handler_answer */
    reply->error = 0;
    bxi_clear_error();
    BXI_PROBE4(handler_begin, job->rank, request->peer->rank, request->handler->name, request->id);
    code = bxi_call_handler(request, &args, reply, NULL);
    if (code >= 0)
        code = args.error < 0 ? args.error : reply->error;
    BXI_PROBE5(handler_end, job->rank, request->peer->rank, request->handler->name, request->id, code);
    if (code < 0 || !answer_plain(request, reply))
        bxi_handler_answer(request, code);
}

static struct bx_request request_of(struct bx_job *job, struct bxi_peer *peer, const struct bxi_handler *handler,
                                    const struct bxi_frame *head)
{
    return (struct bx_request){ .job = job, .peer = peer, .handler = handler, .id = head->id,
                                .deadline_ns = head->deadline_ns, .consumed = head->consumed };
}

bool bxi_straight_request(const struct bxi_role *role, struct bx_job *job, struct bxi_peer *peer,
                          const struct bxi_frame *head, const struct bxi_body *body)
{
    const struct bxi_handler *handler = handler_of(job, peer, head);

    if (handler == NULL)
        return false;
    if (body->bytes > 0)
        memcpy(job->rpc->frame, body->data, body->bytes);
    if (bxi_truncated(peer))
        return false;

    struct bx_request request = request_of(job, peer, handler, head);

    bxi_frame_taken(role, job, peer, (uint32_t)(sizeof *head + body->bytes));
    bxi_counter_add(job, BXI_C_requests_inline, 1);
    bxi_packed_time(job);
    bxi_now_show(&request);
    bxi_no_wait_enter();
    run_plain(&request, body->bytes);
    bxi_no_wait_leave();
    bxi_now_hide(&request);
    return true;
}

bool bxi_straight_items(struct bx_job *job, struct bxi_peer *peer, const struct bxi_frame *head,
                        struct bxi_cursor *items, int32_t *handled)
{
    const struct bxi_handler *handler = handler_of(job, peer, head);
    unsigned char *frame = job->rpc->frame;
    int32_t done = 0;

    if (handler == NULL)
        return false;

    struct bx_request request = request_of(job, peer, handler, head);

    bxi_now_show(&request);
    bxi_no_wait_enter();
    for (; done < *handled && bxi_item_next(items); done++) {
        request.id = items->id;
        bxi_now_show_id(&request);
        bxi_packed_time(job);
        job->rpc->frame = frame + (items->body - items->data);
        run_plain(&request, items->body_bytes);
    }
    bxi_no_wait_leave();
    bxi_now_hide(&request);
    job->rpc->frame = frame;
    bxi_counter_add(job, BXI_C_requests_inline, (uint64_t)done);
    *handled = done;
    return true;
}

/* ---- replies ------------------------------------------------------------------------------------------- */

#define REPLIES_MAX 16              /* under one lock */
#define POLLS 256                   /* 3 us with the pauses */

static bool is_plain(const struct bxi_frame *head)
{
    return head->kind == BXI_REPLY && head->flags == 0 && head->code == 0;
}

struct bxi_call *bxi_straight_value(struct bxi_peer *peer, uint64_t id, const void *body, size_t body_bytes)
{
    uint16_t index = (uint16_t)(id & 0xffff);
    struct bxi_slot *slot;
    struct bx_msg *value;

    if (index >= peer->slot_count || body_bytes > BXI_SMALL_BYTES)
        return NULL;
    slot = &peer->slots[index];
    if (slot->state != BXI_SLOT_LIVE || slot->generation != id >> 16 || slot->call->caller != NULL)
        return NULL;
    value = bxi_msg_init(bxi_call_small(slot->call), BXI_SMALL_BYTES);
    value->bytes = body_bytes;
    bxi_copy_small(value->data, body, body_bytes);
    return slot->call;
}

void bxi_straight_complete(struct bx_job *job, struct bxi_call *const *calls, int count)
{
    for (int i = 0; i < count; i++) {
        struct bxi_call *call = calls[i];

        bxi_trace_done(call, 0);
        bxi_future_complete_call(&call->future, 0, NULL, call->wants_value ? bxi_call_small(call) : NULL);
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

/* Takes the async call of the next frame, with its value, out of its slot. False: that is no plain reply. Lock. */
BXI_FLAT static bool next_call(struct bx_job *job, struct bxi_peer *peer, struct replies *replies)
{
    const void *payload;
    uint32_t payload_bytes;
    struct bxi_frame head;
    struct bxi_call *call;

    if (bxi_ring_peek(&peer->in, &payload, &payload_bytes) != 1 || payload_bytes < sizeof head)
        return false;
    memcpy(&head, payload, sizeof head);
    if (!is_plain(&head) || head.consumed % BXI_LINE != 0 || peer->out.write_pos - head.consumed > INT64_MAX ||
        peer->in_flight == BXI_CALLS_MAX)
        return false;
    call = bxi_straight_value(peer, head.id, (const unsigned char *)payload + sizeof head, payload_bytes - sizeof head);
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

int bxi_straight_replies(const struct bxi_role *role, struct bx_job *job, struct bxi_peer *peer, int most)
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
    bxi_straight_complete(job, replies.calls, replies.count);
    return replies.count;
}

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

/* Takes the call out of its slot; false if more is to be done for that. */
static bool end_call(struct bx_job *job, struct bxi_call *call, const struct bxi_frame *head)
{
    struct bxi_peer *peer = call->peer;
    bool ends;

    bxi_lock(&job->run->lock);
    /* The end of the job may have taken it: bxi_calls_fail runs without the role there. */
    ends = bxi_call_is_open(call) && peer->in_flight < BXI_CALLS_MAX &&
           bxi_peer_consumed(job, peer, head->consumed) == 0;
    if (ends) {
        bxi_call_take(job, peer, call->slot, false);
        bxi_counter_add(job, BXI_C_calls_completed, 1);
    }
    bxi_unlock(&job->run->lock);
    return ends;
}

/* value: NULL, or an empty message for the reply. */
static bool take_reply(const struct bxi_role *role, struct bxi_waiter *waiter, struct bx_msg *value)
{
    struct bxi_call *call = (struct bxi_call *)(void *)(uintptr_t)waiter->object;
    struct bx_job *job = call->future.job;
    struct bxi_peer *peer = call->peer;
    const void *payload;
    uint32_t payload_bytes;
    struct bxi_frame head;

    if (!comes(job, peer, waiter) || bxi_ring_peek(&peer->in, &payload, &payload_bytes) != 1 ||
        payload_bytes < sizeof head)
        return false;
    memcpy(&head, payload, sizeof head);
    if (!is_plain(&head) || head.id != call->id ||
        (value != NULL &&
         bx_msg_put_bytes(value, (const unsigned char *)payload + sizeof head, payload_bytes - sizeof head) < 0) ||
        bxi_truncated(peer) || !end_call(job, call, &head))
        return false;
    BXI_PROBE5(call_done, job->rank, peer->rank, call->function, call->id, 0);
    bxi_future_complete_own(&call->future, 0, NULL, value);
    bxi_frame_taken(role, job, peer, payload_bytes);
    bxi_quiet_changed(job);
    return true;
}

bool bxi_straight_reply(struct bxi_waiter *waiter, const struct bxi_role *role)
{
    struct bxi_call *call = (struct bxi_call *)(void *)(uintptr_t)waiter->object;
    struct bx_job *job = call->future.job;
    struct bx_msg *value = NULL;

    /* Relaxed: this thread's own frames are in it. */
    if (bxi_load_relaxed(&job->rpc->bells_urgent) != 0 || !call->peer->in_open || call->peer->lend->held != NULL ||
        bxi_trace_is_on(job) || (call->wants_value && (value = bx_msg_create(0)) == NULL))
        return false;
    if (take_reply(role, waiter, value))
        return true;
    bx_msg_destroy(value);
    return false;
}

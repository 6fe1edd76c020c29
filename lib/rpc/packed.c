/* SPDX-License-Identifier: MIT */
/*
 * Packed frames; packed.h says when calls and replies are packed, frame.h how.
 *
 * A frame of either kind is written to private memory first, then copied into the ring by one bxi_ring_put. Killed
 * before its commit word, none of its calls was made, or answered; behind it, all were.
 *
 * What is read is input. Requests are copied whole before the first is parsed, and the record is taken out of the ring
 * before the first handler runs. Of replies each word and each body is copied out of the ring once; if one needs more
 * than a copy (a thread waits for it, a callback, a long value), it and the rest go the general way (call_end.c).
 */
#include "packed.h"

#include "mark.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT_MOST 32u              /* replies in a frame */
#define SOON_NS 1000u               /* replies that took less are followed by twice as many */
#define LATE_NS 2000u               /* replies that took longer, by half as many */

struct bxi_packed *bxi_packed_create(void)
{
    struct bxi_packed *packed = aligned_alloc(BXI_LINE, sizeof *packed);

    if (packed != NULL) {
        memset(packed, 0, sizeof *packed);
        packed->limit = 1;
    }
    return packed;
}

/* There is room. */
static inline void add_item(struct bxi_items *items, uint64_t id, const void *body, size_t body_bytes)
{
    uint64_t word = id << 16 | body_bytes, zero = 0;
    size_t bytes = bxi_item_bytes(body_bytes);
    unsigned char *to = items->data + items->bytes;

    if (items->count++ == 0)
        items->first_id = id;
    memcpy(to + bytes - sizeof zero, &zero, sizeof zero);   /* no old bytes behind the body */
    memcpy(to, &word, sizeof word);
    if (body_bytes > 0)
        bxi_copy_small(to + sizeof word, body, body_bytes);
    items->bytes += (uint32_t)bytes;
}

static inline bool has_room(const struct bxi_items *items, size_t body_bytes)
{
    return body_bytes <= BXI_PACKED_BODY && items->bytes + bxi_item_bytes(body_bytes) <= BXI_PACKED_BYTES;
}

static void clear(struct bxi_items *items)
{
    items->count = items->bytes = 0;
}

static void describe(struct bxi_frame *head, struct bxi_out *out, const struct bxi_items *items)
{
    head->id = items->first_id;
    head->code = (int32_t)items->count;
    *out = (struct bxi_out){ .head = head, .body = items->data, .body_bytes = items->bytes, .slot = -1, .lease = -1 };
}

/* ---- requests ------------------------------------------------------------------------------------ */

/* Takes slots for the first calls, and makes items of them. How many. */
BXI_FLAT static size_t pack(struct bx_job *job, const struct bxi_plan *plan, const struct bxi_group *calls,
                            struct bxi_items *items)
{
    struct bxi_peer *peer = plan->peer;
    size_t n = 0;

    clear(items);
    for (; n < calls->count; n++) {
        const struct bx_msg *args = bxi_group_args(calls, n);
        struct bxi_call *call = bxi_group_call(calls, n);

        if (!has_room(items, bx_msg_bytes(args)) || peer->free_slot == peer->slot_count)
            break;
        call->sent_ns = bxi_hist_begin(job);
        if (call->sent_ns != 0) {           /* its request and reply carry times */
            bxi_hist_again(job, call->sent_ns);
            break;
        }
        bxi_slot_take(job, peer, call);
        call->timeout_ns = plan->timeout_ns;
        call->function = (uint16_t)plan->function_index;
        call->id = peer->slots[call->slot].generation << 16 | call->slot;
        add_item(items, call->id, bx_msg_data(args), bx_msg_bytes(args));
    }
    return n;
}

int bxi_packed_send(struct bx_job *job, const struct bxi_plan *plan, const struct bxi_group *calls)
{
    struct bxi_peer *peer = plan->peer;
    struct bxi_items *items = &job->rpc->packed->requests;
    struct bxi_frame head = { .kind = BXI_REQUESTS, .function = (uint16_t)plan->function_index,
                              .deadline_ns = plan->deadline_ns };
    struct bxi_out out;
    size_t count, undo;

    if (!bxi_deadline_is_watched(peer, plan->deadline_ns))
        return 0;
    if (peer->queue_head != NULL)
        return -EAGAIN;
    count = pack(job, plan, calls, items);
    describe(&head, &out, items);
    out.own_bell = plan->own_bell;
    if (count < 2 || !bxi_peer_send_plain(job, peer, &out)) {
        for (undo = count; undo > 0; undo--) {
            bxi_slot_free(peer, bxi_group_call(calls, undo - 1)->slot);
            bxi_hist_again(job, 0);
        }
        return count < 2 ? 0 : -EAGAIN;
    }
    for (size_t i = 0; i < count; i++) {
        struct bxi_call *call = bxi_group_call(calls, i);
        struct bxi_slot *slot = &peer->slots[call->slot];

        slot->deadline_ns = plan->deadline_ns;
        slot->end_pos = peer->out.write_pos;
        head.id = call->id;
        bxi_call_shown(job, call, &head);
    }
    bxi_calls_count_sent(job, count);
    return (int)count;
}

/* ---- items that were read --------------------------------------------------------------------------- */

/* The frame that an item stands for. */
static struct bxi_frame frame_of(const struct bxi_frame *head, const struct bxi_cursor *item)
{
    struct bxi_frame frame = *head;

    frame.kind = head->kind == BXI_REQUESTS ? BXI_REQUEST : BXI_REPLY;
    frame.code = 0;
    frame.id = item->id;
    return frame;
}

/* ---- requests that were read ---------------------------------------------------------------------- */

/* Handles the requests: whoever needs a body finds it in job->rpc->frame. */
static int handle_each(struct bx_job *job, struct bxi_peer *peer, const struct bxi_frame *head,
                       struct bxi_cursor *items)
{
    unsigned char *frame = job->rpc->frame;
    int rc = 0;

    for (int32_t i = 0; i < head->code && rc == 0; i++) {
        struct bxi_frame one;

        if (!bxi_item_next(items))
            return BX_E_CORRUPT;
        one = frame_of(head, items);
        job->rpc->frame = frame + (items->body - items->data);
        rc = bxi_handle_request(job, peer, &one, items->body_bytes);
        job->rpc->frame = frame;
    }
    return rc == 0 && items->at != items->bytes ? BX_E_CORRUPT : rc;
}

static int requests_arrived(const struct bxi_role *role, struct bx_job *job, struct bxi_peer *peer,
                            const struct bxi_frame *head, struct bxi_cursor *items)
{
    int rc;

    memcpy(job->rpc->frame, items->data, items->bytes);
    items->data = job->rpc->frame;
    if (bxi_truncated(peer))
        return BX_E_CORRUPT;
    bxi_frame_taken(role, job, peer, (uint32_t)(sizeof *head + items->bytes));
    if (peer->draining) {
        bxi_counter_add(job, BXI_C_requests_dropped, (uint64_t)head->code);
        return 0;
    }
    if (!bxi_way_back(job, peer, (uint64_t)head->code))
        return 0;
    job->rpc->packed->peer = peer;
    rc = handle_each(job, peer, head, items);
    bxi_packed_flush(job);
    return rc;
}

/* ---- replies ------------------------------------------------------------------------------------- */

/* A frame of many replies saves little over one of half as many, but a handler that takes long delays them all. True:
 * they took long. */
static bool adapt_limit(struct bxi_packed *packed)
{
    uint64_t took_ns = bxi_now_ns() - packed->began_ns;

    if (took_ns > LATE_NS) {
        packed->limit = packed->limit > 1 ? packed->limit / 2 : 1;
        return true;
    }
    if (took_ns < SOON_NS && packed->replies.count >= packed->limit && packed->limit < LIMIT_MOST)
        packed->limit *= 2;
    return false;
}

/* The clock is read for the 4th reply, the 8th and so on: a handler that was short so far takes long now. */
static bool is_late(const struct bxi_packed *packed)
{
    uint32_t count = packed->replies.count;

    return count >= 4 && (count & (count - 1)) == 0 && bxi_now_ns() - packed->began_ns > LATE_NS;
}

bool bxi_packed_add(const struct bx_request *request, const struct bx_msg *reply)
{
    struct bx_job *job = request->job;
    struct bxi_packed *packed = job->rpc->packed;

    if (packed->peer != request->peer || !has_room(&packed->replies, reply->bytes))
        return false;
    add_item(&packed->replies, request->id, reply->data, reply->bytes);
    packed->consumed = request->consumed;
    if (packed->replies.count >= packed->limit || is_late(packed))
        bxi_packed_flush(job);
    return true;
}

/* One reply of its own. The lock. */
static void send_reply(struct bx_job *job, struct bxi_peer *peer, const struct bxi_cursor *item)
{
    struct bxi_frame head = { .kind = BXI_REPLY, .id = item->id, .sent_ns = job->run->pass_ns };
    struct bxi_out out = { .head = &head, .body = item->body, .body_bytes = item->body_bytes, .slot = -1,
                           .may_queue = true };

    if (bxi_peer_send(job, peer, &out) != -ENOMEM)
        return;
    head.code = -ENOMEM;            /* without a body it fits a spare frame of the queue, as in answer.c */
    out.body_bytes = 0;
    bxi_peer_send(job, peer, &out);
}

/* The ring is full, or it is one reply. */
static void send_replies_singly(struct bx_job *job, struct bxi_peer *peer, const struct bxi_items *items)
{
    struct bxi_cursor cursor = { .data = items->data, .bytes = items->bytes };

    while (bxi_item_next(&cursor))
        send_reply(job, peer, &cursor);
}

BXI_APART void bxi_packed_flush(struct bx_job *job)
{
    struct bxi_packed *packed = job->rpc->packed;
    struct bxi_items *items = &packed->replies;
    struct bxi_peer *peer = packed->peer;
    struct bxi_frame head = { .kind = BXI_REPLIES, .sent_ns = job->run->pass_ns };
    struct bxi_out out;
    bool late;

    if (items->count == 0)
        return;
    late = adapt_limit(packed);
    describe(&head, &out, items);
    bxi_lock(&job->run->lock);
    /* Relaxed: as in bxi_peer_send_plain. */
    if (bxi_load_relaxed(&peer->state) != BXI_PEER_ALIVE) {
        /* its replies are dropped, as in bxi_answer */
    } else if (bxi_peer_consumed(job, peer, packed->consumed) < 0) {
        bxi_peer_suspect(job, peer, "it claims to have read what was never sent");
    } else {
        if (items->count == 1 || !bxi_peer_send_plain(job, peer, &out))
            send_replies_singly(job, peer, items);
        bxi_counter_add(job, BXI_C_replies_sent, items->count);
        bxi_peer_note_stream(peer);
    }
    bxi_unlock(&job->run->lock);
    clear(items);
    if (late)
        bxi_bells_flush(job);       /* further requests may take as long */
}

/* ---- replies that were read ------------------------------------------------------------------------ */

/* Takes calls with their values out of their slots, until one needs more than a copy, or has a callback: that runs
 * before the next call ends. How many. Lock. */
BXI_FLAT static int take_calls(struct bx_job *job, struct bxi_peer *peer, const struct bxi_frame *head,
                               struct bxi_cursor *items, struct bxi_call **calls)
{
    struct bxi_cursor item = *items;
    int taken = 0;

    while (taken < head->code && bxi_item_next(&item)) {
        calls[taken] = bxi_reply_take(job, peer, item.id, item.body, item.body_bytes);
        if (calls[taken] == NULL)
            break;
        *items = item;
        if (bxi_call_has_callbacks(calls[taken++]))
            break;
    }
    return taken;
}

/* The items that are left, in the general way. */
static int rest_arrived(struct bx_job *job, struct bxi_peer *peer, const struct bxi_frame *head,
                        struct bxi_cursor *items, int32_t done)
{
    for (; done < head->code; done++) {
        struct bxi_frame one;

        if (!bxi_item_next(items))
            return BX_E_CORRUPT;
        one = frame_of(head, items);
        if (bxi_reply_arrived(job, peer, &one, items->body, items->body_bytes) < 0)
            return BX_E_CORRUPT;
    }
    return items->at == items->bytes ? 0 : BX_E_CORRUPT;
}

static int replies_arrived(const struct bxi_role *role, struct bx_job *job, struct bxi_peer *peer,
                           const struct bxi_frame *head, struct bxi_cursor *items)
{
    struct bxi_call *calls[BXI_ITEMS_MAX];
    int taken = 0;
    bool possible;

    bxi_lock(&job->run->lock);
    possible = bxi_peer_consumed(job, peer, head->consumed) == 0;
    if (possible && !bxi_trace_is_on(job))
        taken = take_calls(job, peer, head, items, calls);
    bxi_counter_add(job, BXI_C_calls_completed, (uint64_t)taken);
    bxi_peer_note_stream(peer);
    bxi_unlock(&job->run->lock);
    if (items->at != items->bytes) {    /* callbacks may run: the record is to be gone by then */
        memcpy(job->rpc->frame, items->data, items->bytes);
        items->data = job->rpc->frame;
    }
    bxi_frame_taken(role, job, peer, (uint32_t)(sizeof *head + items->bytes));
    bxi_replies_complete(job, calls, taken);
    if (!possible || bxi_truncated(peer))
        return BX_E_CORRUPT;
    return rest_arrived(job, peer, head, items, taken);
}

int bxi_packed_arrived(const struct bxi_role *role, struct bx_job *job, struct bxi_peer *peer, const void *payload,
                       uint32_t payload_bytes)
{
    struct bxi_cursor items = { .data = (const unsigned char *)payload + sizeof(struct bxi_frame),
                                .bytes = payload_bytes - sizeof(struct bxi_frame) };
    struct bxi_frame head;
    int rc;

    if (payload_bytes < sizeof head)
        return BX_E_CORRUPT;
    memcpy(&head, payload, sizeof head);
    if (head.flags != 0 || head.code < 1 || head.code > BXI_ITEMS_MAX || items.bytes > BXI_PACKED_BYTES)
        return BX_E_CORRUPT;
    if (peer->lend->held != NULL)       /* it was a frame with device memory when it was read first */
        return BX_E_CORRUPT;
    rc = head.kind == BXI_REQUESTS ? requests_arrived(role, job, peer, &head, &items)
                                   : replies_arrived(role, job, peer, &head, &items);
    return rc < 0 ? rc : head.code;
}

/* SPDX-License-Identifier: MIT */
/*
 * What a frame means: requests go to handlers (handler.c), replies to calls (call_end.c), cancels to cancel.c.
 *
 * Runs under the progress role. Everything in a frame is input: its head is copied, then checked, then used; a body
 * is copied before it is parsed.
 */
#include "mark.h"
#include "packed.h"

#include <errno.h>

/* ---- requests ---------------------------------------------------------------------------------- */

BXI_APART static int member_request(struct bx_request *request, uint8_t flags)
{
    if (request->handler->kind != BXI_F_BATCH) {
        bxi_answer(request, -EINVAL, "it is no batch, nobody can join or leave it", NULL);
        return 0;
    }
    int rc = bxi_batch_member(request->job, request->handler->batcher, request->peer->rank,
                              (flags & BXI_FLAG_JOIN) != 0);

    bxi_answer(request, rc, NULL, NULL);
    return 0;
}

/* The ring to the caller could not be opened: drops this frame, and writes where it ends for the caller to read. */
BXI_COLD static void refuse(struct bx_job *job, struct bxi_peer *peer, int code, uint64_t requests)
{
    struct bxi_pair *pair = &job->control->pair[peer->rank];

    bxi_counter_add(job, BXI_C_requests_dropped, requests);
    /* Relaxed: published by the store below. */
    bxi_store_relaxed(&pair->refused_errno, (uint64_t)(uint32_t)code);
    /* [pair.refused] release, pairs with the acquire in look_refused: the errno is read after it. */
    bxi_store_release(&pair->refused_through, peer->in.read_pos);
    bxi_bell_ring(peer->bell.fd[0]);
}

bool bxi_way_back(struct bx_job *job, struct bxi_peer *peer, uint64_t requests)
{
    int rc;

    /* [peer.out_open] acquire, pairs with the release in bxi_peer_open_out. */
    if (bxi_load_acquire(&peer->out_open))
        return true;
    bxi_lock(&job->run->lock);
    rc = bxi_peer_open_out(job, peer);
    bxi_unlock(&job->run->lock);
    if (rc == 0)
        return true;
    bxi_log(job, 0, "%s", bx_error_text());
    refuse(job, peer, rc, requests);
    return false;
}

/* It is not run. Its maker's frames about the object that it makes may lie behind it. 0, BX_E_CORRUPT. */
BXI_COLD static int drop(struct bx_job *job, struct bxi_peer *peer, uint8_t flags, size_t body_bytes)
{
    if (!(flags & BXI_FLAG_RREFS))
        return 0;
    return bxi_rref_drop_request(job, peer->rank, job->rpc->frame, body_bytes, peer->draining ? 0 : BX_E_REFUSED);
}

/* Opens what the request brought beside bytes. 1: it goes on; 0: it was answered; BX_E_CORRUPT. */
BXI_COLD static int open_more(struct bx_request *request, uint8_t flags, size_t *body_bytes)
{
    struct bxi_brought brought = { .bytes = *body_bytes };

    if (bxi_brought_open(request->job, request->peer, flags, &brought) < 0)
        return BX_E_CORRUPT;
    *body_bytes = brought.bytes;
    request->loan = brought.loan;
    request->in = brought.in;
    request->kind_count = brought.kind_count;
    if (brought.code == 0)
        return 1;
    bxi_answer(request, brought.code, brought.text, NULL);
    return 0;
}

/* Finds its handler. 1: it goes on; 0: it was answered. */
static int find_handler(struct bx_request *request, const struct bxi_frame *head)
{
    struct bx_job *job = request->job;

    /* [handlers] acquire, pairs with the release in add_handler. */
    if (head->function >= bxi_load_acquire(&job->rpc->handler_count)) {
        bxi_counter_add(job, BXI_C_requests_refused, 1);
        bxi_answer(request, BX_E_NO_FUNCTION, NULL, NULL);
        return 0;
    }
    request->handler = &job->rpc->handlers[head->function];
    if (job->run->pass_ns == 0)
        job->run->pass_ns = bxi_coarse_ns();
    if (head->deadline_ns >= job->run->pass_ns)
        return 1;
    bxi_lock(&job->run->lock);
    bxi_counter_add(job, BXI_C_requests_expired, 1);
    bxi_unlock(&job->run->lock);
    bxi_answer(request, BX_E_TIMEOUT, "the deadline passed before the request was read", NULL);
    return 0;
}

/* Each member is named: of fewer gcc makes `rep stos`, as in bxi_plan_begin. */
static inline struct bx_request request_of(struct bx_job *job, struct bxi_peer *peer, const struct bxi_frame *head)
{
    bool oneway = head->kind == BXI_ONEWAY;

    return (struct bx_request){
        .job = job, .peer = peer, .handler = NULL, .id = oneway ? 0 : head->id, .deadline_ns = head->deadline_ns,
        .consumed = head->consumed, .loan = NULL, .in = NULL, .begin_ns = 0, .traced_id = 0, .traced_ns = 0,
        .oneway = oneway, .counted = false, .timed = (head->flags & BXI_FLAG_TIMED) != 0, .unparked = false,
        .has_arrow = false, .row = 0, .kind_count = 0,
    };
}

BXI_FLAT int bxi_handle_request(struct bx_job *job, struct bxi_peer *peer, const struct bxi_frame *head,
                                size_t body_bytes)
{
    struct bx_request request = request_of(job, peer, head);
    const uint8_t more = head->flags & BXI_FLAGS_MORE;
    int rc;

    bxi_trace_request(&request);
    if (peer->draining) {
        bxi_counter_add(job, BXI_C_requests_dropped, 1);
        return drop(job, peer, more, body_bytes);
    }
    /* The lease words, which give loans back, lie behind the ring. */
    if ((!request.oneway || (more & (BXI_FLAG_LEASE | BXI_FLAG_RREFS))) && !bxi_way_back(job, peer, 1))
        return drop(job, peer, more, body_bytes);
    if (__builtin_expect(more != 0, 0) && (rc = open_more(&request, more, &body_bytes)) != 1)
        return rc;
    if (__builtin_expect(request.in != NULL && request.in->value, 0))
        return bxi_handler_run(&request, body_bytes);
    if (find_handler(&request, head) == 0)
        return 0;
    if (__builtin_expect(head->flags & (BXI_FLAG_JOIN | BXI_FLAG_LEAVE), 0))
        return member_request(&request, head->flags);
    return bxi_handler_run(&request, body_bytes);
}

static int handle_rref(struct bx_job *job, struct bxi_peer *peer, const struct bxi_frame *head, const void *body,
                       size_t body_bytes)
{
    uint8_t copy[BXI_RREF_NEED_MAX];
    struct bxi_rref_frame frame = { .op = (enum bxi_rref_op)head->flags, .id = head->id, .value = head->code,
                                    .body = copy, .body_bytes = body_bytes };

    if (body_bytes > sizeof copy)
        return BX_E_CORRUPT;
    if (body_bytes > 0)
        memcpy(copy, body, body_bytes);
    bxi_lock(&job->run->lock);
    int rc = bxi_peer_consumed(job, peer, head->consumed);
    bxi_unlock(&job->run->lock);
    if (rc == 0)
        rc = bxi_rref_arrived(job, peer->rank, &frame);
    bxi_quiet_changed(job);
    return rc;
}

static void handle_cancel(struct bx_job *job, struct bxi_peer *peer, const struct bxi_frame *head)
{
    int code = head->code == BX_E_TIMEOUT ? BX_E_TIMEOUT : BX_E_CANCELLED;

    bxi_waiting_cancel(job, peer, head->id, code);
}

/* A frame with device tensors stays in the ring until their memory is mapped. 0: handle it now; else as
 * bxi_device_hold. */
static int wait_for_device(struct bx_job *job, struct bxi_peer *peer, const struct bxi_frame *head,
                           const void *payload, uint32_t payload_bytes)
{
    const unsigned char *body = (const unsigned char *)payload + sizeof *head;
    size_t body_bytes = payload_bytes - sizeof *head;

    if (!(head->flags & BXI_FLAG_DEVICE) || !(head->flags & BXI_FLAG_LEASE) ||
        (peer->draining && head->kind != BXI_REPLY))
        return 0;
    /* The lease words, which give loans back, lie behind the ring; without them the request is refused below. */
    if (peer->lend->held == NULL &&
        (head->kind == BXI_REPLY ? bxi_load_relaxed(&peer->out_open) == 0 : !bxi_way_back(job, peer, 1)))
        return head->kind == BXI_REPLY ? BX_E_CORRUPT : 0;
    if ((head->flags & BXI_FLAG_RREFS) && bxi_rref_skip(body, &body_bytes) < 0)
        return BX_E_CORRUPT;
    if (peer->lend->held == NULL)
        memcpy(job->rpc->frame, body, body_bytes);              /* parsed in private memory only */

    int rc = bxi_device_hold(job, peer->lend, job->rpc->frame, body_bytes);

    return rc == -EAGAIN && peer->draining ? 0 : rc;        /* the memory of a dead peer is not waited for */
}

void bxi_frames_note(struct bx_job *job, struct bxi_peer *peer, uint64_t frames, uint64_t payload_bytes)
{
    struct bxi_pair_counters *counters = &bxi_tables(job->control)->pair_counters[peer->rank];

    /* [peer.consumed] release, pairs with the acquire in put (out.c): the bytes have been copied. */
    bxi_store_release(&peer->consumed, peer->in.read_pos);
    bxi_count(&counters->frames_received, frames);
    bxi_count(&counters->bytes_received, payload_bytes);
    /* Relaxed: a counter for inspectors. */
    bxi_store_relaxed(&counters->read_pos, peer->in.read_pos);
}

void bxi_frame_taken(const struct bxi_role *role, struct bx_job *job, struct bxi_peer *peer, uint32_t payload_bytes)
{
    bool published = bxi_ring_advance(&peer->in, payload_bytes);

    (void)role;
    bxi_frames_note(job, peer, 1, payload_bytes);
    if (published)
        bxi_wanted_look(job);
}

int bxi_dispatch(const struct bxi_role *role, struct bx_job *job, struct bxi_peer *peer, const void *payload,
                 uint32_t payload_bytes)
{
    const unsigned char *body = (const unsigned char *)payload + sizeof(struct bxi_frame);
    size_t body_bytes = payload_bytes - sizeof(struct bxi_frame);
    struct bxi_frame head;
    int rc = 0;

    if (payload_bytes < sizeof head)
        return BX_E_CORRUPT;
    memcpy(&head, payload, sizeof head);
    if (head.kind != BXI_REQUEST || head.flags != 0) {
        bxi_packed_flush(job);      /* what comes may take long */
        if ((rc = wait_for_device(job, peer, &head, payload, payload_bytes)) < 0)
            return rc;
    }
    switch (head.kind) {
    case BXI_REQUEST:
    case BXI_ONEWAY:
        if (body_bytes > 0)
            memcpy(job->rpc->frame, body, body_bytes);
        if (bxi_truncated(peer))
            return BX_E_CORRUPT;
        /* Before the handler runs: its reply then carries the credit for this request. */
        bxi_frame_taken(role, job, peer, payload_bytes);
        rc = bxi_handle_request(job, peer, &head, body_bytes);
        if (peer->lend->held != NULL)       /* the request did not take it: refused, or changed meanwhile */
            bxi_loan_drop_held(peer->lend);
        return rc;
    case BXI_REPLY:
        rc = bxi_reply_arrived(job, peer, &head, body, body_bytes);
        break;
    case BXI_RREF:
        rc = handle_rref(job, peer, &head, body, body_bytes);
        break;
    case BXI_CANCEL:
        handle_cancel(job, peer, &head);
        break;
    default:
        return BX_E_CORRUPT;
    }
    bxi_frame_taken(role, job, peer, payload_bytes);
    bxi_loan_drop_held(peer->lend);
    return rc;
}

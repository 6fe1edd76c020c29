/* SPDX-License-Identifier: MIT */
/*
 * What the room rpc tells the trace, the static probes and the histograms: one function for each thing that happens to
 * a call or a request. The fast path of each is inline: a probe is one nop, and while the trace is off one pointer is
 * read. mark.c makes the marks.
 */
#ifndef BXI_MARK_H
#define BXI_MARK_H

#include "observe/trace.h"
#include "rpc.h"

/* What the trace calls workers and functions. */
extern const struct bxi_trace_names bxi_names_for_trace;

/* A call that is measured ends with this reply. Lock. */
static inline void bxi_mark_measured(const struct bxi_call *call, const struct bxi_frame *reply)
{
    const struct bxi_measured measured = { call->peer->rank, call->function,
                                           call->peer->functions->name[call->function], call->sent_ns,
                                           reply->sent_ns, reply->function };

    bxi_hist_end(call->future.job, &call->peer->hists, &measured);
}

/* A request is on its way. Lock. */
BXI_COLD void bxi_note_oneway(struct bx_job *job, const struct bxi_peer *peer, uint16_t function, uint64_t began_ns);
static inline void bxi_trace_sent(struct bx_job *job, const struct bxi_peer *peer, const struct bxi_frame *head,
                                  uint64_t began_ns)
{
    BXI_PROBE4(call_send, job->rank, peer->rank, head->function, head->kind == BXI_ONEWAY ? 0 : head->id);
    if (head->kind == BXI_ONEWAY && bxi_trace_is_on(job))
        bxi_note_oneway(job, peer, head->function, began_ns);
}

/* An async call is on its way; the future of a call is about to be completed. */
BXI_COLD void bxi_note_call(const struct bxi_call *call, enum bxi_mark_kind kind, int code);
static inline void bxi_trace_async_sent(const struct bxi_call *call)
{
    if (bxi_trace_is_on(call->future.job))
        bxi_note_call(call, BXI_MARK_SEND, 0);
}

static inline void bxi_trace_done(const struct bxi_call *call, int code)
{
    BXI_PROBE5(call_done, call->future.job->rank, call->peer->rank, call->function, call->id, code);
    if (call->caller == NULL && bxi_trace_is_on(call->future.job))
        bxi_note_call(call, BXI_MARK_SPAN, code);
}

/* A sync caller goes on; or could not send, and then call->id is 0. */
static inline void bxi_trace_waited(struct bxi_call *call, struct bxi_peer *peer, int code)
{
    if (!bxi_trace_is_on(call->future.job))
        return;
    call->peer = peer;
    bxi_note_call(call, BXI_MARK_CALL, code);
}

/* A reply was read, from read_ns on, and its call's future has been completed. Role. */
BXI_COLD void bxi_note_reply(struct bx_job *job, const struct bxi_peer *peer, const struct bxi_frame *head,
                             uint64_t read_ns, uint16_t function);
static inline void bxi_trace_reply(struct bx_job *job, const struct bxi_peer *peer, const struct bxi_frame *head,
                                   uint64_t read_ns, uint16_t function)
{
    if (bxi_trace_is_on(job))
        bxi_note_reply(job, peer, head, read_ns, function);
}

/* A request has been read: where its arrow ends is still open. Role. */
static inline void bxi_trace_request(struct bx_request *request)
{
    if (!bxi_trace_is_on(request->job))
        return;
    request->traced_id = request->oneway ? request->peer->in.read_pos : request->id;
    request->has_arrow = true;
}

/* A handler begins, and returns: bytes are those of its arguments. */
static inline void bxi_trace_handler_begins(struct bx_request *request)
{
    BXI_PROBE4(handler_begin, request->job->rank, request->peer->rank, request->handler->name, request->id);
    if (bxi_trace_is_on(request->job))
        request->traced_ns = bxi_now_ns();
}

BXI_COLD void bxi_note_handler(struct bx_request *request, size_t bytes, int code);
static inline void bxi_trace_handler_ends(struct bx_request *request, size_t bytes, int code)
{
    BXI_PROBE5(handler_end, request->job->rank, request->peer->rank, request->handler->name, request->id, code);
    if (bxi_trace_is_on(request->job))
        bxi_note_handler(request, bytes, code);
}

/* The future of an async handler is done. */
BXI_COLD void bxi_note_future(const struct bx_request *request, int code);
static inline void bxi_trace_future(const struct bx_request *request, int code)
{
    if (bxi_trace_is_on(request->job))
        bxi_note_future(request, code);
}

/* An answer is about to be made, at *began_ns; and has been. sent: there is a reply on its way. A one-way call shows
 * only what no handler saw. */
static inline void bxi_trace_answers(const struct bx_request *request, uint64_t *began_ns)
{
    if (bxi_trace_is_on(request->job))
        *began_ns = bxi_now_ns();
}

BXI_COLD void bxi_note_answer(const struct bx_request *request, uint64_t began_ns, int code, size_t bytes, bool sent);
static inline void bxi_trace_answered(const struct bx_request *request, const uint64_t *began_ns, int code,
                                      size_t bytes, bool sent)
{
    if (bxi_trace_is_on(request->job))
        bxi_note_answer(request, *began_ns, code, bytes, sent);
}

/* The body of a batch begins, and has returned. The arrows of its rows end there. */
static inline uint64_t bxi_trace_batch_begins(struct bx_job *job, const struct bxi_batcher *batcher, size_t rows)
{
    BXI_PROBE3(batch_begin, job->rank, batcher->handler->name, rows);
    (void)batcher, (void)rows;
    return bxi_trace_now(job);
}

BXI_COLD void bxi_note_batch(struct bx_job *job, const struct bxi_batcher *batcher, uint64_t began_ns, size_t rows,
                             int code);
static inline void bxi_trace_batch_ends(struct bx_job *job, const struct bxi_batcher *batcher, uint64_t began_ns,
                                        size_t rows, int code)
{
    BXI_PROBE4(batch_end, job->rank, batcher->handler->name, rows, code);
    if (bxi_trace_is_on(job))
        bxi_note_batch(job, batcher, began_ns, rows, code);
}

/* After that, for each of them. */
BXI_COLD void bxi_note_row(struct bx_request *request, uint64_t began_ns);
static inline void bxi_trace_row(struct bx_request *request, uint64_t began_ns)
{
    if (bxi_trace_is_on(request->job))
        bxi_note_row(request, began_ns);
}

#endif

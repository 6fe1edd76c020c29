/* SPDX-License-Identifier: MIT */
/*
 * Answers: a request's result, or its error with a sentence, becomes a reply frame.
 *
 * Run by the role, by a thread of the pool, or by the thread that completes an async handler's future. Nothing here
 * waits: a reply that finds the ring full is queued, and one whose lease cannot be granted becomes an error.
 */
#include "mark.h"
#include "packed.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* "worker 'agent', function 'pick': no such row", within a frame and a sentence. */
static size_t error_body(char body[BXI_TEXT_BYTES], const struct bx_request *request, int code, const char *text)
{
    int bytes = snprintf(body, BXI_TEXT_BYTES, "worker '%s', function '%s': %s", request->job->name,
                         request->handler != NULL ? request->handler->name
                         : request->in != NULL && request->in->value ? BXI_VALUE_NAME : "?",
                         text != NULL && text[0] != '\0' ? text : bx_strerror(code));

    return bytes < BXI_TEXT_BYTES ? (size_t)bytes : BXI_TEXT_BYTES - 1;
}

/* A reply on its way out: its head, and either a value or a sentence. */
struct reply {
    struct bxi_frame head;
    struct bxi_out out;
    struct bxi_rref_out rrefs;
    struct bxi_body body;           /* if has_body */
    bool has_body;                  /* it is more than the bytes of the value */
    uint64_t traced_ns;             /* if it is traced: when making it began */
    char text[BXI_TEXT_BYTES];
};

static void make_error(struct reply *reply, const struct bx_request *request, int code, const char *text)
{
    reply->head.code = code;
    reply->head.flags = 0;
    reply->out.body_bytes = error_body(reply->text, request, code, text);
    reply->out.body = reply->text;
    reply->out.grant = NULL;
    reply->out.rrefs = NULL;
}

/* About when the answer to a request is made. For an inline handler, which is short, it is the clock that the pass has
 * read. */
static uint64_t answered_ns(const struct bx_request *request)
{
    struct bx_job *job = request->job;

    if (request->begin_ns != 0)
        return bxi_now_ns();
    if (request->handler != NULL && request->handler->kind == BXI_F_INLINE && bxi_is_driving(job->run) &&
        job->run->pass_ns != 0)
        return job->run->pass_ns;
    return bxi_coarse_ns();
}

static int make_body(struct reply *reply, const struct bx_request *request, const struct bx_msg *value)
{
    int rc;

    reply->rrefs = (struct bxi_rref_out){ .count = 0 };
    rc = bxi_body_make(request->job, request->peer, value, &reply->rrefs, &reply->body);
    reply->has_body = rc == 0;
    if (rc == 0)
        bxi_body_put(&reply->body, &reply->out);
    return rc;
}

static void make_reply(struct reply *reply, const struct bx_request *request, int code, const char *text,
                       const struct bx_msg *value)
{
    reply->head = (struct bxi_frame){ .kind = BXI_REPLY, .code = code, .id = request->id,
                                      .sent_ns = answered_ns(request) };
    reply->out = (struct bxi_out){ .head = &reply->head, .body = bx_msg_data(value),
                                   .body_bytes = bx_msg_bytes(value), .slot = -1, .may_queue = true };
    if (code == 0 && !request->oneway && !bxi_msg_is_plain(value) && (code = make_body(reply, request, value)) < 0)
        text = bx_error_text();
    if (code < 0)
        make_error(reply, request, code, text);
    if (request->begin_ns != 0) {
        reply->head.flags |= BXI_FLAG_TIMED;
        reply->head.function = bxi_span_pack(reply->head.sent_ns - request->begin_ns);
    }
}

/* Lock. 0, or why the reply was lost. */
static int send_reply(struct reply *reply, const struct bx_request *request)
{
    struct bx_job *job = request->job;
    int rc;

    if (bxi_peer_consumed(job, request->peer, request->consumed) < 0)
        return bxi_peer_suspect(job, request->peer, "it claims to have read what was never sent");
    bxi_counter_add(job, BXI_C_replies_sent, 1);
    rc = bxi_peer_send(job, request->peer, &reply->out);
    if (rc == 0 || rc == BX_E_CORRUPT)
        return rc;
    /* A reply does not wait for leases, nor for memory; without a sentence it fits a spare frame of the queue. */
    make_error(reply, request, rc == -EAGAIN ? BX_E_ON_LOAN : rc, NULL);
    if (rc == -ENOMEM)
        reply->out.body_bytes = 0;
    return bxi_peer_send(job, request->peer, &reply->out);
}

BXI_APART void bxi_answer(struct bx_request *request, int code, const char *text, const struct bx_msg *value)
{
    struct bx_job *job = request->job;
    struct reply reply;
    bool sent = false;
    int rc = 0;

    bxi_trace_answers(request, &reply.traced_ns);
    reply.has_body = false;
    if (request->in != NULL && request->in->makes != NULL) {
        code = bxi_object_made(request, code, &text, value);
        value = NULL;               /* the maker has its reference already */
    }
    make_reply(&reply, request, code, text, value);
    bxi_loan_release(request->loan);
    request->loan = NULL;
    if (request->in != NULL) {
        bxi_rref_in_release(request->in);
        request->in = NULL;
    }
    if (request->oneway && code < 0)
        bxi_log(job, 1, "a one-way call of worker '%s' failed: %s", request->peer->name, reply.text);

    bxi_lock(&job->run->lock);
    if (request->counted)           /* it lies in a struct bxi_waiting */
        bxi_waiting_end((struct bxi_waiting *)(void *)request);
    if (!request->oneway && bxi_load_relaxed(&request->peer->state) == BXI_PEER_ALIVE) {
        rc = send_reply(&reply, request);
        sent = rc == 0;
    }
    bxi_unlock(&job->run->lock);
    bxi_trace_answered(request, &reply.traced_ns, reply.head.code, bx_msg_bytes(value), sent);
    if (reply.has_body)
        bxi_body_drop(&reply.body);
    if (request->counted)
        bxi_quiet_changed(job);
    if (rc < 0)
        bxi_log(job, 0, "a reply to worker '%s' was lost: %s", request->peer->name, bx_error_text());
    if (request->counted && !bxi_is_driving(job->run))
        bxi_bells_flush(job);
}

/* It is nothing but bytes, and so is what it answers: its frame needs no more than itself. */
static bool is_bare(const struct bx_request *request, const struct bx_msg *value)
{
    return !request->oneway && request->loan == NULL && request->in == NULL && request->begin_ns == 0 &&
           bxi_msg_is_plain(value) && value->capacity <= BXI_FRAME_MAX && !bxi_trace_is_on(request->job);
}

bool bxi_answer_plain(const struct bx_request *request, const struct bx_msg *value)
{
    struct bx_job *job = request->job;
    struct bxi_frame head = { .kind = BXI_REPLY, .id = request->id, .sent_ns = job->run->pass_ns };
    struct bxi_out out = { .head = &head, .body = value->data, .body_bytes = value->bytes, .slot = -1, .lease = -1 };
    bool sent;

    if (!is_bare(request, value))
        return false;
    if (bxi_packed_add(request, value))
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

static void keep_serving(struct bx_job *job, uint32_t n)
{
    bxi_lock(&job->run->lock);
    job->rpc->serving += n;
    bxi_unlock(&job->run->lock);
}

void bxi_waiting_answer(struct bxi_waiting *waiting, int code, const char *text, const struct bx_msg *value)
{
    struct bx_job *job = waiting->request.job;
    bool has_rrefs = bx_msg_rrefs(waiting->reply) > 0;

    /* Before the answer goes out: the caller that reads it has got back what the arguments lent. */
    bx_msg_destroy(waiting->args);
    waiting->args = NULL;
    if (has_rrefs)                  /* a shutdown waits until they are released: what that sends is to be read */
        keep_serving(job, 1);
    bxi_answer(&waiting->request, code, text, value);
    bxi_waiting_destroy(waiting);
    if (has_rrefs) {
        keep_serving(job, (uint32_t)-1);
        bxi_quiet_changed(job);
    }
}

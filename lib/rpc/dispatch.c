/* SPDX-License-Identifier: MIT */
/*
 * What a frame means: requests to handlers, replies to calls.
 *
 * Runs under the progress role, but for bxi_answer and bxi_run_handler, which the pool and completing
 * threads use too. Everything in a frame is input: its head is copied, then checked, then used; a body
 * is copied before anybody parses it.
 */
#include "base/options.h"
#include "mark.h"

#include "shm/step.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- answering --------------------------------------------------------------------------------- */

/* "worker 'agent', function 'pick': no such row", within a frame and a sentence. */
static size_t error_body(char body[BXI_TEXT_BYTES], const struct bx_request *request, int code, const char *text)
{
    int bytes = snprintf(body, BXI_TEXT_BYTES, "worker '%s', function '%s': %s", request->job->name,
                         request->handler != NULL ? request->handler->name : "?",
                         text != NULL && text[0] != '\0' ? text : bx_strerror(code));

    return bytes < BXI_TEXT_BYTES ? (size_t)bytes : BXI_TEXT_BYTES - 1;
}

/* A reply on its way out: its head, and either a value or a sentence. */
struct reply {
    struct bxi_frame head;
    struct bxi_out out;
    struct bxi_cargo cargo;
    uint64_t traced_ns;             /* if it is traced: when it began to be made */
    char text[BXI_TEXT_BYTES];
};

static void make_error(struct reply *reply, const struct bx_request *request, int code, const char *text)
{
    reply->head.code = code;
    reply->head.flags = 0;
    reply->out.body_bytes = error_body(reply->text, request, code, text);
    reply->out.body = reply->text;
    reply->out.cargo = NULL;
}

/* About when the answer to a request is made. The clock that the pass has read will do for an inline handler,
 * which is short. */
static uint64_t answered_ns(const struct bx_request *request)
{
    struct bx_job *job = request->job;

    if (request->begin_ns != 0)
        return bxi_now_ns();
    if (request->handler != NULL && request->handler->kind == BXI_F_INLINE && bxi_is_driving(job) &&
        job->run->pass_ns != 0)
        return job->run->pass_ns;
    return bxi_coarse_ns();
}

static void make_reply(struct reply *reply, const struct bx_request *request, int code, const char *text,
                       const struct bx_msg *value)
{
    reply->head = (struct bxi_frame){ .kind = BXI_REPLY, .code = code, .id = request->id,
                                      .sent_ns = answered_ns(request) };
    reply->out = (struct bxi_out){ .head = &reply->head, .body = bx_msg_data(value),
                                   .body_bytes = bx_msg_bytes(value), .slot = -1, .may_queue = true };
    if (code == 0 && !request->oneway && bxi_needs_lease(value)) {
        code = bxi_cargo_pack(request->job, request->peer, value, &reply->cargo);
        reply->out.cargo = &reply->cargo;
        text = bx_error_text();
        bxi_leases_reclaim(request->job);
    }
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
    if (rc == 0 || reply->out.cargo == NULL)
        return rc;
    /* Nothing here may wait for leases. */
    make_error(reply, request, rc == -EAGAIN ? BX_E_ON_LOAN : rc, NULL);
    return bxi_peer_send(job, request->peer, &reply->out);
}

void bxi_answer(struct bx_request *request, int code, const char *text, const struct bx_msg *value)
{
    struct bx_job *job = request->job;
    struct reply reply;
    bool sent = false;
    int rc = 0;

    bxi_trace_answers(request, &reply.traced_ns);
    reply.cargo.body = NULL;
    make_reply(&reply, request, code, text, value);
    bxi_loan_release(request->loan);
    if (request->oneway && code < 0)
        bxi_log(1, "a one-way call of worker '%s' failed: %s", request->peer->name, reply.text);

    bxi_lock(&job->run->lock);
    if (request->counted)           /* it lies in a struct bxi_waiting */
        bxi_waiting_end((struct bxi_waiting *)(void *)request);
    if (!request->oneway && bxi_load_relaxed(&request->peer->state) == BXI_PEER_ALIVE) {
        rc = send_reply(&reply, request);
        sent = rc == 0;
    }
    bxi_unlock(&job->run->lock);
    bxi_trace_answered(request, &reply.traced_ns, reply.head.code, bx_msg_bytes(value), sent);
    if (reply.cargo.body != NULL)
        bxi_cargo_drop(&reply.cargo);
    if (request->counted)
        bxi_quiet_changed(job);
    if (rc < 0)
        bxi_log(0, "a reply to worker '%s' was lost: %s", request->peer->name, bx_error_text());
    if (request->counted && !bxi_is_driving(job))
        bxi_bells_flush(job);
}

/* ---- handlers ---------------------------------------------------------------------------------- */

/* The arguments as they lie in the frame, or in what it lends. */
static struct bx_reader reader_of(const struct bx_request *request, size_t body_bytes)
{
    const struct bxi_loan *loan = request->loan;

    if (loan == NULL)
        return (struct bx_reader){ .data = request->job->rpc->frame, .bytes = body_bytes };
    return (struct bx_reader){ .data = loan->data, .bytes = loan->bytes, .tensors = loan->pointers,
                               .tensor_count = loan->tensor_count };
}

/* Runs an inline or a blocking handler. Its code; the thread's sentence says why it failed. */
static int run_handler(struct bx_request *request, struct bx_reader reader, struct bx_msg *reply)
{
    bxi_clear_error();
    bxi_trace_handler_begins(request);

    int code = bxi_call_handler(request, &reader, reply, NULL);

    if (code >= 0)
        code = reader.error < 0 ? reader.error : reply->error;
    bxi_trace_handler_ends(request, reader.bytes, code);
    return code;
}

/* One large reply does not keep its memory for ever. */
static void shrink_reply(struct bx_job *job)
{
    struct bx_msg *reply = bx_msg_create(BXI_FRAME_MAX);

    if (reply == NULL)
        return;
    bx_msg_destroy(job->rpc->reply);
    job->rpc->reply = reply;
}

static void run_inline(struct bx_request *request, size_t body_bytes)
{
    struct bx_job *job = request->job;
    int code;

    bx_msg_clear(job->rpc->reply);
    bxi_now_show(request);
    bxi_request_begins(request);
    bxi_no_wait_enter();
    code = run_handler(request, reader_of(request, body_bytes), job->rpc->reply);
    bxi_answer(request, code, bx_error_text(), job->rpc->reply);
    if (job->rpc->reply->tensor_count > 0)
        bx_msg_clear(job->rpc->reply);       /* here, where a bx_free_fn must not wait either */
    bxi_no_wait_leave();
    bxi_now_hide(request);
    if (job->rpc->reply->capacity > BXI_FRAME_MAX)
        shrink_reply(job);
}

/* ---- async handlers ---------------------------------------------------------------------------- */

/* The callback of its future: by the thread that completes that. */
static void async_done(struct bx_future *future, void *context)
{
    struct bxi_waiting *waiting = context;

    bxi_trace_future(&waiting->request, future->code);
    bxi_waiting_answer(waiting, future->code, bx_future_error_text(future), future->value);
}

/* The future's result becomes the answer. 0: the callback owns the request. BX_E_CORRUPT as bxi_waiting_begin, and it
 * is freed; any other error has been answered. */
static int answer_when_done(struct bxi_waiting *waiting, struct bx_future *future)
{
    struct bx_job *job = waiting->request.job;
    int rc;

    waiting->request.traced_ns = bxi_trace_now(job);
    waiting->future = future;
    bxi_lock(&job->run->lock);
    rc = bxi_waiting_begin(waiting, BXI_WAITS_FOR_FUTURE);
    bxi_unlock(&job->run->lock);
    if (rc == 0)
        rc = bxi_future_on_done(future, async_done, waiting);
    if (rc == BX_E_CORRUPT)
        bxi_waiting_drop(waiting);
    else if (rc < 0)
        bxi_waiting_answer(waiting, rc, NULL, NULL);
    return rc;
}

static int run_async(struct bx_request *read, size_t body_bytes)
{
    struct bx_reader args = reader_of(read, body_bytes);
    struct bxi_waiting *waiting = bxi_waiting_create(read);
    struct bx_future *future = NULL;
    struct bx_request *request;
    int code, rc = 0;

    if (waiting == NULL) {
        bxi_answer(read, -ENOMEM, NULL, NULL);
        return 0;
    }
    request = &waiting->request;
    bxi_clear_error();
    bxi_now_show(request);
    bxi_request_begins(request);
    bxi_trace_handler_begins(request);
    bxi_no_wait_enter();
    code = bxi_call_handler(request, &args, NULL, &future);
    bxi_no_wait_leave();
    bxi_trace_handler_ends(request, args.bytes, code);
    bxi_now_hide(request);
    if (code >= 0 && args.error < 0)
        code = args.error;
    bxi_loan_release(request->loan);        /* what the handler keeps it has acquired */
    request->loan = NULL;
    if (code >= 0 && future == NULL)
        code = bx_fail(BX_E_HANDLER, "the async handler returned no future");
    if (code < 0)
        bxi_waiting_answer(waiting, code, bx_error_text(), NULL);
    else
        rc = answer_when_done(waiting, future);
    bxi_no_wait_enter();            /* its value may hold tensors with a bx_free_fn */
    bxi_future_release(future);
    bxi_no_wait_leave();
    return rc == BX_E_CORRUPT ? rc : 0;
}

/* ---- handlers that run later --------------------------------------------------------------------- */

/* The request with its arguments, which the frame's memory does not keep. NULL when memory is out. */
static struct bxi_waiting *keep(const struct bx_request *request, size_t body_bytes)
{
    struct bxi_waiting *waiting = bxi_waiting_create(request);

    if (waiting == NULL)
        return NULL;
    waiting->args = request->loan != NULL ? bxi_msg_of_loan(request->loan)
                                          : bxi_msg_copy(request->job->rpc->frame, body_bytes);
    if (waiting->args != NULL)
        return waiting;
    free(waiting);
    return NULL;
}

static int add_row(struct bx_request *request, size_t body_bytes)
{
    struct bxi_waiting *waiting = keep(request, body_bytes);
    int rc;

    if (waiting == NULL) {
        bxi_answer(request, -ENOMEM, "no memory for a row", NULL);
        return 0;
    }
    rc = bxi_batch_add(waiting);
    if (rc < 0)
        bxi_waiting_drop(waiting);
    return rc == BX_E_CORRUPT ? rc : 0;
}

static struct bxi_waiting *waiting_of(struct bxi_task *task)
{
    return (struct bxi_waiting *)(void *)((char *)task - offsetof(struct bxi_waiting, task));
}

/* By a thread of the pool. */
static void run_blocking(struct bx_job *job, struct bxi_task *task)
{
    struct bxi_waiting *waiting = waiting_of(task);
    int code;

    if (waiting->request.deadline_ns <= bxi_now_ns()) {
        bxi_lock(&job->run->lock);
        bxi_counter_add(job, BXI_C_requests_expired, 1);
        bxi_unlock(&job->run->lock);
        bxi_waiting_answer(waiting, BX_E_TIMEOUT, "the deadline passed before a thread was free", NULL);
        return;
    }
    bxi_serving_at(&waiting->request, BXI_AT_THREAD);
    bxi_request_begins(&waiting->request);
    waiting->reply = bx_msg_create(0);
    if (waiting->reply == NULL) {
        bxi_waiting_answer(waiting, -ENOMEM, "no memory for the reply", NULL);
        return;
    }
    code = run_handler(&waiting->request, bx_msg_reader(waiting->args), waiting->reply);
    bxi_waiting_answer(waiting, code, bx_error_text(), waiting->reply);
}

static void refuse_blocking(struct bx_job *job, struct bxi_task *task, int code)
{
    char why[BXI_POOL_WHY_BYTES];

    (void)job;
    bxi_waiting_answer(waiting_of(task), code, bxi_pool_why(code, why), NULL);
}

static int submit_blocking(struct bx_request *request, size_t body_bytes)
{
    struct bx_job *job = request->job;
    struct bxi_waiting *waiting = keep(request, body_bytes);
    char why[BXI_POOL_WHY_BYTES];
    int rc;

    if (waiting == NULL) {
        bxi_answer(request, -ENOMEM, bxi_pool_why(-ENOMEM, why), NULL);
        return 0;
    }
    waiting->task.run = run_blocking;
    waiting->task.refuse = refuse_blocking;
    bxi_lock(&job->run->lock);
    rc = bxi_waiting_begin(waiting, BXI_WAITS_FOR_THREAD);
    bxi_unlock(&job->run->lock);
    if (rc == BX_E_CORRUPT) {
        bxi_waiting_drop(waiting);
        return rc;
    }
    if (rc < 0 || (rc = bxi_pool_submit(job, &waiting->task)) < 0)
        bxi_waiting_answer(waiting, rc, bxi_pool_why(rc, why), NULL);
    return 0;
}

/* ---- requests ---------------------------------------------------------------------------------- */

static int member_request(struct bx_request *request, uint8_t flags)
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

static int run_request(struct bx_request *request, size_t body_bytes)
{
    struct bx_job *job = request->job;

    switch (request->handler->kind) {
    case BXI_F_INLINE:
        bxi_counter_add(job, BXI_C_requests_inline, 1);
        run_inline(request, body_bytes);
        return 0;
    case BXI_F_ASYNC:
        bxi_counter_add(job, BXI_C_requests_async, 1);
        return run_async(request, body_bytes);
    case BXI_F_BLOCKING:
        bxi_counter_add(job, BXI_C_requests_blocking, 1);
        return submit_blocking(request, body_bytes);
    case BXI_F_BATCH:
        bxi_counter_add(job, BXI_C_requests_batched, 1);
        return add_row(request, body_bytes);
    }
    return BX_E_CORRUPT;
}

/* The way back could not be opened: this request is dropped, and its caller told up to where. */
static void refuse(struct bx_job *job, struct bxi_peer *peer, int code)
{
    struct bxi_pair *pair = &job->control->pair[peer->rank];

    bxi_counter_add(job, BXI_C_requests_dropped, 1);
    /* Relaxed: published by the store below. */
    bxi_store_relaxed(&pair->refused_errno, (uint64_t)(uint32_t)code);
    /* [pair.refused] release, pairs with the acquire in look_refused: the errno is read after it. */
    bxi_store_release(&pair->refused_through, peer->in.read_pos);
    BXI_STEP("open.refused");
    bxi_bell_ring(peer->bell.fd[0]);
}

/* Is there a way back to peer? A callee opens its ring before it accepts the first call. */
static bool way_back(struct bx_job *job, struct bxi_peer *peer)
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
    bxi_log(0, "%s", bx_error_text());
    refuse(job, peer, rc);
    return false;
}

static int handle_request(struct bx_job *job, struct bxi_peer *peer, const struct bxi_frame *head,
                          size_t body_bytes)
{
    struct bx_request request = {
        .job = job,
        .peer = peer,
        .id = head->kind == BXI_ONEWAY ? 0 : head->id,
        .deadline_ns = head->deadline_ns,
        .consumed = head->consumed,
        .oneway = head->kind == BXI_ONEWAY,
        .timed = (head->flags & BXI_FLAG_TIMED) != 0,
    };

    bxi_trace_request(&request);
    if (peer->draining) {
        bxi_counter_add(job, BXI_C_requests_dropped, 1);
        return 0;
    }
    /* What is lent is given back by words that lie behind the ring. */
    if ((!request.oneway || (head->flags & BXI_FLAG_LEASE)) && !way_back(job, peer))
        return 0;
    if (head->flags & BXI_FLAG_LEASE) {
        int rc = bxi_loan_open(job, peer, job->rpc->frame, body_bytes, &request.loan);

        if (rc == BX_E_CORRUPT)
            return rc;
        if (rc == 0)
            rc = bxi_device_loan_error(request.loan);
        if (rc == BX_E_CORRUPT) {
            bxi_loan_release(request.loan);
            return rc;
        }
        if (rc < 0) {
            bxi_answer(&request, rc, request.loan != NULL ? bx_error_text()
                                     : rc == -ENODEV ? "it has no GPU open; call bx_gpu_open"
                                                     : "no memory for its tensors", NULL);
            return 0;
        }
    }
    /* [handlers] acquire, pairs with the release in add_handler. */
    if (head->function >= bxi_load_acquire(&job->rpc->handler_count)) {
        bxi_counter_add(job, BXI_C_requests_refused, 1);
        bxi_answer(&request, BX_E_NO_FUNCTION, NULL, NULL);
        return 0;
    }
    request.handler = &job->rpc->handlers[head->function];
    if (job->run->pass_ns == 0)
        job->run->pass_ns = bxi_coarse_ns();
    if (head->deadline_ns < job->run->pass_ns) {
        bxi_lock(&job->run->lock);
        bxi_counter_add(job, BXI_C_requests_expired, 1);
        bxi_unlock(&job->run->lock);
        bxi_answer(&request, BX_E_TIMEOUT, "the deadline passed before the request was read", NULL);
        return 0;
    }
    if (head->flags & (BXI_FLAG_JOIN | BXI_FLAG_LEAVE))
        return member_request(&request, head->flags);
    return run_request(&request, body_bytes);
}

/* A request whose caller gave up is taken out of where it waits; one that runs goes on. */
static void handle_cancel(struct bx_job *job, struct bxi_peer *peer, const struct bxi_frame *head)
{
    int code = head->code == BX_E_TIMEOUT ? BX_E_TIMEOUT : BX_E_CANCELLED;

    bxi_waiting_cancel(job, peer, head->id, code);
}

/* A frame with device tensors waits where it lies until their memory is mapped. 0: go on; else as bxi_device_hold. */
static int wait_for_device(struct bx_job *job, struct bxi_peer *peer, const struct bxi_frame *head,
                           const void *payload, uint32_t payload_bytes)
{
    const unsigned char *body = (const unsigned char *)payload + sizeof *head;

    if (!(head->flags & BXI_FLAG_DEVICE) || !(head->flags & BXI_FLAG_LEASE) ||
        (peer->draining && head->kind != BXI_REPLY))
        return 0;
    /* What is lent is given back by words that lie behind the ring; without them the request is refused below. */
    if (peer->held == NULL && (head->kind == BXI_REPLY ? bxi_load_relaxed(&peer->out_open) == 0 : !way_back(job, peer)))
        return head->kind == BXI_REPLY ? BX_E_CORRUPT : 0;

    int rc = bxi_device_hold(job, peer, body, payload_bytes - sizeof *head);

    return rc == -EAGAIN && peer->draining ? 0 : rc;        /* what is not mapped yet of the dead is not waited for */
}

int bxi_dispatch(struct bx_job *job, struct bxi_peer *peer, const void *payload, uint32_t payload_bytes)
{
    const unsigned char *body = (const unsigned char *)payload + sizeof(struct bxi_frame);
    size_t body_bytes = payload_bytes - sizeof(struct bxi_frame);
    struct bxi_frame head;
    int rc = 0;

    if (payload_bytes < sizeof head)
        return BX_E_CORRUPT;
    memcpy(&head, payload, sizeof head);
    if ((rc = wait_for_device(job, peer, &head, payload, payload_bytes)) < 0)
        return rc;
    switch (head.kind) {
    case BXI_REQUEST:
    case BXI_ONEWAY:
        if (body_bytes > 0)
            memcpy(job->rpc->frame, body, body_bytes);
        if (bxi_truncated(peer))
            return BX_E_CORRUPT;
        /* Before the handler runs: its reply then says that this request has been read. */
        bxi_frame_taken(job, peer, payload_bytes);
        rc = handle_request(job, peer, &head, body_bytes);
        bxi_loan_drop_held(peer);       /* if it was not asked for: refused, or changed meanwhile */
        return rc;
    case BXI_REPLY:
        rc = bxi_reply_arrived(job, peer, &head, body, body_bytes);
        break;
    case BXI_CANCEL:
        handle_cancel(job, peer, &head);
        break;
    default:
        return BX_E_CORRUPT;
    }
    bxi_frame_taken(job, peer, payload_bytes);
    bxi_loan_drop_held(peer);
    return rc;
}

/* ---- registration ------------------------------------------------------------------------------ */

static int check_name(const char *name)
{
    size_t length = name == NULL ? 0 : strlen(name);

    if (length == 0 || length > BX_NAME_MAX)
        return bx_fail(-EINVAL, "a function's name has 1 to %d characters, '%s' has %zu", BX_NAME_MAX,
                       bxi_brief(name).text, length);
    return 0;
}

/* Lock. The entry is complete before the count says so, here and in the segment. */
static int add_handler(struct bx_job *job, const char *name, const struct bxi_handler *handler)
{
    /* Relaxed: written under the lock only. */
    uint32_t count = bxi_load_relaxed(&job->rpc->handler_count);

    for (uint32_t i = 0; i < count; i++)
        if (strcmp(job->rpc->handlers[i].name, name) == 0)
            return bx_fail(-EEXIST, "worker '%s' has registered '%s' before", job->name, name);
    if (count == BXI_FUNCTION_MAX)
        return bx_fail(-ENOSPC, "worker '%s' has %d functions already, '%s' is one too many", job->name,
                       BXI_FUNCTION_MAX, name);
    job->rpc->handlers[count] = *handler;
    strcpy(job->rpc->handlers[count].name, name);
    if (handler->batcher != NULL) {
        handler->batcher->handler = &job->rpc->handlers[count];
        handler->batcher->next = job->rpc->batchers;
        job->rpc->batchers = handler->batcher;
    }
    /* [handlers] release, pairs with the acquire in handle_request. */
    bxi_store_release(&job->rpc->handler_count, count + 1);
    if (job->control != NULL) {
        strcpy(job->control->function[count].name, name);
        job->control->function[count].kind = (uint32_t)handler->kind;
        /* [functions] release, pairs with the acquire in refresh (names.c). */
        bxi_store_release(&job->control->header.function_count, count + 1);
    }
    return 0;
}

static int registered(struct bx_job *job, const char *name, const struct bxi_handler *handler)
{
    int rc = bxi_job_check_any(job);

    if (rc == 0)
        rc = check_name(name);
    if (rc == 0 && bxi_load_relaxed(&job->phase) != BXI_CREATED)
        rc = bxi_job_check(job);
    if (rc < 0)
        return rc;
    bxi_lock(&job->run->lock);
    rc = add_handler(job, name, handler);
    bxi_unlock(&job->run->lock);
    return rc;
}

int bx_register(struct bx_job *job, const char *name, enum bx_kind kind, bx_handler_fn fn, void *context)
{
    if (fn == NULL || (kind != BX_INLINE && kind != BX_BLOCKING))
        return bx_fail(-EINVAL, "a handler is a function and BX_INLINE or BX_BLOCKING");

    struct bxi_handler handler = { .kind = kind == BX_INLINE ? BXI_F_INLINE : BXI_F_BLOCKING, .fn = fn,
                                   .context = context };

    return registered(job, name, &handler);
}

int bx_register_async(struct bx_job *job, const char *name, bx_async_fn fn, void *context)
{
    struct bxi_handler handler = { .kind = BXI_F_ASYNC, .async = fn, .context = context };

    if (fn == NULL)
        return bx_fail(-EINVAL, "there is no function to register as '%s'", bxi_brief(name).text);
    return registered(job, name, &handler);
}

int bx_register_batch(struct bx_job *job, const char *name, bx_batch_fn fn, void *context,
                      const struct bx_batch_options *options)
{
    struct bx_batch_options given = { 0 };
    struct bxi_batcher *batcher;
    int rc;

    if (fn == NULL)
        return bx_fail(-EINVAL, "there is no body to register as '%s'", bxi_brief(name).text);
    if (options != NULL && (rc = bxi_options_copy(&given, sizeof given, options, "bx_batch_options")) < 0)
        return rc;
    batcher = calloc(1, sizeof *batcher);
    if (batcher == NULL)
        return bx_fail(-ENOMEM, "no memory for a batch");
    batcher->fn = fn;
    batcher->max_rows = given.max_rows;
    batcher->flush_after_ns = given.flush_after_ns;
    batcher->blocking = given.blocking;
    bxi_batcher_init(batcher);

    struct bxi_handler handler = { .kind = BXI_F_BATCH, .context = context, .batcher = batcher };

    rc = registered(job, name, &handler);
    if (rc < 0)
        free(batcher);
    return rc;
}

/* ---- what a handler may ask -------------------------------------------------------------------- */

struct bx_job *bx_request_job(const struct bx_request *request)
{
    return request != NULL ? request->job : NULL;
}

int bx_request_caller(const struct bx_request *request)
{
    return request != NULL ? request->peer->rank : bxi_null(__func__, "the request");
}

const char *bx_request_function(const struct bx_request *request)
{
    return request != NULL ? request->handler->name : NULL;
}

uint64_t bx_request_deadline_ns(const struct bx_request *request)
{
    return request != NULL ? request->deadline_ns : 0;
}

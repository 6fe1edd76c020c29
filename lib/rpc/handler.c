/* SPDX-License-Identifier: MIT */
/*
 * How the four kinds of handlers run.
 *
 *     inline      here, by the role, its arguments read in job->rpc->frame; answered before the next frame is read
 *     async       here, by the role; answered by the callback of the future that it returned
 *     blocking    by a thread of the pool, with a copy of its arguments, or the loan of them
 *     async, on the pool      begins as a blocking one, ends as an async one
 *     batch       by batch.c, likewise with a copy or the loan
 *
 * All but the inline ones are a struct bxi_waiting meanwhile (waiting.c).
 */
#include "mark.h"
#include "nested.h"
#include "packed.h"

#include <errno.h>
#include <stdlib.h>

/* The arguments lie in the memory that the request lends, or brought references or kinds. */
BXI_COLD static void read_more(const struct bx_request *request, struct bx_reader *reader)
{
    const struct bxi_loan *loan = request->loan;
    const struct bxi_rref_in *in = request->in;

    if (loan != NULL)
        *reader = (struct bx_reader){ .data = loan->data, .bytes = loan->bytes, .tensors = loan->pointers,
                                      .tensor_count = loan->tensor_count };
    if (in != NULL) {
        reader->rrefs = in->rrefs;
        reader->rref_count = in->count;
    }
    if (request->kind_count > 0) {
        struct bxi_kinds *kinds = &request->job->rpc->kinds;

        *kinds = (struct bxi_kinds){ (unsigned char *)(uintptr_t)(reader->data + reader->bytes), request->kind_count, 0,
                                     reader->rrefs, reader->rref_count };
        bxi_kinds_mark(reader, kinds);
    }
}

/* The arguments: in the frame, or in the memory that it lends. In place: a copy of what was just written waits for the
 * stores. */
static inline void read_args(const struct bx_request *request, size_t body_bytes, struct bx_reader *reader)
{
    *reader = (struct bx_reader){ .data = request->job->rpc->frame, .bytes = body_bytes };
    if (__builtin_expect(request->loan != NULL || request->in != NULL || request->kind_count > 0, 0))
        read_more(request, reader);
}

/* Runs an inline or a blocking handler. Its code; the thread's sentence says why it failed. */
static int run_handler(struct bx_request *request, struct bx_reader *reader, struct bx_msg *reply)
{
    bxi_clear_error();
    bxi_trace_handler_begins(request);

    int code = bxi_call_handler(request, reader, reply, NULL);

    if (code >= 0)
        code = reader->error < 0 ? reader->error : reply->error;
    bxi_trace_handler_ends(request, reader->bytes, code);
    return code;
}

/* After a large reply: back to the usual capacity. */
BXI_COLD static void shrink_reply(struct bx_job *job)
{
    struct bx_msg *reply = bx_msg_create(BXI_FRAME_MAX);

    if (reply == NULL)
        return;
    bx_msg_destroy(job->rpc->reply);
    job->rpc->reply = reply;
}

/* It failed, or has more than bytes to answer. The reply is left fit for the next. */
BXI_COLD static void answer_with_more(struct bx_request *request, int code)
{
    struct bx_job *job = request->job;

    bxi_answer(request, code, bx_error_text(), job->rpc->reply);
    bx_msg_clear(job->rpc->reply);          /* inside of no_wait: a bx_free_fn must not wait either */
    if (job->rpc->reply->capacity > BXI_FRAME_MAX)
        shrink_reply(job);
}

static void run_inline(struct bx_request *request, size_t body_bytes)
{
    struct bx_job *job = request->job;
    struct bx_reader args;
    int code;

    read_args(request, body_bytes, &args);
    job->rpc->reply->bytes = 0;         /* all that it has: see answer_with_more */
    bxi_now_show(request);
    bxi_request_begins(request);
    bxi_no_wait_enter();
    if (!request->oneway)
        bxi_packed_time(job);
    code = run_handler(request, &args, job->rpc->reply);
    if (code < 0 || !bxi_answer_plain(request, job->rpc->reply))
        answer_with_more(request, code);
    bxi_no_wait_leave();
    bxi_now_hide(request);
}

/* The handler that bxi_nested_enter was for has returned. */
static void leave_handler(struct bxi_waiting *waiting, struct bxi_nesting before)
{
    bxi_nested_leave(before);
    if (waiting->hook.used)
        bxi_hook_end(waiting);
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
    const struct bxi_peer *peer = waiting->request.peer;
    int rc = 0, given_up = 0;

    waiting->request.traced_ns = bxi_trace_now(job);
    waiting->future = future;
    bxi_lock(&job->run->lock);
    if (waiting->request.counted)
        given_up = bxi_waiting_for_future(waiting);
    else
        rc = bxi_waiting_begin(waiting, BXI_WAITS_FOR_FUTURE);
    bxi_unlock(&job->run->lock);
    if (rc == 0)
        rc = bxi_future_on_done(future, async_done, waiting);
    if (rc == BX_E_CORRUPT)
        bxi_waiting_destroy(waiting);
    else if (rc < 0)
        bxi_waiting_answer(waiting, rc, NULL, NULL);
    if (given_up < 0)
        bxi_waiting_fail_future(future, peer, given_up);
    return rc;
}

/* Runs an async handler, whose future will answer. 0, BX_E_CORRUPT. */
static int run_until_future(struct bxi_waiting *waiting, struct bx_reader *args)
{
    struct bx_request *request = &waiting->request;
    const struct bxi_peer *peer = request->peer;
    struct bx_future *future = NULL;
    struct bxi_nesting before;
    int code, rc = 0;

    bxi_clear_error();
    bxi_trace_handler_begins(request);
    before = bxi_nested_enter(waiting);
    code = bxi_call_handler(request, args, NULL, &future);
    leave_handler(waiting, before);
    bxi_pool_answers(request->job);
    bxi_trace_handler_ends(request, args->bytes, code);
    if (code >= 0 && args->error < 0)
        code = args->error;
    bx_msg_destroy(waiting->args);          /* the handler has acquired the tensors that it keeps */
    waiting->args = NULL;
    bxi_loan_release(request->loan);
    request->loan = NULL;
    if (code >= 0 && future == NULL)
        code = bx_fail(BX_E_HANDLER, "the async handler returned no future");
    if (code < 0)
        bxi_waiting_answer(waiting, code, bx_error_text(), NULL);
    else
        rc = answer_when_done(waiting, future);
    if (future != NULL && (code < 0 || rc < 0))     /* the request has its answer: nobody wants another one */
        bxi_waiting_fail_future(future, peer, BX_E_CANCELLED);
    bxi_no_wait_enter();            /* the value may hold tensors with a bx_free_fn */
    bxi_future_release(future);
    bxi_no_wait_leave();
    return rc == BX_E_CORRUPT ? rc : 0;
}

BXI_APART static int run_async(struct bx_request *read, size_t body_bytes)
{
    struct bxi_waiting *waiting = bxi_waiting_create(read);
    struct bx_reader args;
    int rc;

    read_args(read, body_bytes, &args);
    if (waiting == NULL) {
        bxi_answer(read, -ENOMEM, NULL, NULL);
        return 0;
    }
    bxi_now_show(read);
    bxi_request_begins(&waiting->request);
    bxi_no_wait_enter();
    rc = run_until_future(waiting, &args);
    bxi_no_wait_leave();
    bxi_now_hide(read);
    return rc;
}

/* ---- handlers that run later --------------------------------------------------------------------- */

/* The request with a copy or the loan of its arguments; NULL when memory is out. */
static struct bxi_waiting *keep(const struct bx_request *request, size_t body_bytes)
{
    struct bxi_waiting *waiting = bxi_waiting_create(request);

    if (waiting == NULL)
        return NULL;
    waiting->args = bxi_brought_message(request->job->rpc->frame,
                                        &(struct bxi_brought){ .bytes = body_bytes, .loan = request->loan,
                                                               .in = request->in, .kind_count = request->kind_count });
    if (waiting->args != NULL)
        return waiting;
    free(waiting);
    return NULL;
}

BXI_APART static int add_row(struct bx_request *request, size_t body_bytes)
{
    struct bxi_waiting *waiting = keep(request, body_bytes);
    int rc;

    if (waiting == NULL) {
        bxi_answer(request, -ENOMEM, "no memory for a row", NULL);
        return 0;
    }
    rc = bxi_batch_add(waiting);
    if (rc < 0)
        bxi_waiting_destroy(waiting);
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
    struct bxi_nesting before;
    struct bx_reader args;
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
    args = bx_msg_reader(waiting->args);
    if (waiting->request.handler->async != NULL) {
        run_until_future(waiting, &args);       /* not BX_E_CORRUPT: the request is in the table */
        return;
    }
    waiting->reply = bx_msg_create(0);
    if (waiting->reply == NULL) {
        bxi_waiting_answer(waiting, -ENOMEM, "no memory for the reply", NULL);
        return;
    }
    before = bxi_nested_enter(waiting);
    code = run_handler(&waiting->request, &args, waiting->reply);
    leave_handler(waiting, before);
    bxi_pool_answers(job);
    bxi_waiting_answer(waiting, code, bx_error_text(), waiting->reply);
}

static void refuse_blocking(struct bx_job *job, struct bxi_task *task, int code)
{
    char why[BXI_POOL_WHY_BYTES];

    (void)job;
    bxi_waiting_answer(waiting_of(task), code, bxi_pool_why(code, why), NULL);
}

BXI_APART static int submit_blocking(struct bx_request *request, size_t body_bytes)
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
    waiting->task.locked = request->handler->locked;
    bxi_lock(&job->run->lock);
    rc = bxi_waiting_begin(waiting, BXI_WAITS_FOR_THREAD);
    bxi_unlock(&job->run->lock);
    if (rc == BX_E_CORRUPT) {
        bxi_waiting_destroy(waiting);
        return rc;
    }
    if (rc < 0 || (rc = bxi_pool_submit(job, &waiting->task)) < 0)
        bxi_waiting_answer(waiting, rc, bxi_pool_why(rc, why), NULL);
    return 0;
}

int bxi_handler_run(struct bx_request *request, size_t body_bytes)
{
    struct bx_job *job = request->job;

    if (__builtin_expect(request->in != NULL || request->handler->type != NULL, 0)) {
        int rc = bxi_object_check(request, body_bytes);

        if (rc == 1)
            return 0;
        if (rc == BX_E_CORRUPT) {
            bxi_loan_release(request->loan);
            bxi_rref_in_release(request->in);
            return rc;
        }
        if (request->in != NULL && request->in->value) {
            bxi_object_value(request);
            return 0;
        }
    }
    if (request->handler->kind == BXI_F_INLINE) {
        bxi_counter_add(job, BXI_C_requests_inline, 1);
        run_inline(request, body_bytes);
        return 0;
    }
    bxi_packed_flush(job);          /* what comes may take long */
    if (request->handler->kind == BXI_F_ASYNC) {
        bxi_counter_add(job, BXI_C_requests_async, 1);
        return run_async(request, body_bytes);
    }
    if (request->handler->kind == BXI_F_BLOCKING) {
        bxi_counter_add(job, BXI_C_requests_blocking, 1);
        return submit_blocking(request, body_bytes);
    }
    bxi_counter_add(job, BXI_C_requests_batched, 1);
    return add_row(request, body_bytes);
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

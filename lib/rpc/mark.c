/* SPDX-License-Identifier: MIT */
/*
 * Calls and requests as marks of the trace. Runs only while the trace is on, on the thread to which the thing happens.
 */
#include "mark.h"

static const char *name_worker(const struct bx_job *job, int rank)
{
    return job->rpc->peers[rank]->name;
}

/* Under the lock: the worker may have another's place meanwhile, whose functions are being found. */
static void name_function(const struct bx_job *job, int callee, uint16_t function, char *name)
{
    const struct bxi_function_cache *functions;

    if (function == BXI_FUNCTION_VALUE) {
        memcpy(name, BXI_VALUE_NAME, sizeof BXI_VALUE_NAME);
    } else if (callee == job->rank) {
        memcpy(name, job->rpc->handlers[function].name, BXI_NAME_BYTES);
    } else {
        bxi_lock(&job->run->lock);
        functions = job->rpc->peers[callee]->functions;
        if (functions != NULL)
            memcpy(name, functions->name[function], BXI_NAME_BYTES);
        bxi_unlock(&job->run->lock);
    }
}

const struct bxi_trace_names bxi_names_for_trace = { name_worker, name_function };

void bxi_note_oneway(struct bx_job *job, const struct bxi_peer *peer, uint16_t function, uint64_t began_ns)
{
    bxi_trace_mark(job, &(struct bxi_mark){ .kind = BXI_MARK_ONEWAY, .flags = BXI_MARK_IS_ONEWAY,
                                            .begin_ns = began_ns, .id = peer->out.write_pos, .function = function,
                                            .caller = (uint16_t)job->rank, .callee = (uint16_t)peer->rank });
}

void bxi_note_call(const struct bxi_call *call, enum bxi_mark_kind kind, int code)
{
    struct bx_job *job = call->future.job;

    bxi_trace_mark(job, &(struct bxi_mark){ .kind = (uint8_t)kind, .begin_ns = call->traced_ns, .id = call->id,
                                            .code = code, .function = call->function,
                                            .caller = (uint16_t)job->rank, .callee = (uint16_t)call->peer->rank });
}

void bxi_note_reply(struct bx_job *job, const struct bxi_peer *peer, const struct bxi_frame *head, uint64_t read_ns,
                    uint16_t function)
{
    bxi_trace_mark(job, &(struct bxi_mark){ .kind = BXI_MARK_REPLY, .begin_ns = read_ns, .id = head->id,
                                            .code = head->code, .function = function,
                                            .caller = (uint16_t)job->rank, .callee = (uint16_t)peer->rank });
}

static struct bxi_mark mark_of(const struct bx_request *request, enum bxi_mark_kind kind, uint64_t began_ns)
{
    const struct bxi_handler *handler = request->handler;
    bool value = request->in != NULL && request->in->value;

    return (struct bxi_mark){
        .kind = (uint8_t)kind,
        .begin_ns = began_ns,
        .flags = request->oneway ? BXI_MARK_IS_ONEWAY : 0,
        .id = request->traced_id,
        .function = handler != NULL ? (uint16_t)(handler - request->job->rpc->handlers)
                                    : value ? BXI_FUNCTION_VALUE : BXI_MARK_NO_FUNCTION,
        .caller = (uint16_t)request->peer->rank,
        .callee = (uint16_t)request->job->rank,
    };
}

void bxi_note_handler(struct bx_request *request, size_t bytes, int code)
{
    struct bxi_mark mark = mark_of(request, BXI_MARK_HANDLER, request->traced_ns);

    mark.flags |= BXI_MARK_TAKES;
    mark.amount = bytes;
    mark.code = code;
    bxi_trace_mark(request->job, &mark);
    request->has_arrow = false;
}

void bxi_note_future(const struct bx_request *request, int code)
{
    struct bxi_mark mark = mark_of(request, BXI_MARK_FUTURE, request->traced_ns);

    mark.code = code;
    bxi_trace_mark(request->job, &mark);
}

void bxi_note_answer(const struct bx_request *request, uint64_t began_ns, int code, size_t bytes, bool sent)
{
    struct bxi_mark mark = mark_of(request, BXI_MARK_ANSWER, began_ns);

    if (request->oneway && !request->has_arrow)
        return;
    mark.flags |= (request->has_arrow ? BXI_MARK_TAKES : 0) | (sent ? BXI_MARK_GIVES : 0);
    mark.amount = bytes;
    mark.code = code;
    bxi_trace_mark(request->job, &mark);
}

void bxi_note_batch(struct bx_job *job, const struct bxi_batcher *batcher, uint64_t began_ns, size_t rows, int code)
{
    bxi_trace_mark(job, &(struct bxi_mark){ .kind = BXI_MARK_BATCH, .begin_ns = began_ns, .amount = rows, .code = code,
                                            .function = (uint16_t)(batcher->handler - job->rpc->handlers),
                                            .callee = (uint16_t)job->rank });
}

void bxi_note_row(struct bx_request *request, uint64_t began_ns)
{
    struct bxi_mark mark = mark_of(request, BXI_MARK_ROW, began_ns);

    mark.flags |= BXI_MARK_TAKES;
    bxi_trace_mark(request->job, &mark);
    request->has_arrow = false;
}

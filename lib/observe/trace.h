/* SPDX-License-Identifier: MIT */
/*
 * BX_TRACE=FILE: a timeline of all workers of a job, for Perfetto and chrome://tracing.
 *
 * The engine calls one function of this header at each thing that happens; any thread, with or without the
 * job's lock. While the trace is off, and that is for the whole life of a job, each costs a look at one pointer.
 * While it is on, what happened is noted in memory (trace.c) and written now and then (trace_file.c): when much has
 * gathered, before a thread sleeps, and when the job ends; never under the job's lock.
 *
 * What the file shows:
 *
 *     sync call      a slice over the wait, on the caller's thread
 *     async call     a small slice where it is sent, and an async span until its future is completed
 *     one-way call   a small slice where it is sent
 *     reply          a slice where it is read and its future completed, with the callbacks
 *     handler        a slice on the thread that runs it; of an async one also a span until its future is done
 *     answer         a slice where an answer is sent, or an error made for a request that no handler saw
 *     batch          a slice over the body
 *     sleep          a slice over the system call
 *     arrows         from call, or sending, to handler or body; from answer to reply
 *
 * The static probes (probe.h) stand in the same functions.
 */
#ifndef BXI_TRACE_H
#define BXI_TRACE_H

#include "rpc/rpc.h"
#include "probe.h"

enum bxi_mark_kind {
    BXI_MARK_CALL = 1,      /* amount: nothing. id 0: it could not be sent */
    BXI_MARK_SEND,
    BXI_MARK_ONEWAY,        /* id: where its frame ends in the ring, as in other marks of a one-way call */
    BXI_MARK_SPAN,          /* an async call, from its sending to its end */
    BXI_MARK_REPLY,
    BXI_MARK_HANDLER,       /* amount: bytes of the arguments */
    BXI_MARK_FUTURE,        /* an async handler's, until it is done */
    BXI_MARK_ANSWER,        /* amount: bytes of the value */
    BXI_MARK_BATCH,         /* amount: rows */
    BXI_MARK_ROW,           /* follows its batch */
    BXI_MARK_SLEEP,         /* amount: enum bxi_trace_who; function: enum bxi_trace_by; code 1: rung */
    BXI_MARK_THREAD,        /* name: a thread is seen for the first time */
    BXI_MARK_LEFT_OUT,      /* amount: marks beyond the bound */
};
enum bxi_mark_flags {
    BXI_MARK_IS_ONEWAY = 1,
    BXI_MARK_TAKES = 2,     /* the request's arrow ends here */
    BXI_MARK_GIVES = 4,     /* the reply's arrow begins here */
};
enum bxi_trace_who { BXI_SLEEPS_BACKGROUND = 0, BXI_SLEEPS_LEADER = 1, BXI_SLEEPS_FOLLOWER = 2 };
enum bxi_trace_by { BXI_SLEEPS_BY_URING = 0, BXI_SLEEPS_BY_EPOLL = 1, BXI_SLEEPS_BY_FUTEX = 2 };
#define BXI_MARK_NO_FUNCTION UINT16_MAX

/* One thing that happened. */
struct bxi_mark {
    uint64_t begin_ns;      /* CLOCK_MONOTONIC */
    uint64_t end_ns;        /* 0: now */
    union {
        struct {
            uint64_t id;
            uint64_t amount;
        };
        char name[16];      /* of a thread */
    };
    int32_t code;
    uint32_t tid;           /* filled in */
    uint16_t function;      /* index into the callee's table */
    uint8_t kind;
    uint8_t flags;
    uint8_t caller, callee; /* ranks */
};

/* ---- trace.c: while it is on ---------------------------------------------------------------------- */

/* Reads BX_TRACE and, if it is set, turns the trace on: rank 0 begins the file, before the gate of the start opens;
 * the others open it behind the gate. Whatever goes wrong is logged, said on stderr, and leaves the trace off. */
void bxi_trace_start(struct bx_job *job);
void bxi_trace_close(struct bx_job *job);       /* the job's threads have ended: writes the rest */
void bxi_trace_destroy(struct bx_job *job);
void bxi_trace_mark(struct bx_job *job, const struct bxi_mark *mark);
__attribute__((cold, noinline)) void bxi_trace_write(struct bx_job *job, bool sleeps);
/* This thread is one of the library's own. */
void bxi_trace_thread(const char *name);

/* ---- trace_file.c: the file, a complete JSON array at every moment -------------------------------- */

/* Begins the file at path with its first event, or opens one that this instance of the job has begun. The
 * descriptor, -ESTALE: it is of another job, -EINVAL: it is no regular file, -errno. */
int bxi_trace_file_begin(const char *path, uint64_t instance, const char *first_event);
int bxi_trace_file_open(const char *path, uint64_t instance);
/* Adds events, each a line, begun by a newline and a comma; behind them there is room for
 * BXI_TRACE_CLOSING bytes more. 0; -EAGAIN: another worker is at it; -ESTALE; -errno: nothing was added, nor will
 * it be. */
struct bxi_trace_file {
    int fd;
    uint64_t instance;
};
#define BXI_TRACE_CLOSING 4u
int bxi_trace_file_append(const struct bxi_trace_file *file, char *events, size_t bytes);

/* ---- what the engine calls ------------------------------------------------------------------------ */

/* Each in two halves: what is left of it while the trace is off, and what it notes (trace.c, bxi_note_...). */
#define BXI_COLD __attribute__((cold, noinline))

static inline bool bxi_trace_is_on(const struct bx_job *job)
{
    return __builtin_expect(job->observe->trace != NULL, 0);
}

/* When something begins; 0 while the trace is off. */
static inline uint64_t bxi_trace_now(const struct bx_job *job)
{
    return bxi_trace_is_on(job) ? bxi_now_ns() : 0;
}

/* After a pass: writes if much has gathered. */
static inline void bxi_trace_passed(struct bx_job *job)
{
    if (bxi_trace_is_on(job))
        bxi_trace_write(job, false);
}

/* Before a sleep, with no bell armed by this thread: writes if it was not done just now. */
static inline void bxi_trace_sleeps(struct bx_job *job)
{
    if (bxi_trace_is_on(job))
        bxi_trace_write(job, true);
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

/* The program calls; sync or async. */
static inline void bxi_trace_calls(struct bxi_call *call)
{
    if (bxi_trace_is_on(call->future.job))
        call->traced_ns = bxi_now_ns();
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
    if (call->owned && bxi_trace_is_on(call->future.job))
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

/* A reply is being read; which call it is for, NULL if nobody waits any more; and its future has been completed.
 * One at a time in a thread: no callback may wait. Role. */
BXI_COLD void bxi_note_reply_begins(void);
BXI_COLD void bxi_note_reply_of(const struct bxi_call *call);
BXI_COLD void bxi_note_reply_ends(struct bx_job *job, const struct bxi_peer *peer, const struct bxi_frame *head);
static inline void bxi_trace_reply_begins(const struct bx_job *job)
{
    if (bxi_trace_is_on(job))
        bxi_note_reply_begins();
}

static inline void bxi_trace_reply_of(const struct bx_job *job, const struct bxi_call *call)
{
    if (bxi_trace_is_on(job))
        bxi_note_reply_of(call);
}

static inline void bxi_trace_reply_ends(struct bx_job *job, const struct bxi_peer *peer, const struct bxi_frame *head)
{
    if (bxi_trace_is_on(job))
        bxi_note_reply_ends(job, peer, head);
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

/* A thread is about to sleep, and has risen. */
static inline uint64_t bxi_trace_sleep(struct bx_job *job, enum bxi_trace_who who)
{
    BXI_PROBE2(sleep, job->rank, who);
    (void)who;
    return bxi_trace_now(job);
}

BXI_COLD void bxi_note_sleep(struct bx_job *job, enum bxi_trace_who who, enum bxi_trace_by by, bool rung,
                             uint64_t began_ns);
static inline void bxi_trace_woke(struct bx_job *job, enum bxi_trace_who who, enum bxi_trace_by by, bool rung,
                                  uint64_t began_ns)
{
    BXI_PROBE3(wake, job->rank, who, rung);
    if (bxi_trace_is_on(job))
        bxi_note_sleep(job, who, by, rung, began_ns);
}

static inline enum bxi_trace_by bxi_trace_by_kind(enum bxi_sleeper_kind kind)
{
    return kind == BXI_SLEEPER_URING ? BXI_SLEEPS_BY_URING : BXI_SLEEPS_BY_EPOLL;
}

#endif

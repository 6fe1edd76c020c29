/* SPDX-License-Identifier: MIT */
/*
 * BX_TRACE=FILE: a timeline of all workers of a job, for Perfetto and chrome://tracing.
 *
 * The engine calls one function of this header, or of rpc/mark.h, at each event; any thread, with or without the job's
 * lock. While the trace is off, which is for the whole life of a job, each costs a load and a test of one pointer.
 * While it is on, events are recorded in memory (trace.c) and written to the file in batches (trace_file.c): when
 * enough have gathered, before a thread sleeps, and when the job ends; never under run->lock.
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
 *     the program's  slices and spans (boxcar_trace.h)
 *     arrows         from call, or sending, to handler or body; from answer to reply; between the program's slices
 *
 * The static probes (probe.h) are in the same functions.
 */
#ifndef BXI_TRACE_H
#define BXI_TRACE_H

#include "observe.h"
#include "probe.h"

#include "boxcar_trace.h"

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
    BXI_MARK_SLEEP,         /* amount: enum bxi_sleeps; function: enum bxi_sleeps_by; code 1: rung */
    BXI_MARK_OWN,           /* slice: one of the program's; id: the program's */
    BXI_MARK_THREAD,        /* name: a thread is seen for the first time */
    BXI_MARK_LEFT_OUT,      /* amount: marks beyond the bound */
};
enum bxi_mark_flags {
    BXI_MARK_IS_ONEWAY = 1,
    BXI_MARK_TAKES = 2,     /* the request's arrow ends here */
    BXI_MARK_GIVES = 4,     /* the reply's arrow begins here */
};
#define BXI_MARK_NO_FUNCTION UINT16_MAX

/* One event. */
struct bxi_mark {
    uint64_t begin_ns;      /* CLOCK_MONOTONIC */
    uint64_t end_ns;        /* 0: now */
    union {
        struct {
            uint64_t id;
            union {
                uint64_t amount;
                const struct bx_slice *slice;
            };
        };
        char name[16];      /* of a thread */
    };
    int32_t code;
    uint32_t tid;           /* filled in */
    uint16_t function;      /* index into the callee's table */
    uint8_t kind;
    uint8_t flags;
    uint16_t caller, callee;        /* ranks */
};

/* ---- trace.c: marks in memory --------------------------------------------------------------------- */

/* Where the names in events come from: rpc/mark.c. */
struct bxi_trace_names {
    const char *(*worker)(const struct bx_job *job, int rank);
    /* Of a function, BXI_NAME_BYTES; "": unknown. */
    void (*function)(const struct bx_job *job, int callee, uint16_t function, char *name);
};
/* Turns the trace on if BX_TRACE is set. Rank 0 begins the file before the gate of the start opens (bootstrap_root.c);
 * the others open it after the gate (bx_job_start). An error is logged and leaves the trace off; with to_stderr it is
 * also printed on stderr, because the user who set the variable may not have set a log hook. names must live as long as
 * the job. */
void bxi_trace_start(struct bx_job *job, const struct bxi_trace_names *names, bool to_stderr);
/* Writes the rest. bxi_job_leave, after the job's threads have ended. */
void bxi_trace_close(struct bx_job *job);
void bxi_trace_destroy(struct bx_job *job);     /* bx_job_destroy */
/* Records a mark. Any thread; the trace is on. */
void bxi_trace_mark(struct bx_job *job, const struct bxi_mark *mark);
/* Writes if a chunk is full or, with sleeps, if the last write was 10 ms ago; with sleeps also a chunk that is not
 * full. The functions below call it. */
BXI_COLD void bxi_trace_write(struct bx_job *job, bool sleeps);
/* Names this thread in the file: one of the library's own. run/background.c, rpc/pool.c. */
void bxi_trace_thread(const char *name);

/* ---- trace_text.c: a mark as lines of JSON --------------------------------------------------------- */

/* Writes the lines of one mark at `at`, at most BXI_MARK_TEXT_MAX bytes. Returns their end. trace.c. */
char *bxi_trace_put_mark(char *at, const struct bx_job *job, const struct bxi_trace_names *names,
                         const struct bxi_mark *mark);
/* Likewise the first lines of a worker: its name and its place among the others. */
char *bxi_trace_put_worker(char *at, const struct bx_job *job);
#define BXI_MARK_TEXT_MAX 4096u     /* three lines, each with three texts of 31 bytes escaped as 186 */

/* ---- trace_file.c: the file, a complete JSON array at every moment. trace.c calls it ---------------- */

/* Begins the file at path with its first event; or opens one that this instance of the job has begun. The descriptor;
 * -ESTALE: it belongs to another job; -EINVAL: it is no regular file; -errno. */
int bxi_trace_file_begin(const char *path, uint64_t instance, const char *first_event);
int bxi_trace_file_open(const char *path, uint64_t instance);
/* Adds events, each a line that begins with a newline and a comma; behind them there is room for BXI_TRACE_CLOSING
 * bytes more. 0; -EAGAIN: another worker writes now; -ESTALE; -errno: nothing was added, and a retry would fail too. */
struct bxi_trace_file {
    int fd;
    uint64_t instance;
};
#define BXI_TRACE_CLOSING 4u
int bxi_trace_file_append(const struct bxi_trace_file *file, char *events, size_t bytes);

/* ---- what the engine calls ------------------------------------------------------------------------ */

/* Each in two parts: the inline one tests whether the trace is on, the other (trace.c, bxi_note_...) records. */
static inline bool bxi_trace_is_on(const struct bx_job *job)
{
    return __builtin_expect(job->observe->trace != NULL, 0);
}

/* The time when something begins; 0 while the trace is off. */
static inline uint64_t bxi_trace_now(const struct bx_job *job)
{
    return bxi_trace_is_on(job) ? bxi_now_ns() : 0;
}

/* After a pass: writes if a chunk is full. */
static inline void bxi_trace_passed(struct bx_job *job)
{
    if (bxi_trace_is_on(job))
        bxi_trace_write(job, false);
}

/* Before a sleep, while this thread has armed no bell: writes if a chunk is full or the last write was 10 ms ago. */
static inline void bxi_trace_sleeps(struct bx_job *job)
{
    if (bxi_trace_is_on(job))
        bxi_trace_write(job, true);
}

/* A thread is about to sleep; then it has woken. */
static inline uint64_t bxi_trace_sleep(struct bx_job *job, enum bxi_sleeps who)
{
    BXI_PROBE2(sleep, job->rank, who);
    (void)who;
    return bxi_trace_now(job);
}

BXI_COLD void bxi_note_sleep(struct bx_job *job, enum bxi_sleeps who, enum bxi_sleeps_by by, bool rung,
                             uint64_t began_ns);
static inline void bxi_trace_woke(struct bx_job *job, enum bxi_sleeps who, enum bxi_sleeps_by by, bool rung,
                                  uint64_t began_ns)
{
    BXI_PROBE3(wake, job->rank, who, rung);
    if (bxi_trace_is_on(job))
        bxi_note_sleep(job, who, by, rung, began_ns);
}

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The trace of one worker (trace.h says what it shows): from what happened to lines of JSON.
 *
 * Any thread notes a mark of 48 bytes in the worker's chunk, under a lock of its own that is held for that long and
 * taken inside of any other. Full chunks are made into lines and written by whoever holds the role, after its pass;
 * before a thread sleeps, and BATCH_NS after the last time, also one that is not full; and everything when the job
 * ends. So a worker that is killed loses what it noted in its last 10 ms or, if it slept, before that sleep: at most
 * a chunk. One thread writes at a time; another that comes goes on with its work, and so does a thread that finds
 * another worker at the file: its marks stay in memory, of which BX_TRACE_EVENTS is the bound.
 *
 * Why marks, not lines: a line takes ten times as long to make as a mark, and would be made where it delays an
 * answer. Why X events that are noted at their end, not B and E: half the marks, and viewers can bind arrows to them.
 * What that costs: of a worker that is killed, slices that have not ended are not in the file.
 *
 * A child that was forked from a worker has the worker's marks, descriptor and locks in whatever state they were:
 * it notes and writes nothing.
 */
#include "trace.h"

#include "job/job.h"
#include "shm/cancel.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define MARKS_MAX 1000000u          /* unless BX_TRACE_EVENTS says otherwise */
#define CHUNK_MARKS 1024
#define TEXT_BYTES 65536u
#define MARK_TEXT_MAX 4096u         /* lines of one mark: three, each with a name of 31 bytes escaped as 186 */
#define BATCH_NS UINT64_C(10000000)
#define LAST_TRIES 2000             /* to get at the file when the job ends, a millisecond apart */
#define PATH_BYTES 4096

struct chunk {
    struct chunk *next;
    uint32_t count;
    struct bxi_mark marks[CHUNK_MARKS];
};

struct bxi_trace {
    struct bxi_trace_file file;     /* start */
    uint64_t marks_max;             /* start */
    char *path;                     /* start */

    struct bxi_lock lock;           /* of what follows; inside of it nothing else is taken */
    bxi_a32 off;
    uint64_t marks;
    uint64_t left_out;
    uint64_t left_out_ns;           /* when the first of them was */
    struct chunk *filling;
    struct chunk *full_head, *full_tail;
    struct chunk *spare;
    bxi_a32 full;                   /* chunks in the list, for a look without the lock */

    bxi_a32 writing;                /* 1 while a thread has what follows */
    bxi_a64 written_ns;
    struct chunk *draining;
    uint32_t drained;               /* of its marks */
    size_t text_bytes;
    char text[TEXT_BYTES + BXI_TRACE_CLOSING];
};

/* ---- threads ----------------------------------------------------------------------------------- */

static _Thread_local struct {
    uint64_t serial;                /* of the job that knows this thread */
    uint32_t tid;
    const char *name;               /* of the library's own */
    uint64_t reply_ns;              /* when the reply began that it reads */
    uint16_t reply_function;
} self;

void bxi_trace_thread(const char *name)
{
    self.name = name;
}

static struct bxi_mark name_thread(void)
{
    struct bxi_mark mark = { .kind = BXI_MARK_THREAD, .tid = self.tid, .end_ns = 1 };

    if (self.name != NULL)
        strcpy(mark.name, self.name);
    else
        prctl(PR_GET_NAME, mark.name);
    return mark;
}

/* ---- marks (trace->lock) ----------------------------------------------------------------------- */

static bool forked(const struct bx_job *job)
{
    return bxi_load_relaxed(&bxi_forks) != job->fork_generation;
}

static struct chunk *take_spare(struct bxi_trace *trace)
{
    struct chunk *chunk = trace->spare != NULL ? trace->spare : malloc(sizeof *chunk);

    trace->spare = NULL;
    if (chunk != NULL) {
        chunk->next = NULL;
        chunk->count = 0;
    }
    return chunk;
}

static void filling_is_full(struct bxi_trace *trace)
{
    if (trace->full_tail != NULL)
        trace->full_tail->next = trace->filling;
    else
        trace->full_head = trace->filling;
    trace->full_tail = trace->filling;
    trace->filling = NULL;
    bxi_add(&trace->full, 1);
}

static bool put_mark(struct bxi_trace *trace, const struct bxi_mark *mark)
{
    if (trace->filling == NULL && (trace->filling = take_spare(trace)) == NULL)
        return false;
    trace->filling->marks[trace->filling->count++] = *mark;
    if (trace->filling->count == CHUNK_MARKS)
        filling_is_full(trace);
    return true;
}

void bxi_trace_mark(struct bx_job *job, const struct bxi_mark *mark)
{
    struct bxi_trace *trace = job->observe->trace;
    struct bxi_mark noted = *mark, name;
    bool is_new;

    if (forked(job))
        return;
    noted.end_ns = noted.end_ns != 0 ? noted.end_ns : bxi_now_ns();
    is_new = self.serial != job->serial;
    if (is_new) {
        self.serial = job->serial;
        self.tid = (uint32_t)gettid();      /* a child that bx_spawn forked has its parent's here */
        name = name_thread();
    }
    noted.tid = self.tid;
    bxi_lock(&trace->lock);
    if (bxi_load_relaxed(&trace->off) == 0) {        /* relaxed: written under the lock */
        if (trace->marks < trace->marks_max && (!is_new || put_mark(trace, &name)) && put_mark(trace, &noted)) {
            trace->marks++;
        } else {
            trace->left_out_ns = trace->left_out++ == 0 ? noted.begin_ns : trace->left_out_ns;
        }
    }
    bxi_unlock(&trace->lock);
}

/* ---- what happened, as marks --------------------------------------------------------------------- */

void bxi_note_oneway(struct bx_job *job, const struct bxi_peer *peer, uint16_t function, uint64_t began_ns)
{
    bxi_trace_mark(job, &(struct bxi_mark){ .kind = BXI_MARK_ONEWAY, .flags = BXI_MARK_IS_ONEWAY,
                                            .begin_ns = began_ns, .id = peer->out.write_pos, .function = function,
                                            .caller = (uint8_t)job->rank, .callee = (uint8_t)peer->rank });
}

void bxi_note_call(const struct bxi_call *call, enum bxi_mark_kind kind, int code)
{
    struct bx_job *job = call->future.job;

    bxi_trace_mark(job, &(struct bxi_mark){ .kind = (uint8_t)kind, .begin_ns = call->traced_ns, .id = call->id,
                                            .code = code, .function = call->function,
                                            .caller = (uint8_t)job->rank, .callee = (uint8_t)call->peer->rank });
}

void bxi_note_reply_begins(void)
{
    self.reply_ns = bxi_now_ns();
}

void bxi_note_reply_of(const struct bxi_call *call)
{
    self.reply_function = call != NULL ? call->function : BXI_MARK_NO_FUNCTION;
}

void bxi_note_reply_ends(struct bx_job *job, const struct bxi_peer *peer, const struct bxi_frame *head)
{
    bxi_trace_mark(job, &(struct bxi_mark){ .kind = BXI_MARK_REPLY, .begin_ns = self.reply_ns, .id = head->id,
                                            .code = head->code, .function = self.reply_function,
                                            .caller = (uint8_t)job->rank, .callee = (uint8_t)peer->rank });
}

static struct bxi_mark mark_of(const struct bx_request *request, enum bxi_mark_kind kind, uint64_t began_ns)
{
    const struct bxi_handler *handler = request->handler;

    return (struct bxi_mark){
        .kind = (uint8_t)kind,
        .begin_ns = began_ns,
        .flags = request->oneway ? BXI_MARK_IS_ONEWAY : 0,
        .id = request->traced_id,
        .function = handler != NULL ? (uint16_t)(handler - request->job->rpc->handlers) : BXI_MARK_NO_FUNCTION,
        .caller = (uint8_t)request->peer->rank,
        .callee = (uint8_t)request->job->rank,
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
                                            .callee = (uint8_t)job->rank });
}

void bxi_note_row(struct bx_request *request, uint64_t began_ns)
{
    struct bxi_mark mark = mark_of(request, BXI_MARK_ROW, began_ns);

    mark.flags |= BXI_MARK_TAKES;
    bxi_trace_mark(request->job, &mark);
    request->has_arrow = false;
}

void bxi_note_sleep(struct bx_job *job, enum bxi_trace_who who, enum bxi_trace_by by, bool rung, uint64_t began_ns)
{
    bxi_trace_mark(job, &(struct bxi_mark){ .kind = BXI_MARK_SLEEP, .begin_ns = began_ns, .amount = who,
                                            .function = by, .code = rung, .callee = (uint8_t)job->rank });
}

/* ---- JSON: each function returns where it stopped writing ------------------------------------------ */

static char *put_text(char *at, const char *text)
{
    while (*text != '\0')
        *at++ = *text++;
    return at;
}

static char *put_number(char *at, uint64_t number)
{
    char digits[24];
    int count = 0;

    do
        digits[count++] = (char)('0' + number % 10);
    while ((number /= 10) != 0);
    while (count > 0)
        *at++ = digits[--count];
    return at;
}

static char *put_hex(char *at, uint64_t number)
{
    for (int shift = 60; shift >= 0; shift -= 4)
        *at++ = "0123456789abcdef"[number >> shift & 15];
    return at;
}

/* Nanoseconds as microseconds with three decimals: 52 bits hold them exactly for 52 days of uptime, and within two
 * nanoseconds for years. */
static char *put_us(char *at, uint64_t ns)
{
    at = put_number(at, ns / 1000);
    *at++ = '.';
    for (uint64_t digit = 100, left = ns % 1000; digit > 0; digit /= 10)
        *at++ = (char)('0' + left / digit % 10);
    return at;
}

/* A name may hold any byte; what is not ASCII is shown as if it were Latin-1. */
static char *put_name(char *at, const char *name)
{
    for (; *name != '\0'; name++) {
        unsigned char byte = (unsigned char)*name;

        if (byte >= ' ' && byte < 0x7f && byte != '"' && byte != '\\') {
            *at++ = *name;
        } else {
            at = put_text(at, "\\u00");
            *at++ = "0123456789abcdef"[byte >> 4];
            *at++ = "0123456789abcdef"[byte & 15];
        }
    }
    return at;
}

/* ---- marks to lines ---------------------------------------------------------------------------- */

/* A line, to begin with: the phase, and what the event is called. */
struct line {
    const struct bx_job *job;
    const struct bxi_mark *mark;
    char phase;
    const char *category;
    const char *what;               /* before the name */
    const char *name;
    uint64_t ns;
};

static char *begin_line(char *at, const struct line *line)
{
    at = put_text(at, "\n,{\"ph\":\"");
    *at++ = line->phase;
    at = put_text(put_text(at, "\",\"name\":\""), line->what);
    at = put_name(at, line->name);
    at = put_text(put_text(at, "\",\"cat\":\""), line->category);
    at = put_number(put_text(at, "\",\"pid\":"), (uint64_t)line->job->rank);
    at = put_number(put_text(at, ",\"tid\":"), line->mark->tid);
    return put_us(put_text(at, ",\"ts\":"), line->ns);
}

/* The name of an arrow or of an async call, the same in both workers: ranks, which way, and the id. A slot's
 * generation of 38 bits, or a ring's position in lines, does not come round in the life of a job. */
static uint64_t arrow_id(const struct bxi_mark *mark, bool reply)
{
    uint64_t id = mark->flags & BXI_MARK_IS_ONEWAY ? mark->id / BXI_LINE
                                                   : (mark->id & (BXI_CALLS_MAX - 1)) << 38 |
                                                         (mark->id >> 16 & ((UINT64_C(1) << 38) - 1));

    return (uint64_t)mark->caller << 57 | (uint64_t)mark->callee << 50 |
           (mark->flags & BXI_MARK_IS_ONEWAY ? UINT64_C(1) << 49 : 0) | (uint64_t)reply << 48 | id;
}

static char *put_arrow(char *at, const struct line *of, char phase, bool reply)
{
    struct line line = { of->job, of->mark, phase, "arrow", reply ? "reply" : "request", "", of->mark->begin_ns };

    at = put_hex(put_text(begin_line(at, &line), ",\"id\":\"0x"), arrow_id(of->mark, reply));
    return put_text(at, phase == 'f' ? "\",\"bp\":\"e\"}" : "\"}");
}

static char *put_code(char *at, int code)
{
    if (code >= 0)
        return at;
    at = put_number(put_text(at, ",\"code\":-"), (uint64_t)-(int64_t)code);
    return put_text(put_name(put_text(at, ",\"error\":\""), bx_error_name(code)), "\"");
}

/* Who it is about, the call as shmstat names it, how much of what, and the error. */
static char *put_args(char *at, const struct line *line, const char *who, int rank, const char *amount)
{
    const struct bxi_mark *mark = line->mark;

    at = put_name(put_text(put_text(put_text(at, ",\"args\":{\""), who), "\":\""), line->job->rpc->peers[rank].name);
    at = put_text(at, "\"");
    if (mark->id != 0 && !(mark->flags & BXI_MARK_IS_ONEWAY)) {
        at = put_number(put_text(at, ",\"call\":\""), mark->caller);
        at = put_number(put_text(at, "-"), mark->callee);
        at = put_text(put_number(put_text(at, "-"), mark->id), "\"");
    }
    if (amount != NULL)
        at = put_number(put_text(put_text(put_text(at, ",\""), amount), "\":"), mark->amount);
    return put_text(put_code(at, mark->code), "}}");
}

static char *put_slice(char *at, const struct line *line)
{
    const struct bxi_mark *mark = line->mark;

    return put_us(put_text(begin_line(at, line), ",\"dur\":"), mark->end_ns - mark->begin_ns);
}

/* An async span: two events with one id. */
static char *put_span(char *at, struct line line, const char *who, int rank)
{
    line.phase = 'b';
    at = put_hex(put_text(begin_line(at, &line), ",\"id\":\"0x"), arrow_id(line.mark, false));
    at = put_args(put_text(at, "\""), &line, who, rank, NULL);
    line.phase = 'e';
    line.ns = line.mark->end_ns;
    at = put_hex(put_text(begin_line(at, &line), ",\"id\":\"0x"), arrow_id(line.mark, false));
    return put_text(at, "\"}");
}

/* A caller's marks. */
static char *put_call(char *at, struct line line)
{
    const struct bxi_mark *mark = line.mark;
    const struct bxi_function_cache *functions = line.job->rpc->peers[mark->callee].functions;

    line.category = "call";
    line.name = functions != NULL && mark->function != BXI_MARK_NO_FUNCTION ? functions->name[mark->function] : "";
    if (mark->kind == BXI_MARK_SPAN) {
        line.category = "async call";
        return put_span(at, line, "to", mark->callee);
    }
    if (mark->kind == BXI_MARK_REPLY) {
        line.what = mark->function != BXI_MARK_NO_FUNCTION ? "reply " : "late reply";
        at = put_args(put_slice(at, &line), &line, "from", mark->callee, NULL);
        return put_arrow(at, &line, 'f', true);
    }
    if (mark->kind != BXI_MARK_CALL)
        line.what = "send ";
    if (mark->id == 0) {
        line.what = "call that was not sent";
        line.name = "";
    }
    at = put_args(put_slice(at, &line), &line, "to", mark->callee, NULL);
    return mark->id != 0 ? put_arrow(at, &line, 's', false) : at;
}

/* A callee's. */
static char *put_handler(char *at, struct line line)
{
    const struct bxi_mark *mark = line.mark;

    line.category = "handler";
    line.name = mark->function != BXI_MARK_NO_FUNCTION ? line.job->rpc->handlers[mark->function].name : "";
    if (mark->kind == BXI_MARK_FUTURE) {
        line.category = "async handler";
        return put_span(at, line, "caller", mark->caller);
    }
    if (mark->kind == BXI_MARK_BATCH) {
        line.category = "batch";
        at = put_number(put_text(put_slice(at, &line), ",\"args\":{\"rows\":"), mark->amount);
        return put_text(put_code(at, mark->code), "}}");
    }
    if (mark->kind == BXI_MARK_ANSWER)
        line.what = "answer ";
    if (mark->kind != BXI_MARK_ROW)
        at = put_args(put_slice(at, &line), &line, "caller", mark->caller, "bytes");
    if (mark->flags & BXI_MARK_TAKES)
        at = put_arrow(at, &line, 'f', false);
    return mark->flags & BXI_MARK_GIVES ? put_arrow(at, &line, 's', true) : at;
}

static char *put_sleep(char *at, struct line line)
{
    static const char *const who[] = { "background", "leader", "follower" };
    static const char *const by[] = { "io_uring", "epoll", "futex" };
    const struct bxi_mark *mark = line.mark;

    line.category = line.what = "sleep";
    at = put_text(put_text(put_slice(at, &line), ",\"args\":{\"who\":\""), who[mark->amount]);
    at = put_text(put_text(at, "\",\"by\":\""), by[mark->function]);
    return put_text(put_text(at, "\",\"woken by\":\""), mark->code != 0 ? "bell\"}}" : "time\"}}");
}

static char *put_metadata(char *at, const struct line *line, const char *what)
{
    at = put_text(put_text(put_text(at, "\n,{\"ph\":\"M\",\"name\":\""), what), "\",\"pid\":");
    at = put_number(put_text(put_number(at, (uint64_t)line->job->rank), ",\"tid\":"), line->mark->tid);
    return put_text(at, ",\"args\":{");
}

static char *put_mark_text(char *at, const struct bx_job *job, const struct bxi_mark *mark)
{
    struct line line = { job, mark, 'X', "", "", "", mark->begin_ns };

    switch ((enum bxi_mark_kind)mark->kind) {
    case BXI_MARK_CALL:
    case BXI_MARK_SEND:
    case BXI_MARK_ONEWAY:
    case BXI_MARK_SPAN:
    case BXI_MARK_REPLY:
        return put_call(at, line);
    case BXI_MARK_HANDLER:
    case BXI_MARK_FUTURE:
    case BXI_MARK_ANSWER:
    case BXI_MARK_BATCH:
    case BXI_MARK_ROW:
        return put_handler(at, line);
    case BXI_MARK_SLEEP:
        return put_sleep(at, line);
    case BXI_MARK_THREAD:
        return put_text(put_name(put_text(put_metadata(at, &line, "thread_name"), "\"name\":\""), mark->name), "\"}}");
    case BXI_MARK_LEFT_OUT:
        line.phase = 'i';
        line.category = "trace";
        line.what = "from here on events are left out";
        at = put_text(begin_line(at, &line), ",\"s\":\"p\",\"args\":{\"left_out\":");
        return put_text(put_number(at, mark->amount), "}}");
    }
    return at;
}

/* ---- writing (by who has trace->writing) -------------------------------------------------------- */

/* The next chunk to make lines of; with `whole`, also one that is not full. NULL: there is none. */
static struct chunk *next_chunk(struct bxi_trace *trace, bool whole)
{
    struct chunk *chunk;

    bxi_lock(&trace->lock);
    if (trace->full_head == NULL && whole && trace->filling != NULL)
        filling_is_full(trace);
    chunk = trace->full_head;
    if (chunk != NULL) {
        trace->full_head = chunk->next;
        trace->full_tail = trace->full_head != NULL ? trace->full_tail : NULL;
        bxi_add(&trace->full, (uint32_t)-1);
    }
    bxi_unlock(&trace->lock);
    return chunk;
}

static void give_spare(struct bxi_trace *trace, struct chunk *chunk)
{
    struct chunk *unneeded;

    bxi_lock(&trace->lock);
    unneeded = trace->spare;
    trace->spare = chunk;
    bxi_unlock(&trace->lock);
    free(unneeded);
}

static int append_text(struct bxi_trace *trace)
{
    int rc = bxi_trace_file_append(&trace->file, trace->text, trace->text_bytes);

    if (rc == 0)
        trace->text_bytes = 0;
    return rc;
}

static int write_marks(struct bx_job *job, bool whole)
{
    struct bxi_trace *trace = job->observe->trace;
    int rc;

    while (trace->draining != NULL || (trace->draining = next_chunk(trace, whole)) != NULL) {
        for (; trace->drained < trace->draining->count; trace->drained++) {
            char *at = trace->text + trace->text_bytes;

            if (TEXT_BYTES - trace->text_bytes < MARK_TEXT_MAX) {
                if ((rc = append_text(trace)) < 0)
                    return rc;
                at = trace->text;
            }
            at = put_mark_text(at, job, &trace->draining->marks[trace->drained]);
            trace->text_bytes = (size_t)(at - trace->text);
        }
        give_spare(trace, trace->draining);
        trace->draining = NULL;
        trace->drained = 0;
    }
    return trace->text_bytes > 0 ? append_text(trace) : 0;
}

static void turn_off(struct bxi_trace *trace)
{
    bxi_lock(&trace->lock);
    bxi_store_relaxed(&trace->off, 1);      /* relaxed: under the lock */
    bxi_unlock(&trace->lock);
}

static void give_up(struct bx_job *job, int rc)
{
    turn_off(job->observe->trace);
    bxi_log(1, "worker '%s' is traced no further: %s %s", job->name, job->observe->trace->path,
            rc == -ESTALE ? "was begun anew by another job, or truncated" : bx_strerror(rc));
}

static bool begin_writing(struct bxi_trace *trace)
{
    uint32_t free = 0;

    /* [trace.writing] acquire, pairs with the release in end_writing: what the last writer left is seen. */
    return bxi_load_relaxed(&trace->writing) == 0 && bxi_cas(&trace->writing, &free, 1);
}

static void end_writing(struct bxi_trace *trace)
{
    /* [trace.writing] release, pairs with the acquire in begin_writing. */
    bxi_store_release(&trace->writing, 0);
}

void bxi_trace_write(struct bx_job *job, bool sleeps)
{
    struct bxi_trace *trace = job->observe->trace;
    uint64_t now_ns = sleeps ? bxi_now_ns() : 0;
    int rc;

    /* Relaxed: guesses, that cost or save a look. */
    if (bxi_load_relaxed(&trace->full) == 0 && (!sleeps || now_ns - bxi_load_relaxed(&trace->written_ns) < BATCH_NS))
        return;
    if (forked(job) || bxi_load_relaxed(&trace->off) != 0 || !begin_writing(trace))
        return;

    BXI_UNCANCELLED;

    rc = write_marks(job, sleeps);
    if (rc < 0 && rc != -EAGAIN)
        give_up(job, rc);
    bxi_store_relaxed(&trace->written_ns, bxi_now_ns());        /* relaxed: as above; a busy file counts */
    end_writing(trace);
}

/* ---- start and end ----------------------------------------------------------------------------- */

/* BX_TRACE with the job's name for each %j; malloc'ed. NULL when memory is out. */
static char *make_path(const struct bx_job *job, const char *pattern)
{
    char path[PATH_BYTES];
    size_t used = 0;

    while (*pattern != '\0' && used < sizeof path - BXI_NAME_BYTES - 1) {
        if (pattern[0] == '%' && pattern[1] == 'j') {
            used = (size_t)(stpcpy(path + used, job->job_name) - path);
            pattern += 2;
        } else {
            path[used++] = *pattern++;
        }
    }
    path[used] = '\0';
    return strdup(path);
}

static int read_bound(uint64_t *bound)
{
    const char *text = getenv("BX_TRACE_EVENTS");
    char *end = NULL;

    *bound = MARKS_MAX;
    if (text == NULL || text[0] == '\0')
        return 0;
    errno = 0;
    *bound = strtoull(text, &end, 10);
    if (errno == 0 && text[0] >= '0' && text[0] <= '9' && *end == '\0' && *bound > 0)
        return 0;
    return bx_fail(-EINVAL, "BX_TRACE_EVENTS='%s' is not a number of events", text);
}

static int open_trace_file(struct bx_job *job, struct bxi_trace *trace)
{
    char first[2 * BXI_NAME_BYTES + 128];
    int fd;

    snprintf(first, sizeof first, ",\"job\":\"%s\",\"world_size\":%d,\"clock\":\"CLOCK_MONOTONIC\"},"
                                  "\"pid\":0,\"tid\":%d}", job->job_name, job->world_size, (int)gettid());
    fd = job->rank == 0 ? bxi_trace_file_begin(trace->path, job->instance, first)
                        : bxi_trace_file_open(trace->path, job->instance);
    if (fd >= 0) {
        trace->file = (struct bxi_trace_file){ fd, job->instance };
        return 0;
    }
    if (fd == -ESTALE)
        return bx_fail(fd, "%s was not begun by rank 0 of this job; does it have the same BX_TRACE?", trace->path);
    if (fd == -EAGAIN)
        return bx_fail(fd, "%s is held by a worker of an older job, which is stopped", trace->path);
    if (fd == -EINVAL)
        return bx_fail(fd, "%s is not a regular file", trace->path);
    if (fd == -ELOOP)
        return bx_fail(fd, "%s is a symbolic link, which is not followed; name the file that it leads to", trace->path);
    return bx_fail(fd, "%s cannot be written: %s", trace->path, bx_strerror(fd));
}

/* The worker's name and its place among the others are the first that it writes. */
static void name_worker(struct bx_job *job, struct bxi_trace *trace)
{
    struct bxi_mark mark = { .tid = (uint32_t)gettid() };
    struct line line = { .job = job, .mark = &mark };
    char *at = put_metadata(trace->text, &line, "process_name");

    at = put_number(put_text(put_name(put_text(at, "\"name\":\""), job->name), " (rank "), (uint64_t)job->rank);
    at = put_text(put_number(put_text(at, ", pid "), (uint64_t)getpid()), ")\"}}");
    at = put_number(put_text(put_metadata(at, &line, "process_sort_index"), "\"sort_index\":"), (uint64_t)job->rank);
    trace->text_bytes = (size_t)(put_text(at, "}}") - trace->text);
}

/* To the log; and on stderr, for whoever has set the variable need not be who has set a log hook. A job of bx_spawn
 * has one environment, so its rank 0 speaks for all. */
static void say_untraced(const struct bx_job *job)
{
    bxi_log(1, "BX_TRACE: worker '%s' is not traced: %s", job->name, bx_error_text());
    if (job->rank == 0 || !bxi_spawn_is_worker())
        dprintf(STDERR_FILENO, "boxcar: BX_TRACE: worker '%s' is not traced: %s\n", job->name, bx_error_text());
    bxi_clear_error();
}

void bxi_trace_start(struct bx_job *job)
{
    const char *pattern = getenv("BX_TRACE");
    struct bxi_trace *trace;
    int rc;

    if (pattern == NULL || pattern[0] == '\0')
        return;
    trace = calloc(1, sizeof *trace);
    if (secure_getenv("BX_TRACE") == NULL)
        rc = bx_fail(-EPERM, "this program runs with more rights than its caller (set-user-ID, set-group-ID, "
                             "capabilities), and opens no file for it");
    else if (trace == NULL || (trace->path = make_path(job, pattern)) == NULL)
        rc = bx_fail(-ENOMEM, "no memory");
    else if ((rc = read_bound(&trace->marks_max)) == 0)
        rc = open_trace_file(job, trace);
    if (rc < 0) {
        say_untraced(job);
        if (trace != NULL)
            free(trace->path);
        free(trace);
        return;
    }
    name_worker(job, trace);
    job->observe->trace = trace;
}

void bxi_trace_close(struct bx_job *job)
{
    struct bxi_trace *trace = job->observe->trace;
    struct timespec nap = { .tv_nsec = 1000000 };
    int rc;

    if (trace == NULL || forked(job))
        return;
    while (!begin_writing(trace))
        sched_yield();              /* a thread of the program, which will notice that the job is over */
    bxi_lock(&trace->lock);
    rc = bxi_exchange(&trace->off, 1) != 0 ? 0 : -EAGAIN;
    if (trace->left_out > 0 && rc < 0)
        put_mark(trace, &(struct bxi_mark){ .kind = BXI_MARK_LEFT_OUT, .begin_ns = trace->left_out_ns,
                                            .tid = (uint32_t)gettid(), .amount = trace->left_out });
    bxi_unlock(&trace->lock);
    for (int tries = 0; tries < LAST_TRIES && rc == -EAGAIN; tries++) {
        rc = write_marks(job, true);
        if (rc == 0)
            rc = append_text(trace);        /* nothing, but it mends what a worker that was killed has torn */
        if (rc == -EAGAIN)
            nanosleep(&nap, NULL);
    }
    if (rc < 0)
        give_up(job, rc);
    end_writing(trace);
}

void bxi_trace_destroy(struct bx_job *job)
{
    struct bxi_trace *trace = job->observe->trace;

    if (trace == NULL)
        return;
    job->observe->trace = NULL;
    close(trace->file.fd);
    if (trace->filling != NULL)
        filling_is_full(trace);
    while (trace->full_head != NULL) {
        struct chunk *chunk = trace->full_head;

        trace->full_head = chunk->next;
        free(chunk);
    }
    free(trace->draining);
    free(trace->spare);
    free(trace->path);
    free(trace);
}

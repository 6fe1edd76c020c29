/* SPDX-License-Identifier: MIT */
/*
 * The trace's marks as events in the Chrome trace format (trace.h has what they show). One thread at a time writes: the
 * one that has set trace->writing. No allocation, no printf: making a line is most of the cost of a traced call.
 */
#include "trace.h"

#include <unistd.h>

/* ---- JSON: each function returns the end of what it wrote ------------------------------------------ */

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

/* A name may hold any byte; bytes beyond ASCII are shown as Latin-1. A program's text may be longer than a name. */
static char *put_name(char *at, const char *name)
{
    for (const char *end = name + BX_NAME_MAX; name < end && *name != '\0'; name++) {
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

/* The beginning of a line: its phase, and the name of its event. */
struct line {
    const struct bx_job *job;
    const struct bxi_trace_names *names;
    const struct bxi_mark *mark;
    char phase;
    const char *category;
    const char *what;               /* before the name */
    const char *name;
    uint64_t ns;
    char function[BXI_NAME_BYTES];
};

static void name_by_function(struct line *line)
{
    const struct bxi_mark *mark = line->mark;

    if (mark->function != BXI_MARK_NO_FUNCTION)
        line->names->function(line->job, mark->callee, mark->function, line->function);
    line->name = line->function;
}

static char *begin_line(char *at, const struct line *line)
{
    at = put_text(at, "\n,{\"ph\":\"");
    *at++ = line->phase;
    at = put_text(put_text(at, "\",\"name\":\""), line->what);
    at = put_name(at, line->name);
    at = put_name(put_text(at, "\",\"cat\":\""), line->category);
    at = put_number(put_text(at, "\",\"pid\":"), (uint64_t)line->job->rank);
    at = put_number(put_text(at, ",\"tid\":"), line->mark->tid);
    return put_us(put_text(at, ",\"ts\":"), line->ns);
}

/* The id of an arrow or of an async call, the same in both workers: ranks, direction, and the call's id, a slot and its
 * generation of 32 bits, or a ring's position in lines. */
static uint64_t arrow_id(const struct bxi_mark *mark, bool reply)
{
    uint64_t id = mark->flags & BXI_MARK_IS_ONEWAY ? mark->id / BXI_LINE
                                                   : (mark->id & (BXI_CALLS_MAX - 1)) << 32 |
                                                         (mark->id >> 16 & UINT32_MAX);

    return (uint64_t)mark->caller << 54 | (uint64_t)mark->callee << 44 |
           (mark->flags & BXI_MARK_IS_ONEWAY ? UINT64_C(1) << 43 : 0) | (uint64_t)reply << 42 |
           (id & ((UINT64_C(1) << 42) - 1));
}

static char *put_arrow_line(char *at, const struct line *line, uint64_t id)
{
    at = put_hex(put_text(begin_line(at, line), ",\"id\":\"0x"), id);
    return put_text(at, line->phase == 'f' ? "\",\"bp\":\"e\"}" : "\"}");
}

static char *put_arrow(char *at, const struct line *of, char phase, bool reply)
{
    struct line line = { of->job, of->names, of->mark, phase, "arrow", reply ? "reply" : "request", "",
                         of->mark->begin_ns, "" };

    return put_arrow_line(at, &line, arrow_id(of->mark, reply));
}

static char *put_code(char *at, int code)
{
    if (code >= 0)
        return at;
    at = put_number(put_text(at, ",\"code\":-"), (uint64_t)-(int64_t)code);
    return put_text(put_name(put_text(at, ",\"error\":\""), bx_error_name(code)), "\"");
}

/* The other worker, the call as shmstat names it, an amount, and the error. */
static char *put_args(char *at, const struct line *line, const char *who, int rank, const char *amount)
{
    const struct bxi_mark *mark = line->mark;

    at = put_text(put_text(put_text(at, ",\"args\":{\""), who), "\":\"");
    at = put_name(at, line->names->worker(line->job, rank));
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

    line.category = "call";
    name_by_function(&line);
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
    name_by_function(&line);
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

/* The program's. */
static char *put_own_args(char *at, const struct bxi_mark *mark)
{
    at = put_text(put_hex(put_text(at, ",\"args\":{\"id\":\"0x"), mark->id), "\"");
    return put_text(put_code(at, mark->code), "}}");
}

/* The id of a span is the worker's own: others may have spans with the same one. */
static char *put_local_id(char *at, const struct line *line)
{
    at = put_hex(put_text(begin_line(at, line), ",\"id2\":{\"local\":\"0x"), line->mark->id);
    return put_text(at, "\"}");
}

static char *put_own(char *at, struct line line)
{
    static const char phases[] = { [BX_ARROW_BEGIN] = 's', [BX_ARROW_STEP] = 't', [BX_ARROW_END] = 'f' };
    const struct bx_slice *slice = line.mark->slice;

    line.category = slice->category;
    line.name = slice->name;
    if (slice->is_span) {
        line.phase = 'b';
        at = put_own_args(put_local_id(at, &line), line.mark);
        line.phase = 'e';
        line.ns = line.mark->end_ns;
        return put_text(put_local_id(at, &line), "}");
    }
    at = put_own_args(put_slice(at, &line), line.mark);
    if (slice->arrow < BX_ARROW_BEGIN || slice->arrow > BX_ARROW_END)
        return at;
    line.phase = phases[slice->arrow];
    line.name = slice->category;
    return put_arrow_line(at, &line, line.mark->id);
}

static char *put_sleep(char *at, struct line line)
{
    static const char *const who[] = { "background", "leader", "follower" };
    static const char *const by[] = { "io_uring", "epoll", "futex", "poll" };
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

char *bxi_trace_put_mark(char *at, const struct bx_job *job, const struct bxi_trace_names *names,
                         const struct bxi_mark *mark)
{
    struct line line = { job, names, mark, 'X', "", "", "", mark->begin_ns, "" };

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
    case BXI_MARK_OWN:
        return put_own(at, line);
    case BXI_MARK_THREAD:
        return put_text(put_name(put_text(put_metadata(at, &line, "thread_name"), "\"name\":\""), mark->name), "\"}}");
    default:                        /* BXI_MARK_LEFT_OUT */
        line.phase = 'i';
        line.category = "trace";
        line.what = "from here on events are left out";
        at = put_text(begin_line(at, &line), ",\"s\":\"p\",\"args\":{\"left_out\":");
        return put_text(put_number(at, mark->amount), "}}");
    }
}

char *bxi_trace_put_worker(char *at, const struct bx_job *job)
{
    struct bxi_mark mark = { .tid = (uint32_t)gettid() };
    struct line line = { .job = job, .mark = &mark };

    at = put_metadata(at, &line, "process_name");
    at = put_number(put_text(put_name(put_text(at, "\"name\":\""), job->name), " (rank "), (uint64_t)job->rank);
    at = put_text(put_number(put_text(at, ", pid "), (uint64_t)getpid()), ")\"}}");
    at = put_number(put_text(put_metadata(at, &line, "process_sort_index"), "\"sort_index\":"), (uint64_t)job->rank);
    return put_text(at, "}}");
}

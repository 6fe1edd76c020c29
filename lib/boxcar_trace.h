/* SPDX-License-Identifier: MIT */
/*
 * boxcar_trace.h - a program's own slices in the timeline of BX_TRACE (bx_job_create), beside those of its calls. A
 * part of libboxcar.
 *
 *     static const struct bx_slice frame = { .name = "frame", .category = "video", .arrow = BX_ARROW_BEGIN };
 *     static const struct bx_slice scale = { .name = "scale", .category = "video", .arrow = BX_ARROW_STEP };
 *
 *     camera                                                   a handler of worker "scaler"
 *
 *     uint64_t began_ns = bx_trace_begin(job);                 uint64_t began_ns = bx_trace_begin(job);
 *     bx_msg_put_u64(args, number);                            uint64_t number = bx_read_u64(args);
 *     rc = bx_rpc_sync(job, "scaler", "scale", args, ...);     rc = scale_image(...);
 *     bx_trace_end(job, &frame, began_ns, number, rc);         bx_trace_end(job, &scale, began_ns, number, rc);
 *
 * The timeline has a slice `frame` around the call, a slice `scale` inside the handler, and an arrow from `frame` to
 * `scale`. The id is the program's: the frame, pass or request to which the work belongs.
 *
 * Errors.   None: what cannot be recorded is left out, as events beyond BX_TRACE_EVENTS are.
 * Threads.  Any thread, in handlers and callbacks too, and with locks of the program held. Neither function waits for
 *           the file or for another worker.
 * Cost.     While no trace runs, bx_trace_begin reads three words of the job, and bx_trace_end tests its argument.
 *           While one runs, bx_trace_end costs as much as an event of the engine (lib/README.md).
 */
#ifndef BOXCAR_TRACE_H
#define BOXCAR_TRACE_H

#include "boxcar.h"

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* Slices of one category and one id, of any threads and workers, are joined by arrows in the order in which they began:
 * from the one that has BEGIN over those that have STEP to the one that has END. An id has one BEGIN in a job, as the
 * first, and at most one END. */
enum bx_arrow { BX_ARROW_NONE = 0, BX_ARROW_BEGIN = 1, BX_ARROW_STEP = 2, BX_ARROW_END = 3 };

/* A kind of slice. It and its texts must not change and must live as long as the job. The first BX_NAME_MAX bytes of a
 * text are shown. */
struct bx_slice {
    const char *name;
    const char *category;
    enum bx_arrow arrow;
    bool is_span;           /* it may begin and end on different threads, and overlap others of its kind: it is shown
                             * beside the worker's threads, and has no arrows */
};

/* When a slice begins: CLOCK_MONOTONIC, in nanoseconds. 0: no trace runs, or the process was forked from a worker. */
uint64_t bx_trace_begin(const struct bx_job *job);
/* Records a slice of the calling thread, from began_ns, which bx_trace_begin returned, until now. Slices of a thread
 * nest: the one that began last ends first. code is a result: one below 0 is shown with its name. Does nothing if
 * began_ns is 0. */
void bx_trace_end(struct bx_job *job, const struct bx_slice *slice, uint64_t began_ns, uint64_t id, int code);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif

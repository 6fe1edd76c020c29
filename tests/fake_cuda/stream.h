/* SPDX-License-Identifier: MIT */
/*
 * Inside queue.c, stream.c, event.c and capture.c: items of work, queues and streams.
 */
#ifndef TESTS_FAKE_STREAM_H
#define TESTS_FAKE_STREAM_H

#include "fake.h"

enum fake_work_kind { WORK_SET = 1, WORK_COPY, WORK_WRITE, WORK_WAIT, WORK_RECORD, WORK_WAIT_EVENT, WORK_CALL,
    WORK_HOST, WORK_END };

struct fake_work {
    struct fake_work *next;
    struct CUstream_st *stream;
    enum fake_work_kind kind;
    uint64_t to, from, bytes, value;
    struct CUevent_st *event;
    fake_call_fn call;
    void (*host)(void *context);
    void *argument;                     /* WORK_CALL: its own copy */
};

struct CUevent_st {
    bxi_a64 recorded, completed;
};

struct fake_queue {                     /* a hardware queue: runs its items one after the other */
    pthread_mutex_t lock;
    pthread_cond_t change;
    struct fake_work *first, *last;
    int streams;                        /* that share it; under the lock of the streams */
    struct fake_queue **place;          /* in the table of shared queues; NULL: of one stream alone */
    pthread_t thread;
};

#define FAKE_CAPTURE_INVALIDATED 901            /* CUDA_ERROR_STREAM_CAPTURE_INVALIDATED */
enum fake_capture { CAPTURE_NONE, CAPTURE_ACTIVE, CAPTURE_INVALIDATED };        /* as CUstreamCaptureStatus */

struct CUstream_st {
    struct CUstream_st *next;
    struct CUctx_st *context;
    struct fake_queue *queue;
    uint64_t put, done;                 /* items; under the queue's lock */
    int users;                          /* threads that wait for it: it is not freed before they are done */
    bool is_destroyed;                  /* its work still runs */
    int delay_us;                       /* a copy: a later cuInit reads the options again */
    uint64_t seed;
    struct {                            /* under the lock of capture.c */
        enum fake_capture status;
        unsigned mode;
        pthread_t by;
        struct CUstream_st *next;
    } capture;
};

/* ---- stream.c -------------------------------------------------------------------------------- */

/* The stream of a handle. 1 (CU_STREAM_LEGACY) and 2 (CU_STREAM_PER_THREAD) are made when first used, the second in
 * each thread; unlike the real one, the first is not synchronised with other streams. NULL: there is none. */
struct CUstream_st *fake_stream(struct CUstream_st *handle);

/* ---- queue.c --------------------------------------------------------------------------------- */

/* Enters a new stream of a context. */
void fake_stream_enter(struct CUstream_st *stream);
/* The stream is about to end: fake_synchronise_all does not wait for it any more. */
void fake_stream_hide(struct CUstream_st *stream);
/* Puts a copy of the item on the stream, or records it if the stream is being captured. */
unsigned fake_put(struct CUstream_st *stream, const struct fake_work *work);
bool fake_is_idle(struct CUstream_st *stream);
void fake_wait_idle(struct CUstream_st *stream);
void fake_pause(long us);

/* ---- event.c --------------------------------------------------------------------------------- */

void fake_wait_event(const struct fake_work *work);

/* ---- capture.c ------------------------------------------------------------------------------- */

enum fake_capture fake_capture_of(struct CUstream_st *stream);
/* For a call that queries the stream or synchronises with it: what it returns. */
unsigned fake_capture_refuses(struct CUstream_st *stream);
void fake_capture_drop(struct CUstream_st *stream);

#endif

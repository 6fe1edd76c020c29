/* SPDX-License-Identifier: MIT */
/*
 * A program captures a stream into a graph in global mode, while a thread of the engine frees memory: does the free
 * fail, and does the capture? Then the same with the thread in relaxed mode, as Boxcar's threads are.
 */
#include "side.h"

#include <pthread.h>
#include <stdio.h>

struct freeing {
    struct check_side *side;
    unsigned long long block;
    bool is_relaxed;
    unsigned result;
};

static void *free_block(void *context)
{
    struct freeing *freeing = context;
    struct check_side *side = freeing->side;
    unsigned mode = CHECK_CAPTURE_RELAXED;

    freeing->result = side->cu->cuCtxPushCurrent_v2(side->context);
    if (freeing->result == CUDA_SUCCESS && freeing->is_relaxed)
        freeing->result = side->driver.cuThreadExchangeStreamCaptureMode(&mode);
    if (freeing->result == CUDA_SUCCESS)
        freeing->result = side->cu->cuMemFree_v2(freeing->block);
    return NULL;
}

/* Frees a block in another thread during a capture. Returns the result of the capture's end. */
static unsigned capture_beside(struct check_side *side, struct freeing *freeing)
{
    struct CUstream_st *stream = check_stream(side);
    unsigned long long scratch = check_alloc(side, CHECK_PAGE_BYTES);
    struct CUgraph_st *graph = NULL;
    pthread_t thread;
    unsigned result;

    freeing->block = check_alloc(side, CHECK_PAYLOAD_BYTES);
    check_need(side, side->driver.cuStreamBeginCapture_v2(stream, CHECK_CAPTURE_GLOBAL), "cuStreamBeginCapture");
    check_need(side, side->cu->cuMemsetD8Async(scratch, 1, CHECK_PAGE_BYTES, stream), "a memset that is captured");
    if (pthread_create(&thread, NULL, free_block, freeing) != 0)
        check_give_up(side, "a thread cannot be made");
    pthread_join(thread, NULL);
    result = side->driver.cuStreamEndCapture(stream, &graph);
    if (graph != NULL && side->driver.cuGraphDestroy != NULL)
        (void)side->driver.cuGraphDestroy(graph);
    return result;
}

static void capture_owner(struct check_side *side)
{
    struct freeing plain = { .side = side }, relaxed = { .side = side, .is_relaxed = true };
    unsigned result;

    check_open(side);
    if (side->driver.cuStreamBeginCapture_v2 == NULL || side->driver.cuStreamEndCapture == NULL ||
        side->driver.cuThreadExchangeStreamCaptureMode == NULL)
        check_skip(side, "the driver has no captures");
    result = capture_beside(side, &plain);
    check_answer(side, "capture.free", CHECK_NOTE, "A free in another thread during a capture: %s; the capture's "
                 "end: %s.", plain.result == CUDA_SUCCESS ? "done" : check_name(side, plain.result),
                 result == CUDA_SUCCESS ? "done" : check_name(side, result));
    result = capture_beside(side, &relaxed);
    check_answer(side, "capture.relaxed", relaxed.result == CUDA_SUCCESS && result == CUDA_SUCCESS ? CHECK_GOOD
                 : CHECK_BAD, "A free by a thread in relaxed mode: %s; the capture's end: %s.",
                 relaxed.result == CUDA_SUCCESS ? "done" : check_name(side, relaxed.result),
                 result == CUDA_SUCCESS ? "done" : check_name(side, result));
}

const struct check_question check_capture = {
    .name = "capture", .limit_ms = 6000, .owner = capture_owner,
    .lines = {
        { "capture.free", "Errors here are why Boxcar's threads call the driver in relaxed mode.", NULL },
        { "capture.relaxed", "A program may capture graphs while Boxcar frees memory.",
          "Boxcar must be idle while a program captures a graph in global mode." },
        { NULL, NULL, NULL },
    },
};

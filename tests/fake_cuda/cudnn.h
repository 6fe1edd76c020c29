/* SPDX-License-Identifier: MIT */
/*
 * Shared by the files of the fake cuDNN: descriptors, and putting work on a handle's stream. All tensors are N C H W,
 * by row, float32. The statuses are those of version 8.
 */
#ifndef TESTS_FAKE_CUDNN_H
#define TESTS_FAKE_CUDNN_H

#include "nn/cuda_api.h"
#include "fake.h"

#define FAKE_DNN_STATUSES(X)                                                                    \
    X(CUDNN_STATUS_SUCCESS, 0)                                                                  \
    X(CUDNN_STATUS_NOT_INITIALIZED, 1)                                                          \
    X(CUDNN_STATUS_ALLOC_FAILED, 2)                                                             \
    X(CUDNN_STATUS_BAD_PARAM, 3)                                                                \
    X(CUDNN_STATUS_INTERNAL_ERROR, 4)                                                           \
    X(CUDNN_STATUS_EXECUTION_FAILED, 8)                                                         \
    X(CUDNN_STATUS_NOT_SUPPORTED, 9)
#define FAKE_DNN_ENTER(name, value) name = value,
enum fake_dnn_status { FAKE_DNN_STATUSES(FAKE_DNN_ENTER) };
#undef FAKE_DNN_ENTER

enum fake_dnn_kind { DNN_TENSOR = 0x544e4e44, DNN_FILTER, DNN_CONVOLUTION, DNN_POOLING };

struct fake_dims {                      /* of a filter: k, c, h, w; all 0: not set */
    size_t n, c, h, w;
};
struct cudnnTensorStruct {
    enum fake_dnn_kind kind;
    struct fake_dims dims;
};
struct cudnnFilterStruct {
    enum fake_dnn_kind kind;
    struct fake_dims dims;
};
struct fake_window {                    /* of a convolution or a pooling */
    size_t h, w, pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w;
};
struct cudnnConvolutionStruct {
    enum fake_dnn_kind kind;
    struct fake_window window;          /* h and w are the filter's */
    int math;
};
struct cudnnPoolingStruct {
    enum fake_dnn_kind kind;
    int mode;
    struct fake_window window;
};

/* ---- cudnn.c --------------------------------------------------------------------------------- */

bool fake_dnn_is_handle(const struct cudnnContext *handle);
/* Whether both are tensor descriptors that have been set and not destroyed. */
bool fake_dnn_are_tensors(const struct cudnnTensorStruct *a, const struct cudnnTensorStruct *b);
bool fake_dnn_is_filter(const struct cudnnFilterStruct *filter);
bool fake_dnn_same(const struct fake_dims *a, const struct fake_dims *b);
size_t fake_dnn_count(const struct fake_dims *dims);
/* The number of window positions along `length`; 0: it does not fit. */
size_t fake_dnn_places(size_t length, size_t window, size_t pad, size_t stride, size_t dilation);
double *fake_dnn_numbers(size_t count);      /* zeros, to be freed */

/* A float array of these dimensions that the device reads, or writes; dims NULL: it does not. */
struct fake_access {
    const void *at;
    const struct fake_dims *dims;
    bool is_written;
};
#define FAKE_READS(at, dims) { at, dims, false }
#define FAKE_WRITES(at, dims) { at, dims, true }
/* Puts the work on the handle's stream if the device may access the arrays. Returns a status. */
int fake_dnn_put(struct cudnnContext *handle, fake_call_fn call, const void *argument, size_t bytes,
                 const struct fake_access *accesses, size_t count);
#define FAKE_DNN_PUT(handle, call, job, ...) \
    fake_dnn_put(handle, call, &(job), sizeof(job), (const struct fake_access[]){ __VA_ARGS__ }, \
                 sizeof((const struct fake_access[]){ __VA_ARGS__ }) / sizeof(struct fake_access))

struct fake_blend {                     /* to = alpha * value + beta * to; with beta 0 to is not read */
    float alpha, beta;
};
/* False if one of them is missing. */
bool fake_dnn_blend(const void *alpha, const void *beta, struct fake_blend *blend);
static inline void fake_blend(struct fake_blend blend, float *to, double value)
{
    *to = (float)((double)blend.alpha * value + (blend.beta == 0.0f ? 0.0 : (double)blend.beta * (double)*to));
}

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The fake cuDNN: handles and descriptors. A descriptor is refused if it was destroyed, is of another kind, or was
 * never set.
 */
#include "cudnn.h"

#define DECLARE(type, name, arguments) FAKE_EXPORT type name arguments;
BXI_CUDNN_FUNCTIONS(DECLARE)
#undef DECLARE

struct cudnnContext {
    struct fake_handle is;
};

size_t cudnnGetVersion(void)
{
    return 8907;
}

const char *cudnnGetErrorString(int status)
{
    switch (status) {
#define NAME(name, value) case value: return #name;
    FAKE_DNN_STATUSES(NAME)
#undef NAME
    default: return "CUDNN_UNKNOWN_STATUS";
    }
}

/* ---- Handles --------------------------------------------------------------------------------- */

bool fake_dnn_is_handle(const struct cudnnContext *handle)
{
    return fake_is_handle(&handle->is, FAKE_CUDNN);
}

int cudnnCreate(struct cudnnContext **out)
{
    return fake_handle_create(out, sizeof(**out), FAKE_CUDNN) == CUDA_SUCCESS ? CUDNN_STATUS_SUCCESS
        : CUDNN_STATUS_NOT_INITIALIZED;
}

int cudnnDestroy(struct cudnnContext *handle)
{
    if (!fake_dnn_is_handle(handle))
        return CUDNN_STATUS_BAD_PARAM;
    fake_handle_destroy(&handle->is);
    return CUDNN_STATUS_SUCCESS;
}

int cudnnSetStream(struct cudnnContext *handle, struct CUstream_st *stream)
{
    if (!fake_dnn_is_handle(handle))
        return CUDNN_STATUS_BAD_PARAM;
    handle->is.stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

int fake_dnn_put(struct cudnnContext *handle, fake_call_fn call, const void *argument, size_t bytes,
                 const struct fake_access *accesses, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t address = (uint64_t)(uintptr_t)accesses[i].at;

        if (accesses[i].dims != NULL &&
            (address % sizeof(float) != 0 || !fake_may_touch(address, fake_dnn_count(accesses[i].dims) * sizeof(float),
                                                             accesses[i].is_written)))
            return CUDNN_STATUS_EXECUTION_FAILED;
    }
    return fake_stream_call(handle->is.stream, call, argument, bytes) == CUDA_SUCCESS ? CUDNN_STATUS_SUCCESS
        : CUDNN_STATUS_EXECUTION_FAILED;
}

bool fake_dnn_blend(const void *alpha, const void *beta, struct fake_blend *blend)
{
    if (alpha == NULL || beta == NULL)
        return false;
    *blend = (struct fake_blend){ *(const float *)alpha, *(const float *)beta };
    return true;
}

double *fake_dnn_numbers(size_t count)
{
    return fake_new(count * sizeof(double));
}

/* ---- Dimensions ------------------------------------------------------------------------------ */

bool fake_dnn_are_tensors(const struct cudnnTensorStruct *a, const struct cudnnTensorStruct *b)
{
    return a != NULL && b != NULL && a->kind == DNN_TENSOR && b->kind == DNN_TENSOR && a->dims.n > 0 &&
        b->dims.n > 0;
}

bool fake_dnn_is_filter(const struct cudnnFilterStruct *filter)
{
    return filter != NULL && filter->kind == DNN_FILTER && filter->dims.n > 0;
}

bool fake_dnn_same(const struct fake_dims *a, const struct fake_dims *b)
{
    return a->n == b->n && a->c == b->c && a->h == b->h && a->w == b->w;
}

size_t fake_dnn_count(const struct fake_dims *dims)
{
    return dims->n * dims->c * dims->h * dims->w;
}

size_t fake_dnn_places(size_t length, size_t window, size_t pad, size_t stride, size_t dilation)
{
    size_t reach = (window - 1) * dilation + 1;

    return reach > length + 2 * pad ? 0 : (length + 2 * pad - reach) / stride + 1;
}

/* ---- Descriptors ----------------------------------------------------------------------------- */

static int create(void *out, size_t bytes, enum fake_dnn_kind kind)
{
    enum fake_dnn_kind *descriptor = fake_new(bytes);

    *descriptor = kind;                 /* the first member of all descriptors */
    memcpy(out, &descriptor, sizeof(descriptor));
    return CUDNN_STATUS_SUCCESS;
}

static int destroy(void *descriptor, enum fake_dnn_kind kind)
{
    enum fake_dnn_kind *at = descriptor;

    if (at == NULL)
        return CUDNN_STATUS_SUCCESS;
    if (*at != kind)
        return CUDNN_STATUS_BAD_PARAM;
    *at = 0;
    free(descriptor);
    return CUDNN_STATUS_SUCCESS;
}

#define DESCRIPTOR(name, kind) \
    int cudnnCreate##name##Descriptor(struct cudnn##name##Struct **descriptor) \
    { \
        return create(descriptor, sizeof(**descriptor), kind); \
    } \
    int cudnnDestroy##name##Descriptor(struct cudnn##name##Struct *descriptor) \
    { \
        return destroy(descriptor, kind); \
    }

DESCRIPTOR(Tensor, DNN_TENSOR)
DESCRIPTOR(Filter, DNN_FILTER)
DESCRIPTOR(Convolution, DNN_CONVOLUTION)
DESCRIPTOR(Pooling, DNN_POOLING)

static int set_dims(struct fake_dims *dims, int n, int c, int h, int w)
{
    if (n <= 0 || c <= 0 || h <= 0 || w <= 0)
        return CUDNN_STATUS_BAD_PARAM;
    *dims = (struct fake_dims){ (size_t)n, (size_t)c, (size_t)h, (size_t)w };
    /* 2 GiB at most, as in the real one. */
    return fake_dnn_count(dims) > INT32_MAX / sizeof(float) ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
}

int cudnnSetTensor4dDescriptor(struct cudnnTensorStruct *tensor, int format, int type, int n, int c, int h, int w)
{
    if (tensor == NULL || tensor->kind != DNN_TENSOR || format != BXI_CUDNN_NCHW || type != BXI_CUDNN_FLOAT)
        return CUDNN_STATUS_BAD_PARAM;
    return set_dims(&tensor->dims, n, c, h, w);
}

int cudnnSetFilter4dDescriptor(struct cudnnFilterStruct *filter, int type, int format, int k, int c, int h, int w)
{
    if (filter == NULL || filter->kind != DNN_FILTER || format != BXI_CUDNN_NCHW || type != BXI_CUDNN_FLOAT)
        return CUDNN_STATUS_BAD_PARAM;
    return set_dims(&filter->dims, k, c, h, w);
}

int cudnnSetConvolution2dDescriptor(struct cudnnConvolutionStruct *conv, int pad_h, int pad_w, int stride_h,
                                    int stride_w, int dilation_h, int dilation_w, int mode, int type)
{
    if (conv == NULL || conv->kind != DNN_CONVOLUTION || pad_h < 0 || pad_w < 0 || stride_h <= 0 || stride_w <= 0 ||
        dilation_h <= 0 || dilation_w <= 0 || type != BXI_CUDNN_FLOAT)
        return CUDNN_STATUS_BAD_PARAM;
    if (mode != BXI_CUDNN_CROSS_CORRELATION)
        return CUDNN_STATUS_NOT_SUPPORTED;
    conv->window = (struct fake_window){
        .pad_h = (size_t)pad_h,
        .pad_w = (size_t)pad_w,
        .stride_h = (size_t)stride_h,
        .stride_w = (size_t)stride_w,
        .dilation_h = (size_t)dilation_h,
        .dilation_w = (size_t)dilation_w,
    };
    return CUDNN_STATUS_SUCCESS;
}

int cudnnSetConvolutionMathType(struct cudnnConvolutionStruct *conv, int math_type)
{
    if (conv == NULL || conv->kind != DNN_CONVOLUTION || math_type < 0 || math_type > BXI_CUDNN_FMA_MATH)
        return CUDNN_STATUS_BAD_PARAM;
    conv->math = math_type;
    return CUDNN_STATUS_SUCCESS;
}

int cudnnSetPooling2dDescriptor(struct cudnnPoolingStruct *pooling, int mode, int nan_opt, int window_h, int window_w,
                                int pad_h, int pad_w, int stride_h, int stride_w)
{
    if (pooling == NULL || pooling->kind != DNN_POOLING || window_h <= 0 || window_w <= 0 || pad_h < 0 || pad_w < 0 ||
        pad_h >= window_h || pad_w >= window_w || stride_h <= 0 || stride_w <= 0 || nan_opt < 0 || nan_opt > 1)
        return CUDNN_STATUS_BAD_PARAM;
    if ((mode != BXI_CUDNN_POOLING_MAX_DETERMINISTIC && mode != BXI_CUDNN_POOLING_AVERAGE) ||
        nan_opt != BXI_CUDNN_NOT_PROPAGATE_NAN)
        return CUDNN_STATUS_NOT_SUPPORTED;
    pooling->mode = mode;
    pooling->window = (struct fake_window){
        .h = (size_t)window_h,
        .w = (size_t)window_w,
        .pad_h = (size_t)pad_h,
        .pad_w = (size_t)pad_w,
        .stride_h = (size_t)stride_h,
        .stride_w = (size_t)stride_w,
        .dilation_h = 1,
        .dilation_w = 1,
    };
    return CUDNN_STATUS_SUCCESS;
}

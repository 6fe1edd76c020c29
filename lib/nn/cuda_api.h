/* SPDX-License-Identifier: MIT */
/*
 * The part of NVRTC, cuBLAS and cuDNN that is used: names, numbers and prototypes, written from their documentation, so
 * that no toolkit is needed to build; gpu/cuda_api.h does the same for the driver. Where the vendor's headers are
 * installed, cuda_check.c compares the two. One list a library. cuDNN's are calls of version 8, which 9 still has.
 */
#ifndef BXI_NN_CUDA_API_H
#define BXI_NN_CUDA_API_H

#include "gpu/cuda_api.h"

/* An enumeration; it is passed like an int. For the compiler its type is another, so cuda_check.c takes `unsigned`. */
#ifndef bxi_enum
#define bxi_enum int
#endif
#ifndef BXI_CUDNN_PERF
#define BXI_CUDNN_PERF(pass) bxi_cudnn_perf     /* one struct for three of cuDNN with equal members */
#endif

struct _nvrtcProgram;
struct cublasContext;
struct cudnnContext;
struct cudnnTensorStruct;
struct cudnnFilterStruct;
struct cudnnConvolutionStruct;
struct cudnnPoolingStruct;

/* Success is 0 in all three. */
enum bxi_nvrtc_number {                         /* results */
    BXI_NVRTC_INVALID_OPTION = 5,
    BXI_NVRTC_COMPILATION = 6,
};
enum bxi_cublas_number {
    BXI_CUBLAS_OP_N = 0,
    BXI_CUBLAS_OP_T = 1,
    BXI_CUBLAS_DEFAULT_MATH = 0,                /* float32, no TF32 */
    BXI_CUBLAS_ALLOC_FAILED = 3,                /* a status */
};
enum bxi_cudnn_number {
    BXI_CUDNN_FLOAT = 0,
    BXI_CUDNN_NCHW = 0,
    BXI_CUDNN_CROSS_CORRELATION = 1,
    BXI_CUDNN_DEFAULT_MATH = 0,                 /* as the descriptor allows; if it allows all, TF32 */
    BXI_CUDNN_FMA_MATH = 3,                     /* float32, no TF32 */
    BXI_CUDNN_BATCHNORM_SPATIAL = 1,
    BXI_CUDNN_POOLING_AVERAGE = 2,              /* without the padding */
    BXI_CUDNN_POOLING_MAX_DETERMINISTIC = 3,
    BXI_CUDNN_NOT_PROPAGATE_NAN = 0,
    BXI_CUDNN_SOFTMAX_ACCURATE = 1,             /* the largest value is subtracted first */
    BXI_CUDNN_SOFTMAX_INSTANCE = 0,             /* over C, H and W */
    BXI_CUDNN_DETERMINISTIC = 1,
    BXI_CUDNN_ALLOC_FAILED = 2,                 /* a status of version 8 */
    BXI_CUDNN_NOT_SUPPORTED = 9,                /* another; from 9 on statuses have four digits: */
    BXI_CUDNN_9_NOT_SUPPORTED = 3000,           /* to 3999 */
    BXI_CUDNN_9_HOST_ALLOC_FAILED = 4003,
    BXI_CUDNN_9_DEVICE_ALLOC_FAILED = 4004,
};

/* cudnnConvolutionFwdAlgoPerf_t, BwdData and BwdFilter. */
struct bxi_cudnn_perf {
    int algorithm;
    int status;
    float time;
    size_t memory;
    int determinism;
    int math_type;
    int reserved[3];
};

#define BXI_NVRTC_FUNCTIONS(X)                                                                  \
    X(bxi_enum, nvrtcVersion, (int *major, int *minor))                                         \
    X(const char *, nvrtcGetErrorString, (bxi_enum result))                                     \
    X(bxi_enum, nvrtcCreateProgram,                                                             \
      (struct _nvrtcProgram **program, const char *source, const char *name, int header_count,  \
       const char *const *headers, const char *const *include_names))                           \
    X(bxi_enum, nvrtcDestroyProgram, (struct _nvrtcProgram **program))                          \
    X(bxi_enum, nvrtcCompileProgram, (struct _nvrtcProgram *program, int option_count, const char *const *options)) \
    X(bxi_enum, nvrtcGetCUBINSize, (struct _nvrtcProgram *program, size_t *bytes))              \
    X(bxi_enum, nvrtcGetCUBIN, (struct _nvrtcProgram *program, char *cubin))                    \
    X(bxi_enum, nvrtcGetProgramLogSize, (struct _nvrtcProgram *program, size_t *bytes))         \
    X(bxi_enum, nvrtcGetProgramLog, (struct _nvrtcProgram *program, char *log))

/* Matrices are column-major. */
#define BXI_CUBLAS_FUNCTIONS(X)                                                                 \
    X(bxi_enum, cublasCreate_v2, (struct cublasContext **handle))                               \
    X(bxi_enum, cublasDestroy_v2, (struct cublasContext *handle))                               \
    X(bxi_enum, cublasGetVersion_v2, (struct cublasContext *handle, int *version))              \
    X(bxi_enum, cublasSetStream_v2, (struct cublasContext *handle, struct CUstream_st *stream)) \
    X(bxi_enum, cublasSetMathMode, (struct cublasContext *handle, bxi_enum mode))               \
    X(bxi_enum, cublasSgemm_v2,                                                                 \
      (struct cublasContext *handle, bxi_enum transpose_a, bxi_enum transpose_b, int m, int n, int k, \
       const float *alpha, const float *a, int lda, const float *b, int ldb, const float *beta, float *c, \
       int ldc))

#define BXI_CUDNN_FUNCTIONS(X)                                                                  \
    X(size_t, cudnnGetVersion, (void))                                                          \
    X(const char *, cudnnGetErrorString, (bxi_enum status))                                     \
    X(bxi_enum, cudnnCreate, (struct cudnnContext **handle))                                    \
    X(bxi_enum, cudnnDestroy, (struct cudnnContext *handle))                                    \
    X(bxi_enum, cudnnSetStream, (struct cudnnContext *handle, struct CUstream_st *stream))      \
    X(bxi_enum, cudnnCreateTensorDescriptor, (struct cudnnTensorStruct **tensor))               \
    X(bxi_enum, cudnnSetTensor4dDescriptor,                                                     \
      (struct cudnnTensorStruct *tensor, bxi_enum format, bxi_enum type, int n, int c, int h, int w)) \
    X(bxi_enum, cudnnDestroyTensorDescriptor, (struct cudnnTensorStruct *tensor))               \
    X(bxi_enum, cudnnCreateFilterDescriptor, (struct cudnnFilterStruct **filter))               \
    X(bxi_enum, cudnnSetFilter4dDescriptor,                                                     \
      (struct cudnnFilterStruct *filter, bxi_enum type, bxi_enum format, int k, int c, int h, int w)) \
    X(bxi_enum, cudnnDestroyFilterDescriptor, (struct cudnnFilterStruct *filter))               \
    X(bxi_enum, cudnnCreateConvolutionDescriptor, (struct cudnnConvolutionStruct **conv))       \
    X(bxi_enum, cudnnSetConvolution2dDescriptor,                                                \
      (struct cudnnConvolutionStruct *conv, int pad_h, int pad_w, int stride_h, int stride_w, int dilation_h, \
       int dilation_w, bxi_enum mode, bxi_enum type))                                           \
    X(bxi_enum, cudnnSetConvolutionMathType, (struct cudnnConvolutionStruct *conv, bxi_enum math_type)) \
    X(bxi_enum, cudnnDestroyConvolutionDescriptor, (struct cudnnConvolutionStruct *conv))       \
    X(bxi_enum, cudnnCreatePoolingDescriptor, (struct cudnnPoolingStruct **pooling))            \
    X(bxi_enum, cudnnSetPooling2dDescriptor,                                                    \
      (struct cudnnPoolingStruct *pooling, bxi_enum mode, bxi_enum nan_opt, int window_h, int window_w, \
       int pad_h, int pad_w, int stride_h, int stride_w))                                       \
    X(bxi_enum, cudnnDestroyPoolingDescriptor, (struct cudnnPoolingStruct *pooling))            \
    X(bxi_enum, cudnnGetConvolutionForwardAlgorithm_v7,                                         \
      (struct cudnnContext *handle, struct cudnnTensorStruct *x, struct cudnnFilterStruct *w,   \
       struct cudnnConvolutionStruct *conv, struct cudnnTensorStruct *y, int asked, int *given, \
       struct BXI_CUDNN_PERF(Fwd) *results))                                                    \
    X(bxi_enum, cudnnGetConvolutionBackwardDataAlgorithm_v7,                                    \
      (struct cudnnContext *handle, struct cudnnFilterStruct *w, struct cudnnTensorStruct *dy,  \
       struct cudnnConvolutionStruct *conv, struct cudnnTensorStruct *dx, int asked, int *given, \
       struct BXI_CUDNN_PERF(BwdData) *results))                                                \
    X(bxi_enum, cudnnGetConvolutionBackwardFilterAlgorithm_v7,                                  \
      (struct cudnnContext *handle, struct cudnnTensorStruct *x, struct cudnnTensorStruct *dy,  \
       struct cudnnConvolutionStruct *conv, struct cudnnFilterStruct *dw, int asked, int *given, \
       struct BXI_CUDNN_PERF(BwdFilter) *results))                                              \
    X(bxi_enum, cudnnConvolutionForward,                                                        \
      (struct cudnnContext *handle, const void *alpha, struct cudnnTensorStruct *x_desc, const void *x, \
       struct cudnnFilterStruct *w_desc, const void *w, struct cudnnConvolutionStruct *conv, bxi_enum algorithm, \
       void *workspace, size_t bytes, const void *beta, struct cudnnTensorStruct *y_desc, void *y)) \
    X(bxi_enum, cudnnConvolutionBackwardData,                                                   \
      (struct cudnnContext *handle, const void *alpha, struct cudnnFilterStruct *w_desc, const void *w, \
       struct cudnnTensorStruct *dy_desc, const void *dy, struct cudnnConvolutionStruct *conv,  \
       bxi_enum algorithm, void *workspace, size_t bytes, const void *beta, struct cudnnTensorStruct *dx_desc, \
       void *dx))                                                                               \
    X(bxi_enum, cudnnConvolutionBackwardFilter,                                                 \
      (struct cudnnContext *handle, const void *alpha, struct cudnnTensorStruct *x_desc, const void *x, \
       struct cudnnTensorStruct *dy_desc, const void *dy, struct cudnnConvolutionStruct *conv,  \
       bxi_enum algorithm, void *workspace, size_t bytes, const void *beta, struct cudnnFilterStruct *dw_desc, \
       void *dw))                                                                               \
    X(bxi_enum, cudnnConvolutionBackwardBias,                                                   \
      (struct cudnnContext *handle, const void *alpha, struct cudnnTensorStruct *dy_desc, const void *dy, \
       const void *beta, struct cudnnTensorStruct *db_desc, void *db))                          \
    X(bxi_enum, cudnnAddTensor,                                                                 \
      (struct cudnnContext *handle, const void *alpha, struct cudnnTensorStruct *a_desc, const void *a, \
       const void *beta, struct cudnnTensorStruct *c_desc, void *c))                            \
    X(bxi_enum, cudnnBatchNormalizationForwardTraining,                                         \
      (struct cudnnContext *handle, bxi_enum mode, const void *alpha, const void *beta,         \
       struct cudnnTensorStruct *x_desc, const void *x, struct cudnnTensorStruct *y_desc, void *y, \
       struct cudnnTensorStruct *scale_desc, const void *scale, const void *shift, double average_factor, \
       void *running_mean, void *running_var, double epsilon, void *save_mean, void *save_inverse)) \
    X(bxi_enum, cudnnBatchNormalizationForwardInference,                                        \
      (struct cudnnContext *handle, bxi_enum mode, const void *alpha, const void *beta,         \
       struct cudnnTensorStruct *x_desc, const void *x, struct cudnnTensorStruct *y_desc, void *y, \
       struct cudnnTensorStruct *scale_desc, const void *scale, const void *shift, const void *mean, \
       const void *var, double epsilon))                                                        \
    X(bxi_enum, cudnnBatchNormalizationBackward,                                                \
      (struct cudnnContext *handle, bxi_enum mode, const void *alpha_data, const void *beta_data, \
       const void *alpha_param, const void *beta_param, struct cudnnTensorStruct *x_desc, const void *x, \
       struct cudnnTensorStruct *dy_desc, const void *dy, struct cudnnTensorStruct *dx_desc, void *dx, \
       struct cudnnTensorStruct *scale_desc, const void *scale, void *d_scale, void *d_shift, double epsilon, \
       const void *save_mean, const void *save_inverse))                                        \
    X(bxi_enum, cudnnPoolingForward,                                                            \
      (struct cudnnContext *handle, struct cudnnPoolingStruct *pooling, const void *alpha,      \
       struct cudnnTensorStruct *x_desc, const void *x, const void *beta, struct cudnnTensorStruct *y_desc, \
       void *y))                                                                                \
    X(bxi_enum, cudnnPoolingBackward,                                                           \
      (struct cudnnContext *handle, struct cudnnPoolingStruct *pooling, const void *alpha,      \
       struct cudnnTensorStruct *y_desc, const void *y, struct cudnnTensorStruct *dy_desc, const void *dy, \
       struct cudnnTensorStruct *x_desc, const void *x, const void *beta, struct cudnnTensorStruct *dx_desc, \
       void *dx))                                                                               \
    X(bxi_enum, cudnnSoftmaxForward,                                                            \
      (struct cudnnContext *handle, bxi_enum algorithm, bxi_enum mode, const void *alpha,       \
       struct cudnnTensorStruct *x_desc, const void *x, const void *beta, struct cudnnTensorStruct *y_desc, \
       void *y))                                                                                \
    X(bxi_enum, cudnnSoftmaxBackward,                                                           \
      (struct cudnnContext *handle, bxi_enum algorithm, bxi_enum mode, const void *alpha,       \
       struct cudnnTensorStruct *y_desc, const void *y, struct cudnnTensorStruct *dy_desc, const void *dy, \
       const void *beta, struct cudnnTensorStruct *dx_desc, void *dx))

#define BXI_LIBRARY_FIELD(type, name, arguments) type(*name) arguments;
struct bxi_nvrtc {
    BXI_NVRTC_FUNCTIONS(BXI_LIBRARY_FIELD)
};
struct bxi_cublas {
    BXI_CUBLAS_FUNCTIONS(BXI_LIBRARY_FIELD)
};
struct bxi_cudnn {
    BXI_CUDNN_FUNCTIONS(BXI_LIBRARY_FIELD)
};
#undef BXI_LIBRARY_FIELD

#endif

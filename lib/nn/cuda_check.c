/* SPDX-License-Identifier: MIT */
/*
 * Compares the prototypes and numbers of cuda_api.h with nvrtc.h, cublas_v2.h and cudnn.h at compile time, if CUDA_HOME
 * or the usual places have these (of CUDA 12 and cuDNN 8 or later). No code; without the headers it checks nothing.
 */
#if defined(__has_include)
#if __has_include(<cuda.h>) && __has_include(<nvrtc.h>) && __has_include(<cublas_v2.h>)
#include <cuda.h>

#include <cublas_v2.h>
#include <nvrtc.h>
#define HAS_TOOLKIT 1
#endif
#if __has_include(<cuda.h>) && __has_include(<cudnn.h>)
#define CUDNN_DISABLE_DEPRECATION_WARNINGS
#include <cudnn.h>
#define HAS_CUDNN 1
#endif
#endif

#define bxi_enum unsigned
#ifdef HAS_CUDNN
#define BXI_CUDNN_PERF(pass) cudnnConvolution##pass##AlgoPerfStruct
#endif
#include "cuda_api.h"

#include <stddef.h>

#define CHECK_FUNCTION(type, name, arguments)                                                   \
    extern type as_written_##name arguments;                                                    \
    _Static_assert(__builtin_types_compatible_p(__typeof__(name), __typeof__(as_written_##name)), \
                   #name " is as its header has it");
#define CHECK_NUMBER(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours " is " #theirs)

#if defined(HAS_TOOLKIT) && CUDA_VERSION >= 12000
BXI_NVRTC_FUNCTIONS(CHECK_FUNCTION)
BXI_CUBLAS_FUNCTIONS(CHECK_FUNCTION)
CHECK_NUMBER(BXI_NVRTC_INVALID_OPTION, NVRTC_ERROR_INVALID_OPTION);
CHECK_NUMBER(BXI_NVRTC_COMPILATION, NVRTC_ERROR_COMPILATION);
CHECK_NUMBER(BXI_CUBLAS_OP_N, CUBLAS_OP_N);
CHECK_NUMBER(BXI_CUBLAS_OP_T, CUBLAS_OP_T);
CHECK_NUMBER(BXI_CUBLAS_DEFAULT_MATH, CUBLAS_DEFAULT_MATH);
CHECK_NUMBER(BXI_CUBLAS_ALLOC_FAILED, CUBLAS_STATUS_ALLOC_FAILED);
#endif

#if defined(HAS_CUDNN) && CUDNN_MAJOR >= 8
BXI_CUDNN_FUNCTIONS(CHECK_FUNCTION)
CHECK_NUMBER(BXI_CUDNN_FLOAT, CUDNN_DATA_FLOAT);
CHECK_NUMBER(BXI_CUDNN_NCHW, CUDNN_TENSOR_NCHW);
CHECK_NUMBER(BXI_CUDNN_CROSS_CORRELATION, CUDNN_CROSS_CORRELATION);
CHECK_NUMBER(BXI_CUDNN_DEFAULT_MATH, CUDNN_DEFAULT_MATH);
CHECK_NUMBER(BXI_CUDNN_FMA_MATH, CUDNN_FMA_MATH);
CHECK_NUMBER(BXI_CUDNN_BATCHNORM_SPATIAL, CUDNN_BATCHNORM_SPATIAL);
CHECK_NUMBER(BXI_CUDNN_POOLING_AVERAGE, CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING);
CHECK_NUMBER(BXI_CUDNN_POOLING_MAX_DETERMINISTIC, CUDNN_POOLING_MAX_DETERMINISTIC);
CHECK_NUMBER(BXI_CUDNN_SOFTMAX_ACCURATE, CUDNN_SOFTMAX_ACCURATE);
CHECK_NUMBER(BXI_CUDNN_SOFTMAX_INSTANCE, CUDNN_SOFTMAX_MODE_INSTANCE);
CHECK_NUMBER(BXI_CUDNN_NOT_PROPAGATE_NAN, CUDNN_NOT_PROPAGATE_NAN);
CHECK_NUMBER(BXI_CUDNN_DETERMINISTIC, CUDNN_DETERMINISTIC);
#if CUDNN_MAJOR == 8
CHECK_NUMBER(BXI_CUDNN_ALLOC_FAILED, CUDNN_STATUS_ALLOC_FAILED);
CHECK_NUMBER(BXI_CUDNN_NOT_SUPPORTED, CUDNN_STATUS_NOT_SUPPORTED);
#else
CHECK_NUMBER(BXI_CUDNN_9_NOT_SUPPORTED, CUDNN_STATUS_NOT_SUPPORTED);
CHECK_NUMBER(BXI_CUDNN_9_HOST_ALLOC_FAILED, CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED);
CHECK_NUMBER(BXI_CUDNN_9_DEVICE_ALLOC_FAILED, CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED);
#endif

#define CHECK_RESULTS(theirs)                                                                   \
    _Static_assert(sizeof(struct bxi_cudnn_perf) == sizeof(theirs) &&                           \
                       offsetof(struct bxi_cudnn_perf, algorithm) == offsetof(theirs, algo) &&  \
                       offsetof(struct bxi_cudnn_perf, status) == offsetof(theirs, status) &&   \
                       offsetof(struct bxi_cudnn_perf, memory) == offsetof(theirs, memory) &&   \
                       offsetof(struct bxi_cudnn_perf, determinism) == offsetof(theirs, determinism) && \
                       offsetof(struct bxi_cudnn_perf, math_type) == offsetof(theirs, mathType), \
                   "results are as " #theirs)
CHECK_RESULTS(struct cudnnConvolutionFwdAlgoPerfStruct);
CHECK_RESULTS(struct cudnnConvolutionBwdDataAlgoPerfStruct);
CHECK_RESULTS(struct cudnnConvolutionBwdFilterAlgoPerfStruct);
#endif

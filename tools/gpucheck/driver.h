/* SPDX-License-Identifier: MIT */
/*
 * The functions of the CUDA driver that gpucheck calls: those of gpu/cuda_api.h, all optional here, and a few that
 * Boxcar does not call or calls only in part of its builds. A missing function is an answer, not an error.
 */
#ifndef CHECK_DRIVER_H
#define CHECK_DRIVER_H

#include "gpu/cuda_api.h"

struct CUgraph_st;

/* Numbers beside those of gpu/cuda_api.h, with names of their own: that list may get them too. */
enum check_number {
    CHECK_CAPTURE_GLOBAL = 0,                   /* CU_STREAM_CAPTURE_MODE_* */
    CHECK_CAPTURE_RELAXED = 2,
    CHECK_MPS_ENABLED = 133,                    /* CU_DEVICE_ATTRIBUTE_MPS_ENABLED */
};

/* Attributes of a device that are shown: a name, CU_DEVICE_ATTRIBUTE_*, its number. Their answers decide nothing: what
 * they promise is tried. */
#define CHECK_ATTRIBUTES(X)                                                                     \
    X("integrated", INTEGRATED, 18) \
    X("unified addressing", UNIFIED_ADDRESSING, 41) \
    X("preemption", COMPUTE_PREEMPTION_SUPPORTED, 90) \
    X("host pointers for registered memory", CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 91) \
    X("host register", HOST_REGISTER_SUPPORTED, 99) \
    X("virtual memory management", VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 102) \
    X("memory as file descriptors", HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 103) \
    X("read-only host register", READ_ONLY_HOST_REGISTER_SUPPORTED, 113) \
    X("64-bit stream operations", CAN_USE_64_BIT_STREAM_MEM_OPS, 122) \
    X("dma-buf", DMA_BUF_SUPPORTED, 124) \
    X("events between processes", IPC_EVENT_SUPPORTED, 125) \
    X("MPS", MPS_ENABLED, 133)

#define CHECK_FUNCTIONS(X)                                                                      \
    X(cuStreamBeginCapture_v2, (struct CUstream_st *stream, unsigned mode))                     \
    X(cuStreamEndCapture, (struct CUstream_st *stream, struct CUgraph_st **graph))              \
    X(cuThreadExchangeStreamCaptureMode, (unsigned *mode))                                      \
    X(cuGraphDestroy, (struct CUgraph_st *graph))

struct check_driver {
    struct bxi_cuda cu;
#define CHECK_FIELD(name, arguments) unsigned (*name) arguments;
    BXI_CU_KERNEL_FUNCTIONS(CHECK_FIELD)
    CHECK_FUNCTIONS(CHECK_FIELD)
#undef CHECK_FIELD
};

#endif

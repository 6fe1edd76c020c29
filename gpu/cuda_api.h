/* SPDX-License-Identifier: MIT */
/*
 * The part of the CUDA driver API that is used: names, numbers and prototypes, written from its documentation, so that
 * no toolkit is needed to build. One list, each entry REQUIRED or OPTIONAL, with the name that libcuda.so.1 exports.
 * That is not always the name that programs write: cuda.h turns cuMemAlloc into cuMemAlloc_v2, and the old name still
 * exists with 32-bit sizes. cuda_check.c compares the list with cuda.h where there is one; included after cuda.h, this
 * file uses its structs.
 */
#ifndef BXI_CUDA_API_H
#define BXI_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;
#ifndef __cuda_cuda_h__
struct CUuuid_st {
    char bytes[16];
};
struct CUipcMemHandle_st {
    char reserved[64];
};
struct CUmemLocation_st {
    unsigned type;
    int id;
};
struct CUmemAllocationProp_st {
    unsigned type, requestedHandleTypes;
    struct CUmemLocation_st location;
    void *win32HandleMetaData;
    struct {
        unsigned char compressionType, gpuDirectRDMACapable;
        unsigned short usage;
        unsigned char reserved[4];
    } allocFlags;
};
struct CUmemAccessDesc_st {
    struct CUmemLocation_st location;
    unsigned flags;
};
#endif

/* CUresult. */
#define BXI_CU_RESULTS(X)                                                                       \
    X(CUDA_ERROR_INVALID_VALUE, 1)                                                              \
    X(CUDA_ERROR_OUT_OF_MEMORY, 2)                                                              \
    X(CUDA_ERROR_NOT_INITIALIZED, 3)                                                            \
    X(CUDA_ERROR_DEVICE_UNAVAILABLE, 46)                                                        \
    X(CUDA_ERROR_NO_DEVICE, 100)                                                                \
    X(CUDA_ERROR_INVALID_DEVICE, 101)                                                           \
    X(CUDA_ERROR_INVALID_CONTEXT, 201)                                                          \
    X(CUDA_ERROR_MAP_FAILED, 205)                                                               \
    X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217)                                                  \
    X(CUDA_ERROR_OPERATING_SYSTEM, 304)                                                         \
    X(CUDA_ERROR_INVALID_HANDLE, 400)                                                           \
    X(CUDA_ERROR_NOT_FOUND, 500)                                                                \
    X(CUDA_ERROR_NOT_READY, 600)                                                                \
    X(CUDA_ERROR_TOO_MANY_PEERS, 711)                                                           \
    X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712)                                           \
    X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713)                                               \
    X(CUDA_ERROR_NOT_PERMITTED, 800)                                                            \
    X(CUDA_ERROR_NOT_SUPPORTED, 801)                                                            \
    X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803)

/* The other numbers: attributes, modes and flags. */
#define BXI_CU_NUMBERS(X)                                                                       \
    X(CU_DEVICE_ATTRIBUTE_INTEGRATED, 18)                                                       \
    X(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 20)                                                     \
    X(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 41)                                               \
    X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75)                                         \
    X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76)                                         \
    X(CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 90)                                     \
    X(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 91)                          \
    X(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 99)                                          \
    X(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 102)                             \
    X(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 103)                     \
    X(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 113)                               \
    X(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 122)                                   \
    X(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 124)                                               \
    X(CU_COMPUTEMODE_PROHIBITED, 2)                                                             \
    X(CU_COMPUTEMODE_EXCLUSIVE_PROCESS, 3)                                                      \
    X(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 2)                                                      \
    X(CU_POINTER_ATTRIBUTE_BUFFER_ID, 7)                                                        \
    X(CU_POINTER_ATTRIBUTE_IS_MANAGED, 8)                                                       \
    X(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 9)                                                   \
    X(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, 10)                                      \
    X(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, 17)                                                  \
    X(CU_MEMORYTYPE_DEVICE, 2)                                                                  \
    X(CU_MEM_ALLOCATION_TYPE_PINNED, 1)                                                         \
    X(CU_MEM_LOCATION_TYPE_DEVICE, 1)                                                           \
    X(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1)                                              \
    X(CU_MEM_ACCESS_FLAGS_PROT_READ, 1)                                                         \
    X(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 3)                                                    \
    X(CU_MEM_ALLOC_GRANULARITY_MINIMUM, 0)                                                      \
    X(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, 1)                                                    \
    X(CU_STREAM_NON_BLOCKING, 1)                                                                \
    X(CU_STREAM_CAPTURE_MODE_RELAXED, 2)                                                        \
    X(CU_STREAM_CAPTURE_STATUS_NONE, 0)                                                         \
    X(CU_EVENT_DISABLE_TIMING, 2)                                                               \
    X(CU_STREAM_WAIT_VALUE_GEQ, 0)                                                              \
    X(CU_STREAM_WRITE_VALUE_DEFAULT, 0)                                                         \
    X(CU_MEMHOSTALLOC_PORTABLE, 1)                                                              \
    X(CU_MEMHOSTREGISTER_PORTABLE, 1)                                                           \
    X(CU_MEMHOSTREGISTER_DEVICEMAP, 2)                                                          \
    X(CU_MEMHOSTREGISTER_READ_ONLY, 8)

#ifndef __cuda_cuda_h__
enum bxi_cu_result {
    CUDA_SUCCESS = 0,
#define BXI_CU_ENUM(name, value) name = value,
    BXI_CU_RESULTS(BXI_CU_ENUM)
};
enum bxi_cu_number { BXI_CU_NUMBERS(BXI_CU_ENUM) };
#undef BXI_CU_ENUM
#endif

#define BXI_CU_OLDEST 11040                     /* 11.4: the first with all that is required */

/* Told by the tests' driver of itself, exported by no other. */
#define BXI_CU_FAKE_SYMBOL "bx_fake_cuda"

#define BXI_CU_FUNCTIONS(REQUIRED, OPTIONAL)                                                    \
    REQUIRED(cuInit, (unsigned flags))                                                          \
    REQUIRED(cuDriverGetVersion, (int *version))                                                \
    REQUIRED(cuGetErrorName, (unsigned error, const char **text))                               \
    REQUIRED(cuGetErrorString, (unsigned error, const char **text))                             \
    REQUIRED(cuDeviceGetCount, (int *count))                                                    \
    REQUIRED(cuDeviceGet, (int *device, int ordinal))                                           \
    REQUIRED(cuDeviceGetName, (char *name, int length, int device))                             \
    REQUIRED(cuDeviceGetUuid_v2, (struct CUuuid_st *uuid, int device))                          \
    REQUIRED(cuDeviceGetAttribute, (int *value, unsigned attribute, int device))                \
    REQUIRED(cuDeviceTotalMem_v2, (size_t *bytes, int device))                                  \
    REQUIRED(cuDeviceCanAccessPeer, (int *can, int device, int peer))                           \
    REQUIRED(cuDevicePrimaryCtxRetain, (struct CUctx_st **context, int device))                 \
    REQUIRED(cuDevicePrimaryCtxRelease_v2, (int device))                                        \
    REQUIRED(cuCtxPushCurrent_v2, (struct CUctx_st *context))                                   \
    REQUIRED(cuCtxPopCurrent_v2, (struct CUctx_st **context))                                   \
    REQUIRED(cuMemGetInfo_v2, (size_t *free_bytes, size_t *total_bytes))                        \
    REQUIRED(cuMemAlloc_v2, (unsigned long long *address, size_t bytes))                        \
    REQUIRED(cuMemFree_v2, (unsigned long long address))                                        \
    REQUIRED(cuMemGetAddressRange_v2, (unsigned long long *base, size_t *bytes, unsigned long long address)) \
    REQUIRED(cuPointerGetAttribute, (void *data, unsigned attribute, unsigned long long address)) \
    REQUIRED(cuMemHostAlloc, (void **memory, size_t bytes, unsigned flags))                     \
    REQUIRED(cuMemFreeHost, (void *memory))                                                     \
    REQUIRED(cuMemHostRegister_v2, (void *memory, size_t bytes, unsigned flags))                \
    REQUIRED(cuMemHostUnregister, (void *memory))                                               \
    REQUIRED(cuMemHostGetDevicePointer_v2, (unsigned long long *address, void *memory, unsigned flags)) \
    REQUIRED(cuMemcpyAsync, (unsigned long long to, unsigned long long from, size_t bytes,      \
                             struct CUstream_st *stream))                                       \
    REQUIRED(cuMemcpyHtoDAsync_v2, (unsigned long long to, const void *from, size_t bytes,      \
                                    struct CUstream_st *stream))                                \
    REQUIRED(cuMemcpyDtoHAsync_v2, (void *to, unsigned long long from, size_t bytes,            \
                                    struct CUstream_st *stream))                                \
    REQUIRED(cuMemsetD8Async, (unsigned long long to, unsigned char value, size_t bytes,        \
                               struct CUstream_st *stream))                                     \
    REQUIRED(cuStreamCreate, (struct CUstream_st **stream, unsigned flags))                     \
    REQUIRED(cuStreamDestroy_v2, (struct CUstream_st *stream))                                  \
    REQUIRED(cuStreamQuery, (struct CUstream_st *stream))                                       \
    REQUIRED(cuStreamSynchronize, (struct CUstream_st *stream))                                 \
    REQUIRED(cuStreamIsCapturing, (struct CUstream_st *stream, unsigned *status))               \
    REQUIRED(cuThreadExchangeStreamCaptureMode, (unsigned *mode))                               \
    REQUIRED(cuStreamWaitEvent, (struct CUstream_st *stream, struct CUevent_st *event, unsigned flags)) \
    REQUIRED(cuLaunchHostFunc, (struct CUstream_st *stream, void (*call)(void *context), void *context)) \
    OPTIONAL(cuStreamWriteValue64_v2, (struct CUstream_st *stream, unsigned long long address,  \
                                       uint64_t value, unsigned flags))                         \
    OPTIONAL(cuStreamWaitValue64_v2, (struct CUstream_st *stream, unsigned long long address,   \
                                      uint64_t value, unsigned flags))                          \
    REQUIRED(cuEventCreate, (struct CUevent_st **event, unsigned flags))                        \
    REQUIRED(cuEventDestroy_v2, (struct CUevent_st *event))                                     \
    REQUIRED(cuEventRecord, (struct CUevent_st *event, struct CUstream_st *stream))             \
    REQUIRED(cuEventSynchronize, (struct CUevent_st *event))                                    \
    REQUIRED(cuIpcGetMemHandle, (struct CUipcMemHandle_st *handle, unsigned long long address)) \
    REQUIRED(cuIpcOpenMemHandle_v2, (unsigned long long *address, struct CUipcMemHandle_st handle, \
                                     unsigned flags))                                           \
    REQUIRED(cuIpcCloseMemHandle, (unsigned long long address))                                 \
    OPTIONAL(cuMemGetAllocationGranularity, (size_t *granularity, const struct CUmemAllocationProp_st *prop, \
                                             unsigned option))                                  \
    OPTIONAL(cuMemCreate, (unsigned long long *handle, size_t bytes, const struct CUmemAllocationProp_st *prop, \
                           unsigned long long flags))                                           \
    OPTIONAL(cuMemRelease, (unsigned long long handle))                                         \
    OPTIONAL(cuMemAddressReserve, (unsigned long long *address, size_t bytes, size_t alignment, \
                                   unsigned long long wanted, unsigned long long flags))        \
    OPTIONAL(cuMemAddressFree, (unsigned long long address, size_t bytes))                      \
    OPTIONAL(cuMemMap, (unsigned long long address, size_t bytes, size_t offset, unsigned long long handle, \
                        unsigned long long flags))                                              \
    OPTIONAL(cuMemUnmap, (unsigned long long address, size_t bytes))                            \
    OPTIONAL(cuMemSetAccess, (unsigned long long address, size_t bytes, const struct CUmemAccessDesc_st *access, \
                              size_t count))                                                    \
    OPTIONAL(cuMemExportToShareableHandle, (void *out, unsigned long long handle, unsigned type, \
                                            unsigned long long flags))                          \
    OPTIONAL(cuMemImportFromShareableHandle, (unsigned long long *handle, void *shared, unsigned type)) \
    OPTIONAL(cuMemRetainAllocationHandle, (unsigned long long *handle, void *address))          \
    OPTIONAL(cuMemGetAllocationPropertiesFromHandle, (struct CUmemAllocationProp_st *prop, unsigned long long handle)) \
    REQUIRED(cuModuleLoadData, (struct CUmod_st **module, const void *image))                   \
    REQUIRED(cuModuleUnload, (struct CUmod_st *module))                                         \
    REQUIRED(cuModuleGetFunction, (struct CUfunc_st **function, struct CUmod_st *module, const char *name)) \
    REQUIRED(cuLaunchKernel, (struct CUfunc_st *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, \
                              unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,   \
                              struct CUstream_st *stream, void **parameters, void **extra))

/* The functions of the loaded driver; an optional one may be NULL. */
struct bxi_cuda {
    void *library;
    const char *missing;                        /* a required function that the driver lacks; NULL: it has all */
#define BXI_CU_FIELD(name, arguments) unsigned (*name) arguments;
    BXI_CU_FUNCTIONS(BXI_CU_FIELD, BXI_CU_FIELD)
#undef BXI_CU_FIELD
};

/* Texts for the driver's results. Inline, because gpu/ and lib/nn are in two libraries; each has its own codes and its
 * own way to set a sentence. */

static inline const char *bxi_cu_name(const struct bxi_cuda *cu, unsigned result)
{
    const char *name = NULL;

    return cu->cuGetErrorName(result, &name) == CUDA_SUCCESS && name != NULL ? name : "an unknown CUresult";
}

static inline const char *bxi_cu_text(const struct bxi_cuda *cu, unsigned result)
{
    const char *text = NULL;

    return cu->cuGetErrorString(result, &text) == CUDA_SUCCESS && text != NULL ? text : "no description";
}

/* Why cuInit failed and what to do; NULL: only the result's name is known. */
static inline const char *bxi_cu_start_advice(unsigned result)
{
    switch (result) {
    case CUDA_ERROR_NO_DEVICE:
        return "the driver sees no device: look at nvidia-smi, at CUDA_VISIBLE_DEVICES, and in a container at whether "
               "it was started with --gpus";
    case CUDA_ERROR_NOT_INITIALIZED:
        return "CUDA was started before this process was forked, and does not survive it: fork the workers first";
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
        return "libcuda.so.1 and the kernel's driver are of different versions: restart after the update, or mount the "
               "host's libcuda.so.1 into the container";
    default:
        return NULL;
    }
}

/* Why a device in this compute mode was refused and what to do; follows its name in a sentence. NULL: not the mode. */
static inline const char *bxi_cu_mode_advice(int mode)
{
    if (mode == CU_COMPUTEMODE_EXCLUSIVE_PROCESS)
        return "is in exclusive-process mode and another process has it: \"nvidia-smi -c DEFAULT\" lets several in, or "
               "run the MPS daemon";
    return mode == CU_COMPUTEMODE_PROHIBITED ? "is in prohibited mode: \"nvidia-smi -c DEFAULT\" opens it" : NULL;
}

#endif

/* SPDX-License-Identifier: MIT */
/*
 * NVRTC, cuBLAS and cuDNN, which Boxcar's networks use on a GPU: each is loaded and does one operation on small arrays
 * of floats, with a known result. They are loaded as the networks load them (lib/nn/cuda_load.c). A library that is not
 * installed is absent, which is no failure.
 */
#include "side.h"

#include "boxcar.h"
#include "nn/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLOATS 4
#define CODE_BYTES ((size_t)1 << 20)

/* As struct bxk_bias and its kernel in lib/nn: the tests' driver runs those by name. */
static const char kernel_text[] =
    "struct bxk_bias { float *y; const float *bias; unsigned long long count; unsigned columns; };\n"
    "extern \"C\" __global__ void bxk_bias(struct bxk_bias a)\n"
    "{\n"
    "    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;\n"
    "\n"
    "    if (i < a.count)\n"
    "        a.y[i] += a.bias[i % a.columns];\n"
    "}\n";

/* ---- Loading --------------------------------------------------------------------------------- */

/* Skips the question unless a loader of lib/nn has found its library. */
static void need_library(struct check_side *side, int rc, const char *what)
{
    if (rc < 0)
        check_skip(side, "%s is not found: %.250s", what, bx_error_text());
}

/* Opens the device, and the driver for the loaders of lib/nn. */
static struct bx_cuda open_cuda(struct check_side *side)
{
    struct bx_cuda cuda = { .stream = NULL };

    check_open(side);
    need_library(side, bxi_cuda_load_driver(&cuda.driver), "the driver");
    return cuda;
}

/* ---- Arrays ---------------------------------------------------------------------------------- */

struct arrays {
    unsigned long long a, b, c;         /* a = 1 2 3 4, b = 10 20 30 40, c = 100 200 300 400 */
    float *host;                        /* pinned */
    struct CUstream_st *stream;
};

static struct arrays make_arrays(struct check_side *side)
{
    struct arrays arrays = { .stream = check_stream(side) };
    unsigned long long at = check_alloc(side, CHECK_PAGE_BYTES);

    arrays.host = check_pinned(side, CHECK_PAGE_BYTES, NULL);
    arrays.a = at;
    arrays.b = at + 256;
    arrays.c = at + 512;
    for (int i = 0; i < FLOATS; i++) {
        arrays.host[i] = (float)(i + 1);
        arrays.host[64 + i] = (float)(10 * (i + 1));
        arrays.host[128 + i] = (float)(100 * (i + 1));
    }
    check_need(side, side->cu->cuMemcpyHtoDAsync_v2(at, arrays.host, 768, arrays.stream), "copying to the device");
    return arrays;
}

/* Compares c with what is expected and answers. */
static void answer_result(struct check_side *side, const char *key, const struct arrays *arrays, const float *expected,
                          const char *what)
{
    bool is_right = true;

    check_need(side, side->cu->cuMemcpyDtoHAsync_v2(arrays->host, arrays->c, FLOATS * sizeof(float), arrays->stream),
               "copying from the device");
    if (!check_idles(side, arrays->stream, CHECK_RELEASE_MS)) {
        check_answer(side, key, CHECK_BAD, "%s: its operation did not end.", what);
        return;
    }
    for (int i = 0; i < FLOATS; i++)
        is_right = is_right && arrays->host[i] >= expected[i] && arrays->host[i] <= expected[i];
    check_answer(side, key, is_right ? CHECK_GOOD : CHECK_BAD, "%s: its operation ran, and its result is %s.", what,
                 is_right ? "right" : "wrong");
}

/* ---- NVRTC ----------------------------------------------------------------------------------- */

/* Compiles for the device, or for the oldest of its generation where NVRTC does not know it. Gives up with the log. */
static char *compile(struct check_side *side, const struct bxi_nvrtc *nvrtc)
{
    static char code[CODE_BYTES], log[2048];
    struct _nvrtcProgram *program = NULL;
    int major = 0, minor = 0, result = -1, device = 0;
    size_t bytes = 0;
    char option[40];
    const char *const options[] = { option };

    check_need(side, side->cu->cuDeviceGet(&device, side->device), "cuDeviceGet");
    (void)side->cu->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    (void)side->cu->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    for (int attempt = 0; attempt < 2 && result != 0; attempt++) {
        snprintf(option, sizeof(option), "--gpu-architecture=sm_%d", 10 * major + (attempt == 0 ? minor : 0));
        if (nvrtc->nvrtcCreateProgram(&program, kernel_text, "gpucheck.cu", 0, NULL, NULL) != 0)
            check_give_up(side, "nvrtcCreateProgram failed");
        result = nvrtc->nvrtcCompileProgram(program, 1, options);
    }
    if (result != 0) {
        if (nvrtc->nvrtcGetProgramLogSize(program, &bytes) == 0 && bytes <= sizeof(log))
            (void)nvrtc->nvrtcGetProgramLog(program, log);
        log[strcspn(log, "\n")] = '\0';
        check_answer(side, "nvrtc", CHECK_BAD, "NVRTC cannot compile (%s): %.200s.",
                     nvrtc->nvrtcGetErrorString(result), log);
        return NULL;
    }
    if (nvrtc->nvrtcGetCUBINSize(program, &bytes) != 0 || bytes > sizeof(code) ||
        nvrtc->nvrtcGetCUBIN(program, code) != 0)
        check_give_up(side, "NVRTC gave no code");
    return code;
}

static void nvrtc_owner(struct check_side *side)
{
    static const float expected[FLOATS] = { 101, 202, 303, 404 };       /* c += a */
    int major = 0, minor = 0;
    struct CUmod_st *module = NULL;
    struct CUfunc_st *function = NULL;
    struct bx_cuda cuda = open_cuda(side);
    const struct bxi_nvrtc *nvrtc = &cuda.nvrtc;
    struct arrays arrays;
    struct bxk_bias argument;
    void *parameters[] = { &argument };
    unsigned result;
    char what[32];
    char *code;

    need_library(side, bxi_cuda_load_nvrtc(&cuda), "NVRTC");
    arrays = make_arrays(side);
    code = compile(side, nvrtc);
    if (code == NULL)
        return;
    (void)nvrtc->nvrtcVersion(&major, &minor);
    snprintf(what, sizeof(what), "NVRTC %d.%d", major, minor);
    result = side->driver.cuModuleLoadData(&module, code);
    if (result != CUDA_SUCCESS) {
        check_answer(side, "nvrtc", CHECK_BAD, "%s compiled a kernel, but the driver does not load it: %s.", what,
                     check_name(side, result));
        return;
    }
    check_need(side, side->driver.cuModuleGetFunction(&function, module, "bxk_bias"), "finding the kernel");
    argument = (struct bxk_bias){
        .y = (float *)(uintptr_t)arrays.c, .bias = (const float *)(uintptr_t)arrays.a, .count = FLOATS,
        .columns = FLOATS,
    };
    check_need(side, side->driver.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, arrays.stream, parameters, NULL),
               "starting the kernel");
    answer_result(side, "nvrtc", &arrays, expected, what);
}

/* ---- cuBLAS ---------------------------------------------------------------------------------- */

/* Answers and ends unless the status is 0. */
static void need_status(struct check_side *side, int status, const char *what)
{
    if (status == 0)
        return;
    check_answer(side, side->question->name, CHECK_BAD, "%s failed with status %d.", what, status);
    check_give_up(side, "%s failed", what);
}

static void cublas_owner(struct check_side *side)
{
    /* By columns: a = [1 3; 2 4], b = [10 30; 20 40]. */
    static const float expected[FLOATS] = { 70, 100, 150, 220 };
    const float one = 1.0f, zero = 0.0f;
    struct cublasContext *handle = NULL;
    struct bx_cuda cuda = open_cuda(side);
    const struct bxi_cublas *cublas = &cuda.cublas;
    struct arrays arrays;
    char what[32];
    int version = 0, rc = bxi_cuda_load_networks(&cuda);

    need_library(side, cublas->cublasSgemm_v2 != NULL ? 0 : rc, "cuBLAS");
    arrays = make_arrays(side);
    need_status(side, cublas->cublasCreate_v2(&handle), "cublasCreate");
    (void)cublas->cublasGetVersion_v2(handle, &version);
    snprintf(what, sizeof(what), "cuBLAS %d", version);
    need_status(side, cublas->cublasSetStream_v2(handle, arrays.stream), "cublasSetStream");
    need_status(side, cublas->cublasSgemm_v2(handle, BXI_CUBLAS_OP_N, BXI_CUBLAS_OP_N, 2, 2, 2, &one,
                                            (const float *)(uintptr_t)arrays.a, 2,
                                            (const float *)(uintptr_t)arrays.b, 2, &zero,
                                            (float *)(uintptr_t)arrays.c, 2), "cublasSgemm");
    answer_result(side, "cublas", &arrays, expected, what);
}

/* ---- cuDNN ----------------------------------------------------------------------------------- */

static void cudnn_owner(struct check_side *side)
{
    static const float expected[FLOATS] = { 201, 402, 603, 804 };       /* c = a + 2 c */
    const float one = 1.0f, two = 2.0f;
    struct cudnnTensorStruct *shape = NULL;
    struct cudnnContext *handle = NULL;
    struct bx_cuda cuda = open_cuda(side);
    const struct bxi_cudnn *cudnn = &cuda.cudnn;
    struct arrays arrays;
    char what[32];

    (void)bxi_cuda_load_nvrtc(&cuda);           /* cuDNN opens it by name, and then finds the loaded one */
    need_library(side, bxi_cuda_load_networks(&cuda), "cuDNN");
    arrays = make_arrays(side);
    snprintf(what, sizeof(what), "cuDNN %zu", cudnn->cudnnGetVersion());
    need_status(side, cudnn->cudnnCreate(&handle), "cudnnCreate");
    need_status(side, cudnn->cudnnSetStream(handle, arrays.stream), "cudnnSetStream");
    need_status(side, cudnn->cudnnCreateTensorDescriptor(&shape), "cudnnCreateTensorDescriptor");
    need_status(side, cudnn->cudnnSetTensor4dDescriptor(shape, BXI_CUDNN_NCHW, BXI_CUDNN_FLOAT, 1, 1, 1, FLOATS),
                "cudnnSetTensor4dDescriptor");
    need_status(side, cudnn->cudnnAddTensor(handle, &one, shape, (const void *)(uintptr_t)arrays.a, &two, shape,
                                           (void *)(uintptr_t)arrays.c), "cudnnAddTensor");
    answer_result(side, "cudnn", &arrays, expected, what);
}

#define NO_NETWORKS "Networks cannot use the GPU; tensors are not affected."

const struct check_question check_nvrtc = {
    .name = "nvrtc", .limit_ms = 12000, .owner = nvrtc_owner,
    .lines = { { "nvrtc", "Boxcar compiles its kernels with it.", NO_NETWORKS }, { NULL, NULL, NULL } },
};

const struct check_question check_cublas = {
    .name = "cublas", .limit_ms = 12000, .owner = cublas_owner,
    .lines = { { "cublas", "Networks multiply with it.", NO_NETWORKS }, { NULL, NULL, NULL } },
};

const struct check_question check_cudnn = {
    .name = "cudnn", .limit_ms = 12000, .owner = cudnn_owner,
    .lines = {
        { "cudnn", "Networks use it for convolution, normalisation and pooling.", NO_NETWORKS },
        { NULL, NULL, NULL },
    },
};

/* SPDX-License-Identifier: MIT */
/*
 * tests/fake_cuda as NVRTC, cuBLAS and cuDNN, against small cases computed by hand from their documentation: tests with
 * the fakes are only as good as the fakes. The driver's part is tested through gpu/, its
 * switches in test_fake_switches.c.
 */
#include "fake_library.h"
#include "tests/harness/harness.h"
#include "nn/kernels.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition) cr_assert(condition, "%s", #condition)
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static struct bxi_cuda driver;
static struct bxi_nvrtc nvrtc;
static struct bxi_cublas blas;
static struct bxi_cudnn dnn;
static struct cublasContext *blas_handle;
static struct cudnnContext *dnn_handle;
static struct CUstream_st *stream;
static char machine[64];
static const float zero = 0.0f, one = 1.0f;

/* ---- The world ------------------------------------------------------------------------------- */

static void load(void)
{
    void *library = fake_load(&driver);

#define TAKE_NVRTC(type, name, arguments) fake_take(library, #name, &nvrtc.name);
#define TAKE_BLAS(type, name, arguments) fake_take(library, #name, &blas.name);
#define TAKE_DNN(type, name, arguments) fake_take(library, #name, &dnn.name);
    BXI_NVRTC_FUNCTIONS(TAKE_NVRTC)
    BXI_CUBLAS_FUNCTIONS(TAKE_BLAS)
    BXI_CUDNN_FUNCTIONS(TAKE_DNN)
}

static void begin(void)
{
    struct CUctx_st *context = NULL;

    harness_name(machine, sizeof machine, "/dev/shm/bx-fake-cuda-");
    setenv("FAKE_CUDA_MACHINE", machine, 1);
    setenv("FAKE_CUDA_DIRTY", "1", 1);
    load();
    CHECK(driver.cuInit(0) == CUDA_SUCCESS);
    CHECK(blas.cublasCreate_v2(&blas_handle) == 1);
    CHECK(dnn.cudnnCreate(&dnn_handle) == 1);
    CHECK(driver.cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    CHECK(driver.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS);
    CHECK(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    CHECK(blas.cublasCreate_v2(&blas_handle) == 0);
    CHECK(blas.cublasSetStream_v2(blas_handle, stream) == 0);
    CHECK(dnn.cudnnCreate(&dnn_handle) == 0);
    CHECK(dnn.cudnnSetStream(dnn_handle, stream) == 0);
}

static void end(void)
{
    unlink(machine);
}

TestSuite(fake_cuda, .init = begin, .fini = end, .timeout = 60);

/* Memory of the device; with values NULL it is not initialised. */
static float *array(size_t count, const float *values)
{
    unsigned long long address = 0;

    CHECK(driver.cuMemAlloc_v2(&address, count * sizeof(float)) == CUDA_SUCCESS);
    if (values != NULL)
        CHECK(driver.cuMemcpyHtoDAsync_v2(address, values, count * sizeof(float), stream) == CUDA_SUCCESS);
    return (float *)(uintptr_t)address;
}
#define ARRAY(...) array(COUNT(((float[]){ __VA_ARGS__ })), (float[]){ __VA_ARGS__ })

static void holds(const char *what, const float *device, size_t count, const float *expected)
{
    float *values = malloc(count * sizeof(float));

    CHECK(driver.cuMemcpyDtoHAsync_v2(values, (uintptr_t)device, count * sizeof(float), stream) == CUDA_SUCCESS);
    for (size_t i = 0; i < count; i++)
        cr_assert(fabsf(values[i] - expected[i]) <= 1e-6f * fabsf(expected[i]), "%s[%zu] is %.9g, not %.9g", what, i,
                  (double)values[i], (double)expected[i]);
    free(values);
}
#define HOLDS(device, ...) holds(#device, device, COUNT(((float[]){ __VA_ARGS__ })), (float[]){ __VA_ARGS__ })

static float first_of(const float *device)
{
    float value = 0.0f;

    CHECK(driver.cuMemcpyDtoHAsync_v2(&value, (uintptr_t)device, sizeof value, stream) == CUDA_SUCCESS);
    return value;
}

Test(fake_cuda, gives_memory_that_is_not_zero)
{
    CHECK(isnan(first_of(array(5, NULL))));
}

/* ---- NVRTC and kernels ----------------------------------------------------------------------- */

static const char text[] = "BXK_KERNEL(bxk_sum)\n{\n}\nBXK_KERNEL(bxk_nonsense)\n{\n}\n";

/* The result of compiling `source` for an architecture; the caller owns the cubin, if requested and made. */
static int compile(const char *source, const char *option, char **cubin, char log[256])
{
    const char *const options[] = { option, "--fmad=false" };
    struct _nvrtcProgram *program = NULL;
    size_t bytes = 0;
    int result;

    CHECK(nvrtc.nvrtcCreateProgram(&program, source, "a.cu", 0, NULL, NULL) == 0);
    result = nvrtc.nvrtcCompileProgram(program, 2, options);
    CHECK(nvrtc.nvrtcGetProgramLogSize(program, &bytes) == 0 && bytes <= 256);
    CHECK(nvrtc.nvrtcGetProgramLog(program, log) == 0);
    if (cubin != NULL) {
        CHECK(result == 0 && nvrtc.nvrtcGetCUBINSize(program, &bytes) == 0);
        *cubin = malloc(bytes);
        CHECK(nvrtc.nvrtcGetCUBIN(program, *cubin) == 0);
    }
    CHECK(nvrtc.nvrtcDestroyProgram(&program) == 0 && program == NULL);
    return result;
}

Test(fake_cuda, nvrtc_refuses_unknown_options_and_architectures)
{
    char log[256];

    CHECK(compile(text, "--gpu-architecture=sm_90", NULL, log) == 0);
    cr_assert_str_eq(log, "");
    CHECK(compile(text, "--gpu-architecture=sm_100", NULL, log) == 5);
    CHECK(strstr(log, "invalid value for --gpu-architecture") != NULL);
    CHECK(compile(text, "--fast", NULL, log) == 5);
    CHECK(compile("void f()\n{\n", "--gpu-architecture=sm_90", NULL, log) == 6);
    CHECK(strstr(log, "a.cu(3): error") != NULL);
    setenv("FAKE_NVRTC_NEWEST", "80", 1);
    CHECK(compile(text, "--gpu-architecture=sm_90", NULL, log) == 5);
}

Test(fake_cuda, loads_a_cubin_of_this_architecture_and_finds_what_its_text_names)
{
    struct CUfunc_st *function = NULL;
    struct CUmod_st *module = NULL;
    char *cubin, log[256];

    compile(text, "--gpu-architecture=sm_80", &cubin, log);
    CHECK(driver.cuModuleLoadData(&module, cubin) == 209);
    CHECK(driver.cuModuleLoadData(&module, text) == 200);
    compile(text, "--gpu-architecture=sm_90", &cubin, log);
    CHECK(driver.cuModuleLoadData(&module, cubin) == CUDA_SUCCESS);
    CHECK(driver.cuModuleGetFunction(&function, module, "bxk_sum") == CUDA_SUCCESS);
    CHECK(driver.cuModuleGetFunction(&function, module, "bxk_nonsense") == 500);
    CHECK(driver.cuModuleGetFunction(&function, module, "bxk_bias") == 500);
    CHECK(driver.cuModuleUnload(module) == CUDA_SUCCESS);
}

static struct CUfunc_st *kernel_of(const char *name)
{
    struct CUfunc_st *function = NULL;
    struct CUmod_st *module = NULL;
    char *cubin, log[256];

    compile(text, "--gpu-architecture=sm_90", &cubin, log);
    CHECK(driver.cuModuleLoadData(&module, cubin) == CUDA_SUCCESS);
    CHECK(driver.cuModuleGetFunction(&function, module, name) == CUDA_SUCCESS);
    return function;
}

static unsigned launch(struct CUfunc_st *function, unsigned grid, unsigned block, void *argument)
{
    void *parameters[] = { argument };

    return driver.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, argument != NULL ? parameters : NULL,
                                 NULL);
}

Test(fake_cuda, runs_every_thread_of_a_grid)
{
    enum { ELEMENTS = 1000 };
    struct CUfunc_st *function = kernel_of("bxk_sum");
    float a[ELEMENTS], b[ELEMENTS], sum[ELEMENTS];
    struct bxk_sum argument = { .count = ELEMENTS };

    for (int i = 0; i < ELEMENTS; i++) {
        a[i] = (float)i;
        b[i] = i % 2 == 0 ? 1.0f : -2000.0f;
        sum[i] = i % 2 == 0 ? (float)(i + 1) : 0.0f;
    }
    argument.relu = 1;
    argument.to = array(ELEMENTS, NULL);
    argument.a = array(ELEMENTS, a);
    argument.b = array(ELEMENTS, b);
    CHECK(launch(function, (ELEMENTS + 127) / 128, 128, &argument) == CUDA_SUCCESS);
    holds("sum", argument.to, ELEMENTS, sum);
    CHECK(launch(function, 0, 128, &argument) == CUDA_ERROR_INVALID_VALUE);
    CHECK(launch(function, 1, 0, &argument) == CUDA_ERROR_INVALID_VALUE);
    CHECK(launch(function, 1, 1025, &argument) == CUDA_ERROR_INVALID_VALUE);
    CHECK(launch(function, 1, 128, NULL) == CUDA_ERROR_INVALID_VALUE);
    CHECK(launch(NULL, 1, 128, &argument) == CUDA_ERROR_INVALID_HANDLE);
}

Test(fake_cuda, handles_belong_to_their_context)
{
    struct CUctx_st *context = NULL;
    int version;

    CHECK(blas.cublasGetVersion_v2(blas_handle, &version) == 0 && version / 10000 == 12);
    CHECK(driver.cuDevicePrimaryCtxRetain(&context, 1) == CUDA_SUCCESS);
    CHECK(driver.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS);
    CHECK(blas.cublasSetStream_v2(blas_handle, stream) == 1);
    CHECK(dnn.cudnnSetStream(dnn_handle, stream) == 3);
    CHECK(driver.cuCtxPopCurrent_v2(&context) == CUDA_SUCCESS);
    CHECK(blas.cublasDestroy_v2(blas_handle) == 0);
    CHECK(dnn.cudnnDestroy(dnn_handle) == 0);
}

/* ---- cuBLAS ---------------------------------------------------------------------------------- */

/* c = alpha * a * b + beta * c, all with their smallest leading dimensions; a and b not transposed. */
static int multiply(const int mnk[3], int ta, int tb, const float *ab[2], const float blend[2], float *c)
{
    return blas.cublasSgemm_v2(blas_handle, ta, tb, mnk[0], mnk[1], mnk[2], &blend[0], ab[0],
                               ta == BXI_CUBLAS_OP_T ? mnk[2] : mnk[0], ab[1],
                               tb == BXI_CUBLAS_OP_T ? mnk[1] : mnk[2], &blend[1], c, mnk[0]);
}

Test(fake_cuda, multiplies_column_major_matrices)
{
    static const int mnk[3] = { 2, 2, 3 };
    static const float plain[2] = { 1.0f, 0.0f }, blend[2] = { 2.0f, -1.0f };
    /* (1 2 3; 4 5 6) and (7 8; 9 10; 11 12): their product is (58 64; 139 154). */
    const float *a = ARRAY(1, 4, 2, 5, 3, 6), *b = ARRAY(7, 9, 11, 8, 10, 12);
    const float *a_rows = ARRAY(1, 2, 3, 4, 5, 6), *b_rows = ARRAY(7, 8, 9, 10, 11, 12);
    float *c = array(4, NULL);

    CHECK(multiply(mnk, BXI_CUBLAS_OP_N, BXI_CUBLAS_OP_N, (const float *[]){ a, b }, plain, c) == 0);
    HOLDS(c, 58, 139, 64, 154);
    CHECK(multiply(mnk, BXI_CUBLAS_OP_T, BXI_CUBLAS_OP_N, (const float *[]){ a_rows, b }, blend, c) == 0);
    HOLDS(c, 58, 139, 64, 154);
    CHECK(multiply(mnk, BXI_CUBLAS_OP_N, BXI_CUBLAS_OP_T, (const float *[]){ a, b_rows }, blend, c) == 0);
    HOLDS(c, 58, 139, 64, 154);
    c = array(4, NULL);
    CHECK(multiply(mnk, BXI_CUBLAS_OP_T, BXI_CUBLAS_OP_T, (const float *[]){ a_rows, b_rows }, plain, c) == 0);
    HOLDS(c, 58, 139, 64, 154);
}

Test(fake_cuda, multiplies_parts_of_larger_matrices)
{
    const float *a = ARRAY(1, 2, 99, 3, 4, 99), *b = ARRAY(5, 6, 99, 7, 8, 99);
    float *c = ARRAY(7, 7, 7, 7, 7, 7, 7);

    CHECK(blas.cublasSgemm_v2(blas_handle, BXI_CUBLAS_OP_N, BXI_CUBLAS_OP_N, 2, 2, 2, &one, a, 3, b, 3, &zero, c + 1,
                              3) == 0);
    HOLDS(c, 7, 23, 34, 7, 31, 46, 7);
}

Test(fake_cuda, multiplies_matrices_larger_than_its_panels)
{
    enum { ROWS = 7, COLUMNS = 530, INNER = 300 };
    static const int mnk[3] = { ROWS, COLUMNS, INNER };
    static const float plain[2] = { 1.0f, 0.0f };
    static float a[ROWS * INNER], b[INNER * COLUMNS], c[ROWS * COLUMNS];
    float *product = array(ROWS * COLUMNS, NULL);

    for (int i = 0; i < ROWS * INNER; i++)
        a[i] = (float)(i % 11 - 5);
    for (int i = 0; i < INNER * COLUMNS; i++)
        b[i] = (float)(i % 13 - 6);
    for (int j = 0; j < COLUMNS; j++)
        for (int i = 0; i < ROWS; i++)
            for (int k = 0; k < INNER; k++)
                c[j * ROWS + i] += a[k * ROWS + i] * b[j * INNER + k];
    CHECK(multiply(mnk, BXI_CUBLAS_OP_N, BXI_CUBLAS_OP_N,
                   (const float *[]){ array(ROWS * INNER, a), array(INNER * COLUMNS, b) }, plain, product) == 0);
    holds("product", product, ROWS * COLUMNS, c);
}

Test(fake_cuda, refuses_a_product_that_cublas_refuses)
{
    static const int mnk[3] = { 2, 2, 3 }, negative[3] = { 2, -1, 3 }, nothing[3] = { 0, 2, 3 };
    static const float plain[2] = { 1.0f, 0.0f };
    float *a = array(6, NULL), *b = array(6, NULL), *c = array(4, NULL), host[6] = { 0.0f };
    struct CUctx_st *context = NULL;

    CHECK(multiply(negative, 0, 0, (const float *[]){ a, b }, plain, c) == 7);
    CHECK(multiply(mnk, 3, 0, (const float *[]){ a, b }, plain, c) == 7);
    CHECK(blas.cublasSgemm_v2(blas_handle, 0, 0, 2, 2, 3, &one, a, 1, b, 3, &zero, c, 2) == 7);
    CHECK(blas.cublasSgemm_v2(blas_handle, 0, 0, 2, 2, 3, &one, a, 2, b, 2, &zero, c, 2) == 7);
    CHECK(blas.cublasSgemm_v2(blas_handle, 0, 0, 2, 2, 3, &one, a, 2, b, 3, &zero, c, 1) == 7);
    CHECK(multiply(mnk, 0, 0, (const float *[]){ host, b }, plain, c) == 13);
    CHECK(blas.cublasSgemm_v2(blas_handle, 0, 0, 2, 2, 3, &one, a, 4, b, 3, &zero, c, 2) == 13);
    CHECK(multiply(nothing, 0, 0, (const float *[]){ host, b }, plain, c) == 7);
    CHECK(blas.cublasSgemm_v2(blas_handle, 0, 0, 0, 2, 3, &one, a, 1, b, 3, &zero, c, 1) == 0);
    CHECK(driver.cuCtxPopCurrent_v2(&context) == CUDA_SUCCESS);
    CHECK(multiply(mnk, 0, 0, (const float *[]){ a, b }, plain, c) == 1);
}

Test(fake_cuda, multiplies_on_the_stream_and_rounds_for_tf32)
{
    static const int mnk[3] = { 1, 1, 1 };
    static const float plain[2] = { 1.0f, 0.0f };
    unsigned long long *word = (unsigned long long *)array(2, NULL);
    const float *ab[2] = { ARRAY(1.0001f), ARRAY(1.0f) };
    float *c = array(1, NULL);
    struct CUstream_st *other = NULL;
    float value = 0.0f;

    CHECK(driver.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    CHECK(driver.cuMemsetD8Async((uintptr_t)word, 0, 8, stream) == CUDA_SUCCESS);
    CHECK(driver.cuStreamSynchronize(stream) == CUDA_SUCCESS);      /* else it may come after the write of `other` */
    CHECK(driver.cuStreamWaitValue64_v2(stream, (uintptr_t)word, 1, CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS);
    CHECK(multiply(mnk, 0, 0, ab, plain, c) == 0);
    CHECK(driver.cuMemcpyDtoHAsync_v2(&value, (uintptr_t)c, sizeof value, other) == CUDA_SUCCESS);
    CHECK(isnan(value));
    CHECK(driver.cuStreamSynchronize(other) == CUDA_SUCCESS);
    CHECK(driver.cuStreamWriteValue64_v2(other, (uintptr_t)word, 1, 0) == CUDA_SUCCESS);
    HOLDS(c, 1.0001f);
    CHECK(blas.cublasSetMathMode(blas_handle, 3) == 0);
    CHECK(multiply(mnk, 0, 0, ab, plain, c) == 0);
    CHECK(first_of(c) == 1.0f);
}

/* ---- cuDNN: descriptors ---------------------------------------------------------------------- */

static struct cudnnTensorStruct *tensor(int n, int c, int h, int w)
{
    struct cudnnTensorStruct *made = NULL;

    CHECK(dnn.cudnnCreateTensorDescriptor(&made) == 0);
    CHECK(dnn.cudnnSetTensor4dDescriptor(made, BXI_CUDNN_NCHW, BXI_CUDNN_FLOAT, n, c, h, w) == 0);
    return made;
}

static struct cudnnFilterStruct *filter(int k, int c, int h, int w)
{
    struct cudnnFilterStruct *made = NULL;

    CHECK(dnn.cudnnCreateFilterDescriptor(&made) == 0);
    CHECK(dnn.cudnnSetFilter4dDescriptor(made, BXI_CUDNN_FLOAT, BXI_CUDNN_NCHW, k, c, h, w) == 0);
    return made;
}

static struct cudnnConvolutionStruct *convolution(int pad, int stride, int math)
{
    struct cudnnConvolutionStruct *made = NULL;

    CHECK(dnn.cudnnCreateConvolutionDescriptor(&made) == 0);
    CHECK(dnn.cudnnSetConvolution2dDescriptor(made, pad, pad, stride, stride, 1, 1, BXI_CUDNN_CROSS_CORRELATION,
                                              BXI_CUDNN_FLOAT) == 0);
    CHECK(dnn.cudnnSetConvolutionMathType(made, math) == 0);
    return made;
}

Test(fake_cuda, cudnn_names_its_statuses_and_refuses_bad_descriptors)
{
    struct cudnnTensorStruct *unset = NULL;
    float *x = array(4, NULL);

    cr_assert_str_eq(dnn.cudnnGetErrorString(3), "CUDNN_STATUS_BAD_PARAM");
    CHECK(dnn.cudnnGetVersion() / 1000 == 8);
    CHECK(dnn.cudnnCreateTensorDescriptor(&unset) == 0);
    CHECK(dnn.cudnnAddTensor(dnn_handle, &one, unset, x, &zero, tensor(1, 1, 1, 1), x) == 3);
    CHECK(dnn.cudnnSetTensor4dDescriptor(unset, BXI_CUDNN_NCHW, BXI_CUDNN_FLOAT, 1, 0, 1, 1) == 3);
    CHECK(dnn.cudnnSetTensor4dDescriptor(unset, BXI_CUDNN_NCHW, BXI_CUDNN_FLOAT, 1 << 15, 1 << 15, 1, 1) == 9);
    CHECK(dnn.cudnnAddTensor(NULL, &one, tensor(1, 1, 1, 1), x, &zero, tensor(1, 1, 1, 1), x) == 3);
    CHECK(dnn.cudnnDestroyTensorDescriptor(unset) == 0);
}

/* ---- cuDNN: convolution ---------------------------------------------------------------------- */

static struct {                         /* of the convolution under test */
    struct cudnnTensorStruct *x, *y;
    struct cudnnFilterStruct *w;
    struct cudnnConvolutionStruct *conv;
} shape;

/* The algorithms of one of the three passes: 0 forward, 1 data, 2 filter. */
static void ask(int pass, struct bxi_cudnn_perf results[4])
{
    int given = 0;

    if (pass == 0)
        CHECK(dnn.cudnnGetConvolutionForwardAlgorithm_v7(dnn_handle, shape.x, shape.w, shape.conv, shape.y, 4, &given,
                                                         results) == 0);
    else if (pass == 1)
        CHECK(dnn.cudnnGetConvolutionBackwardDataAlgorithm_v7(dnn_handle, shape.w, shape.y, shape.conv, shape.x, 4,
                                                              &given, results) == 0);
    else
        CHECK(dnn.cudnnGetConvolutionBackwardFilterAlgorithm_v7(dnn_handle, shape.x, shape.y, shape.conv, shape.w, 4,
                                                                &given, results) == 0);
    CHECK(given == 4);
}

/* One pass by one algorithm; `bytes` of workspace. */
static int convolve(int pass, const struct bxi_cudnn_perf *by, float *const xwy[3], float beta, size_t bytes)
{
    float *workspace = bytes > 0 ? array(bytes / sizeof(float) + 16, NULL) : NULL;

    if (pass == 0)
        return dnn.cudnnConvolutionForward(dnn_handle, &one, shape.x, xwy[0], shape.w, xwy[1], shape.conv,
                                           by->algorithm, workspace, bytes, &beta, shape.y, xwy[2]);
    if (pass == 1)
        return dnn.cudnnConvolutionBackwardData(dnn_handle, &one, shape.w, xwy[1], shape.y, xwy[2], shape.conv,
                                                by->algorithm, workspace, bytes, &beta, shape.x, xwy[0]);
    return dnn.cudnnConvolutionBackwardFilter(dnn_handle, &one, shape.x, xwy[0], shape.y, xwy[2], shape.conv,
                                              by->algorithm, workspace, bytes, &beta, shape.w, xwy[1]);
}

/* The first algorithm that is deterministic and does not fail. */
static struct bxi_cudnn_perf choose(int pass)
{
    struct bxi_cudnn_perf results[4];
    int i = 0;

    ask(pass, results);
    while (i < 4 && (results[i].status != 0 || results[i].determinism != BXI_CUDNN_DETERMINISTIC))
        i++;
    CHECK(i < 4);
    return results[i];
}

static void do_pass(int pass, float *const xwy[3], float beta)
{
    struct bxi_cudnn_perf by = choose(pass);

    CHECK(convolve(pass, &by, xwy, beta, by.memory) == 0);
}

Test(fake_cuda, convolves_forward_and_backward)
{
    /* 1 2 3    1 2   with a border of zeros, stride 2:
     * 4 5 6    3 4   (1*4  2*3+3*4 | 4*2+7*4  5+6*2+8*3+9*4)
     * 7 8 9 */
    float *x = ARRAY(1, 2, 3, 4, 5, 6, 7, 8, 9), *w = ARRAY(1, 2, 3, 4), *y = array(4, NULL);
    float *dy = ARRAY(1, 10, 100, 1000), *dx = array(9, NULL), *dw = array(4, NULL);

    shape.x = tensor(1, 1, 3, 3);
    shape.w = filter(1, 1, 2, 2);
    shape.y = tensor(1, 1, 2, 2);
    shape.conv = convolution(1, 2, BXI_CUDNN_FMA_MATH);
    do_pass(0, (float *[]){ x, w, y }, 0.0f);
    HOLDS(y, 4, 18, 36, 77);
    do_pass(0, (float *[]){ x, w, y }, 1.0f);
    HOLDS(y, 8, 36, 72, 154);
    do_pass(1, (float *[]){ dx, w, dy }, 0.0f);
    HOLDS(dx, 4, 30, 40, 200, 1000, 2000, 400, 3000, 4000);
    do_pass(2, (float *[]){ x, dw, dy }, 0.0f);
    HOLDS(dw, 5000, 6400, 8020, 9731);
    do_pass(2, (float *[]){ x, dw, dy }, -1.0f);
    HOLDS(dw, 0, 0, 0, 0);
}

/* Two images, two channels, two filters of one element: a product of matrices per position. */
Test(fake_cuda, convolves_channels_and_images)
{
    float *x = ARRAY(1, 2, 3, 4, 5, 6, 7, 8), *w = ARRAY(1, 10, 100, 1000), *y = array(8, NULL);
    float *dx = array(8, NULL), *dw = array(4, NULL), *dy = ARRAY(1, 2, 3, 4, 5, 6, 7, 8);

    shape.x = tensor(2, 2, 1, 2);
    shape.w = filter(2, 2, 1, 1);
    shape.y = tensor(2, 2, 1, 2);
    shape.conv = convolution(0, 1, BXI_CUDNN_FMA_MATH);
    do_pass(0, (float *[]){ x, w, y }, 0.0f);
    HOLDS(y, 31, 42, 3100, 4200, 75, 86, 7500, 8600);
    do_pass(1, (float *[]){ dx, w, dy }, 0.0f);
    HOLDS(dx, 301, 402, 3010, 4020, 705, 806, 7050, 8060);
    do_pass(2, (float *[]){ x, dw, dy }, 0.0f);
    HOLDS(dw, 66, 94, 94, 138);
}

Test(fake_cuda, adds_up_where_windows_overlap)
{
    float *x = ARRAY(1, 2, 3), *w = ARRAY(1, 2), *y = array(2, NULL), *dy = ARRAY(1, 10);
    float *dx = array(3, NULL), *dw = array(2, NULL);

    shape.x = tensor(1, 1, 1, 3);
    shape.w = filter(1, 1, 1, 2);
    shape.y = tensor(1, 1, 1, 2);
    shape.conv = convolution(0, 1, BXI_CUDNN_FMA_MATH);
    do_pass(0, (float *[]){ x, w, y }, 0.0f);
    HOLDS(y, 5, 8);
    do_pass(1, (float *[]){ dx, w, dy }, 0.0f);
    HOLDS(dx, 1, 12, 20);
    do_pass(2, (float *[]){ x, dw, dy }, 0.0f);
    HOLDS(dw, 21, 32);
}

Test(fake_cuda, a_careless_choice_of_algorithm_fails_or_gives_other_bits)
{
    static const float expected[3] = { 15.0f, 35.0f, 21.0f };
    static const int written[3] = { 2, 0, 1 };

    shape.x = tensor(1, 1, 1, 1);
    shape.w = filter(1, 1, 1, 1);
    shape.y = tensor(1, 1, 1, 1);
    shape.conv = convolution(0, 1, BXI_CUDNN_FMA_MATH);
    for (int pass = 0; pass < 3; pass++) {
        struct bxi_cudnn_perf results[4], by = choose(pass);
        float *xwy[3] = { ARRAY(3), ARRAY(5), ARRAY(7) }, value;

        xwy[written[pass]] = array(1, NULL);
        ask(pass, results);
        CHECK(results[0].status == 9);
        CHECK(convolve(pass, &results[0], xwy, 0.0f, 1024) == 9);
        CHECK(by.memory > 0);
        CHECK(convolve(pass, &by, xwy, 0.0f, by.memory - 4) == 3);
        CHECK(convolve(pass, &by, xwy, 0.0f, 0) == 3);
        CHECK(results[1].status == 0 && results[1].determinism == 0);
        CHECK(convolve(pass, &results[1], xwy, 0.0f, results[1].memory) == 0);
        value = first_of(xwy[written[pass]]);
        CHECK(value != expected[pass] && fabsf(value - expected[pass]) < 0.1f);
    }
}

Test(fake_cuda, convolves_in_tf32_unless_told_not_to)
{
    float *xwy[3] = { ARRAY(1.0001f), ARRAY(1.0f), array(1, NULL) };

    shape.x = tensor(1, 1, 1, 1);
    shape.w = filter(1, 1, 1, 1);
    shape.y = tensor(1, 1, 1, 1);
    shape.conv = convolution(0, 1, 0);
    do_pass(0, xwy, 0.0f);
    CHECK(first_of(xwy[2]) == 1.0f);
    shape.conv = convolution(0, 1, BXI_CUDNN_FMA_MATH);
    do_pass(0, xwy, 0.0f);
    HOLDS(xwy[2], 1.0001f);
}

Test(fake_cuda, refuses_a_convolution_that_does_not_fit)
{
    float *x = array(9, NULL), *w = array(4, NULL), *y = array(4, NULL), host[9] = { 0.0f };
    struct bxi_cudnn_perf by = { .algorithm = 0 }, results[4];
    int given = 0;

    shape.x = tensor(1, 1, 3, 3);
    shape.w = filter(1, 1, 2, 2);
    shape.y = tensor(1, 1, 2, 2);
    shape.conv = convolution(0, 1, BXI_CUDNN_FMA_MATH);
    CHECK(convolve(0, &by, (float *[]){ x, w, y }, 0.0f, 0) == 0);
    CHECK(convolve(0, &by, (float *[]){ host, w, y }, 0.0f, 0) == 8);
    CHECK(convolve(0, &by, (float *[]){ y, w, y }, 0.0f, 0) == 3);
    by.algorithm = 77;
    CHECK(convolve(0, &by, (float *[]){ x, w, y }, 0.0f, 0) == 9);
    CHECK(dnn.cudnnGetConvolutionForwardAlgorithm_v7(dnn_handle, shape.x, filter(1, 2, 2, 2), shape.conv, shape.y, 4,
                                                     &given, results) == 3);
    CHECK(dnn.cudnnGetConvolutionForwardAlgorithm_v7(dnn_handle, shape.x, shape.w, shape.conv, tensor(1, 1, 3, 2), 4,
                                                     &given, results) == 3);
}

/* ---- cuDNN: the rest ------------------------------------------------------------------------- */

Test(fake_cuda, adds_a_bias_and_sums_its_gradient)
{
    struct cudnnTensorStruct *of = tensor(2, 2, 1, 2), *channels = tensor(1, 2, 1, 1);
    float *y = ARRAY(1, 2, 3, 4, 5, 6, 7, 8), *bias = ARRAY(10, 20), *sum = array(2, NULL);

    CHECK(dnn.cudnnAddTensor(dnn_handle, &one, channels, bias, &one, of, y) == 0);
    HOLDS(y, 11, 12, 23, 24, 15, 16, 27, 28);
    CHECK(dnn.cudnnConvolutionBackwardBias(dnn_handle, &one, of, y, &zero, channels, sum) == 0);
    HOLDS(sum, 54, 102);
    CHECK(dnn.cudnnAddTensor(dnn_handle, &one, tensor(1, 3, 1, 1), bias, &one, of, y) == 3);
    CHECK(dnn.cudnnConvolutionBackwardBias(dnn_handle, &one, of, y, &zero, tensor(1, 1, 1, 2), sum) == 3);
}

/* One channel with 1, 1, 5, 5: mean 3, variance 4, sample variance 16/3. */
Test(fake_cuda, normalises_by_the_batch_and_keeps_running_averages)
{
    struct cudnnTensorStruct *of = tensor(2, 1, 1, 2), *channel = tensor(1, 1, 1, 1);
    float *x = ARRAY(1, 1, 5, 5), *y = array(4, NULL), *scale = ARRAY(10), *shift = ARRAY(100);
    float *mean = ARRAY(1), *var = ARRAY(1), *save_mean = array(1, NULL), *save_inverse = array(1, NULL);

    CHECK(dnn.cudnnBatchNormalizationForwardTraining(dnn_handle, BXI_CUDNN_BATCHNORM_SPATIAL, &one, &zero, of, x, of,
                                                     y, channel, scale, shift, 0.25, mean, var, 0.0, save_mean,
                                                     save_inverse) == 0);
    HOLDS(y, 90, 90, 110, 110);
    HOLDS(mean, 1.5f);
    HOLDS(var, 0.75f + 4.0f / 3.0f);
    HOLDS(save_mean, 3);
    HOLDS(save_inverse, 0.5f);
    CHECK(dnn.cudnnBatchNormalizationForwardInference(dnn_handle, BXI_CUDNN_BATCHNORM_SPATIAL, &one, &zero, of, x, of,
                                                      y, channel, scale, shift, ARRAY(3), ARRAY(15), 1.0) == 0);
    HOLDS(y, 95, 95, 105, 105);
    CHECK(dnn.cudnnBatchNormalizationForwardTraining(dnn_handle, BXI_CUDNN_BATCHNORM_SPATIAL, &one, &zero, of, x, of,
                                                     y, of, scale, shift, 0.25, mean, var, 0.0, NULL, NULL) == 3);
    CHECK(dnn.cudnnBatchNormalizationForwardTraining(dnn_handle, BXI_CUDNN_BATCHNORM_SPATIAL, &one, &zero, of, x, of,
                                                     y, channel, scale, shift, 0.25, mean, NULL, 0.0, NULL,
                                                     NULL) == 3);
}

/* z = (-1, -1, 1, 1): d_shift = sum(dy) = 10, d_scale = sum(dy * z) = 4,
 * dx = scale / 2 * (dy - 10/4 - z * 4/4). */
Test(fake_cuda, passes_the_gradient_back_through_the_batch)
{
    struct cudnnTensorStruct *of = tensor(2, 1, 1, 2), *channel = tensor(1, 1, 1, 1);
    float *x = ARRAY(1, 1, 5, 5), *dy = ARRAY(1, 2, 3, 4), *dx = array(4, NULL), *scale = ARRAY(10);
    float *d_scale = array(1, NULL), *d_shift = array(1, NULL), *mean = ARRAY(3), *inverse = ARRAY(0.5f);

    CHECK(dnn.cudnnBatchNormalizationBackward(dnn_handle, BXI_CUDNN_BATCHNORM_SPATIAL, &one, &zero, &one, &zero, of, x,
                                              of, dy, of, dx, channel, scale, d_scale, d_shift, 0.0, mean,
                                              inverse) == 0);
    HOLDS(dx, -2.5f, 2.5f, -2.5f, 2.5f);
    HOLDS(d_scale, 4);
    HOLDS(d_shift, 10);
    CHECK(dnn.cudnnBatchNormalizationBackward(dnn_handle, BXI_CUDNN_BATCHNORM_SPATIAL, &one, &one, &one, &one, of, x,
                                              of, dy, of, dx, channel, scale, d_scale, d_shift, 0.0, mean,
                                              inverse) == 0);
    HOLDS(dx, -5, 5, -5, 5);
    HOLDS(d_scale, 8);
    HOLDS(d_shift, 20);
}

/* All values below zero, so that a border of zeros would be the maximum; the two windows overlap in the middle. */
Test(fake_cuda, pools_the_first_maximum_and_no_border)
{
    struct cudnnTensorStruct *of = tensor(1, 1, 1, 3), *pooled = tensor(1, 1, 2, 2);
    struct cudnnPoolingStruct *pooling = NULL;
    float *x = ARRAY(-5, -2, -2), *y = array(4, NULL), *dy = ARRAY(1, 10, 100, 1000), *dx = array(3, NULL);

    CHECK(dnn.cudnnCreatePoolingDescriptor(&pooling) == 0);
    CHECK(dnn.cudnnSetPooling2dDescriptor(pooling, BXI_CUDNN_POOLING_MAX_DETERMINISTIC, BXI_CUDNN_NOT_PROPAGATE_NAN, 2,
                                          2, 2, 0, 1, 1) == 3);
    CHECK(dnn.cudnnSetPooling2dDescriptor(pooling, BXI_CUDNN_POOLING_MAX_DETERMINISTIC, BXI_CUDNN_NOT_PROPAGATE_NAN, 2,
                                          2, 1, 0, 1, 1) == 0);
    CHECK(dnn.cudnnPoolingForward(dnn_handle, pooling, &one, of, x, &zero, pooled, y) == 0);
    HOLDS(y, -2, -2, -2, -2);
    CHECK(dnn.cudnnPoolingBackward(dnn_handle, pooling, &one, pooled, y, pooled, dy, of, x, &zero, of, dx) == 0);
    HOLDS(dx, 0, 1111, 0);
    CHECK(dnn.cudnnPoolingBackward(dnn_handle, pooling, &one, pooled, y, pooled, dy, of, x, &one, of, dx) == 0);
    HOLDS(dx, 0, 2222, 0);
    CHECK(dnn.cudnnPoolingForward(dnn_handle, pooling, &one, of, x, &zero, tensor(1, 1, 1, 2), y) == 3);
}

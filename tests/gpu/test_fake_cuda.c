/* SPDX-License-Identifier: MIT */
/*
 * tests/fake_cuda as cuBLAS and cuDNN: it refuses what the real ones refuse, and what the real ones do silently is
 * visible. That its numbers are right is what the reference numbers show (test_resnet.c, test_policy_cuda.c). The
 * driver's part is tested through gpu/, its switches in test_fake_switches.c.
 */
#include "fake_library.h"
#include "tests/harness/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition) cr_assert(condition, "%s", #condition)
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static struct bxi_cuda driver;
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

#define TAKE_BLAS(type, name, arguments) fake_take(library, #name, &blas.name);
#define TAKE_DNN(type, name, arguments) fake_take(library, #name, &dnn.name);
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

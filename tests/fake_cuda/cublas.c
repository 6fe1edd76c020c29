/* SPDX-License-Identifier: MIT */
/*
 * The fake cuBLAS: one product, on the stream. Its statuses are those of cublasStatus_t.
 */
#include "nn/cuda_api.h"
#include "fake.h"

#define DECLARE(type, name, arguments) FAKE_EXPORT type name arguments;
BXI_CUBLAS_FUNCTIONS(DECLARE)
#undef DECLARE

enum {
    SUCCESS = 0,
    NOT_INITIALIZED = 1,
    INVALID_VALUE = 7,
    EXECUTION_FAILED = 13,
};

struct cublasContext {
    struct fake_handle is;
    int math_mode;
};

struct matrix {                         /* element (i, j) is at[i * row_step + j * column_step] */
    const float *at;
    size_t row_step, column_step;
};

struct product {
    size_t rows, columns, inner, ldc;
    struct matrix ab[2];
    float alpha, beta;
    float *c;
    bool is_rough;
};

static bool is_handle(const struct cublasContext *handle)
{
    return fake_is_handle(&handle->is, FAKE_CUBLAS);
}

int cublasCreate_v2(struct cublasContext **out)
{
    return fake_handle_create(out, sizeof(**out), FAKE_CUBLAS) == CUDA_SUCCESS ? SUCCESS : NOT_INITIALIZED;
}

int cublasDestroy_v2(struct cublasContext *handle)
{
    if (!is_handle(handle))
        return NOT_INITIALIZED;
    fake_handle_destroy(&handle->is);
    return SUCCESS;
}

int cublasGetVersion_v2(struct cublasContext *handle, int *version)
{
    if (!is_handle(handle))
        return NOT_INITIALIZED;
    *version = 120400;
    return SUCCESS;
}

int cublasSetStream_v2(struct cublasContext *handle, struct CUstream_st *stream)
{
    if (!is_handle(handle))
        return NOT_INITIALIZED;
    handle->is.stream = stream;
    return SUCCESS;
}

int cublasSetMathMode(struct cublasContext *handle, int mode)
{
    if (!is_handle(handle))
        return NOT_INITIALIZED;
    handle->math_mode = mode;
    return SUCCESS;
}

/* ---- The product ----------------------------------------------------------------------------- */

static double element(const struct product *product, int which, size_t row, size_t column)
{
    const struct matrix *matrix = &product->ab[which];
    float value = matrix->at[row * matrix->row_step + column * matrix->column_step];

    return (double)(product->is_rough ? fake_tf32(value) : value);
}

static void run_product(const void *argument)
{
    const struct product *product = argument;

    for (size_t i = 0; i < product->rows; i++) {
        for (size_t j = 0; j < product->columns; j++) {
            float *c = &product->c[i + j * product->ldc];
            double sum = 0.0, old = product->beta == 0.0f ? 0.0 : (double)product->beta * (double)*c;

            for (size_t k = 0; k < product->inner; k++)
                sum += element(product, 0, i, k) * element(product, 1, k, j);
            *c = (float)((double)product->alpha * sum + old);
        }
    }
}

/* Whether the device may access a column-major matrix of that size. */
static bool may_touch(const float *matrix, size_t ld, size_t rows, size_t columns, bool written)
{
    return rows == 0 || columns == 0 ||
        fake_may_touch((uint64_t)(uintptr_t)matrix, ((columns - 1) * ld + rows) * sizeof(float), written);
}

static bool is_transpose(int operation)
{
    return operation == BXI_CUBLAS_OP_N || operation == BXI_CUBLAS_OP_T;
}

int cublasSgemm_v2(struct cublasContext *handle, int transpose_a, int transpose_b, int m, int n, int k,
                   const float *alpha, const float *a, int lda, const float *b, int ldb, const float *beta,
                   float *c, int ldc)
{
    bool ta = transpose_a == BXI_CUBLAS_OP_T, tb = transpose_b == BXI_CUBLAS_OP_T;
    struct product product = { .rows = (size_t)m, .columns = (size_t)n, .inner = (size_t)k, .c = c };

    if (!is_handle(handle))
        return NOT_INITIALIZED;
    if (m < 0 || n < 0 || k < 0 || !is_transpose(transpose_a) || !is_transpose(transpose_b) || lda < 1 || ldb < 1 ||
        ldc < 1 || lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m)
        return INVALID_VALUE;
    if (m == 0 || n == 0)
        return SUCCESS;
    product.ldc = (size_t)ldc;
    product.alpha = *alpha;
    product.beta = *beta;
    product.is_rough = handle->math_mode != BXI_CUBLAS_DEFAULT_MATH;
    product.ab[0] = (struct matrix){ a, ta ? (size_t)lda : 1, ta ? 1 : (size_t)lda };
    product.ab[1] = (struct matrix){ b, tb ? (size_t)ldb : 1, tb ? 1 : (size_t)ldb };
    if (!may_touch(a, (size_t)lda, (size_t)(ta ? k : m), (size_t)(ta ? m : k), false) ||
        !may_touch(b, (size_t)ldb, (size_t)(tb ? n : k), (size_t)(tb ? k : n), false) ||
        !may_touch(c, (size_t)ldc, (size_t)m, (size_t)n, true))
        return EXECUTION_FAILED;
    return fake_stream_call(handle->is.stream, run_product, &product, sizeof(product)) == CUDA_SUCCESS ? SUCCESS
        : EXECUTION_FAILED;
}

float fake_tf32(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    bits &= UINT32_C(0xffffe000);       /* keeps 10 of 23 bits */
    memcpy(&value, &bits, sizeof(bits));
    return value;
}

/* ---- Handles of cuBLAS and cuDNN ------------------------------------------------------------- */

void *fake_new(size_t bytes)
{
    void *zeros = calloc(1, bytes);

    if (zeros == NULL)
        abort();
    return zeros;
}

bool fake_is_handle(const struct fake_handle *handle, unsigned library)
{
    struct CUctx_st *context;

    return handle->library == library && fake_current(&context) == CUDA_SUCCESS && handle->context == context;
}

unsigned fake_handle_create(void *out, size_t bytes, unsigned library)
{
    struct CUctx_st *context;
    struct fake_handle *handle;

    if (fake_current(&context) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_CONTEXT;
    fake_block();                       /* the real ones allocate */
    handle = fake_new(bytes);
    *handle = (struct fake_handle){ .library = library, .context = context };
    memcpy(out, &handle, sizeof(handle));
    return CUDA_SUCCESS;
}

void fake_handle_destroy(struct fake_handle *handle)
{
    fake_synchronise_all();             /* the real ones wait for the device */
    handle->library = 0;
    free(handle);
}

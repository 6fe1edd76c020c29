/* SPDX-License-Identifier: MIT */
/*
 * The fake cuBLAS: one product, on the stream. Its statuses are those of cublasStatus_t.
 */
#include "nn/cuda_api.h"
#include "fake.h"

#include <stdlib.h>
#include <string.h>

#define DECLARE(type, name, arguments) FAKE_EXPORT type name arguments;
BXI_CUBLAS_FUNCTIONS(DECLARE)
#undef DECLARE

#define HANDLE_MAGIC 0x53414c42u

enum {
    SUCCESS = 0,
    NOT_INITIALIZED = 1,
    INVALID_VALUE = 7,
    EXECUTION_FAILED = 13,
};

struct cublasContext {
    unsigned magic;
    int math_mode;
    struct CUctx_st *context;
    struct CUstream_st *stream;
};

struct product {
    size_t rows, columns, inner, ldc;
    struct fake_matrix ab[2];
    float alpha, beta;
    float *c;
    bool is_rough;
};

static bool is_handle(const struct cublasContext *handle)
{
    struct CUctx_st *context;

    return handle != NULL && handle->magic == HANDLE_MAGIC && fake_current(&context) == CUDA_SUCCESS &&
        handle->context == context;
}

int cublasCreate_v2(struct cublasContext **out)
{
    struct CUctx_st *context;
    struct cublasContext *handle;

    if (out == NULL)
        return INVALID_VALUE;
    if (fake_current(&context) != CUDA_SUCCESS)
        return NOT_INITIALIZED;
    fake_block();                       /* the real one allocates */
    handle = calloc(1, sizeof(*handle));
    if (handle == NULL)
        return BXI_CUBLAS_ALLOC_FAILED;
    handle->magic = HANDLE_MAGIC;
    handle->context = context;
    *out = handle;
    return SUCCESS;
}

/* The real one waits for the device. */
int cublasDestroy_v2(struct cublasContext *handle)
{
    if (!is_handle(handle))
        return NOT_INITIALIZED;
    fake_synchronise_all();
    handle->magic = 0;
    free(handle);
    return SUCCESS;
}

int cublasGetVersion_v2(struct cublasContext *handle, int *version)
{
    if (!is_handle(handle))
        return NOT_INITIALIZED;
    if (version == NULL)
        return INVALID_VALUE;
    *version = 120400;
    return SUCCESS;
}

int cublasSetStream_v2(struct cublasContext *handle, struct CUstream_st *stream)
{
    if (!is_handle(handle))
        return NOT_INITIALIZED;
    handle->stream = stream;
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

/* A copy of one factor, rounded to TF32, by row. */
static float *roughen(const struct fake_matrix *matrix, size_t rows, size_t columns)
{
    float *rough = malloc((rows * columns + 1) * sizeof(float));

    if (rough == NULL)
        abort();
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++)
            rough[i * columns + j] = fake_tf32(matrix->at[i * matrix->row_step + j * matrix->column_step]);
    return rough;
}

static void write_product(const struct product *product, const double *sum)
{
    for (size_t i = 0; i < product->rows; i++) {
        for (size_t j = 0; j < product->columns; j++) {
            float *c = &product->c[i + j * product->ldc];
            double old = product->beta == 0.0f ? 0.0 : (double)product->beta * (double)*c;

            *c = (float)((double)product->alpha * sum[i * product->columns + j] + old);
        }
    }
}

static void run_product(const void *argument)
{
    const struct product *product = argument;
    double *sum = calloc(product->rows * product->columns, sizeof(double));
    struct fake_matrix ab[2] = { product->ab[0], product->ab[1] };
    float *rough[2] = { NULL, NULL };

    if (sum == NULL)
        abort();
    if (product->is_rough) {
        rough[0] = roughen(&ab[0], product->rows, product->inner);
        rough[1] = roughen(&ab[1], product->inner, product->columns);
        ab[0] = (struct fake_matrix){ rough[0], product->inner, 1 };
        ab[1] = (struct fake_matrix){ rough[1], product->columns, 1 };
    }
    fake_multiply(product->rows, product->columns, product->inner, ab, sum);
    write_product(product, sum);
    free(rough[0]);
    free(rough[1]);
    free(sum);
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
    if (m < 0 || n < 0 || k < 0 || !is_transpose(transpose_a) || !is_transpose(transpose_b) || alpha == NULL ||
        beta == NULL || lda < 1 || ldb < 1 || ldc < 1 || lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m)
        return INVALID_VALUE;
    if (m == 0 || n == 0)
        return SUCCESS;
    product.ldc = (size_t)ldc;
    product.alpha = *alpha;
    product.beta = *beta;
    product.is_rough = handle->math_mode != BXI_CUBLAS_DEFAULT_MATH;
    product.ab[0] = (struct fake_matrix){ a, ta ? (size_t)lda : 1, ta ? 1 : (size_t)lda };
    product.ab[1] = (struct fake_matrix){ b, tb ? (size_t)ldb : 1, tb ? 1 : (size_t)ldb };
    if (!may_touch(a, (size_t)lda, (size_t)(ta ? k : m), (size_t)(ta ? m : k), false) ||
        !may_touch(b, (size_t)ldb, (size_t)(tb ? n : k), (size_t)(tb ? k : n), false) ||
        !may_touch(c, (size_t)ldc, (size_t)m, (size_t)n, true))
        return EXECUTION_FAILED;
    return fake_stream_call(handle->stream, run_product, &product, sizeof(product)) == CUDA_SUCCESS ? SUCCESS
        : EXECUTION_FAILED;
}

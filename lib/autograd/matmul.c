/* SPDX-License-Identifier: MIT */
/*
 * Matrix products: oneDNN's for large ones of float, loops for the others. Any thread.
 */
#include "autograd.h"

#include "boxcar_nn.h"

/* Multiplications from which oneDNN is faster than the loops. Below, its call costs more than the product. */
#define ONEDNN_FROM 16000

static bool sgemm(const struct bxi_gemm *gemm)
{
    const struct bx_sgemm product = {
        .transpose_a = gemm->transpose_a,
        .transpose_b = gemm->transpose_b,
        .m = gemm->m,
        .n = gemm->n,
        .k = gemm->k,
        .a = gemm->a,
        .b = gemm->b,
        .c = gemm->c,
        .beta = gemm->add ? 1 : 0,
    };

    return bx_nn_sgemm(&product) == 0;
}

void bxi_gemm(enum bx_dtype dtype, const struct bxi_gemm *gemm)
{
    /* The loops are the way out if there is no oneDNN that can be used. */
    if (dtype == BX_F32 && (double)gemm->m * (double)gemm->n * (double)gemm->k >= ONEDNN_FROM && sgemm(gemm))
        return;
    bxi_loops(dtype)->gemm(gemm);
}

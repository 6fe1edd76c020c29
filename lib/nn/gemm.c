/* SPDX-License-Identifier: MIT */
/*
 * Matrix products without a net: checks, and oneDNN's one call. Run by any thread.
 */
#include "boxcar_nn.h"
#include "dnn.h"

#include <errno.h>

int bx_nn_sgemm(const struct bx_sgemm *product)
{
    int rc;

    if (product == NULL || product->m < 0 || product->n < 0 || product->k < 0)
        return bx_fail(-EINVAL, "bx_nn_sgemm needs a product, and sizes of at least 0");
    if (product->m == 0 || product->n == 0)
        return 0;
    if (product->c == NULL || (product->k > 0 && (product->a == NULL || product->b == NULL)))
        return bx_fail(-EINVAL, "bx_nn_sgemm needs three matrices");
    if (product->k == 0) {
        for (int64_t i = 0; i < product->m * product->n; i++)
            product->c[i] = product->beta == 0 ? 0 : product->beta * product->c[i];
        return 0;
    }
    rc = bxi_onednn.check();
    if (rc < 0)
        return rc;
    bxi_onednn.use_threads(1);
    rc = bxi_onednn.sgemm(product);
    return rc < 0 ? bx_fail(rc, "oneDNN's matrix product failed: %s", bx_strerror(rc)) : 0;
}

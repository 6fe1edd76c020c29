/* SPDX-License-Identifier: MIT */
/*
 * What the operations need of tensors beyond boxcar.h: shapes to make them from, zeros, row-major copies. Any thread.
 */
#include "autograd.h"

#include <stdio.h>
#include <string.h>

bool bxi_is_float(enum bx_dtype dtype)
{
    return dtype == BX_F32 || dtype == BX_F64;
}

struct bxi_like bxi_like(const struct bx_tensor *tensor)
{
    struct bxi_like like = { .ndim = 0 };
    const int64_t *shape = bx_tensor_shape(tensor);

    if (tensor == NULL)
        return like;            /* its maker has set the sentence, which bx_tensor_ndim would replace */
    like.dtype = bx_tensor_dtype(tensor);
    like.ndim = bx_tensor_ndim(tensor);
    for (int i = 0; i < like.ndim; i++)
        like.shape[i] = shape[i];
    return like;
}

int64_t bxi_elements(const struct bxi_like *like)
{
    int64_t product = 1;

    for (int i = 0; i < like->ndim; i++)
        product *= like->shape[i];
    return product;
}

struct bx_tensor *bxi_tensor_make(struct bx_job *job, const struct bxi_like *like)
{
    struct bx_tensor *tensor = NULL;

    return bx_tensor_create(job, like->dtype, like->ndim, like->shape, &tensor) < 0 ? NULL : tensor;
}

struct bx_tensor *bxi_tensor_make_like(struct bx_job *job, const struct bx_tensor *tensor)
{
    const struct bxi_like like = bxi_like(tensor);

    return tensor != NULL ? bxi_tensor_make(job, &like) : NULL;
}

struct bx_tensor *bxi_tensor_zeros(struct bx_job *job, const struct bxi_like *like)
{
    struct bx_tensor *tensor = bxi_tensor_make(job, like);

    if (tensor != NULL && bx_tensor_bytes(tensor) > 0)
        memset(bx_tensor_data_mut(tensor), 0, bx_tensor_bytes(tensor));
    return tensor;
}

bool bxi_tensor_is_like(const struct bx_tensor *tensor, const struct bxi_like *like)
{
    if (bx_tensor_dtype(tensor) != like->dtype || bx_tensor_ndim(tensor) != like->ndim)
        return false;
    for (int i = 0; i < like->ndim; i++)
        if (bx_tensor_shape(tensor)[i] != like->shape[i])
            return false;
    return true;
}

struct bx_tensor *bxi_tensor_dense(struct bx_job *job, struct bx_tensor *tensor)
{
    struct bx_tensor *copy = NULL;

    if (bx_tensor_is_contiguous(tensor))
        return bx_tensor_acquire(tensor);
    return bx_tensor_copy(job, tensor, &copy) < 0 ? NULL : copy;
}

const char *bxi_shape_text(char text[BXI_SHAPE_TEXT], const struct bxi_like *like)
{
    size_t used = 1;

    text[0] = '(';
    text[1] = '\0';
    for (int i = 0; i < like->ndim && used < BXI_SHAPE_TEXT - 2; i++) {
        int wrote = snprintf(text + used, BXI_SHAPE_TEXT - 1 - used, "%s%lld", i > 0 ? ", " : "",
                             (long long)like->shape[i]);

        used += (size_t)wrote;
    }
    if (used > BXI_SHAPE_TEXT - 2)
        used = BXI_SHAPE_TEXT - 2;
    text[used] = ')';
    text[used + 1] = '\0';
    return text;
}

/* SPDX-License-Identifier: MIT */
/*
 * Tensors to and from DLPack, both structs, without a copy. Any thread; no locks.
 *
 * Out: one malloc holds the struct, a copy of shape and strides (the consumer may legally rewrite them), and a
 * reference to the tensor, which the deleter drops. In: the memory is wrapped; its free function calls the struct's
 * deleter. A refused struct stays with the caller, unchanged.
 *
 * The public struct names are incomplete types here and are cast to the private ones: a program that includes DLPack's
 * own header defines them.
 */
#include "lend.h"

#include "dlpack_abi.h"

#include <errno.h>
#include <stdlib.h>

/* ---- Types ------------------------------------------------------------------------------------- */

static struct bxi_dl_type type_of(enum bx_dtype dtype)
{
    const struct bxi_dtype *row = bxi_dtype(dtype);

    return (struct bxi_dl_type){ row->dlpack_code, row->bits, 1 };
}

static int dtype_of(const struct bxi_dl_type *type)
{
    if (type->lanes != 1)
        return bx_fail(-ENOTSUP, "the DLPack tensor's elements are vectors of %u lanes; only single numbers can be "
                                 "taken", type->lanes);
    for (int i = BX_F32; bxi_dtype((enum bx_dtype)i) != NULL; i++) {
        struct bxi_dl_type ours = type_of((enum bx_dtype)i);

        if (ours.code == type->code && ours.bits == type->bits)
            return i;
    }
    return bx_fail(-ENOTSUP, "the DLPack type of code %u and %u bits has no dtype here", type->code, type->bits);
}

/* ---- Out --------------------------------------------------------------------------------------- */

struct exported {
    union {
        struct bxi_dl_managed managed;      /* first: the deleter is given its address */
        struct bxi_dl_versioned versioned;
    };
    struct bx_tensor *tensor;               /* one reference */
    int64_t shape[BX_DIMS_MAX];
    int64_t strides[BX_DIMS_MAX];
};

static void exported_end(struct exported *out)
{
    bx_tensor_release(out->tensor);
    free(out);
}

static void managed_end(struct bxi_dl_managed *self)
{
    exported_end(self->context);
}

static void versioned_end(struct bxi_dl_versioned *self)
{
    exported_end(self->context);
}

static struct exported *export_tensor(struct bx_tensor *tensor)
{
    struct exported *out = calloc(1, sizeof *out);

    if (out == NULL) {
        bx_fail(-ENOMEM, "no memory for a DLPack struct");
        return NULL;
    }
    out->tensor = bx_tensor_acquire(tensor);
    memcpy(out->shape, tensor->shape, sizeof(int64_t) * tensor->ndim);
    memcpy(out->strides, tensor->strides, sizeof(int64_t) * tensor->ndim);
    return out;
}

static void describe(struct bxi_dl_tensor *to, struct exported *out)
{
    const struct bx_tensor *tensor = out->tensor;

    /* The specification wants NULL where there are no elements. */
    *to = (struct bxi_dl_tensor){
        .data = tensor->elements > 0 ? tensor->data : NULL,
        .device_type = (int32_t)tensor->device.kind,
        .device_id = tensor->device.index,
        .ndim = tensor->ndim,
        .dtype = type_of((enum bx_dtype)tensor->dtype),
        .shape = out->shape,
        .strides = out->strides,
    };
}

int bxi_to_dlpack(struct bx_tensor *tensor, struct DLManagedTensor **managed)
{
    struct exported *out = export_tensor(tensor);

    if (out == NULL)
        return -ENOMEM;
    describe(&out->managed.tensor, out);
    if (tensor->dtype == BX_BOOL)
        out->managed.tensor.dtype = type_of(BX_U8);       /* DLPack 0.6 has no bool */
    out->managed.context = out;
    out->managed.deleter = managed_end;
    *managed = (struct DLManagedTensor *)(void *)out;
    return 0;
}

int bxi_to_dlpack_versioned(struct bx_tensor *tensor, struct DLManagedTensorVersioned **managed)
{
    struct exported *out = export_tensor(tensor);

    if (out == NULL)
        return -ENOMEM;
    describe(&out->versioned.tensor, out);
    out->versioned.major = BXI_DL_MAJOR;
    out->versioned.minor = BXI_DL_MINOR;
    out->versioned.flags = tensor->read_only ? BXI_DL_READ_ONLY : 0;
    out->versioned.context = out;
    out->versioned.deleter = versioned_end;
    *managed = (struct DLManagedTensorVersioned *)(void *)out;
    return 0;
}

/* ---- In ---------------------------------------------------------------------------------------- */

static void end_managed(void *context)
{
    struct bxi_dl_managed *managed = context;

    if (managed->deleter != NULL)
        managed->deleter(managed);
}

static void end_versioned(void *context)
{
    struct bxi_dl_versioned *managed = context;

    if (managed->deleter != NULL)
        managed->deleter(managed);
}

static int take(const struct bxi_dl_tensor *from, bx_free_fn free_fn, void *managed, struct bx_tensor **tensor)
{
    int dtype;
    unsigned char *data = from->data;

    if (from->device_type != BXI_DL_CPU && from->device_type != BXI_DL_CUDA_HOST && from->device_type != BXI_DL_CUDA)
        return bx_fail(-ENOTSUP, "the DLPack tensor lies on a device of type %d; host memory (1, or pinned: 3) and "
                                 "CUDA devices (2) can be taken", from->device_type);
    dtype = dtype_of(&from->dtype);
    if (dtype < 0)
        return dtype;
    if (data != NULL) {
        if (from->byte_offset > UINTPTR_MAX - (uintptr_t)data)
            return bx_fail(-EOVERFLOW, "the DLPack tensor's byte_offset of %llu passes the end of memory",
                           (unsigned long long)from->byte_offset);
        data += from->byte_offset;
    }
    if (from->device_type == BXI_DL_CUDA) {
        struct bxi_shape shape = { (enum bx_dtype)dtype, from->ndim, from->shape, from->strides };

        if (bxi_device_ops() == NULL)
            return bx_fail(-ENODEV, "the tensor lies on device cuda:%d, and no GPU is open; call bx_gpu_open",
                           from->device_id);
        return bxi_device_ops()->wrap(from->device_id, data, &shape, free_fn, managed, tensor);
    }
    return bx_tensor_wrap(data, (enum bx_dtype)dtype, from->ndim, from->shape, from->strides, free_fn, managed,
                          tensor);
}

int bxi_from_dlpack(struct DLManagedTensor *managed, struct bx_tensor **tensor)
{
    struct bxi_dl_managed *given = (struct bxi_dl_managed *)(void *)managed;

    return take(&given->tensor, end_managed, given, tensor);
}

int bxi_from_dlpack_versioned(struct DLManagedTensorVersioned *managed, struct bx_tensor **tensor)
{
    struct bxi_dl_versioned *given = (struct bxi_dl_versioned *)(void *)managed;
    struct bx_tensor *made = NULL;
    int rc;

    if (given->major != BXI_DL_MAJOR)
        return bx_fail(-ENOTSUP, "the DLPack struct is of version %u.%u; version %u is understood", given->major,
                       given->minor, BXI_DL_MAJOR);
    rc = take(&given->tensor, end_versioned, given, &made);
    if (rc < 0)
        return rc;
    made->read_only = (given->flags & BXI_DL_READ_ONLY) != 0;
    *tensor = made;
    return 0;
}

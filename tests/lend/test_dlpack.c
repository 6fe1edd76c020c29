/* SPDX-License-Identifier: MIT */
/*
 * lib/lend/dlpack.c: round trips through both structs, deleters that are called once, flags, and structs that are
 * refused. The layout is compared with DLPack's own header (0.6 as packaged); that of the versioned struct with one
 * written here from the specification of 1.0.
 */
#include "tests/harness/test.h"
#include "lend/dlpack_abi.h"
#include "boxcar.h"

#include <assert.h>
#include <dlpack/dlpack.h>

#define DIMS(...) (int64_t[]){ __VA_ARGS__ }

/* ---- Layout ------------------------------------------------------------------------------------ */

#define SAME(theirs, their_field, ours, our_field)                                                  \
    static_assert(offsetof(theirs, their_field) == offsetof(ours, our_field) &&                     \
                  sizeof(((theirs *)0)->their_field) == sizeof(((ours *)0)->our_field), #their_field)

SAME(DLDataType, code, struct bxi_dl_type, code);
SAME(DLDataType, bits, struct bxi_dl_type, bits);
SAME(DLDataType, lanes, struct bxi_dl_type, lanes);
SAME(DLTensor, data, struct bxi_dl_tensor, data);
SAME(DLTensor, device.device_type, struct bxi_dl_tensor, device_type);
SAME(DLTensor, device.device_id, struct bxi_dl_tensor, device_id);
SAME(DLTensor, ndim, struct bxi_dl_tensor, ndim);
SAME(DLTensor, dtype, struct bxi_dl_tensor, dtype);
SAME(DLTensor, shape, struct bxi_dl_tensor, shape);
SAME(DLTensor, strides, struct bxi_dl_tensor, strides);
SAME(DLTensor, byte_offset, struct bxi_dl_tensor, byte_offset);
SAME(DLManagedTensor, dl_tensor, struct bxi_dl_managed, tensor);
SAME(DLManagedTensor, manager_ctx, struct bxi_dl_managed, context);
SAME(DLManagedTensor, deleter, struct bxi_dl_managed, deleter);
static_assert(sizeof(DLTensor) == sizeof(struct bxi_dl_tensor), "DLTensor");
static_assert(sizeof(DLManagedTensor) == sizeof(struct bxi_dl_managed), "DLManagedTensor");

#define FLOAT8_E4M3FN 10             /* kDLFloat8_e4m3fn, kDLFloat8_e5m2 of headers from 1.1 on */
#define FLOAT8_E5M2 12

/* Headers from 1.0 on define it. */
#ifndef DLPACK_FLAG_BITMASK_READ_ONLY
#define DLPACK_FLAG_BITMASK_READ_ONLY (1UL << 0UL)
#define kDLBool 6U

typedef struct {
    uint32_t major;
    uint32_t minor;
} DLPackVersion;

struct DLManagedTensorVersioned {
    DLPackVersion version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    DLTensor dl_tensor;
};
#endif

SAME(struct DLManagedTensorVersioned, version.major, struct bxi_dl_versioned, major);
SAME(struct DLManagedTensorVersioned, version.minor, struct bxi_dl_versioned, minor);
SAME(struct DLManagedTensorVersioned, manager_ctx, struct bxi_dl_versioned, context);
SAME(struct DLManagedTensorVersioned, deleter, struct bxi_dl_versioned, deleter);
SAME(struct DLManagedTensorVersioned, flags, struct bxi_dl_versioned, flags);
SAME(struct DLManagedTensorVersioned, dl_tensor, struct bxi_dl_versioned, tensor);
static_assert(sizeof(struct DLManagedTensorVersioned) == sizeof(struct bxi_dl_versioned), "versioned");
static_assert(BXI_DL_READ_ONLY == DLPACK_FLAG_BITMASK_READ_ONLY, "flags");
static_assert((int)BXI_DL_CPU == (int)kDLCPU && (int)BXI_DL_CUDA_HOST == (int)kDLCUDAHost, "devices");

static void are(const int64_t *actual, int count, const int64_t *expected)
{
    for (int i = 0; i < count; i++)
        cr_expect_eq(actual[i], expected[i], "number %d is %lld, not %lld", i, (long long)actual[i],
                     (long long)expected[i]);
}

/* ---- A library that makes DLPack structs ---------------------------------------------------------- */

struct theirs {
    DLManagedTensor managed;
    struct DLManagedTensorVersioned versioned;
    int deleted;
    float numbers[24];
};

static void delete_managed(DLManagedTensor *self)
{
    ((struct theirs *)self->manager_ctx)->deleted++;
}

static void delete_versioned(struct DLManagedTensorVersioned *self)
{
    ((struct theirs *)self->manager_ctx)->deleted++;
}

/* Makes both structs over the same f32 numbers, 0 to 23. */
static void make(struct theirs *theirs, int ndim, int64_t *shape)
{
    DLTensor tensor = {
        .data = theirs->numbers,
        .device = { kDLCPU, 0 },
        .ndim = ndim,
        .dtype = { kDLFloat, 32, 1 },
        .shape = shape,
    };

    *theirs = (struct theirs){ 0 };
    for (int i = 0; i < 24; i++)
        theirs->numbers[i] = (float)i;
    theirs->managed = (DLManagedTensor){ tensor, theirs, delete_managed };
    theirs->versioned = (struct DLManagedTensorVersioned){ { 1, 0 }, theirs, delete_versioned, 0, tensor };
}

static struct bx_tensor *take(struct theirs *theirs)
{
    struct bx_tensor *tensor = NULL;

    cr_assert_eq(bx_tensor_from_dlpack(&theirs->managed, -1, &tensor), 0, "%s", bx_error_text());
    return tensor;
}

/* ---- Export ------------------------------------------------------------------------------------ */

static void count_free(void *context)
{
    ++*(int *)context;
}

static struct bx_tensor *wrapped(float *numbers, int *freed)
{
    struct bx_tensor *tensor = NULL;

    cr_assert_eq(bx_tensor_wrap(numbers, BX_F32, 2, DIMS(2, 3), DIMS(1, 2), count_free, freed, &tensor), 0);
    return tensor;
}

TestSuite(dlpack, .timeout = 120);

static void is_exported(const DLTensor *tensor, const float *numbers)
{
    cr_expect_eq(tensor->data, numbers);
    cr_expect_eq(tensor->byte_offset, 0);
    cr_expect_eq(tensor->device.device_type, kDLCPU);
    cr_expect_eq(tensor->device.device_id, 0);
    cr_expect_eq(tensor->ndim, 2);
    are(tensor->shape, 2, DIMS(2, 3));
    are(tensor->strides, 2, DIMS(1, 2));
}

Test(dlpack, exports_without_a_copy_and_keeps_the_memory)
{
    float numbers[6] = { 0 };
    int freed = 0;
    struct bx_tensor *tensor = wrapped(numbers, &freed);
    DLManagedTensor *managed = NULL;
    struct DLManagedTensorVersioned *versioned = NULL;

    cr_assert_eq(bx_tensor_to_dlpack(tensor, -1, &managed), 0);
    cr_assert_eq(bx_tensor_to_dlpack_versioned(tensor, -1, &versioned), 0);
    bx_tensor_release(tensor);
    is_exported(&managed->dl_tensor, numbers);
    is_exported(&versioned->dl_tensor, numbers);
    cr_expect_eq(versioned->version.major, 1);
    cr_expect_eq(versioned->flags, 0);
    managed->deleter(managed);
    cr_expect_eq(freed, 0);
    versioned->deleter(versioned);
    cr_expect_eq(freed, 1);
}

Test(dlpack, exports_from_the_first_element_of_a_view)
{
    int64_t shape[2] = { 4, 6 };
    OWN(tensor) *tensor = NULL, *view = NULL;
    DLManagedTensor *managed = NULL;

    cr_assert_eq(bx_tensor_create(NULL, BX_F64, 2, shape, &tensor), 0);
    cr_assert_eq(bx_tensor_slice(tensor, 1, 2, 6, 2, &view), 0);
    cr_assert_eq(bx_tensor_to_dlpack(view, -1, &managed), 0);
    cr_expect_eq((char *)managed->dl_tensor.data + managed->dl_tensor.byte_offset,
                 (const char *)bx_tensor_data(tensor) + 16);
    are(managed->dl_tensor.strides, 2, DIMS(6, 2));

    /* A framework that changes the strides changes only its own copy. */
    managed->dl_tensor.strides[0] = 1;
    cr_expect_eq(bx_tensor_strides(view)[0], 6);
    managed->deleter(managed);
}

Test(dlpack, exports_a_tensor_without_elements_without_data)
{
    struct bx_tensor *tensor = NULL, *back = NULL;
    DLManagedTensor *managed = NULL;

    cr_assert_eq(bx_tensor_create(NULL, BX_F32, 2, DIMS(3, 0), &tensor), 0);
    cr_assert_eq(bx_tensor_to_dlpack(tensor, -1, &managed), 0);
    bx_tensor_release(tensor);
    cr_expect_null(managed->dl_tensor.data);
    cr_assert_eq(bx_tensor_from_dlpack(managed, -1, &back), 0);
    cr_expect_eq(bx_tensor_elements(back), 0);
    cr_expect_eq(bx_tensor_dim(back, 0), 3);
    bx_tensor_release(back);
}

/* ---- Round trips --------------------------------------------------------------------------------- */

static const struct {
    enum bx_dtype dtype;
    uint8_t code, code_unversioned, bits;
} types[] = {
    { BX_F32, kDLFloat, kDLFloat, 32 }, { BX_F64, kDLFloat, kDLFloat, 64 }, { BX_F16, kDLFloat, kDLFloat, 16 },
    { BX_BF16, kDLBfloat, kDLBfloat, 16 }, { BX_I32, kDLInt, kDLInt, 32 }, { BX_I64, kDLInt, kDLInt, 64 },
    { BX_U8, kDLUInt, kDLUInt, 8 }, { BX_BOOL, kDLBool, kDLUInt, 8 }, { BX_I8, kDLInt, kDLInt, 8 },
    { BX_I16, kDLInt, kDLInt, 16 }, { BX_U16, kDLUInt, kDLUInt, 16 }, { BX_U32, kDLUInt, kDLUInt, 32 },
    { BX_U64, kDLUInt, kDLUInt, 64 }, { BX_F8_E4M3FN, FLOAT8_E4M3FN, FLOAT8_E4M3FN, 8 },
    { BX_F8_E5M2, FLOAT8_E5M2, FLOAT8_E5M2, 8 }, { BX_C64, kDLComplex, kDLComplex, 64 },
    { BX_C128, kDLComplex, kDLComplex, 128 },
};

Test(dlpack, keeps_every_dtype_in_a_round_trip)
{
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        struct bx_tensor *tensor = NULL, *back = NULL;
        DLManagedTensor *managed = NULL;
        struct DLManagedTensorVersioned *versioned = NULL;
        const void *data;

        cr_assert_eq(bx_tensor_create(NULL, types[i].dtype, 3, DIMS(2, 3, 4), &tensor), 0);
        data = bx_tensor_data(tensor);
        cr_assert_eq(bx_tensor_to_dlpack(tensor, -1, &managed), 0);
        cr_assert_eq(bx_tensor_to_dlpack_versioned(tensor, -1, &versioned), 0);
        bx_tensor_release(tensor);

        cr_expect_eq(managed->dl_tensor.dtype.code, types[i].code_unversioned);
        cr_expect_eq(managed->dl_tensor.dtype.bits, types[i].bits);
        cr_expect_eq(managed->dl_tensor.dtype.lanes, 1);
        cr_assert_eq(bx_tensor_from_dlpack(managed, -1, &back), 0);
        cr_expect_eq(bx_tensor_dtype(back), types[i].dtype == BX_BOOL ? BX_U8 : types[i].dtype);
        cr_expect_eq(bx_tensor_data_mut(back), data);
        bx_tensor_release(back);

        cr_expect_eq(versioned->dl_tensor.dtype.code, types[i].code);
        cr_expect_eq(versioned->dl_tensor.dtype.bits, types[i].bits);
        cr_assert_eq(bx_tensor_from_dlpack_versioned(versioned, -1, &back), 0);
        cr_expect_eq(bx_tensor_dtype(back), types[i].dtype);
        cr_expect_eq(bx_tensor_data_mut(back), data);
        are(bx_tensor_shape(back), 3, DIMS(2, 3, 4));
        are(bx_tensor_strides(back), 3, DIMS(12, 4, 1));
        bx_tensor_release(back);
    }
}

Test(dlpack, keeps_a_scalar_in_a_round_trip)
{
    struct bx_tensor *tensor = NULL, *back = NULL;
    DLManagedTensor *managed = NULL;

    cr_assert_eq(bx_tensor_create(NULL, BX_I32, 0, NULL, &tensor), 0);
    *(int32_t *)bx_tensor_data_mut(tensor) = 42;
    cr_assert_eq(bx_tensor_to_dlpack(tensor, -1, &managed), 0);
    bx_tensor_release(tensor);
    cr_assert_eq(bx_tensor_from_dlpack(managed, -1, &back), 0);
    cr_expect_eq(bx_tensor_ndim(back), 0);
    cr_expect_eq(*(const int32_t *)bx_tensor_data(back), 42);
    bx_tensor_release(back);
}

/* ---- Import ------------------------------------------------------------------------------------ */

Test(dlpack, calls_the_deleter_once_when_the_last_view_is_dropped)
{
    struct theirs theirs;
    int64_t shape[2] = { 4, 6 };

    make(&theirs, 2, shape);

    struct bx_tensor *tensor = take(&theirs), *view = NULL;

    shape[0] = 99;              /* shape and strides are copied */
    cr_expect_eq(bx_tensor_dim(tensor, 0), 4);
    cr_expect_eq(bx_tensor_data(tensor), theirs.numbers);
    cr_expect_eq(bx_tensor_data_mut(tensor), theirs.numbers);
    are(bx_tensor_strides(tensor), 2, DIMS(6, 1));
    cr_assert_eq(bx_tensor_select(tensor, 0, 2, &view), 0);
    bx_tensor_release(tensor);
    cr_expect_eq(theirs.deleted, 0);
    cr_expect(*(const float *)bx_tensor_data(view) == 12);
    bx_tensor_release(view);
    cr_expect_eq(theirs.deleted, 1);
}

Test(dlpack, imports_a_struct_without_a_deleter)
{
    struct theirs theirs;
    struct bx_tensor *tensor = NULL;

    make(&theirs, 1, DIMS(24));
    theirs.managed.deleter = NULL;
    theirs.versioned.deleter = NULL;
    bx_tensor_release(take(&theirs));
    cr_assert_eq(bx_tensor_from_dlpack_versioned(&theirs.versioned, -1, &tensor), 0);
    bx_tensor_release(tensor);
    cr_expect_eq(theirs.deleted, 0);
}

Test(dlpack, imports_from_the_byte_offset_and_keeps_strides)
{
    struct theirs theirs;

    make(&theirs, 2, DIMS(3, 2));
    theirs.managed.dl_tensor.byte_offset = 5 * sizeof(float);
    theirs.managed.dl_tensor.strides = DIMS(1, 6);

    struct bx_tensor *tensor = take(&theirs), *copy = NULL;
    const float *numbers;

    cr_expect_eq(bx_tensor_data(tensor), theirs.numbers + 5);
    cr_expect(!bx_tensor_is_contiguous(tensor));
    cr_assert_eq(bx_tensor_copy(NULL, tensor, &copy), 0);
    numbers = bx_tensor_data(copy);
    for (int i = 0; i < 6; i++)
        cr_expect(numbers[i] == (float)(5 + i / 2 + i % 2 * 6), "number %d", i);
    bx_tensor_release(copy);
    bx_tensor_release(tensor);
    cr_expect_eq(theirs.deleted, 1);
}

Test(dlpack, imports_pinned_host_memory)
{
    struct theirs theirs;

    make(&theirs, 1, DIMS(24));
    theirs.managed.dl_tensor.device.device_type = kDLCUDAHost;

    struct bx_tensor *tensor = take(&theirs);

    cr_expect_eq(bx_tensor_device(tensor).kind, BX_CPU);
    bx_tensor_release(tensor);
    cr_expect_eq(theirs.deleted, 1);
}

Test(dlpack, keeps_read_only_memory_read_only)
{
    struct theirs theirs;
    struct bx_tensor *tensor = NULL, *view = NULL, *copy = NULL, *again = NULL;
    struct DLManagedTensorVersioned *out = NULL;

    make(&theirs, 2, DIMS(4, 6));
    theirs.versioned.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
    theirs.versioned.version.minor = 7;
    cr_assert_eq(bx_tensor_from_dlpack_versioned(&theirs.versioned, -1, &tensor), 0);
    cr_expect_null(bx_tensor_data_mut(tensor));
    cr_expect_eq(bx_tensor_data(tensor), theirs.numbers);

    cr_assert_eq(bx_tensor_transpose(tensor, 0, 1, &view), 0);
    cr_expect_null(bx_tensor_data_mut(view));
    cr_assert_eq(bx_tensor_copy(NULL, view, &copy), 0);
    cr_expect_not_null(bx_tensor_data_mut(copy));
    cr_expect_eq(bx_tensor_copy_into(view, copy), -EROFS);
    cr_expect_eq(theirs.numbers[1], 1);

    cr_assert_eq(bx_tensor_to_dlpack_versioned(view, -1, &out), 0);
    cr_expect_eq(out->flags, DLPACK_FLAG_BITMASK_READ_ONLY);
    bx_tensor_release(copy);
    bx_tensor_release(view);
    bx_tensor_release(tensor);
    cr_assert_eq(bx_tensor_from_dlpack_versioned(out, -1, &again), 0);
    cr_expect_null(bx_tensor_data_mut(again));
    cr_expect_eq(theirs.deleted, 0);
    bx_tensor_release(again);
    cr_expect_eq(theirs.deleted, 1);
}

/* ---- Refused ------------------------------------------------------------------------------------- */

/* Both structs are refused with `code`, and their deleters are not called. */
static void refuses(struct theirs *theirs, int code, const char *part)
{
    struct bx_tensor *tensor = NULL;

    theirs->versioned.dl_tensor = theirs->managed.dl_tensor;
    cr_expect_eq(bx_tensor_from_dlpack(&theirs->managed, -1, &tensor), code, "%s", part);
    cr_expect_not_null(strstr(bx_error_text(), part), "%s", bx_error_text());
    cr_expect_eq(bx_tensor_from_dlpack_versioned(&theirs->versioned, -1, &tensor), code, "%s", part);
    cr_expect_not_null(strstr(bx_error_text(), part), "%s", bx_error_text());
    cr_expect_null(tensor);
    cr_expect_eq(theirs->deleted, 0);
}

Test(dlpack, refuses_types_that_have_no_dtype)
{
    static const DLDataType unknown[] = {
        { kDLFloat, 8, 1 },  { kDLFloat, 128, 1 }, { kDLInt, 128, 1 },    { kDLInt, 12, 1 }, { kDLInt, 4, 1 },
        { kDLUInt, 24, 1 },  { kDLUInt, 1, 1 },    { kDLComplex, 32, 1 }, { kDLBool, 1, 1 }, { kDLBfloat, 32, 1 },
        { kDLOpaqueHandle, 64, 1 }, { 17, 4, 1 }, { 8, 8, 1 }, { FLOAT8_E5M2, 16, 1 },
    };
    struct theirs theirs;

    make(&theirs, 1, DIMS(2));
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        theirs.managed.dl_tensor.dtype = unknown[i];
        refuses(&theirs, -ENOTSUP, "no dtype");
    }
    theirs.managed.dl_tensor.dtype = (DLDataType){ kDLFloat, 32, 4 };
    refuses(&theirs, -ENOTSUP, "4 lanes");
    theirs.managed.dl_tensor.dtype = (DLDataType){ kDLFloat, 32, 0 };
    refuses(&theirs, -ENOTSUP, "0 lanes");
}

Test(dlpack, refuses_devices_that_are_neither_host_memory_nor_cuda)
{
    static const DLDeviceType devices[] = { kDLOpenCL, kDLROCM, kDLROCMHost, kDLCUDAManaged };
    struct theirs theirs;

    make(&theirs, 1, DIMS(2));
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        theirs.managed.dl_tensor.device.device_type = devices[i];
        refuses(&theirs, -ENOTSUP, "host memory");
    }
}

Test(dlpack, refuses_device_memory_while_no_gpu_is_open)
{
    struct theirs theirs;

    make(&theirs, 1, DIMS(2));
    theirs.managed.dl_tensor.device = (DLDevice){ kDLCUDA, 3 };
    refuses(&theirs, -ENODEV, "cuda:3, and no GPU is open");
}

Test(dlpack, refuses_another_major_version)
{
    struct theirs theirs;
    struct bx_tensor *tensor = NULL;

    make(&theirs, 1, DIMS(2));
    theirs.versioned.version.major = 2;
    cr_expect_eq(bx_tensor_from_dlpack_versioned(&theirs.versioned, -1, &tensor), -ENOTSUP);
    cr_expect_not_null(strstr(bx_error_text(), "version 2.0"), "%s", bx_error_text());
    theirs.versioned.version.major = 0;
    cr_expect_eq(bx_tensor_from_dlpack_versioned(&theirs.versioned, -1, &tensor), -ENOTSUP);
    cr_expect_null(tensor);
    cr_expect_eq(theirs.deleted, 0);
}

Test(dlpack, refuses_shapes_that_are_invalid)
{
    struct theirs theirs;

    make(&theirs, 9, DIMS(1, 1, 1, 1, 1, 1, 1, 1, 1));
    refuses(&theirs, -EINVAL, "0 to 8 dimensions");
    make(&theirs, -1, DIMS(1));
    refuses(&theirs, -EINVAL, "0 to 8 dimensions");
    make(&theirs, 1, NULL);
    refuses(&theirs, -EINVAL, "needs a shape");
    make(&theirs, 1, DIMS(-2));
    refuses(&theirs, -EINVAL, "dimension 0 is -2");
    make(&theirs, 2, DIMS(INT64_MAX, 2));
    refuses(&theirs, -EOVERFLOW, "more bytes");
    make(&theirs, 1, DIMS(2));
    theirs.managed.dl_tensor.strides = DIMS(-1);
    refuses(&theirs, -EINVAL, "stride of dimension 0 is -1");
    make(&theirs, 1, DIMS(2));
    theirs.managed.dl_tensor.byte_offset = UINT64_MAX;
    refuses(&theirs, -EOVERFLOW, "byte_offset");
    make(&theirs, 1, DIMS(2));
    theirs.managed.dl_tensor.data = NULL;
    refuses(&theirs, -EINVAL, "no memory");
}

/* A reversed view of one element, as numpy makes it: the stride has no meaning. */
Test(dlpack, accepts_a_negative_stride_where_there_is_one_element)
{
    for (int i = 0; i < 2; i++) {
        struct theirs theirs;
        struct bx_tensor *tensor, *view = NULL;

        make(&theirs, 2, i == 0 ? DIMS(1, 6) : DIMS(0, 6));
        theirs.managed.dl_tensor.strides = DIMS(-6, 1);
        tensor = take(&theirs);
        are(bx_tensor_strides(tensor), 2, DIMS(6, 1));
        cr_expect(bx_tensor_is_contiguous(tensor));
        cr_expect_eq(bx_tensor_slice(tensor, 1, 0, 6, 2, &view), 0);
        are(bx_tensor_strides(view), 2, DIMS(6, 2));
        bx_tensor_release(view);
        bx_tensor_release(tensor);
        cr_expect_eq(theirs.deleted, 1);
    }
}

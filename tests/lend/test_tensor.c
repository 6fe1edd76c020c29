/* SPDX-License-Identifier: MIT */
/*
 * lib/lend/tensor.c and lib/lend/tensor_view.c without a job: tensors on the heap and in wrapped memory, views, copies,
 * reference counts, and errors. Other files, which have workers, test tensors of an arena.
 */
#include "tests/harness/test.h"
#include "boxcar.h"

#define DIMS(...) (const int64_t[]){ __VA_ARGS__ }

static const enum bx_dtype all_dtypes[] = { BX_F32, BX_F64, BX_F16, BX_BF16, BX_I32, BX_I64, BX_U8, BX_BOOL, BX_I8,
                                            BX_I16, BX_U16, BX_U32, BX_U64, BX_F8_E4M3FN, BX_F8_E5M2, BX_C64,
                                            BX_C128 };
#define DTYPES (sizeof all_dtypes / sizeof all_dtypes[0])

/* Tensors of a test, which are released when it ends. */
static struct bx_tensor *kept[128];
static size_t kept_count;

/* Where the next one is to be put. */
static struct bx_tensor **place(void)
{
    return &kept[kept_count];
}

/* The call that got the place has returned rc. */
static struct bx_tensor *made(int rc)
{
    cr_assert_eq(rc, 0, "%s", bx_error_text());
    cr_assert_not_null(kept[kept_count]);
    cr_assert_lt(kept_count + 1, sizeof kept / sizeof kept[0]);
    return kept[kept_count++];
}

static void release_kept(void)
{
    while (kept_count > 0)
        bx_tensor_release(kept[--kept_count]);
}

static struct bx_tensor *create(enum bx_dtype dtype, int ndim, const int64_t *shape)
{
    return made(bx_tensor_create(NULL, dtype, ndim, shape, place()));
}

/* 0, 1, 2, ... in row-major order. */
static struct bx_tensor *counting(int ndim, const int64_t *shape)
{
    struct bx_tensor *tensor = create(BX_I32, ndim, shape);
    int32_t *data = bx_tensor_data_mut(tensor);

    for (int64_t i = 0; i < bx_tensor_elements(tensor); i++)
        data[i] = (int32_t)i;
    return tensor;
}

static int32_t at(const struct bx_tensor *tensor, const int64_t *index)
{
    const int32_t *data = bx_tensor_data(tensor);
    int64_t offset = 0;

    for (int i = 0; i < bx_tensor_ndim(tensor); i++)
        offset += index[i] * bx_tensor_strides(tensor)[i];
    return data[offset];
}

static void count(void *context)
{
    ++*(int *)context;
}

static void has_shape(const struct bx_tensor *tensor, int ndim, const int64_t *shape)
{
    cr_assert_eq(bx_tensor_ndim(tensor), ndim);
    for (int i = 0; i < ndim; i++) {
        cr_expect_eq(bx_tensor_shape(tensor)[i], shape[i], "dimension %d", i);
        cr_expect_eq(bx_tensor_dim(tensor, i), shape[i], "dimension %d", i);
    }
}

static void has_strides(const struct bx_tensor *tensor, const int64_t *strides)
{
    for (int i = 0; i < bx_tensor_ndim(tensor); i++)
        cr_expect_eq(bx_tensor_strides(tensor)[i], strides[i], "stride %d is %lld", i,
                     (long long)bx_tensor_strides(tensor)[i]);
}

/* ---- dtypes ---------------------------------------------------------------------------------- */

TestSuite(tensor, .timeout = 120, .fini = release_kept);

Test(tensor, knows_its_dtypes)
{
    static const size_t bytes[] = { 4, 8, 2, 2, 4, 8, 1, 1, 1, 2, 2, 4, 8, 1, 1, 8, 16 };
    static const char *const names[] = { "f32", "f64", "f16", "bf16", "i32", "i64", "u8", "bool", "i8", "i16", "u16",
                                         "u32", "u64", "f8e4m3fn", "f8e5m2", "c64", "c128" };

    for (size_t i = 0; i < DTYPES; i++) {
        cr_expect_eq(bx_dtype_bytes(all_dtypes[i]), bytes[i]);
        cr_expect_str_eq(bx_dtype_name(all_dtypes[i]), names[i]);
    }
    cr_expect_eq(bx_dtype_bytes((enum bx_dtype)0), 0);
    cr_expect_eq(bx_dtype_bytes((enum bx_dtype)(BX_C128 + 1)), 0);
    cr_expect_eq(bx_dtype_bytes((enum bx_dtype)-1), 0);
    cr_expect_str_eq(bx_dtype_name((enum bx_dtype)0), "?");
    cr_expect_str_eq(bx_dtype_name((enum bx_dtype)(BX_C128 + 1)), "?");
}

/* ---- create ---------------------------------------------------------------------------------- */

Test(tensor, is_row_major_and_aligned_when_it_is_created)
{
    for (size_t i = 0; i < DTYPES; i++) {
        struct bx_tensor *tensor = create(all_dtypes[i], 3, DIMS(2, 3, 5));

        has_shape(tensor, 3, DIMS(2, 3, 5));
        has_strides(tensor, DIMS(15, 5, 1));
        cr_expect_eq(bx_tensor_dtype(tensor), all_dtypes[i]);
        cr_expect_eq(bx_tensor_elements(tensor), 30);
        cr_expect_eq(bx_tensor_bytes(tensor), 30 * bx_dtype_bytes(all_dtypes[i]));
        cr_expect(bx_tensor_is_contiguous(tensor));
        cr_expect(!bx_tensor_is_borrowed(tensor));
        cr_expect(!bx_tensor_is_shared(tensor));
        cr_expect_eq(bx_tensor_on_loan(tensor), 0);
        cr_expect_eq(bx_tensor_device(tensor).kind, BX_CPU);
        cr_expect_eq(bx_tensor_device(tensor).index, 0);
        cr_expect_eq((uintptr_t)bx_tensor_data(tensor) % 64, 0);
        cr_expect_eq(bx_tensor_data_mut(tensor), bx_tensor_data(tensor));
        memset(bx_tensor_data_mut(tensor), 0xa5, bx_tensor_bytes(tensor));
    }
}

Test(tensor, may_have_no_elements)
{
    struct bx_tensor *tensor = create(BX_F32, 3, DIMS(4, 0, 3));

    cr_expect_eq(bx_tensor_elements(tensor), 0);
    cr_expect_eq(bx_tensor_bytes(tensor), 0);
    cr_expect(bx_tensor_is_contiguous(tensor));
    cr_expect_not_null(bx_tensor_data(tensor));
    has_shape(tensor, 3, DIMS(4, 0, 3));
}

Test(tensor, returns_0_for_a_dimension_beyond_its_last)
{
    struct bx_tensor *tensor = create(BX_U8, 2, DIMS(2, 3));

    cr_expect_eq(bx_tensor_dim(tensor, -1), 0);
    cr_expect_eq(bx_tensor_dim(tensor, 2), 0);
    cr_expect_eq(bx_tensor_dim(tensor, 1), 3);
}

Test(tensor, of_a_wrong_shape_is_not_created)
{
    struct bx_tensor *tensor = NULL;
    int64_t nine[9] = { 1, 1, 1, 1, 1, 1, 1, 1, 1 };

    cr_expect_eq(bx_tensor_create(NULL, (enum bx_dtype)0, 1, DIMS(1), &tensor), -EINVAL);
    cr_expect_eq(bx_tensor_create(NULL, (enum bx_dtype)(BX_C128 + 1), 1, DIMS(1), &tensor), -EINVAL);
    cr_expect_eq(bx_tensor_create(NULL, BX_F32, -1, DIMS(1), &tensor), -EINVAL);
    cr_expect_eq(bx_tensor_create(NULL, BX_F32, 9, nine, &tensor), -EINVAL);
    cr_expect_eq(bx_tensor_create(NULL, BX_F32, 2, DIMS(2, -1), &tensor), -EINVAL);
    cr_expect_not_null(strstr(bx_error_text(), "dimension 1 is -1"), "%s", bx_error_text());
    cr_expect_null(tensor);
    tensor = create(BX_F32, 8, nine);
}

Test(tensor, whose_size_overflows_is_not_created)
{
    struct bx_tensor *tensor = NULL;

    cr_expect_eq(bx_tensor_create(NULL, BX_U8, 2, DIMS(INT64_MAX, 2), &tensor), -EOVERFLOW);
    cr_expect_eq(bx_tensor_create(NULL, BX_F32, 1, DIMS(INT64_MAX / 2), &tensor), -EOVERFLOW);
    cr_expect_eq(bx_tensor_create(NULL, BX_F64, 3, DIMS(1 << 30, 1 << 30, 1 << 30), &tensor), -EOVERFLOW);
    cr_expect_eq(bx_tensor_create(NULL, BX_F32, 2, DIMS(INT64_C(1) << 62, 4), &tensor), -EOVERFLOW);
    /* The memory is one element (stride 0), but the product of elements and size overflows. */
    cr_expect_eq(bx_tensor_wrap(&tensor, BX_F64, 1, DIMS(INT64_C(1) << 61), DIMS(0), NULL, NULL, &tensor), -EOVERFLOW);
    /* The number of elements is 0, but a stride overflows 64 bits. */
    cr_expect_eq(bx_tensor_create(NULL, BX_U8, 3, DIMS(0, INT64_MAX, 2), &tensor), -EOVERFLOW);
    cr_expect_null(tensor);
}

Test(tensor, fails_if_there_is_no_memory)
{
    struct bx_tensor *tensor = NULL;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    cr_skip_test("a sanitizer ends the process when an allocation is too large");
#endif
    cr_expect_eq(bx_tensor_create(NULL, BX_U8, 1, DIMS(INT64_MAX - 4096), &tensor), -ENOMEM);
    cr_expect_null(tensor);
}

/* ---- wrap ------------------------------------------------------------------------------------ */

Test(tensor, wraps_memory_and_frees_it_once)
{
    float numbers[6] = { 0, 1, 2, 3, 4, 5 };
    int freed = 0;
    struct bx_tensor *tensor = NULL, *row = NULL;

    cr_assert_eq(bx_tensor_wrap(numbers, BX_F32, 2, DIMS(2, 3), NULL, count, &freed, &tensor), 0);
    cr_expect_eq(bx_tensor_data(tensor), numbers);
    cr_expect_eq(bx_tensor_data_mut(tensor), numbers);
    has_strides(tensor, DIMS(3, 1));
    cr_expect(!bx_tensor_is_shared(tensor));
    cr_expect(!bx_tensor_is_borrowed(tensor));
    cr_assert_eq(bx_tensor_select(tensor, 0, 1, &row), 0);
    cr_expect_eq(bx_tensor_acquire(tensor), tensor);
    bx_tensor_release(tensor);
    bx_tensor_release(tensor);
    cr_expect_eq(freed, 0, "a view still holds it");
    cr_expect(((const float *)bx_tensor_data(row))[0] == 3);
    cr_expect_eq(bx_tensor_acquire(row), row);
    bx_tensor_release(row);
    cr_expect_eq(freed, 0);
    bx_tensor_release(row);
    cr_expect_eq(freed, 1);
}

Test(tensor, wraps_any_strides_that_are_not_negative)
{
    int32_t numbers[12] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 };
    struct bx_tensor *tensor = made(bx_tensor_wrap(numbers, BX_I32, 2, DIMS(4, 3), DIMS(1, 4), NULL, NULL, place()));

    cr_expect(!bx_tensor_is_contiguous(tensor));
    cr_expect_eq(at(tensor, DIMS(3, 2)), 11);
    cr_expect_eq(at(tensor, DIMS(1, 2)), 9);

    tensor = made(bx_tensor_wrap(numbers, BX_I32, 2, DIMS(5, 2), DIMS(0, 6), NULL, NULL, place()));
    cr_expect(!bx_tensor_is_contiguous(tensor));
    cr_expect_eq(bx_tensor_elements(tensor), 10, "a stride of 0 repeats");
    cr_expect_eq(at(tensor, DIMS(4, 1)), 6);

    /* The stride of a dimension of 1 is never used, and neither is one of an empty tensor. */
    tensor = made(bx_tensor_wrap(numbers, BX_I32, 3, DIMS(2, 1, 3), DIMS(3, 99, 1), NULL, NULL, place()));
    cr_expect(bx_tensor_is_contiguous(tensor));
    tensor = made(bx_tensor_wrap(NULL, BX_I32, 2, DIMS(0, 3), DIMS(1, 7), NULL, NULL, place()));
    cr_expect(bx_tensor_is_contiguous(tensor));
}

Test(tensor, does_not_wrap_invalid_shapes_and_strides)
{
    float numbers[4] = { 0 };
    int freed = 0;
    struct bx_tensor *tensor = NULL;

    cr_expect_eq(bx_tensor_wrap(numbers, (enum bx_dtype)77, 1, DIMS(4), NULL, count, &freed, &tensor), -EINVAL);
    cr_expect_eq(bx_tensor_wrap(numbers, BX_F32, 1, DIMS(-4), NULL, count, &freed, &tensor), -EINVAL);
    cr_expect_eq(bx_tensor_wrap(numbers, BX_F32, 1, DIMS(4), DIMS(-1), count, &freed, &tensor), -EINVAL);
    cr_expect_not_null(strstr(bx_error_text(), "stride of dimension 0 is -1"), "%s", bx_error_text());
    cr_expect_eq(bx_tensor_wrap(numbers, BX_F32, 2, DIMS(3, 2), DIMS(INT64_MAX, 1), count, &freed, &tensor),
                 -EOVERFLOW);
    cr_expect_eq(bx_tensor_wrap(numbers, BX_F32, 2, DIMS(2, 2), DIMS(INT64_MAX, 1), count, &freed, &tensor),
                 -EOVERFLOW, "the sum of both");
    cr_expect_eq(bx_tensor_wrap(numbers, BX_F32, 1, DIMS(2), DIMS(INT64_MAX / 4), count, &freed, &tensor),
                 -EOVERFLOW, "in bytes");
    cr_expect_eq(bx_tensor_wrap(numbers, BX_F32, 2, DIMS(INT64_MAX, 2), DIMS(0, 0), count, &freed, &tensor),
                 -EOVERFLOW, "its elements");
    cr_expect_eq(bx_tensor_wrap((void *)(UINTPTR_MAX - 7), BX_U8, 1, DIMS(9), NULL, count, &freed, &tensor),
                 -EOVERFLOW, "the end of memory");
    cr_expect_null(tensor);
    cr_expect_eq(freed, 0);
}

/* ---- Views ------------------------------------------------------------------------------------- */

Test(tensor, slices_a_dimension)
{
    struct bx_tensor *tensor = counting(2, DIMS(4, 6));
    struct bx_tensor *view = made(bx_tensor_slice(tensor, 0, 1, 3, 1, place()));

    has_shape(view, 2, DIMS(2, 6));
    cr_expect(bx_tensor_is_contiguous(view));
    cr_expect_eq(at(view, DIMS(0, 0)), 6);
    cr_expect_eq(at(view, DIMS(1, 5)), 17);

    view = made(bx_tensor_slice(tensor, 1, 1, 6, 2, place()));
    has_shape(view, 2, DIMS(4, 3));
    has_strides(view, DIMS(6, 2));
    cr_expect(!bx_tensor_is_contiguous(view));
    cr_expect_eq(bx_tensor_bytes(view), 48);
    cr_expect_eq(at(view, DIMS(0, 0)), 1);
    cr_expect_eq(at(view, DIMS(3, 2)), 23);

    view = made(bx_tensor_slice(tensor, 1, 1, 6, 3, place()));
    has_shape(view, 2, DIMS(4, 2));             /* 1 and 4 */

    view = made(bx_tensor_slice(tensor, 1, 2, 4, INT64_MAX, place()));
    has_shape(view, 2, DIMS(4, 1));
    cr_expect_eq(at(view, DIMS(1, 0)), 8);
}

Test(tensor, slices_to_an_empty_view)
{
    struct bx_tensor *tensor = counting(2, DIMS(4, 6)), *view = NULL, *again = NULL;

    view = made(bx_tensor_slice(tensor, 1, 6, 6, 1, place()));
    has_shape(view, 2, DIMS(4, 0));
    cr_expect_eq(bx_tensor_elements(view), 0);
    again = made(bx_tensor_slice(view, 0, 4, 4, 2, place()));
    has_shape(again, 2, DIMS(0, 0));
    cr_expect_eq(bx_tensor_data(again), bx_tensor_data(tensor));
}

Test(tensor, does_not_slice_out_of_range)
{
    struct bx_tensor *tensor = counting(2, DIMS(4, 6)), *view = NULL;

    cr_expect_eq(bx_tensor_slice(tensor, 0, 0, 5, 1, &view), -EINVAL);
    cr_expect_eq(bx_tensor_slice(tensor, 0, -1, 3, 1, &view), -EINVAL);
    cr_expect_eq(bx_tensor_slice(tensor, 0, 3, 2, 1, &view), -EINVAL);
    cr_expect_eq(bx_tensor_slice(tensor, 0, 5, 5, 1, &view), -EINVAL);
    cr_expect_eq(bx_tensor_slice(tensor, 0, 0, 4, 0, &view), -EINVAL);
    cr_expect_eq(bx_tensor_slice(tensor, 0, 0, 4, -1, &view), -EINVAL);
    cr_expect_eq(bx_tensor_slice(tensor, 2, 0, 1, 1, &view), -EINVAL);
    cr_expect_eq(bx_tensor_slice(tensor, -1, 0, 1, 1, &view), -EINVAL);
    cr_expect_null(view);
}

Test(tensor, selects_an_index_and_drops_the_dimension)
{
    struct bx_tensor *tensor = counting(3, DIMS(2, 3, 4)), *view = NULL, *scalar = NULL;

    view = made(bx_tensor_select(tensor, 1, 2, place()));
    has_shape(view, 2, DIMS(2, 4));
    has_strides(view, DIMS(12, 1));
    cr_expect(!bx_tensor_is_contiguous(view));
    cr_expect_eq(at(view, DIMS(1, 3)), 23);
    cr_expect_eq(at(view, DIMS(0, 0)), 8);

    view = made(bx_tensor_select(tensor, 0, 1, place()));
    cr_expect(bx_tensor_is_contiguous(view));
    tensor = view;
    view = made(bx_tensor_select(tensor, 0, 1, place()));
    scalar = made(bx_tensor_select(view, 0, 3, place()));
    cr_expect_eq(bx_tensor_ndim(scalar), 0);
    cr_expect_eq(at(scalar, NULL), 19);

    struct bx_tensor *none = NULL;

    cr_expect_eq(bx_tensor_select(tensor, 0, 3, &none), -EINVAL);
    cr_expect_eq(bx_tensor_select(tensor, 0, -1, &none), -EINVAL);
    cr_expect_eq(bx_tensor_select(tensor, 2, 0, &none), -EINVAL);
    cr_expect_eq(bx_tensor_select(scalar, 0, 0, &none), -EINVAL);
    tensor = made(bx_tensor_create(NULL, BX_F32, 2, DIMS(0, 9), place()));
    view = made(bx_tensor_select(tensor, 1, 8, place()));
    has_shape(view, 1, DIMS(0));
    cr_expect_eq(bx_tensor_data(view), bx_tensor_data(tensor));
    cr_expect_null(none);
}

Test(tensor, transposes)
{
    struct bx_tensor *tensor = counting(3, DIMS(2, 3, 4)), *view = NULL, *back = NULL, *none = NULL;

    view = made(bx_tensor_transpose(tensor, 0, 2, place()));
    has_shape(view, 3, DIMS(4, 3, 2));
    has_strides(view, DIMS(1, 4, 12));
    cr_expect(!bx_tensor_is_contiguous(view));
    cr_expect_eq(at(view, DIMS(3, 1, 1)), 19);
    back = made(bx_tensor_transpose(view, 2, 0, place()));
    has_strides(back, DIMS(12, 4, 1));
    cr_expect(bx_tensor_is_contiguous(back));
    back = made(bx_tensor_transpose(tensor, 1, 1, place()));
    has_shape(back, 3, DIMS(2, 3, 4));
    cr_expect_eq(bx_tensor_transpose(tensor, 0, 3, &none), -EINVAL);
    cr_expect_eq(bx_tensor_transpose(tensor, -1, 0, &none), -EINVAL);
    cr_expect_null(none);
}

Test(tensor, reshapes_a_tensor_without_gaps)
{
    struct bx_tensor *tensor = counting(2, DIMS(4, 6)), *view = NULL, *none = NULL;

    view = made(bx_tensor_reshape(tensor, 3, DIMS(2, 3, 4), place()));
    has_strides(view, DIMS(12, 4, 1));
    cr_expect_eq(at(view, DIMS(1, 2, 3)), 23);
    cr_expect_eq(bx_tensor_data(view), bx_tensor_data(tensor));
    cr_expect_eq(bx_tensor_reshape(view, 1, DIMS(23), &none), -EINVAL);
    cr_expect_eq(bx_tensor_reshape(view, 0, NULL, &none), -EINVAL);
    cr_expect_eq(bx_tensor_reshape(view, 1, DIMS(-1), &none), -EINVAL);
    cr_expect_eq(bx_tensor_reshape(view, 9, DIMS(1, 1, 1, 1, 1, 1, 1, 1, 24), &none), -EINVAL);
    cr_expect_eq(bx_tensor_reshape(view, 2, DIMS(INT64_MAX, 8), &none), -EOVERFLOW);

    view = made(bx_tensor_transpose(tensor, 0, 1, place()));
    cr_expect_eq(bx_tensor_reshape(view, 1, DIMS(24), &none), -EINVAL);
    cr_expect_null(none);

    tensor = create(BX_F32, 2, DIMS(0, 6));
    view = made(bx_tensor_reshape(tensor, 1, DIMS(0), place()));
    has_shape(view, 1, DIMS(0));
}

Test(tensor, takes_any_strides_within_its_memory)
{
    struct bx_tensor *tensor = counting(1, DIMS(10)), *view = NULL, *none = NULL;

    /* Overlapping windows of 4 elements, each 1 further: 7 of them fit. */
    view = made(bx_tensor_as_strided(tensor, 0, 2, DIMS(7, 4), DIMS(1, 1), place()));
    cr_expect_eq(at(view, DIMS(6, 3)), 9);
    cr_expect_eq(at(view, DIMS(2, 1)), 3);
    cr_expect_eq(bx_tensor_as_strided(tensor, 0, 2, DIMS(8, 4), DIMS(1, 1), &none), -EINVAL);
    cr_expect_eq(bx_tensor_as_strided(tensor, 1, 2, DIMS(7, 4), DIMS(1, 1), &none), -EINVAL);

    view = made(bx_tensor_as_strided(tensor, 9, 1, DIMS(100), DIMS(0), place()));
    cr_expect_eq(at(view, DIMS(99)), 9);
    view = made(bx_tensor_as_strided(tensor, 10, 1, DIMS(0), DIMS(1), place()));
    cr_expect_eq(bx_tensor_elements(view), 0);
    view = made(bx_tensor_as_strided(tensor, 4, 2, DIMS(2, 3), NULL, place()));
    cr_expect_eq(at(view, DIMS(1, 2)), 9);

    /* The bound of a view of a view is the view, not the whole memory. */
    cr_expect_eq(bx_tensor_as_strided(view, 0, 1, DIMS(7), DIMS(1), &none), -EINVAL);
    cr_expect_eq(bx_tensor_as_strided(view, -1, 1, DIMS(1), DIMS(1), &none), -EINVAL);

    cr_expect_eq(bx_tensor_as_strided(tensor, 11, 1, DIMS(0), DIMS(1), &none), -EINVAL);
    cr_expect_eq(bx_tensor_as_strided(tensor, 0, 1, DIMS(2), DIMS(-1), &none), -EINVAL);
    cr_expect_eq(bx_tensor_as_strided(tensor, 1, 1, DIMS(2), DIMS(INT64_MAX), &none), -EOVERFLOW);
    cr_expect_eq(bx_tensor_as_strided(tensor, 1, 1, DIMS(2), DIMS(INT64_MAX / 4 - 1), &none), -EINVAL);
    cr_expect_null(none);
}

/* ---- Copies ------------------------------------------------------------------------------------ */

static void fill(struct bx_tensor *tensor)
{
    unsigned char *data = bx_tensor_data_mut(tensor);

    for (size_t i = 0; i < bx_tensor_bytes(tensor); i++)
        data[i] = (unsigned char)(i * 131 + (i >> 8) * 7 + 1);
}

static int64_t offset_of(const struct bx_tensor *tensor, int64_t index)
{
    int64_t offset = 0;

    for (int i = bx_tensor_ndim(tensor) - 1; i >= 0; i--) {
        offset += index % bx_tensor_dim(tensor, i) * bx_tensor_strides(tensor)[i];
        index /= bx_tensor_dim(tensor, i);
    }
    return offset;
}

/* Compares each element by its indices. */
static void are_equal(const struct bx_tensor *one, const struct bx_tensor *other)
{
    const unsigned char *a = bx_tensor_data(one), *b = bx_tensor_data(other);
    size_t size = bx_dtype_bytes(bx_tensor_dtype(one));
    int64_t differing = 0;

    cr_assert_eq(bx_tensor_elements(one), bx_tensor_elements(other));
    for (int64_t i = 0; i < bx_tensor_elements(one); i++)
        differing += memcmp(a + (size_t)offset_of(one, i) * size, b + (size_t)offset_of(other, i) * size, size) != 0;
    cr_expect_eq(differing, 0, "%lld of %lld elements differ", (long long)differing,
                 (long long)bx_tensor_elements(one));
}

static void copy_is_equal(const struct bx_tensor *tensor)
{
    OWN(tensor) *copy = NULL;

    cr_assert_eq(bx_tensor_copy(NULL, tensor, &copy), 0, "%s", bx_error_text());
    cr_expect(bx_tensor_is_contiguous(copy));
    cr_expect_eq(bx_tensor_dtype(copy), bx_tensor_dtype(tensor));
    cr_expect_neq(bx_tensor_data(copy), bx_tensor_data(tensor));
    has_shape(copy, bx_tensor_ndim(tensor), bx_tensor_shape(tensor));
    are_equal(copy, tensor);
}

Test(tensor, copies_every_dtype_transposed)
{
    static const int pairs[][2] = { { 0, 1 }, { 0, 2 }, { 1, 2 }, { 0, 3 }, { 2, 3 } };

    for (size_t i = 0; i < DTYPES; i++) {
        struct bx_tensor *tensor = create(all_dtypes[i], 4, DIMS(3, 17, 5, 35)), *view = NULL;

        fill(tensor);
        copy_is_equal(tensor);
        for (size_t p = 0; p < sizeof pairs / sizeof pairs[0]; p++) {
            view = made(bx_tensor_transpose(tensor, pairs[p][0], pairs[p][1], place()));
            copy_is_equal(view);
        }
    }
}

Test(tensor, copies_slices_scalars_and_repetitions)
{
    struct bx_tensor *tensor = create(BX_F16, 3, DIMS(6, 20, 9)), *view = NULL, *inner = NULL;

    fill(tensor);
    view = made(bx_tensor_slice(tensor, 1, 3, 19, 3, place()));
    copy_is_equal(view);
    inner = made(bx_tensor_slice(view, 2, 1, 8, 1, place()));
    copy_is_equal(inner);
    inner = made(bx_tensor_slice(view, 0, 5, 6, 1, place()));
    copy_is_equal(inner);
    view = made(bx_tensor_as_strided(tensor, 5, 3, DIMS(4, 1, 6), DIMS(0, 3, 2), place()));
    copy_is_equal(view);
    view = made(bx_tensor_as_strided(tensor, 7, 0, NULL, NULL, place()));
    copy_is_equal(view);
}

Test(tensor, copies_eight_dimensions_in_any_order)
{
    struct bx_tensor *tensor = create(BX_I64, 8, DIMS(2, 3, 2, 1, 3, 2, 2, 3)), *one = NULL, *two = NULL;

    fill(tensor);
    one = made(bx_tensor_transpose(tensor, 0, 7, place()));
    copy_is_equal(one);
    two = made(bx_tensor_transpose(one, 2, 4, place()));
    copy_is_equal(two);
}

Test(tensor, copies_an_empty_tensor)
{
    struct bx_tensor *tensor = create(BX_F32, 2, DIMS(0, 4)), *copy = NULL, *view = NULL;

    copy = made(bx_tensor_copy(NULL, tensor, place()));
    has_shape(copy, 2, DIMS(0, 4));
    view = made(bx_tensor_transpose(tensor, 0, 1, place()));
    copy = made(bx_tensor_copy(NULL, view, place()));
    has_shape(copy, 2, DIMS(4, 0));
}

Test(tensor, does_not_copy_into_another_dtype_or_shape)
{
    struct bx_tensor *from = counting(2, DIMS(2, 3)), *to = create(BX_F32, 2, DIMS(2, 3));

    cr_expect_eq(bx_tensor_copy_into(to, from), -EINVAL);
    cr_expect_not_null(strstr(bx_error_text(), "i32 cannot be copied into f32"), "%s", bx_error_text());
    to = create(BX_I32, 2, DIMS(3, 2));
    cr_expect_eq(bx_tensor_copy_into(to, from), -EINVAL);
    to = create(BX_I32, 1, DIMS(6));
    cr_expect_eq(bx_tensor_copy_into(to, from), -EINVAL);
}

Test(tensor, copy_writes_nothing_between_the_elements_of_its_target)
{
    static const enum bx_dtype types[] = { BX_U8, BX_F16, BX_F32, BX_F64, BX_C128 };

    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        size_t size = bx_dtype_bytes(types[t]);
        _Alignas(16) unsigned char to[128], from[128];
        struct bx_tensor *whole[2], *every_other[2];

        memset(to, 0xaa, sizeof(to));
        memset(from, 0x11, sizeof(from));
        whole[0] = made(bx_tensor_wrap(to, types[t], 1, DIMS(8), NULL, NULL, NULL, place()));
        whole[1] = made(bx_tensor_wrap(from, types[t], 1, DIMS(8), NULL, NULL, NULL, place()));
        for (int i = 0; i < 2; i++)
            every_other[i] = made(bx_tensor_slice(whole[i], 0, 0, 8, 2, place()));
        cr_assert_eq(bx_tensor_copy_into(every_other[0], every_other[1]), 0);
        for (size_t at = 0; at < 8 * size; at++)
            cr_expect_eq(to[at], at / size % 2 == 0 ? 0x11 : 0xaa, "byte %zu of %zu-byte elements", at, size);
    }
}

Test(tensor, is_not_kept_by_a_view_that_was_refused)
{
    float data[4] = { 0 };
    struct bx_tensor *tensor, *view = NULL;
    int ends = 0;

    cr_assert_eq(bx_tensor_wrap(data, BX_F32, 1, DIMS(4), NULL, count, &ends, &tensor), 0);
    cr_expect_eq(bx_tensor_as_strided(tensor, 1, 1, DIMS(4), DIMS(1), &view), -EINVAL);
    cr_expect_eq(bx_tensor_reshape(tensor, 1, DIMS(5), &view), -EINVAL);
    cr_expect_null(view);
    bx_tensor_release(tensor);
    cr_expect_eq(ends, 1);
}

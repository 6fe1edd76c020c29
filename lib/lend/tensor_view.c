/* SPDX-License-Identifier: MIT */
/*
 * Views of tensors, and copies. Any thread; no locks.
 *
 * One function makes every view, from a shape, strides and an address within the tensor, with the same check as for a
 * tensor from a peer. A copy first merges dimensions that are contiguous in both tensors: rows of an image, or a batch
 * of a batch, become one memcpy each.
 */
#include "lend.h"

#include <errno.h>
#include <stdlib.h>

#define TILE 16             /* rows and columns of a tile of a transposed copy */
#define PRIVATE_BYTES 65536u    /* to copy less takes no longer than to change page tables, some 10 us */

/* ---- Views ------------------------------------------------------------------------------------- */

/* Of the tensor's dtype. */
static int view_create(struct bx_tensor *tensor, unsigned char *data, struct bxi_shape shape, struct bx_tensor **view)
{
    uint64_t extent_bytes;
    struct bx_tensor *made = malloc(sizeof *made);

    if (made == NULL)
        return bx_fail(-ENOMEM, "no memory for a view's %zu bytes of description", sizeof *made);
    shape.dtype = (enum bx_dtype)tensor->dtype;

    int rc = bxi_tensor_shape(made, &shape, &extent_bytes);

    if (rc < 0) {
        free(made);
        return rc;
    }
    bxi_store_relaxed(&made->refs, 1);      /* relaxed: nobody else knows it yet */
    made->embedded = false;
    made->read_only = tensor->read_only;
    made->device = tensor->device;
    made->data = data;
    made->storage = tensor->storage;
    made->passed = tensor->passed;
    bxi_storage_acquire(tensor->storage);
    *view = made;
    return 0;
}

static unsigned char *place(const struct bx_tensor *tensor, int64_t offset)
{
    if (offset == 0)
        return tensor->data;        /* may be NULL if the tensor is empty: do not add to it */
    return tensor->data + (size_t)offset * bx_dtype_bytes((enum bx_dtype)tensor->dtype);
}

static int check_view(const struct bx_tensor *tensor, int dim, struct bx_tensor *const *view)
{
    if (tensor == NULL || view == NULL)
        return bx_fail(-EINVAL, "a view needs a tensor and a place to put it");
    if (dim < 0 || dim >= tensor->ndim)
        return bx_fail(-EINVAL, "a tensor of %d dimensions has no dimension %d", tensor->ndim, dim);
    return 0;
}

int bx_tensor_slice(struct bx_tensor *tensor, int dim, int64_t start, int64_t end, int64_t step,
                    struct bx_tensor **view)
{
    int64_t shape[BX_DIMS_MAX], strides[BX_DIMS_MAX], stride;
    int rc = check_view(tensor, dim, view);

    if (rc < 0)
        return rc;
    if (start < 0 || end < start || end > tensor->shape[dim])
        return bx_fail(-EINVAL, "elements %lld to %lld are not within the %lld of dimension %d",
                       (long long)start, (long long)end, (long long)tensor->shape[dim], dim);
    if (step < 1)
        return bx_fail(-EINVAL, "the step of a slice is %lld; it must be at least 1", (long long)step);
    memcpy(shape, tensor->shape, sizeof shape);
    memcpy(strides, tensor->strides, sizeof strides);
    shape[dim] = (end - start) / step + ((end - start) % step != 0);
    /* The stride of a dimension of extent 1 or 0 is not used and may stay as it is. */
    if (shape[dim] > 1 && !__builtin_mul_overflow(strides[dim], step, &stride))
        strides[dim] = stride;

    bool empty = shape[dim] == 0 || tensor->elements == 0;

    return view_create(tensor, empty ? tensor->data : place(tensor, start * tensor->strides[dim]),
                       (struct bxi_shape){ .ndim = tensor->ndim, .shape = shape, .strides = strides }, view);
}

int bx_tensor_select(struct bx_tensor *tensor, int dim, int64_t index, struct bx_tensor **view)
{
    int64_t shape[BX_DIMS_MAX] = { 0 }, strides[BX_DIMS_MAX] = { 0 };
    int rc = check_view(tensor, dim, view);

    if (rc < 0)
        return rc;
    if (index < 0 || index >= tensor->shape[dim])
        return bx_fail(-EINVAL, "dimension %d has no element %lld, it has %lld", dim, (long long)index,
                       (long long)tensor->shape[dim]);
    for (int i = 0, to = 0; i < tensor->ndim; i++) {
        if (i == dim)
            continue;
        shape[to] = tensor->shape[i];
        strides[to++] = tensor->strides[i];
    }

    return view_create(tensor, tensor->elements == 0 ? tensor->data : place(tensor, index * tensor->strides[dim]),
                       (struct bxi_shape){ .ndim = tensor->ndim - 1, .shape = shape, .strides = strides }, view);
}

int bx_tensor_transpose(struct bx_tensor *tensor, int dim0, int dim1, struct bx_tensor **view)
{
    int64_t shape[BX_DIMS_MAX], strides[BX_DIMS_MAX];
    int rc = check_view(tensor, dim0, view);

    if (rc == 0)
        rc = check_view(tensor, dim1, view);
    if (rc < 0)
        return rc;
    memcpy(shape, tensor->shape, sizeof shape);
    memcpy(strides, tensor->strides, sizeof strides);
    shape[dim0] = tensor->shape[dim1];
    shape[dim1] = tensor->shape[dim0];
    strides[dim0] = tensor->strides[dim1];
    strides[dim1] = tensor->strides[dim0];

    return view_create(tensor, tensor->data,
                       (struct bxi_shape){ .ndim = tensor->ndim, .shape = shape, .strides = strides }, view);
}

int bx_tensor_reshape(struct bx_tensor *tensor, int ndim, const int64_t *shape, struct bx_tensor **view)
{
    if (tensor == NULL || view == NULL)
        return bx_fail(-EINVAL, "a view needs a tensor and a place to put it");
    if (!tensor->contiguous)
        return bx_fail(-EINVAL, "a tensor with gaps, or not row-major, cannot be reshaped; copy it first");

    struct bx_tensor *made = NULL;
    int rc = view_create(tensor, tensor->data, (struct bxi_shape){ .ndim = ndim, .shape = shape }, &made);

    if (rc < 0)
        return rc;
    if (made->elements != tensor->elements) {
        rc = bx_fail(-EINVAL, "a tensor of %lld elements cannot become one of %lld",
                     (long long)tensor->elements, (long long)made->elements);
        bx_tensor_release(made);
        return rc;
    }
    *view = made;
    return 0;
}

int bx_tensor_as_strided(struct bx_tensor *tensor, int64_t offset, int ndim, const int64_t *shape,
                         const int64_t *strides, struct bx_tensor **view)
{
    if (tensor == NULL || view == NULL)
        return bx_fail(-EINVAL, "a view needs a tensor and a place to put it");

    int64_t reach = bxi_tensor_reach(tensor);

    if (offset < 0 || offset > reach)
        return bx_fail(-EINVAL, "element %lld is not within the tensor's %lld", (long long)offset,
                       (long long)reach);

    struct bx_tensor *made = NULL;
    int rc = view_create(tensor, place(tensor, offset),
                         (struct bxi_shape){ .ndim = ndim, .shape = shape, .strides = strides }, &made);

    if (rc < 0)
        return rc;
    if (bxi_tensor_reach(made) > reach - offset) {
        rc = bx_fail(-EINVAL, "the view would end %lld elements behind the tensor's first; it has %lld",
                     (long long)offset + (long long)bxi_tensor_reach(made), (long long)reach);
        bx_tensor_release(made);
        return rc;
    }
    *view = made;
    return 0;
}

/* ---- Copies ------------------------------------------------------------------------------------ */

/* The merged dimensions of a copy between two tensors of one shape. The last dimension is the innermost. */
struct plan {
    int ndim;
    size_t size;                    /* of an element */
    int64_t shape[BX_DIMS_MAX];
    int64_t to[BX_DIMS_MAX];        /* strides, in bytes */
    int64_t from[BX_DIMS_MAX];
};

static void plan_copy(struct plan *plan, const struct bx_tensor *to, const struct bx_tensor *from)
{
    int64_t size = (int64_t)bx_dtype_bytes((enum bx_dtype)to->dtype);
    int n = 0;

    plan->size = (size_t)size;
    for (int i = 0; i < to->ndim; i++) {
        int64_t extent = to->shape[i], to_step = to->strides[i], from_step = from->strides[i];

        if (extent == 1)
            continue;
        to_step *= size;
        from_step *= size;
        if (n > 0 && plan->to[n - 1] == to_step * extent && plan->from[n - 1] == from_step * extent)
            n--;                    /* contiguous with the dimension inside: merge them */
        else
            plan->shape[n] = 1;
        plan->shape[n] *= extent;
        plan->to[n] = to_step;
        plan->from[n++] = from_step;
    }
    if (n == 0) {                   /* a scalar */
        plan->shape[0] = 1;
        plan->to[0] = plan->from[0] = size;
        n = 1;
    }
    plan->ndim = n;
}

/* The two innermost dimensions, element by element; inlined for each size, which makes memcpy a move. */
static inline __attribute__((always_inline)) void copy_plane(unsigned char *to, const unsigned char *from,
                                                             const struct plan *plan, const size_t size)
{
    int inner = plan->ndim - 1, outer = plan->ndim - 2;
    int64_t rows = outer < 0 ? 1 : plan->shape[outer], columns = plan->shape[inner];
    int64_t to_row = outer < 0 ? 0 : plan->to[outer], from_row = outer < 0 ? 0 : plan->from[outer];
    int64_t to_step = plan->to[inner], from_step = plan->from[inner];

    /* In tiles, because one of the two usually strides across its rows, one cache line for each element. */
    for (int64_t row = 0; row < rows; row += TILE) {
        int64_t row_end = rows - row < TILE ? rows : row + TILE;

        for (int64_t column = 0; column < columns; column += TILE) {
            int64_t column_end = columns - column < TILE ? columns : column + TILE;

            for (int64_t i = row; i < row_end; i++)
                for (int64_t j = column; j < column_end; j++)
                    memcpy(to + i * to_row + j * to_step, from + i * from_row + j * from_step, size);
        }
    }
}

static void copy_rows(unsigned char *to, const unsigned char *from, const struct plan *plan)
{
    int inner = plan->ndim - 1, outer = plan->ndim - 2;
    int64_t rows = outer < 0 ? 1 : plan->shape[outer];
    size_t row_bytes = (size_t)plan->shape[inner] * plan->size;

    for (int64_t i = 0; i < rows; i++)
        memcpy(to + (outer < 0 ? 0 : i * plan->to[outer]), from + (outer < 0 ? 0 : i * plan->from[outer]),
               row_bytes);
}

static void copy_two_dims(unsigned char *to, const unsigned char *from, const struct plan *plan)
{
    int inner = plan->ndim - 1;

    if (plan->to[inner] == (int64_t)plan->size && plan->from[inner] == (int64_t)plan->size) {
        copy_rows(to, from, plan);
        return;
    }
    switch (plan->size) {
    case 1:
        copy_plane(to, from, plan, 1);
        break;
    case 2:
        copy_plane(to, from, plan, 2);
        break;
    case 4:
        copy_plane(to, from, plan, 4);
        break;
    case 8:
        copy_plane(to, from, plan, 8);
        break;
    default:
        copy_plane(to, from, plan, 16);
        break;
    }
}

static void copy_elements(unsigned char *to, const unsigned char *from, const struct plan *plan)
{
    int64_t index[BX_DIMS_MAX] = { 0 };
    int dim;

    do {
        copy_two_dims(to, from, plan);
        for (dim = plan->ndim - 3; dim >= 0; dim--) {       /* the next of the outer dimensions */
            to += plan->to[dim];
            from += plan->from[dim];
            if (++index[dim] < plan->shape[dim])
                break;
            index[dim] = 0;
            to -= plan->to[dim] * plan->shape[dim];
            from -= plan->from[dim] * plan->shape[dim];
        }
    } while (dim >= 0);
}

int bx_tensor_copy_into(struct bx_tensor *to, const struct bx_tensor *from)
{
    struct plan plan;

    if (to == NULL || from == NULL)
        return bx_fail(-EINVAL, "a copy needs two tensors");
    if (to->dtype != from->dtype)
        return bx_fail(-EINVAL, "%s cannot be copied into %s", bx_dtype_name((enum bx_dtype)from->dtype),
                       bx_dtype_name((enum bx_dtype)to->dtype));
    if (to->ndim != from->ndim)
        return bx_fail(-EINVAL, "a tensor of %d dimensions cannot be copied into one of %d", from->ndim, to->ndim);
    for (int i = 0; i < to->ndim; i++)
        if (to->shape[i] != from->shape[i])
            return bx_fail(-EINVAL, "dimension %d is %lld in the one and %lld in the other; a copy wants one shape",
                           i, (long long)from->shape[i], (long long)to->shape[i]);
    if (to->read_only)
        return bx_fail(-EROFS, "the tensor to copy into is read-only");
    if (to->elements == 0)
        return 0;
    if (bxi_is_device(to) || bxi_is_device(from))
        return bxi_device_ops()->copy_into(to, from);
    if (to->contiguous && from->contiguous) {
        memmove(to->data, from->data, bx_tensor_bytes(from));
        return 0;
    }
    plan_copy(&plan, to, from);
    copy_elements(to->data, from->data, &plan);
    return 0;
}

int bx_tensor_copy(struct bx_job *job, const struct bx_tensor *tensor, struct bx_tensor **copy)
{
    struct bx_tensor *made = NULL;

    if (tensor == NULL || copy == NULL)
        return bx_fail(-EINVAL, "a copy needs a tensor and a place to put it");
    if (bxi_is_device(tensor))
        return bxi_device_ops()->copy(job, tensor, copy);

    int rc = bx_tensor_create(job, (enum bx_dtype)tensor->dtype, tensor->ndim, tensor->shape, &made);

    if (rc == 0)
        rc = bx_tensor_copy_into(made, tensor);
    if (rc < 0) {
        bx_tensor_release(made);
        return rc;
    }
    *copy = made;
    return 0;
}

/* ---- Copies on write --------------------------------------------------------------------------- */

struct private {
    struct bx_tensor *tensor;           /* keeps the loan, and that the view */
    struct bxi_arena_view *view;
};

/* Whether half of the leases of its lender are out. A copy may be kept for long, and calls need the others. */
static bool is_crowded(const struct bx_tensor *tensor)
{
    const struct bxi_loan *loan = (const struct bxi_loan *)tensor->storage;

    /* Relaxed: a recent value is enough. Each loan has a reference. */
    return loan->returns != NULL && bxi_load_relaxed(&loan->returns->refs) > BXI_LEASE_MAX / 2;
}

static void end_private(void *context)
{
    struct private *private = context;

    bxi_arena_view_forget(private->view, private->tensor->data, bx_tensor_bytes(private->tensor));
    bx_tensor_release(private->tensor);
    free(private);
}

int bx_tensor_copy_on_write(struct bx_tensor *tensor, struct bx_tensor **copy)
{
    struct private *private;
    void *memory;
    int rc;

    if (tensor == NULL || copy == NULL)
        return bx_fail(-EINVAL, "a copy needs a tensor and a place to put it");
    if (bxi_is_device(tensor) || !bx_tensor_is_borrowed(tensor) || !tensor->contiguous ||
        bx_tensor_bytes(tensor) < PRIVATE_BYTES || is_crowded(tensor))
        return bx_tensor_copy(NULL, tensor, copy);
    private = malloc(sizeof *private);
    if (private == NULL)
        return bx_fail(-ENOMEM, "no memory for a copy's %zu bytes of description", sizeof *private);
    *private = (struct private){ bx_tensor_acquire(tensor),
                                 bxi_loan_view((const struct bxi_loan *)tensor->storage, tensor) };
    memory = bxi_arena_view_private(private->view, tensor->data, bx_tensor_bytes(tensor));
    rc = memory == NULL ? -EBUSY : bx_tensor_wrap(memory, (enum bx_dtype)tensor->dtype, tensor->ndim, tensor->shape,
                                                  NULL, end_private, private, copy);
    if (rc == 0)
        return 1;
    if (memory != NULL)
        bxi_arena_view_forget(private->view, tensor->data, bx_tensor_bytes(tensor));
    bx_tensor_release(tensor);
    free(private);
    return memory != NULL ? rc : bx_tensor_copy(NULL, tensor, copy);
}

bool bx_tensor_is_written(const struct bx_tensor *copy, size_t offset, size_t bytes)
{
    const struct private *private;

    if (copy == NULL || copy->storage->free_fn != end_private)
        return true;
    private = copy->storage->context;
    return bxi_arena_view_is_written(private->view, private->tensor->data + (copy->data - copy->storage->base) + offset,
                                     bytes);
}

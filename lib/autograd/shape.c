/* SPDX-License-Identifier: MIT */
/*
 * Operations on shapes. Run by the thread that has the tape, or the pass. reshape, transpose and slice make views;
 * concat and stack copy.
 */
#include "autograd.h"

#include <errno.h>
#include <string.h>

/* What these operations remember: the argument's shape, and the dimensions given. */
struct place {
    struct bxi_like in;
    int dim, dim1;
    int64_t start, end;
};

/* Records an operation of one argument. */
static struct bx_var *record(struct bx_tape *tape, struct bx_var *a, const struct bxi_op *op, struct bx_tensor *y,
                             const struct place *place)
{
    return bxi_tape_result(tape, y, (struct bxi_record){ .op = op, .inputs = &a, .input_count = 1, .extra = place,
                                                         .extra_bytes = sizeof *place });
}

/* ---- Views --------------------------------------------------------------------------------------- */

static int reshape_backward(struct bxi_node *node, struct bxi_pass *pass)
{
    const struct place *place = node->extra;
    struct bx_tensor *view = NULL;
    int rc = bx_tensor_reshape(bxi_grad_of(node), place->in.ndim, place->in.shape, &view);

    if (rc == 0)
        bxi_deliver(pass, node, 0, view, false);
    return rc;
}

/* Fills in the extent that is -1. False if the shape does not have as many elements as `in`. */
static bool complete_shape(const struct bxi_like *in, struct bxi_like *to)
{
    int64_t known = 1;
    int open = -1;

    for (int i = 0; i < to->ndim; i++) {
        if (to->shape[i] == -1 && open < 0)
            open = i;
        else if (to->shape[i] < 0 || __builtin_mul_overflow(known, to->shape[i], &known))
            return false;
    }
    if (open < 0)
        return known == bxi_elements(in);
    if (known == 0 || bxi_elements(in) % known != 0)
        return false;
    to->shape[open] = bxi_elements(in) / known;
    return true;
}

struct bx_var *bx_var_reshape(struct bx_tape *tape, struct bx_var *a, int ndim, const int64_t *shape)
{
    static const struct bxi_op op = { "reshape", reshape_backward, NULL };
    struct place place = { .dim = 0 };
    char is[BXI_SHAPE_TEXT], wanted[BXI_SHAPE_TEXT];
    struct bx_tensor *x, *y = NULL;
    struct bxi_like to;

    if (bxi_tape_stops(tape, op.name, &a, 1))
        return NULL;
    if (ndim < 0 || ndim > BX_DIMS_MAX || (shape == NULL && ndim > 0))
        return bxi_tape_fail(tape, bx_fail(-EINVAL, "'reshape' needs a shape of 0 to %d dimensions", BX_DIMS_MAX));
    place.in = bxi_var_like(a);
    to = (struct bxi_like){ .dtype = a->dtype, .ndim = ndim };
    for (int i = 0; i < ndim; i++)
        to.shape[i] = shape[i];
    if (!complete_shape(&place.in, &to))
        return bxi_tape_fail(tape, bx_fail(-EINVAL, "'reshape' cannot make the shape %s of %s",
                                           bxi_shape_text(wanted, &to), bxi_shape_text(is, &place.in)));
    x = bxi_var_dense(a);
    if (x != NULL && bx_tensor_reshape(x, to.ndim, to.shape, &y) < 0)
        y = NULL;
    bx_tensor_release(x);
    return record(tape, a, &op, y, &place);
}

static int transpose_backward(struct bxi_node *node, struct bxi_pass *pass)
{
    const struct place *place = node->extra;
    struct bx_tensor *view = NULL;
    int rc = bx_tensor_transpose(bxi_grad_of(node), place->dim, place->dim1, &view);

    if (rc == 0)
        bxi_deliver(pass, node, 0, view, false);
    return rc;
}

struct bx_var *bx_var_transpose(struct bx_tape *tape, struct bx_var *a, int dim0, int dim1)
{
    static const struct bxi_op op = { "transpose", transpose_backward, NULL };
    struct bx_tensor *x, *y = NULL;
    struct place place = { .dim = 0 };

    if (bxi_tape_stops(tape, op.name, &a, 1))
        return NULL;
    place.in = bxi_var_like(a);
    if (!bxi_find_dim(tape, op.name, place.in.ndim, &dim0) || !bxi_find_dim(tape, op.name, place.in.ndim, &dim1))
        return NULL;
    place.dim = dim0;
    place.dim1 = dim1;
    x = bx_var_acquire_value(a);
    if (bx_tensor_transpose(x, dim0, dim1, &y) < 0)
        y = NULL;
    bx_tensor_release(x);
    return record(tape, a, &op, y, &place);
}

static int slice_backward(struct bxi_node *node, struct bxi_pass *pass)
{
    const struct place *place = node->extra;
    struct bx_tensor *to = bxi_tensor_zeros(pass->grads->job, &place->in), *part = NULL;
    int rc;

    if (to == NULL)
        return bx_error_code();
    rc = bx_tensor_slice(to, place->dim, place->start, place->end, 1, &part);
    if (rc == 0)
        rc = bx_tensor_copy_into(part, bxi_grad_of(node));
    bx_tensor_release(part);
    if (rc < 0) {
        bx_tensor_release(to);
        return rc;
    }
    bxi_deliver(pass, node, 0, to, true);
    return 0;
}

struct bx_var *bx_var_slice(struct bx_tape *tape, struct bx_var *a, int dim, int64_t start, int64_t end)
{
    static const struct bxi_op op = { "slice", slice_backward, NULL };
    struct place place = { .start = start, .end = end };
    struct bx_tensor *x, *y = NULL;

    if (bxi_tape_stops(tape, op.name, &a, 1))
        return NULL;
    place.in = bxi_var_like(a);
    if (!bxi_find_dim(tape, op.name, place.in.ndim, &dim))
        return NULL;
    place.dim = dim;
    if (start < 0 || start > end || end > place.in.shape[dim])
        return bxi_tape_fail(tape, bx_fail(-EINVAL, "'slice' cannot take %lld to %lld of %lld elements",
                                           (long long)start, (long long)end, (long long)place.in.shape[dim]));
    x = bx_var_acquire_value(a);
    if (bx_tensor_slice(x, dim, start, end, 1, &y) < 0)
        y = NULL;
    bx_tensor_release(x);
    return record(tape, a, &op, y, &place);
}

/* ---- Joining ------------------------------------------------------------------------------------- */

/* `starts` has one more entry than there are inputs: where each begins along the dimension. */
struct join {
    int dim;
    bool is_stack;
    int64_t starts[];
};

/* The part of the result that is input i: a view. */
static int part_of(struct bx_tensor *whole, const struct join *join, size_t i, struct bx_tensor **part)
{
    if (join->is_stack)
        return bx_tensor_select(whole, join->dim, (int64_t)i, part);
    return bx_tensor_slice(whole, join->dim, join->starts[i], join->starts[i + 1], 1, part);
}

static int join_backward(struct bxi_node *node, struct bxi_pass *pass)
{
    for (size_t i = 0; i < node->edge_count; i++) {
        struct bx_tensor *part = NULL;
        int rc;

        if (!bxi_needs(node, i))
            continue;
        rc = part_of(bxi_grad_of(node), node->extra, i, &part);
        if (rc < 0)
            return rc;
        bxi_deliver(pass, node, i, part, false);
    }
    return 0;
}

static const struct bxi_op concat_op = { "concat", join_backward, NULL }, stack_op = { "stack", join_backward, NULL };

/* Checks that the shapes fit, and makes the result's of the first one's. */
static int join_shape(struct bx_var *const *vars, size_t count, const struct join *join, struct bxi_like *to)
{
    const struct bxi_like one = bxi_var_like(vars[0]);
    char is[BXI_SHAPE_TEXT], wanted[BXI_SHAPE_TEXT];

    *to = one;
    for (size_t i = 1; i < count; i++) {
        struct bxi_like next = bxi_var_like(vars[i]), same = next;

        if (!join->is_stack && next.ndim == one.ndim) {
            to->shape[join->dim] += next.shape[join->dim];
            same.shape[join->dim] = one.shape[join->dim];
        }
        if (!bxi_same_shape(&same, &one))
            return bx_fail(-EINVAL, "'%s' cannot join the shapes %s and %s along dimension %d",
                           join->is_stack ? stack_op.name : concat_op.name, bxi_shape_text(wanted, &one),
                           bxi_shape_text(is, &next), join->dim);
    }
    if (!join->is_stack)
        return 0;
    if (one.ndim == BX_DIMS_MAX)
        return bx_fail(-EINVAL, "'stack' cannot add a dimension: there are %d", BX_DIMS_MAX);
    memmove(to->shape + join->dim + 1, to->shape + join->dim, (size_t)(one.ndim - join->dim) * sizeof *to->shape);
    to->shape[join->dim] = (int64_t)count;
    to->ndim++;
    return 0;
}

static int copy_parts(struct bx_tensor *to, struct bx_var *const *vars, size_t count, struct join *join)
{
    int64_t start = 0;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < count; i++) {
        struct bx_tensor *value = bx_var_acquire_value(vars[i]), *part = NULL;
        const int64_t end = start + (join->is_stack ? 1 : bx_tensor_dim(value, join->dim));

        if (join->is_stack)
            rc = bx_tensor_select(to, join->dim, start, &part);
        else
            rc = bx_tensor_slice(to, join->dim, start, end, 1, &part);
        if (rc == 0)
            rc = bx_tensor_copy_into(part, value);
        start = end;
        bx_tensor_release(part);
        bx_tensor_release(value);
    }
    return rc;
}

static struct bx_var *join_vars(struct bx_tape *tape, struct bx_var *const *vars, size_t count, struct join *join)
{
    const struct bxi_op *op = join->is_stack ? &stack_op : &concat_op;
    const size_t extra_bytes = sizeof *join + (count + 1) * sizeof *join->starts;
    struct bxi_like like;
    struct bx_tensor *to;
    struct bxi_node *node;
    struct join *kept;
    int rc;

    rc = join_shape(vars, count, join, &like);
    if (rc < 0)
        return bxi_tape_fail(tape, rc);
    to = bxi_tensor_make(tape->job, &like);
    rc = to == NULL ? bx_error_code() : copy_parts(to, vars, count, join);
    if (rc < 0) {
        bx_tensor_release(to);
        return bxi_tape_fail(tape, rc);
    }
    node = bxi_tape_record(tape, &(struct bxi_record){ .op = op, .inputs = vars, .input_count = count, .values = &to,
                                                       .value_count = 1, .extra_bytes = extra_bytes });
    if (node == NULL)
        return NULL;
    if (node->op == NULL)
        return &node->vars[0];
    kept = node->extra;
    *kept = *join;
    for (size_t i = 0; i < count && !join->is_stack; i++)
        kept->starts[i + 1] = kept->starts[i] + bxi_var_like(vars[i]).shape[join->dim];
    return &node->vars[0];
}

/* Checks the inputs, and the dimension: stack has one more to choose from. */
static bool begin_join(struct bx_tape *tape, struct bx_var *const *vars, size_t count, struct join *join)
{
    const char *name = join->is_stack ? stack_op.name : concat_op.name;

    if (tape != NULL && tape->error == 0 && (vars == NULL || count == 0)) {
        bxi_tape_fail(tape, bx_fail(-EINVAL, "'%s' needs an input", name));
        return false;
    }
    return !bxi_tape_stops(tape, name, vars, vars != NULL ? count : 0) &&
           bxi_find_dim(tape, name, bxi_var_like(vars[0]).ndim + (join->is_stack ? 1 : 0), &join->dim);
}

struct bx_var *bx_var_concat(struct bx_tape *tape, struct bx_var *const *vars, size_t count, int dim)
{
    struct join join = { .dim = dim };

    return begin_join(tape, vars, count, &join) ? join_vars(tape, vars, count, &join) : NULL;
}

struct bx_var *bx_var_stack(struct bx_tape *tape, struct bx_var *const *vars, size_t count, int dim)
{
    struct join join = { .dim = dim, .is_stack = true };

    return begin_join(tape, vars, count, &join) ? join_vars(tape, vars, count, &join) : NULL;
}

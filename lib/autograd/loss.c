/* SPDX-License-Identifier: MIT */
/*
 * Softmax, choices by index, losses. Run by the thread that has the tape, or the pass.
 */
#include "autograd.h"

#include <errno.h>

/* ---- Softmax ------------------------------------------------------------------------------------- */

/* Rows and their width; of a scalar 1 and 1. */
static void last_dim(const struct bxi_like *like, int64_t extent[2])
{
    extent[1] = like->ndim > 0 ? like->shape[like->ndim - 1] : 1;
    extent[0] = 1;
    for (int i = 0; i < like->ndim - 1; i++)
        extent[0] *= like->shape[i];
}

/* saved: the result. */
static int softmax_backward(struct bxi_node *node, struct bxi_pass *pass)
{
    const bool is_log = *(const bool *)node->extra;
    const struct bxi_like like = bxi_like(bxi_grad_of(node));
    const struct bxi_loops *loops = bxi_loops(like.dtype);
    struct bx_tensor *to = bxi_tensor_make(pass->grads->job, &like);
    int64_t extent[2];

    if (to == NULL)
        return bx_error_code();
    last_dim(&like, extent);
    (is_log ? loops->log_softmax_back : loops->softmax_back)(extent, bx_tensor_data(node->saved[0]),
                                                             bx_tensor_data(bxi_grad_of(node)),
                                                             bx_tensor_data_mut(to));
    bxi_deliver(pass, node, 0, to, true);
    return 0;
}

static struct bx_var *softmax(struct bx_tape *tape, struct bx_var *a, bool is_log)
{
    static const struct bxi_op ops[] = { { "softmax", softmax_backward, NULL },
                                         { "log_softmax", softmax_backward, NULL } };
    const struct bxi_op *op = &ops[is_log ? 1 : 0];
    struct bx_tensor *x, *y;
    struct bxi_like like;
    int64_t extent[2];

    if (bxi_tape_stops(tape, op->name, &a, 1))
        return NULL;
    x = bxi_var_dense(a);
    like = bxi_like(x);
    y = bxi_tensor_make_like(tape->job, x);
    last_dim(&like, extent);
    if (y != NULL)
        (is_log ? bxi_loops(a->dtype)->log_softmax : bxi_loops(a->dtype)->softmax)(
            extent[0], extent[1], bx_tensor_data(x), bx_tensor_data_mut(y));
    bx_tensor_release(x);
    return bxi_tape_result(tape, y, (struct bxi_record){ .op = op, .inputs = &a, .input_count = 1, .saved = &y,
                                                         .saved_count = 1, .extra = &is_log,
                                                         .extra_bytes = sizeof is_log });
}

struct bx_var *bx_var_softmax(struct bx_tape *tape, struct bx_var *a)
{
    return softmax(tape, a, false);
}

struct bx_var *bx_var_log_softmax(struct bx_tape *tape, struct bx_var *a)
{
    return softmax(tape, a, true);
}

/* ---- Indices ------------------------------------------------------------------------------------- */

/* Row-major indices, each 0 to limit - 1: one reference. NULL after it has failed the tape. */
static struct bx_tensor *open_indices(struct bx_tape *tape, const char *name, struct bx_tensor *indices, int64_t limit)
{
    struct bx_tensor *dense;
    const int64_t *value;

    if (indices == NULL || bx_tensor_dtype(indices) != BX_I64 || bx_tensor_device(indices).kind != BX_CPU) {
        bxi_tape_fail(tape, bx_fail(-EINVAL, "the indices of '%s' must be a tensor of i64 in host memory", name));
        return NULL;
    }
    dense = bxi_tensor_dense(NULL, indices);
    if (dense == NULL) {
        bxi_tape_fail(tape, -ENOMEM);
        return NULL;
    }
    value = bx_tensor_data(dense);
    for (int64_t i = 0; i < bx_tensor_elements(dense); i++)
        if (value[i] < 0 || value[i] >= limit) {
            bxi_tape_fail(tape, bx_fail(-EINVAL, "index %lld of '%s' is %lld; it must be 0 to %lld", (long long)i,
                                        name, (long long)value[i], (long long)limit - 1));
            bx_tensor_release(dense);
            return NULL;
        }
    return dense;
}

/* What the operations with indices remember. saved[0]: the indices; of cross_entropy saved[1]: the probabilities. */
struct chosen {
    struct bxi_like in;
    bool of_rows;               /* of embedding */
    int64_t extent[3];
};

/* Records an operation with indices. */
static struct bx_var *record(struct bx_tape *tape, struct bx_var *a, const struct bxi_op *op, struct bx_tensor *y,
                             const struct chosen *chosen, struct bx_tensor *const saved[2])
{
    return bxi_tape_result(tape, y, (struct bxi_record){ .op = op, .inputs = &a, .input_count = 1, .saved = saved,
                                                         .saved_count = 2, .extra = chosen,
                                                         .extra_bytes = sizeof *chosen });
}

static int choice_backward(struct bxi_node *node, struct bxi_pass *pass)
{
    const struct chosen *chosen = node->extra;
    const struct bxi_loops *loops = bxi_loops(chosen->in.dtype);
    struct bx_tensor *to = bxi_tensor_zeros(pass->grads->job, &chosen->in);

    if (to == NULL)
        return bx_error_code();
    (chosen->of_rows ? loops->embedding_back : loops->gather_back)(
        chosen->extent, bx_tensor_data(bxi_grad_of(node)), bx_tensor_data(node->saved[0]), bx_tensor_data_mut(to));
    bxi_deliver(pass, node, 0, to, true);
    return 0;
}

static const struct bxi_op gather_op = { "gather", choice_backward, NULL };
static const struct bxi_op embedding_op = { "embedding", choice_backward, NULL };

/* Takes the elements or rows that the indices, whose reference is taken, choose from a: a result like `out`. */
static struct bx_var *choose(struct bx_tape *tape, struct bx_var *a, const struct chosen *chosen,
                             struct bx_tensor *indices, const struct bxi_like *out)
{
    const struct bxi_loops *loops = bxi_loops(out->dtype);
    struct bx_tensor *x = bxi_var_dense(a), *y = x == NULL ? NULL : bxi_tensor_make(tape->job, out);
    struct bx_var *result;

    if (y != NULL)
        (chosen->of_rows ? loops->embedding : loops->gather)(chosen->extent, bx_tensor_data(x),
                                                             bx_tensor_data(indices), bx_tensor_data_mut(y));
    bx_tensor_release(x);
    result = record(tape, a, chosen->of_rows ? &embedding_op : &gather_op, y, chosen,
                    (struct bx_tensor *const[2]){ indices, NULL });
    bx_tensor_release(indices);
    return result;
}

/* extent: rows, their width, picks of a row. */
struct bx_var *bx_var_gather(struct bx_tape *tape, struct bx_var *a, struct bx_tensor *index)
{
    char is[BXI_SHAPE_TEXT], wanted[BXI_SHAPE_TEXT];
    struct bx_tensor *dense;
    struct chosen chosen = { .of_rows = false };
    struct bxi_like out, same;

    if (bxi_tape_stops(tape, gather_op.name, &a, 1))
        return NULL;
    chosen.in = bxi_var_like(a);
    last_dim(&chosen.in, chosen.extent);
    dense = open_indices(tape, gather_op.name, index, chosen.extent[1]);
    if (dense == NULL)
        return NULL;
    same = out = bxi_like(dense);
    chosen.extent[2] = out.ndim > 0 ? out.shape[out.ndim - 1] : 1;
    if (same.ndim > 0)
        same.shape[same.ndim - 1] = chosen.extent[1];
    if (!bxi_same_shape(&same, &chosen.in) || out.ndim == 0) {
        bx_tensor_release(dense);
        return bxi_tape_fail(tape, bx_fail(-EINVAL, "'gather' cannot take indices of the shape %s from %s",
                                           bxi_shape_text(wanted, &out), bxi_shape_text(is, &chosen.in)));
    }
    out.dtype = a->dtype;
    return choose(tape, a, &chosen, dense, &out);
}

/* extent: rows, their width, how many are picked. */
struct bx_var *bx_var_embedding(struct bx_tape *tape, struct bx_var *weight, struct bx_tensor *indices)
{
    char is[BXI_SHAPE_TEXT];
    struct bx_tensor *dense;
    struct chosen chosen = { .of_rows = true };
    struct bxi_like out;

    if (bxi_tape_stops(tape, embedding_op.name, &weight, 1))
        return NULL;
    chosen.in = bxi_var_like(weight);
    if (chosen.in.ndim != 2)
        return bxi_tape_fail(tape, bx_fail(-EINVAL, "the weight of 'embedding' has the shape %s; it must be a matrix",
                                           bxi_shape_text(is, &chosen.in)));
    last_dim(&chosen.in, chosen.extent);
    dense = open_indices(tape, embedding_op.name, indices, chosen.extent[0]);
    if (dense == NULL)
        return NULL;
    out = bxi_like(dense);
    chosen.extent[2] = bxi_elements(&out);
    if (out.ndim == BX_DIMS_MAX) {
        bx_tensor_release(dense);
        return bxi_tape_fail(tape, bx_fail(-EINVAL, "the indices of 'embedding' have %d dimensions, at most %d fit",
                                           out.ndim, BX_DIMS_MAX - 1));
    }
    out.dtype = weight->dtype;
    out.shape[out.ndim++] = chosen.extent[1];
    return choose(tape, weight, &chosen, dense, &out);
}

/* ---- Losses -------------------------------------------------------------------------------------- */

static struct bxi_classes classes_of(const struct chosen *chosen, const struct bx_tensor *targets)
{
    return (struct bxi_classes){ chosen->extent[0], chosen->extent[1], chosen->extent[2], bx_tensor_data(targets) };
}

static struct bx_tensor *make_scalar(struct bx_tape *tape, enum bx_dtype dtype, double value)
{
    struct bx_tensor *scalar = bxi_tensor_make(tape->job, &(struct bxi_like){ .dtype = dtype });

    if (scalar != NULL)
        bxi_loops(dtype)->fill(1, value, bx_tensor_data_mut(scalar));
    return scalar;
}

static int cross_entropy_backward(struct bxi_node *node, struct bxi_pass *pass)
{
    const struct chosen *chosen = node->extra;
    const struct bxi_loops *loops = bxi_loops(chosen->in.dtype);
    const struct bxi_classes classes = classes_of(chosen, node->saved[0]);
    struct bx_tensor *to = bxi_tensor_make(pass->grads->job, &chosen->in);

    if (to == NULL)
        return bx_error_code();
    loops->cross_entropy_back(&classes, bx_tensor_data(node->saved[1]),
                              loops->first(bx_tensor_data(bxi_grad_of(node))), bx_tensor_data_mut(to));
    bxi_deliver(pass, node, 0, to, true);
    return 0;
}

/* Checks that the classes have the logits' shape without dimension 1. */
static int check_classes(struct chosen *chosen, struct bx_tensor *classes)
{
    char is[BXI_SHAPE_TEXT], wanted[BXI_SHAPE_TEXT];
    struct bxi_like given = bxi_like(classes), expected = chosen->in;

    chosen->extent[2] = 1;
    for (int i = 1; i < expected.ndim; i++)
        expected.shape[i] = i + 1 < expected.ndim ? expected.shape[i + 1] : 0;
    expected.ndim--;
    if (chosen->in.ndim < 2 || (classes != NULL && !bxi_same_shape(&given, &expected)))
        return bx_fail(-EINVAL, "'cross_entropy' cannot choose classes of the shape %s from logits of the shape %s",
                       bxi_shape_text(is, &given), bxi_shape_text(wanted, &chosen->in));
    chosen->extent[0] = chosen->in.shape[0];
    chosen->extent[1] = chosen->in.shape[1];
    for (int i = 2; i < chosen->in.ndim; i++)
        chosen->extent[2] *= chosen->in.shape[i];
    return 0;
}

struct bx_var *bx_var_cross_entropy(struct bx_tape *tape, struct bx_var *logits, struct bx_tensor *classes)
{
    static const struct bxi_op op = { "cross_entropy", cross_entropy_backward, NULL };
    struct bx_tensor *x, *probs, *dense, *y = NULL;
    struct chosen chosen = { .extent = { 0 } };
    struct bx_var *result;
    int rc;

    if (bxi_tape_stops(tape, op.name, &logits, 1))
        return NULL;
    chosen.in = bxi_var_like(logits);
    rc = check_classes(&chosen, classes);
    if (rc < 0)
        return bxi_tape_fail(tape, rc);
    dense = open_indices(tape, op.name, classes, chosen.extent[1]);
    if (dense == NULL)
        return NULL;
    x = bxi_var_dense(logits);
    probs = x == NULL ? NULL : bxi_tensor_make(tape->job, &chosen.in);
    if (probs != NULL) {
        const struct bxi_classes at = classes_of(&chosen, dense);

        y = make_scalar(tape, logits->dtype, bxi_loops(logits->dtype)->cross_entropy(&at, bx_tensor_data(x),
                                                                                     bx_tensor_data_mut(probs)));
    }
    bx_tensor_release(x);
    result = record(tape, logits, &op, y, &chosen, (struct bx_tensor *const[2]){ dense, probs });
    bx_tensor_release(dense);
    bx_tensor_release(probs);
    return result;
}

/* saved: both values. */
static int mse_backward(struct bxi_node *node, struct bxi_pass *pass)
{
    const struct bxi_like like = bxi_like(node->saved[0]);
    const struct bxi_loops *loops = bxi_loops(like.dtype);
    const double grad = loops->first(bx_tensor_data(bxi_grad_of(node)));

    for (size_t i = 0; i < 2; i++) {
        struct bx_tensor *to;

        if (!bxi_needs(node, i))
            continue;
        to = bxi_tensor_make(pass->grads->job, &like);
        if (to == NULL)
            return bx_error_code();
        loops->mse_back(bx_tensor_elements(to), bx_tensor_data(node->saved[i]), bx_tensor_data(node->saved[1 - i]),
                        2 * grad / (double)bx_tensor_elements(to), bx_tensor_data_mut(to));
        bxi_deliver(pass, node, i, to, true);
    }
    return 0;
}

struct bx_var *bx_var_mse(struct bx_tape *tape, struct bx_var *a, struct bx_var *b)
{
    static const struct bxi_op op = { "mse", mse_backward, NULL };
    struct bx_var *const inputs[2] = { a, b };
    char is[BXI_SHAPE_TEXT], wanted[BXI_SHAPE_TEXT];
    struct bx_tensor *value[2], *y = NULL;
    struct bx_var *result;
    struct bxi_like like[2];

    if (bxi_tape_stops(tape, op.name, inputs, 2))
        return NULL;
    like[0] = bxi_var_like(a);
    like[1] = bxi_var_like(b);
    if (!bxi_same_shape(&like[0], &like[1]))
        return bxi_tape_fail(tape, bx_fail(-EINVAL, "'mse' cannot compare the shapes %s and %s",
                                           bxi_shape_text(is, &like[0]), bxi_shape_text(wanted, &like[1])));
    value[0] = bxi_var_dense(a);
    value[1] = bxi_var_dense(b);
    if (value[0] != NULL && value[1] != NULL)
        y = make_scalar(tape, a->dtype, bxi_loops(a->dtype)->mse(bx_tensor_elements(value[0]), bx_tensor_data(value[0]),
                                                                 bx_tensor_data(value[1])));
    result = bxi_tape_result(tape, y, (struct bxi_record){ .op = &op, .inputs = inputs, .input_count = 2,
                                                           .saved = value, .saved_count = 2 });
    bx_tensor_release(value[0]);
    bx_tensor_release(value[1]);
    return result;
}

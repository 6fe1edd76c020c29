/* SPDX-License-Identifier: MIT */
/*
 * Operations element by element, dropout, sums. Run by the thread that has the tape, or the pass.
 */
#include "autograd.h"

#include <errno.h>
#include <math.h>

/* ---- One argument -------------------------------------------------------------------------------- */

/* saved: the result; of log the argument, of scale and neg nothing. */
static int unary_backward(struct bxi_node *node, struct bxi_pass *pass)
{
    struct bx_tensor *grad = bxi_grad_of(node), *to = bxi_tensor_make_like(pass->grads->job, grad);

    if (to == NULL)
        return bx_error_code();
    bxi_loops(bx_tensor_dtype(grad))->unary_back(node->extra, bx_tensor_elements(grad), bx_tensor_data(node->saved[0]),
                                                 bx_tensor_data(grad), bx_tensor_data_mut(to));
    bxi_deliver(pass, node, 0, to, true);
    return 0;
}

static const struct bxi_op unary_ops[] = {
    [BXI_EXP] = { "exp", unary_backward, NULL },
    [BXI_LOG] = { "log", unary_backward, NULL },
    [BXI_RELU] = { "relu", unary_backward, NULL },
    [BXI_TANH] = { "tanh", unary_backward, NULL },
    [BXI_SIGMOID] = { "sigmoid", unary_backward, NULL },
    [BXI_SCALE] = { "scale", unary_backward, NULL },
    [BXI_NEG] = { "neg", unary_backward, NULL },
};

/* factor: of scale and neg. */
static struct bx_var *unary(struct bx_tape *tape, struct bx_var *a, enum bxi_unary kind, double factor)
{
    const struct bxi_function function = { kind, factor };
    const struct bxi_op *op = &unary_ops[kind];
    struct bx_tensor *x, *y, *saved;
    struct bx_var *result;

    if (bxi_tape_stops(tape, op->name, &a, 1))
        return NULL;
    x = bxi_var_dense(a);
    y = bxi_tensor_make_like(tape->job, x);
    if (y != NULL)
        bxi_loops(a->dtype)->unary(&function, bx_tensor_elements(x), bx_tensor_data(x), bx_tensor_data_mut(y));
    saved = kind == BXI_LOG ? x : kind >= BXI_SCALE ? NULL : y;
    result = bxi_tape_result(tape, y, (struct bxi_record){
        .op = op, .inputs = &a, .input_count = 1, .saved = &saved, .saved_count = 1, .extra = &function,
        .extra_bytes = sizeof function });
    bx_tensor_release(x);
    return result;
}

struct bx_var *bx_var_exp(struct bx_tape *tape, struct bx_var *a)
{
    return unary(tape, a, BXI_EXP, 1);
}

struct bx_var *bx_var_log(struct bx_tape *tape, struct bx_var *a)
{
    return unary(tape, a, BXI_LOG, 1);
}

struct bx_var *bx_var_relu(struct bx_tape *tape, struct bx_var *a)
{
    return unary(tape, a, BXI_RELU, 1);
}

struct bx_var *bx_var_tanh(struct bx_tape *tape, struct bx_var *a)
{
    return unary(tape, a, BXI_TANH, 1);
}

struct bx_var *bx_var_sigmoid(struct bx_tape *tape, struct bx_var *a)
{
    return unary(tape, a, BXI_SIGMOID, 1);
}

struct bx_var *bx_var_scale(struct bx_tape *tape, struct bx_var *a, double factor)
{
    return unary(tape, a, BXI_SCALE, factor);
}

struct bx_var *bx_var_neg(struct bx_tape *tape, struct bx_var *a)
{
    return unary(tape, a, BXI_NEG, -1);
}

/* ---- Two arguments ------------------------------------------------------------------------------- */

/* saved: of a product, the values of a and b, each if the other one requires a gradient. */
struct operands {
    enum bxi_binary kind;
    struct bxi_like like[2];
};

/* Delivers `grad`, summed over the dimensions along which operand `index` was broadcast, and times factor. */
static int deliver_sum(struct bxi_node *node, struct bxi_pass *pass, size_t index, struct bxi_slot grad, double factor)
{
    const struct operands *operands = node->extra;
    const struct bxi_like over = bxi_like(grad.grad), *like = &operands->like[index];
    struct bx_tensor *to;

    if (factor == 1 && bxi_same_shape(like, &over)) {
        bxi_deliver(pass, node, index, grad.grad, grad.fresh);
        return 0;
    }
    to = bxi_tensor_zeros(pass->grads->job, like);
    if (to != NULL) {
        const struct bxi_walk walk = bxi_walk(&over, like, &over);

        bxi_loops(over.dtype)->reduce(&walk, bx_tensor_data(grad.grad), factor, bx_tensor_data_mut(to));
        bxi_deliver(pass, node, index, to, true);
    }
    bx_tensor_release(grad.grad);
    return to == NULL ? bx_error_code() : 0;
}

static int binary_backward(struct bxi_node *node, struct bxi_pass *pass)
{
    const struct operands *operands = node->extra;
    struct bx_tensor *grad = bxi_grad_of(node);
    const struct bxi_like over = bxi_like(grad);
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < 2; i++) {
        struct bxi_slot part = { NULL, true };

        if (!bxi_needs(node, i))
            continue;
        if (operands->kind != BXI_MUL) {
            part = (struct bxi_slot){ bx_tensor_acquire(grad), false };
            rc = deliver_sum(node, pass, i, part, operands->kind == BXI_SUB && i == 1 ? -1 : 1);
            continue;
        }

        const struct bxi_walk walk = bxi_walk(&over, &over, &operands->like[1 - i]);

        part.grad = bxi_tensor_make(pass->grads->job, &over);
        if (part.grad == NULL)
            return bx_error_code();
        bxi_loops(over.dtype)->binary(BXI_MUL, &walk, bx_tensor_data(grad), bx_tensor_data(node->saved[1 - i]),
                                      bx_tensor_data_mut(part.grad));
        rc = deliver_sum(node, pass, i, part, 1);
    }
    return rc;
}

static const struct bxi_op binary_ops[] = {
    [BXI_ADD] = { "add", binary_backward, NULL },
    [BXI_SUB] = { "sub", binary_backward, NULL },
    [BXI_MUL] = { "mul", binary_backward, NULL },
};

/* Computes into a new tensor. NULL: there is no memory, or after it has failed the tape. */
static struct bx_tensor *compute_binary(struct bx_tape *tape, const struct operands *operands,
                                        struct bx_tensor *const value[2])
{
    char text[2][BXI_SHAPE_TEXT];
    struct bxi_like over;
    struct bxi_walk walk;
    struct bx_tensor *to;

    if (!bxi_broadcast(&operands->like[0], &operands->like[1], &over)) {
        bxi_tape_fail(tape, bx_fail(-EINVAL, "'%s' cannot broadcast the shapes %s and %s",
                                    binary_ops[operands->kind].name, bxi_shape_text(text[0], &operands->like[0]),
                                    bxi_shape_text(text[1], &operands->like[1])));
        return NULL;
    }
    to = bxi_tensor_make(tape->job, &over);
    if (to == NULL)
        return NULL;
    walk = bxi_walk(&over, &operands->like[0], &operands->like[1]);
    bxi_loops(over.dtype)->binary(operands->kind, &walk, bx_tensor_data(value[0]), bx_tensor_data(value[1]),
                                  bx_tensor_data_mut(to));
    return to;
}

static struct bx_var *binary(struct bx_tape *tape, struct bx_var *a, struct bx_var *b, enum bxi_binary kind)
{
    struct bx_var *const inputs[2] = { a, b };
    struct bx_tensor *value[2], *saved[2], *to = NULL;
    struct operands operands = { .kind = kind };
    struct bx_var *result;

    if (bxi_tape_stops(tape, binary_ops[kind].name, inputs, 2))
        return NULL;
    for (size_t i = 0; i < 2; i++) {
        value[i] = bxi_var_dense(inputs[i]);
        operands.like[i] = bxi_like(value[i]);
        saved[i] = bx_var_requires_grad(inputs[1 - i]) ? value[i] : NULL;
    }
    if (value[0] != NULL && value[1] != NULL)
        to = compute_binary(tape, &operands, value);
    result = bxi_tape_result(tape, to, (struct bxi_record){
        .op = &binary_ops[kind], .inputs = inputs, .input_count = 2, .saved = saved,
        .saved_count = kind == BXI_MUL ? 2 : 0, .extra = &operands, .extra_bytes = sizeof operands });
    bx_tensor_release(value[0]);
    bx_tensor_release(value[1]);
    return result;
}

struct bx_var *bx_var_add(struct bx_tape *tape, struct bx_var *a, struct bx_var *b)
{
    return binary(tape, a, b, BXI_ADD);
}

struct bx_var *bx_var_sub(struct bx_tape *tape, struct bx_var *a, struct bx_var *b)
{
    return binary(tape, a, b, BXI_SUB);
}

struct bx_var *bx_var_mul(struct bx_tape *tape, struct bx_var *a, struct bx_var *b)
{
    return binary(tape, a, b, BXI_MUL);
}

/* ---- Dropout ------------------------------------------------------------------------------------- */

/* A product with a mask. */
struct bx_var *bx_var_dropout(struct bx_tape *tape, struct bx_var *a, double p, bool training,
                              struct bx_generator *generator)
{
    struct bx_tensor *mask;
    struct bxi_like like;
    struct bx_var *factor;

    if (bxi_tape_stops(tape, "dropout", &a, 1))
        return NULL;
    if (!(p >= 0 && p <= 1))
        return bxi_tape_fail(tape, bx_fail(-EINVAL, "the probability of 'dropout' is %g; it must be 0 to 1", p));
    if (p == 0 || !training)
        return a;
    if (generator == NULL)
        return bxi_tape_fail(tape, bx_fail(-EINVAL, "'dropout' needs a generator"));
    like = bxi_var_like(a);
    mask = bxi_tensor_make(tape->job, &like);
    if (mask == NULL)
        return bxi_tape_fail(tape, -ENOMEM);
    bxi_loops(a->dtype)->mask(bx_tensor_elements(mask), p, generator, bx_tensor_data_mut(mask));
    generator->drawn += (uint64_t)bx_tensor_elements(mask);
    factor = bx_tape_input(tape, mask);
    bx_tensor_release(mask);
    return factor != NULL ? bx_var_mul(tape, a, factor) : NULL;
}

/* ---- Sums ---------------------------------------------------------------------------------------- */

/* walk: a has the strides of the result, b those of the argument. */
struct sum {
    struct bxi_like in;
    struct bxi_walk walk;
    double factor;
};

static int sum_backward(struct bxi_node *node, struct bxi_pass *pass)
{
    const struct sum *sum = node->extra;
    struct bx_tensor *to = bxi_tensor_zeros(pass->grads->job, &sum->in);
    struct bxi_walk back = sum->walk;

    if (to == NULL)
        return bx_error_code();
    for (int i = 0; i < back.ndim; i++) {
        back.a[i] = sum->walk.b[i];
        back.b[i] = sum->walk.a[i];
    }
    bxi_loops(sum->in.dtype)->reduce(&back, bx_tensor_data(bxi_grad_of(node)), sum->factor, bx_tensor_data_mut(to));
    bxi_deliver(pass, node, 0, to, true);
    return 0;
}

static const struct bxi_op sum_op = { "sum", sum_backward, NULL }, mean_op = { "mean", sum_backward, NULL };

/* Sums up over `count` dimensions from `first` on, which are dropped. */
static struct bx_var *sum_dims(struct bx_tape *tape, struct bx_var *a, const struct bxi_op *op, int first, int count)
{
    struct sum sum = { .in = bxi_var_like(a), .factor = 1 };
    struct bxi_like out = sum.in, kept = sum.in;
    struct bx_tensor *x = bxi_var_dense(a), *y;

    if (op == &mean_op)
        sum.factor = 1 / (double)bxi_elements(&sum.in);
    for (int i = first; i < first + count; i++)
        kept.shape[i] = 1;
    out.ndim -= count;
    for (int i = first; i < out.ndim; i++)
        out.shape[i] = out.shape[i + count];
    sum.walk = bxi_walk(&sum.in, &kept, &sum.in);
    y = x == NULL ? NULL : bxi_tensor_zeros(tape->job, &out);
    if (y != NULL)
        bxi_loops(a->dtype)->reduce(&sum.walk, bx_tensor_data(x), sum.factor, bx_tensor_data_mut(y));
    if (y != NULL && op == &mean_op && bx_tensor_elements(x) == 0)
        bxi_loops(a->dtype)->fill(1, (double)NAN, bx_tensor_data_mut(y));
    bx_tensor_release(x);
    return bxi_tape_result(tape, y, (struct bxi_record){ .op = op, .inputs = &a, .input_count = 1, .extra = &sum,
                                                         .extra_bytes = sizeof sum });
}

static struct bx_var *sum_all(struct bx_tape *tape, struct bx_var *a, const struct bxi_op *op)
{
    return bxi_tape_stops(tape, op->name, &a, 1) ? NULL : sum_dims(tape, a, op, 0, bxi_var_like(a).ndim);
}

struct bx_var *bx_var_sum(struct bx_tape *tape, struct bx_var *a)
{
    return sum_all(tape, a, &sum_op);
}

struct bx_var *bx_var_mean(struct bx_tape *tape, struct bx_var *a)
{
    return sum_all(tape, a, &mean_op);
}

struct bx_var *bx_var_sum_dim(struct bx_tape *tape, struct bx_var *a, int dim)
{
    if (bxi_tape_stops(tape, sum_op.name, &a, 1) || !bxi_find_dim(tape, sum_op.name, bxi_var_like(a).ndim, &dim))
        return NULL;
    return sum_dims(tape, a, &sum_op, dim, 1);
}

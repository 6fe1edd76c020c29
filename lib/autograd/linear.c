/* SPDX-License-Identifier: MIT */
/*
 * Matrix products and linear layers. Run by the thread that has the tape, or the pass.
 */
#include "autograd.h"

#include <errno.h>

/* x: rows x k; w: m x k for linear, k x m for matmul. saved: x and w, each if the other one requires a gradient. */
struct product {
    int64_t rows, k, m;
    bool is_linear;
    struct bxi_like x, w;
};

static const char *name_of(const struct product *product)
{
    return product->is_linear ? "linear" : "matmul";
}

static int input_grad(struct bxi_node *node, struct bxi_pass *pass, const struct product *p)
{
    struct bx_tensor *to = bxi_tensor_make(pass->grads->job, &p->x);

    if (to == NULL)
        return bx_error_code();
    bxi_gemm(p->x.dtype, &(struct bxi_gemm){ .transpose_b = !p->is_linear, .m = p->rows, .n = p->k, .k = p->m,
                                             .a = bx_tensor_data(bxi_grad_of(node)),
                                             .b = bx_tensor_data(node->saved[1]), .c = bx_tensor_data_mut(to) });
    bxi_deliver(pass, node, 0, to, true);
    return 0;
}

static int weight_grad(struct bxi_node *node, struct bxi_pass *pass, const struct product *p)
{
    struct bx_tensor *to = bxi_tensor_make(pass->grads->job, &p->w);
    const void *grad = bx_tensor_data(bxi_grad_of(node)), *x = bx_tensor_data(node->saved[0]);

    if (to == NULL)
        return bx_error_code();
    bxi_gemm(p->x.dtype, &(struct bxi_gemm){ .transpose_a = true, .m = p->is_linear ? p->m : p->k,
                                             .n = p->is_linear ? p->k : p->m, .k = p->rows,
                                             .a = p->is_linear ? grad : x, .b = p->is_linear ? x : grad,
                                             .c = bx_tensor_data_mut(to) });
    bxi_deliver(pass, node, 1, to, true);
    return 0;
}

static int bias_grad(struct bxi_node *node, struct bxi_pass *pass, const struct product *p)
{
    const struct bxi_like like = { p->x.dtype, 1, { p->m } };
    const struct bxi_walk walk = { .ndim = 2, .shape = { p->rows, p->m }, .a = { 0, 1 }, .b = { p->m, 1 } };
    struct bx_tensor *to = bxi_tensor_zeros(pass->grads->job, &like);

    if (to == NULL)
        return bx_error_code();
    bxi_loops(like.dtype)->reduce(&walk, bx_tensor_data(bxi_grad_of(node)), 1, bx_tensor_data_mut(to));
    bxi_deliver(pass, node, 2, to, true);
    return 0;
}

static int product_backward(struct bxi_node *node, struct bxi_pass *pass)
{
    const struct product *p = node->extra;
    int rc = 0;

    if (bxi_needs(node, 0))
        rc = input_grad(node, pass, p);
    if (rc == 0 && bxi_needs(node, 1))
        rc = weight_grad(node, pass, p);
    if (rc == 0 && node->edge_count > 2 && bxi_needs(node, 2))
        rc = bias_grad(node, pass, p);
    return rc;
}

static const struct bxi_op matmul_op = { "matmul", product_backward, NULL };
static const struct bxi_op linear_op = { "linear", product_backward, NULL };

static int measure(struct product *p, const struct bx_tensor *const value[3])
{
    char is[BXI_SHAPE_TEXT], wanted[BXI_SHAPE_TEXT];

    p->x = bxi_like(value[0]);
    p->w = bxi_like(value[1]);
    if (p->x.ndim < 1 || p->w.ndim != 2 || p->x.shape[p->x.ndim - 1] != p->w.shape[p->is_linear ? 1 : 0])
        return bx_fail(-EINVAL, "'%s' cannot multiply the shapes %s and %s", name_of(p), bxi_shape_text(is, &p->x),
                       bxi_shape_text(wanted, &p->w));
    p->k = p->x.shape[p->x.ndim - 1];
    p->m = p->w.shape[p->is_linear ? 0 : 1];
    p->rows = 1;
    for (int i = 0; i < p->x.ndim - 1; i++)
        p->rows *= p->x.shape[i];
    if (value[2] != NULL && (bx_tensor_ndim(value[2]) != 1 || bx_tensor_dim(value[2], 0) != p->m)) {
        const struct bxi_like bias = bxi_like(value[2]);

        return bx_fail(-EINVAL, "the bias of 'linear' has the shape %s, and the result %lld columns",
                       bxi_shape_text(is, &bias), (long long)p->m);
    }
    return 0;
}

static struct bx_tensor *compute(struct bx_tape *tape, const struct product *p, const struct bx_tensor *const value[3])
{
    const struct bxi_loops *loops = bxi_loops(p->x.dtype);
    struct bxi_like like = p->x;
    struct bx_tensor *y;

    like.shape[like.ndim - 1] = p->m;
    y = bxi_tensor_make(tape->job, &like);
    if (y == NULL)
        return NULL;
    bxi_gemm(like.dtype, &(struct bxi_gemm){ .transpose_b = p->is_linear, .m = p->rows, .n = p->m, .k = p->k,
                                             .a = bx_tensor_data(value[0]), .b = bx_tensor_data(value[1]),
                                             .c = bx_tensor_data_mut(y) });
    if (value[2] != NULL) {
        const struct bxi_walk walk = { .ndim = 2, .shape = { p->rows, p->m }, .a = { p->m, 1 }, .b = { 0, 1 } };

        loops->reduce(&walk, bx_tensor_data(value[2]), 1, bx_tensor_data_mut(y));
    }
    return y;
}

static struct bx_var *product(struct bx_tape *tape, struct bx_var *const inputs[3], size_t count, bool is_linear)
{
    struct product p = { .is_linear = is_linear };
    struct bx_tensor *value[3] = { NULL, NULL, NULL }, *saved[2], *y = NULL;
    struct bx_var *result;
    int rc = 0;

    if (bxi_tape_stops(tape, name_of(&p), inputs, count))
        return NULL;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        value[i] = bxi_var_dense(inputs[i]);
        rc = value[i] == NULL ? bx_error_code() : 0;
    }
    if (rc == 0)
        rc = measure(&p, (const struct bx_tensor *const *)value);
    if (rc == 0)
        y = compute(tape, &p, (const struct bx_tensor *const *)value);
    else
        bxi_tape_fail(tape, rc);
    for (size_t i = 0; i < 2; i++)
        saved[i] = bx_var_requires_grad(inputs[1 - i]) ? value[i] : NULL;
    result = bxi_tape_result(tape, y, (struct bxi_record){
        .op = is_linear ? &linear_op : &matmul_op, .inputs = inputs, .input_count = count, .saved = saved,
        .saved_count = 2, .extra = &p, .extra_bytes = sizeof p });
    for (size_t i = 0; i < count; i++)
        bx_tensor_release(value[i]);
    return result;
}

struct bx_var *bx_var_matmul(struct bx_tape *tape, struct bx_var *a, struct bx_var *b)
{
    return product(tape, (struct bx_var *const[3]){ a, b, NULL }, 2, false);
}

struct bx_var *bx_var_linear(struct bx_tape *tape, struct bx_var *x, struct bx_var *weight, struct bx_var *bias)
{
    return product(tape, (struct bx_var *const[3]){ x, weight, bias }, bias != NULL ? 3 : 2, true);
}

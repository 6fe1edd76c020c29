/* SPDX-License-Identifier: MIT */
/*
 * A net of boxcar_nn.h as one node. bx_var_net is run by the thread that has the tape, the backward function by that of
 * the pass; one thread at a time, as boxcar_nn.h demands.
 *
 * A net has one forward pass in its memory. The object counts them, and a node remembers its number: a backward pass
 * over another one is refused. The net copies parameters, so they are set again only when one has another tensor.
 */
#include "autograd.h"

#include "boxcar_nn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct bx_net_op {
    bxi_a32 refs;
    struct bx_net *net;
    struct bx_net_op *first;            /* that sets the parameters; NULL: this one does. One reference */
    size_t count;
    uint64_t forwards;
    struct bx_var **inputs;             /* 1 + count: room for the input of a call, then the parameters */
    struct bx_tensor **values;          /* count: what the net was given last, one reference each; NULLs at first. With
                                         * `first`, they are there */
    const float **data;                 /* count: their memory */
};

struct call {
    struct bx_net_op *op;
    uint64_t forward;
};

static void release(struct bx_net_op *op)
{
    /* Acquire and release: what other holders did comes before the memory is freed. */
    if (bxi_add(&op->refs, (uint32_t)-1) != 1)
        return;
    for (size_t i = 0; i < op->count; i++) {
        bx_var_release(op->inputs[i + 1]);
        bx_tensor_release(op->values[i]);
    }
    if (op->first != NULL)
        release(op->first);
    free(op->inputs);
    free(op->values);
    free(op->data);
    free(op);
}

static int check_param(const struct bx_net_param_info *wanted, struct bx_var *param, size_t index)
{
    char is[BXI_SHAPE_TEXT];
    struct bxi_like like = { .dtype = BX_F32, .ndim = wanted->ndim }, given;

    if (param == NULL)
        return bx_fail(-EINVAL, "parameter %zu of the net, '%s', is NULL", index, wanted->name);
    given = bxi_var_like(param);
    for (int i = 0; i < wanted->ndim; i++)
        like.shape[i] = wanted->shape[i];
    if (!bxi_is_leaf(param) || given.dtype != BX_F32 || !bxi_same_shape(&given, &like))
        return bx_fail(-EINVAL, "parameter %zu of the net, '%s', needs a leaf of its shape and f32, not %s %s", index,
                       wanted->name, bx_dtype_name(given.dtype), bxi_shape_text(is, &given));
    return 0;
}

int bx_net_op_create(struct bx_net *net, struct bx_var *const *params, struct bx_net_op **op)
{
    const size_t count = bx_net_params(net);
    struct bx_net_op *made;
    int rc = 0;

    if (net == NULL || op == NULL || (params == NULL && count > 0))
        return bx_fail(-EINVAL, "bx_net_op_create needs a net, its parameters and a place to put the object");
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = check_param(bx_net_param(net, i), params[i], i);
    if (rc < 0)
        return rc;
    made = calloc(1, sizeof *made);
    if (made == NULL)
        return bx_fail(-ENOMEM, "no memory for a net's operation");
    made->inputs = calloc(count + 1, sizeof *made->inputs);
    made->values = calloc(count + 1, sizeof *made->values);
    made->data = calloc(count + 1, sizeof *made->data);
    bxi_store_relaxed(&made->refs, 1);          /* relaxed: nobody else knows it yet */
    made->net = net;
    if (made->inputs == NULL || made->values == NULL || made->data == NULL) {
        release(made);
        return bx_fail(-ENOMEM, "no memory for a net's operation");
    }
    made->count = count;
    for (size_t i = 0; i < count; i++)
        made->inputs[i + 1] = bx_var_acquire(params[i]);
    *op = made;
    return 0;
}

int bx_net_op_share(struct bx_net *net, struct bx_net_op *first, struct bx_net_op **op)
{
    int rc;

    if (first == NULL)
        return bx_fail(-EINVAL, "bx_net_op_share needs the object whose parameters are shared");
    if (first->first != NULL || !bx_net_shares_params(net, first->net))
        return bx_fail(-EINVAL, "bx_net_op_share needs a net that shares the parameters of the first object's net");
    rc = bx_net_op_create(net, first->inputs + 1, op);
    if (rc == 0) {
        bxi_add(&first->refs, 1);
        (*op)->first = first;
    }
    return rc;
}

void bx_net_op_destroy(struct bx_net_op *op)
{
    if (op != NULL)
        release(op);
}

/* ---- Forward ------------------------------------------------------------------------------------- */

static struct bx_net_op *owner_of(struct bx_net_op *op)
{
    return op->first != NULL ? op->first : op;
}

static int set_params(struct bx_net_op *op)
{
    bool is_new = false;

    for (size_t i = 0; i < op->count; i++) {
        struct bx_tensor *value = bxi_var_dense(op->inputs[i + 1]);

        if (value == NULL)
            return bx_error_code();
        is_new |= value != op->values[i];
        bx_tensor_release(op->values[i]);
        op->values[i] = value;
        op->data[i] = bx_tensor_data(value);
    }
    return is_new ? bx_net_set_params(op->net, op->data) : 0;
}

static int forward(struct bx_tape *tape, struct bx_net_op *op, struct bx_tensor *x, struct bx_tensor **y)
{
    const struct bxi_like like = bxi_like(x);
    const int64_t outputs = (int64_t)bx_net_output_elements(op->net);
    char is[BXI_SHAPE_TEXT];
    int rc;

    if (like.ndim < 1 || like.shape[0] == 0 || bxi_elements(&like) != (int64_t)bx_net_input_elements(op->net) ||
        outputs % like.shape[0] != 0)
        return bx_fail(-EINVAL, "the input of the net has %zu elements, the batch first, and the tensor the shape %s",
                       bx_net_input_elements(op->net), bxi_shape_text(is, &like));
    rc = set_params(owner_of(op));
    if (rc < 0)
        return rc;
    *y = bxi_tensor_make(tape->job, &(struct bxi_like){ BX_F32, 2, { like.shape[0], outputs / like.shape[0] } });
    if (*y == NULL)
        return bx_error_code();
    op->forwards++;
    rc = bx_net_forward(op->net, bx_tensor_data(x), bx_tensor_data_mut(*y));
    if (rc < 0)
        bx_tensor_release(*y);
    return rc;
}

/* ---- Backward ------------------------------------------------------------------------------------ */

static int deliver_input(struct bxi_node *node, struct bxi_pass *pass, const struct bx_net *net)
{
    const struct bxi_like like = bxi_like(node->saved[0]);
    const float *from = bx_net_input_grad(net);
    struct bx_tensor *to;

    if (!bxi_needs(node, 0))
        return 0;
    if (from == NULL)
        return bx_fail(-EINVAL, "the input of a net requires a gradient, and the net was created without "
                       "options.input_grad");
    to = bxi_tensor_make(pass->grads->job, &like);
    if (to == NULL)
        return bx_error_code();
    memcpy(bx_tensor_data_mut(to), from, bx_tensor_bytes(to));
    bxi_deliver(pass, node, 0, to, true);
    return 0;
}

static int run_backward(struct bxi_node *node, struct bxi_pass *pass, struct bx_tensor **grads, float **data)
{
    const struct call *call = node->extra;
    const size_t count = call->op->count;
    int rc;

    for (size_t i = 0; i < count; i++) {
        const struct bxi_like like = bxi_like(owner_of(call->op)->values[i]);

        grads[i] = bxi_tensor_make(pass->grads->job, &like);
        if (grads[i] == NULL)
            return bx_error_code();
        data[i] = bx_tensor_data_mut(grads[i]);
    }
    rc = bx_net_backward(call->op->net, bx_tensor_data(bxi_grad_of(node)), data);
    if (rc == 0)
        rc = deliver_input(node, pass, call->op->net);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        bxi_deliver(pass, node, i + 1, grads[i], true);
        grads[i] = NULL;
    }
    return rc;
}

static int net_backward(struct bxi_node *node, struct bxi_pass *pass)
{
    const struct call *call = node->extra;
    const size_t count = call->op->count;
    struct bx_tensor **grads;
    float **data;
    int rc = -ENOMEM;

    if (call->forward != call->op->forwards)
        return bx_fail(BX_E_STATE, "the net has made another forward pass since the one of this backward pass");
    grads = calloc(count + 1, sizeof *grads);
    data = calloc(count + 1, sizeof *data);
    if (grads != NULL && data != NULL)
        rc = run_backward(node, pass, grads, data);
    else
        bx_fail(-ENOMEM, "no memory for the gradients of a net");
    for (size_t i = 0; grads != NULL && i < count; i++)
        bx_tensor_release(grads[i]);
    free(grads);
    free(data);
    return rc;
}

static void drop_call(struct bxi_node *node)
{
    release(((const struct call *)node->extra)->op);
}

struct bx_var *bx_var_net(struct bx_tape *tape, struct bx_net_op *op, struct bx_var *input)
{
    static const struct bxi_op net_op = { "net", net_backward, drop_call };
    struct bx_tensor *x, *y = NULL;
    struct bxi_node *node = NULL;
    int rc;

    if (bxi_tape_stops(tape, net_op.name, &input, 1))
        return NULL;
    if (op == NULL || input->dtype != BX_F32)
        return bxi_tape_fail(tape, bx_fail(-EINVAL, "'net' needs an object of bx_net_op_create, and an input of f32"));
    x = bxi_var_dense(input);
    rc = x == NULL ? bx_error_code() : forward(tape, op, x, &y);
    if (rc < 0) {
        bx_tensor_release(x);
        return bxi_tape_fail(tape, rc);
    }
    op->inputs[0] = input;
    node = bxi_tape_record(tape, &(struct bxi_record){ .op = &net_op, .inputs = op->inputs,
                                                       .input_count = op->count + 1, .values = &y, .value_count = 1,
                                                       .saved = &x, .saved_count = 1,
                                                       .extra = &(struct call){ op, op->forwards },
                                                       .extra_bytes = sizeof(struct call) });
    op->inputs[0] = NULL;
    if (node != NULL && node->op != NULL) {
        bxi_add(&op->refs, 1);
        node->elements = BXI_UNKNOWN;
    }
    bx_tensor_release(x);
    return node != NULL ? &node->vars[0] : NULL;
}

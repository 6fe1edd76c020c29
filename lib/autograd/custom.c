/* SPDX-License-Identifier: MIT */
/*
 * Nodes with the program's own backward function. bx_var_custom is run by the thread that has the tape, the function by
 * that of the pass.
 */
#include "autograd.h"

#include "base/options.h"

#include <errno.h>
#include <stdlib.h>

/* Behind the struct: for each input its dtype and shape, with which its gradient is compared. */
struct custom {
    struct bxi_op op;           /* of this node: it has the program's name */
    bx_backward_fn backward;
    void *context;
    bx_free_fn free_fn;
    struct bxi_like inputs[];
};

/* What the backward function is given and fills in, in one block. */
struct call {
    struct bx_tensor **outputs, **inputs;
    bool *needed;
};

static bool open_call(const struct bxi_node *node, struct call *call)
{
    const size_t pointers = (size_t)node->output_count + node->edge_count;
    void **block = calloc(1, pointers * sizeof *block + node->edge_count);

    if (block == NULL)
        return false;
    call->outputs = (struct bx_tensor **)(void *)block;
    call->inputs = call->outputs + node->output_count;
    call->needed = (bool *)(void *)(call->inputs + node->edge_count);
    for (size_t i = 0; i < node->output_count; i++)
        call->outputs[i] = node->slots[i].grad;
    for (size_t i = 0; i < node->edge_count; i++)
        call->needed[i] = bxi_needs(node, i);
    return true;
}

static int check_grad(const struct custom *custom, size_t index, const struct bx_tensor *grad)
{
    char is[BXI_SHAPE_TEXT], wanted[BXI_SHAPE_TEXT];
    const struct bxi_like *like = &custom->inputs[index], given = bxi_like(grad);

    if (bxi_tensor_is_like(grad, like) && bx_tensor_device(grad).kind == BX_CPU)
        return 0;
    return bx_fail(-EINVAL, "the backward function of '%s' gave input %zu a gradient of %s %s; the input is %s %s",
                   custom->op.name, index, bx_dtype_name(given.dtype), bxi_shape_text(is, &given),
                   bx_dtype_name(like->dtype), bxi_shape_text(wanted, like));
}

static int custom_backward(struct bxi_node *node, struct bxi_pass *pass)
{
    const struct custom *custom = node->extra;
    struct call call;
    int rc;

    if (!open_call(node, &call))
        return bx_fail(-ENOMEM, "no memory for the backward function of '%s'", custom->op.name);
    rc = custom->backward(custom->context, &(struct bx_node_grads){ call.outputs, node->output_count, call.needed,
                                                                    call.inputs, node->edge_count });
    if (rc > 0)
        rc = 0;
    for (size_t i = 0; i < node->edge_count; i++) {
        if (rc == 0 && call.inputs[i] != NULL && call.needed[i])
            rc = check_grad(custom, i, call.inputs[i]);
        if (rc == 0)
            bxi_deliver(pass, node, i, call.inputs[i], false);
        else
            bx_tensor_release(call.inputs[i]);
    }
    free(call.outputs);
    return rc;
}

static void drop_context(struct bxi_node *node)
{
    const struct custom *custom = node->extra;

    if (custom->free_fn != NULL)
        custom->free_fn(custom->context);
}

static int check_custom(const struct bx_custom *custom)
{
    if (custom->name == NULL || custom->backward == NULL)
        return bx_fail(-EINVAL, "a custom node needs a name and a backward function");
    if (custom->output_count == 0 || custom->values == NULL || (custom->inputs == NULL && custom->input_count > 0))
        return bx_fail(-EINVAL, "the node '%s' needs at least one output, and its inputs", custom->name);
    for (size_t i = 0; i < custom->input_count; i++)
        if (custom->inputs[i] == NULL)
            return bx_fail(-EINVAL, "input %zu of '%s' is NULL", i, custom->name);
    for (size_t i = 0; i < custom->output_count; i++) {
        if (custom->values[i] == NULL)
            return bx_fail(-EINVAL, "output %zu of '%s' is NULL", i, custom->name);
        if (!bxi_is_float(bx_tensor_dtype(custom->values[i])) || bx_tensor_device(custom->values[i]).kind != BX_CPU)
            return bx_fail(-EINVAL, "output %zu of '%s' must be f32 or f64, in host memory", i, custom->name);
    }
    return 0;
}

static void fill_in(struct bxi_node *node, const struct bx_custom *given)
{
    struct custom *custom = node->extra;

    custom->op = *node->op;
    custom->op.name = given->name;
    custom->backward = given->backward;
    custom->context = given->context;
    custom->free_fn = given->free_fn;
    for (size_t i = 0; i < given->input_count; i++)
        custom->inputs[i] = bxi_var_like(given->inputs[i]);
    node->op = &custom->op;
    node->elements = BXI_UNKNOWN;
}

static int record(struct bx_tape *tape, const struct bx_custom *given, struct bx_var **outputs)
{
    static const struct bxi_op op = { "custom", custom_backward, drop_context };
    struct bxi_node *node;
    int rc = check_custom(given);

    if (rc < 0)
        return rc;
    for (size_t i = 0; i < given->output_count; i++)
        bx_tensor_acquire(given->values[i]);
    node = bxi_tape_record(tape, &(struct bxi_record){
        .op = &op, .inputs = given->inputs, .input_count = given->input_count, .values = given->values,
        .value_count = given->output_count, .requires_grad = given->requires_grad,
        .extra_bytes = sizeof(struct custom) + given->input_count * sizeof(struct bxi_like) });
    if (node == NULL)
        return tape->error;
    if (node->op != NULL)
        fill_in(node, given);
    else if (given->free_fn != NULL)
        given->free_fn(given->context);
    for (size_t i = 0; i < given->output_count; i++)
        outputs[i] = &node->vars[i];
    return 0;
}

int bx_var_custom(struct bx_tape *tape, const struct bx_custom *custom, struct bx_var **outputs)
{
    struct bx_custom given = { .struct_bytes = sizeof given };
    int rc;

    if (custom == NULL || outputs == NULL)
        return bx_fail(-EINVAL, "bx_var_custom needs a struct bx_custom and a place for the results");
    for (size_t i = 0; i < custom->output_count; i++)
        outputs[i] = NULL;
    if (bxi_tape_stops(tape, "custom", NULL, 0))
        return tape == NULL ? -EINVAL : tape->error;
    rc = bxi_options_copy(&given, sizeof given, custom, "bx_custom");
    if (rc == 0)
        rc = record(tape, &given, outputs);
    if (rc < 0)
        bxi_tape_fail(tape, rc);
    return rc;
}

/* SPDX-License-Identifier: MIT */
/*
 * How each kind of operation is planned, forward and backward (cpu.h). A forward function sets work->out and keeps what
 * the backward pass will read. A backward function takes the gradient of its output, writes the gradients of its
 * parameters into the caller's arrays, and gives its inputs their gradients. Run by the thread that calls
 * bx_net_finish.
 */
#include "cpu.h"

/* ---- Convolution and linear ---------------------------------------------------------------------- */

/* The forward pass, in the layouts that oneDNN prefers. */
static struct bxi_spec weighted_spec(const struct bxi_plan *plan, const struct bxi_node *node)
{
    bool linear = node->op == BXI_NN_LINEAR;
    struct bxi_spec spec = {
        .op = linear ? BXI_OP_LINEAR : BXI_OP_CONV,
        .pass = BXI_PASS_FORWARD,
        .src = bxi_nn_any_out(&plan->net->nodes[node->in[0]]),
        .weight = bxi_layout_any(4, bxi_nn_plain_weight(plan, node).dims),
        .dst = linear ? bxi_layout_plain(2, (const int64_t[2]){ node->dims[0], node->dims[1] }) : bxi_nn_any_out(node),
        .stride = node->stride,
        .padding = node->padding,
    };

    if (node->bias)
        spec.bias = bxi_layout_vector(node->dims[1]);
    return spec;
}

static void forward_weighted(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    const struct bxi_spec spec = weighted_spec(plan, node);
    struct bxi_layout src, weight, dst;
    struct bxi_step *step;

    work->forward = bxi_nn_describe(plan, &spec, "forward pass");
    src = bxi_nn_preferred(plan, work->forward, BXI_ARG_SRC);
    weight = bxi_nn_preferred(plan, work->forward, BXI_ARG_WEIGHTS);
    dst = bxi_nn_preferred(plan, work->forward, BXI_ARG_DST);
    work->src = bxi_nn_in_layout(plan, &plan->forward, &plan->work[node->in[0]].out, &src);
    work->weight = bxi_nn_load_weight(plan, node, &weight);
    work->bias = bxi_nn_load_bias(plan, node);
    work->out = bxi_nn_new_tensor(plan, &dst);
    step = bxi_nn_add_op(plan, &plan->forward, work->forward);
    bxi_nn_add_arg(plan, step, BXI_ARG_SRC, &work->src);
    bxi_nn_add_arg(plan, step, BXI_ARG_WEIGHTS, &work->weight);
    bxi_nn_add_arg(plan, step, BXI_ARG_BIAS, &work->bias);
    bxi_nn_add_arg(plan, step, BXI_ARG_DST, &work->out);
}

static void forward_conv(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    if (!bxi_nn_forward_folded(plan, node, work))
        forward_weighted(plan, node, work);
}

/* Adds the step that computes the gradients of weight and bias into the caller's arrays. */
static void backward_weights(struct bxi_plan *plan, const struct bxi_node *node, const struct bxi_recipe *recipe,
                             const struct bxi_tensor *grad)
{
    const struct bxi_layout plain = bxi_nn_plain_weight(plan, node);
    const struct bxi_layout preferred = bxi_nn_preferred(plan, recipe, BXI_ARG_DIFF_WEIGHTS);
    const struct bxi_layout src_layout = bxi_nn_preferred(plan, recipe, BXI_ARG_SRC);
    const struct bxi_layout grad_layout = bxi_nn_preferred(plan, recipe, BXI_ARG_DIFF_DST);
    const struct bxi_work *work = &plan->work[plan->node];
    const struct bxi_tensor *before = &plan->work[node->in[0]].out;
    struct bxi_tensor callers = bxi_nn_callers_weight(plan, node), bias = bxi_nn_callers_bias(plan, node);
    struct bxi_tensor src = bxi_nn_in_layout(plan, &plan->backward,
                                             bxi_layout_is_same(&before->layout, &src_layout) ? before : &work->src,
                                             &src_layout);
    struct bxi_tensor to = bxi_nn_in_layout(plan, &plan->backward, grad, &grad_layout);
    struct bxi_tensor weight = bxi_layout_is_same(&preferred, &plain) ? callers : bxi_nn_new_tensor(plan, &preferred);
    struct bxi_step *step = bxi_nn_add_op(plan, &plan->backward, recipe);

    bxi_nn_add_arg(plan, step, BXI_ARG_SRC, &src);
    bxi_nn_add_arg(plan, step, BXI_ARG_DIFF_DST, &to);
    bxi_nn_add_arg(plan, step, BXI_ARG_DIFF_WEIGHTS, &weight);
    bxi_nn_add_arg(plan, step, BXI_ARG_DIFF_BIAS, &bias);
    if (weight.buffer >= 0)
        bxi_nn_add_reorder(plan, &plan->backward, &weight, &callers);
    bxi_nn_release(plan, &src);
    bxi_nn_release(plan, &to);
    bxi_nn_release(plan, &weight);
}

/* Adds the step that computes the gradient of the input, and gives it to that node. */
static void backward_data(struct bxi_plan *plan, const struct bxi_node *node, const struct bxi_recipe *recipe,
                          const struct bxi_tensor *grad)
{
    const struct bxi_layout preferred = bxi_nn_preferred(plan, recipe, BXI_ARG_WEIGHTS);
    const struct bxi_layout from_layout = bxi_nn_preferred(plan, recipe, BXI_ARG_DIFF_DST);
    const struct bxi_layout to_layout = bxi_nn_preferred(plan, recipe, BXI_ARG_DIFF_SRC);
    const struct bxi_work *work = &plan->work[plan->node];
    struct bxi_tensor weight = bxi_layout_is_same(&preferred, &work->weight.layout) ? work->weight :
        bxi_nn_load_weight(plan, node, &preferred);
    struct bxi_tensor from = bxi_nn_in_layout(plan, &plan->backward, grad, &from_layout);
    struct bxi_tensor to = bxi_nn_new_tensor(plan, &to_layout);
    struct bxi_step *step = bxi_nn_add_op(plan, &plan->backward, recipe);

    bxi_nn_add_arg(plan, step, BXI_ARG_WEIGHTS, &weight);
    bxi_nn_add_arg(plan, step, BXI_ARG_DIFF_DST, &from);
    bxi_nn_add_arg(plan, step, BXI_ARG_DIFF_SRC, &to);
    bxi_nn_release(plan, &from);
    bxi_nn_give_grad(plan, node->in[0], &to);
}

/* Both; the gradient of the input only if it is needed. */
static void backward_weighted(struct bxi_plan *plan, const struct bxi_node *node, const struct bxi_work *work,
                              const struct bxi_tensor *grad)
{
    struct bxi_spec spec = weighted_spec(plan, node);

    spec.forward = work->forward;
    spec.pass = BXI_PASS_BACKWARD_WEIGHTS;
    backward_weights(plan, node, bxi_nn_describe(plan, &spec, "gradient of the weights"), grad);
    spec.pass = BXI_PASS_BACKWARD_DATA;
    if (plan->net->nodes[node->in[0]].grad)
        backward_data(plan, node, bxi_nn_describe(plan, &spec, "gradient of the input"), grad);
}

static void backward_conv(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    struct bxi_tensor grad;

    if (work->block != 0) {
        bxi_nn_backward_folded(plan, node, work);
        return;
    }
    grad = bxi_nn_take_grad(plan, plan->node, false);
    backward_weighted(plan, node, work, &grad);
    bxi_nn_release(plan, &grad);
}

/* The output is a matrix; its consumers read the same bytes as N x C x 1 x 1. */
static void forward_linear(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    const struct bxi_layout whole = bxi_nn_plain_out(node);

    forward_weighted(plan, node, work);
    if (plan->error == 0)
        work->out = bxi_nn_tensor_on(plan, &whole, work->out.buffer);
}

static void backward_linear(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    const struct bxi_layout whole = bxi_nn_plain_out(node), matrix = weighted_spec(plan, node).dst;
    struct bxi_tensor taken = bxi_nn_take_grad(plan, plan->node, false);
    struct bxi_tensor grad = bxi_nn_in_layout(plan, &plan->backward, &taken, &whole);

    bxi_nn_release(plan, &taken);
    grad = bxi_nn_tensor_on(plan, &matrix, grad.buffer);
    backward_weighted(plan, node, work, &grad);
    bxi_nn_release(plan, &grad);
}

/* ---- Batch normalisation ------------------------------------------------------------------------- */

/* The forward pass is given the statistics, because ours are more precise than oneDNN's (cpu_loops.c). The backward
 * pass must treat them as computed from the batch, or it would leave out the gradient through them. */
static struct bxi_spec norm_spec(const struct bxi_node *node, enum bxi_pass pass, const struct bxi_tensor *src)
{
    return (struct bxi_spec){
        .op = BXI_OP_BATCH_NORM,
        .pass = pass,
        .src = src->layout,
        .epsilon = BXI_BN_EPSILON,
        .relu = node->relu,
        .given_statistics = pass != BXI_PASS_BACKWARD,
    };
}

struct bxi_step *bxi_nn_add_norm(struct bxi_plan *plan, struct bxi_program *program, enum bxi_pass pass,
                                 const struct bxi_tensor *mean, const struct bxi_tensor *var)
{
    const struct bxi_node *node = &plan->net->nodes[plan->node];
    struct bxi_work *work = &plan->work[plan->node];
    const struct bxi_tensor src = bxi_nn_flat(plan, node, &work->src), out = bxi_nn_flat(plan, node, &work->out);
    const struct bxi_spec spec = norm_spec(node, pass, &src);
    const struct bxi_recipe *recipe = bxi_nn_describe(plan, &spec, "batch normalisation");
    struct bxi_step *step;

    if (pass == BXI_PASS_FORWARD && node->relu)
        work->workspace = bxi_nn_new_workspace(plan, recipe);
    step = bxi_nn_add_op(plan, program, recipe);
    bxi_nn_add_arg(plan, step, BXI_ARG_SRC, &src);
    bxi_nn_add_arg(plan, step, BXI_ARG_SCALE, &work->weight);
    bxi_nn_add_arg(plan, step, BXI_ARG_SHIFT, &work->bias);
    bxi_nn_add_arg(plan, step, BXI_ARG_MEAN, mean);
    bxi_nn_add_arg(plan, step, BXI_ARG_VARIANCE, var);
    if (pass == BXI_PASS_FORWARD)
        bxi_nn_add_arg(plan, step, BXI_ARG_WORKSPACE, &work->workspace);
    bxi_nn_add_arg(plan, step, BXI_ARG_DST, &out);
    return step;
}

static void forward_batch_norm(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    const struct bxi_layout vector = bxi_layout_vector(node->dims[1]);
    struct bxi_spec computed;
    struct bxi_tensor src;

    work->src = plan->work[node->in[0]].out;
    /* The input of the net is the caller's array, which has no address yet. */
    if (work->src.data == NULL || !bxi_nn_has_statistics(&work->src.layout)) {
        const struct bxi_layout plain = bxi_nn_plain_out(node);

        src = bxi_nn_new_tensor(plan, &plain);
        bxi_nn_add_reorder(plan, &plan->forward, &work->src, &src);
        work->src = src;
    }
    work->out = bxi_nn_new_tensor(plan, &work->src.layout);
    work->weight = bxi_nn_load_vector(plan, node, node->param);
    work->bias = bxi_nn_load_bias(plan, node);
    work->mean = bxi_nn_new_tensor(plan, &vector);
    work->var = bxi_nn_new_tensor(plan, &vector);
    bxi_nn_add_step(plan, &plan->forward, BXI_STEP_STATISTICS);
    work->forward_step = plan->forward.count;
    bxi_nn_add_norm(plan, &plan->forward, BXI_PASS_FORWARD, &work->mean, &work->var);
    /* For the backward pass, describe a forward pass that computed the statistics itself. */
    src = bxi_nn_flat(plan, node, &work->src);
    computed = norm_spec(node, BXI_PASS_FORWARD, &src);
    computed.given_statistics = false;
    work->forward = bxi_nn_describe(plan, &computed, "batch normalisation");
}

static void backward_batch_norm(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    const struct bxi_layout vector = bxi_layout_vector(node->dims[1]);
    struct bxi_tensor taken = bxi_nn_take_grad(plan, plan->node, false);
    struct bxi_tensor grad = bxi_nn_in_layout(plan, &plan->backward, &taken, &work->src.layout);
    struct bxi_tensor src = bxi_nn_flat(plan, node, &work->src), flat = bxi_nn_flat(plan, node, &grad), flat_to;
    struct bxi_tensor scale = bxi_nn_callers_tensor(plan, &vector), shift = bxi_nn_callers_bias(plan, node), to;
    struct bxi_spec spec = norm_spec(node, BXI_PASS_BACKWARD, &src);
    struct bxi_step *step;

    plan->grads[node->param] = scale.memory;
    spec.forward = work->forward;
    bxi_nn_release(plan, &taken);
    if (plan->error == 0 && bxi_nn_is_only_reader(plan, &grad)) {
        to = grad;
        bxi_nn_retain(plan, &to);
    } else {
        to = bxi_nn_new_tensor(plan, &work->src.layout);
    }
    flat_to = bxi_nn_flat(plan, node, &to);
    step = bxi_nn_add_op(plan, &plan->backward, bxi_nn_describe(plan, &spec, "gradient of batch normalisation"));
    bxi_nn_add_arg(plan, step, BXI_ARG_SRC, &src);
    bxi_nn_add_arg(plan, step, BXI_ARG_SCALE, &work->weight);
    bxi_nn_add_arg(plan, step, BXI_ARG_SHIFT, &work->bias);
    bxi_nn_add_arg(plan, step, BXI_ARG_MEAN, &work->mean);
    bxi_nn_add_arg(plan, step, BXI_ARG_VARIANCE, &work->var);
    bxi_nn_add_arg(plan, step, BXI_ARG_WORKSPACE, &work->workspace);
    bxi_nn_add_arg(plan, step, BXI_ARG_DIFF_DST, &flat);
    bxi_nn_add_arg(plan, step, BXI_ARG_DIFF_SRC, &flat_to);
    bxi_nn_add_arg(plan, step, BXI_ARG_DIFF_SCALE, &scale);
    bxi_nn_add_arg(plan, step, BXI_ARG_DIFF_SHIFT, &shift);
    bxi_nn_release(plan, &grad);
    if (plan->net->nodes[node->in[0]].grad)
        bxi_nn_give_grad(plan, node->in[0], &to);
    else
        bxi_nn_release(plan, &to);
}

/* ---- Addition and ReLU --------------------------------------------------------------------------- */

/* True if the node's only consumer may overwrite its output: the gradients of these operations do not need it. */
static bool may_overwrite(const struct bxi_plan *plan, int node)
{
    const struct bxi_node *producer = &plan->net->nodes[node];

    return producer->uses == 1 && (producer->op == BXI_NN_BATCH_NORM || producer->op == BXI_NN_CONV);
}

static void forward_sum(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    bool second = node->in[1] >= 0 && !may_overwrite(plan, node->in[0]) && may_overwrite(plan, node->in[1]);
    int first = node->in[second ? 1 : 0], other = node->in[second ? 0 : 1];
    struct bxi_tensor a = plan->work[first].out, b = { .memory = NULL };
    struct bxi_step *step;

    work->out = may_overwrite(plan, first) ? a : bxi_nn_new_tensor(plan, &a.layout);
    /* The input of the net is the caller's array, which has no address yet. */
    if (a.data == NULL) {
        bxi_nn_add_reorder(plan, &plan->forward, &a, &work->out);
        a = work->out;
    }
    if (other >= 0) {
        b = plan->work[other].out;
        if (b.data == NULL || !bxi_layout_is_same(&b.layout, &a.layout)) {
            b = bxi_nn_new_tensor(plan, &a.layout);
            bxi_nn_add_reorder(plan, &plan->forward, &plan->work[other].out, &b);
        } else {
            bxi_nn_retain(plan, &b);
        }
    }
    step = bxi_nn_add_step(plan, &plan->forward, node->relu ? BXI_STEP_RELU_SUM : BXI_STEP_SUM);
    if (step != NULL) {
        step->to = work->out.data;
        step->a = a.data;
        step->b = b.data;
        step->count = bxi_layout_bytes(&work->out.layout) / sizeof(float);
    }
    bxi_nn_release(plan, &b);
}

static void backward_sum(struct bxi_plan *plan, const struct bxi_node *node)
{
    struct bxi_tensor grad = bxi_nn_take_grad(plan, plan->node, node->relu);

    for (int i = 0; i < 2; i++)
        if (node->in[i] >= 0 && plan->net->nodes[node->in[i]].grad) {
            bxi_nn_retain(plan, &grad);
            bxi_nn_give_grad(plan, node->in[i], &grad);
        }
    bxi_nn_release(plan, &grad);
}

/* ---- Pooling and softmax ------------------------------------------------------------------------- */

static struct bxi_spec pool_spec(const struct bxi_plan *plan, const struct bxi_node *node)
{
    const int *in = plan->net->nodes[node->in[0]].dims;
    struct bxi_spec spec = {
        .op = BXI_OP_MAX_POOL, .kernel = { node->kernel, node->kernel }, .stride = node->stride,
        .padding = node->padding,
    };

    if (node->op == BXI_NN_GLOBAL_AVG_POOL)
        spec = (struct bxi_spec){ .op = BXI_OP_AVERAGE_POOL, .kernel = { in[2], in[3] }, .stride = 1 };
    return spec;
}

static void forward_pool(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    struct bxi_spec spec = pool_spec(plan, node);
    struct bxi_layout dst;
    struct bxi_step *step;

    work->src = bxi_nn_unfolded(plan, &plan->forward, &plan->net->nodes[node->in[0]], &plan->work[node->in[0]].out);
    spec.pass = BXI_PASS_FORWARD;
    spec.src = work->src.layout;
    spec.dst = bxi_nn_any_out(node);
    work->forward = bxi_nn_describe(plan, &spec, "pooling");
    dst = bxi_nn_preferred(plan, work->forward, BXI_ARG_DST);
    work->out = bxi_nn_new_tensor(plan, &dst);
    work->workspace = bxi_nn_new_workspace(plan, work->forward);
    step = bxi_nn_add_op(plan, &plan->forward, work->forward);
    bxi_nn_add_arg(plan, step, BXI_ARG_SRC, &work->src);
    bxi_nn_add_arg(plan, step, BXI_ARG_DST, &work->out);
    bxi_nn_add_arg(plan, step, BXI_ARG_WORKSPACE, &work->workspace);
}

static void backward_pool(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    struct bxi_tensor taken = bxi_nn_take_grad(plan, plan->node, false);
    struct bxi_tensor grad = bxi_nn_in_layout(plan, &plan->backward, &taken, &work->out.layout);
    struct bxi_tensor to = bxi_nn_new_tensor(plan, &work->src.layout);
    struct bxi_spec spec = pool_spec(plan, node);
    struct bxi_step *step;

    bxi_nn_release(plan, &taken);
    spec.pass = BXI_PASS_BACKWARD;
    spec.forward = work->forward;
    spec.src = work->src.layout;
    spec.dst = work->out.layout;
    step = bxi_nn_add_op(plan, &plan->backward, bxi_nn_describe(plan, &spec, "gradient of pooling"));
    bxi_nn_add_arg(plan, step, BXI_ARG_DIFF_DST, &grad);
    bxi_nn_add_arg(plan, step, BXI_ARG_DIFF_SRC, &to);
    bxi_nn_add_arg(plan, step, BXI_ARG_WORKSPACE, &work->workspace);
    bxi_nn_release(plan, &grad);
    bxi_nn_give_grad(plan, node->in[0], &to);
}

static struct bxi_spec softmax_spec(const struct bxi_node *node, enum bxi_pass pass, const struct bxi_recipe *forward)
{
    const struct bxi_layout plain = bxi_nn_plain_out(node);

    return (struct bxi_spec){ .op = BXI_OP_SOFTMAX, .pass = pass, .forward = forward, .src = plain, .dst = plain };
}

static void forward_softmax(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    const struct bxi_spec spec = softmax_spec(node, BXI_PASS_FORWARD, NULL);
    struct bxi_step *step;

    work->src = bxi_nn_in_layout(plan, &plan->forward, &plan->work[node->in[0]].out, &spec.src);
    work->out = bxi_nn_new_tensor(plan, &spec.dst);
    work->forward = bxi_nn_describe(plan, &spec, "softmax");
    step = bxi_nn_add_op(plan, &plan->forward, work->forward);
    bxi_nn_add_arg(plan, step, BXI_ARG_SRC, &work->src);
    bxi_nn_add_arg(plan, step, BXI_ARG_DST, &work->out);
}

static void backward_softmax(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    const struct bxi_spec spec = softmax_spec(node, BXI_PASS_BACKWARD, work->forward);
    struct bxi_tensor taken = bxi_nn_take_grad(plan, plan->node, false);
    struct bxi_tensor grad = bxi_nn_in_layout(plan, &plan->backward, &taken, &work->out.layout);
    struct bxi_tensor to = bxi_nn_new_tensor(plan, &work->out.layout);
    struct bxi_step *step = bxi_nn_add_op(plan, &plan->backward,
                                          bxi_nn_describe(plan, &spec, "gradient of softmax"));

    bxi_nn_release(plan, &taken);
    bxi_nn_add_arg(plan, step, BXI_ARG_DST, &work->out);
    bxi_nn_add_arg(plan, step, BXI_ARG_DIFF_DST, &grad);
    bxi_nn_add_arg(plan, step, BXI_ARG_DIFF_SRC, &to);
    bxi_nn_release(plan, &grad);
    bxi_nn_give_grad(plan, node->in[0], &to);
}

/* ---- Any of them ---------------------------------------------------------------------------------- */

void bxi_nn_plan_forward(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    const struct bxi_layout plain = bxi_nn_plain_out(node);

    switch (node->op) {
    case BXI_NN_INPUT:
        work->out = bxi_nn_callers_tensor(plan, &plain);
        plan->input = work->out.memory;
        break;
    case BXI_NN_CONV: forward_conv(plan, node, work); break;
    case BXI_NN_BATCH_NORM: forward_batch_norm(plan, node, work); break;
    case BXI_NN_RELU:
    case BXI_NN_ADD: forward_sum(plan, node, work); break;
    case BXI_NN_MAX_POOL:
    case BXI_NN_GLOBAL_AVG_POOL: forward_pool(plan, node, work); break;
    case BXI_NN_LINEAR: forward_linear(plan, node, work); break;
    case BXI_NN_SOFTMAX: forward_softmax(plan, node, work); break;
    }
}

void bxi_nn_plan_backward(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    const struct bxi_layout plain = bxi_nn_plain_out(node);
    struct bxi_tensor grad;

    switch (node->op) {
    case BXI_NN_INPUT:
        grad = bxi_nn_take_grad(plan, plan->node, false);
        plan->input_grad = bxi_nn_in_layout(plan, &plan->backward, &grad, &plain);
        bxi_nn_release(plan, &grad);
        break;
    case BXI_NN_CONV: backward_conv(plan, node, work); break;
    case BXI_NN_BATCH_NORM: backward_batch_norm(plan, node, work); break;
    case BXI_NN_RELU:
    case BXI_NN_ADD: backward_sum(plan, node); break;
    case BXI_NN_MAX_POOL:
    case BXI_NN_GLOBAL_AVG_POOL: backward_pool(plan, node, work); break;
    case BXI_NN_LINEAR: backward_linear(plan, node, work); break;
    case BXI_NN_SOFTMAX: backward_softmax(plan, node, work); break;
    }
}

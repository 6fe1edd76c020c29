/* SPDX-License-Identifier: MIT */
/*
 * How each kind of operation is planned, forward and backward (onednn.h). A forward function sets work->out and
 * what backward will want again; a backward function takes the gradient of its output, writes the
 * gradients of its parameters into the caller's arrays, and gives its inputs theirs. Run by the thread
 * that calls bx_net_finish.
 */
#include "onednn.h"

#if DNNL_VERSION_MAJOR == 2

/* ---- Convolution --------------------------------------------------------------------------------- */

struct window {
    dnnl_dims_t kernel, stride, padding;
};

static struct window window_of(const struct bxi_node *node)
{
    return (struct window){
        .kernel = { node->kernel, node->kernel },
        .stride = { node->stride, node->stride },
        .padding = { node->padding, node->padding },
    };
}

static dnnl_memory_desc_t describe_weight(struct bxi_plan *plan, const struct bxi_node *node, dnnl_format_tag_t tag)
{
    const int *in = plan->net->nodes[node->in[0]].dims;
    bool linear = node->op == BXI_NN_LINEAR;

    return bxi_nn_describe(plan, 4, (const dnnl_dims_t){ node->dims[1], in[1], linear ? in[2] : node->kernel,
                                                  linear ? in[3] : node->kernel }, tag);
}

/* Parameter `index`, of the caller's shape `plain`, in the layout `md`, filled by set_params. */
static struct bxi_tensor load_param(struct bxi_plan *plan, int index, const dnnl_memory_desc_t *plain,
                                    const dnnl_memory_desc_t *md)
{
    struct bxi_tensor from = { .md = *plain, .memory = plan->params[index], .buffer = -1 };
    struct bxi_tensor to = { .memory = NULL };

    if (plan->error != 0)
        return to;
    if (from.memory == NULL) {
        from.memory = bxi_nn_make_memory(plan, plain, DNNL_MEMORY_NONE);
        plan->params[index] = from.memory;
    }
    /* Not a buffer that had readers: it is filled before they run. */
    to = bxi_nn_tensor_on(plan, md, bxi_nn_make_buffer(plan, dnnl_memory_desc_get_size(md)));
    bxi_nn_add_reorder(plan, &plan->load, &from, &to);
    return to;
}

struct bxi_tensor bxi_nn_load_weight(struct bxi_plan *plan, const struct bxi_node *node, const dnnl_memory_desc_t *md)
{
    const dnnl_memory_desc_t plain = describe_weight(plan, node, dnnl_abcd);

    return load_param(plan, node->param, &plain, md);
}

struct bxi_tensor bxi_nn_load_bias(struct bxi_plan *plan, const struct bxi_node *node)
{
    const dnnl_memory_desc_t vector = bxi_nn_describe_vector(plan, node->dims[1]);

    return node->bias ? load_param(plan, node->param + 1, &vector, &vector) : (struct bxi_tensor){ .memory = NULL };
}

struct bxi_tensor bxi_nn_callers_weight(struct bxi_plan *plan, const struct bxi_node *node)
{
    const dnnl_memory_desc_t plain = describe_weight(plan, node, dnnl_abcd);
    struct bxi_tensor theirs = bxi_nn_callers_tensor(plan, &plain);

    plan->grads[node->param] = theirs.memory;
    return theirs;
}

struct bxi_tensor bxi_nn_callers_bias(struct bxi_plan *plan, const struct bxi_node *node)
{
    const dnnl_memory_desc_t vector = bxi_nn_describe_vector(plan, node->dims[1]);
    struct bxi_tensor theirs = { .memory = NULL };

    if (!node->bias)
        return theirs;
    theirs = bxi_nn_callers_tensor(plan, &vector);
    plan->grads[node->param + 1] = theirs.memory;
    return theirs;
}

/* What convolution and linear have in common once their forward descriptor is made. */
static void forward_weighted(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    struct bxi_work *before = &plan->work[node->in[0]];
    dnnl_memory_desc_t dst;

    if (plan->error != 0)
        return;
    work->src = bxi_nn_in_layout(plan, &plan->forward, &before->out, bxi_nn_md_of(work->forward, dnnl_query_src_md));
    work->weight = bxi_nn_load_weight(plan, node, bxi_nn_md_of(work->forward, dnnl_query_weights_md));
    work->bias = bxi_nn_load_bias(plan, node);
    dst = *bxi_nn_md_of(work->forward, dnnl_query_dst_md);
    work->out = bxi_nn_new_tensor(plan, &dst);

    struct bxi_step *step = bxi_nn_add_primitive(plan, &plan->forward, work->forward);

    bxi_nn_add_arg(step, DNNL_ARG_SRC, &work->src);
    bxi_nn_add_arg(step, DNNL_ARG_WEIGHTS, &work->weight);
    bxi_nn_add_arg(step, DNNL_ARG_BIAS, &work->bias);
    bxi_nn_add_arg(step, DNNL_ARG_DST, &work->out);
}

static void forward_conv(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    const dnnl_memory_desc_t src = bxi_nn_describe_out(plan, &plan->net->nodes[node->in[0]], dnnl_format_tag_any);
    const dnnl_memory_desc_t weight = describe_weight(plan, node, dnnl_format_tag_any);
    const dnnl_memory_desc_t bias = bxi_nn_describe_vector(plan, node->dims[1]);
    const dnnl_memory_desc_t dst = bxi_nn_describe_out(plan, node, dnnl_format_tag_any);
    const struct window window = window_of(node);
    dnnl_convolution_desc_t op;

    if (bxi_nn_forward_folded(plan, node, work))
        return;
    if (!bxi_nn_ok(plan, dnnl_convolution_forward_desc_init(&op, dnnl_forward_training, dnnl_convolution_direct,
                          &src, &weight, node->bias ? &bias : NULL, &dst, window.stride, window.padding,
                          window.padding), "convolution"))
        return;
    work->forward = bxi_nn_make_pd(plan, &op, NULL, "convolution");
    forward_weighted(plan, node, work);
}

/* The step that computes the gradients of weight and bias, into the caller's arrays. */
static void backward_weights(struct bxi_plan *plan, const struct bxi_node *node, const_dnnl_primitive_desc_t pd,
                             const struct bxi_tensor *grad)
{
    const dnnl_memory_desc_t plain = describe_weight(plan, node, dnnl_abcd);
    struct bxi_work *work = &plan->work[plan->node];
    struct bxi_tensor theirs = bxi_nn_callers_weight(plan, node), bias = bxi_nn_callers_bias(plan, node);

    if (plan->error != 0)
        return;

    const dnnl_memory_desc_t *liked = bxi_nn_md_of(pd, dnnl_query_diff_weights_md);
    const dnnl_memory_desc_t *src_md = bxi_nn_md_of(pd, dnnl_query_src_md);
    struct bxi_tensor *before = &plan->work[node->in[0]].out;
    struct bxi_tensor src = bxi_nn_in_layout(plan, &plan->backward,
                                             bxi_nn_is_same(&before->md, src_md) ? before : &work->src, src_md);
    struct bxi_tensor to = bxi_nn_in_layout(plan, &plan->backward, grad, bxi_nn_md_of(pd, dnnl_query_diff_dst_md));
    struct bxi_tensor weight = bxi_nn_is_same(liked, &plain) ? theirs : bxi_nn_new_tensor(plan, liked);
    struct bxi_step *step = bxi_nn_add_primitive(plan, &plan->backward, pd);

    bxi_nn_add_arg(step, DNNL_ARG_SRC, &src);
    bxi_nn_add_arg(step, DNNL_ARG_DIFF_DST, &to);
    bxi_nn_add_arg(step, DNNL_ARG_DIFF_WEIGHTS, &weight);
    bxi_nn_add_arg(step, DNNL_ARG_DIFF_BIAS, &bias);
    if (weight.buffer >= 0)
        bxi_nn_add_reorder(plan, &plan->backward, &weight, &theirs);
    bxi_nn_release(plan, &src);
    bxi_nn_release(plan, &to);
    bxi_nn_release(plan, &weight);
}

/* The step that computes the gradient of the input, and gives it to that node. */
static void backward_data(struct bxi_plan *plan, const struct bxi_node *node, const_dnnl_primitive_desc_t pd,
                          const struct bxi_tensor *grad)
{
    struct bxi_work *work = &plan->work[plan->node];

    if (plan->error != 0)
        return;

    const dnnl_memory_desc_t *liked = bxi_nn_md_of(pd, dnnl_query_weights_md);
    struct bxi_tensor weight = bxi_nn_is_same(liked, &work->weight.md) ? work->weight :
        bxi_nn_load_weight(plan, node, liked);
    struct bxi_tensor from = bxi_nn_in_layout(plan, &plan->backward, grad, bxi_nn_md_of(pd, dnnl_query_diff_dst_md));
    struct bxi_tensor to = bxi_nn_new_tensor(plan, bxi_nn_md_of(pd, dnnl_query_diff_src_md));
    struct bxi_step *step = bxi_nn_add_primitive(plan, &plan->backward, pd);

    bxi_nn_add_arg(step, DNNL_ARG_WEIGHTS, &weight);
    bxi_nn_add_arg(step, DNNL_ARG_DIFF_DST, &from);
    bxi_nn_add_arg(step, DNNL_ARG_DIFF_SRC, &to);
    bxi_nn_release(plan, &from);
    bxi_nn_give_grad(plan, node->in[0], &to);
}

static void backward_conv(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    const struct bxi_node *before = &plan->net->nodes[node->in[0]];
    const dnnl_memory_desc_t src = bxi_nn_describe_out(plan, before, dnnl_format_tag_any);
    const dnnl_memory_desc_t weight = describe_weight(plan, node, dnnl_format_tag_any);
    const dnnl_memory_desc_t bias = bxi_nn_describe_vector(plan, node->dims[1]);
    const dnnl_memory_desc_t dst = bxi_nn_describe_out(plan, node, dnnl_format_tag_any);
    const struct window window = window_of(node);
    struct bxi_tensor grad;
    dnnl_primitive_desc_t pd;
    dnnl_convolution_desc_t op;

    if (work->block != 0) {
        bxi_nn_backward_folded(plan, node, work);
        return;
    }
    grad = bxi_nn_take_grad(plan, plan->node, false);
    if (!bxi_nn_ok(plan, dnnl_convolution_backward_weights_desc_init(&op, dnnl_convolution_direct, &src, &weight,
                          node->bias ? &bias : NULL, &dst, window.stride, window.padding, window.padding),
                   "gradient of the weights"))
        return;
    pd = bxi_nn_make_pd(plan, &op, work->forward, "gradient of the weights");
    backward_weights(plan, node, pd, &grad);
    bxi_nn_destroy_pd(pd);
    if (before->grad &&
        bxi_nn_ok(plan, dnnl_convolution_backward_data_desc_init(&op, dnnl_convolution_direct, &src, &weight,
                         &dst, window.stride, window.padding, window.padding), "gradient of the input")) {
        pd = bxi_nn_make_pd(plan, &op, work->forward, "gradient of the input");
        backward_data(plan, node, pd, &grad);
        bxi_nn_destroy_pd(pd);
    }
    bxi_nn_release(plan, &grad);
}

/* ---- Linear -------------------------------------------------------------------------------------- */

static dnnl_memory_desc_t describe_matrix(struct bxi_plan *plan, const struct bxi_node *node)
{
    return bxi_nn_describe(plan, 2, (const dnnl_dims_t){ node->dims[0], node->dims[1] }, dnnl_ab);
}

static void forward_linear(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    const dnnl_memory_desc_t src = bxi_nn_describe_out(plan, &plan->net->nodes[node->in[0]], dnnl_format_tag_any);
    const dnnl_memory_desc_t weight = describe_weight(plan, node, dnnl_format_tag_any);
    const dnnl_memory_desc_t bias = bxi_nn_describe_vector(plan, node->dims[1]);
    const dnnl_memory_desc_t dst = describe_matrix(plan, node);
    const dnnl_memory_desc_t whole = bxi_nn_describe_out(plan, node, dnnl_abcd);
    dnnl_inner_product_desc_t op;

    if (!bxi_nn_ok(plan, dnnl_inner_product_forward_desc_init(&op, dnnl_forward_training, &src, &weight,
                          node->bias ? &bias : NULL, &dst), "linear"))
        return;
    work->forward = bxi_nn_make_pd(plan, &op, NULL, "linear");
    forward_weighted(plan, node, work);
    /* The same bytes as N x C x 1 x 1, which is what a consumer expects. */
    if (plan->error == 0)
        work->out = bxi_nn_tensor_on(plan, &whole, work->out.buffer);
}

static void backward_linear(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    const struct bxi_node *before = &plan->net->nodes[node->in[0]];
    const dnnl_memory_desc_t src = bxi_nn_describe_out(plan, before, dnnl_format_tag_any);
    const dnnl_memory_desc_t weight = describe_weight(plan, node, dnnl_format_tag_any);
    const dnnl_memory_desc_t bias = bxi_nn_describe_vector(plan, node->dims[1]);
    const dnnl_memory_desc_t whole = bxi_nn_describe_out(plan, node, dnnl_abcd);
    const dnnl_memory_desc_t dst = describe_matrix(plan, node);
    struct bxi_tensor taken = bxi_nn_take_grad(plan, plan->node, false);
    struct bxi_tensor grad = bxi_nn_in_layout(plan, &plan->backward, &taken, &whole);
    dnnl_primitive_desc_t pd;
    dnnl_inner_product_desc_t op;

    bxi_nn_release(plan, &taken);
    grad = bxi_nn_tensor_on(plan, &dst, grad.buffer);
    if (!bxi_nn_ok(plan, dnnl_inner_product_backward_weights_desc_init(&op, &src, &weight,
                          node->bias ? &bias : NULL, &dst), "gradient of the weights"))
        return;
    pd = bxi_nn_make_pd(plan, &op, work->forward, "gradient of the weights");
    backward_weights(plan, node, pd, &grad);
    bxi_nn_destroy_pd(pd);
    if (before->grad && bxi_nn_ok(plan, dnnl_inner_product_backward_data_desc_init(&op, &src, &weight, &dst),
                                  "gradient of the input")) {
        pd = bxi_nn_make_pd(plan, &op, work->forward, "gradient of the input");
        backward_data(plan, node, pd, &grad);
        bxi_nn_destroy_pd(pd);
    }
    bxi_nn_release(plan, &grad);
}

/* ---- Batch normalisation ------------------------------------------------------------------------- */

unsigned bxi_nn_batch_norm_flags(const struct bxi_node *node)
{
    return dnnl_use_scale | dnnl_use_shift | (node->relu ? (unsigned)dnnl_fuse_norm_relu : 0);
}

static void forward_batch_norm(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    const dnnl_memory_desc_t vector = bxi_nn_describe_vector(plan, node->dims[1]);
    struct bxi_tensor src, out;
    dnnl_batch_normalization_desc_t op;
    struct bxi_step *step;

    work->src = plan->work[node->in[0]].out;
    work->out = bxi_nn_new_tensor(plan, &work->src.md);
    src = bxi_nn_flat(plan, node, &work->src);
    out = bxi_nn_flat(plan, node, &work->out);
    if (!bxi_nn_ok(plan, dnnl_batch_normalization_forward_desc_init(&op, dnnl_forward_training, &src.md,
                          BXI_BN_EPSILON, bxi_nn_batch_norm_flags(node)), "batch normalisation"))
        return;
    work->forward = bxi_nn_make_pd(plan, &op, NULL, "batch normalisation");
    work->weight = load_param(plan, node->param, &vector, &vector);
    work->bias = bxi_nn_load_bias(plan, node);
    work->mean = bxi_nn_new_tensor(plan, &vector);
    work->var = bxi_nn_new_tensor(plan, &vector);
    if (node->relu && plan->error == 0)
        work->workspace = bxi_nn_new_tensor(plan, bxi_nn_md_of(work->forward, dnnl_query_workspace_md));
    work->forward_step = plan->forward.count;
    step = bxi_nn_add_primitive(plan, &plan->forward, work->forward);
    bxi_nn_add_arg(step, DNNL_ARG_SRC, &src);
    bxi_nn_add_arg(step, DNNL_ARG_SCALE, &work->weight);
    bxi_nn_add_arg(step, DNNL_ARG_SHIFT, &work->bias);
    bxi_nn_add_arg(step, DNNL_ARG_MEAN, &work->mean);
    bxi_nn_add_arg(step, DNNL_ARG_VARIANCE, &work->var);
    bxi_nn_add_arg(step, DNNL_ARG_WORKSPACE, &work->workspace);
    bxi_nn_add_arg(step, DNNL_ARG_DST, &out);
    bxi_nn_add_step(plan, &plan->forward, BXI_STEP_STATISTICS);
}

static void backward_batch_norm(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    const dnnl_memory_desc_t vector = bxi_nn_describe_vector(plan, node->dims[1]);
    struct bxi_tensor taken = bxi_nn_take_grad(plan, plan->node, false);
    struct bxi_tensor grad = bxi_nn_in_layout(plan, &plan->backward, &taken, &work->src.md);
    struct bxi_tensor src = bxi_nn_flat(plan, node, &work->src), flat = bxi_nn_flat(plan, node, &grad), flat_to;
    struct bxi_tensor scale = bxi_nn_callers_tensor(plan, &vector), shift = bxi_nn_callers_bias(plan, node);
    struct bxi_tensor to;
    dnnl_primitive_desc_t pd;
    dnnl_batch_normalization_desc_t op;
    struct bxi_step *step;

    plan->grads[node->param] = scale.memory;
    bxi_nn_release(plan, &taken);
    if (!bxi_nn_ok(plan, dnnl_batch_normalization_backward_desc_init(&op, dnnl_backward, &src.md, &src.md,
                          BXI_BN_EPSILON, bxi_nn_batch_norm_flags(node)), "gradient of batch normalisation"))
        return;
    pd = bxi_nn_make_pd(plan, &op, work->forward, "gradient of batch normalisation");
    step = bxi_nn_add_primitive(plan, &plan->backward, pd);
    bxi_nn_destroy_pd(pd);
    if (bxi_nn_is_only_reader(plan, &grad)) {
        to = grad;
        bxi_nn_retain(plan, &to);
    } else {
        to = bxi_nn_new_tensor(plan, &work->src.md);
    }
    flat_to = bxi_nn_flat(plan, node, &to);
    bxi_nn_add_arg(step, DNNL_ARG_SRC, &src);
    bxi_nn_add_arg(step, DNNL_ARG_SCALE, &work->weight);
    bxi_nn_add_arg(step, DNNL_ARG_SHIFT, &work->bias);
    bxi_nn_add_arg(step, DNNL_ARG_MEAN, &work->mean);
    bxi_nn_add_arg(step, DNNL_ARG_VARIANCE, &work->var);
    bxi_nn_add_arg(step, DNNL_ARG_WORKSPACE, &work->workspace);
    bxi_nn_add_arg(step, DNNL_ARG_DIFF_DST, &flat);
    bxi_nn_add_arg(step, DNNL_ARG_DIFF_SRC, &flat_to);
    bxi_nn_add_arg(step, DNNL_ARG_DIFF_SCALE, &scale);
    bxi_nn_add_arg(step, DNNL_ARG_DIFF_SHIFT, &shift);
    bxi_nn_release(plan, &grad);
    if (plan->net->nodes[node->in[0]].grad)
        bxi_nn_give_grad(plan, node->in[0], &to);
    else
        bxi_nn_release(plan, &to);
}

/* ---- Addition and ReLU --------------------------------------------------------------------------- */

/* Nobody reads the node's output but its one consumer, who may so overwrite it: the gradients of these
 * do not need it. */
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

    work->out = may_overwrite(plan, first) ? a : bxi_nn_new_tensor(plan, &a.md);
    /* The input of the net is the caller's array, at no address yet. */
    if (a.data == NULL) {
        bxi_nn_add_reorder(plan, &plan->forward, &a, &work->out);
        a = work->out;
    }
    if (other >= 0) {
        b = plan->work[other].out;
        if (b.data == NULL || !bxi_nn_is_same(&b.md, &a.md)) {
            b = bxi_nn_new_tensor(plan, &a.md);
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
        step->count = dnnl_memory_desc_get_size(&work->out.md) / sizeof(float);
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

static struct window pool_window(const struct bxi_plan *plan, const struct bxi_node *node)
{
    const int *in = plan->net->nodes[node->in[0]].dims;

    if (node->op == BXI_NN_MAX_POOL)
        return window_of(node);
    return (struct window){ .kernel = { in[2], in[3] }, .stride = { 1, 1 } };
}

static dnnl_alg_kind_t pool_kind(const struct bxi_node *node)
{
    return node->op == BXI_NN_MAX_POOL ? dnnl_pooling_max : dnnl_pooling_avg_exclude_padding;
}

static void forward_pool(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    const dnnl_memory_desc_t dst = bxi_nn_describe_out(plan, node, dnnl_format_tag_any);
    const struct window window = pool_window(plan, node);
    dnnl_pooling_desc_t op;
    struct bxi_step *step;

    work->src = bxi_nn_unfolded(plan, &plan->forward, &plan->net->nodes[node->in[0]], &plan->work[node->in[0]].out);
    if (!bxi_nn_ok(plan, dnnl_pooling_forward_desc_init(&op, dnnl_forward_training, pool_kind(node),
                          &work->src.md, &dst, window.stride, window.kernel, window.padding, window.padding),
                   "pooling"))
        return;
    work->forward = bxi_nn_make_pd(plan, &op, NULL, "pooling");
    if (plan->error != 0)
        return;
    work->out = bxi_nn_new_tensor(plan, bxi_nn_md_of(work->forward, dnnl_query_dst_md));
    if (node->op == BXI_NN_MAX_POOL)
        work->workspace = bxi_nn_new_tensor(plan, bxi_nn_md_of(work->forward, dnnl_query_workspace_md));
    step = bxi_nn_add_primitive(plan, &plan->forward, work->forward);
    bxi_nn_add_arg(step, DNNL_ARG_SRC, &work->src);
    bxi_nn_add_arg(step, DNNL_ARG_DST, &work->out);
    bxi_nn_add_arg(step, DNNL_ARG_WORKSPACE, &work->workspace);
}

static void backward_pool(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    const struct window window = pool_window(plan, node);
    struct bxi_tensor taken = bxi_nn_take_grad(plan, plan->node, false);
    struct bxi_tensor grad = bxi_nn_in_layout(plan, &plan->backward, &taken, &work->out.md);
    struct bxi_tensor to = bxi_nn_new_tensor(plan, &work->src.md);
    dnnl_primitive_desc_t pd;
    dnnl_pooling_desc_t op;
    struct bxi_step *step;

    bxi_nn_release(plan, &taken);
    if (!bxi_nn_ok(plan, dnnl_pooling_backward_desc_init(&op, pool_kind(node), &work->src.md, &work->out.md,
                          window.stride, window.kernel, window.padding, window.padding), "gradient of pooling"))
        return;
    pd = bxi_nn_make_pd(plan, &op, work->forward, "gradient of pooling");
    step = bxi_nn_add_primitive(plan, &plan->backward, pd);
    bxi_nn_destroy_pd(pd);
    bxi_nn_add_arg(step, DNNL_ARG_DIFF_DST, &grad);
    bxi_nn_add_arg(step, DNNL_ARG_DIFF_SRC, &to);
    bxi_nn_add_arg(step, DNNL_ARG_WORKSPACE, &work->workspace);
    bxi_nn_release(plan, &grad);
    bxi_nn_give_grad(plan, node->in[0], &to);
}

static void forward_softmax(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    const dnnl_memory_desc_t md = bxi_nn_describe_out(plan, node, dnnl_abcd);
    dnnl_softmax_desc_t op;
    struct bxi_step *step;

    work->src = bxi_nn_in_layout(plan, &plan->forward, &plan->work[node->in[0]].out, &md);
    work->out = bxi_nn_new_tensor(plan, &md);
    if (!bxi_nn_ok(plan, dnnl_softmax_forward_desc_init(&op, dnnl_forward_training, &md, 1), "softmax"))
        return;
    work->forward = bxi_nn_make_pd(plan, &op, NULL, "softmax");
    step = bxi_nn_add_primitive(plan, &plan->forward, work->forward);
    bxi_nn_add_arg(step, DNNL_ARG_SRC, &work->src);
    bxi_nn_add_arg(step, DNNL_ARG_DST, &work->out);
}

static void backward_softmax(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    struct bxi_tensor taken = bxi_nn_take_grad(plan, plan->node, false);
    struct bxi_tensor grad = bxi_nn_in_layout(plan, &plan->backward, &taken, &work->out.md);
    struct bxi_tensor to = bxi_nn_new_tensor(plan, &work->out.md);
    dnnl_primitive_desc_t pd;
    dnnl_softmax_desc_t op;
    struct bxi_step *step;

    bxi_nn_release(plan, &taken);
    if (!bxi_nn_ok(plan, dnnl_softmax_backward_desc_init(&op, &work->out.md, &work->out.md, 1),
                   "gradient of softmax"))
        return;
    pd = bxi_nn_make_pd(plan, &op, work->forward, "gradient of softmax");
    step = bxi_nn_add_primitive(plan, &plan->backward, pd);
    bxi_nn_destroy_pd(pd);
    bxi_nn_add_arg(step, DNNL_ARG_DST, &work->out);
    bxi_nn_add_arg(step, DNNL_ARG_DIFF_DST, &grad);
    bxi_nn_add_arg(step, DNNL_ARG_DIFF_SRC, &to);
    bxi_nn_release(plan, &grad);
    bxi_nn_give_grad(plan, node->in[0], &to);
}

/* ---- Any of them ---------------------------------------------------------------------------------- */

void bxi_nn_plan_forward(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    const dnnl_memory_desc_t plain = bxi_nn_describe_out(plan, node, dnnl_abcd);

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
    const dnnl_memory_desc_t plain = bxi_nn_describe_out(plan, node, dnnl_abcd);
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
#endif

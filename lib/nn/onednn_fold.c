/* SPDX-License-Identifier: MIT */
/*
 * Convolutions over few pixels, planned with the batch folded into the image. Run by the thread that calls
 * bx_net_finish; the moves of pixels by the one that computes.
 *
 * oneDNN's kernels go over one image after the other, and for each they walk over all weights again. Where an
 * image has 4 or 16 pixels, as in the last half of a ResNet, a megabyte of weights is read for a handful of
 * products each, and they reach half of what the processor can do. Here pixel p of all images lies
 * together, [C / block][H W][N][block], so that the whole batch is one image of H W N pixels: a
 * convolution of kernel 1 is that of one image, and reaches nine tenths. A larger kernel, or a
 * stride, first gathers for each tap the pixels that it meets, as C more channels, and is a kernel of 1
 * over those. The gathering moves whole runs of N * block floats, which costs little; the weights lie by
 * taps too, which costs nothing, they are reordered anyhow.
 *
 * To the rest of the plan a folded tensor is one of N x C x H x W in a layout of its own, which oneDNN can
 * describe and reorder; batch normalisation and additions take it as it is, so a row of such layers
 * stays folded. What oneDNN computes with is a second description of the same bytes, flat: 1 x C x 1 x H W N.
 */
#include "onednn.h"

#include <string.h>

#if DNNL_VERSION_MAJOR == 2

/* More pixels than these keep the kernels busy by themselves. */
enum { FOLDED_PIXELS_MAX = 16 };

static int pixels_of(const struct bxi_node *node)
{
    return node->dims[2] * node->dims[3];
}

static int taps_of(const struct bxi_node *node)
{
    return node->kernel * node->kernel;
}

/* False where the gathered pixels would be the tensor itself. */
static bool gathers(const struct bxi_node *node)
{
    return node->kernel != 1 || node->stride != 1 || node->padding != 0;
}

/* The floats of a channel block that lie together; 0 if channels are not blocked so. */
static int block_of(const dnnl_memory_desc_t *md)
{
    const dnnl_blocking_desc_t *blocking = &md->format_desc.blocking;

    if (md->ndims != 4 || md->format_kind != dnnl_blocked || blocking->inner_nblks != 1 ||
        blocking->inner_idxs[0] != 1 || md->dims[1] % blocking->inner_blks[0] != 0)
        return 0;
    return (int)blocking->inner_blks[0];
}

/* As the computing primitives see it: one image. */
static dnnl_memory_desc_t describe_flat(struct bxi_plan *plan, int64_t channels, int64_t pixels, int block)
{
    return bxi_nn_describe(plan, 4, (const dnnl_dims_t){ 1, channels, 1, pixels },
                           block == 16 ? dnnl_aBcd16b : block == 8 ? dnnl_aBcd8b : dnnl_format_tag_any);
}

/* As the plan sees it. */
static dnnl_memory_desc_t describe_folded(struct bxi_plan *plan, const struct bxi_node *node, int block)
{
    dnnl_memory_desc_t md = bxi_nn_describe_out(plan, node, block == 16 ? dnnl_aBcd16b : dnnl_aBcd8b);
    dnnl_dim_t *strides = md.format_desc.blocking.strides;

    strides[0] = block;
    strides[3] = strides[0] * node->dims[0];
    strides[2] = strides[3] * node->dims[3];
    strides[1] = strides[2] * node->dims[2];
    return md;
}

struct bxi_tensor bxi_nn_flat(struct bxi_plan *plan, const struct bxi_node *node, const struct bxi_tensor *tensor)
{
    int block = block_of(&tensor->md);
    dnnl_memory_desc_t md;

    if (plan->error != 0 || (block != 8 && block != 16))
        return *tensor;
    md = describe_folded(plan, node, block);
    if (!bxi_nn_is_same(&md, &tensor->md))
        return *tensor;
    md = describe_flat(plan, node->dims[1], (int64_t)node->dims[0] * pixels_of(node), block);
    return bxi_nn_tensor_on(plan, &md, tensor->buffer);
}

struct bxi_tensor bxi_nn_unfolded(struct bxi_plan *plan, struct bxi_program *program, const struct bxi_node *node,
                                  const struct bxi_tensor *tensor)
{
    int block = block_of(&tensor->md);
    const dnnl_memory_desc_t md = bxi_nn_describe_out(plan, node, block == 16 ? dnnl_aBcd16b :
                                                      block == 8 ? dnnl_aBcd8b : dnnl_abcd);

    return bxi_nn_in_layout(plan, program, tensor, block == 8 || block == 16 ? &md : &tensor->md);
}

/* ---- The weights by taps ------------------------------------------------------------------------- */

/* The weights of a folded convolution, O x (taps x C) x 1 x 1 in the layout `flat`, as O x C x KH x KW. */
static bool describe_taps(struct bxi_plan *plan, const struct bxi_node *node, const dnnl_memory_desc_t *flat,
                          dnnl_memory_desc_t *taps)
{
    const dnnl_blocking_desc_t *from = &flat->format_desc.blocking;
    const int64_t channels = plan->net->nodes[node->in[0]].dims[1];
    int64_t block = 1;

    if (flat->ndims != 4 || flat->format_kind != dnnl_blocked)
        return false;
    for (int i = 0; i < from->inner_nblks; i++)
        if (from->inner_idxs[i] == 1)
            block *= from->inner_blks[i];
    if (channels % block != 0)
        return false;
    *taps = *flat;
    taps->dims[1] = taps->padded_dims[1] = channels;
    taps->dims[2] = taps->padded_dims[2] = node->kernel;
    taps->dims[3] = taps->padded_dims[3] = node->kernel;
    taps->format_desc.blocking.strides[3] = from->strides[1] * (channels / block);
    taps->format_desc.blocking.strides[2] = taps->format_desc.blocking.strides[3] * node->kernel;
    return dnnl_memory_desc_get_size(taps) == dnnl_memory_desc_get_size(flat);
}

static struct bxi_tensor load_taps(struct bxi_plan *plan, const struct bxi_node *node, const dnnl_memory_desc_t *flat)
{
    dnnl_memory_desc_t taps;
    struct bxi_tensor weight = { .memory = NULL };

    if (plan->error != 0 || !describe_taps(plan, node, flat, &taps))
        return weight;
    weight = bxi_nn_load_weight(plan, node, &taps);
    return bxi_nn_tensor_on(plan, flat, weight.buffer);
}

/* ---- May it be folded ---------------------------------------------------------------------------- */

struct descriptions {
    dnnl_memory_desc_t src, weight, bias, dst;
};

static const dnnl_dims_t strides_1 = { 1, 1 }, padding_0 = { 0, 0 };

static void describe_all(struct bxi_plan *plan, const struct bxi_node *node, struct descriptions *all)
{
    const int64_t channels = (int64_t)plan->net->nodes[node->in[0]].dims[1] * taps_of(node);
    const int64_t pixels = (int64_t)node->dims[0] * pixels_of(node);

    all->src = describe_flat(plan, channels, pixels, 0);
    all->dst = describe_flat(plan, node->dims[1], pixels, 0);
    all->bias = bxi_nn_describe_vector(plan, node->dims[1]);
    all->weight = bxi_nn_describe(plan, 4, (const dnnl_dims_t){ node->dims[1], channels, 1, 1 },
                                  dnnl_format_tag_any);
}

/* Fills in work->forward and its two gradients; what cannot be made stays NULL and is no failure. */
static void make_all(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    struct descriptions all;
    const dnnl_memory_desc_t *bias;
    dnnl_convolution_desc_t op;

    describe_all(plan, node, &all);
    bias = node->bias ? &all.bias : NULL;
    if (plan->error != 0 ||
        dnnl_convolution_forward_desc_init(&op, dnnl_forward_training, dnnl_convolution_direct, &all.src, &all.weight,
                                           bias, &all.dst, strides_1, padding_0, padding_0) != dnnl_success ||
        dnnl_primitive_desc_create(&work->forward, &op, plan->attr, plan->engine, NULL) != dnnl_success)
        return;
    if (dnnl_convolution_backward_weights_desc_init(&op, dnnl_convolution_direct, &all.src, &all.weight, bias,
                                                    &all.dst, strides_1, padding_0, padding_0) == dnnl_success)
        dnnl_primitive_desc_create(&work->backward_weights, &op, plan->attr, plan->engine, work->forward);
    if (dnnl_convolution_backward_data_desc_init(&op, dnnl_convolution_direct, &all.src, &all.weight, &all.dst,
                                                 strides_1, padding_0, padding_0) == dnnl_success)
        dnnl_primitive_desc_create(&work->backward_data, &op, plan->attr, plan->engine, work->forward);
}

/* The block that all of them take channels in; 0 if they do not agree. */
static int common_block(struct bxi_plan *plan, const struct bxi_node *node, const struct bxi_work *work)
{
    const int in = plan->net->nodes[node->in[0]].dims[1];
    dnnl_memory_desc_t taps;
    int block;

    if (work->forward == NULL || work->backward_weights == NULL || work->backward_data == NULL)
        return 0;
    block = block_of(bxi_nn_md_of(work->forward, dnnl_query_src_md));
    if ((block != 8 && block != 16) || in % block != 0 || node->dims[1] % block != 0 ||
        block_of(bxi_nn_md_of(work->forward, dnnl_query_dst_md)) != block)
        return 0;
    if (!describe_taps(plan, node, bxi_nn_md_of(work->forward, dnnl_query_weights_md), &taps) ||
        !describe_taps(plan, node, bxi_nn_md_of(work->backward_weights, dnnl_query_diff_weights_md), &taps) ||
        !describe_taps(plan, node, bxi_nn_md_of(work->backward_data, dnnl_query_weights_md), &taps))
        return 0;
    return block;
}

/* ---- Planning ------------------------------------------------------------------------------------ */

static void add_move(struct bxi_plan *plan, struct bxi_program *program, enum bxi_step_kind kind,
                     const struct bxi_tensor *from, const struct bxi_tensor *to)
{
    struct bxi_step *step = bxi_nn_add_step(plan, program, kind);

    if (step == NULL)
        return;
    step->a = from->data;
    step->to = to->data;
    step->count = (size_t)plan->work[plan->node].block;
}

bool bxi_nn_forward_folded(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    const struct bxi_node *before = &plan->net->nodes[node->in[0]];
    struct bxi_tensor in, out;
    dnnl_memory_desc_t md;
    struct bxi_step *step;

    if (pixels_of(node) > FOLDED_PIXELS_MAX || before->dims[1] % 8 != 0 || node->dims[1] % 8 != 0)
        return false;
    make_all(plan, node, work);
    work->block = common_block(plan, node, work);
    if (plan->error != 0 || work->block == 0) {
        bxi_nn_destroy_pds(work);
        return false;
    }
    md = describe_folded(plan, before, work->block);
    in = bxi_nn_in_layout(plan, &plan->forward, &plan->work[node->in[0]].out, &md);
    if (gathers(node)) {
        work->src = bxi_nn_new_tensor(plan, bxi_nn_md_of(work->forward, dnnl_query_src_md));
        add_move(plan, &plan->forward, BXI_STEP_GATHER, &in, &work->src);
        bxi_nn_release(plan, &in);
    } else {
        work->src = bxi_nn_tensor_on(plan, bxi_nn_md_of(work->forward, dnnl_query_src_md), in.buffer);
    }
    work->weight = load_taps(plan, node, bxi_nn_md_of(work->forward, dnnl_query_weights_md));
    work->bias = bxi_nn_load_bias(plan, node);
    md = describe_folded(plan, node, work->block);
    work->out = bxi_nn_new_tensor(plan, &md);
    out = bxi_nn_flat(plan, node, &work->out);
    step = bxi_nn_add_primitive(plan, &plan->forward, work->forward);
    bxi_nn_add_arg(step, DNNL_ARG_SRC, &work->src);
    bxi_nn_add_arg(step, DNNL_ARG_WEIGHTS, &work->weight);
    bxi_nn_add_arg(step, DNNL_ARG_BIAS, &work->bias);
    bxi_nn_add_arg(step, DNNL_ARG_DST, &out);
    return true;
}

static void backward_weights(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work,
                             const struct bxi_tensor *grad)
{
    const dnnl_memory_desc_t *liked = bxi_nn_md_of(work->backward_weights, dnnl_query_diff_weights_md);
    struct bxi_tensor src = bxi_nn_in_layout(plan, &plan->backward, &work->src,
                                             bxi_nn_md_of(work->backward_weights, dnnl_query_src_md));
    struct bxi_tensor from = bxi_nn_in_layout(plan, &plan->backward, grad,
                                              bxi_nn_md_of(work->backward_weights, dnnl_query_diff_dst_md));
    struct bxi_tensor weight = bxi_nn_new_tensor(plan, liked);
    struct bxi_tensor bias = bxi_nn_callers_bias(plan, node);
    struct bxi_tensor theirs = bxi_nn_callers_weight(plan, node);
    struct bxi_step *step = bxi_nn_add_primitive(plan, &plan->backward, work->backward_weights);
    dnnl_memory_desc_t md;

    bxi_nn_add_arg(step, DNNL_ARG_SRC, &src);
    bxi_nn_add_arg(step, DNNL_ARG_DIFF_DST, &from);
    bxi_nn_add_arg(step, DNNL_ARG_DIFF_WEIGHTS, &weight);
    bxi_nn_add_arg(step, DNNL_ARG_DIFF_BIAS, &bias);
    if (describe_taps(plan, node, liked, &md)) {
        struct bxi_tensor taps = bxi_nn_tensor_on(plan, &md, weight.buffer);

        bxi_nn_add_reorder(plan, &plan->backward, &taps, &theirs);
    }
    bxi_nn_release(plan, &src);
    bxi_nn_release(plan, &from);
    bxi_nn_release(plan, &weight);
}

static void backward_data(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work,
                          const struct bxi_tensor *grad)
{
    const dnnl_memory_desc_t *liked = bxi_nn_md_of(work->backward_data, dnnl_query_weights_md);
    const dnnl_memory_desc_t md = describe_folded(plan, &plan->net->nodes[node->in[0]], work->block);
    struct bxi_tensor weight = bxi_nn_is_same(liked, &work->weight.md) ? work->weight : load_taps(plan, node, liked);
    struct bxi_tensor from = bxi_nn_in_layout(plan, &plan->backward, grad,
                                              bxi_nn_md_of(work->backward_data, dnnl_query_diff_dst_md));
    struct bxi_tensor made = bxi_nn_new_tensor(plan, bxi_nn_md_of(work->backward_data, dnnl_query_diff_src_md));
    struct bxi_tensor flat = bxi_nn_in_layout(plan, &plan->backward, &made, &work->src.md);
    struct bxi_tensor to;
    struct bxi_step *step = bxi_nn_add_primitive(plan, &plan->backward, work->backward_data);

    bxi_nn_add_arg(step, DNNL_ARG_WEIGHTS, &weight);
    bxi_nn_add_arg(step, DNNL_ARG_DIFF_DST, &from);
    bxi_nn_add_arg(step, DNNL_ARG_DIFF_SRC, &made);
    bxi_nn_release(plan, &from);
    bxi_nn_release(plan, &made);
    if (gathers(node)) {
        to = bxi_nn_new_tensor(plan, &md);
        add_move(plan, &plan->backward, BXI_STEP_SCATTER, &flat, &to);
        bxi_nn_release(plan, &flat);
    } else {
        to = bxi_nn_tensor_on(plan, &md, flat.buffer);
    }
    bxi_nn_give_grad(plan, node->in[0], &to);
}

void bxi_nn_backward_folded(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    struct bxi_tensor taken = bxi_nn_take_grad(plan, plan->node, false);
    struct bxi_tensor grad = bxi_nn_in_layout(plan, &plan->backward, &taken, &work->out.md);
    struct bxi_tensor flat = bxi_nn_flat(plan, node, &grad);

    bxi_nn_release(plan, &taken);
    if (plan->error != 0)
        return;
    backward_weights(plan, node, work, &flat);
    if (plan->net->nodes[node->in[0]].grad)
        backward_data(plan, node, work, &flat);
    bxi_nn_release(plan, &grad);
}

/* ---- Moving pixels ------------------------------------------------------------------------------- */

/* A run of one block of channels of all images at one pixel. */
struct run {
    size_t floats;
    int blocks;                 /* of channels */
    const int *in, *out;        /* dims */
};

static struct run run_of(const struct bx_net *net, const struct bxi_step *step)
{
    const struct bxi_node *node = &net->nodes[step->node], *before = &net->nodes[node->in[0]];

    return (struct run){
        .floats = step->count * (size_t)node->dims[0],
        .blocks = before->dims[1] / (int)step->count,
        .in = before->dims,
        .out = node->dims,
    };
}

/* Where the tap (y, x) meets the input for output pixel `pixel`; -1: in the padding. */
static long met(const struct bxi_node *node, const struct run *run, int tap, int pixel)
{
    long y = (long)(pixel / run->out[3]) * node->stride - node->padding + tap / node->kernel;
    long x = (long)(pixel % run->out[3]) * node->stride - node->padding + tap % node->kernel;

    return y < 0 || x < 0 || y >= run->in[2] || x >= run->in[3] ? -1 : y * run->in[3] + x;
}

void bxi_nn_gather(const struct bx_net *net, const struct bxi_step *step)
{
    const struct bxi_node *node = &net->nodes[step->node];
    const struct run run = run_of(net, step);
    const size_t plane = run.floats * (size_t)run.in[2] * (size_t)run.in[3];
    float *to = step->to;

    for (int tap = 0; tap < taps_of(node); tap++)
        for (int block = 0; block < run.blocks; block++)
            for (int pixel = 0; pixel < pixels_of(node); pixel++, to += run.floats) {
                long from = met(node, &run, tap, pixel);

                if (from < 0)
                    memset(to, 0, run.floats * sizeof *to);
                else
                    memcpy(to, step->a + (size_t)block * plane + (size_t)from * run.floats, run.floats * sizeof *to);
            }
}

void bxi_nn_scatter(const struct bx_net *net, const struct bxi_step *step)
{
    const struct bxi_node *node = &net->nodes[step->node];
    const struct run run = run_of(net, step);
    const size_t plane = run.floats * (size_t)run.in[2] * (size_t)run.in[3];
    const float *from = step->a;

    memset(step->to, 0, (size_t)run.blocks * plane * sizeof *step->to);
    for (int tap = 0; tap < taps_of(node); tap++)
        for (int block = 0; block < run.blocks; block++)
            for (int pixel = 0; pixel < pixels_of(node); pixel++, from += run.floats) {
                long at = met(node, &run, tap, pixel);
                float *to = step->to + (size_t)block * plane + (size_t)(at < 0 ? 0 : at) * run.floats;

                for (size_t i = 0; at >= 0 && i < run.floats; i += BXI_VEC_FLOATS)
                    *(bxi_vec *)(to + i) += *(const bxi_vec *)(from + i);
            }
}
#endif

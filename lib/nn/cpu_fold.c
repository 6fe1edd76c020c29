/* SPDX-License-Identifier: MIT */
/*
 * Convolutions over few pixels, planned with the batch folded into the image. Run by the thread that calls
 * bx_net_finish; the moves of pixels by the threads that compute.
 *
 * oneDNN's kernels compute one image after the other, and read all weights for each. Where an image has 4 or 16 pixels,
 * as in the last half of a ResNet, that is a megabyte of weights for a few products each: half of the processor's peak.
 * Here pixel p of all images lies together, [C / block][H W][N][block], so that the whole batch is one image of H W N
 * pixels. A convolution of kernel 1 is a convolution of that one image, and reaches nine tenths of the peak. A larger
 * kernel, or a stride, first gathers for each tap the pixels that it meets, as C more channels, and is then a
 * convolution of kernel 1 over these. Gathering copies whole runs of N * block floats, which costs little. The weights
 * are ordered by taps too, at no cost, because they are reordered in any case.
 *
 * For the rest of the plan a folded tensor is an N x C x H x W tensor with a layout of its own, which oneDNN can
 * describe and reorder. Batch normalisation and additions accept it as it is, so a row of such layers stays folded.
 * oneDNN computes with a second description of the same bytes, flat: 1 x C x 1 x H W N.
 */
#include "cpu.h"

#include <string.h>

/* oneDNN's kernels are fast enough for images of more pixels. */
enum { FOLDED_PIXELS_MAX = 16 };

static int pixels_of(const struct bxi_node *node)
{
    return node->dims[2] * node->dims[3];
}

static int taps_of(const struct bxi_node *node)
{
    return node->kernel * node->kernel;
}

/* False if the gathered pixels would equal the tensor itself. */
static bool gathers(const struct bxi_node *node)
{
    return node->kernel != 1 || node->stride != 1 || node->padding != 0;
}

/* The layout for the rest of the plan. */
static struct bxi_layout folded_layout(const struct bxi_node *node, int block)
{
    struct bxi_layout layout = bxi_nn_blocked_out(node, block);

    layout.strides[0] = block;
    layout.strides[3] = layout.strides[0] * node->dims[0];
    layout.strides[2] = layout.strides[3] * node->dims[3];
    layout.strides[1] = layout.strides[2] * node->dims[2];
    return layout;
}

struct bxi_tensor bxi_nn_flat(struct bxi_plan *plan, const struct bxi_node *node, const struct bxi_tensor *tensor)
{
    int block = bxi_layout_block(&tensor->layout);
    struct bxi_layout layout;

    if (plan->error != 0 || (block != 8 && block != 16))
        return *tensor;
    layout = folded_layout(node, block);
    if (!bxi_layout_is_same(&layout, &tensor->layout))
        return *tensor;
    /* For the operations that compute: one image. */
    layout = bxi_layout_blocked((const int64_t[4]){ 1, node->dims[1], 1, (int64_t)node->dims[0] * pixels_of(node) },
                                block);
    return bxi_nn_tensor_on(plan, &layout, tensor->buffer);
}

struct bxi_tensor bxi_nn_unfolded(struct bxi_plan *plan, struct bxi_program *program, const struct bxi_node *node,
                                  const struct bxi_tensor *tensor)
{
    int block = bxi_layout_block(&tensor->layout);
    const struct bxi_layout apart = block == 8 || block == 16 ? bxi_nn_blocked_out(node, block) : tensor->layout;

    return bxi_nn_in_layout(plan, program, tensor, &apart);
}

/* ---- The weights by taps ------------------------------------------------------------------------- */

/* Describes the weights of a folded convolution, O x (taps x C) x 1 x 1 in the layout `flat`, as O x C x KH x KW.
 * False: they cannot be described so. */
static bool taps_layout(const struct bxi_plan *plan, const struct bxi_node *node, const struct bxi_layout *flat,
                        struct bxi_layout *taps)
{
    const int64_t channels = plan->net->nodes[node->in[0]].dims[1];
    int64_t block = 1;

    if (flat->ndims != 4)
        return false;
    for (int i = 0; i < flat->inner_count; i++)
        if (flat->inner_axis[i] == 1)
            block *= flat->inner_size[i];
    if (channels % block != 0)
        return false;
    *taps = *flat;
    taps->dims[1] = taps->padded[1] = channels;
    taps->dims[2] = taps->padded[2] = node->kernel;
    taps->dims[3] = taps->padded[3] = node->kernel;
    taps->strides[3] = flat->strides[1] * (channels / block);
    taps->strides[2] = taps->strides[3] * node->kernel;
    return bxi_layout_bytes(taps) == bxi_layout_bytes(flat);
}

static struct bxi_tensor load_taps(struct bxi_plan *plan, const struct bxi_node *node, const struct bxi_layout *flat)
{
    struct bxi_layout taps;
    struct bxi_tensor weight = { .memory = NULL };

    if (plan->error != 0 || !taps_layout(plan, node, flat, &taps))
        return weight;
    weight = bxi_nn_load_weight(plan, node, &taps);
    return bxi_nn_tensor_on(plan, flat, weight.buffer);
}

/* ---- May it be folded ---------------------------------------------------------------------------- */

/* Describes work->forward and its two gradients. A recipe that oneDNN does not have stays NULL, which is no failure. */
static void describe_all(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    const int64_t channels = (int64_t)plan->net->nodes[node->in[0]].dims[1] * taps_of(node);
    const int64_t pixels = (int64_t)node->dims[0] * pixels_of(node);
    struct bxi_spec spec = {
        .op = BXI_OP_CONV,
        .pass = BXI_PASS_FORWARD,
        .src = bxi_layout_any(4, (const int64_t[4]){ 1, channels, 1, pixels }),
        .weight = bxi_layout_any(4, (const int64_t[4]){ node->dims[1], channels, 1, 1 }),
        .dst = bxi_layout_any(4, (const int64_t[4]){ 1, node->dims[1], 1, pixels }),
        .stride = 1,
    };

    if (node->bias)
        spec.bias = bxi_layout_vector(node->dims[1]);
    if (plan->error != 0 || bxi_onednn.describe(plan->dnn, &spec, &work->forward) != 0)
        return;
    spec.forward = work->forward;
    spec.pass = BXI_PASS_BACKWARD_WEIGHTS;
    bxi_onednn.describe(plan->dnn, &spec, &work->backward_weights);
    spec.pass = BXI_PASS_BACKWARD_DATA;
    bxi_onednn.describe(plan->dnn, &spec, &work->backward_data);
}

/* The block of channels that all three recipes prefer; 0: they differ, or it cannot be folded. */
static int common_block(struct bxi_plan *plan, const struct bxi_node *node, const struct bxi_work *work)
{
    const int in = plan->net->nodes[node->in[0]].dims[1];
    const struct {
        const struct bxi_recipe *recipe;
        enum bxi_arg weight;
    } all[] = {
        { work->forward, BXI_ARG_WEIGHTS }, { work->backward_weights, BXI_ARG_DIFF_WEIGHTS },
        { work->backward_data, BXI_ARG_WEIGHTS },
    };
    struct bxi_layout layout, taps;
    int block;

    if (plan->error != 0 || work->forward == NULL || work->backward_weights == NULL || work->backward_data == NULL)
        return 0;
    layout = bxi_nn_preferred(plan, work->forward, BXI_ARG_SRC);
    block = bxi_layout_block(&layout);
    layout = bxi_nn_preferred(plan, work->forward, BXI_ARG_DST);
    if ((block != 8 && block != 16) || in % block != 0 || node->dims[1] % block != 0 ||
        bxi_layout_block(&layout) != block)
        return 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        layout = bxi_nn_preferred(plan, all[i].recipe, all[i].weight);
        if (!taps_layout(plan, node, &layout, &taps))
            return 0;
    }
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
    struct bxi_layout src, layout;
    struct bxi_tensor in, out;
    struct bxi_step *step;

    if (pixels_of(node) > FOLDED_PIXELS_MAX || before->dims[1] % 8 != 0 || node->dims[1] % 8 != 0)
        return false;
    describe_all(plan, node, work);
    work->block = common_block(plan, node, work);
    if (work->block == 0)
        return false;
    layout = folded_layout(before, work->block);
    in = bxi_nn_in_layout(plan, &plan->forward, &plan->work[node->in[0]].out, &layout);
    src = bxi_nn_preferred(plan, work->forward, BXI_ARG_SRC);
    if (gathers(node)) {
        work->src = bxi_nn_new_tensor(plan, &src);
        add_move(plan, &plan->forward, BXI_STEP_GATHER, &in, &work->src);
        bxi_nn_release(plan, &in);
    } else {
        work->src = bxi_nn_tensor_on(plan, &src, in.buffer);
    }
    layout = bxi_nn_preferred(plan, work->forward, BXI_ARG_WEIGHTS);
    work->weight = load_taps(plan, node, &layout);
    work->bias = bxi_nn_load_bias(plan, node);
    layout = folded_layout(node, work->block);
    work->out = bxi_nn_new_tensor(plan, &layout);
    out = bxi_nn_flat(plan, node, &work->out);
    step = bxi_nn_add_op(plan, &plan->forward, work->forward);
    bxi_nn_add_arg(plan, step, BXI_ARG_SRC, &work->src);
    bxi_nn_add_arg(plan, step, BXI_ARG_WEIGHTS, &work->weight);
    bxi_nn_add_arg(plan, step, BXI_ARG_BIAS, &work->bias);
    bxi_nn_add_arg(plan, step, BXI_ARG_DST, &out);
    return true;
}

static void backward_weights(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work,
                             const struct bxi_tensor *grad)
{
    const struct bxi_recipe *recipe = work->backward_weights;
    const struct bxi_layout preferred = bxi_nn_preferred(plan, recipe, BXI_ARG_DIFF_WEIGHTS);
    const struct bxi_layout src_layout = bxi_nn_preferred(plan, recipe, BXI_ARG_SRC);
    const struct bxi_layout grad_layout = bxi_nn_preferred(plan, recipe, BXI_ARG_DIFF_DST);
    struct bxi_tensor src = bxi_nn_in_layout(plan, &plan->backward, &work->src, &src_layout);
    struct bxi_tensor from = bxi_nn_in_layout(plan, &plan->backward, grad, &grad_layout);
    struct bxi_tensor weight = bxi_nn_new_tensor(plan, &preferred);
    struct bxi_tensor bias = bxi_nn_callers_bias(plan, node);
    struct bxi_tensor callers = bxi_nn_callers_weight(plan, node);
    struct bxi_step *step = bxi_nn_add_op(plan, &plan->backward, recipe);
    struct bxi_layout layout;

    bxi_nn_add_arg(plan, step, BXI_ARG_SRC, &src);
    bxi_nn_add_arg(plan, step, BXI_ARG_DIFF_DST, &from);
    bxi_nn_add_arg(plan, step, BXI_ARG_DIFF_WEIGHTS, &weight);
    bxi_nn_add_arg(plan, step, BXI_ARG_DIFF_BIAS, &bias);
    if (taps_layout(plan, node, &preferred, &layout)) {
        struct bxi_tensor taps = bxi_nn_tensor_on(plan, &layout, weight.buffer);

        bxi_nn_add_reorder(plan, &plan->backward, &taps, &callers);
    }
    bxi_nn_release(plan, &src);
    bxi_nn_release(plan, &from);
    bxi_nn_release(plan, &weight);
}

static void backward_data(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work,
                          const struct bxi_tensor *grad)
{
    const struct bxi_recipe *recipe = work->backward_data;
    const struct bxi_layout preferred = bxi_nn_preferred(plan, recipe, BXI_ARG_WEIGHTS);
    const struct bxi_layout from_layout = bxi_nn_preferred(plan, recipe, BXI_ARG_DIFF_DST);
    const struct bxi_layout made_layout = bxi_nn_preferred(plan, recipe, BXI_ARG_DIFF_SRC);
    const struct bxi_layout folded = folded_layout(&plan->net->nodes[node->in[0]], work->block);
    struct bxi_tensor weight = bxi_layout_is_same(&preferred, &work->weight.layout) ? work->weight :
        load_taps(plan, node, &preferred);
    struct bxi_tensor from = bxi_nn_in_layout(plan, &plan->backward, grad, &from_layout);
    struct bxi_tensor made = bxi_nn_new_tensor(plan, &made_layout), flat, to;
    struct bxi_step *step = bxi_nn_add_op(plan, &plan->backward, recipe);

    bxi_nn_add_arg(plan, step, BXI_ARG_WEIGHTS, &weight);
    bxi_nn_add_arg(plan, step, BXI_ARG_DIFF_DST, &from);
    bxi_nn_add_arg(plan, step, BXI_ARG_DIFF_SRC, &made);
    flat = bxi_nn_in_layout(plan, &plan->backward, &made, &work->src.layout);
    bxi_nn_release(plan, &from);
    bxi_nn_release(plan, &made);
    if (gathers(node)) {
        to = bxi_nn_new_tensor(plan, &folded);
        add_move(plan, &plan->backward, BXI_STEP_SCATTER, &flat, &to);
        bxi_nn_release(plan, &flat);
    } else {
        to = bxi_nn_tensor_on(plan, &folded, flat.buffer);
    }
    bxi_nn_give_grad(plan, node->in[0], &to);
}

void bxi_nn_backward_folded(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work)
{
    struct bxi_tensor taken = bxi_nn_take_grad(plan, plan->node, false);
    struct bxi_tensor grad = bxi_nn_in_layout(plan, &plan->backward, &taken, &work->out.layout);
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

/* A run is one block of channels of all images at one pixel. */
struct move {
    const struct bxi_node *node;
    const struct bxi_step *step;
    const int *in, *out;        /* dims */
    size_t floats;              /* of a run */
    int blocks;                 /* of channels */
};

/* The input pixel that the tap meets for output pixel `pixel`; -1: it is padding. */
static long met(const struct move *move, int tap, int pixel)
{
    const struct bxi_node *node = move->node;
    long y = (long)(pixel / move->out[3]) * node->stride - node->padding + tap / node->kernel;
    long x = (long)(pixel % move->out[3]) * node->stride - node->padding + tap % node->kernel;

    return y < 0 || x < 0 || y >= move->in[2] || x >= move->in[3] ? -1 : y * move->in[3] + x;
}

/* Offset, in floats, of the pixels of `block` that `tap` meets among the gathered pixels. */
static size_t gathered_at(const struct move *move, int tap, int block)
{
    return (size_t)(tap * move->blocks + block) * (size_t)pixels_of(move->node) * move->floats;
}

static size_t plane_floats(const struct move *move)
{
    return move->floats * (size_t)move->in[2] * (size_t)move->in[3];
}

static void gather(const struct move *move, int tap, int block)
{
    const float *plane = move->step->a + (size_t)block * plane_floats(move);
    float *to = move->step->to + gathered_at(move, tap, block);

    for (int pixel = 0; pixel < pixels_of(move->node); pixel++, to += move->floats) {
        long from = met(move, tap, pixel);

        if (from < 0)
            memset(to, 0, move->floats * sizeof *to);
        else
            memcpy(to, plane + (size_t)from * move->floats, move->floats * sizeof *to);
    }
}

static void scatter(const struct move *move, int tap, int block)
{
    const float *from = move->step->a + gathered_at(move, tap, block);
    float *plane = move->step->to + (size_t)block * plane_floats(move);

    if (tap == 0)
        memset(plane, 0, plane_floats(move) * sizeof *plane);
    for (int pixel = 0; pixel < pixels_of(move->node); pixel++, from += move->floats) {
        long at = met(move, tap, pixel);
        float *to = plane + (size_t)(at < 0 ? 0 : at) * move->floats;

        for (size_t i = 0; at >= 0 && i < move->floats; i += BXI_VEC_FLOATS)
            *(bxi_vec *)(to + i) += *(const bxi_vec *)(from + i);
    }
}

static void move_part(const void *data, int index, int parts)
{
    const struct move *move = data;
    const struct bxi_range blocks = bxi_nn_share((size_t)move->blocks, index, parts);

    for (int block = (int)blocks.first; block < (int)blocks.end; block++)
        for (int tap = 0; tap < taps_of(move->node); tap++) {
            if (move->step->kind == BXI_STEP_GATHER)
                gather(move, tap, block);
            else
                scatter(move, tap, block);
        }
}

void bxi_nn_move(const struct bx_net *net, const struct bxi_step *step)
{
    const struct bxi_node *node = &net->nodes[step->node], *before = &net->nodes[node->in[0]];
    const struct move move = {
        .node = node,
        .step = step,
        .in = before->dims,
        .out = node->dims,
        .floats = step->count * (size_t)node->dims[0],
        .blocks = before->dims[1] / (int)step->count,
    };

    bxi_onednn.in_parallel(move_part, &move);
}

/* SPDX-License-Identifier: MIT */
/*
 * Builds the ResNets, whole or in parts, and draws their first parameters. Run by the workers that compute with a net,
 * and by a parameter server, which only reads the names and shapes of its parameters.
 *
 * The shortcut of a block is built after its convolutions, although it could be computed before them: the order of the
 * building calls is the order of the parameters, and torchvision lists the shortcut last.
 */
#include "resnet.h"

#include "demos/common/rng.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define STAGES 4
#define CUT 2               /* stages in front of the cut: layer1 and layer2 */
#define NAME_MAX_BYTES 64

struct design {
    bool bottleneck;
    int blocks[STAGES];
};

static const struct design DESIGN[] = {
    [RESNET_18] = { .bottleneck = false, .blocks = { 2, 2, 2, 2 } },
    [RESNET_50] = { .bottleneck = true, .blocks = { 3, 4, 6, 3 } },
};

/* A net under construction, and its last node so far. */
struct builder {
    struct bx_net *net;
    int node;
    int channels;               /* of node */
    char prefix[NAME_MAX_BYTES / 2];
};

/* A convolution without bias, padded so that only its stride changes the size, and its norm. */
struct layer {
    const char *conv;           /* this and norm: names, after the prefix */
    const char *norm;
    int channels;
    int kernel;
    int stride;
    bool relu;
};

static void add_layer(struct builder *b, const struct layer *layer)
{
    char conv[NAME_MAX_BYTES], norm[NAME_MAX_BYTES];

    snprintf(conv, sizeof(conv), "%s%s", b->prefix, layer->conv);
    snprintf(norm, sizeof(norm), "%s%s", b->prefix, layer->norm);
    b->node = bx_net_conv(b->net, b->node, &(struct bx_conv){
        .name = conv, .out_channels = layer->channels, .kernel = layer->kernel, .stride = layer->stride,
        .padding = layer->kernel / 2,
    });
    b->node = bx_net_batch_norm(b->net, b->node, norm, layer->relu);
    b->channels = layer->channels;
}

/* A block of `width` channels; a bottleneck ends with four times as many. */
static void add_block(struct builder *b, bool bottleneck, int width, int stride)
{
    struct builder shortcut = *b;
    int channels = bottleneck ? 4 * width : width;

    if (bottleneck) {
        add_layer(b, &(struct layer){ "conv1", "bn1", width, 1, 1, true });
        add_layer(b, &(struct layer){ "conv2", "bn2", width, 3, stride, true });
        add_layer(b, &(struct layer){ "conv3", "bn3", channels, 1, 1, false });
    } else {
        add_layer(b, &(struct layer){ "conv1", "bn1", width, 3, stride, true });
        add_layer(b, &(struct layer){ "conv2", "bn2", width, 3, 1, false });
    }
    if (stride != 1 || shortcut.channels != channels)
        add_layer(&shortcut, &(struct layer){ "downsample.0", "downsample.1", channels, 1, stride, false });
    b->node = bx_net_add(b->net, b->node, shortcut.node, true);
}

static void add_stages(struct builder *b, const struct design *design, int first, int end)
{
    for (int stage = first; stage < end; stage++) {
        for (int block = 0; block < design->blocks[stage]; block++) {
            int stride = stage > 0 && block == 0 ? 2 : 1;

            snprintf(b->prefix, sizeof(b->prefix), "layer%d.%d.", stage + 1, block);
            add_block(b, design->bottleneck, 64 << stage, stride);
        }
    }
}

/* The images, and what comes before layer1. */
static void add_stem(struct builder *b, const struct resnet_input *input)
{
    b->node = bx_net_input(b->net, input->images, 3, input->height, input->width);
    add_layer(b, &(struct layer){ "conv1", "bn1", 64, 7, 2, true });
    b->node = bx_net_max_pool(b->net, b->node, 3, 2, 1);
}

/* Three strides of 2 come before the cut: conv1's, the pooling's and layer2's. */
static int side_at_cut(int side)
{
    for (int i = 0; i < 3; i++)
        side = (side + 1) / 2;
    return side;
}

static void add_cut(struct builder *b, const struct design *design, const struct resnet_input *input)
{
    int width = 64 << (CUT - 1);

    b->channels = design->bottleneck ? 4 * width : width;
    b->node = bx_net_input(b->net, input->images, b->channels, side_at_cut(input->height), side_at_cut(input->width));
}

int resnet_build(struct bx_net *net, enum resnet_kind kind, enum resnet_part part, const struct resnet_input *input)
{
    const struct design *design = &DESIGN[kind];
    struct builder b = { .net = net };

    if (part == RESNET_BACK)
        add_cut(&b, design, input);
    else
        add_stem(&b, input);
    add_stages(&b, design, part == RESNET_BACK ? CUT : 0, part == RESNET_FRONT ? CUT : STAGES);
    if (part != RESNET_FRONT) {
        b.node = bx_net_global_avg_pool(net, b.node);
        b.node = bx_net_linear(net, b.node, "fc", input->classes, true);
    }
    return bx_net_finish(net, b.node);
}

/* ---- The first parameters ------------------------------------------------------------------------ */

static void fill_all(float *to, size_t count, float value)
{
    for (size_t i = 0; i < count; i++)
        to[i] = value;
}

static bool is_bias(const struct bx_net_param_info *param)
{
    size_t length = strlen(param->name);

    return length > 5 && strcmp(param->name + length - 5, ".bias") == 0;
}

size_t resnet_first_param(enum resnet_kind kind, enum resnet_part part)
{
    const struct design *design = &DESIGN[kind];
    int layers = 1;             /* of three parameters each; the stem is one */

    if (part != RESNET_BACK)
        return 0;
    for (int stage = 0; stage < CUT; stage++) {
        layers += design->blocks[stage] * (design->bottleneck ? 3 : 2);
        layers += stage > 0 || design->bottleneck;      /* the shortcut */
    }
    return 3 * (size_t)layers;
}

void resnet_init(const struct bx_net *net, size_t first, uint64_t seed, float *const *params)
{
    uint64_t weights = rng_at(seed, RNG_WEIGHTS);
    double bound = 0.0;         /* of the last layer, known once its weight has given the fan in */

    for (size_t i = 0; i < bx_net_params(net); i++) {
        const struct bx_net_param_info *param = bx_net_param(net, i);
        uint64_t key = rng_at(weights, first + i);

        if (param->ndim == 2)
            bound = 1.0 / sqrt((double)param->shape[1]);
        if (param->ndim == 4)
            rng_fill_normal(params[i], param->elements, key,
                            sqrt(2.0 / (double)(param->shape[0] * param->shape[2] * param->shape[3])));
        else if (bound > 0.0)
            rng_fill_uniform(params[i], param->elements, key, bound);
        else
            fill_all(params[i], param->elements, is_bias(param) ? 0.0f : 1.0f);
    }
}

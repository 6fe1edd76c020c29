/* SPDX-License-Identifier: MIT */
/*
 * ResNet-18 and ResNet-50: He, Zhang, Ren and Sun, "Deep residual learning for image recognition" (2015), with the
 * stride of a bottleneck in its 3 x 3 convolution, as in torchvision. The parameters have torchvision's names, shapes
 * and order. Uses no RPC.
 */
#ifndef DEMOS_RESNET_H
#define DEMOS_RESNET_H

#include <boxcar_nn.h>

#include <stdint.h>

enum resnet_kind {
    RESNET_18,      /* basic blocks;  62 parameters */
    RESNET_50,      /* bottlenecks; 161 parameters */
};

enum resnet_part {
    RESNET_WHOLE,
    RESNET_FRONT,   /* from the images to the end of layer2 */
    RESNET_BACK,    /* from layer3 to the end; its input is the output of the front */
};

/* The images of one pass, N x 3 x H x W, and the number of classes. */
struct resnet_input {
    int images;
    int height;
    int width;
    int classes;    /* the output is images x classes, without a softmax */
};

/* Builds and finishes a net that was just created. `input` is that of the whole network also for a part, whose
 * parameters have the names and the order that they have there. 0 or a code of bx_net_*. */
int resnet_build(struct bx_net *net, enum resnet_kind kind, enum resnet_part part, const struct resnet_input *input);
/* Which of the whole network's parameters is the first of the part. */
size_t resnet_first_param(enum resnet_kind kind, enum resnet_part part);

/* Writes the first version of the model to params[i], one array for each parameter of the net: convolutions normal with
 * variance 2 / (out_channels * KH * KW), norms 1 and 0, the last layer uniform in +-1/sqrt(fan in). The same seed gives
 * the same model. A part gets the values that the whole network's parameters have from `first` on
 * (resnet_first_param). */
void resnet_init(const struct bx_net *net, size_t first, uint64_t seed, float *const *params);

#endif

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

/* The images of one pass, N x 3 x H x W, and the number of classes. */
struct resnet_input {
    int images;
    int height;
    int width;
    int classes;    /* the output is images x classes, without a softmax */
};

/* Builds and finishes a net that was just created. 0 or a code of bx_net_*. */
int resnet_build(struct bx_net *net, enum resnet_kind kind, const struct resnet_input *input);

/* Writes the first version of the model to params[i], one array for each parameter of the net: convolutions normal with
 * variance 2 / (out_channels * KH * KW), norms 1 and 0, the last layer uniform in +-1/sqrt(fan in). The same seed gives
 * the same model. */
void resnet_init(const struct bx_net *net, uint64_t seed, float *const *params);

#endif

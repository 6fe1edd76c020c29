/* SPDX-License-Identifier: MIT */
/*
 * boxcar_nn.h - networks for the demos, forward and backward, on the CPU or, by way of boxcar_cuda.h, on a GPU. A
 * library of its own (libboxcar_nn, which needs oneDNN); libboxcar does not need it.
 *
 *     struct bx_net *net = NULL;
 *     bx_net_create(&(struct bx_net_options){ .threads = 1 }, &net);
 *     int node = bx_net_input(net, 20, 3, 64, 64);                       // N C H W
 *     node = bx_net_conv(net, node, &(struct bx_conv){ "conv1", 64, 7, 2, 3 });
 *     node = bx_net_batch_norm(net, node, "bn1", true);                  // with ReLU
 *     ...
 *     node = bx_net_linear(net, node, "fc", 30, true);
 *     bx_net_finish(net, node);                                          // plans, allocates
 *     bx_net_set_params(net, params);                                    // one pointer per parameter
 *     bx_net_forward(net, images, logits);
 *     bx_net_backward(net, logits_grad, grads);
 *
 * A net is a list of operations over one shape of input, built once. Parameters and gradients are the
 * caller's, plain row-major float arrays in torch's shapes (convolution O x I x KH x KW, linear O x I),
 * in the order in which the building calls named them; set_params repacks them into the form that the
 * library computes with, once per version of the model, and keeps no pointer. Running statistics of batch
 * normalisation belong to the net: mean 0, variance 1 at first, momentum 0.1, the variance unbiased
 * (n / (n - 1)), eps 1e-5, as torch.nn.BatchNorm2d does; a forward pass in training mode updates them once.
 *
 * Errors: 0 or a node, else -EINVAL (with a sentence, bx_error_text), -ENOMEM, -ENOTSUP (the oneDNN that was found
 * is not one of 2.x), BX_E_STATE (called out of order). A building call that gets a negative node returns
 * it, so a chain of them needs one check, at bx_net_finish.
 * Threads: one thread at a time uses a net. No function of this header may be called before a process that
 * forks workers has forked them: OpenMP does not survive a fork.
 */
#ifndef BOXCAR_NN_H
#define BOXCAR_NN_H

#include "boxcar.h"

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

struct bx_net;
struct bx_cuda;

struct bx_net_options {
    size_t struct_bytes;
    int threads;                /* OpenMP threads of this process; default 1 */
    bool input_grad;            /* backward computes the gradient of the input too (bx_net_input_grad) */
    struct bx_cuda *cuda;       /* the GPU to compute on (boxcar_cuda.h), which must live longer; NULL: the CPU */
};

int bx_net_create(const struct bx_net_options *options, struct bx_net **net);
void bx_net_destroy(struct bx_net *net);                /* NULL is fine */

/* The version of oneDNN that is used, "2.6.3". */
const char *bx_nn_backend(void);

/* ---- Building: each returns the number of its node, >= 0, which later calls name as their input ---- */

int bx_net_input(struct bx_net *net, int n, int c, int h, int w);      /* once, first; h, w 1: a matrix */

struct bx_conv {
    const char *name;           /* its parameter is "<name>.weight", and "<name>.bias" if bias */
    int out_channels;
    int kernel;                 /* KH == KW */
    int stride;
    int padding;
    bool bias;
};
int bx_net_conv(struct bx_net *net, int in, const struct bx_conv *conv);
/* Over N, H and W; parameters "<name>.weight", "<name>.bias"; with relu: max(0, y) in the same pass. */
int bx_net_batch_norm(struct bx_net *net, int in, const char *name, bool relu);
int bx_net_relu(struct bx_net *net, int in);
int bx_net_add(struct bx_net *net, int a, int b, bool relu);           /* a + b, of one shape */
int bx_net_max_pool(struct bx_net *net, int in, int kernel, int stride, int padding);
int bx_net_global_avg_pool(struct bx_net *net, int in);                 /* to N x C x 1 x 1 */
/* y = x W^T + b over the flattened C x H x W; parameters "<name>.weight" (O x I), "<name>.bias". */
int bx_net_linear(struct bx_net *net, int in, const char *name, int out_features, bool bias);
int bx_net_softmax(struct bx_net *net, int in);                         /* over C, of N x C x 1 x 1 */

/* Plans every operation for `output`, the last node. Forward and backward then allocate nothing. */
int bx_net_finish(struct bx_net *net, int output);

/* ---- Parameters ------------------------------------------------------------------------------------ */

struct bx_net_param {
    const char *name;           /* as torch names it */
    int ndim;
    int64_t shape[4];
    size_t elements;
};
size_t bx_net_params(const struct bx_net *net);
const struct bx_net_param *bx_net_param(const struct bx_net *net, size_t index);       /* NULL past the last */
size_t bx_net_param_elements(const struct bx_net *net);                 /* of all parameters together */

/* params[i]: the elements of parameter i, row-major. Copies and repacks. */
int bx_net_set_params(struct bx_net *net, const float *const *params);

/* Running statistics of a batch normalisation by its name: C floats each, to read or to set; -ENOENT. On a GPU they
 * lie in its memory, from bx_net_finish on (before it, BX_E_STATE). */
int bx_net_running(struct bx_net *net, const char *name, float **mean, float **var, size_t *channels);

/* ---- Computing -------------------------------------------------------------------------------------- */

size_t bx_net_output_elements(const struct bx_net *net);

/* Training mode: batch statistics. input N x C x H x W, output as bx_net_finish's node, row-major. */
int bx_net_forward(struct bx_net *net, const float *input, float *output);
/* Evaluation: running statistics, which stay as they are; no backward after it. */
int bx_net_predict(struct bx_net *net, const float *input, float *output);

/* After a forward: the gradient of each parameter, written (not added) to grads[i], row-major, given that
 * of the output. The input must still be where forward read it. */
int bx_net_backward(struct bx_net *net, const float *output_grad, float *const *grads);
const float *bx_net_input_grad(const struct bx_net *net);              /* row-major; NULL unless asked for */

/* ---- Losses and optimizers (plain C, no oneDNN) ---------------------------------------------------- */

/* Mean over all elements of (output - target)^2; its gradient 2 (output - target) / count into grad, which may be
 * NULL. Not a number where output or target is NULL. */
double bx_mse_loss(const float *output, const float *target, size_t count, float *grad);

/* SGD with momentum over any number of gradient sets, in one pass over memory, as torch.optim.SGD:
 *     g = (grads[0] + grads[1] + ... in this order) / grad_count
 *     v = momentum * v + g;    to = from - lr * v
 * Element by element, every operation rounded to float, so that the result depends on nothing but the
 * order of grads. `to` may be `from`; when they differ, `to` is written past the caches. */
struct bx_sgd {
    float lr;
    float momentum;
    const float *from;
    float *to;
    float *velocity;            /* read and written; zeros before the first step */
    const float *const *grads;
    size_t grad_count;          /* at least 1 */
    size_t elements;
};
void bx_sgd_step(const struct bx_sgd *step);            /* does nothing where a pointer is NULL */

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif

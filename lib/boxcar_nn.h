/* SPDX-License-Identifier: MIT */
/*
 * boxcar_nn.h - neural networks for the demos, forward and backward, on the CPU or (with boxcar_cuda.h) on a GPU. They
 * are a library of their own, libboxcar_nn, which needs oneDNN; libboxcar does not need it.
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
 * A net is a list of operations over one shape of input; the list cannot change after bx_net_finish. All arrays are
 * float32, row-major, and the caller's: N C H W for inputs and outputs; O x I x KH x KW for the weight of a convolution
 * and O x I for that of a linear operation, as in torch. On a GPU they lie in that device's memory.
 *
 * Parameters and gradients are one array each, in the order in which the building calls created them. bx_net_set_params
 * copies and repacks the parameters into the library's own layout, once per version of the model; it keeps no pointer.
 *
 * The running statistics of a batch normalisation belong to the net and follow torch.nn.BatchNorm2d: mean 0 and
 * variance 1 at first, momentum 0.1, unbiased variance (n / (n - 1)), eps 1e-5. Each bx_net_forward updates them once.
 *
 * Errors: a call returns 0 (a building call: the number of its node), or a negative code after a sentence
 * (bx_error_text): -EINVAL; -ENOMEM; -ENOTSUP, the oneDNN found is not a 2.x; BX_E_STATE, called out of order. A
 * building call that is given a negative node returns it, so a chain of building calls needs one check, at
 * bx_net_finish.
 * Threads: one thread at a time uses a net. All calls block until the computation is done; on a GPU see boxcar_cuda.h.
 * Fork: a process that forks workers must not call any function of this header before the fork, because OpenMP does not
 * survive it.
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
    int threads;                /* OpenMP threads of this process; 0: one */
    bool input_grad;            /* bx_net_backward computes the gradient of the input too (bx_net_input_grad) */
    struct bx_cuda *cuda;       /* NULL: the CPU; else the GPU, which must be closed after the net is destroyed */
};

/* Creates an empty net. options NULL: the defaults. -EINVAL, -ENOMEM, -ENOTSUP; BX_E_VERSION, the caller's header
 * is newer than the library; on a GPU also a code of bx_cuda_*. */
int bx_net_create(const struct bx_net_options *options, struct bx_net **net);
void bx_net_destroy(struct bx_net *net);                /* NULL is fine */

/* The version of the oneDNN in use, for example "2.6.3". */
const char *bx_nn_backend(void);

/* ---- Building ---------------------------------------------------------------------------------------
 *
 * Each call adds one operation, a node. It returns the node's number, >= 0, which later calls take as `in`. Or -EINVAL
 * (sizes that do not fit, a name that is taken, more than 2^31 - 1 elements), -ENOMEM, or BX_E_STATE after
 * bx_net_finish. Names are copied. */

/* The input, N x C x H x W; call it first, and once. h and w 1: a matrix N x C. */
int bx_net_input(struct bx_net *net, int n, int c, int h, int w);

struct bx_conv {
    const char *name;           /* its parameters: "<name>.weight", and with bias "<name>.bias" */
    int out_channels;
    int kernel;                 /* KH == KW */
    int stride;
    int padding;
    bool bias;
};
/* A convolution. Output: N x out_channels x H' x W'; H' = (H + 2 * padding - kernel) / stride + 1, rounded down, and W'
 * alike. */
int bx_net_conv(struct bx_net *net, int in, const struct bx_conv *conv);
/* Normalises each channel over N, H and W; parameters "<name>.weight" and "<name>.bias", C each. With relu: max(0, y)
 * in the same pass. */
int bx_net_batch_norm(struct bx_net *net, int in, const char *name, bool relu);

int bx_net_relu(struct bx_net *net, int in);                            /* max(0, x) of each element */
int bx_net_add(struct bx_net *net, int a, int b, bool relu);           /* a + b, of equal shapes; relu: max(0, .) */

/* The largest value of each window. Window and output size as of bx_net_conv; padding is at most half of kernel. */
int bx_net_max_pool(struct bx_net *net, int in, int kernel, int stride, int padding);

int bx_net_global_avg_pool(struct bx_net *net, int in);                 /* the mean over H and W, to N x C x 1 x 1 */
/* A linear layer, y = x W^T + b over the flattened C x H x W; parameters "<name>.weight" (O x I) and, with bias,
 * "<name>.bias" (O). Output: N x O x 1 x 1. */
int bx_net_linear(struct bx_net *net, int in, const char *name, int out_features, bool bias);

int bx_net_softmax(struct bx_net *net, int in);                         /* softmax over C, of N x C x 1 x 1 */

/* Plans every operation and allocates all memory; forward and backward then allocate nothing. `output` must be the last
 * node, and every other node must be the input of one. Returns an earlier building call's error if output is one. */
int bx_net_finish(struct bx_net *net, int output);

/* ---- Parameters ------------------------------------------------------------------------------------ */

struct bx_net_param_info {
    const char *name;           /* as in torch, "layer1.0.conv1.weight"; valid until bx_net_destroy */
    int ndim;
    int64_t shape[4];
    size_t elements;
};
size_t bx_net_params(const struct bx_net *net);                         /* how many parameters it has */
/* A parameter; NULL past the last. */
const struct bx_net_param_info *bx_net_param(const struct bx_net *net, size_t index);
size_t bx_net_param_elements(const struct bx_net *net);                 /* elements of all parameters together */

/* Copies and repacks params[i], the elements of parameter i. After it, call bx_net_forward before bx_net_backward.
 * BX_E_STATE: the net shares the parameters of another one. */
int bx_net_set_params(struct bx_net *net, const float *const *params);

/* Makes a net without operations use the parameters of `owner`, a finished net on the CPU, which have been copied and
 * repacked there once: for several forward passes of one version of the model, a net each. It must get the owner's
 * operations and shapes, else its bx_net_finish returns -EINVAL. bx_net_set_params of the owner is for both; one thread
 * at a time calls it or computes with any of the nets that it is for. Destroy the owner last. -EINVAL; BX_E_STATE: the
 * net has an operation, or the owner is not finished; -ENOTSUP: a GPU's, or the owner shares another's itself. */
int bx_net_share_params(struct bx_net *net, const struct bx_net *owner);
bool bx_net_shares_params(const struct bx_net *net, const struct bx_net *owner);      /* it does */

/* Gives pointers to the running statistics of the batch normalisation `name`, C floats each, to read or to set; valid
 * until bx_net_destroy. mean, var and channels may be NULL. -ENOENT: there is no such batch normalisation. On a GPU the
 * statistics lie in its memory, and BX_E_STATE before bx_net_finish. */
int bx_net_running(struct bx_net *net, const char *name, float **mean, float **var, size_t *channels);

/* ---- Computing -------------------------------------------------------------------------------------- */

size_t bx_net_input_elements(const struct bx_net *net);                /* elements of node 0; 0 if there is none */
size_t bx_net_output_elements(const struct bx_net *net);               /* elements of the last node */

/* A pass in training mode, with the statistics of the batch. -EINVAL: a batch normalisation has one value a channel,
 * and so no variance. */
int bx_net_forward(struct bx_net *net, const float *input, float *output);
/* A pass in evaluation mode, with the running statistics, which it does not change. bx_net_backward may not follow. */
int bx_net_predict(struct bx_net *net, const float *input, float *output);

/* Computes the gradient of each parameter from that of the output. Writes it (does not add it) to grads[i]. Call it
 * after bx_net_forward, with no bx_net_predict or bx_net_set_params in between; the input of that forward pass must be
 * unchanged at the same address. */
int bx_net_backward(struct bx_net *net, const float *output_grad, float *const *grads);
/* The gradient of the input, as of the last backward pass. NULL unless options.input_grad was set. */
const float *bx_net_input_grad(const struct bx_net *net);

/* ---- Matrix products ------------------------------------------------------------------------------- */

/* c (m x n) = a b + beta c, all row-major without gaps. a is m x k, or k x m if transpose_a; b is k x n, or n x k if
 * transpose_b. c must not overlap a or b. */
struct bx_sgemm {
    bool transpose_a;
    bool transpose_b;
    int64_t m;                  /* this and the next two: at least 0 */
    int64_t n;
    int64_t k;
    const float *a;
    const float *b;
    float *c;
    float beta;
};
/* Computes a matrix product by oneDNN, on the calling thread alone, which sets the number of this thread's OpenMP
 * threads to one. Any thread. -EINVAL; -ENOTSUP: the oneDNN found is not a 2.x; -ENOMEM. */
int bx_nn_sgemm(const struct bx_sgemm *product);

/* ---- Losses and optimizers (plain C, no oneDNN) ---------------------------------------------------- */

/* Returns the mean over all elements of (output - target)^2, summed in double, and writes its gradient
 * 2 (output - target) / count to grad, which may be NULL. Returns NaN if output or target is NULL. */
double bx_mse_loss(const float *output, const float *target, size_t count, float *grad);

/* One step of SGD with momentum, as torch.optim.SGD, from the mean of any number of gradients, in one pass over memory:
 *     g = (grads[0] + grads[1] + ... in this order) / grad_count
 *     v = momentum * v + g;    to = from - lr * v
 * Each operation is rounded to float, so the result depends only on the inputs and on the order of grads. `to` may be
 * `from`; if they differ, `to` is written with non-temporal stores, past the caches. */
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
void bx_sgd_step(const struct bx_sgd *step);            /* does nothing if a pointer is NULL */

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif

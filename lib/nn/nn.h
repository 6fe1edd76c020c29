/* SPDX-License-Identifier: MIT */
/*
 * Inside libboxcar_nn: the list of operations that net.c builds and checks, and the table through which
 * something computes it (cpu.c, cuda_net.c). net.c knows shapes, names and the order
 * of calls, a backend knows layouts, memory and time. A backend sees a whole net at once, not one
 * operation after the other, because what makes it fast (layouts that two neighbours agree on, passes
 * that are done together, gradients added in place) lies between operations.
 */
#ifndef BXI_NN_H
#define BXI_NN_H

#include "boxcar_nn.h"

enum bxi_nn_op {
    BXI_NN_INPUT,
    BXI_NN_CONV,
    BXI_NN_BATCH_NORM,
    BXI_NN_RELU,
    BXI_NN_ADD,
    BXI_NN_MAX_POOL,
    BXI_NN_GLOBAL_AVG_POOL,
    BXI_NN_LINEAR,
    BXI_NN_SOFTMAX,
};

#define BXI_BN_EPSILON  1e-5f
#define BXI_BN_MOMENTUM 0.1

/*
 * One operation.
 *  1. in[] are lower numbers than its own, so the list is in the order of computing.
 *  2. After finish every node but the last one is the input of some other (uses > 0).
 *  3. grad: a parameter lies in it or before it, or the gradient of the input is wanted; only then
 *     does the gradient of its output have to be computed.
 */
struct bxi_node {
    enum bxi_nn_op op;
    int in[2];                  /* -1: none */
    int dims[4];                /* of its output: N C H W */
    int kernel, stride, padding;
    bool relu;                  /* max(0, y) at its end */
    bool bias;
    bool grad;
    int uses;
    int param;                  /* the weight's index, its bias is the next one; -1: none */
    char *name;                 /* NULL where it has no parameters */
    float *mean, *var;          /* running statistics of a batch normalisation; what a GPU's begin as */
};

/* What computes a net. Each returns 0, or a negative code after bx_fail. */
struct bxi_nn_backend {
    const char *(*version)(void);
    int (*check)(struct bx_cuda *cuda);         /* can it be used here at all; -ENOTSUP */
    int (*plan)(struct bx_net *net);                    /* sets net->plan */
    void (*unplan)(struct bx_net *net);                 /* also of what plan left half done */
    int (*set_params)(struct bx_net *net, const float *const *params);
    int (*forward)(struct bx_net *net, const float *input, float *output);
    int (*predict)(struct bx_net *net, const float *input, float *output);
    int (*backward)(struct bx_net *net, const float *output_grad, float *const *grads);
    const float *(*input_grad)(const struct bx_net *net);
    /* Where the running statistics of a planned node lie; NULL: in the node. */
    void (*running)(const struct bx_net *net, int index, float **mean, float **var);
};

extern const struct bxi_nn_backend bxi_nn_cpu, bxi_nn_cuda;

struct bx_net {
    int threads;
    bool input_grad;
    struct bx_cuda *cuda;       /* NULL on the CPU */
    const struct bxi_nn_backend *backend;
    void *plan;                 /* the backend's; NULL before finish */
    struct bxi_node *nodes;
    int node_count, node_capacity;
    const struct bxi_node *untrainable; /* a batch normalisation of one value a channel, which has no variance; or NULL.
                                         * Set by finish */
    struct bx_net_param *params;
    size_t param_count, param_capacity;
    bool has_params;            /* set_params was called */
    bool has_forward;           /* what backward needs lies ready */
};

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The private header of libboxcar_nn: the list of operations of a net, and the table through which a backend computes
 * it. net.c builds and checks the list; it knows shapes, names and the order of calls. A backend knows layouts, memory
 * and time. It gets the whole net at once and not one operation after the other, because the speed lies between the
 * operations: layouts that two neighbours share, passes that are done together, gradients added in place.
 *
 * The files build on each other in this order; none calls one further down in its column:
 *
 *     optim.c                      losses and optimizers, no net
 *     gemm.c                       matrix products, no net; needs onednn.c
 *     cpu backend (cpu.h)          gpu backend (cuda.h)
 *       onednn.c      (dnn.h)        cuda_load.c      finds and loads the libraries (cuda_api.h)
 *       cpu_plan.c                   cuda_context.c   the device's context
 *       cpu_loops.c                  cuda_kernels.c   compiles and launches kernels (kernels.h, kernels.cu)
 *       cpu_fold.c                   cuda_device.c    boxcar_cuda.h
 *       cpu_ops.c                    cuda_ops.c
 *       cpu.c                        cuda_net.c
 *     net.c                        boxcar_nn.h; chooses the backend
 *
 * Why six headers: cpu.h and cuda.h have the structs of one backend each, and a build without CUDA has no cuda.h. dnn.h
 * is all that onednn.c and the plan know of each other, so that only onednn.c depends on the version of oneDNN.
 * kernels.h is also compiled by NVRTC and may include nothing. cuda_check.c compares cuda_api.h with the vendor's
 * headers, and so it may not contain anything else.
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
 *  1. The numbers in in[] are lower than its own: the list is in the order of computing.
 *  2. After bx_net_finish every node but the last one is the input of another (uses > 0).
 *  3. grad: the gradient of its output must be computed, because this node or one before it has a parameter, or
 *     because the gradient of the input is wanted.
 */
struct bxi_node {
    enum bxi_nn_op op;
    int in[2];                  /* -1: none */
    int dims[4];                /* of its output: N C H W */
    int kernel, stride, padding;
    bool relu;                  /* it ends with max(0, y) */
    bool bias;
    bool grad;
    int uses;
    int param;                  /* index of its weight, the bias has the next one; -1: none */
    char *name;                 /* NULL: it has no parameters */
    float *mean, *var;          /* running statistics of a batch normalisation; on a GPU, their first values */
};

/* Elements of its output. */
static inline size_t bxi_node_elements(const struct bxi_node *node)
{
    return (size_t)node->dims[0] * (size_t)node->dims[1] * (size_t)node->dims[2] * (size_t)node->dims[3];
}

/* What a backend does. The functions that return int return 0, or a negative code after bx_fail. */
struct bxi_nn_backend {
    int (*check)(struct bx_cuda *cuda);         /* 0: it can be used; -ENOTSUP and others: it cannot */
    int (*plan)(struct bx_net *net);                    /* sets net->plan */
    void (*unplan)(struct bx_net *net);                 /* also after a failure of plan */
    int (*set_params)(struct bx_net *net, const float *const *params);
    int (*forward)(struct bx_net *net, const float *input, float *output);
    int (*predict)(struct bx_net *net, const float *input, float *output);
    int (*backward)(struct bx_net *net, const float *output_grad, float *const *grads);
    const float *(*input_grad)(const struct bx_net *net);
    /* Gives the addresses of a planned node's running statistics. NULL: they are those in the node. */
    void (*running)(const struct bx_net *net, int index, float **mean, float **var);
};

extern const struct bxi_nn_backend bxi_nn_cpu, bxi_nn_cuda;

struct bx_net {
    int threads;
    bool input_grad;
    struct bx_cuda *cuda;       /* NULL on the CPU */
    const struct bxi_nn_backend *backend;
    void *plan;                 /* of the backend; NULL before bx_net_finish */
    struct bxi_node *nodes;
    int node_count, node_capacity;
    const struct bxi_node *untrainable; /* a batch normalisation of one value a channel, which has no variance; NULL if
                                         * there is none. Set by bx_net_finish */
    struct bx_net_param_info *params;
    size_t param_count, param_capacity;
    const struct bx_net *owner; /* whose parameters it uses; NULL: its own */
    bool has_params;            /* set_params was called */
    uint64_t version;           /* calls of set_params */
    bool has_forward;           /* backward may follow, while the parameters have the version of the forward pass */
    uint64_t forward_version;
};

#endif

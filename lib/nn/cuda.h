/* SPDX-License-Identifier: MIT */
/*
 * The private header of the GPU backend. Its files, from the bottom up: cuda_load.c loads the libraries; cuda_context.c
 * has the device's context; cuda_kernels.c compiles and launches kernels; cuda_device.c is the device of boxcar_cuda.h;
 * cuda_ops.c computes each kind of operation; cuda_net.c is the second backend of nn.h.
 *
 * The context is current only between bxi_cuda_enter and bxi_cuda_leave, which restores the caller's. cuDNN and cuBLAS
 * use the current context too, so they are called between these as well.
 *
 * The net's arrays have the caller's layout, N C H W row-major: nothing is reordered. All memory of a plan is one
 * allocation, made once the plan is known; until then an array is an offset in it. Activations are kept until the next
 * forward pass. A gradient is needed from the backward step of its node's last consumer to that of the node itself, so
 * gradients share buffers. If a node has several consumers, the first of them in the backward pass writes its gradient
 * and the others add to it (cuDNN's and cuBLAS's beta, our kernels' `add`): `adds` of the consumer.
 */
#ifndef BXI_NN_CUDA_H
#define BXI_NN_CUDA_H

#include "boxcar_cuda.h"
#include "cuda_api.h"
#include "gpu/cuda_driver.h"
#include "kernels.h"
#include "nn.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bx_cuda {
    struct bxi_cuda cu;
    struct bxi_nvrtc nvrtc;
    struct bxi_cublas cublas;
    struct bxi_cudnn cudnn;
    struct CUctx_st *context;       /* the primary one */
    struct CUstream_st *stream;
    struct cublasContext *blas;     /* this and the next: NULL where the library is missing */
    struct cudnnContext *dnn;
    struct bx_kernels *own;         /* the kernels of kernels.cu */
    double *loss, *loss_here;       /* one double on the device, one in pinned memory */
    int ordinal, handle;
    int capability;                 /* 10 * major + minor */
    bool is_left;                   /* something did not end in time, and uses this: nothing else is ended */
    char name[256];
};

/* ---- cuda_load.c ----------------------------------------------------------------------------------- */

/* Each loads its library and finds its functions: 0, -ENODEV (driver), -ENOTSUP (the others), -EPERM (forked). */
int bxi_cuda_load_driver(struct bxi_cuda *cu);
int bxi_cuda_load_nvrtc(struct bx_cuda *cuda);
int bxi_cuda_load_networks(struct bx_cuda *cuda);               /* cuBLAS and cuDNN */
/* -EPERM in a child of the process that loaded the driver. */
int bxi_cuda_check_fork(void);

/* ---- cuda_context.c -------------------------------------------------------------------------------- */

/* The code for a CUresult, and a sentence with the driver's name and text for it. */
int bxi_cuda_fail(const struct bx_cuda *cuda, unsigned result, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* -EINVAL if cuda is NULL, -EPERM in a forked process, with a sentence that names `call`. */
int bxi_cuda_enter(const struct bx_cuda *cuda, const char *call);
void bxi_cuda_leave(const struct bx_cuda *cuda);
/* With the context entered: bx_cuda_alloc, bx_cuda_copy and bx_cuda_wait. */
int bxi_cuda_take(const struct bx_cuda *cuda, size_t bytes, void **memory);
int bxi_cuda_put_copy(const struct bx_cuda *cuda, void *to, const void *from, size_t bytes);
int bxi_cuda_sync(const struct bx_cuda *cuda);
/* Without the context: calls end(object), which may wait for the device, on a thread of its own, and waits for that,
 * 2 s at most. Then that thread goes on by itself, with the object, and the device is left to the end of the process
 * (is_left). Does nothing if it was left before. False: end(object) has not returned. */
bool bxi_cuda_end(struct bx_cuda *cuda, void (*end)(void *object), void *object);

/* ---- cuda_kernels.c -------------------------------------------------------------------------------- */

int bxi_kernels_own(struct bx_cuda *cuda);                      /* compiles kernels.cu */
void bxi_kernels_end(void *kernels);                            /* bx_kernels_destroy, on this thread */
/* With the context entered: bx_kernel_launch. */
int bxi_kernel_put(struct bx_kernels *kernels, const char *kernel, size_t threads, const void *args);

/* ---- The plan: made by cuda_net.c, read by cuda_ops.c --------------------------------------------------- */

/* The place of an array in the plan's memory, in floats. */
struct bxi_place {
    size_t offset, count;           /* count 0: no array */
};

/* The last two are of the batch, kept for its backward pass. */
enum bxi_statistic { BXI_RUNNING_MEAN, BXI_RUNNING_VAR, BXI_BATCH_MEAN, BXI_BATCH_INVERSE, BXI_STATISTICS };

struct bxi_algorithm {
    int number;
    size_t workspace_bytes;
};

/* The plan of one node. */
struct bxi_cuda_work {
    struct bxi_place out;           /* no array: the input, which is the caller's */
    struct bxi_place grad;          /* of out */
    struct bxi_place input_grad;    /* of a norm, if not needed: cuDNN writes it all the same */
    struct bxi_place statistics[BXI_STATISTICS];    /* of a batch normalisation: a float a channel each */
    bool adds[2];                   /* adds to the gradient of in[0], in[1], which another consumer wrote */
    struct cudnnTensorStruct *shape, *vector;       /* of out; of one value a channel */
    struct cudnnFilterStruct *filter;
    struct cudnnConvolutionStruct *conv;
    struct cudnnPoolingStruct *pool;
    struct bxi_algorithm forward, backward_data, backward_weights;
};

struct bxi_cuda_plan {
    struct bx_net *net;
    struct bx_cuda *cuda;
    int node_count;
    struct bxi_cuda_work *work;     /* one a node */
    struct bxi_place *params;       /* at the start of the memory */
    size_t param_floats;
    struct bxi_place workspace;     /* one for all convolutions */
    float *memory;
    size_t floats;                  /* in memory */
    const float *input;             /* the caller's array, of the last pass */
    float *const *grads;
    bool predicts;
};

/* ---- cuda_ops.c ------------------------------------------------------------------------------------ */

float *bxi_cuda_at(const struct bxi_cuda_plan *plan, struct bxi_place place);
float *bxi_cuda_statistic(const struct bxi_cuda_plan *plan, int index, enum bxi_statistic which);

/* With the context entered: loads cuBLAS and cuDNN and makes their handles, unless they are there. Making one may wait
 * for the device, so it is done when the device is opened. */
int bxi_cuda_open_networks(struct bx_cuda *cuda);
int bxi_cuda_check(struct bx_cuda *cuda);       /* the same for a net, which reports what is missing */
/* Makes the cuDNN descriptors of a node, and chooses its algorithms. */
int bxi_cuda_describe(struct bxi_cuda_plan *plan, int index);
void bxi_cuda_forget(const struct bxi_cuda_plan *plan, int index);
/* Put the forward work of a node on the stream, and the backward work. */
int bxi_cuda_forward(const struct bxi_cuda_plan *plan, int index);
int bxi_cuda_backward(const struct bxi_cuda_plan *plan, int index);

#endif

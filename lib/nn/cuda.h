/* SPDX-License-Identifier: MIT */
/*
 * Shared by the files that compute on a GPU: cuda_load.c, which loads the libraries, cuda_device.c, which is the
 * device of boxcar_cuda.h, cuda_kernels.c, which compiles and starts kernels, cuda_net.c, which is the second
 * backend of nn.h, and cuda_ops.c, how it computes each kind of operation.
 *
 * A context is current only between bxi_cuda_enter and bxi_cuda_leave; the caller's is put back. cuDNN and cuBLAS
 * go by the current one too, so they are called between these as well.
 *
 * The net's arrays lie as the caller's do, N C H W row-major, so nothing is reordered anywhere. All memory of a plan
 * is one allocation, made when the plan is known: until then an array is its offset in it. Activations are kept until
 * the next forward pass. A gradient is needed from the backward step of its node's last consumer to that of the node
 * itself, so gradients share buffers; where a node has several consumers the first writes and the others add (cuDNN's
 * and cuBLAS's beta, our kernels' `add`), which `adds` of the consumer says.
 */
#ifndef BXI_NN_CUDA_H
#define BXI_NN_CUDA_H

#include "boxcar_cuda.h"
#include "cuda_api.h"
#include "kernels.h"
#include "nn.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bx_cuda {
    struct bxi_cuda_driver driver;
    struct bxi_nvrtc nvrtc;
    struct bxi_cublas cublas;
    struct bxi_cudnn cudnn;
    struct CUctx_st *context;       /* the primary one */
    struct CUstream_st *stream;
    struct cublasContext *blas;     /* these two: NULL until the first net */
    struct cudnnContext *dnn;
    struct bx_kernels *own;         /* those of kernels.cu */
    double *loss, *loss_here;       /* one on the device, one in pinned memory */
    int ordinal, handle;
    int capability;                 /* 10 * major + minor */
    char name[256];
};

/* ---- cuda_load.c ----------------------------------------------------------------------------------- */

/* Each loads its library and finds its functions: 0, -ENODEV (driver), -ENOTSUP (the others), -EPERM (forked). */
int bxi_cuda_load_driver(struct bxi_cuda_driver *driver);
int bxi_cuda_load_nvrtc(struct bxi_nvrtc *nvrtc);
int bxi_cuda_load_networks(struct bx_cuda *cuda);               /* cuBLAS and cuDNN */
int bxi_cuda_check_fork(void);                                  /* -EPERM in a child of who loaded the driver */

/* ---- cuda_context.c -------------------------------------------------------------------------------- */

/* The code of a CUresult; with a sentence that says what the driver says of it. */
int bxi_cuda_code(unsigned result);
int bxi_cuda_fail(const struct bx_cuda *cuda, unsigned result, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* cuda NULL, or a forked process, is refused in the name of `call`. */
int bxi_cuda_enter(const struct bx_cuda *cuda, const char *call);
void bxi_cuda_leave(const struct bx_cuda *cuda);
/* As the public functions, with the context entered. */
int bxi_cuda_take(const struct bx_cuda *cuda, size_t bytes, void **memory);
int bxi_cuda_put_copy(const struct bx_cuda *cuda, void *to, const void *from, size_t bytes);
int bxi_cuda_sync(const struct bx_cuda *cuda);

/* ---- cuda_kernels.c -------------------------------------------------------------------------------- */

int bxi_kernels_own(struct bx_cuda *cuda);                      /* compiles kernels.cu */
/* As bx_kernel_launch, with the context entered. */
int bxi_kernel_put(struct bx_kernels *kernels, const char *kernel, size_t threads, const void *args);

/* ---- The plan: made by cuda_net.c, read by cuda_ops.c --------------------------------------------------- */

/* Place of an array in the plan's memory; both in floats. */
struct bxi_place {
    size_t offset, count;           /* count 0: no array */
};

/* The last two are the batch's, kept for its backward pass. */
enum bxi_statistic { BXI_RUNNING_MEAN, BXI_RUNNING_VAR, BXI_BATCH_MEAN, BXI_BATCH_INVERSE, BXI_STATISTICS };

struct bxi_algorithm {
    int number;
    size_t workspace_bytes;
};

/* What the plan keeps for a node. */
struct bxi_cuda_work {
    struct bxi_place out;           /* none: the input, which is the caller's */
    struct bxi_place grad;          /* of out */
    struct bxi_place input_grad;    /* where the input's gradient is not wanted but cuDNN insists on writing it */
    struct bxi_place statistics[BXI_STATISTICS];    /* of a batch normalisation: a float a channel each */
    bool adds[2];                   /* to the gradients of in[0] and in[1], which somebody has begun */
    struct cudnnTensorStruct *shape, *vector;       /* of out; of one value a channel */
    struct cudnnFilterStruct *filter;
    struct cudnnConvolutionStruct *conv;
    struct cudnnPoolingStruct *pool;
    struct bxi_algorithm forward, backward_data, backward_weights;
};

struct bxi_cuda_plan {
    struct bx_net *net;
    struct bx_cuda *cuda;
    struct bxi_cuda_work *work;     /* one a node */
    struct bxi_place *params;       /* at the beginning of the memory */
    size_t param_floats;
    struct bxi_place workspace;     /* one for all convolutions */
    float *memory;
    size_t floats;                  /* in it */
    const float *input;             /* the caller's, of the last pass */
    float *const *grads;
    bool predicts;
};

/* ---- cuda_ops.c ------------------------------------------------------------------------------------ */

float *bxi_cuda_at(const struct bxi_cuda_plan *plan, struct bxi_place place);
float *bxi_cuda_statistic(const struct bxi_cuda_plan *plan, int index, enum bxi_statistic which);

int bxi_cuda_check(struct bx_cuda *cuda);       /* with the first net: cuBLAS and cuDNN */
/* Makes what cuDNN wants to know of a node, and chooses algorithms. */
int bxi_cuda_describe(struct bxi_cuda_plan *plan, int index);
void bxi_cuda_forget(const struct bxi_cuda_plan *plan, int index);
/* Puts a node's work on the stream, and of its gradients. */
int bxi_cuda_forward(const struct bxi_cuda_plan *plan, int index);
int bxi_cuda_backward(const struct bxi_cuda_plan *plan, int index);

#endif

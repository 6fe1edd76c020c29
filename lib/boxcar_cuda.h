/* SPDX-License-Identifier: MIT */
/*
 * boxcar_cuda.h - computing on a GPU: the networks of boxcar_nn.h, and kernels of one's own. Part of libboxcar_nn,
 * which is built without a CUDA toolkit: the driver, NVRTC, cuBLAS and cuDNN are loaded when a device is opened.
 *
 *     struct bx_cuda *cuda = NULL;
 *     bx_cuda_open(0, &cuda);                                  // after the last fork
 *     bx_net_create(&(struct bx_net_options){ .cuda = cuda }, &net);
 *     ...                                                      // built as on the CPU
 *     bx_net_forward(net, images, logits);                     // put on the stream; returns at once
 *     bx_net_backward(net, logits_grad, grads);
 *     bx_tensor_written_on(grad, bx_cuda_stream(cuda));        // whoever borrows it waits for that, not the host
 *
 * Order: everything that is given to a bx_cuda runs on its one stream, in the order of the calls, and the calls do
 * not wait but where they say so; of those of a net, bx_net_finish does, which runs every pass once so that the
 * libraries load their code then, and bx_net_destroy. What another stream has to do first is the caller's to order
 * (bx_tensor_read_on(tensor, bx_cuda_stream(cuda))).
 *
 * Arrays of a net on a device lie in memory of that device: parameters, inputs, outputs, gradients, and what
 * bx_net_running gives. They have torch's shapes, as on the CPU; float32, and computed as float32 (no TF32).
 *
 * Libraries: libcuda.so.1 or BX_CUDA_DRIVER; libnvrtc, libcublas (12, 13 or 11) and libcudnn (9 or 8) as the dynamic
 * linker finds them, or BX_NVRTC, BX_CUBLAS, BX_CUDNN, each a path (ignored where the program has more rights than its
 * caller). cuBLAS and cuDNN are loaded with the first net.
 *
 * Errors: 0, else a code with a sentence (bx_error_text): -ENODEV no driver, no such device or not for this process;
 * -ENOTSUP built with CUDA=0, or a library is not there or too old; -ENOMEM; -EINVAL; -EPERM in a process that was
 * forked after CUDA was started; -EIO what the GPU reports, which ends its use in this process.
 * Threads: one at a time uses a bx_cuda and what was made with it.
 */
#ifndef BOXCAR_CUDA_H
#define BOXCAR_CUDA_H

#include "boxcar_nn.h"

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

struct bx_cuda;

/* How many devices there are for this process, or why none can be had. */
int bx_cuda_count(void);

/* The device of this ordinal among those that CUDA_VISIBLE_DEVICES leaves, as bx_gpu_open tells it: its primary
 * context and a stream of its own. */
int bx_cuda_open(int ordinal, struct bx_cuda **cuda);
/* After all that was made with it. Waits for the stream. NULL is fine. */
void bx_cuda_close(struct bx_cuda *cuda);

const char *bx_cuda_name(const struct bx_cuda *cuda);       /* the device's, "NVIDIA H200" */
void *bx_cuda_stream(const struct bx_cuda *cuda);           /* a CUstream of the primary context */
int bx_cuda_wait(struct bx_cuda *cuda);                     /* until all that was put on the stream is done */

/* Memory of the device that is not to be lent to other workers (that is bx_tensor_create_on's). Freeing waits. */
int bx_cuda_alloc(struct bx_cuda *cuda, size_t bytes, void **memory);
void bx_cuda_free(struct bx_cuda *cuda, void *memory);
/* Pinned host memory: copies reach it at full speed and without a wait, kernels by the same address. */
int bx_cuda_alloc_host(struct bx_cuda *cuda, size_t bytes, void **memory);
void bx_cuda_free_host(struct bx_cuda *cuda, void *memory);

/* Between any two of device and host, on the stream. Pageable host memory may make it wait. */
int bx_cuda_copy(struct bx_cuda *cuda, void *to, const void *from, size_t bytes);
int bx_cuda_zero(struct bx_cuda *cuda, void *memory, size_t bytes);

/* As bx_mse_loss, of arrays on the device, with the same bits; waits for the loss. grad may be NULL. */
int bx_cuda_mse_loss(struct bx_cuda *cuda, const float *output, const float *target, size_t count, float *grad,
                     double *loss);
/* As bx_sgd_step, of arrays on the device, with the same bits. -EINVAL: no gradient, or more than BX_WORLD_MAX. */
int bx_cuda_sgd_step(struct bx_cuda *cuda, const struct bx_sgd *step);

/*
 * Kernels: CUDA C++ text, compiled by NVRTC for the device (without contraction of a * b + c, so that arithmetic can be
 * the CPU's to the bit). Each kernel is extern "C", __global__, and takes one struct by value.
 * `name` is how messages call the text, "policy.cu".
 * bx_kernel_launch starts `threads` threads of the kernel, in blocks of 128; the kernel must look whether its number
 * is below the count that its arguments tell. args: the struct, copied by the call. The first launch of each kernel may
 * wait for the device, which loads its code then: start one that does nothing (0 threads) where that would hurt later.
 */
struct bx_kernels;
int bx_kernels_create(struct bx_cuda *cuda, const char *name, const char *source, struct bx_kernels **kernels);
void bx_kernels_destroy(struct bx_kernels *kernels);        /* waits for the stream */
int bx_kernel_launch(struct bx_kernels *kernels, const char *kernel, size_t threads, const void *args);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif

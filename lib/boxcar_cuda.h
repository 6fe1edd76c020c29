/* SPDX-License-Identifier: MIT */
/*
 * boxcar_cuda.h - computing on a GPU: the networks of boxcar_nn.h, and kernels of the caller's own. Part of
 * libboxcar_nn, which is built without a CUDA toolkit and loads the driver, NVRTC, cuBLAS and cuDNN when needed.
 *
 *     struct bx_cuda *cuda = NULL;
 *     bx_cuda_open(0, &cuda);                                  // after the last fork
 *     bx_net_create(&(struct bx_net_options){ .cuda = cuda }, &net);
 *     ...                                                      // built as on the CPU
 *     bx_net_forward(net, images, logits);                     // puts the work on the stream and returns
 *     bx_net_backward(net, logits_grad, grads);
 *     bx_tensor_written_on(grad, bx_cuda_stream(cuda));        // borrowers wait for the stream, the host does not
 *
 * Order: a bx_cuda has one stream. Each call puts its work on it and does not wait for it, unless the call's comment
 * says so. Two calls of a net wait: bx_net_destroy, and bx_net_finish, which also runs every pass once, so that the
 * libraries load their code then and not later. The caller orders the stream with other streams, for example by
 * bx_tensor_read_on(tensor, bx_cuda_stream(cuda)).
 *
 * Memory: the arrays of a net on a device lie in that device's memory: parameters, inputs, outputs, gradients, and the
 * statistics of bx_net_running. They have torch's shapes, as on the CPU. They are float32 and computed as float32 (no
 * TF32).
 *
 * Libraries: libcuda.so.1; libnvrtc and libcublas (13, 12 or 11, none newer than the driver); libcudnn (9 or 8), as
 * the dynamic linker finds them. BX_CUDA_DRIVER, BX_NVRTC, BX_CUBLAS and BX_CUDNN name other files; they are ignored in
 * a program that runs with more rights than its caller. NVRTC's builtins (libnvrtc-builtins.so.13.0, for example) are
 * looked for in its folder first. bx_cuda_open loads the driver and NVRTC, and cuBLAS and cuDNN where they are: making
 * their handles may wait for the device. Without these two the first net fails.
 *
 * Errors: 0, else a negative code after a sentence (bx_error_text): -ENODEV, no driver, no such device, or the device
 * is not available to this process; -ENOTSUP, built with CUDA=0, or a library is missing, too old, or newer than the
 * driver; -ENOMEM; -EINVAL; -EPERM, this process was forked after CUDA was started; -EIO, any other error of the GPU,
 * after which this process cannot use it any more. Work that fails on the stream is reported by the next call that
 * waits for it.
 * Threads: one thread at a time uses a bx_cuda and what was made with it.
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

/* The number of devices that this process can use, or an error. */
int bx_cuda_count(void);

/* Opens the device with this ordinal, counted as by bx_gpu_open among the devices that CUDA_VISIBLE_DEVICES leaves. It
 * uses the device's primary context and a new stream. */
int bx_cuda_open(int ordinal, struct bx_cuda **cuda);
/* Close it after destroying everything that was made with it. Waits for the stream, 2 s at most: after that the
 * device's memory, stream and context stay until the process ends, because a stream that waits for another process may
 * never end. bx_net_destroy and bx_kernels_destroy do the same. NULL is fine. */
void bx_cuda_close(struct bx_cuda *cuda);

const char *bx_cuda_name(const struct bx_cuda *cuda);       /* the device's name, "NVIDIA H200" */
void *bx_cuda_stream(const struct bx_cuda *cuda);           /* a CUstream of the primary context */
int bx_cuda_wait(struct bx_cuda *cuda);                     /* waits until the stream has done all its work */

/* Device memory of this process alone; bx_tensor_create_on gives memory that can be lent to other workers.
 * bx_cuda_free waits for the stream. NULL is fine. */
int bx_cuda_alloc(struct bx_cuda *cuda, size_t bytes, void **memory);
void bx_cuda_free(struct bx_cuda *cuda, void *memory);
/* Pinned host memory: copies to and from it run at full speed and asynchronously; kernels use it at the same address.
 * bx_cuda_free_host waits for the stream. NULL is fine. */
int bx_cuda_alloc_host(struct bx_cuda *cuda, size_t bytes, void **memory);
void bx_cuda_free_host(struct bx_cuda *cuda, void *memory);

/* Copies `bytes` on the stream, between device and host memory in any combination. It may wait if host memory is
 * pageable. */
int bx_cuda_copy(struct bx_cuda *cuda, void *to, const void *from, size_t bytes);
int bx_cuda_zero(struct bx_cuda *cuda, void *memory, size_t bytes);

/* bx_mse_loss of arrays on the device, bit for bit; waits for the loss. grad may be NULL. */
int bx_cuda_mse_loss(struct bx_cuda *cuda, const float *output, const float *target, size_t count, float *grad,
                     double *loss);
#define BX_CUDA_GRADS_MAX 128
/* bx_sgd_step of arrays on the device, bit for bit. step->grads itself is a host array. -EINVAL: a NULL pointer, no
 * gradient, or more than BX_CUDA_GRADS_MAX. */
int bx_cuda_sgd_step(struct bx_cuda *cuda, const struct bx_sgd *step);

/*
 * Kernels: CUDA C++ text, which NVRTC compiles for the device. It does not contract a * b + c, so that arithmetic can
 * match the CPU's bit for bit. Each kernel is extern "C" and __global__, and takes one struct by value.
 *
 * bx_kernels_create: `name` stands for the text in messages ("policy.cu"). -EINVAL, with the compiler's log: the text
 * does not compile. -ENOTSUP: NVRTC does not know the device.
 *
 * bx_kernel_launch starts at least `threads` threads of the kernel, in blocks of 128; the kernel must compare its index
 * with the count in its arguments. It copies args, the struct. -EINVAL: there is no such kernel. bx_kernels_create
 * loads the code of each kernel whose name stands in the text; that of others, whose names macros make, is loaded at
 * their first launch, which may wait for the device: where that would hurt, launch them once with 0 threads.
 */
struct bx_kernels;
int bx_kernels_create(struct bx_cuda *cuda, const char *name, const char *source, struct bx_kernels **kernels);
void bx_kernels_destroy(struct bx_kernels *kernels);        /* waits for the stream, 2 s at most */
int bx_kernel_launch(struct bx_kernels *kernels, const char *kernel, size_t threads, const void *args);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif

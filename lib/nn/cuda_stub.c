/* SPDX-License-Identifier: MIT */
/*
 * Replaces the other cuda_*.c in a build with CUDA=0: every call fails with -ENOTSUP.
 */
#include "boxcar_cuda.h"
#include "nn.h"

#include "gpu/stub.h"

#include <errno.h>

static int nothing(const char *call)
{
    return bx_fail(-ENOTSUP, "%s: this library was built without CUDA (make CUDA=0)", call);
}

#define FAILS(name, parameters, ...) BXI_STUB(int, nothing(#name), name, parameters, __VA_ARGS__)

FAILS(bx_cuda_count, (void), NULL)
FAILS(bx_cuda_open, (int ordinal, struct bx_cuda **cuda), cuda, ordinal)
BXI_STUB(void, , bx_cuda_close, (struct bx_cuda *cuda), cuda)
BXI_STUB(const char *, NULL, bx_cuda_name, (const struct bx_cuda *cuda), cuda)
BXI_STUB(void *, NULL, bx_cuda_stream, (const struct bx_cuda *cuda), cuda)
FAILS(bx_cuda_wait, (struct bx_cuda *cuda), cuda)
FAILS(bx_cuda_alloc, (struct bx_cuda *cuda, size_t bytes, void **memory), cuda, bytes, memory)
BXI_STUB(void, , bx_cuda_free, (struct bx_cuda *cuda, void *memory), cuda, memory)
FAILS(bx_cuda_alloc_host, (struct bx_cuda *cuda, size_t bytes, void **memory), cuda, bytes, memory)
BXI_STUB(void, , bx_cuda_free_host, (struct bx_cuda *cuda, void *memory), cuda, memory)
FAILS(bx_cuda_copy, (struct bx_cuda *cuda, void *to, const void *from, size_t bytes), cuda, to, from, bytes)
FAILS(bx_cuda_zero, (struct bx_cuda *cuda, void *memory, size_t bytes), cuda, memory, bytes)
FAILS(bx_cuda_mse_loss, (struct bx_cuda *cuda, const float *output, const float *target, size_t count, float *grad,
                         double *loss), cuda, output, target, count, grad, loss)
FAILS(bx_cuda_sgd_step, (struct bx_cuda *cuda, const struct bx_sgd *step), cuda, step)
FAILS(bx_kernels_create, (struct bx_cuda *cuda, const char *name, const char *source, struct bx_kernels **kernels),
      cuda, name, source, kernels)
BXI_STUB(void, , bx_kernels_destroy, (struct bx_kernels *kernels), kernels)
FAILS(bx_kernel_launch, (struct bx_kernels *kernels, const char *kernel, size_t threads, const void *args), kernels,
      kernel, threads, args)

static int check(struct bx_cuda *cuda)
{
    (void)cuda;
    return nothing("bx_net_create");
}

/* bx_net_create calls check before it makes a net, so nothing else of the table is called. */
const struct bxi_nn_backend bxi_nn_cuda = { .check = check };

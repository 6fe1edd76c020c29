/* SPDX-License-Identifier: MIT */
/*
 * Replaces the other cuda_*.c in a build with CUDA=0: every call fails with -ENOTSUP.
 */
#include "boxcar_cuda.h"
#include "nn.h"

#include <errno.h>

static int nothing(const char *call)
{
    return bx_fail(-ENOTSUP, "%s: this library was built without CUDA (make CUDA=0)", call);
}

int bx_cuda_count(void)
{
    return nothing("bx_cuda_count");
}

int bx_cuda_open(int ordinal, struct bx_cuda **cuda)
{
    (void)ordinal;
    (void)cuda;
    return nothing("bx_cuda_open");
}

void bx_cuda_close(struct bx_cuda *cuda)
{
    (void)cuda;
}

const char *bx_cuda_name(const struct bx_cuda *cuda)
{
    (void)cuda;
    return NULL;
}

void *bx_cuda_stream(const struct bx_cuda *cuda)
{
    (void)cuda;
    return NULL;
}

int bx_cuda_wait(struct bx_cuda *cuda)
{
    (void)cuda;
    return nothing("bx_cuda_wait");
}

int bx_cuda_alloc(struct bx_cuda *cuda, size_t bytes, void **memory)
{
    (void)cuda;
    (void)bytes;
    (void)memory;
    return nothing("bx_cuda_alloc");
}

void bx_cuda_free(struct bx_cuda *cuda, void *memory)
{
    (void)cuda;
    (void)memory;
}

int bx_cuda_alloc_host(struct bx_cuda *cuda, size_t bytes, void **memory)
{
    (void)cuda;
    (void)bytes;
    (void)memory;
    return nothing("bx_cuda_alloc_host");
}

void bx_cuda_free_host(struct bx_cuda *cuda, void *memory)
{
    (void)cuda;
    (void)memory;
}

int bx_cuda_copy(struct bx_cuda *cuda, void *to, const void *from, size_t bytes)
{
    (void)cuda;
    (void)to;
    (void)from;
    (void)bytes;
    return nothing("bx_cuda_copy");
}

int bx_cuda_zero(struct bx_cuda *cuda, void *memory, size_t bytes)
{
    (void)cuda;
    (void)memory;
    (void)bytes;
    return nothing("bx_cuda_zero");
}

int bx_cuda_mse_loss(struct bx_cuda *cuda, const float *output, const float *target, size_t count, float *grad,
                     double *loss)
{
    (void)cuda;
    (void)output;
    (void)target;
    (void)count;
    (void)grad;
    (void)loss;
    return nothing("bx_cuda_mse_loss");
}

int bx_cuda_sgd_step(struct bx_cuda *cuda, const struct bx_sgd *step)
{
    (void)cuda;
    (void)step;
    return nothing("bx_cuda_sgd_step");
}

int bx_kernels_create(struct bx_cuda *cuda, const char *name, const char *source, struct bx_kernels **kernels)
{
    (void)cuda;
    (void)name;
    (void)source;
    (void)kernels;
    return nothing("bx_kernels_create");
}

void bx_kernels_destroy(struct bx_kernels *kernels)
{
    (void)kernels;
}

int bx_kernel_launch(struct bx_kernels *kernels, const char *kernel, size_t threads, const void *args)
{
    (void)kernels;
    (void)kernel;
    (void)threads;
    (void)args;
    return nothing("bx_kernel_launch");
}

static int check(struct bx_cuda *cuda)
{
    (void)cuda;
    return nothing("bx_net_create");
}

/* bx_net_create calls check before it makes a net, so nothing else of the table is called. */
const struct bxi_nn_backend bxi_nn_cuda = { .check = check };

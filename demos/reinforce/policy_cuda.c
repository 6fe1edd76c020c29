/* SPDX-License-Identifier: MIT */
/*
 * The policy's decisions on a GPU (policy.cu). States and keys go to the GPU and decisions come back, in pinned memory
 * that the kernel reads and writes itself; the parameters go to it after each update. Run by the thread that uses the
 * learner.
 *
 * A decision waits for the GPU, some 10 us: worth it for a batch of observers, not for one alone.
 */
#include "policy.h"

#include <boxcar_cuda.h>
#include <errno.h>
#include <stdlib.h>

static const char source[] =
#include "policy.inc"
    ;

struct policy_gpu {
    struct bx_cuda *cuda;
    struct bx_kernels *kernels;
    float *params;                      /* on the device */
    struct policy_gpu_ask *asks;
    struct policy_dropout dropout;
};

int policy_gpu_write(struct policy_gpu *gpu, const struct policy *policy)
{
    int rc = bx_cuda_copy(gpu->cuda, gpu->params, &policy->params, sizeof(policy->params));

    gpu->dropout = policy->dropout;
    return rc < 0 ? rc : bx_cuda_wait(gpu->cuda);
}

int policy_gpu_create(int ordinal, const struct policy *policy, size_t asks, struct policy_gpu **made)
{
    struct policy_gpu *gpu = calloc(1, sizeof(*gpu));
    int rc;

    if (gpu == NULL)
        return bx_fail(-ENOMEM, "not enough memory for a policy on a GPU");
    rc = bx_cuda_open(ordinal, &gpu->cuda);
    if (rc == 0)
        rc = bx_kernels_create(gpu->cuda, "policy.cu", source, &gpu->kernels);
    if (rc == 0)
        rc = bx_cuda_alloc_host(gpu->cuda, asks * sizeof(*gpu->asks), (void **)&gpu->asks);
    if (rc == 0)
        rc = bx_cuda_alloc(gpu->cuda, sizeof(struct policy_params), (void **)&gpu->params);
    if (rc == 0)
        rc = policy_gpu_write(gpu, policy);
    if (rc < 0) {
        policy_gpu_destroy(gpu);
        return rc;
    }
    *made = gpu;
    return 0;
}

void policy_gpu_destroy(struct policy_gpu *gpu)
{
    if (gpu == NULL)
        return;
    bx_kernels_destroy(gpu->kernels);
    if (gpu->cuda != NULL) {
        bx_cuda_free_host(gpu->cuda, gpu->asks);
        bx_cuda_free(gpu->cuda, gpu->params);
    }
    bx_cuda_close(gpu->cuda);
    free(gpu);
}

const char *policy_gpu_name(const struct policy_gpu *gpu)
{
    return bx_cuda_name(gpu->cuda);
}

struct policy_gpu_ask *policy_gpu_asks(struct policy_gpu *gpu)
{
    return gpu->asks;
}

int policy_gpu_act(struct policy_gpu *gpu, size_t count)
{
    struct policy_gpu_act args = {
        .asks = gpu->asks,
        .params = gpu->params,
        .keep_threshold = gpu->dropout.threshold,
        .keep_scale = gpu->dropout.scale,
        .count = (unsigned)count,
    };
    int rc = count == 0 ? 0 : bx_kernel_launch(gpu->kernels, "policy_gpu_act", count, &args);

    return rc < 0 ? rc : bx_cuda_wait(gpu->cuda);
}

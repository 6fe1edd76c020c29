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
#include <string.h>

static const char source[] =
#include "policy.inc"
    ;

struct policy_gpu {
    struct bx_cuda *cuda;
    struct bx_kernels *kernels;
    float *params;                      /* on the device */
    struct policy_gpu_row *rows;        /* in pinned memory */
    struct policy_dropout dropout;
};

int policy_gpu_write(struct policy_gpu *gpu, const struct policy *policy)
{
    int rc = bx_cuda_copy(gpu->cuda, gpu->params, &policy->params, sizeof(policy->params));

    gpu->dropout = policy->dropout;
    return rc < 0 ? rc : bx_cuda_wait(gpu->cuda);
}

int policy_gpu_create(int ordinal, const struct policy *policy, size_t rows, struct policy_gpu **made)
{
    struct policy_gpu *gpu = calloc(1, sizeof(*gpu));
    int rc;

    if (gpu == NULL)
        return bx_fail(-ENOMEM, "not enough memory for a policy on a GPU");
    rc = bx_cuda_open(ordinal, &gpu->cuda);
    if (rc == 0)
        rc = bx_kernels_create(gpu->cuda, "policy.cu", source, &gpu->kernels);
    if (rc == 0)
        rc = bx_cuda_alloc_host(gpu->cuda, rows * sizeof(*gpu->rows), (void **)&gpu->rows);
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
        bx_cuda_free_host(gpu->cuda, gpu->rows);
        bx_cuda_free(gpu->cuda, gpu->params);
    }
    bx_cuda_close(gpu->cuda);
    free(gpu);
}

const char *policy_gpu_name(const struct policy_gpu *gpu)
{
    return bx_cuda_name(gpu->cuda);
}

int policy_gpu_act(struct policy_gpu *gpu, struct policy_row *const *rows, size_t count)
{
    struct policy_gpu_act args = {
        .rows = gpu->rows,
        .params = gpu->params,
        .keep_threshold = gpu->dropout.threshold,
        .keep_scale = gpu->dropout.scale,
        .count = (unsigned)count,
    };
    int rc;

    _Static_assert(sizeof(struct policy_row) == sizeof(struct policy_gpu_row), "the same members, in other words");
    if (count == 0)
        return 0;
    for (size_t i = 0; i < count; i++)
        memcpy(&gpu->rows[i], rows[i], sizeof(*gpu->rows));
    rc = bx_kernel_launch(gpu->kernels, "policy_gpu_act", count, &args);
    if (rc == 0)
        rc = bx_cuda_wait(gpu->cuda);
    for (size_t i = 0; rc == 0 && i < count; i++)
        memcpy(rows[i], &gpu->rows[i], sizeof(*gpu->rows));
    return rc;
}

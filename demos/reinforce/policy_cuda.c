/* SPDX-License-Identifier: MIT */
/*
 * The policy on a GPU (policy.cu). Its parameters, Adam's moments and an episode's decisions stay there. States and
 * keys go to the GPU and actions come back, in pinned memory that the kernel reads and writes itself; the returns go to
 * it at the end of an episode. Run by the thread that uses the learner.
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
    size_t rows, blocks;
    struct policy_gpu_row *row;         /* on the device, like all arrays except asks */
    float *weight, *partial;
    float *state;                       /* parameters, mean, square, gradient: POLICY_PARAMS each */
    struct policy_gpu_ask *asks;
    unsigned long long keep_threshold;
    float keep_scale;
};

/* The first three parts of `state` are a policy's. */
#define STATE_BYTES (3 * sizeof(struct policy_params))
_Static_assert(offsetof(struct policy, params) == 0 && offsetof(struct policy, updates) == STATE_BYTES,
               "copied as one");

static int alloc(struct policy_gpu *gpu, size_t asks)
{
    const struct {
        void *memory;
        size_t bytes;
    } wanted[] = {
        { &gpu->row, gpu->rows * sizeof(*gpu->row) },
        { &gpu->weight, gpu->rows * sizeof(float) },
        { &gpu->partial, gpu->blocks * POLICY_PARAMS * sizeof(float) },
        { &gpu->state, 4 * POLICY_PARAMS * sizeof(float) },
    };
    int rc = bx_cuda_alloc_host(gpu->cuda, asks * sizeof(*gpu->asks), (void **)&gpu->asks);

    for (size_t i = 0; rc == 0 && i < sizeof(wanted) / sizeof(wanted[0]); i++)
        rc = bx_cuda_alloc(gpu->cuda, wanted[i].bytes, wanted[i].memory);
    return rc;
}

static int copy(struct policy_gpu *gpu, void *to, const void *from, size_t bytes)
{
    int rc = bx_cuda_copy(gpu->cuda, to, from, bytes);

    return rc < 0 ? rc : bx_cuda_wait(gpu->cuda);
}

int policy_gpu_write(struct policy_gpu *gpu, const struct policy *policy)
{
    gpu->keep_threshold = policy->keep_threshold;
    gpu->keep_scale = policy->keep_scale;
    return copy(gpu, gpu->state, policy, STATE_BYTES);
}

int policy_gpu_read(struct policy_gpu *gpu, struct policy *policy, struct policy_params *grad)
{
    int rc = copy(gpu, policy, gpu->state, STATE_BYTES);

    return rc < 0 || grad == NULL ? rc : copy(gpu, grad, gpu->state + 3 * POLICY_PARAMS, sizeof(*grad));
}

int policy_gpu_read_rows(struct policy_gpu *gpu, size_t first, size_t count, struct policy_row *rows)
{
    _Static_assert(sizeof(struct policy_row) == sizeof(struct policy_gpu_row), "the same members, in other words");

    return copy(gpu, rows, gpu->row + first, count * sizeof(*rows));
}

int policy_gpu_write_rows(struct policy_gpu *gpu, size_t first, size_t count, const struct policy_row *rows)
{
    return copy(gpu, gpu->row + first, rows, count * sizeof(*rows));
}

int policy_gpu_create(int ordinal, const struct policy *policy, const struct policy_gpu_room *room,
                      struct policy_gpu **made)
{
    struct policy_gpu *gpu = calloc(1, sizeof(*gpu));
    int rc;

    if (gpu == NULL)
        return bx_fail(-ENOMEM, "not enough memory for a policy on a GPU");
    gpu->rows = room->rows;
    gpu->blocks = (room->rows + POLICY_BLOCK_ROWS - 1) / POLICY_BLOCK_ROWS;
    rc = bx_cuda_open(ordinal, &gpu->cuda);
    if (rc == 0)
        rc = bx_kernels_create(gpu->cuda, "policy.cu", source, &gpu->kernels);
    if (rc == 0)
        rc = alloc(gpu, room->asks);
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
        bx_cuda_free(gpu->cuda, gpu->row);
        bx_cuda_free(gpu->cuda, gpu->weight);
        bx_cuda_free(gpu->cuda, gpu->partial);
        bx_cuda_free(gpu->cuda, gpu->state);
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
        .rows = gpu->row,
        .params = gpu->state,
        .keep_threshold = gpu->keep_threshold,
        .keep_scale = gpu->keep_scale,
        .count = (unsigned)count,
    };
    int rc = count == 0 ? 0 : bx_kernel_launch(gpu->kernels, "policy_gpu_act", count, &args);

    return rc < 0 ? rc : bx_cuda_wait(gpu->cuda);
}

int policy_gpu_learn(struct policy_gpu *gpu, struct policy *policy, const float *weight, size_t count)
{
    const size_t blocks = (count + POLICY_BLOCK_ROWS - 1) / POLICY_BLOCK_ROWS;
    struct policy_gpu_backward backward = {
        .rows = gpu->row,
        .weight = gpu->weight,
        .params = gpu->state,
        .partial = gpu->partial,
        .row_count = count,
        .count = blocks * POLICY_UNITS,
        .keep_scale = gpu->keep_scale,
    };
    struct policy_gpu_adam adam = {
        .partial = gpu->partial,
        .params = gpu->state,
        .mean = gpu->state + POLICY_PARAMS,
        .square = gpu->state + 2 * POLICY_PARAMS,
        .grad = gpu->state + 3 * POLICY_PARAMS,
        .blocks = blocks,
    };
    int rc = bx_cuda_copy(gpu->cuda, gpu->weight, weight, count * sizeof(*weight));

    policy_adam_rates(&policy->updates, &adam.rate, &adam.unbias);
    if (rc == 0)
        rc = bx_kernel_launch(gpu->kernels, "policy_gpu_backward", backward.count, &backward);
    if (rc == 0)
        rc = bx_kernel_launch(gpu->kernels, "policy_gpu_adam", POLICY_PARAMS, &adam);
    /* Wait: the next episode may write to `weight` before the copy has read it. */
    return rc < 0 ? rc : bx_cuda_wait(gpu->cuda);
}

/* SPDX-License-Identifier: MIT */
/*
 * Tensors of the sizes of ResNet-50's parameters.
 */
#ifndef BENCH_TENSORS_H
#define BENCH_TENSORS_H

#include "boxcar.h"

#include <stddef.h>
#include <stdint.h>

#define BENCH_TENSORS 161           /* parameters of ResNet-50 with 30 classes ... */
#define BENCH_TENSORS_BYTES 94278008    /* ... and what they take */
#define BENCH_TENSOR_BYTES_MIN 64

/* `count` tensors of `bytes` in all, in the proportions of ResNet-50's parameters: with the two numbers above exactly
 * these; else the list is repeated as often as needed and each size is scaled. Made before the fork. */
struct bench_plan {
    size_t count;
    size_t bytes;
    struct bench_plan_tensor {
        size_t bytes;
        int ndim;                   /* a convolution's has four, the first of them long */
    } *tensors;
};
/* 0, or 2 after a line on stderr: too few bytes for so many tensors. */
int bench_plan_make(struct bench_plan *plan, int64_t count, int64_t bytes);
/* f32, or u8 where 4 does not divide its bytes (the last only); in the job's arena, or on the heap. */
int bench_plan_create(const struct bench_plan *plan, size_t index, struct bx_job *job,
                      struct bx_tensor **tensor);
uint64_t bench_shm_room(void);      /* bytes free in /dev/shm; UINT64_MAX if not known */

#endif

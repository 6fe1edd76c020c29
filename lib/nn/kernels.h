/* SPDX-License-Identifier: MIT */
/*
 * The arguments of the kernels in kernels.cu: one struct each, passed by value. This file is compiled three times: by
 * the C compiler for the code that launches the kernels; by NVRTC, which gets its text before that of kernels.cu; and
 * by the C compiler for the tests' driver. So it includes nothing and uses plain C types only. Arrays lie on the
 * device.
 *
 * kernels.cu includes nothing either, and writes each kernel in plain C as
 *
 *     BXK_KERNEL(bxk_sum)                     // extern "C" __global__ void bxk_sum(struct bxk_sum a)
 *     {
 *         BXK_EACH(i, a.count)                // a loop over this thread's share of 0 .. a.count - 1
 *             a.to[i] = a.a[i];
 *     }
 *
 * It defines the two macros under #ifndef BXK_KERNEL: the tests' driver defines its own.
 */
#ifndef BXI_NN_KERNELS_H
#define BXI_NN_KERNELS_H

struct bxk_sum {                        /* to = a + b; b may be NULL; relu: max(0, a + b) */
    float *to;
    const float *a, *b;
    unsigned long long count;
    int relu;
};

struct bxk_mask {                       /* to = 0 if y <= 0, else grad; add: to += it */
    float *to;
    const float *grad, *y;              /* y NULL: no mask */
    unsigned long long count;
    int add;
};

struct bxk_mse {                        /* bx_mse_loss: a thread an element; thread 0 adds the squares in their order */
    const float *output, *target;
    float *grad;                        /* NULL: not wanted */
    double *loss;
    unsigned long long count;
};

struct bxk_sgd {                        /* bx_sgd_step, a thread an element */
    const float *from;
    float *to;
    float *velocity;
    const float *grads[128];            /* BX_CUDA_GRADS_MAX */
    unsigned long long elements;
    unsigned grad_count;
    float lr, momentum;
};

#endif

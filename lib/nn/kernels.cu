/* SPDX-License-Identifier: MIT */
/*
 * The kernels that the networks need besides cuDNN and cuBLAS, and a loss and an optimizer with the same bits as those
 * of optim.c. Their arguments are in kernels.h; NVRTC compiles its text and this one together. cuda_kernels.c launches
 * them on the device's stream. The tests' driver has them compiled as plain C, so they use nothing of C++, no shared
 * memory and no barrier.
 *
 * A thread computes one element; the squares of a loss are added by one thread, in their order. So the result depends
 * only on the input. The compiler must not contract a * b + c.
 */
#ifndef BXK_KERNEL
#define BXK_KERNEL(name) extern "C" __global__ void name(struct name a)
#define BXK_EACH(i, count)                                                                                \
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < (count);   \
         i += (unsigned long long)gridDim.x * blockDim.x)
#endif

BXK_KERNEL(bxk_sum)
{
    BXK_EACH(i, a.count) {
        float sum = a.b == 0 ? a.a[i] : a.a[i] + a.b[i];

        a.to[i] = a.relu && sum < 0.0f ? 0.0f : sum;
    }
}

BXK_KERNEL(bxk_mask)
{
    BXK_EACH(i, a.count) {
        float grad = a.y != 0 && a.y[i] <= 0.0f ? 0.0f : a.grad[i];     /* a NaN passes, as in bxk_sum */

        a.to[i] = a.add ? a.to[i] + grad : grad;
    }
}

/* Thread 0 adds the squares in their order: a loss is over few elements. */
BXK_KERNEL(bxk_mse)
{
    BXK_EACH(i, a.count) {
        double difference = (double)a.output[i] - (double)a.target[i];

        if (a.grad != 0)
            a.grad[i] = (float)(2.0 * difference / (double)a.count);
        if (i == 0) {
            double sum = 0.0;

            for (unsigned long long k = 0; k < a.count; k++) {
                double each = (double)a.output[k] - (double)a.target[k];

                sum += each * each;
            }
            *a.loss = sum / (double)a.count;
        }
    }
}

BXK_KERNEL(bxk_sgd)
{
    BXK_EACH(i, a.elements) {
        float g = a.grads[0][i];

        for (unsigned k = 1; k < a.grad_count; k++)
            g += a.grads[k][i];
        g /= (float)a.grad_count;
        g = a.momentum * a.velocity[i] + g;
        a.velocity[i] = g;
        a.to[i] = a.from[i] - a.lr * g;
    }
}

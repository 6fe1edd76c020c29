/* SPDX-License-Identifier: MIT */
/*
 * Kernels as plain C, for kernels.cu and policy.cu without a GPU. A file of the fake includes this, then the text; each
 * kernel enters itself into module.c's list before main. The text's own definitions of the macros, for the GPU, are
 * under #ifndef BXK_KERNEL.
 */
#ifndef TESTS_FAKE_KERNEL_H
#define TESTS_FAKE_KERNEL_H

#include <math.h>
#include <stddef.h>

struct fake_index {
    unsigned x, y, z;
};
extern _Thread_local struct fake_index blockIdx, blockDim, threadIdx, gridDim;

struct fake_kernel {
    struct fake_kernel *next;
    const char *name;
    size_t bytes;                               /* of its struct */
    void (*thread)(const void *argument);       /* runs one thread */
};
void fake_kernel_enter(struct fake_kernel *kernel);
unsigned long long fake_clock_ns(void);

#define BXK_KERNEL(name)                                                                        \
    static void name(struct name a);                                                            \
    static void name##_thread(const void *argument)                                             \
    {                                                                                           \
        name(*(const struct name *)argument);                                                   \
    }                                                                                           \
    __attribute__((constructor)) static void name##_enter(void)                                 \
    {                                                                                           \
        static struct fake_kernel kernel = { NULL, #name, sizeof(struct name), name##_thread }; \
                                                                                                \
        fake_kernel_enter(&kernel);                                                             \
    }                                                                                           \
    static void name(struct name a)

#define BXK_DEVICE static
#define BXK_READ_CLOCK(ns) ((ns) = fake_clock_ns())

#define BXK_EACH(i, count)                                                                      \
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;      \
         i < (count); i += (unsigned long long)gridDim.x * blockDim.x)

#endif

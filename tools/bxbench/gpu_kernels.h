/* SPDX-License-Identifier: MIT */
/*
 * The arguments of the kernels in gpu.cu: each kernel takes one struct of its own name, by value. Compiled by the C
 * compiler and by NVRTC, so it includes nothing. Arrays lie on the device.
 */
#ifndef BENCH_GPU_KERNELS_H
#define BENCH_GPU_KERNELS_H

struct bench_gpu_stamp {
    unsigned long long produced;    /* ns of the device's clock */
    unsigned long long consumed;
};

struct bench_gpu_produce {          /* one thread: works for delay_ns, then writes the time to to[0] */
    unsigned long long *to;
    unsigned long long delay_ns;
};

struct bench_gpu_consume {          /* one thread: copies *from and its own time to *to */
    const unsigned long long *from;
    struct bench_gpu_stamp *to;
};

#endif

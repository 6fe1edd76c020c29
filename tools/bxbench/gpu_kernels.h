/* SPDX-License-Identifier: MIT */
/*
 * What the kernels in gpu.cu are given: one struct each, by value, of the kernel's name. Compiled by the C
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

struct bench_gpu_consume {          /* one thread: what was written, and the time */
    const unsigned long long *from;
    struct bench_gpu_stamp *to;
};

#endif

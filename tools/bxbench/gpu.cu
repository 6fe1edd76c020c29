/* SPDX-License-Identifier: MIT */
/*
 * Two kernels that read the device's own clock: one writes the time at its end, the other at its beginning. Text for
 * NVRTC, which compiles it after gpu_kernels.h; and C for the tests' driver, which defines the macros itself.
 *
 * %globaltimer counts nanoseconds for all processes on a device; how often it moves depends on the device (32 ns to
 * 1 us have been seen).
 */
#ifndef BXK_KERNEL
#define BXK_KERNEL(name) extern "C" __global__ void name(struct name a)
#define BXK_EACH(i, count)                                                                      \
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < (count); \
         i += gridDim.x * (unsigned long long)blockDim.x)
#define BXK_DEVICE static __device__
#define BXK_READ_CLOCK(ns) asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns) : : "memory")
#endif

BXK_DEVICE unsigned long long bench_gpu_now(void)
{
    unsigned long long ns;

    BXK_READ_CLOCK(ns);
    return ns;
}

BXK_KERNEL(bench_gpu_produce)
{
    BXK_EACH(i, 1) {
        unsigned long long begin = bench_gpu_now(), now = begin;

        while (now - begin < a.delay_ns)
            now = bench_gpu_now();
        a.to[i] = now;
    }
}

BXK_KERNEL(bench_gpu_consume)
{
    BXK_EACH(i, 1) {
        a.to->consumed = bench_gpu_now();
        a.to->produced = a.from[i];
    }
}

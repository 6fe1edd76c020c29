/* SPDX-License-Identifier: MIT */
/*
 * Functions of which a build with CUDA=0 has only what they return: gpu/stub.c, lib/nn/cuda_stub.c.
 */
#ifndef BXI_GPU_STUB_H
#define BXI_GPU_STUB_H

/* Takes a function's parameters, so that none is unused. */
static inline void bxi_stub_take(const void *first, ...)
{
    (void)first;
}

#define BXI_STUB(type, value, name, parameters, ...)                                            \
    type name parameters                                                                        \
    {                                                                                           \
        bxi_stub_take(__VA_ARGS__);                                                             \
        return value;                                                                           \
    }

#endif

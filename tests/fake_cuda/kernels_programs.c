/* SPDX-License-Identifier: MIT */
/*
 * The kernels of reinforce and of bxbench gpu, compiled for the host without contraction of a * b + c, as NVRTC is told
 * to.
 */
#include "kernel.h"

#include "../../demos/policy_kernels.h"
#include "../../tools/bench_gpu_kernels.h"

#include "../../demos/policy.cu"
#include "../../tools/bench_gpu.cu"

/* SPDX-License-Identifier: MIT */
/*
 * The kernels of reinforce and of bxbench gpu, compiled for the host without contraction of a * b + c: the same option
 * is passed to NVRTC.
 */
#include "kernel.h"

#include "demos/reinforce/policy_kernels.h"
#include "tools/bxbench/gpu_kernels.h"

#include "demos/reinforce/policy.cu"
#include "tools/bxbench/gpu.cu"

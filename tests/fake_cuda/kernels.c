/* SPDX-License-Identifier: MIT */
/*
 * The networks' kernels, compiled for the host without contraction of a * b + c, as NVRTC is told to.
 */
#include "kernel.h"

#include "nn/kernels.h"

#include "nn/kernels.cu"

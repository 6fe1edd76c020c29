/* SPDX-License-Identifier: MIT */
/*
 * The networks' kernels, compiled for the host without contraction of a * b + c: the same option is passed to NVRTC.
 */
#include "kernel.h"

#include "nn/kernels.h"

#include "nn/kernels.cu"

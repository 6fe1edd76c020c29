/* SPDX-License-Identifier: MIT */
/*
 * The networks' kernels, compiled for the host without contraction of a * b + c, as NVRTC is told to.
 */
#include "kernel.h"

#include "../../lib/nn/kernels.h"

#include "../../lib/nn/kernels.cu"

/* SPDX-License-Identifier: MIT */
/*
 * The policy's sizes, the layout of its parameters, and the argument of its kernel on a GPU (policy.cu): a struct with
 * the kernel's name, passed by value. Compiled by the C compiler and, as the first part of the kernel's text, by NVRTC,
 * so it includes nothing and uses plain C types only. `params` lies on the device, `rows` in pinned host memory, which
 * the kernel reaches by the same address.
 */
#ifndef DEMOS_POLICY_KERNELS_H
#define DEMOS_POLICY_KERNELS_H

#define POLICY_INPUTS 4
#define POLICY_UNITS 128
#define POLICY_ACTIONS 2
#define POLICY_BLOCK_ROWS 256       /* rows whose gradient is summed before it is added to that of other blocks */
#define POLICY_ACTION_DRAW 64       /* the draw of a row's action; draws 0..63 decide which units are kept */

/* Offsets of the parameters in policy_params.v. The first layer is stored by input (v[W1 + input * UNITS + unit]), so
 * that neighbours in memory are neighbouring units; the second by action. */
enum {
    POLICY_W1 = 0,
    POLICY_B1 = POLICY_W1 + POLICY_INPUTS * POLICY_UNITS,
    POLICY_W2 = POLICY_B1 + POLICY_UNITS,
    POLICY_B2 = POLICY_W2 + POLICY_ACTIONS * POLICY_UNITS,
    POLICY_PARAMS = POLICY_B2 + POLICY_ACTIONS,
};

struct policy_gpu_row {             /* struct policy_row: state and key are given, the kernel fills in the rest */
    float state[POLICY_INPUTS];
    unsigned long long key;
    unsigned long long keep[POLICY_UNITS / 64];
    float prob[POLICY_ACTIONS];
    float log_prob;
    int action;
};

struct policy_gpu_act {             /* a thread a row */
    struct policy_gpu_row *rows;
    const float *params;
    unsigned long long keep_threshold;
    float keep_scale;
    unsigned count;
};

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The policy's sizes, the layout of its parameters, and the arguments of its kernels on a GPU (policy.cu): one struct
 * each, passed by value, with the kernel's name. Compiled by the C compiler and, as the first part of the kernels'
 * text, by NVRTC, so it includes nothing and uses plain C types only. Arrays lie on the device; `asks` lies in pinned
 * host memory, which kernels reach by the same address.
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

struct policy_gpu_row {             /* one decision; see struct policy_row */
    float state[POLICY_INPUTS];
    unsigned long long keep[POLICY_UNITS / 64];
    float prob[POLICY_ACTIONS];
    float log_prob;
    int action;
};

struct policy_gpu_ask {             /* a state, and the action for it */
    float state[POLICY_INPUTS];
    unsigned long long row_key;
    unsigned long long row;         /* index of the decision in `rows` */
    int action;                     /* set by the kernel */
};

struct policy_gpu_act {             /* a thread an ask */
    struct policy_gpu_ask *asks;
    struct policy_gpu_row *rows;
    const float *params;
    unsigned long long keep_threshold;
    float keep_scale;
    unsigned count;
};

struct policy_gpu_backward {        /* a thread for each unit of each block of rows */
    const struct policy_gpu_row *rows;
    const float *weight;
    const float *params;
    float *partial;                 /* blocks x POLICY_PARAMS; the parameters of action 1 are not written */
    unsigned long long row_count;
    unsigned long long count;       /* blocks * POLICY_UNITS */
    float keep_scale;
};

struct policy_gpu_adam {            /* a thread a parameter: adds its gradient, block by block, and does its step */
    const float *partial;
    float *grad;
    float *params;
    float *mean;
    float *square;
    unsigned long long blocks;
    float rate;                     /* the learning rate, over 1 - 0.9^updates */
    float unbias;                   /* sqrt(1 - 0.999^updates) */
};

#endif

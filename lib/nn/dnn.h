/* SPDX-License-Identifier: MIT */
/*
 * What a plan (cpu.h) needs of oneDNN, in words of our own, so that one file, onednn.c, knows that library's
 * calls, which changed from 2.x to 3.x. Everything else here computes with these types and never
 * includes its header.
 *
 *     bxi_onednn.describe(dnn, &(struct bxi_spec){ .op = BXI_OP_CONV, ... }, &recipe);
 *     src = bxi_onednn.layout_of(recipe, BXI_ARG_SRC);        how it wants its arrays to lie
 *     bxi_onednn.make_op(dnn, recipe, &op);
 *     bxi_onednn.add_arg(op, BXI_ARG_SRC, memory);            and so on
 *     bxi_onednn.run(dnn, op);
 *
 * What is made belongs to the `dnn` that it was made with and goes with it. Calls return 0 or a negative
 * code and write no sentence: the plan knows what was being done. Run by the thread that uses the net.
 */
#ifndef BXI_NN_DNN_H
#define BXI_NN_DNN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BXI_DIMS_MAX = 4, BXI_INNER_MAX = 4, BXI_ARGS_MAX = 12 };

/*
 * How an array of floats lies.
 *  1. Element (i0, i1, ...) is at the sum of i / blocks * stride over the dimensions, plus its place in the
 *     inner blocks, which lie together, the last one closest; blocks is the product of a dimension's.
 *  2. A dimension's blocks divide its padded size; what is padded holds zeros.
 *  3. ndims 0: none. any: the dims alone count, and whoever computes chooses the rest.
 */
struct bxi_layout {
    int ndims;
    bool any;
    int inner_count;
    int inner_axis[BXI_INNER_MAX], inner_size[BXI_INNER_MAX];
    int64_t dims[BXI_DIMS_MAX], padded[BXI_DIMS_MAX], strides[BXI_DIMS_MAX];
};

enum bxi_op_kind {
    BXI_OP_REORDER,                 /* src to dst, of the same dims */
    BXI_OP_CONV,                    /* the direct algorithm */
    BXI_OP_LINEAR,
    BXI_OP_BATCH_NORM,
    BXI_OP_MAX_POOL,
    BXI_OP_AVERAGE_POOL,            /* padding does not count */
    BXI_OP_SOFTMAX,                 /* over dimension 1 */
};

enum bxi_pass {
    BXI_PASS_FORWARD,               /* as training needs it */
    BXI_PASS_PREDICT,
    BXI_PASS_BACKWARD,              /* all gradients, of what has no weights or computes them beside */
    BXI_PASS_BACKWARD_WEIGHTS,
    BXI_PASS_BACKWARD_DATA,
};

/* What is to be computed. A gradient has the layout of what it is the gradient of. */
struct bxi_spec {
    enum bxi_op_kind op;
    enum bxi_pass pass;
    const struct bxi_recipe *forward;   /* a backward pass's */
    struct bxi_layout src, weight, bias, dst;
    int kernel[2], stride, padding;     /* of windows; a convolution's kernel is its weight's */
    float epsilon;                      /* of a batch normalisation: */
    bool relu;
    bool given_statistics;              /* mean and variance are read, not computed */
};

enum bxi_arg {
    BXI_ARG_SRC, BXI_ARG_DST, BXI_ARG_WEIGHTS, BXI_ARG_BIAS, BXI_ARG_SCALE, BXI_ARG_SHIFT, BXI_ARG_MEAN,
    BXI_ARG_VARIANCE, BXI_ARG_WORKSPACE, BXI_ARG_SCRATCH, BXI_ARG_DIFF_SRC, BXI_ARG_DIFF_DST,
    BXI_ARG_DIFF_WEIGHTS, BXI_ARG_DIFF_BIAS, BXI_ARG_DIFF_SCALE, BXI_ARG_DIFF_SHIFT,
};

struct bxi_dnn;                     /* an engine, and all that was made with it */
struct bxi_memory;                  /* a layout at an address */
struct bxi_recipe;                  /* how something would be computed here, and in which layouts */
struct bxi_op;                      /* what computes it, and its arguments */

struct bxi_dnn_api {
    const char *(*version)(void);
    int (*check)(void);             /* can it be used at all; -ENOTSUP after bx_fail */
    void (*use_threads)(int threads);   /* by the calling thread from now on */
    /* Calls part for each index below count at the same time, on the threads that oneDNN computes with. */
    void (*in_parallel)(void (*part)(const void *data, int index, int count), const void *data);
    int (*open)(struct bxi_dnn **dnn);
    void (*close)(struct bxi_dnn *dnn);

    /* data NULL: it is bound later. Of workspace and scratch only the size is looked at. */
    int (*make_memory)(struct bxi_dnn *dnn, const struct bxi_layout *layout, void *data, struct bxi_memory **memory);
    int (*bind)(struct bxi_memory *memory, void *data);

    /* -ENOTSUP where there is no way to compute it in these layouts. */
    int (*describe)(struct bxi_dnn *dnn, const struct bxi_spec *spec, struct bxi_recipe **recipe);
    /* ndims 0: it has no such argument, or one that struct bxi_layout cannot describe. */
    struct bxi_layout (*layout_of)(const struct bxi_recipe *recipe, enum bxi_arg arg);
    /* Of BXI_ARG_WORKSPACE or BXI_ARG_SCRATCH; 0: not needed. */
    size_t (*bytes_of)(const struct bxi_recipe *recipe, enum bxi_arg arg);
    int (*make_op)(struct bxi_dnn *dnn, const struct bxi_recipe *recipe, struct bxi_op **op);
    int (*add_arg)(struct bxi_op *op, enum bxi_arg arg, const struct bxi_memory *memory);
    int (*run)(struct bxi_dnn *dnn, const struct bxi_op *op);
    int (*wait)(struct bxi_dnn *dnn);   /* until all that was run is done */
};

extern const struct bxi_dnn_api bxi_onednn;

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The operations of oneDNN that a plan (cpu.h) needs, in types of our own. Only onednn.c includes that library's
 * header: its calls changed from 2.x to 3.x.
 *
 *     bxi_onednn.describe(dnn, &(struct bxi_spec){ .op = BXI_OP_CONV, ... }, &recipe);
 *     src = bxi_onednn.layout_of(recipe, BXI_ARG_SRC);        the layout that it prefers
 *     bxi_onednn.make_op(dnn, recipe, &op);
 *     bxi_onednn.add_arg(op, BXI_ARG_SRC, memory);            and so on
 *     bxi_onednn.run(dnn, op);
 *
 * All objects belong to the `dnn` that they were made with; close destroys them with it. Calls return 0 or a negative
 * code, without a sentence: the plan writes one, because it knows the operation. Run by the thread that uses the net.
 */
#ifndef BXI_NN_DNN_H
#define BXI_NN_DNN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BXI_DIMS_MAX = 4, BXI_INNER_MAX = 4, BXI_ARGS_MAX = 12 };

struct bx_sgemm;

/*
 * The layout of an array of floats.
 *  1. Element (i0, i1, ...) is at the sum over the dimensions of i / blocks * stride, plus its place in the inner
 *     blocks. `blocks` is the product of a dimension's inner blocks. The inner blocks are contiguous; the last one
 *     varies fastest.
 *  2. The blocks of a dimension divide its padded size. The padding holds zeros.
 *  3. ndims 0: no array. any: only the dims count, and oneDNN chooses the rest.
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
    BXI_OP_AVERAGE_POOL,            /* the mean without the padding */
    BXI_OP_SOFTMAX,                 /* over dimension 1 */
};

enum bxi_pass {
    BXI_PASS_FORWARD,               /* in training */
    BXI_PASS_PREDICT,
    BXI_PASS_BACKWARD,              /* all gradients: operations without weights, and batch normalisation */
    BXI_PASS_BACKWARD_WEIGHTS,
    BXI_PASS_BACKWARD_DATA,
};

/* An operation to describe. A gradient has the layout of the array that it is the gradient of. */
struct bxi_spec {
    enum bxi_op_kind op;
    enum bxi_pass pass;
    const struct bxi_recipe *forward;   /* of a backward pass: its forward pass */
    struct bxi_layout src, weight, bias, dst;
    int kernel[2], stride, padding;     /* of a pool; a convolution's kernel is that of its weight */
    float epsilon;                      /* this and the next two: of a batch normalisation */
    bool relu;
    bool given_statistics;              /* mean and variance are read, not computed */
};

enum bxi_arg {
    BXI_ARG_SRC, BXI_ARG_DST, BXI_ARG_WEIGHTS, BXI_ARG_BIAS, BXI_ARG_SCALE, BXI_ARG_SHIFT, BXI_ARG_MEAN,
    BXI_ARG_VARIANCE, BXI_ARG_WORKSPACE, BXI_ARG_SCRATCH, BXI_ARG_DIFF_SRC, BXI_ARG_DIFF_DST,
    BXI_ARG_DIFF_WEIGHTS, BXI_ARG_DIFF_BIAS, BXI_ARG_DIFF_SCALE, BXI_ARG_DIFF_SHIFT,
};

struct bxi_dnn;                     /* an engine, and all objects made with it */
struct bxi_memory;                  /* a layout at an address */
struct bxi_recipe;                  /* an implementation of an operation, and its layouts */
struct bxi_op;                      /* an operation that can be run, and its arguments */

struct bxi_dnn_api {
    const char *(*version)(void);
    int (*check)(void);             /* -ENOTSUP, after bx_fail: this oneDNN cannot be used */
    void (*use_threads)(int threads);   /* for what the calling thread computes from now on */
    /* Calls part once for each index below count, in parallel, on the threads that oneDNN computes with. */
    void (*in_parallel)(void (*part)(const void *data, int index, int count), const void *data);
    int (*open)(struct bxi_dnn **dnn);
    void (*close)(struct bxi_dnn *dnn);

    /* data NULL: bind sets the address later. Of workspace and scratch only the size counts. */
    int (*make_memory)(struct bxi_dnn *dnn, const struct bxi_layout *layout, void *data, struct bxi_memory **memory);
    int (*bind)(struct bxi_memory *memory, void *data);

    /* -ENOTSUP: there is no implementation for these layouts. */
    int (*describe)(struct bxi_dnn *dnn, const struct bxi_spec *spec, struct bxi_recipe **recipe);
    /* ndims 0: it has no such argument, or struct bxi_layout cannot describe it. */
    struct bxi_layout (*layout_of)(const struct bxi_recipe *recipe, enum bxi_arg arg);
    /* Of BXI_ARG_WORKSPACE or BXI_ARG_SCRATCH; 0: not needed. */
    size_t (*bytes_of)(const struct bxi_recipe *recipe, enum bxi_arg arg);
    int (*make_op)(struct bxi_dnn *dnn, const struct bxi_recipe *recipe, struct bxi_op **op);
    int (*add_arg)(struct bxi_op *op, enum bxi_arg arg, const struct bxi_memory *memory);
    int (*run)(struct bxi_dnn *dnn, const struct bxi_op *op);
    int (*wait)(struct bxi_dnn *dnn);   /* until all operations that were run are done */

    int (*sgemm)(const struct bx_sgemm *product);       /* all sizes at least 1 */
};

extern const struct bxi_dnn_api bxi_onednn;

#endif

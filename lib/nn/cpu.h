/* SPDX-License-Identifier: MIT */
/*
 * Shared by cpu.c, which is the backend and runs programs, cpu_ops.c, which plans each kind of operation,
 * cpu_fold.c, which plans convolutions over few pixels, cpu_plan.c, of whose buffers, tensors, steps and
 * gradients a plan is made, and cpu_loops.c, what is computed by loops of our own. The rest is computed
 * by oneDNN, through the table of dnn.h.
 *
 * bx_net_finish plans: it walks the list of operations forward, then backward, and writes two programs, lists
 * of steps whose operations, memories and buffers are made once. Computing is then to walk a program;
 * nothing is allocated and nothing is decided. Layouts are what the time goes into: each convolution is
 * asked what it likes best (format any), its neighbours take what it gives, and a reorder is planned
 * only where two do not agree. A framework that keeps plain N C H W between layers reorders at each.
 *
 * Tensors. A value in a plan is a layout and a memory on a buffer. Buffers are counted while the
 * programs are planned: one that nobody still to be planned will read is given to the next who needs one
 * of its size, so gradients live in a few buffers that stay in the caches. This is safe because the steps
 * run in the order in which they were planned. What backward reads of forward is simply not released.
 *
 * Gradients. Each node collects the gradients that its consumers give it, at most two at a time. They
 * are added, and masked where the node ended with a ReLU, in one pass, in place where the buffer has no
 * other reader. An addition hands one buffer to both its inputs.
 *
 * Errors while planning are kept in the plan, the first one; what follows a failure does nothing.
 */
#ifndef BXI_NN_CPU_H
#define BXI_NN_CPU_H

#include "dnn.h"
#include "nn.h"

enum bxi_step_kind {
    BXI_STEP_OP,
    BXI_STEP_SUM,                   /* to = a + b */
    BXI_STEP_RELU_SUM,              /* to = max(0, a + b) */
    BXI_STEP_MASKED_SUM,            /* to = a + b where the mask is above 0, else 0 */
    BXI_STEP_GATHER,                /* cpu_fold.c; count is the block of channels */
    BXI_STEP_SCATTER,
    BXI_STEP_STATISTICS,            /* mean and variance of the batch, and the running ones */
};

struct bxi_step {
    enum bxi_step_kind kind;
    int node;
    struct bxi_op *op;
    float *to;
    const float *a, *b, *mask;  /* b: NULL for none, but in BXI_STEP_SUM */
    size_t count;
};

struct bxi_program {
    struct bxi_step *steps;
    size_t count, capacity;
};

/* Memory that buffers are cut from; this lies at its start. */
struct bxi_chunk {
    struct bxi_chunk *next;
    size_t bytes, used;
};

struct bxi_buffer {
    void *data;
    size_t bytes;
    int readers;                /* that are still to be planned; 0: free to be taken */
};

struct bxi_tensor {
    struct bxi_layout layout;
    struct bxi_memory *memory;  /* NULL: no tensor */
    float *data;                /* NULL: the caller's, bound at each call */
    int buffer;                 /* -1: none of ours */
};

/* What the plan keeps for a node. */
struct bxi_work {
    struct bxi_tensor out;
    struct bxi_tensor src;          /* what forward read, reordered if it had to be */
    struct bxi_tensor parts[2];     /* gradients of `out` so far */
    int part_count;
    struct bxi_recipe *forward;
    struct bxi_recipe *backward_weights, *backward_data;    /* of a folded convolution */
    int block;                  /* its block of channels; 0: not folded */
    struct bxi_tensor weight, bias;
    struct bxi_tensor workspace, mean, var;
    size_t forward_step;        /* where it computes, for predict */
};

struct bxi_plan {
    struct bx_net *net;
    struct bxi_dnn *dnn;
    struct bxi_work *work;          /* one a node */
    struct bxi_program load, forward, backward, predict;
    struct bxi_chunk *chunks;
    struct bxi_buffer *buffers;
    size_t buffer_count, buffer_capacity;
    struct bxi_memory **params, **grads;    /* the caller's arrays, one each a parameter */
    struct bxi_memory *input, *output, *output_grad;
    struct bxi_memory *scratch;      /* one for all; its size is in scratch_bytes */
    size_t scratch_bytes;
    struct bxi_tensor input_grad;
    int node;                   /* that is being planned, for the sentence of a failure */
    int error;
};

/* Vectors of the compiler's, so that a result may overwrite an operand: of a plain loop it could not know that
 * they are the same array or none, and would take one element at a time. Not wider than every processor of
 * a kind has, or the compiler would compare element by element. Buffers begin and end on whole ones. */
enum { BXI_VEC_FLOATS = 4 };
typedef float bxi_vec __attribute__((vector_size(BXI_VEC_FLOATS * sizeof(float))));
typedef int32_t bxi_vec_bits __attribute__((vector_size(BXI_VEC_FLOATS * sizeof(float))));

/* ---- cpu_plan.c ------------------------------------------------------------------------------------ */

/* Keeps the first failure with a sentence; true if all is well so far. */
bool bxi_nn_ok(struct bxi_plan *plan, int code, const char *what);

/* Layouts: row-major; channels (dimension 1) in blocks, row-major otherwise, if block is not 1; whichever is liked. */
struct bxi_layout bxi_layout_plain(int ndims, const int64_t *dims);
struct bxi_layout bxi_layout_blocked(const int64_t dims[4], int block);
struct bxi_layout bxi_layout_any(int ndims, const int64_t *dims);
struct bxi_layout bxi_layout_vector(int64_t count);
/* The same three of the shape of a node's output. */
struct bxi_layout bxi_nn_plain_out(const struct bxi_node *node);
struct bxi_layout bxi_nn_blocked_out(const struct bxi_node *node, int block);
struct bxi_layout bxi_nn_any_out(const struct bxi_node *node);
size_t bxi_layout_bytes(const struct bxi_layout *layout);
bool bxi_layout_is_same(const struct bxi_layout *a, const struct bxi_layout *b);
/* The floats of a channel block that lie together; 0 if channels are not blocked, or not just they. */
int bxi_layout_block(const struct bxi_layout *layout);

/* Zeros that live as long as the plan; NULL when there is no memory. */
void *bxi_nn_aligned_zeros(struct bxi_plan *plan, size_t bytes);
/* The number of a new buffer with one reader; -1 after a failure. */
int bxi_nn_make_buffer(struct bxi_plan *plan, size_t bytes);
/* One more, or one less, that is still to read it. */
void bxi_nn_retain(struct bxi_plan *plan, const struct bxi_tensor *tensor);
void bxi_nn_release(struct bxi_plan *plan, const struct bxi_tensor *tensor);
bool bxi_nn_is_only_reader(const struct bxi_plan *plan, const struct bxi_tensor *tensor);

/* data NULL: bound later. NULL after a failure. */
struct bxi_memory *bxi_nn_make_memory(struct bxi_plan *plan, const struct bxi_layout *layout, void *data);
/* On the caller's array, which is bound at each call. */
struct bxi_tensor bxi_nn_callers_tensor(struct bxi_plan *plan, const struct bxi_layout *layout);
/* On a buffer that there is; its count of readers stays. */
struct bxi_tensor bxi_nn_tensor_on(struct bxi_plan *plan, const struct bxi_layout *layout, int buffer);
/* On a buffer of its own, with one reader: the caller, who releases it when its last reader is planned. */
struct bxi_tensor bxi_nn_new_tensor(struct bxi_plan *plan, const struct bxi_layout *layout);
/* What a forward pass keeps for its backward pass, in whatever form; no tensor if it keeps nothing. */
struct bxi_tensor bxi_nn_new_workspace(struct bxi_plan *plan, const struct bxi_recipe *recipe);

struct bxi_step *bxi_nn_add_step(struct bxi_plan *plan, struct bxi_program *program, enum bxi_step_kind kind);
/* The recipe of what `spec` asks for; NULL after a failure. */
struct bxi_recipe *bxi_nn_describe(struct bxi_plan *plan, const struct bxi_spec *spec, const char *what);
/* A step that computes what `recipe` describes; its arguments are still to be added. NULL after a failure. */
struct bxi_step *bxi_nn_add_op(struct bxi_plan *plan, struct bxi_program *program, const struct bxi_recipe *recipe);
/* Neither a step nor a tensor need be there. */
void bxi_nn_add_arg(struct bxi_plan *plan, struct bxi_step *step, enum bxi_arg arg, const struct bxi_tensor *tensor);
/* As `recipe` likes it. */
struct bxi_layout bxi_nn_liked(struct bxi_plan *plan, const struct bxi_recipe *recipe, enum bxi_arg arg);
void bxi_nn_add_reorder(struct bxi_plan *plan, struct bxi_program *program, const struct bxi_tensor *from,
                        const struct bxi_tensor *to);
/* `from` in another layout, reordered if need be; the caller releases it. */
struct bxi_tensor bxi_nn_in_layout(struct bxi_plan *plan, struct bxi_program *program, const struct bxi_tensor *from,
                                   const struct bxi_layout *layout);

/* The caller's layout of a weight: O x I x KH x KW, row-major; of a linear one KH and KW are the input's. */
struct bxi_layout bxi_nn_plain_weight(const struct bxi_plan *plan, const struct bxi_node *node);
/* The weight in the layout given, a parameter of one value a channel, and the bias (no tensor where there is none);
 * set_params fills them. */
struct bxi_tensor bxi_nn_load_weight(struct bxi_plan *plan, const struct bxi_node *node,
                                     const struct bxi_layout *layout);
struct bxi_tensor bxi_nn_load_vector(struct bxi_plan *plan, const struct bxi_node *node, int index);
struct bxi_tensor bxi_nn_load_bias(struct bxi_plan *plan, const struct bxi_node *node);
/* The caller's array for the gradient of the weight or of the bias (no tensor where there is none). */
struct bxi_tensor bxi_nn_callers_weight(struct bxi_plan *plan, const struct bxi_node *node);
struct bxi_tensor bxi_nn_callers_bias(struct bxi_plan *plan, const struct bxi_node *node);

/* One more part of the gradient of `node`, which takes over the caller's reading of it. */
void bxi_nn_give_grad(struct bxi_plan *plan, int node, const struct bxi_tensor *grad);
/* The gradient of a node's output, or (masked) of what went into its ReLU; the caller releases it. */
struct bxi_tensor bxi_nn_take_grad(struct bxi_plan *plan, int node, bool masked);

/* ---- cpu_loops.c ----------------------------------------------------------------------------------- */

/* From first to before end. */
struct bxi_range {
    size_t first, end;
};

/* What the thread `index` of `parts` is to do of `count`. */
struct bxi_range bxi_nn_share(size_t count, int index, int parts);
void bxi_nn_sum(const struct bxi_step *step);       /* BXI_STEP_SUM and the two after it */
/* Whether it can take the statistics of such a tensor as it lies. */
bool bxi_nn_has_statistics(const struct bxi_layout *layout);
/* Of work->src, into work->mean and work->var, and into the node's running ones. */
void bxi_nn_batch_statistics(const struct bxi_node *node, const struct bxi_work *work);

/* ---- cpu_fold.c ------------------------------------------------------------------------------------ */

/* Plans a convolution folded, and sets work->block; false if it had better not be, or cannot be. */
bool bxi_nn_forward_folded(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work);
void bxi_nn_backward_folded(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work);
/* A tensor of the shape of `node`'s output, for an operation that does not care which image a pixel is of:
 * the same bytes flat, if it is folded. */
struct bxi_tensor bxi_nn_flat(struct bxi_plan *plan, const struct bxi_node *node, const struct bxi_tensor *tensor);
/* For one that does: in a layout of separate images; the caller releases it. */
struct bxi_tensor bxi_nn_unfolded(struct bxi_plan *plan, struct bxi_program *program, const struct bxi_node *node,
                                  const struct bxi_tensor *tensor);
void bxi_nn_move(const struct bx_net *net, const struct bxi_step *step);    /* BXI_STEP_GATHER and _SCATTER */

/* ---- cpu_ops.c ------------------------------------------------------------------------------------- */

void bxi_nn_plan_forward(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work);
void bxi_nn_plan_backward(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work);
/* The forward step of a batch normalisation with the statistics in `mean` and `var`, for the backward pass to
 * come (BXI_PASS_FORWARD) or for none. */
struct bxi_step *bxi_nn_add_norm(struct bxi_plan *plan, struct bxi_program *program, enum bxi_pass pass,
                                 const struct bxi_tensor *mean, const struct bxi_tensor *var);

#endif

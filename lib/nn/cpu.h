/* SPDX-License-Identifier: MIT */
/*
 * The private header of the CPU backend: cpu.c is the backend and runs programs; cpu_ops.c plans each kind of
 * operation; cpu_fold.c plans convolutions over few pixels; cpu_loops.c has the computations that are our own loops;
 * cpu_plan.c has the parts of a plan. oneDNN does the other computations, through the table of dnn.h.
 *
 * bx_net_finish plans: it goes through the list of operations forward, then backward, and writes two programs, which
 * are lists of steps. Operations, memories and buffers are made once, then. A pass runs a program; it allocates nothing
 * and decides nothing.
 *
 * Layouts determine the speed. Each convolution is asked for the layouts it prefers (format any), its neighbours accept
 * them, and a reorder is planned only where two neighbours differ. A framework that keeps plain N C H W between layers
 * reorders at each.
 *
 * Tensors. A tensor of a plan is a layout and a memory on a buffer. While the programs are planned, each buffer counts
 * the readers that are still to be planned; a buffer without readers is reused for the next tensor of its size. So
 * gradients share a few buffers, which stay in the caches. This is safe because the steps run in the order in which
 * they were planned. Tensors that the backward pass reads of the forward pass are not released.
 *
 * Gradients. Each node collects the gradients from its consumers, at most two at a time. One pass adds them, and masks
 * them if the node ended with a ReLU, in place if the buffer has no other reader. An addition gives one buffer to both
 * its inputs.
 *
 * Errors. The plan keeps the first error of planning; functions called after it do nothing.
 */
#ifndef BXI_NN_CPU_H
#define BXI_NN_CPU_H

#include "dnn.h"
#include "nn.h"

enum bxi_step_kind {
    BXI_STEP_OP,
    BXI_STEP_SUM,                   /* to = a + b */
    BXI_STEP_RELU_SUM,              /* to = max(0, a + b) */
    BXI_STEP_MASKED_SUM,            /* to = mask <= 0 ? 0 : a + b */
    BXI_STEP_GATHER,                /* cpu_fold.c; count is the block of channels */
    BXI_STEP_SCATTER,
    BXI_STEP_STATISTICS,            /* mean and variance of the batch; updates the running ones */
};

struct bxi_step {
    enum bxi_step_kind kind;
    int node;
    struct bxi_op *op;
    float *to;
    const float *a, *b, *mask;  /* b may be NULL, except in BXI_STEP_SUM */
    size_t count;
};

struct bxi_program {
    struct bxi_step *steps;
    size_t count, capacity;
};

/* The header of a block of memory that buffers are cut from. */
struct bxi_chunk {
    struct bxi_chunk *next;
    size_t bytes, used;
};

struct bxi_buffer {
    void *data;
    size_t bytes;
    int readers;                /* still to be planned; 0: the buffer can be reused */
};

struct bxi_tensor {
    struct bxi_layout layout;
    struct bxi_memory *memory;  /* NULL: no tensor */
    float *data;                /* NULL: the caller's array, bound at each call */
    int buffer;                 /* -1: not on a buffer of the plan */
};

/* The plan of one node. */
struct bxi_work {
    struct bxi_tensor out;
    struct bxi_tensor src;          /* the input of the forward pass, after a reorder if one was needed */
    struct bxi_tensor parts[2];     /* gradients of `out` so far */
    int part_count;
    struct bxi_recipe *forward;
    struct bxi_recipe *backward_weights, *backward_data;    /* of a folded convolution */
    int block;                  /* channels in a block of a folded convolution; 0: not folded */
    struct bxi_tensor weight, bias;
    struct bxi_tensor workspace, mean, var;
    size_t forward_step;        /* index of its step in `forward`, for predict */
};

struct bxi_plan {
    struct bx_net *net;
    struct bxi_dnn *dnn;
    struct bxi_work *work;          /* one a node */
    struct bxi_program load, forward, backward, predict;
    struct bxi_chunk *chunks;
    struct bxi_buffer *buffers;
    size_t buffer_count, buffer_capacity;
    const struct bxi_plan *owner;   /* of the net whose parameters this one uses; NULL: it loads its own */
    struct bxi_tensor *loaded;      /* the parameters in the layouts of the operations, in the order of planning */
    size_t loaded_count, loaded_capacity;
    struct bxi_memory **params, **grads;    /* the caller's arrays, one a parameter */
    struct bxi_memory *input, *output, *output_grad;
    struct bxi_memory *scratch;      /* shared by all operations; scratch_bytes long */
    size_t scratch_bytes;
    struct bxi_tensor input_grad;
    int node;                   /* being planned; named in the sentence of a failure */
    int error;
};

/* The compiler's vectors, so that a result may overwrite an operand: in a plain loop the compiler could not know that
 * the arrays are equal or disjoint, and would compute one element at a time. Their width is one that every processor of
 * the architecture has; of wider ones the compiler would compare element by element. Buffers begin and end on whole
 * vectors. */
enum { BXI_VEC_FLOATS = 4 };
typedef float bxi_vec __attribute__((vector_size(BXI_VEC_FLOATS * sizeof(float))));
typedef int32_t bxi_vec_bits __attribute__((vector_size(BXI_VEC_FLOATS * sizeof(float))));

/* ---- cpu_plan.c ------------------------------------------------------------------------------------ */

/* Keeps the first failure, with a sentence that names `what`. True if the plan has no failure. */
bool bxi_nn_ok(struct bxi_plan *plan, int code, const char *what);

/* Layouts: row-major; with channels (dimension 1) in blocks, else row-major (block 1: row-major); any. */
struct bxi_layout bxi_layout_plain(int ndims, const int64_t *dims);
struct bxi_layout bxi_layout_blocked(const int64_t dims[4], int block);
struct bxi_layout bxi_layout_any(int ndims, const int64_t *dims);
struct bxi_layout bxi_layout_vector(int64_t count);
/* The same three, with the shape of a node's output. */
struct bxi_layout bxi_nn_plain_out(const struct bxi_node *node);
struct bxi_layout bxi_nn_blocked_out(const struct bxi_node *node, int block);
struct bxi_layout bxi_nn_any_out(const struct bxi_node *node);
size_t bxi_layout_bytes(const struct bxi_layout *layout);
bool bxi_layout_is_same(const struct bxi_layout *a, const struct bxi_layout *b);
/* The channels in a block; 0 if channels are not blocked, or other dimensions are too. */
int bxi_layout_block(const struct bxi_layout *layout);

/* Zeros that live as long as the plan; NULL: no memory. */
void *bxi_nn_aligned_zeros(struct bxi_plan *plan, size_t bytes);
/* The number of a new buffer with one reader; -1 after a failure. */
int bxi_nn_make_buffer(struct bxi_plan *plan, size_t bytes);
/* One reader more or less. */
void bxi_nn_retain(struct bxi_plan *plan, const struct bxi_tensor *tensor);
void bxi_nn_release(struct bxi_plan *plan, const struct bxi_tensor *tensor);
bool bxi_nn_is_only_reader(const struct bxi_plan *plan, const struct bxi_tensor *tensor);

/* data NULL: it is bound later. Returns NULL after a failure. */
struct bxi_memory *bxi_nn_make_memory(struct bxi_plan *plan, const struct bxi_layout *layout, void *data);
/* A tensor on the caller's array, which is bound at each call. */
struct bxi_tensor bxi_nn_callers_tensor(struct bxi_plan *plan, const struct bxi_layout *layout);
/* A tensor on an existing buffer; the count of readers stays. */
struct bxi_tensor bxi_nn_tensor_on(struct bxi_plan *plan, const struct bxi_layout *layout, int buffer);
/* A tensor on a buffer of its own with one reader, the caller, which releases it once its last reader is planned. */
struct bxi_tensor bxi_nn_new_tensor(struct bxi_plan *plan, const struct bxi_layout *layout);
/* The workspace of a forward pass, which its backward pass reads; no tensor if there is none. */
struct bxi_tensor bxi_nn_new_workspace(struct bxi_plan *plan, const struct bxi_recipe *recipe);

struct bxi_step *bxi_nn_add_step(struct bxi_plan *plan, struct bxi_program *program, enum bxi_step_kind kind);
/* The recipe for `spec`; NULL after a failure. */
struct bxi_recipe *bxi_nn_describe(struct bxi_plan *plan, const struct bxi_spec *spec, const char *what);
/* A step that runs `recipe`; the caller adds its arguments. NULL after a failure. */
struct bxi_step *bxi_nn_add_op(struct bxi_plan *plan, struct bxi_program *program, const struct bxi_recipe *recipe);
/* Does nothing if step is NULL or there is no tensor. */
void bxi_nn_add_arg(struct bxi_plan *plan, struct bxi_step *step, enum bxi_arg arg, const struct bxi_tensor *tensor);
/* The layout that `recipe` prefers for an argument. */
struct bxi_layout bxi_nn_preferred(struct bxi_plan *plan, const struct bxi_recipe *recipe, enum bxi_arg arg);
void bxi_nn_add_reorder(struct bxi_plan *plan, struct bxi_program *program, const struct bxi_tensor *from,
                        const struct bxi_tensor *to);
/* `from` in another layout, reordered if they differ; the caller releases it. */
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

/* Adds a part to the gradient of `node`; takes over the caller's reader of it. */
void bxi_nn_give_grad(struct bxi_plan *plan, int node, const struct bxi_tensor *grad);
/* The gradient of a node's output, or (masked) of the input of its final ReLU; the caller releases it. */
struct bxi_tensor bxi_nn_take_grad(struct bxi_plan *plan, int node, bool masked);

/* ---- cpu_loops.c ----------------------------------------------------------------------------------- */

/* first .. end - 1. */
struct bxi_range {
    size_t first, end;
};

/* The share of thread `index` of `parts` in `count`. */
struct bxi_range bxi_nn_share(size_t count, int index, int parts);
void bxi_nn_sum(const struct bxi_step *step);       /* BXI_STEP_SUM and the two after it */
/* True if bxi_nn_batch_statistics can read this layout. */
bool bxi_nn_has_statistics(const struct bxi_layout *layout);
/* Computes the statistics of work->src into work->mean and work->var, and updates the node's running statistics. */
void bxi_nn_batch_statistics(const struct bxi_node *node, const struct bxi_work *work);

/* ---- cpu_fold.c ------------------------------------------------------------------------------------ */

/* Plans a convolution folded and sets work->block. False: it cannot be folded, or would not gain by it. */
bool bxi_nn_forward_folded(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work);
void bxi_nn_backward_folded(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work);
/* A tensor of the shape of `node`'s output, for an operation in which the images do not matter, only pixels: if it is
 * folded, the same bytes as one flat image. */
struct bxi_tensor bxi_nn_flat(struct bxi_plan *plan, const struct bxi_node *node, const struct bxi_tensor *tensor);
/* For an operation in which they matter: the tensor in a layout of separate images; the caller releases it. */
struct bxi_tensor bxi_nn_unfolded(struct bxi_plan *plan, struct bxi_program *program, const struct bxi_node *node,
                                  const struct bxi_tensor *tensor);
void bxi_nn_move(const struct bx_net *net, const struct bxi_step *step);    /* BXI_STEP_GATHER and _SCATTER */

/* ---- cpu_ops.c ------------------------------------------------------------------------------------- */

void bxi_nn_plan_forward(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work);
void bxi_nn_plan_backward(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_work *work);
/* The forward step of a batch normalisation with the statistics in `mean` and `var`: for training (BXI_PASS_FORWARD) or
 * without a backward pass (BXI_PASS_PREDICT). */
struct bxi_step *bxi_nn_add_norm(struct bxi_plan *plan, struct bxi_program *program, enum bxi_pass pass,
                                 const struct bxi_tensor *mean, const struct bxi_tensor *var);

#endif

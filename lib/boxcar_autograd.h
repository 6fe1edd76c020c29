/* SPDX-License-Identifier: MIT */
/*
 * boxcar_autograd.h - operations on tensors that record how to differentiate them, backward passes, and optimizers.
 * They are a library of their own, libboxcar_autograd, above boxcar.h and boxcar_nn.h.
 *
 *     struct bx_tape *tape = NULL;
 *     struct bx_grads *grads = NULL;
 *     bx_tape_create(NULL, &tape);
 *     bx_grads_create(NULL, &grads);
 *     for (...) {
 *         struct bx_var *x = bx_tape_input(tape, states);                  // N x 4
 *         struct bx_var *h = bx_var_relu(tape, bx_var_linear(tape, x, w1, b1));
 *         struct bx_var *loss = bx_var_cross_entropy(tape, bx_var_linear(tape, h, w2, b2), actions);
 *         rc = bx_backward(&loss, NULL, 1, false, grads);                  // one check for all of the above
 *         rc = bx_optim_step(adam, grads);
 *         bx_grads_clear(grads);
 *         bx_tape_clear(tape);                                             // releases x, h, loss
 *     }
 *
 * A variable is a tensor (its value) and, if an operation made it, the node that the operation recorded: what its
 * backward function needs, and edges to the nodes of its inputs. A variable without a node is a leaf: a parameter if
 * it requires a gradient, else a constant. A result requires a gradient if one of the inputs does; else no node is
 * recorded.
 *
 * Values are never written after they were made: an optimizer puts another tensor into a parameter, and a node keeps
 * the one that it used. So a backward pass has the gradients of its own forward pass, whatever optimizers do meanwhile.
 *
 * Dtypes: values are BX_F32 or BX_F64, of one dtype in an operation, in host memory. Indices and classes are plain
 * tensors of BX_I64. Any strides; results of computations are row-major, those of transpose and slice are views.
 *
 * Errors.   A function that makes a variable returns NULL on failure, after a sentence (bx_error_text). The tape keeps
 *           the first code (bx_tape_error). From then on every operation on this tape returns NULL and leaves the
 *           sentence as it is, so a chain needs one check, at its end: bx_backward fails with -EINVAL for a root that
 *           is NULL, and quotes that sentence. -EINVAL: shapes, dtypes and indices that do not fit (the sentence has
 *           the operation and the shapes); -ENOTSUP: a dtype or device that the operations do not have; -ENOMEM, and
 *           the codes of bx_tensor_create. Others are named below.
 * Lifetime. Variables are reference-counted. The tape holds one reference to each variable made with it, until
 *           bx_tape_clear or bx_tape_destroy; the caller acquires what it keeps longer. A variable keeps its node alive
 *           and a node those of its inputs. Nothing here recurses: graphs may have millions of nodes in a row.
 * Threads.  One thread at a time uses a tape or a gradient table. Variables may be used from any thread, so threads
 *           with a tape and a table each may share parameters, also while an optimizer steps. A node takes part in
 *           one backward pass at a time.
 * Blocking. No function waits for another worker, but for one whose bx_backward_fn does. They compute on the calling
 *           thread.
 * Fork.     As boxcar_nn.h says: no call before the fork of workers.
 */
#ifndef BOXCAR_AUTOGRAD_H
#define BOXCAR_AUTOGRAD_H

#include "boxcar.h"

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

struct bx_var;
struct bx_tape;
struct bx_grads;
struct bx_net;

/* ---- Variables ----------------------------------------------------------------------------------- */

/* Makes a leaf over the tensor, of which it keeps a reference. The caller owns it. -EINVAL: requires_grad, and the
 * dtype is neither BX_F32 nor BX_F64; -ENOTSUP: in device memory; -ENOMEM. */
int bx_var_create(struct bx_tensor *value, bool requires_grad, struct bx_var **var);

struct bx_var *bx_var_acquire(struct bx_var *var);      /* adds a reference; returns its argument */
void bx_var_release(struct bx_var *var);                /* drops a reference; NULL is allowed */

bool bx_var_requires_grad(const struct bx_var *var);    /* a backward pass computes its gradient */
/* The variable's tensor. The variable owns it: it is valid until the variable is released, and of a parameter until it
 * gets another value. NULL for NULL. */
struct bx_tensor *bx_var_value(const struct bx_var *var);
/* As bx_var_value, with a reference of the caller's own. For a parameter that another thread may change. */
struct bx_tensor *bx_var_acquire_value(struct bx_var *var);
/* Gives a leaf another value of the same dtype and shape, of which it keeps a reference. -EINVAL: not that dtype and
 * shape, or not a leaf. */
int bx_var_set_value(struct bx_var *var, struct bx_tensor *value);
/* Reads a value of one element, as double. NAN for NULL, for other numbers of elements, and for dtypes other than
 * BX_F32 and BX_F64. */
double bx_var_item(const struct bx_var *var);

/* ---- Tapes --------------------------------------------------------------------------------------- */

struct bx_tape_options {
    size_t struct_bytes;
    struct bx_job *job;         /* results lie in its arena, so that sending them copies nothing; NULL: on the heap */
    bool no_grad;               /* record nothing: results never require a gradient */
};

/* Makes an empty tape. options NULL: the defaults. The caller destroys it. -ENOMEM, BX_E_VERSION. */
int bx_tape_create(const struct bx_tape_options *options, struct bx_tape **tape);
/* Releases the variables made with the tape, and forgets its error. */
void bx_tape_clear(struct bx_tape *tape);
void bx_tape_destroy(struct bx_tape *tape);             /* clears it first; NULL is allowed */
int bx_tape_error(const struct bx_tape *tape);          /* the code of the first operation that failed, 0 if none */

/* A constant over the tensor, which the tape holds: what an operation takes as input. */
struct bx_var *bx_tape_input(struct bx_tape *tape, struct bx_tensor *value);
/* A constant with the value of the variable: gradients stop here. */
struct bx_var *bx_var_detach(struct bx_tape *tape, struct bx_var *a);

/* ---- Operations ---------------------------------------------------------------------------------- */

/* Sums, differences and products, element by element. Shapes broadcast as in torch: from the last dimension on, two
 * extents are equal, or one of them is 1 or missing. */
struct bx_var *bx_var_add(struct bx_tape *tape, struct bx_var *a, struct bx_var *b);
struct bx_var *bx_var_sub(struct bx_tape *tape, struct bx_var *a, struct bx_var *b);
struct bx_var *bx_var_mul(struct bx_tape *tape, struct bx_var *a, struct bx_var *b);
struct bx_var *bx_var_scale(struct bx_tape *tape, struct bx_var *a, double factor);

/* Functions of each element. */
struct bx_var *bx_var_neg(struct bx_tape *tape, struct bx_var *a);
struct bx_var *bx_var_exp(struct bx_tape *tape, struct bx_var *a);
struct bx_var *bx_var_log(struct bx_tape *tape, struct bx_var *a);
struct bx_var *bx_var_relu(struct bx_tape *tape, struct bx_var *a);
struct bx_var *bx_var_tanh(struct bx_tape *tape, struct bx_var *a);
struct bx_var *bx_var_sigmoid(struct bx_tape *tape, struct bx_var *a);

/* A matrix product: (..., K) x (K, M) is (..., M). */
struct bx_var *bx_var_matmul(struct bx_tape *tape, struct bx_var *a, struct bx_var *b);
/* A linear layer, x W^T + b as torch.nn.Linear: x (..., K), weight (M, K), bias (M) or NULL; result (..., M). */
struct bx_var *bx_var_linear(struct bx_tape *tape, struct bx_var *x, struct bx_var *weight, struct bx_var *bias);

/* A generator of random numbers: value i depends on the seed and i only. An operation that takes n values adds n to
 * drawn. */
struct bx_generator {
    uint64_t seed;
    uint64_t drawn;
};
/* Zeroes each element with probability p, 0 <= p <= 1, and multiplies the others by 1 / (1 - p). Returns a's value as
 * it is, and draws nothing, if p is 0 or not training. */
struct bx_var *bx_var_dropout(struct bx_tape *tape, struct bx_var *a, double p, bool training,
                              struct bx_generator *generator);

/* Softmax and its logarithm, over the last dimension. */
struct bx_var *bx_var_softmax(struct bx_tape *tape, struct bx_var *a);
struct bx_var *bx_var_log_softmax(struct bx_tape *tape, struct bx_var *a);
/* Elements of the last dimension: out[..., j] = a[..., index[..., j]]. index is BX_I64 and has a's shape but for the
 * last extent, which is that of the result. -EINVAL: also an index out of range. */
struct bx_var *bx_var_gather(struct bx_tape *tape, struct bx_var *a, struct bx_tensor *index);
/* Rows of a matrix (rows, D): indices of any shape, BX_I64; result (shape of the indices, D). */
struct bx_var *bx_var_embedding(struct bx_tape *tape, struct bx_var *weight, struct bx_tensor *indices);

/* Losses, each a scalar (0 dimensions). cross_entropy: logits (N, C) and BX_I64 classes (N), or (N, C, ...) and
 * (N, ...): the mean over all classes given of -log softmax, taken over dimension 1. mse: the mean of (a - b)^2, of
 * equal shapes. The mean of no elements is NAN. */
struct bx_var *bx_var_cross_entropy(struct bx_tape *tape, struct bx_var *logits, struct bx_tensor *classes);
struct bx_var *bx_var_mse(struct bx_tape *tape, struct bx_var *a, struct bx_var *b);

/* Sums and means: of all elements, a scalar; or over one dimension, which is dropped. dim < 0 counts from the end. */
struct bx_var *bx_var_sum(struct bx_tape *tape, struct bx_var *a);
struct bx_var *bx_var_mean(struct bx_tape *tape, struct bx_var *a);
struct bx_var *bx_var_sum_dim(struct bx_tape *tape, struct bx_var *a, int dim);

/* Change the shape; dim < 0 counts from the end. reshape: one extent may be -1, and follows from the others. slice:
 * elements start to end - 1 of a dimension. concat: along an existing dimension. stack: along a new one, which becomes
 * `dim`. */
struct bx_var *bx_var_reshape(struct bx_tape *tape, struct bx_var *a, int ndim, const int64_t *shape);
struct bx_var *bx_var_transpose(struct bx_tape *tape, struct bx_var *a, int dim0, int dim1);
struct bx_var *bx_var_slice(struct bx_tape *tape, struct bx_var *a, int dim, int64_t start, int64_t end);
struct bx_var *bx_var_concat(struct bx_tape *tape, struct bx_var *const *vars, size_t count, int dim);
struct bx_var *bx_var_stack(struct bx_tape *tape, struct bx_var *const *vars, size_t count, int dim);

/* ---- LSTM ---------------------------------------------------------------------------------------- */

/* torch.nn.LSTM, gates in the order i, f, g, o. */
struct bx_lstm {
    size_t struct_bytes;
    int layers;
    int hidden;                         /* H */
    struct bx_var *const *weights;      /* of each layer w_ih (4H x I), w_hh (4H x H), b_ih (4H), b_hh (4H); I is that
                                         * of the input for layer 0, else H. Both biases of a layer may be NULL */
    struct bx_var *h0;                  /* this and the next: layers x batch x H; NULL: zeros */
    struct bx_var *c0;
    double dropout;                     /* of the output of each layer but the last; 0 to 1 */
    bool training;                      /* else there is no dropout */
    struct bx_generator *generator;     /* may be NULL without dropout */
};
struct bx_lstm_result {
    struct bx_var *output;              /* seq x batch x H: of the last layer */
    struct bx_var *h;                   /* this and the next: layers x batch x H, after the last step */
    struct bx_var *c;
};
/* An LSTM. input: seq x batch x I, with seq >= 1. One node, however long the sequence is. Returns 0, or a code that the
 * tape keeps too; then result has NULLs. */
int bx_var_lstm(struct bx_tape *tape, struct bx_var *input, const struct bx_lstm *lstm, struct bx_lstm_result *result);

/* ---- Operations of the program ------------------------------------------------------------------- */

/* Computes the gradients of a node's inputs from those of its outputs. output_grads[i] is row-major, or NULL: nothing
 * that the roots depend on used output i; never all are NULL. For each input with needed[i] it may set input_grads[i]
 * to a tensor of the input's dtype and shape, and give its reference away; NULL means that there is no gradient. The
 * tensor may be one of output_grads, acquired. It must not write to output_grads. Returns 0 or a code, which fails the
 * pass. It runs on the thread of bx_backward and may use another tape. */
struct bx_node_grads {
    struct bx_tensor *const *outputs;
    size_t output_count;
    const bool *needed;
    struct bx_tensor **inputs;
    size_t input_count;
};
typedef int (*bx_backward_fn)(void *context, const struct bx_node_grads *grads);

struct bx_custom {
    size_t struct_bytes;
    const char *name;                   /* for sentences; not copied */
    struct bx_var *const *inputs;       /* may be none */
    size_t input_count;
    struct bx_tensor *const *values;    /* of the outputs; a reference is kept of each */
    size_t output_count;                /* at least 1 */
    bool requires_grad;                 /* also if no input requires a gradient: the beginning of a graph */
    bx_backward_fn backward;
    void *context;
    bx_free_fn free_fn;                 /* called once with context: when the pass has run the node and does not retain
                                         * it, when the node is freed, or at once if none is recorded. May be NULL; not
                                         * called if bx_var_custom fails */
};
/* Records a node with the program's own backward function. outputs gets output_count variables that the tape holds.
 * Returns 0, or a code that the tape keeps too; then outputs has NULLs. */
int bx_var_custom(struct bx_tape *tape, const struct bx_custom *custom, struct bx_var **outputs);

/* A net of boxcar_nn.h as one node, on the CPU. The net must be finished; for the gradient of the input it was created
 * with options.input_grad. params: one parameter (leaf, BX_F32) for each of the net's, in its order; a reference is
 * kept of each. The net is used by this object alone until it is destroyed, and then still the caller's. -EINVAL,
 * -ENOMEM. */
struct bx_net_op;
int bx_net_op_create(struct bx_net *net, struct bx_var *const *params, struct bx_net_op **op);
/* As bx_net_op_create, for a net that shares the parameters of first's net (bx_net_share_params): another forward pass
 * of one version of the model. `first` sets the parameters for both, once for each version. It is kept until this
 * object is freed. One thread at a time uses any of them. -EINVAL, -ENOMEM. */
int bx_net_op_share(struct bx_net *net, struct bx_net_op *first, struct bx_net_op **op);
void bx_net_op_destroy(struct bx_net_op *op);           /* nodes that still use it keep it; NULL is allowed */
/* A forward pass in training mode. input: as many elements as the net's input, BX_F32, the batch first; result (batch,
 * features). A net keeps one forward pass only, so the backward pass over an earlier one fails with BX_E_STATE. */
struct bx_var *bx_var_net(struct bx_tape *tape, struct bx_net_op *op, struct bx_var *input);

/* ---- Backward passes ----------------------------------------------------------------------------- */

/* Makes an empty gradient table: a tensor for each parameter that a backward pass reached. Gradients lie in the arena
 * of the job, NULL: on the heap. The caller destroys it. */
int bx_grads_create(struct bx_job *job, struct bx_grads **grads);
void bx_grads_destroy(struct bx_grads *grads);          /* NULL is allowed */
void bx_grads_clear(struct bx_grads *grads);            /* releases all gradients: the next pass begins at none */
size_t bx_grads_count(const struct bx_grads *grads);
/* The gradient of a parameter, row-major. The table owns it and its memory: the program may write to it, until the
 * next pass or clear. NULL: no pass reached the parameter. */
struct bx_tensor *bx_grads_get(const struct bx_grads *grads, const struct bx_var *var);
/* Entry `index` of bx_grads_count, in the order in which parameters were first reached. Both are the table's; var may
 * be NULL. NULL past the last. */
struct bx_tensor *bx_grads_at(const struct bx_grads *grads, size_t index, struct bx_var **var);
/* Adds a gradient to the parameter's entry, as a pass would. -EINVAL: another dtype or shape; -ENOMEM. */
int bx_grads_add(struct bx_grads *grads, struct bx_var *var, struct bx_tensor *grad);

/* Computes gradients of the roots and adds them to the table. root_grads[i] is the gradient of roots[i]; NULL (or
 * root_grads NULL) stands for 1, of a root of one element. A root may occur twice.
 * First it counts, for each node reachable from the roots, the edges that lead to it; then a node runs when each of
 * them has brought a gradient or none. Parameters that were not reached get no entry.
 * After its run a node releases what it saved, unless retain is set. If the pass fails, the table may have got a part
 * of the gradients, and nodes that ran are spent.
 * -EINVAL: no roots, a root that is NULL or requires no gradient, more than one element and no gradient, a gradient of
 * another dtype or shape. BX_E_STATE: a node was run before without retain, or takes part in another pass now. -ENOMEM,
 * and what a bx_backward_fn returns. */
int bx_backward(struct bx_var *const *roots, struct bx_tensor *const *root_grads, size_t count, bool retain,
                struct bx_grads *grads);

/* ---- Optimizers ---------------------------------------------------------------------------------- */

/* torch.optim.SGD: g += weight_decay * p; v = momentum * v + g (v = g at the first step); p -= lr * v. */
struct bx_optim_sgd {
    size_t struct_bytes;
    double lr;
    double momentum;
    double weight_decay;
};
/* torch.optim.Adam: g += weight_decay * p; m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
 * p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps), t counted for each parameter. Fields that are 0,
 * but for weight_decay, have torch's defaults. */
struct bx_optim_adam {
    size_t struct_bytes;
    double lr;                          /* 0: 1e-3 */
    double beta1;                       /* 0: 0.9 */
    double beta2;                       /* 0: 0.999 */
    double eps;                         /* 0: 1e-8 */
    double weight_decay;
};
struct bx_optim;

/* Make an optimizer of the parameters, of which it keeps references. The caller destroys it. -EINVAL: not a leaf that
 * requires a gradient, a parameter twice, a rate below 0 or not finite; -ENOMEM, BX_E_VERSION. */
int bx_optim_sgd_create(const struct bx_optim_sgd *options, struct bx_var *const *params, size_t count,
                        struct bx_optim **optim);
int bx_optim_adam_create(const struct bx_optim_adam *options, struct bx_var *const *params, size_t count,
                         struct bx_optim **optim);
void bx_optim_destroy(struct bx_optim *optim);          /* NULL is allowed */

/* One step of the optimizer. Parameters without a gradient in the table keep value and state. Each other parameter gets
 * a new tensor, in the arena of `job` or on the heap if job is NULL. Steps from several threads run one after the
 * other. If it fails, the parameters before the one that failed have made their step. -ENOMEM, and the codes of
 * bx_tensor_create. */
int bx_optim_step(struct bx_optim *optim, struct bx_job *job, const struct bx_grads *grads);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif

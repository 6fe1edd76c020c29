/* SPDX-License-Identifier: MIT */
/*
 * The private header of libboxcar_autograd. The room's words:
 *
 *     node      what one operation recorded: its variables (outputs), edges to its inputs, tensors saved for the
 *               backward pass; one block of memory
 *     leaf      a node without an operation, with one variable: a parameter or a constant
 *     edge      from a node to the variable that it had as input; only to variables that require a gradient
 *     pass      one backward pass: it claims nodes, counts edges, delivers gradients
 *     fresh     of a gradient: nobody else holds its memory, so it may be added to in place
 *
 * The files build on each other in this order; none calls one further down:
 *
 *     loops_f32.c, loops_f64.c   loops over arrays (loops.h), each from the text loops_text.h
 *     tensor.c                   shapes, zeros, row-major copies
 *     walk.c                     broadcasting: two shapes in one loop
 *     var.c                      variables, nodes, references
 *     tape.c                     tapes; what each operation does first and last
 *     matmul.c                   matrix products; chooses oneDNN or loops
 *     grads.c                    gradient tables
 *     pass.c                     backward passes
 *     math.c, shape.c, loss.c, linear.c, lstm.c, custom.c, net.c   the operations
 *     optim.c                    optimizers
 *     dist_part.c and so on      passes and optimizers across workers (dist.h)
 *
 * References. A variable has a count of its own. It is embedded in its node's block, and all variables of a node that
 * are not released yet hold one reference to the block together with the edges that lead to it:
 *
 *  1. node->refs = outputs whose variable is not released + edges to a node that is no leaf + passes that run over it.
 *  2. An edge to a leaf is a reference to its variable, because the gradient table needs the variable.
 *  3. A variable's value is released with the variable. So a node keeps its inputs' values only if it saved them.
 *
 * For distributed passes: a receive node is a node without edges, a send node one whose output nothing uses. Both are
 * custom nodes. A pass is begun, discovers, is given gradients and runs in separate functions, so that a peer can add
 * roots between them and deliver gradients later.
 */
#ifndef BXI_AUTOGRAD_H
#define BXI_AUTOGRAD_H

#include "boxcar_autograd.h"
#include "loops.h"

#include "shm/atomic.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bxi_node;
struct bxi_pass;

/* ---- Tensors (tensor.c) ---------------------------------------------------------------------------- */

/* Of one dtype, shape and strides: what is passed around to describe a tensor to be made. */
struct bxi_like {
    enum bx_dtype dtype;
    int ndim;
    int64_t shape[BX_DIMS_MAX];
};
struct bxi_like bxi_like(const struct bx_tensor *tensor);
struct bx_tensor *bxi_tensor_make(struct bx_job *job, const struct bxi_like *like);     /* NULL after a sentence */
struct bx_tensor *bxi_tensor_zeros(struct bx_job *job, const struct bxi_like *like);
struct bx_tensor *bxi_tensor_make_like(struct bx_job *job, const struct bx_tensor *tensor);     /* NULL for NULL */
bool bxi_tensor_is_like(const struct bx_tensor *tensor, const struct bxi_like *like);
/* The tensor itself, acquired, or a row-major copy. NULL after a sentence. */
struct bx_tensor *bxi_tensor_dense(struct bx_job *job, struct bx_tensor *tensor);
/* A shape as text, "(3, 4)", in a buffer of the caller's. */
#define BXI_SHAPE_TEXT 128
const char *bxi_shape_text(char text[BXI_SHAPE_TEXT], const struct bxi_like *like);
bool bxi_is_float(enum bx_dtype dtype);
int64_t bxi_elements(const struct bxi_like *like);

/* ---- Variables and nodes (var.c) ------------------------------------------------------------------- */

/*
 * field          writer                               readers
 * refs           any thread
 * value          the maker; set_value under `lock`    of a leaf: any thread, under `lock`; else any thread
 * others         the maker, before it is published    any thread
 */
struct bx_var {
    bxi_a32 refs;
    bxi_a32 lock;               /* of a leaf's value; held for a few instructions */
    bool requires_grad;
    enum bx_dtype dtype;        /* of all values that it ever has */
    uint32_t output;            /* its index in the node */
    struct bx_tensor *value;
    struct bxi_node *node;
    struct bx_var *tape_next;   /* the tape's list */
};

/* What an operation is. backward delivers a gradient, or none, to each edge that leads somewhere. */
struct bxi_op {
    const char *name;                                           /* "linear", for sentences */
    int (*backward)(struct bxi_node *node, struct bxi_pass *pass);
    void (*drop)(struct bxi_node *node);                        /* called once: frees what `extra` holds; or NULL */
};

/* The gradient of an output, as far as the pass has it. */
struct bxi_slot {
    struct bx_tensor *grad;     /* NULL: none yet */
    bool fresh;
};

/*
 * field                            writer                                      readers
 * refs                             any thread
 * claim                            passes, by compare-and-swap                 passes
 * waiting, found_next, slots       the pass that has the claim                 that pass
 * next                             that pass; the thread that frees the node   the same
 * spent, saved, extra              the maker; the pass that has the claim      the same
 * others                           the maker, before it is published           any thread
 */
#define BXI_UNKNOWN UINT32_MAX
struct bxi_node {
    bxi_a32 refs;
    bool spent;                 /* it ran in a pass without retain: saved and extra are dropped */
    uint16_t edge_count;
    uint16_t output_count;
    uint16_t saved_count;
    uint32_t waiting;           /* edges and roots of the pass that have not delivered yet */
    uint32_t elements;          /* of inputs and outputs: how much it computes. BXI_UNKNOWN: it may take any time */
    const struct bxi_op *op;    /* NULL: a leaf */
    _Atomic(struct bxi_pass *) claim;
    struct bxi_node *found_next;        /* the pass's list of all nodes */
    struct bxi_node *next;              /* its list of ready nodes; the list of nodes to free */
    struct bx_var *vars;                /* output_count */
    struct bx_var **edges;              /* edge_count; NULL: that input requires no gradient */
    struct bxi_slot *slots;             /* output_count */
    struct bx_tensor **saved;           /* saved_count; NULLs after drop */
    void *extra;                        /* the operation's own */
};

/* Makes a node with all references at one per output. op NULL: a leaf. extra is zeroed, the rest is too. NULL after a
 * sentence. */
struct bxi_node_size {
    size_t edges, outputs, saved, extra_bytes;
};
struct bxi_node *bxi_node_create(const struct bxi_op *op, const struct bxi_node_size *size);
void bxi_node_acquire(struct bxi_node *node);
void bxi_node_release(struct bxi_node *node);
void bxi_node_drop_saved(struct bxi_node *node);        /* what only a backward function needs; call it once */
/* Makes an edge; var must require a gradient. */
void bxi_node_connect(struct bxi_node *node, size_t edge, struct bx_var *var);
static inline bool bxi_is_leaf(const struct bx_var *var)
{
    return var->node->op == NULL;
}

/* The variable's value, one reference, row-major (a copy, if it has other strides). NULL after a sentence. */
struct bx_tensor *bxi_var_dense(struct bx_var *var);
struct bxi_like bxi_var_like(struct bx_var *var);       /* dtype and shape of all values that it ever has */

/* ---- Tapes (tape.c) -------------------------------------------------------------------------------- */

struct bx_tape {
    struct bx_job *job;
    bool no_grad;
    int error;
    struct bx_var *vars;        /* the list of what it holds */
};

/* Every operation begins with this. True: it returns NULL at once, because the tape has failed, or one of the inputs is
 * NULL (which fails the tape, with a sentence). */
bool bxi_tape_stops(struct bx_tape *tape, const char *name, struct bx_var *const *inputs, size_t count);
/* Fails the tape. Returns NULL, for `return bxi_tape_fail(tape, bx_fail(...))`. */
struct bx_var *bxi_tape_fail(struct bx_tape *tape, int code);

/* Makes a dimension that counts from the end one that counts from 0. False after it has failed the tape. */
bool bxi_find_dim(struct bx_tape *tape, const char *name, int ndim, int *dim);

/* What an operation records; without an input that requires a gradient, its variables are leaves. values: one
 * reference of each goes to the variables, also on failure. saved: borrowed, may hold NULLs. extra is copied. Without
 * them the operation fills in the room itself. */
struct bxi_record {
    const struct bxi_op *op;
    struct bx_var *const *inputs;
    size_t input_count;
    struct bx_tensor *const *values;
    size_t value_count;
    struct bx_tensor *const *saved;
    size_t saved_count;
    const void *extra;
    size_t extra_bytes;
    bool requires_grad;         /* even if no input does */
};
/* Makes the variables, and the tape holds them. Returns the node, or NULL after a failure. If node->op is NULL, nothing
 * was recorded, and there is no room for `saved` and `extra`. */
struct bxi_node *bxi_tape_record(struct bx_tape *tape, const struct bxi_record *record);
/* The same for one value (its reference is taken; NULL: it could not be computed, which fails the tape). */
struct bx_var *bxi_tape_result(struct bx_tape *tape, struct bx_tensor *value, struct bxi_record record);

/* ---- Broadcasting (walk.c) ------------------------------------------------------------------------- */

/* The shape to which two shapes broadcast; false if they do not. dtype: a's. */
bool bxi_broadcast(const struct bxi_like *a, const struct bxi_like *b, struct bxi_like *to);
/* A walk over the elements of `over`, with the strides of two row-major arrays that broadcast to it. */
struct bxi_walk bxi_walk(const struct bxi_like *over, const struct bxi_like *a, const struct bxi_like *b);
bool bxi_same_shape(const struct bxi_like *a, const struct bxi_like *b);

/* ---- Matrix products (matmul.c) -------------------------------------------------------------------- */

void bxi_gemm(enum bx_dtype dtype, const struct bxi_gemm *gemm);

/* ---- Gradient tables (grads.c) --------------------------------------------------------------------- */

struct bxi_grad_entry {
    struct bx_var *var;         /* one reference */
    struct bx_tensor *grad;     /* row-major, memory of its own */
};
struct bx_grads {
    struct bx_job *job;
    struct bxi_grad_entry *entries;
    size_t count, capacity;
    uint32_t *places;           /* by hash of the variable's address: index + 1, or 0; place_count is a power of two */
    size_t place_count;
};
/* Adds a gradient of the variable's shape, row-major; takes the reference. */
int bxi_grads_put(struct bx_grads *grads, struct bx_var *var, struct bxi_slot grad);
/* Adds `more` to the slot; takes the reference. */
int bxi_slot_add(struct bx_job *job, struct bxi_slot *slot, struct bxi_slot more);

/* ---- Backward passes (pass.c) ---------------------------------------------------------------------- */

struct bxi_pass {
    struct bx_grads *grads;
    bool retain;
    int error;                          /* of the first delivery that failed */
    uint64_t left;                      /* nodes found that have not run */
    void (*none)(struct bxi_node *node, struct bxi_pass *pass);     /* a node got no gradient at all; or NULL */
    struct bxi_node *found, **found_end;
    struct bxi_node *ready;
};

void bxi_pass_begin(struct bxi_pass *pass, struct bx_grads *grads, bool retain);
/* Claims the nodes that are reachable from the variable, and counts their edges. BX_E_STATE. */
int bxi_pass_discover(struct bxi_pass *pass, struct bx_var *root);
/* Gives a variable that was discovered its gradient, one for each time it was discovered; takes the reference. NULL:
 * none. */
int bxi_pass_give(struct bxi_pass *pass, struct bx_var *var, struct bxi_slot grad);
/* Checks the roots of a pass, and makes the gradient of one: the program's, or 1; grad NULL: no memory. */
int bxi_check_roots(struct bx_var *const *roots, struct bx_tensor *const *root_grads, size_t count);
struct bxi_slot bxi_root_grad(struct bxi_pass *pass, struct bx_var *root, struct bx_tensor *given);
/* Runs one node, if one is ready. */
int bxi_pass_step(struct bxi_pass *pass);
/* Gives up all claims, and gradients that were not used. */
void bxi_pass_end(struct bxi_pass *pass);

/* For backward functions. needs: does edge i lead anywhere? deliver: sends a gradient along edge i; takes the
 * reference. An edge that gets nothing gets NULL. deliver may be called for an edge that leads nowhere. It never
 * fails at once: the pass keeps the error. */
static inline bool bxi_needs(const struct bxi_node *node, size_t edge)
{
    return node->edges[edge] != NULL;
}
void bxi_deliver(struct bxi_pass *pass, struct bxi_node *node, size_t edge, struct bx_tensor *grad, bool fresh);
/* The gradient of output 0; never NULL where a node has one output. */
static inline struct bx_tensor *bxi_grad_of(const struct bxi_node *node)
{
    return node->slots[0].grad;
}

/* ---- Optimizers (optim.c) ---------------------------------------------------------------------------- */

int64_t bxi_optim_elements(const struct bx_optim *optim);       /* of all its parameters */

#endif

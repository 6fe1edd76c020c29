/* SPDX-License-Identifier: MIT */
/*
 * Variables and nodes: memory, references, values. Any thread. The one lock is a leaf's, for the few instructions in
 * which its value is read and acquired, or exchanged.
 *
 * A node is one malloc with its variables, edges and slots. Freeing never recurses: nodes whose count has become zero
 * are put on a list of the thread, and the first release on the stack frees the list. So a chain of a million nodes,
 * and a program's free_fn that releases variables, need no more stack than one node.
 */
#include "autograd.h"

#include "shm/backoff.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Nodes --------------------------------------------------------------------------------------- */

static size_t aligned(size_t bytes)
{
    return (bytes + 15) / 16 * 16;
}

struct bxi_node *bxi_node_create(const struct bxi_op *op, const struct bxi_node_size *size)
{
    const size_t vars = aligned(sizeof(struct bxi_node));
    const size_t edges = vars + aligned(size->outputs * sizeof(struct bx_var));
    const size_t slots = edges + aligned(size->edges * sizeof(struct bx_var *));
    const size_t saved = slots + aligned(op == NULL ? 0 : size->outputs * sizeof(struct bxi_slot));
    const size_t extra = saved + aligned(size->saved * sizeof(struct bx_tensor *));
    unsigned char *block;

    if (size->edges > UINT16_MAX || size->outputs > UINT16_MAX || size->saved > UINT16_MAX) {
        bx_fail(-EINVAL, "an operation has at most %d inputs and outputs", UINT16_MAX);
        return NULL;
    }
    block = malloc(extra + size->extra_bytes);
    if (block == NULL) {
        bx_fail(-ENOMEM, "no memory for the %zu bytes of a node", extra + size->extra_bytes);
        return NULL;
    }
    memset(block, 0, extra + size->extra_bytes);

    struct bxi_node *node = (struct bxi_node *)(void *)block;

    /* Relaxed: nobody else knows it yet. */
    bxi_store_relaxed(&node->refs, (uint32_t)size->outputs);
    node->op = op;
    node->edge_count = (uint16_t)size->edges;
    node->output_count = (uint16_t)size->outputs;
    node->saved_count = (uint16_t)size->saved;
    node->vars = (struct bx_var *)(void *)(block + vars);
    node->edges = (struct bx_var **)(void *)(block + edges);
    node->slots = (struct bxi_slot *)(void *)(block + slots);
    node->saved = (struct bx_tensor **)(void *)(block + saved);
    node->extra = block + extra;
    for (size_t i = 0; i < size->outputs; i++) {
        bxi_store_relaxed(&node->vars[i].refs, 1);      /* relaxed: as above */
        node->vars[i].output = (uint32_t)i;
        node->vars[i].node = node;
    }
    return node;
}

void bxi_node_acquire(struct bxi_node *node)
{
    bxi_add(&node->refs, 1);
}

void bxi_node_connect(struct bxi_node *node, size_t edge, struct bx_var *var)
{
    node->edges[edge] = var;
    if (bxi_is_leaf(var))
        bx_var_acquire(var);
    else
        bxi_node_acquire(var->node);
}

void bxi_node_drop_saved(struct bxi_node *node)
{
    for (size_t i = 0; i < node->saved_count; i++) {
        bx_tensor_release(node->saved[i]);
        node->saved[i] = NULL;
    }
    if (node->op->drop != NULL)
        node->op->drop(node);
}

/* A count of 1 means that the caller holds the only reference, and no other thread can make one. */
static bool drop_ref(bxi_a32 *refs)
{
    /* [autograd.refs] acquire, pairs with the add below, in drop_ref: what other holders did comes before the memory is
     * freed. */
    if (bxi_load_acquire(refs) == 1)
        return true;
    /* [autograd.refs] acquire and release, pairs with itself and with the load above, in drop_ref: as there. */
    return bxi_add(refs, (uint32_t)-1) == 1;
}

static void free_node(struct bxi_node *node)
{
    for (size_t i = 0; i < node->edge_count; i++) {
        struct bx_var *var = node->edges[i];

        if (var == NULL)
            continue;
        if (bxi_is_leaf(var))
            bx_var_release(var);
        else
            bxi_node_release(var->node);
    }
    if (node->op != NULL && !node->spent)
        bxi_node_drop_saved(node);
    free(node);
}

void bxi_node_release(struct bxi_node *node)
{
    static _Thread_local struct bxi_node *doomed;
    static _Thread_local bool is_freeing;

    if (!drop_ref(&node->refs))
        return;
    node->next = doomed;
    doomed = node;
    if (is_freeing)
        return;
    is_freeing = true;
    while (doomed != NULL) {
        struct bxi_node *dead = doomed;

        doomed = dead->next;
        free_node(dead);
    }
    is_freeing = false;
}

/* ---- Variables ----------------------------------------------------------------------------------- */

int bx_var_create(struct bx_tensor *value, bool requires_grad, struct bx_var **var)
{
    if (value == NULL || var == NULL)
        return bx_fail(-EINVAL, "bx_var_create needs a tensor and a place to put the variable");
    if (bx_tensor_device(value).kind != BX_CPU)
        return bx_fail(-ENOTSUP, "a variable's tensor must be in host memory: copy it from the device first");
    if (requires_grad && !bxi_is_float(bx_tensor_dtype(value)))
        return bx_fail(-EINVAL, "a variable that requires a gradient is f32 or f64, and the tensor is %s",
                       bx_dtype_name(bx_tensor_dtype(value)));

    struct bxi_node *node = bxi_node_create(NULL, &(struct bxi_node_size){ .outputs = 1 });

    if (node == NULL)
        return -ENOMEM;
    node->vars[0].requires_grad = requires_grad;
    node->vars[0].value = bx_tensor_acquire(value);
    node->vars[0].dtype = bx_tensor_dtype(value);
    *var = &node->vars[0];
    return 0;
}

struct bx_var *bx_var_acquire(struct bx_var *var)
{
    if (var != NULL)
        bxi_add(&var->refs, 1);
    return var;
}

void bx_var_release(struct bx_var *var)
{
    if (var == NULL || !drop_ref(&var->refs))
        return;

    struct bx_tensor *value = var->value;

    var->value = NULL;
    bx_tensor_release(value);
    bxi_node_release(var->node);
}

bool bx_var_requires_grad(const struct bx_var *var)
{
    return var != NULL && var->requires_grad;
}

struct bx_tensor *bx_var_value(const struct bx_var *var)
{
    return var != NULL ? var->value : NULL;
}

/* The lock is held for a reference count and two stores. */
static void lock_value(struct bx_var *var)
{
    uint32_t turns = 0;

    /* [autograd.value] acquire and release, pairs with the release in unlock_value: the value that the last holder
     * stored is read. */
    while (bxi_exchange(&var->lock, 1) != 0)
        bxi_back_off(&turns);
}

static void unlock_value(struct bx_var *var)
{
    /* [autograd.value] release, pairs with the exchange, an acquire, in lock_value: the next holder reads the value as
     * this one left it. */
    bxi_store_release(&var->lock, 0);
}

struct bx_tensor *bx_var_acquire_value(struct bx_var *var)
{
    struct bx_tensor *value;

    if (var == NULL)
        return NULL;
    if (!bxi_is_leaf(var))
        return bx_tensor_acquire(var->value);
    lock_value(var);
    value = bx_tensor_acquire(var->value);
    unlock_value(var);
    return value;
}

int bx_var_set_value(struct bx_var *var, struct bx_tensor *value)
{
    char is[BXI_SHAPE_TEXT], wanted[BXI_SHAPE_TEXT];

    if (var == NULL || value == NULL)
        return bx_fail(-EINVAL, "bx_var_set_value needs a variable and a tensor");
    if (!bxi_is_leaf(var))
        return bx_fail(-EINVAL, "only a leaf can get another value, and this variable is the result of '%s'",
                       var->node->op->name);

    const struct bxi_like like = bxi_var_like(var), given = bxi_like(value);
    struct bx_tensor *old;

    if (!bxi_tensor_is_like(value, &like) || bx_tensor_device(value).kind != BX_CPU)
        return bx_fail(-EINVAL, "the value of a variable of %s %s cannot become a tensor of %s %s",
                       bx_dtype_name(like.dtype), bxi_shape_text(wanted, &like), bx_dtype_name(given.dtype),
                       bxi_shape_text(is, &given));
    lock_value(var);
    old = var->value;
    var->value = bx_tensor_acquire(value);
    unlock_value(var);
    bx_tensor_release(old);
    return 0;
}

double bx_var_item(const struct bx_var *var)
{
    const struct bx_tensor *value = bx_var_value(var);

    if (value == NULL || bx_tensor_elements(value) != 1 || !bxi_is_float(bx_tensor_dtype(value)))
        return NAN;
    return bxi_loops(bx_tensor_dtype(value))->first(bx_tensor_data(value));
}

struct bxi_like bxi_var_like(struct bx_var *var)
{
    struct bx_tensor *value = bx_var_acquire_value(var);
    const struct bxi_like like = bxi_like(value);

    bx_tensor_release(value);
    return like;
}

struct bx_tensor *bxi_var_dense(struct bx_var *var)
{
    struct bx_tensor *value = bx_var_acquire_value(var), *dense;

    if (bx_tensor_is_contiguous(value))
        return value;
    dense = bxi_tensor_dense(NULL, value);
    bx_tensor_release(value);
    return dense;
}

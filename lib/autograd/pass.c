/* SPDX-License-Identifier: MIT */
/*
 * Backward passes, by exact counting. Run by the thread that calls bx_backward.
 *
 *  1. Discover: from the roots along the edges. A pass claims each node that it comes to, and counts in it the edges
 *     that lead to it: `waiting`. The list of found nodes is also the queue of those whose edges are not followed yet.
 *  2. Run: a delivery along an edge adds the gradient (or nothing) to the slot of the output, and lowers `waiting`. At
 *     zero the node is ready. A ready node runs its backward function, which delivers to each of its edges; a node that
 *     got no gradient at all delivers nothing to each of them.
 *
 * Leaves are not counted: their gradients go to the table at once. Neither step recurses.
 *
 * The state of a pass lies in the nodes, not in a map beside them, because a lookup for each edge would cost more than
 * most nodes compute. So a node can take part in one pass at a time: the claim is the address of the pass, set by
 * compare-and-swap. Parameters, which threads share, are leaves and are never claimed.
 */
#include "autograd.h"

#include <errno.h>
#include <stdio.h>

void bxi_pass_begin(struct bxi_pass *pass, struct bx_grads *grads, bool retain)
{
    *pass = (struct bxi_pass){ .grads = grads, .retain = retain };
    pass->found_end = &pass->found;
}

/* ---- Discovering --------------------------------------------------------------------------------- */

static int claim(struct bxi_pass *pass, struct bxi_node *node)
{
    struct bxi_pass *other = NULL;

    /* [autograd.claim] acquire and release, pairs with the release in bxi_pass_end: what an earlier pass wrote to the
     * node is read. */
    if (!bxi_cas(&node->claim, &other, pass)) {
        if (other == pass)
            return 0;
        return bx_fail(BX_E_STATE, "a node '%s' takes part in another backward pass now", node->op->name);
    }
    node->waiting = 0;
    node->found_next = NULL;
    bxi_node_acquire(node);
    *pass->found_end = node;
    pass->found_end = &node->found_next;
    pass->left++;
    if (node->spent)
        return bx_fail(BX_E_STATE, "a second backward pass came to a node '%s', which released what it needs after "
                       "the first: pass retain to the first", node->op->name);
    return 0;
}

static int find_node(struct bxi_pass *pass, struct bx_var *var)
{
    int rc;

    if (bxi_is_leaf(var))
        return 0;
    rc = claim(pass, var->node);
    if (rc == 0)
        var->node->waiting++;
    return rc;
}

int bxi_pass_discover(struct bxi_pass *pass, struct bx_var *root)
{
    struct bxi_node **next = pass->found_end;
    int rc = find_node(pass, root);

    for (; rc == 0 && *next != NULL; next = &(*next)->found_next)
        for (size_t i = 0; rc == 0 && i < (*next)->edge_count; i++)
            if ((*next)->edges[i] != NULL)
                rc = find_node(pass, (*next)->edges[i]);
    return rc;
}

/* ---- Running ------------------------------------------------------------------------------------- */

int bxi_pass_give(struct bxi_pass *pass, struct bx_var *var, struct bxi_slot grad)
{
    struct bxi_node *node = var->node;
    int rc = 0;

    if (node->op == NULL)
        return grad.grad != NULL ? bxi_grads_put(pass->grads, var, grad) : 0;
    if (grad.grad != NULL)
        rc = bxi_slot_add(pass->grads->job, &node->slots[var->output], grad);
    if (--node->waiting == 0) {
        node->next = pass->ready;
        pass->ready = node;
    }
    return rc;
}

void bxi_deliver(struct bxi_pass *pass, struct bxi_node *node, size_t edge, struct bx_tensor *grad, bool fresh)
{
    struct bx_tensor *dense = grad;
    int rc;

    if (node->edges[edge] == NULL) {
        bx_tensor_release(grad);
        return;
    }
    if (grad != NULL && !bx_tensor_is_contiguous(grad)) {
        dense = bxi_tensor_dense(pass->grads->job, grad);
        bx_tensor_release(grad);
        fresh = true;
        if (dense == NULL && pass->error == 0)
            pass->error = bx_error_code();
    }
    rc = bxi_pass_give(pass, node->edges[edge], (struct bxi_slot){ dense, fresh });
    if (pass->error == 0)
        pass->error = rc;
}

static void drop_slots(struct bxi_node *node)
{
    for (size_t i = 0; i < node->output_count; i++) {
        bx_tensor_release(node->slots[i].grad);
        node->slots[i] = (struct bxi_slot){ NULL, false };
    }
}

static int run_node(struct bxi_pass *pass, struct bxi_node *node)
{
    bool has_grad = false;
    int rc = 0;

    for (size_t i = 0; i < node->output_count; i++)
        has_grad |= node->slots[i].grad != NULL;
    pass->left--;
    if (has_grad)
        rc = node->op->backward(node, pass);
    else if (pass->none != NULL && node->edge_count == 0)
        pass->none(node, pass);
    else
        for (size_t i = 0; i < node->edge_count; i++)
            bxi_deliver(pass, node, i, NULL, false);
    drop_slots(node);
    if (!pass->retain) {
        node->spent = true;
        bxi_node_drop_saved(node);
    }
    return rc < 0 ? rc : pass->error;
}

int bxi_pass_step(struct bxi_pass *pass)
{
    struct bxi_node *node = pass->ready;

    if (pass->error < 0 || node == NULL)
        return pass->error;
    pass->ready = node->next;
    return run_node(pass, node);
}

void bxi_pass_end(struct bxi_pass *pass)
{
    for (struct bxi_node *node = pass->found, *next; node != NULL; node = next) {
        next = node->found_next;
        drop_slots(node);
        /* [autograd.claim] release, pairs with the compare-and-swap, an acquire, in claim: the next pass finds the node
         * as this one leaves it. */
        bxi_store_release(&node->claim, NULL);
        bxi_node_release(node);
    }
    pass->found = pass->ready = NULL;
}

/* ---- A pass from beginning to end ---------------------------------------------------------------- */

static int check_root(struct bx_var *root, const struct bx_tensor *grad, size_t index)
{
    char is[BXI_SHAPE_TEXT], wanted[BXI_SHAPE_TEXT];
    struct bxi_like like, given;

    if (root == NULL) {
        char why[512];

        snprintf(why, sizeof why, "%s", bx_error_text());
        return bx_fail(-EINVAL, "root %zu of the backward pass is NULL; the last failure of this thread: %s", index,
                       why[0] != '\0' ? why : "none");
    }
    if (!root->requires_grad)
        return bx_fail(-EINVAL, "root %zu of the backward pass requires no gradient: no parameter leads to it", index);
    like = bxi_var_like(root);
    if (grad == NULL) {
        if (bxi_elements(&like) != 1)
            return bx_fail(-EINVAL, "root %zu of the backward pass has the shape %s: only one element can do without a "
                           "gradient", index, bxi_shape_text(wanted, &like));
        return 0;
    }
    given = bxi_like(grad);
    if (!bxi_tensor_is_like(grad, &like))
        return bx_fail(-EINVAL, "root %zu of the backward pass is %s %s, and its gradient is %s %s", index,
                       bx_dtype_name(like.dtype), bxi_shape_text(wanted, &like), bx_dtype_name(given.dtype),
                       bxi_shape_text(is, &given));
    if (bx_tensor_device(grad).kind != BX_CPU)
        return bx_fail(-ENOTSUP, "the gradient of root %zu must be in host memory", index);
    return 0;
}

/* The gradient of a root: the program's, or 1. */
struct bxi_slot bxi_root_grad(struct bxi_pass *pass, struct bx_var *root, struct bx_tensor *given)
{
    struct bxi_slot slot = { NULL, given == NULL || !bx_tensor_is_contiguous(given) };
    struct bxi_like like;

    if (given != NULL) {
        slot.grad = bxi_tensor_dense(pass->grads->job, given);
        return slot;
    }
    like = bxi_var_like(root);
    slot.grad = bxi_tensor_make(pass->grads->job, &like);
    if (slot.grad != NULL)
        bxi_loops(like.dtype)->fill(1, 1, bx_tensor_data_mut(slot.grad));
    return slot;
}

int bxi_check_roots(struct bx_var *const *roots, struct bx_tensor *const *root_grads, size_t count)
{
    int rc = 0;

    if (roots == NULL || count == 0)
        return bx_fail(-EINVAL, "a backward pass needs a root");
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = check_root(roots[i], root_grads != NULL ? root_grads[i] : NULL, i);
    return rc;
}

int bx_backward(struct bx_var *const *roots, struct bx_tensor *const *root_grads, size_t count, bool retain,
                struct bx_grads *grads)
{
    struct bxi_pass pass;
    int rc = bxi_check_roots(roots, root_grads, count);

    if (rc == 0 && grads == NULL)
        rc = bx_fail(-EINVAL, "a backward pass needs a gradient table");
    if (rc < 0)
        return rc;

    bxi_pass_begin(&pass, grads, retain);
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = bxi_pass_discover(&pass, roots[i]);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        struct bxi_slot slot = bxi_root_grad(&pass, roots[i], root_grads != NULL ? root_grads[i] : NULL);

        rc = slot.grad == NULL ? bx_error_code() : bxi_pass_give(&pass, roots[i], slot);
    }
    if (rc == 0)
        rc = pass.error;
    while (rc == 0 && pass.ready != NULL)
        rc = bxi_pass_step(&pass);
    bxi_pass_end(&pass);
    return rc;
}

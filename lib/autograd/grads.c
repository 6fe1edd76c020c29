/* SPDX-License-Identifier: MIT */
/*
 * Gradient tables, and the addition of gradients. One thread at a time uses a table.
 *
 * A table is an array in the order of arrival, and an open-addressed hash from the variable's address to the index. It
 * keeps its memory when it is cleared, because the next pass reaches the same parameters.
 */
#include "autograd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PLACES_MIN 16u

/* ---- Adding -------------------------------------------------------------------------------------- */

static void add_into(struct bx_tensor *to, const struct bx_tensor *from)
{
    const struct bxi_walk walk = { .ndim = 1, .shape = { bx_tensor_elements(to) }, .a = { 1 }, .b = { 1 } };

    bxi_loops(bx_tensor_dtype(to))->reduce(&walk, bx_tensor_data(from), 1, bx_tensor_data_mut(to));
}

int bxi_slot_add(struct bx_job *job, struct bxi_slot *slot, struct bxi_slot more)
{
    struct bxi_slot sum = *slot;
    int rc = 0;

    if (slot->grad == NULL) {
        *slot = more;
        return 0;
    }
    if (!slot->fresh && more.fresh) {
        sum = more;
        more = *slot;
    } else if (!slot->fresh) {
        sum = (struct bxi_slot){ NULL, true };
        rc = bx_tensor_copy(job, slot->grad, &sum.grad);
        if (rc < 0) {
            bx_tensor_release(more.grad);
            return rc;
        }
        bx_tensor_release(slot->grad);
    }
    add_into(sum.grad, more.grad);
    bx_tensor_release(more.grad);
    *slot = sum;
    return 0;
}

/* ---- The table ----------------------------------------------------------------------------------- */

int bx_grads_create(struct bx_job *job, struct bx_grads **grads)
{
    if (grads == NULL)
        return bx_fail(-EINVAL, "bx_grads_create has no place to put the table");

    struct bx_grads *made = calloc(1, sizeof *made);

    if (made == NULL)
        return bx_fail(-ENOMEM, "no memory for a gradient table");
    made->job = job;
    *grads = made;
    return 0;
}

void bx_grads_clear(struct bx_grads *grads)
{
    if (grads == NULL)
        return;
    for (size_t i = 0; i < grads->count; i++) {
        bx_tensor_release(grads->entries[i].grad);
        bx_var_release(grads->entries[i].var);
    }
    grads->count = 0;
    if (grads->places != NULL)
        memset(grads->places, 0, grads->place_count * sizeof *grads->places);
}

void bx_grads_destroy(struct bx_grads *grads)
{
    if (grads == NULL)
        return;
    bx_grads_clear(grads);
    free(grads->entries);
    free(grads->places);
    free(grads);
}

size_t bx_grads_count(const struct bx_grads *grads)
{
    return grads != NULL ? grads->count : 0;
}

/* The place of the variable, or the empty one where it belongs. The table has empty places. */
static uint32_t *place_of(const struct bx_grads *grads, const struct bx_var *var)
{
    size_t at = (size_t)(((uint64_t)(uintptr_t)var * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (grads->place_count - 1);

    while (grads->places[at] != 0 && grads->entries[grads->places[at] - 1].var != var)
        at = (at + 1) & (grads->place_count - 1);
    return &grads->places[at];
}

/* Room for one more entry, with at most half of the places used. */
static int make_room(struct bx_grads *grads)
{
    const size_t places = grads->place_count > 0 ? 2 * grads->place_count : PLACES_MIN;
    uint32_t *made;
    struct bxi_grad_entry *entries;

    if (grads->count < grads->capacity)
        return 0;
    entries = realloc(grads->entries, places / 2 * sizeof *entries);
    if (entries == NULL)
        return bx_fail(-ENOMEM, "no memory for a table of %zu gradients", places / 2);
    grads->entries = entries;
    made = calloc(places, sizeof *made);
    if (made == NULL)
        return bx_fail(-ENOMEM, "no memory for a table of %zu gradients", places / 2);
    free(grads->places);
    grads->places = made;
    grads->place_count = places;
    grads->capacity = places / 2;
    for (size_t i = 0; i < grads->count; i++)
        *place_of(grads, entries[i].var) = (uint32_t)i + 1;
    return 0;
}

static struct bxi_grad_entry *find(const struct bx_grads *grads, const struct bx_var *var)
{
    const uint32_t index = grads->count > 0 ? *place_of(grads, var) : 0;

    return index > 0 ? &grads->entries[index - 1] : NULL;
}

/* An entry's memory is its own: what is not fresh is copied. */
static int put_new(struct bx_grads *grads, struct bx_var *var, struct bxi_slot grad)
{
    struct bx_tensor *own = grad.grad;
    int rc = make_room(grads);

    if (rc == 0 && !grad.fresh) {
        rc = bx_tensor_copy(grads->job, grad.grad, &own);
        bx_tensor_release(grad.grad);
    } else if (rc < 0) {
        bx_tensor_release(grad.grad);
    }
    if (rc < 0)
        return rc;
    *place_of(grads, var) = (uint32_t)grads->count + 1;
    grads->entries[grads->count++] = (struct bxi_grad_entry){ bx_var_acquire(var), own };
    return 0;
}

/* An entry may be on loan to another worker, and must not change then. */
int bxi_grads_put(struct bx_grads *grads, struct bx_var *var, struct bxi_slot grad)
{
    struct bxi_grad_entry *entry = find(grads, var);
    struct bxi_slot slot;
    int rc;

    if (entry == NULL)
        return put_new(grads, var, grad);
    slot = (struct bxi_slot){ entry->grad, bx_tensor_on_loan(entry->grad) == 0 };
    rc = bxi_slot_add(grads->job, &slot, grad);
    entry->grad = slot.grad;
    return rc;
}

int bx_grads_add(struct bx_grads *grads, struct bx_var *var, struct bx_tensor *grad)
{
    char is[BXI_SHAPE_TEXT], wanted[BXI_SHAPE_TEXT];
    struct bxi_like like, given;
    struct bx_tensor *dense;

    if (grads == NULL || var == NULL || grad == NULL)
        return bx_fail(-EINVAL, "bx_grads_add needs a table, a variable and a gradient");
    like = bxi_var_like(var);
    given = bxi_like(grad);
    if (!bxi_tensor_is_like(grad, &like) || !bxi_is_float(like.dtype))
        return bx_fail(-EINVAL, "a variable of %s %s cannot have a gradient of %s %s", bx_dtype_name(like.dtype),
                       bxi_shape_text(wanted, &like), bx_dtype_name(given.dtype), bxi_shape_text(is, &given));
    dense = bxi_tensor_dense(grads->job, grad);
    if (dense == NULL)
        return bx_error_code();
    return bxi_grads_put(grads, var, (struct bxi_slot){ dense, false });
}

struct bx_tensor *bx_grads_get(const struct bx_grads *grads, const struct bx_var *var)
{
    const struct bxi_grad_entry *entry = grads != NULL && var != NULL ? find(grads, var) : NULL;

    return entry != NULL ? entry->grad : NULL;
}

struct bx_tensor *bx_grads_at(const struct bx_grads *grads, size_t index, struct bx_var **var)
{
    if (grads == NULL || index >= grads->count)
        return NULL;
    if (var != NULL)
        *var = grads->entries[index].var;
    return grads->entries[index].grad;
}

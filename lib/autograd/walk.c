/* SPDX-License-Identifier: MIT */
/*
 * Broadcasting: from the shapes of two row-major arrays to one walk over both. Pure functions.
 */
#include "autograd.h"

bool bxi_same_shape(const struct bxi_like *a, const struct bxi_like *b)
{
    if (a->ndim != b->ndim)
        return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i])
            return false;
    return true;
}

/* The extent of dimension `dim` of a result of `ndim` dimensions. */
static int64_t extent(const struct bxi_like *like, int ndim, int dim)
{
    const int own = dim - (ndim - like->ndim);

    return own < 0 ? 1 : like->shape[own];
}

bool bxi_broadcast(const struct bxi_like *a, const struct bxi_like *b, struct bxi_like *to)
{
    const int ndim = a->ndim > b->ndim ? a->ndim : b->ndim;

    *to = (struct bxi_like){ .dtype = a->dtype, .ndim = ndim };
    for (int i = 0; i < ndim; i++) {
        const int64_t x = extent(a, ndim, i), y = extent(b, ndim, i);

        if (x != y && x != 1 && y != 1)
            return false;
        to->shape[i] = x == 1 ? y : x;
    }
    return true;
}

struct bxi_walk bxi_walk(const struct bxi_like *over, const struct bxi_like *a, const struct bxi_like *b)
{
    struct bxi_walk walk = { .ndim = 0 };
    int64_t a_step = 1, b_step = 1;

    /* From the last dimension to the first; the walk's are reversed at the end. */
    for (int i = over->ndim - 1; i >= 0; i--) {
        const int64_t n = over->shape[i], x = extent(a, over->ndim, i), y = extent(b, over->ndim, i);
        const int64_t sa = x == 1 ? 0 : a_step, sb = y == 1 ? 0 : b_step;
        const int last = walk.ndim - 1;

        a_step *= x;
        b_step *= y;
        if (n == 1)
            continue;
        if (last >= 0 && sa == walk.a[last] * walk.shape[last] && sb == walk.b[last] * walk.shape[last]) {
            walk.shape[last] *= n;
            continue;
        }
        walk.shape[walk.ndim] = n;
        walk.a[walk.ndim] = sa;
        walk.b[walk.ndim++] = sb;
    }
    if (walk.ndim == 0) {
        walk.ndim = 1;
        walk.shape[0] = walk.a[0] = walk.b[0] = 1;
    }
    for (int i = 0, j = walk.ndim - 1; i < j; i++, j--) {
        const struct bxi_walk old = walk;

        walk.shape[i] = old.shape[j];
        walk.a[i] = old.a[j];
        walk.b[i] = old.b[j];
        walk.shape[j] = old.shape[i];
        walk.a[j] = old.a[i];
        walk.b[j] = old.b[i];
    }
    return walk;
}

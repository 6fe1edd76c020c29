/* SPDX-License-Identifier: MIT */
/*
 * The product of matrices, for two widths of vectors. GNU C vectors, as in policy.c: the order of operations is ours,
 * not the vectoriser's. No sum crosses lanes, so the width of the vectors changes no bit.
 *
 * Not oneDNN's product: its order of summation depends on the number of rows.
 */
#include "product.h"

#define LANES 4
#define TILE_ROWS 3
#define TARGET
#define NAME(x) x ## _4
#include "product_text.h"

#ifdef __x86_64__
#define LANES 8
#define TILE_ROWS 6
#define TARGET __attribute__((target("avx2")))
#define NAME(x) x ## _8
#include "product_text.h"
#endif

void product_portable(const struct product *product)
{
    product_4(product);
}

void product(const struct product *product)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2")) {
        product_8(product);
        return;
    }
#endif
    product_4(product);
}

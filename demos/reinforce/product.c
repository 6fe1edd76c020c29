/* SPDX-License-Identifier: MIT */
/*
 * The product of matrices, for three widths of vectors. GNU C vectors, as in policy.c: the order of operations is ours,
 * not the vectoriser's. No sum crosses lanes, so the width of the vectors changes no bit.
 *
 * Not oneDNN's product: its order of summation depends on the number of rows.
 */
#include "product.h"

#include <stdint.h>

#define PREFETCH_TERMS 48       /* so many terms ahead, also beyond the end of b: a prefetch cannot fail */

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

#define LANES 16
#define TILE_ROWS 12
#define TARGET __attribute__((target("avx512f")))
#define NAME(x) x ## _16
#include "product_text.h"
#endif

bool product_with(enum product_vectors vectors, const struct product *product)
{
#ifdef __x86_64__
    if (vectors == PRODUCT_16 && __builtin_cpu_supports("avx512f")) {
        product_16(product);
        return true;
    }
    if (vectors == PRODUCT_8 && __builtin_cpu_supports("avx2")) {
        product_8(product);
        return true;
    }
#endif
    if (vectors == PRODUCT_4)
        product_4(product);
    return vectors == PRODUCT_4;
}

void product(const struct product *product)
{
    if (!product_with(PRODUCT_16, product) && !product_with(PRODUCT_8, product))
        product_with(PRODUCT_4, product);
}

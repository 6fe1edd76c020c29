/* SPDX-License-Identifier: MIT */
/*
 * A product of matrices, in float32, whose sums have one order: the network of mlp.c is made of it. Any thread.
 *
 *     c[row][unit] = base[row][unit] + (a[row][0] * b[0][unit] + a[row][1] * b[1][unit] + ...)
 *
 * The terms are added one after the other, from term 0, with one rounding for each product and each sum. So an element
 * of c has the same bits whatever the number of rows, and on every processor. Units come in panels of PRODUCT_PANEL:
 * the units of a panel are neighbours in memory. Everything else is given by its distance, in floats, to the next one.
 */
#ifndef DEMOS_PRODUCT_H
#define DEMOS_PRODUCT_H

#include <stdbool.h>
#include <stddef.h>

#define PRODUCT_PANEL 16        /* floats: one cache line */

struct product {
    size_t rows, terms, panels;
    const float *a;
    size_t a_row, a_term;
    const float *b;
    size_t b_term, b_panel;
    const float *base;          /* may be c */
    size_t base_row, base_panel;
    float *c;
    size_t c_row, c_panel;
};

/* With the widest vectors that the processor has. */
void product(const struct product *product);

/* With vectors of 4, 8 or 16 floats, for any processor, AVX2 and AVX-512: the same bits. False: this processor has no
 * such vectors. */
enum product_vectors { PRODUCT_4, PRODUCT_8, PRODUCT_16, PRODUCT_VECTORS };
bool product_with(enum product_vectors vectors, const struct product *product);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The loops of product.c: a text that product.c includes once for each width of vectors, with
 *
 *     LANES       floats of a vector
 *     TILE_ROWS   rows computed at a time: their sums, TILE_ROWS x one panel, fit the vector registers; 3, 6 or 12
 *     TARGET      the attribute that allows these vectors
 *     NAME(x)     the functions' names
 *
 * A tile reads each vector of b once for all of its rows. The panel of b stays in the cache from one tile to the next.
 *
 * A tile of several rows computes for some time between two vectors of b, and reads a from many places: the processor
 * by itself then fetches b too late. With 2048 x 2048 weights, ten rows took 130 us each without the prefetch, 80 with
 * it. One row takes longer with it, 57 instead of 46 us at 1024 x 1024, so it has none.
 */

#define PARTS (PRODUCT_PANEL / LANES)

typedef float NAME(lanes) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* `rows` x `wide` panels, at most TILE_ROWS; both are constants where this is inlined, so that the sums stay in
 * registers. Sum i is that of row i / wide, in panel i % wide. */
static inline __attribute__((always_inline)) TARGET void NAME(tile)(const struct product *p, size_t row, size_t panel,
                                                                    size_t rows, size_t wide)
{
    const float *a = p->a + row * p->a_row, *b = p->b + panel * p->b_panel;
    size_t a_row = p->a_row, b_panel = p->b_panel;
    NAME(lanes) sum[TILE_ROWS][PARTS];

    for (size_t i = 0; i < rows * wide; i++)
        for (size_t part = 0; part < PARTS; part++)
            sum[i][part] = (NAME(lanes)){ 0 };
    for (size_t left = p->terms; left > 0; left--) {
        for (size_t i = 0; i < rows * wide; i++)
            for (size_t part = 0; part < PARTS; part++)
                sum[i][part] += ((const NAME(lanes) *)(b + i % wide * b_panel))[part] * a[i / wide * a_row];
        if (rows > 1)
            __builtin_prefetch((const void *)((uintptr_t)b + PREFETCH_TERMS * p->b_term * sizeof(*b)));
        a += p->a_term;
        b += p->b_term;
    }
    for (size_t i = 0; i < rows * wide; i++) {
        const float *base = p->base + (row + i / wide) * p->base_row + (panel + i % wide) * p->base_panel;
        float *c = p->c + (row + i / wide) * p->c_row + (panel + i % wide) * p->c_panel;

        for (size_t part = 0; part < PARTS; part++)
            ((NAME(lanes) *)c)[part] = ((const NAME(lanes) *)base)[part] + sum[i][part];
    }
}

#define TILE(count) \
    case count: \
        NAME(tile)(p, row, panel, count, 1); \
        break;

/* Tiles as equal as possible: ten rows are 5 + 5, which is faster than 6 + 4. */
static TARGET void NAME(panel)(const struct product *p, size_t panel)
{
    size_t row = 0;

    for (size_t tiles = (p->rows + TILE_ROWS - 1) / TILE_ROWS; tiles > 0; tiles--) {
        size_t rows = (p->rows - row + tiles - 1) / tiles;

        switch (rows) {
            TILE(1) TILE(2) TILE(3)
#if TILE_ROWS >= 6
            TILE(4) TILE(5) TILE(6)
#endif
#if TILE_ROWS >= 12
            TILE(7) TILE(8) TILE(9) TILE(10) TILE(11) TILE(12)
#endif
        default:
            break;
        }
        row += rows;
    }
}

/* One row has too few sums in a panel to hide the time of an addition: it takes two panels at a time. */
static TARGET void NAME(product)(const struct product *p)
{
    size_t panel = 0;

    for (; p->rows == 1 && panel + 2 <= p->panels; panel += 2)
        NAME(tile)(p, 0, panel, 1, 2);
    for (; panel < p->panels; panel++)
        NAME(panel)(p, panel);
}

#undef TILE
#undef PARTS
#undef LANES
#undef TILE_ROWS
#undef TARGET
#undef NAME

/* SPDX-License-Identifier: MIT */
/*
 * The matrix product under the fakes of cuBLAS and cuDNN, summed in double. Both factors are packed into panels of
 * four rows and four columns in the order of use, whatever their strides: transposes cost nothing, and a step of
 * ResNet-50 takes seconds, not minutes.
 */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

#define SIDE 4                          /* rows and columns of a tile */
#define INNER 256                       /* products summed at a time: panels of 8 KB */
#define WIDTH 512                       /* columns at a time */

typedef double pair __attribute__((vector_size(16)));

float fake_tf32(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    bits &= UINT32_C(0xffffe000);       /* keeps 10 of 23 bits */
    memcpy(&value, &bits, sizeof(bits));
    return value;
}

/* to[i][lane] = at[i * along + lane * across], and 0 for lanes from `lanes` on. */
static void pack(double (*to)[SIDE], const float *at, size_t along, size_t across, size_t count, size_t lanes)
{
    for (size_t i = 0; i < count; i++)
        for (size_t lane = 0; lane < SIDE; lane++)
            to[i][lane] = lane < lanes ? (double)at[i * along + lane * across] : 0.0;
}

static void tile(const double (*a)[SIDE], const double (*b)[SIDE], size_t count, double sum[SIDE][SIDE])
{
    pair s[SIDE][2] = { { { 0.0, 0.0 }, { 0.0, 0.0 } } };

    for (size_t k = 0; k < count; k++) {
        pair left = { b[k][0], b[k][1] }, right = { b[k][2], b[k][3] };

        for (size_t i = 0; i < SIDE; i++) {
            pair x = { a[k][i], a[k][i] };

            s[i][0] += x * left;
            s[i][1] += x * right;
        }
    }
    memcpy(sum, s, sizeof(s));
}

/* Adds `count` products to each sum of the columns packed in b, for all rows. */
static void add_strip(size_t rows, size_t columns, const struct fake_matrix *a, size_t count,
                      double (*const b)[INNER][SIDE], double *c, size_t c_step)
{
    double left[INNER][SIDE], sum[SIDE][SIDE];

    for (size_t i = 0; i < rows; i += SIDE) {
        size_t height = rows - i < SIDE ? rows - i : SIDE;

        pack(left, a->at + i * a->row_step, a->column_step, a->row_step, count, height);
        for (size_t j = 0; j < columns; j += SIDE) {
            size_t width = columns - j < SIDE ? columns - j : SIDE;

            tile((const double (*)[SIDE])left, (const double (*)[SIDE])b[j / SIDE], count, sum);
            for (size_t y = 0; y < height; y++)
                for (size_t x = 0; x < width; x++)
                    c[(i + y) * c_step + j + x] += sum[y][x];
        }
    }
}

void fake_multiply(size_t rows, size_t columns, size_t inner, const struct fake_matrix ab[2], double *c)
{
    double (*b)[INNER][SIDE] = malloc(WIDTH / SIDE * sizeof(*b));

    if (b == NULL)
        abort();
    for (size_t j = 0; j < columns; j += WIDTH) {
        size_t width = columns - j < WIDTH ? columns - j : WIDTH;

        for (size_t k = 0; k < inner; k += INNER) {
            size_t count = inner - k < INNER ? inner - k : INNER;
            struct fake_matrix a = { ab[0].at + k * ab[0].column_step, ab[0].row_step, ab[0].column_step };

            for (size_t at = 0; at < width; at += SIDE)
                pack(b[at / SIDE], ab[1].at + k * ab[1].row_step + (j + at) * ab[1].column_step, ab[1].row_step,
                     ab[1].column_step, count, width - at < SIDE ? width - at : SIDE);
            add_strip(rows, width, &a, count, b, c + j, columns);
        }
    }
    free(b);
}

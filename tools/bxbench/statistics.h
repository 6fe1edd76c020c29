/* SPDX-License-Identifier: MIT */
/*
 * Medians and percentiles.
 */
#ifndef BENCH_STATISTICS_H
#define BENCH_STATISTICS_H

#include <stddef.h>
#include <stdint.h>

double bench_median(double *values, size_t count);                  /* sorts; 0 of nothing */
void bench_sort(uint32_t *ticks, size_t count);
uint32_t bench_percentile(const uint32_t *sorted, size_t count, double percent);
/* The median of ticks of a clock that advances in steps: interpolated within its step. */
double bench_middle(const uint32_t *sorted, size_t count);

#endif

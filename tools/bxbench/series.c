/* SPDX-License-Identifier: MIT */
/*
 * Series of times: a median for each slice, percentiles of all calls, and comparisons of neighbouring slices.
 *
 * The host may move the cores between two slices, which can change the cost of a cache line threefold. So ratios are
 * taken between neighbouring slices, and their median is reported. If the clock advances in steps, medians of calls are
 * interpolated within a step.
 */
#include "bxbench.h"

#include <math.h>
#include <stdlib.h>

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static int compare_ticks(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

double bench_median(double *values, size_t count)
{
    if (count == 0)
        return 0;
    qsort(values, count, sizeof *values, compare_doubles);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

void bench_sort(uint32_t *ticks, size_t count)
{
    qsort(ticks, count, sizeof *ticks, compare_ticks);
}

static size_t count_below(const uint32_t *sorted, size_t count, double limit)
{
    size_t low = 0, high = count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (sorted[middle] < limit)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The median of ticks of a clock that advances in steps: interpolated within its step. */
static double middle_of(const uint32_t *sorted, size_t count)
{
    size_t middle = count / 2;
    double step_ticks = bench_clock_step_ticks(), from = sorted[middle] - step_ticks * 0.5;
    size_t below = count_below(sorted, count, from);
    size_t within = count_below(sorted, count, from + step_ticks) - below;

    return within == 0 ? sorted[middle]
                       : from + step_ticks * ((double)count / 2 - (double)below) / (double)within;
}

void bench_series_make(struct bench_series *series, size_t slices, size_t calls)
{
    series->slices = slices;
    series->calls = calls;
    series->middle = bench_map(slices * sizeof *series->middle);
    series->ticks = calls > 0 ? bench_map(slices * calls * sizeof *series->ticks) : NULL;
}

void bench_series_close(struct bench_series *series)
{
    if (series->ticks == NULL)
        return;
    for (size_t i = 0; i < series->slices; i++) {
        bench_sort(series->ticks + i * series->calls, series->calls);
        series->middle[i] = middle_of(series->ticks + i * series->calls, series->calls);
    }
    bench_sort(series->ticks, series->slices * series->calls);
}

double bench_percentile_ns(const struct bench_series *series, double percent)
{
    size_t count = series->slices * series->calls, index = (size_t)((double)count * percent / 100);

    return count == 0 ? NAN : series->ticks[index < count ? index : count - 1] * bench_clock_ns_per_tick();
}

/* The median over slices of a / b, of a - b, or where there is no b, of a. */
static double compare(const struct bench_series *a, const struct bench_series *b, bool divide)
{
    double values[BENCH_SLICES_MAX];

    if (a->slices == 0 || (b != NULL && b->slices == 0))
        return NAN;
    for (size_t i = 0; i < a->slices; i++)
        values[i] = b == NULL ? a->middle[i] : divide ? a->middle[i] / b->middle[i] : a->middle[i] - b->middle[i];
    return bench_median(values, a->slices);
}

double bench_middle_ns(const struct bench_series *series)
{
    return compare(series, NULL, false) * bench_clock_ns_per_tick();
}

double bench_ratio(const struct bench_series *a, const struct bench_series *b)
{
    return compare(a, b, true);
}

double bench_over_ns(const struct bench_series *a, const struct bench_series *b)
{
    return compare(a, b, false) * bench_clock_ns_per_tick();
}

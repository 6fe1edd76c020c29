/* SPDX-License-Identifier: MIT */
#include "statistics.h"

#include "clock.h"

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

uint32_t bench_percentile(const uint32_t *sorted, size_t count, double percent)
{
    if (count == 0)
        return 0;

    size_t index = (size_t)((double)count * percent / 100);

    return sorted[index < count ? index : count - 1];
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

double bench_middle(const uint32_t *sorted, size_t count)
{
    if (count == 0)
        return 0;

    size_t middle = count / 2;
    double step_ticks = bench_clock_step_ticks(), from = sorted[middle] - step_ticks * 0.5;
    size_t below = count_below(sorted, count, from);
    size_t within = count_below(sorted, count, from + step_ticks) - below;

    return within == 0 ? sorted[middle]
                       : from + step_ticks * ((double)count / 2 - (double)below) / (double)within;
}

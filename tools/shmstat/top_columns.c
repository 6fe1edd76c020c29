/* SPDX-License-Identifier: MIT */
/*
 * shmstat top: the columns of each view, in their order. Lines take title, width and format, and leave out the columns
 * of least importance where they are narrow; JSON takes the keys.
 */
#include "top.h"

#include "text.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct top_column worker_columns[] = {
    { "JOB", NULL, 8, 0, TOP_TEXT, TOP_JOB },
    { "RANK", NULL, 4, 0, TOP_WHOLE, TOP_RANK },
    { "NAME", NULL, 8, 0, TOP_TEXT, TOP_NAME },
    { "PID", NULL, 7, 6, TOP_WHOLE, TOP_PID },
    { "DOING", "doing", 8, 0, TOP_TEXT, TOP_DOING },
    { "STATE", NULL, 8, 18, TOP_TEXT, TOP_STATE },
    { "CALLS/s", "calls_per_second", 7, 1, TOP_COUNT, TOP_CALLS_S },
    { "REQS/s", "requests_per_second", 6, 2, TOP_COUNT, TOP_REQUESTS_S },
    { "OUT/s", "bytes_out_per_second", 5, 4, TOP_BYTES, TOP_BYTES_OUT_S },
    { "IN/s", "bytes_in_per_second", 5, 5, TOP_BYTES, TOP_BYTES_IN_S },
    { "FLIGHT", "calls_in_flight", 6, 3, TOP_COUNT, TOP_FLIGHT },
    { "SERVED", "requests_served", 6, 7, TOP_COUNT, TOP_SERVED },
    { "RING%", "ring_fill_percent", 5, 8, TOP_PERCENT, TOP_FILL },
    { "AGE", "oldest_call_seconds", 8, 9, TOP_SECONDS, TOP_AGE },
    { "POOL", "pool_busy", 4, 13, TOP_COUNT, TOP_POOL },
    { "WAKE/s", "wakeups_per_second", 6, 10, TOP_COUNT, TOP_WAKEUPS_S },
    { "BELL/s", "bells_per_second", 6, 11, TOP_COUNT, TOP_BELLS_S },
    { "ARENA", "arena_used_bytes", 5, 12, TOP_BYTES, TOP_ARENA },
    { "LOAN", "on_loan_bytes", 5, 13, TOP_BYTES, TOP_LOAN },
    { "TENS/s", "tensor_bytes_per_second", 6, 14, TOP_BYTES, TOP_TENSOR_BYTES_S },
    { "FULL/s", "times_full_per_second", 6, 15, TOP_COUNT, TOP_FULL_S },
    { "FAIL/s", "failures_per_second", 6, 16, TOP_COUNT, TOP_FAILED_S },
    { "SENT/s", "frames_out_per_second", 6, 17, TOP_COUNT, TOP_FRAMES_OUT_S },
    { "RECV/s", "frames_in_per_second", 6, 17, TOP_COUNT, TOP_FRAMES_IN_S },
    { "SAVED/s", "bells_saved_per_second", 7, 19, TOP_COUNT, TOP_SAVED_S },
    { "GEN", NULL, 5, 19, TOP_WHOLE, TOP_GENERATION },
    { "WHY", "why", 30, 20, TOP_TEXT, TOP_WHY },
};

static const struct top_column ring_columns[] = {
    { "JOB", NULL, 8, 0, TOP_TEXT, TOP_JOB },
    { "FROM", "from_name", 8, 0, TOP_TEXT, TOP_NAME },
    { "TO", "to_name", 8, 0, TOP_TEXT, TOP_PEER_NAME },
    { "RING%", "fill_percent", 5, 1, TOP_PERCENT, TOP_FILL },
    { "HIGH%", "high_water_percent", 5, 5, TOP_PERCENT, TOP_HIGH },
    { "UNREAD", "unread_bytes", 6, 4, TOP_BYTES, TOP_UNREAD },
    { "AGE", "oldest_unread_seconds", 8, 4, TOP_SECONDS, TOP_AGE },
    { "SENT/s", "frames_per_second", 6, 2, TOP_COUNT, TOP_FRAMES_OUT_S },
    { "OUT/s", "bytes_per_second", 5, 3, TOP_BYTES, TOP_BYTES_OUT_S },
    { "FULL/s", "times_full_per_second", 6, 6, TOP_COUNT, TOP_FULL_S },
    { "READER", "reader_doing", 8, 7, TOP_TEXT, TOP_DOING },
};

static const struct top_column call_columns[] = {
    { "JOB", NULL, 8, 0, TOP_TEXT, TOP_JOB },
    { "CALL", NULL, 11, 5, TOP_TEXT, TOP_CALL },
    { "FROM", NULL, 8, 0, TOP_TEXT, TOP_NAME },
    { "TO", NULL, 8, 0, TOP_TEXT, TOP_PEER_NAME },
    { "FUNCTION", NULL, 8, 1, TOP_TEXT, TOP_FUNCTION },
    { "AGE", NULL, 8, 2, TOP_SECONDS, TOP_AGE },
    { "LEFT", NULL, 8, 4, TOP_SECONDS, TOP_LEFT },
    { "WHERE", NULL, 8, 3, TOP_TEXT, TOP_DOING },
};

const struct top_column *top_columns(enum top_view view, int *count)
{
    static const struct {
        const struct top_column *columns;
        int count;
    } views[] = {
        [TOP_WORKERS] = { worker_columns, sizeof(worker_columns) / sizeof(worker_columns[0]) },
        [TOP_RINGS] = { ring_columns, sizeof(ring_columns) / sizeof(ring_columns[0]) },
        [TOP_CALLS] = { call_columns, sizeof(call_columns) / sizeof(call_columns[0]) },
    };

    *count = views[view].count;
    return views[view].columns;
}

const char *top_view_name(enum top_view view)
{
    static const char *const names[] = { "workers", "rings", "calls" };

    return names[view];
}

int top_column_named(enum top_view view, const char *title)
{
    int count;
    const struct top_column *columns = top_columns(view, &count);

    while (--count >= 0 && strcasecmp(columns[count].title, title) != 0)
        ;
    return count;
}

/* ---- Figures ------------------------------------------------------------------------------------- */

/* Three digits and a unit. */
static void scaled(char *text, size_t bytes, double value, double base)
{
    static const char units[] = " kMGTPE";
    int unit = 0;

    for (; value >= 999.5 && units[unit + 1] != '\0'; unit++)
        value /= base;
    if (unit == 0)
        snprintf(text, bytes, value < 9.95 && value > floor(value) ? "%.1f" : "%.0f", value);
    else
        snprintf(text, bytes, value < 9.995 ? "%.2f%c" : value < 99.95 ? "%.1f%c" : "%.0f%c", value,
                 base > 1000 ? toupper((unsigned char)units[unit]) : units[unit]);
}

const char *top_figure(double value, enum top_format format)
{
    static char text[24];

    if (isnan(value))
        return "-";
    if (format == TOP_COUNT)
        scaled(text, sizeof(text), value, 1000);
    else if (format == TOP_BYTES)
        scaled(text, sizeof(text), value, 1024);
    else if (format == TOP_SECONDS)
        return stat_time_text(value);
    else
        snprintf(text, sizeof(text), "%.0f", value);
    return text;
}

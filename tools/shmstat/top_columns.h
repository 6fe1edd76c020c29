/* SPDX-License-Identifier: MIT */
/*
 * shmstat top: the columns of each view, for the grid and for JSON, and how their values are printed.
 */
#ifndef TOOLS_STAT_TOP_COLUMNS_H
#define TOOLS_STAT_TOP_COLUMNS_H

#include "top_rates.h"

struct top_column {
    const char *title;
    const char *key;                    /* in JSON; NULL: not there, or under a key of the worker itself */
    int width;
    int importance;                     /* 0: always shown; else 1 is the most, and the least is left out first */
    enum top_format {
        TOP_TEXT,
        TOP_WHOLE,                      /* 1234 */
        TOP_COUNT,                      /* 1.23k */
        TOP_BYTES,                      /* 1.23K, by 1024 */
        TOP_PERCENT,
        TOP_SECONDS,
    } format;
    int source;                         /* enum top_number, or enum top_text */
};

enum top_text { TOP_JOB, TOP_NAME, TOP_PEER_NAME, TOP_DOING, TOP_STATE, TOP_FUNCTION, TOP_CALL, TOP_WHY };

/* The columns of a view, and how many. state.sort is an index into them. */
const struct top_column *top_columns(enum top_view view, int *count);
const char *top_text(const struct top_row *row, int source);
const char *top_view_name(enum top_view view);
/* A figure in at most five characters, unless it is WHOLE. Valid until the next call. */
const char *top_figure(double value, enum top_format format);

#endif
